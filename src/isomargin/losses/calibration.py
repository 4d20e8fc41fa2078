"""ROADMAP's calibration loss: hinges on similarities at two margins, as TCM, with other divisors."""

from __future__ import annotations

import torch
from torch import Tensor

from isomargin.losses import _settings
from isomargin.losses._sides import SidedLoss


class CalibrationLoss(SidedLoss):
    """The second half of ROADMAP (Ramzi et al., 2021), which the paper compares TCM with.

        Σ_{s ∈ S⁺} max(0, m⁺ − s) / divisor  +  Σ_{s ∈ S⁻} max(0, s − m⁻) / divisor

    Parameters
    ----------
    positive_margin, negative_margin: m⁺ and m⁻.
    reduction: "violating" divides by the number of pairs beyond the margin, as the authors' code does; "all" by the
        number of all pairs of the side, as their formula and the TCM paper have it; "together" by the number of all
        pairs.
    check_finite: raise, with the rows, where embeddings hold NaN or infinity.

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
        super().__init__(reduction, check_finite)
        self.positive_margin, self.negative_margin = _settings.margins(positive_margin, negative_margin)

    def positive_terms(self, similarities: Tensor) -> tuple[float, float]:
        """Sum what is missing to m⁺."""
        short = self.positive_margin - similarities
        return float(short.relu().sum()), float((similarities < self.positive_margin).sum())

    def negative_terms(self, similarities: Tensor, scratch: Tensor) -> tuple[float, float]:
        """Sum what is beyond m⁻."""
        violations = float(torch.gt(similarities, self.negative_margin, out=scratch).sum())
        if not violations:
            return 0.0, 0.0
        excess = torch.sub(similarities, self.negative_margin, out=scratch)
        return float(excess.relu_().sum()), violations

    def positive_slopes(self, similarities: Tensor) -> Tensor:
        """Pull what is short of m⁺."""
        return -(similarities < self.positive_margin).to(similarities)

    def negative_slopes(self, similarities: Tensor, scratch: Tensor) -> Tensor:
        """Push what is beyond m⁻."""
        return torch.gt(similarities, self.negative_margin, out=scratch)

    def extra_repr(self) -> str:
        """Show the settings."""
        return (
            f"positive_margin={self.positive_margin}, negative_margin={self.negative_margin}, "
            f"reduction={self.reduction!r}"
        )
