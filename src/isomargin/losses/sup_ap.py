"""SupAP: an upper bound of 1 − AP, so that training cannot look better than it is."""

from __future__ import annotations

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._ranks import RankLoss, sigmoid_slope_, sigmoid_step_


class SupAPLoss(RankLoss):
    """The first half of ROADMAP (Ramzi et al., 2021).

    As Smooth-AP, with other steps. A positive above counts 1 where s_k ≥ s_j, without gradient; a negative counts, with
    x = s_k − s_j,

        σ(x/τ) for x ≤ 0,    ½ + σ(x/τ) for 0 < x ≤ δ,    ρ(x − δ) + offset for x > δ

    so that a negative far above keeps its gradient. The authors' code had ρx + offset until they corrected it in 2022;
    numbers published before may come from that form.

    Parameters
    ----------
    temperature, slope, delta, offset: τ, ρ, δ and the line's offset.
    include_query: count the query itself among its positives, as the authors' code does.
    form: "corrected" for ρ(x − δ) + offset, "2021" for ρx + offset.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> round(float(SupAPLoss()(torch.eye(4), torch.tensor([0, 0, 1, 1]))), 4)
    0.5
    """

    name = "sup_ap"

    def __init__(
        self,
        temperature: float = 0.01,
        slope: float = 100.0,
        delta: float = 0.05,
        offset: float = 1.44,
        include_query: bool = False,
        form: str = "corrected",
        check_finite: bool = False,
    ) -> None:
        super().__init__(temperature, include_query, check_finite)
        self.slope = checks.at_least_zero(slope, "slope")
        self.delta = checks.at_least_zero(delta, "delta")
        self.offset = checks.at_least_zero(offset, "offset")
        self.form = checks.one_of(form, "form", ("corrected", "2021"))

    def step_(self, differences: Tensor) -> Tensor:
        """Count the negatives above; those far above count more."""
        begin = self.delta if self.form == "corrected" else 0.0
        line = (differences - begin) * self.slope + self.offset
        half = (differences > 0) * 0.5
        far = differences > self.delta
        return torch.where(far, line, sigmoid_step_(differences, self.temperature).add_(half))

    def step_slope_(self, differences: Tensor) -> Tensor:
        """Return the derivative of `step_`."""
        far = differences > self.delta
        return sigmoid_slope_(differences, self.temperature).masked_fill_(far, self.slope)

    def positive_step_(self, differences: Tensor) -> Tensor:
        """Count the positives above, 1 each."""
        return (differences >= 0).to(differences)

    def positive_step_slope_(self, differences: Tensor) -> Tensor | None:
        """Counting has no derivative."""
        return None
