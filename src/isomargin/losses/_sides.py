"""Losses with a term for each positive pair and a term for each negative pair, averaged over each of the two sides."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._base import PairLoss
from isomargin.losses._engine import Gradient
from isomargin.losses._pairs import Pairs, Tile

REDUCTIONS = ("all", "violating", "together")


@dataclass
class Sides:
    """Of positive and of negative pairs: the sum of the terms, and how many violate (have a term above 0, usually)."""

    pairs: Pairs
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    violations: list[float] = field(default_factory=lambda: [0.0, 0.0])
    found: list[tuple[int, int, Tensor, Tensor]] = field(default_factory=list)
    """Still to be added to them: the side, how many times it counts, the sum and the number (scalars)."""


class SidedLoss(PairLoss):
    """Sum of positive terms over a divisor plus sum of negative terms over a divisor.

    The divisor is the number of pairs of the side (`all`), the number of its pairs that violate (`violating`), or for
    both sides the number of all pairs (`together`).
    """

    positive_weight = 1.0
    negative_weight = 1.0

    def __init__(self, reduction: str, check_finite: bool) -> None:
        super().__init__(check_finite)
        self.reduction = checks.one_of(reduction, "reduction", REDUCTIONS)

    def positive_terms(self, similarities: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the terms of positive similarities (p,) and the number of violations (scalars)."""
        raise NotImplementedError

    def negative_terms(self, similarities: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same for negative similarities (b, m), -inf where there is none; scratch (b, m) is for results."""
        raise NotImplementedError

    def positive_slopes(self, similarities: Tensor) -> Tensor:
        """Return the derivative of each positive term (p,)."""
        raise NotImplementedError

    def negative_slopes(self, similarities: Tensor, scratch: Tensor) -> Tensor:
        """Return the derivative of each negative term (b, m), 0 where there is no negative; the scratch may be used."""
        raise NotImplementedError

    def divisors(self, state: Sides) -> tuple[float, float]:
        """Return the divisor of each side's sum; 0 for a side without pairs."""
        if self.reduction == "all":
            return state.pairs.positive_total, state.pairs.negative_total
        if self.reduction == "violating":
            return state.violations[0], state.violations[1]
        return (state.pairs.positive_total + state.pairs.negative_total,) * 2

    def begin(self, pairs: Pairs, weights: Tensor | None) -> Sides:
        """Start summing."""
        return Sides(pairs)

    def visit(self, tile: Tile, state: Sides) -> None:
        """Add one tile's terms."""
        state.found.append((0, 1, *self.positive_terms(tile.positives)))
        for times, columns in _each_pair_once(tile, state.pairs):
            similarities = tile.negatives[:, columns]
            state.found.append((1, times, *self.negative_terms(similarities, tile.scratch(*similarities.shape))))

    def finish(self, pairs: Pairs, state: Sides) -> float:
        """Divide and add."""
        numbers = [number for _, _, *both in state.found for number in both]
        read = iter(torch.stack(numbers).tolist() if numbers else [])
        for side, times, _, _ in state.found:
            state.sums[side] += times * next(read)
            state.violations[side] += times * next(read)
        state.found.clear()
        weights = self.positive_weight, self.negative_weight
        sides = zip(weights, state.sums, self.divisors(state), strict=True)
        return sum(weight * terms / divisor for weight, terms, divisor in sides if divisor)

    def add_gradient(self, tile: Tile, state: Sides, scale: float, gradient: Gradient) -> None:
        """Add each term's slope over its side's divisor."""
        positive, negative = self.divisors(state)
        if positive:
            slopes = self.positive_slopes(tile.positives)
            gradient.positives.add_(slopes, alpha=scale * self.positive_weight / positive)
        if negative:
            for times, columns in _each_pair_once(tile, state.pairs):
                similarities = tile.negatives[:, columns]
                slopes = self.negative_slopes(similarities, tile.scratch(*similarities.shape))
                gradient.negatives[:, columns].add_(slopes, alpha=times * scale * self.negative_weight / negative)


class MarginLoss(SidedLoss):
    """Terms m⁺ − s for positives below one cosine margin and s − m⁻ for negatives above another; others are 0."""

    margin_is_hard = False
    """Whether a pair exactly at its margin counts as a violation."""
    hard_only = True

    def __init__(self, positive_margin: float, negative_margin: float, reduction: str, check_finite: bool) -> None:
        super().__init__(reduction, check_finite)
        self.positive_margin, self.negative_margin = checks.margins(positive_margin, negative_margin)

    def positive_terms(self, similarities: Tensor) -> tuple[Tensor, Tensor]:
        """Sum how far the similarities are below m⁺."""
        short = torch.rsub(similarities, self.positive_margin)
        hard = (short >= 0 if self.margin_is_hard else short > 0).sum(dtype=short.dtype)
        return (short.relu_() if self.hard_only else short).sum(), hard

    def negative_terms(self, similarities: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
        """Sum how far the similarities are above m⁻."""
        # Ones and zeros as floats: several times as fast as booleans, and exact for the 2²⁴ entries a tile can have.
        hard = self._beyond(similarities, self.negative_margin, scratch).sum()
        excess = torch.sub(similarities, self.negative_margin, out=scratch)
        return (excess.relu_() if self.hard_only else excess.nan_to_num_(neginf=0.0)).sum(), hard

    def positive_slopes(self, similarities: Tensor) -> Tensor:
        """Pull every hard pair together with the same force."""
        if not self.hard_only:
            return torch.full_like(similarities, -1.0)
        short = torch.rsub(similarities, self.positive_margin)
        return (short >= 0 if self.margin_is_hard else short > 0).to(short).neg_()

    def negative_slopes(self, similarities: Tensor, scratch: Tensor) -> Tensor:
        """Push every hard pair apart with the same force."""
        return self._beyond(similarities, self.negative_margin if self.hard_only else -2.0, scratch)  # -2: not -inf

    def _beyond(self, similarities: Tensor, margin: float, scratch: Tensor) -> Tensor:
        return (torch.ge if self.margin_is_hard else torch.gt)(similarities, margin, out=scratch)


def _each_pair_once(tile: Tile, pairs: Pairs) -> list[tuple[int, slice]]:
    """Choose the columns to read, and how many times each of their pairs counts.

    Where every pair occurs twice, pairs with rows of other tiles are read in the upper triangle only, and count twice.
    """
    if not pairs.counted_from_both_ends or tile.stop - tile.start == pairs.shape[0]:
        return [(1, slice(None))]
    return [(1, slice(tile.start, tile.stop)), (2, slice(tile.stop, None))]
