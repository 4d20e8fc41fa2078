"""The triplet loss over all triplets of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._base import PairLoss, Records
from isomargin.losses._batch import Batch, product
from isomargin.losses._engine import Gradient
from isomargin.losses._pairs import INFINITY, Pairs, Tile


@dataclass
class _State:
    triplets: int
    found: list[Tensor] = field(default_factory=list)
    """For each positive of the anchors of a tile: the sum of the terms, and how many are above 0 (scalars)."""
    violations: float = 0.0


class TripletLoss(PairLoss):
    """Schroff, Kalenichenko and Philbin (2015), with every triplet of the batch, or those that a miner lists.

    The mean, over anchors a, their positives p and their negatives n, of

        max(0, d²_ap − d²_an + margin) = max(0, 2(s_an − s_ap) + margin)

    Parameters
    ----------
    margin: of squared distances.
    reduction: "violating" takes the mean over the triplets with a term above 0, as is usual, because most terms are 0;
        "all" takes it over all triplets.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> round(float(TripletLoss()(torch.eye(3), torch.tensor([0, 0, 1]))), 4)
    0.2
    """

    name = "triplet"

    def __init__(self, margin: float = 0.2, reduction: str = "violating", check_finite: bool = False) -> None:
        super().__init__(check_finite)
        self.margin = checks.at_least_zero(margin, "margin")
        self.reduction = checks.one_of(reduction, "reduction", ("all", "violating"))

    def shares_points(self, batch: Batch) -> bool:
        """A list of triplets cannot be shared with losses of pairs."""
        return batch.chosen is None or len(batch.chosen) == 4

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Use all triplets, or those that a miner listed, as often as it listed them."""
        if self.shares_points(batch) or batch.chosen is None:
            return super().compute(batch)
        columns = batch.vectors if batch.reference_vectors is None else batch.reference_vectors
        anchors, positives, negatives = batch.chosen
        similarities = product(batch.vectors, columns)
        terms = (2 * (similarities[anchors, negatives] - similarities[anchors, positives]) + self.margin).relu()
        counted = terms > 0 if self.reduction == "violating" else torch.ones_like(terms)
        return terms.sum() / counted.sum().clamp(min=1), {}

    def begin(self, pairs: Pairs, weights: Tensor | None) -> _State:
        """Count the triplets."""
        return _State(int((pairs.positive_counts * pairs.negative_counts).sum()))

    def visit(self, tile: Tile, state: _State) -> None:
        """Sum the triplets' terms, one positive of every anchor at a time."""
        for positives in tile.pad(tile.positives, INFINITY).T:  # (b,); where there is none, no term is above 0
            terms = self._terms(tile, positives).relu_()
            state.found += [terms.sum(), _violating_(terms).sum()]

    def finish(self, pairs: Pairs, state: _State) -> float:
        """Return the mean."""
        read: list[float] = torch.stack(state.found).tolist() if state.found else []
        state.violations = sum(read[1::2])
        return sum(read[::2]) / max(self._divisor(state), 1)

    def add_gradient(self, tile: Tile, state: _State, scale: float, gradient: Gradient) -> None:
        """Every violating triplet pulls and pushes with the same force."""
        force = 2 * scale / max(self._divisor(state), 1)
        pulls = torch.zeros_like(tile.pad(tile.positives, 0.0))
        for slot, positives in enumerate(tile.pad(tile.positives, INFINITY).T):
            violating = _violating_(self._terms(tile, positives))
            gradient.negatives.add_(violating, alpha=force)
            pulls[:, slot] = violating.sum(dim=1)
        gradient.positives.sub_(tile.unpad(pulls), alpha=force)

    def _terms(self, tile: Tile, positives: Tensor) -> Tensor:
        scratch = tile.scratch(*tile.negatives.shape)
        return torch.sub(tile.negatives, (positives - self.margin / 2)[:, None], out=scratch).mul_(2)

    def _divisor(self, state: _State) -> float:
        return state.violations if self.reduction == "violating" else state.triplets


def _violating_(terms: Tensor) -> Tensor:
    return torch.gt(terms, 0.0, out=terms)
