"""ROADMAP: SupAP and calibration together."""

from __future__ import annotations

from isomargin.core import checks
from isomargin.losses.calibration import CalibrationLoss
from isomargin.losses.composition import WeightedSum
from isomargin.losses.sup_ap import SupAPLoss


class RoadmapLoss(WeightedSum):
    """Ramzi et al. (2021): sup_ap_weight · SupAP + calibration_weight · calibration.

    Parameters
    ----------
    temperature, slope, delta, offset, include_query, form: of `SupAPLoss`.
    positive_margin, negative_margin, reduction: of `CalibrationLoss`; the reduction is "violating" in the authors' code
        and "all" in their formula.
    sup_ap_weight, calibration_weight: of the two parts. To use calibration with another base loss, as the TCM paper
        does, add a `CalibrationLoss` to it.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> import torch
    >>> loss = RoadmapLoss()
    >>> round(float(loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))), 4)
    1.4
    >>> sorted(loss.values)
    ['calibration', 'loss', 'sup_ap']
    """

    name = "roadmap"

    def __init__(
        self,
        temperature: float = 0.01,
        slope: float = 100.0,
        delta: float = 0.05,
        offset: float = 1.44,
        include_query: bool = False,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        reduction: str = "violating",
        sup_ap_weight: float = 1.0,
        calibration_weight: float = 1.0,
        form: str = "corrected",
        check_finite: bool = False,
    ) -> None:
        super().__init__(
            [
                SupAPLoss(temperature, slope, delta, offset, include_query, form),
                CalibrationLoss(positive_margin, negative_margin, reduction),
            ],
            [
                checks.at_least_zero(sup_ap_weight, "sup_ap_weight"),
                checks.at_least_zero(calibration_weight, "calibration_weight"),
            ],
            check_finite,
        )
