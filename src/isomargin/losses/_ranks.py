"""Rank-based losses: for each query, the soft ranks of its positives among everything it is compared with.

For a query and each of its positives j, R⁺_j = 1 + Σ over its other positives k of step(s_k − s_j), and
R_j = R⁺_j + Σ over its negatives k of step(s_k − s_j). Only positives are ranked, so the work is rows × positives ×
columns, one positive of every row at a time. Between the passes only the ranks are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._base import PairLoss
from isomargin.losses._engine import Gradient
from isomargin.losses._pairs import INFINITY, Pairs, Tile


@dataclass
class Ranks:
    """The state of the forward pass."""

    weights: Tensor | None
    queries: int
    """How many rows have a positive."""
    items: int
    """How many rows there are, without those that were mixed from others."""
    has_negatives: bool
    totals: list[Tensor] = field(default_factory=list)
    """Per tile, the sum of the queries' losses, weighted."""
    slopes: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By the first row of a tile: the derivatives of each query's loss with respect to R⁺ and R − R⁺ (b, ranked)."""


@dataclass
class Ranked:
    """The positives of a tile by query: those that are ranked, and those that they are ranked among."""

    thresholds: Tensor
    """(b, ranked) similarities of the positives to rank; +inf where a query has fewer."""
    positives: Tensor
    """(b, r) similarities that they are compared with, -inf where there are fewer."""


class RankLoss(PairLoss):
    """A function of the ranks of a query's positives, averaged over the queries that have a positive."""

    weighs_samples = True
    query_is_ranked = True
    """With `include_query`: whether the query is ranked too, or only takes a place above the others."""

    def __init__(self, temperature: float, include_query: bool, check_finite: bool) -> None:
        super().__init__(check_finite)
        self.temperature = checks.temperature(temperature, "temperature")
        self.include_query = self.compares_with_itself = checks.truth(include_query, "include_query")

    def step_(self, differences: Tensor) -> Tensor:
        """Return, in place, how much a negative counts that is more similar than the positive by x: σ(x/τ)."""
        return sigmoid_step_(differences, self.temperature)

    def step_slope_(self, differences: Tensor) -> Tensor:
        """Return, in place, the derivative of `step_`."""
        return sigmoid_slope_(differences, self.temperature)

    def positive_step_(self, differences: Tensor) -> Tensor:
        """Return, in place, how much another positive counts."""
        return self.step_(differences)

    def positive_step_slope_(self, differences: Tensor) -> Tensor | None:
        """Return, in place, the derivative of that; None where it is 0."""
        return self.step_slope_(differences)

    def query_losses(
        self, positive_ranks: Tensor, above: Tensor, ranked: Tensor, counts: Tensor, items: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries' losses (b,) and their derivatives with respect to R⁺ and R − R⁺ (b, ranked).

        `ranked` is true where there is a positive; rows without one are ignored. `counts` (b,) is the number of each
        query's positives, `items` that of all items in the batch. By default the loss is 1 − AP.
        """
        return average_precision_losses(positive_ranks, above, ranked)

    def begin(self, pairs: Pairs, weights: Tensor | None) -> Ranks:
        """Start."""
        return Ranks(
            weights, int((pairs.positive_counts > 0).sum()), pairs.shape[0] - pairs.virtual, pairs.negative_total > 0
        )

    def visit(self, tile: Tile, state: Ranks) -> None:
        """Rank the positives of the tile's rows."""
        if tile.most == 0:
            return
        ranked = self._set_out(tile)
        positive_ranks = torch.ones_like(ranked.thresholds)
        above = torch.zeros_like(ranked.thresholds)
        for slot in range(ranked.thresholds.shape[1]):
            threshold = ranked.thresholds[:, slot : slot + 1]
            others = self._differences_of_positives(ranked, slot)
            positive_ranks[:, slot] += self.positive_step_(others).sum(dim=1)
            rows = _rows_in(tile, slot)
            if not state.has_negatives:
                continue
            if rows is None:
                above[:, slot] = self.step_(_differences(tile, threshold)).sum(dim=1)
            else:
                above[rows, slot] = self.step_(_differences(tile, threshold, rows)).sum(dim=1)
        losses, by_positive_ranks, by_above = self.query_losses(
            positive_ranks, above, ranked.thresholds != INFINITY, tile.counts, state.items
        )
        weights = (tile.counts > 0).to(losses)
        if state.weights is not None:
            weights = weights * state.weights[tile.start : tile.stop]
        state.totals.append((losses * weights).sum())
        weights = weights[:, None] / max(state.queries, 1)
        state.slopes[tile.start] = (by_positive_ranks * weights, by_above * weights)

    def finish(self, pairs: Pairs, state: Ranks) -> float:
        """Take the mean over the queries."""
        return sum(torch.stack(state.totals).tolist()) / state.queries if state.totals else 0.0

    def add_gradient(self, tile: Tile, state: Ranks, scale: float, gradient: Gradient) -> None:
        """Rank again, and pass the derivative of each rank on to the similarities that it depends on."""
        if tile.most == 0:
            return
        ranked = self._set_out(tile)
        by_positive_ranks, by_above = (slopes * scale for slopes in state.slopes[tile.start])
        for_thresholds = torch.zeros_like(ranked.thresholds)
        for_positives = torch.zeros_like(ranked.positives)
        for slot in range(ranked.thresholds.shape[1]):
            threshold = ranked.thresholds[:, slot : slot + 1]
            forces = self.positive_step_slope_(self._differences_of_positives(ranked, slot))
            if forces is not None:
                for_positives += forces.mul_(by_positive_ranks[:, slot : slot + 1])
                for_thresholds[:, slot] -= forces.sum(dim=1)
            rows = _rows_in(tile, slot)
            if not state.has_negatives:
                continue
            if rows is None:
                forces = self.step_slope_(_differences(tile, threshold)).mul_(by_above[:, slot : slot + 1])
                gradient.negatives.add_(forces)
                for_thresholds[:, slot] -= forces.sum(dim=1)
            else:
                forces = self.step_slope_(_differences(tile, threshold, rows))
                forces.mul_(by_above[rows, slot : slot + 1])
                gradient.negatives.index_add_(0, rows, forces)
                for_thresholds[rows, slot] -= forces.sum(dim=1)
        gradient.positives += tile.unpad(for_thresholds[:, : tile.most] + for_positives[:, : tile.most])
        if self.include_query and gradient.to_itself is not None:  # its column is the last
            gradient.to_itself += for_positives[:, -1]
            if self.query_is_ranked:
                gradient.to_itself += for_thresholds[:, -1]

    def _set_out(self, tile: Tile) -> Ranked:
        thresholds, positives = tile.pad(tile.positives, INFINITY), tile.pad(tile.positives, -INFINITY)
        if self.include_query and tile.to_itself is not None:
            itself = tile.to_itself[:, None]
            positives = torch.cat([positives, itself], dim=1)
            if self.query_is_ranked:
                thresholds = torch.cat([thresholds, itself.masked_fill(tile.counts[:, None] == 0, INFINITY)], dim=1)
        return Ranked(thresholds, positives)

    @staticmethod
    def _differences_of_positives(ranked: Ranked, slot: int) -> Tensor:
        """Compare the positives with the one in this slot, except the one with itself."""
        differences = ranked.positives - ranked.thresholds[:, slot : slot + 1]
        differences[:, slot] = -INFINITY
        return differences


def _differences(tile: Tile, threshold: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return how much more similar than the threshold (b, 1) the negatives are, for all rows or the given rows."""
    if rows is None:
        return torch.sub(tile.negatives, threshold, out=tile.scratch(*tile.negatives.shape))
    scratch = tile.scratch(len(rows), tile.negatives.shape[1])
    return torch.index_select(tile.negatives, 0, rows, out=scratch).sub_(threshold[rows])


def _rows_in(tile: Tile, slot: int) -> Tensor | None:
    """Return the rows that have a positive in this slot; None if all do. The query comes last, in rows with any."""
    return tile.rows_by_slot[slot if slot < tile.most else 0]


def sigmoid_step_(differences: Tensor, temperature: float) -> Tensor:
    """Return σ(x/τ) in place."""
    return differences.mul_(1 / temperature).sigmoid_()


def sigmoid_slope_(differences: Tensor, temperature: float) -> Tensor:
    """Return the derivative of σ(x/τ) in place: σ(1 − σ)/τ."""
    values = sigmoid_step_(differences, temperature)
    return torch.addcmul(values, values, values, value=-1, out=values).mul_(1 / temperature)


def average_precision_losses(positive_ranks: Tensor, above: Tensor, ranked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1 − AP (b,), AP being the mean of R⁺/R over a query's positives, and its derivatives by R⁺ and R − R⁺."""
    counts = ranked.sum(dim=1, keepdim=True).clamp(min=1)
    ranks = positive_ranks + above
    shares = ranked.to(ranks) / counts
    precision = (positive_ranks / ranks * shares).sum(dim=1)
    return 1 - precision, -above / ranks.square() * shares, positive_ranks / ranks.square() * shares
