"""ROADMAP's calibration loss: hinges on similarities at two margins, like TCM, with other divisors."""

from __future__ import annotations

from isomargin.losses._sides import MarginLoss


class CalibrationLoss(MarginLoss):
    """The second half of ROADMAP (Ramzi et al., 2021), which the paper compares TCM with.

        Σ_{s ∈ S⁺} max(0, m⁺ − s) / divisor  +  Σ_{s ∈ S⁻} max(0, s − m⁻) / divisor

    Parameters
    ----------
    positive_margin, negative_margin: m⁺ and m⁻.
    reduction: "violating" divides by the number of pairs beyond the margin, as the authors' code does; "all" by the
        number of all pairs of the side, as in their formula and the TCM paper; "together" by the number of all pairs.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> import torch
    >>> round(float(CalibrationLoss(reduction="all")(torch.eye(3), torch.tensor([0, 0, 1]))), 4)
    0.9
    """

    name = "calibration"

    def __init__(
        self,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        reduction: str = "violating",
        check_finite: bool = False,
    ) -> None:
        super().__init__(positive_margin, negative_margin, reduction, check_finite)
