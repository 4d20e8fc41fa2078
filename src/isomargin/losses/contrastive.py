"""The contrastive loss: positive pairs close together, negative pairs a margin apart."""

from __future__ import annotations

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._sides import SidedLoss


class ContrastiveLoss(SidedLoss):
    """Hadsell, Chopra and LeCun (2006), over all pairs: the paper's contrastive baseline.

    With d = √(2 − 2s) the distance of unit vectors:

        mean over positive pairs of d²/2  +  mean over negative pairs of max(0, margin − d)²/2

    A negative pair at distance 0 has no direction to be pushed in, and no gradient.

    Parameters
    ----------
    margin: a distance, from 0 to 2.
    reduction: "all" takes each mean over all pairs of its side, "violating" over those with a term above 0, "together"
        one mean over all pairs of both sides, in which the few positives of a large batch hardly count.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> round(float(ContrastiveLoss()(torch.eye(3), torch.tensor([0, 0, 1]))), 4)  # d² = 2 for the one positive pair
    1.0
    """

    name = "contrastive"

    def __init__(self, margin: float = 1.0, reduction: str = "all", check_finite: bool = False) -> None:
        super().__init__(reduction, check_finite)
        self.margin = checks.distance(margin, "margin")

    def positive_terms(self, similarities: Tensor) -> tuple[Tensor, Tensor]:
        """Sum d²/2 = 1 − s."""
        terms = torch.rsub(similarities, 1).relu_()
        return terms.sum(), (terms > 0).sum(dtype=terms.dtype)

    def negative_terms(self, similarities: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
        """Sum max(0, margin − d)²/2."""
        short = _distances(similarities, scratch).neg_().add_(self.margin).relu_()
        violations = (short > 0).sum(dtype=short.dtype)
        return short.square_().sum() / 2, violations

    def positive_slopes(self, similarities: Tensor) -> Tensor:
        """Pull all positive pairs with the same force."""
        return -torch.ones_like(similarities)

    def negative_slopes(self, similarities: Tensor, scratch: Tensor) -> Tensor:
        """Push by (margin − d)/d, which is -(margin − d) times the derivative of d with respect to s."""
        distances = _distances(similarities, scratch)
        return torch.where(distances > 0, (self.margin - distances).relu_() / distances, 0.0)


def _distances(similarities: Tensor, scratch: Tensor) -> Tensor:
    """Return d = √(2 − 2s) in the scratch, infinite where s is -inf."""
    return torch.mul(similarities, -2, out=scratch).add_(2).clamp_(min=0).sqrt_()
