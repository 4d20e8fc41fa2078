"""The regularizer of this project: it pulls the thresholds that the classes need towards each other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._base import PairLoss, Records
from isomargin.losses._engine import Gradient
from isomargin.losses._pairs import INFINITY, Pairs, Tile, upload

SMALLEST_GAP = 0.01


@dataclass
class _State:
    row_classes: Tensor
    """(n,)"""
    negative_sums: list[Tensor] = field(default_factory=list)
    """Per tile, (b,): log Σ exp(s/t) over each row's negatives."""
    positive_sums: list[Tensor] = field(default_factory=list)
    """Per tile, (b,): log Σ exp(−s/t) over each row's positives."""
    negative_class_sums: Tensor = field(default_factory=lambda: torch.empty(0))
    """(classes,) the same over a class's rows."""
    positive_class_sums: Tensor = field(default_factory=lambda: torch.empty(0))
    """(classes,)"""
    by_negative: Tensor = field(default_factory=lambda: torch.empty(0))
    """(classes,) the derivative of the loss with respect to n_c."""
    by_positive: Tensor = field(default_factory=lambda: torch.empty(0))
    """(classes,) the derivative of the loss with respect to p_c."""
    deviations: Records = field(default_factory=dict)


class ClassAlignmentLoss(PairLoss):
    """Penalises what makes one threshold fail: positive pairs are more similar in some classes than in others.

    For each class c of the batch, over the pairs with a row of the class, with t the temperature of their side:

        n_c =  t log mean exp( s/t)  over its negative pairs, a soft upper quantile
        p_c = −t log mean exp(−s/t)  over its positive pairs, a soft lower quantile
        loss = negative_weight · Var_c(n_c) + positive_weight · Var_c(p_c)

    over the classes that have pairs of both kinds; the variance is the mean squared deviation. After a call `values`
    has `negative_deviation` and `positive_deviation`, the standard deviations.

    It resembles the metric variance constraint of Kan et al. (2022), *Contrastive Bayesian Analysis for Deep Metric
    Learning*, which keeps similarities consistent over all pairs. This is a variance between classes, of a quantile of
    each: within a class, similarities may vary. `docs/losses.md` compares it with further methods.

    Parameters
    ----------
    positive_weight, negative_weight: of the two variances. Similarities of classes differ by hundredths, so their
        squares need a large weight. Better is `share(ClassAlignmentLoss(), 0.3)`, which suits nearly every base loss.
        Aligning negative pairs too lowered OPIS less on held-out classes, so their weight is 0.
    temperature: t; small: only the least similar positive, or the most similar negative, counts; large: the mean.
    negative_temperature: t of the negative pairs, if it differs. With 0.03 only the most similar ones count, which
        decide at what threshold a class reaches a low false accept rate.
    scale_free: divide by the squared mean gap p − n (at least 0.01²), because thresholds are judged relative to the
        range that they lie in: then shrinking all similarities does not lower the loss. Use it with losses that can
        pull all points together, such as ArcFace with a large margin, and with a share or with positive_weight=0.05:
        weights that suit the other form are far too large.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> points = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    >>> round(float(ClassAlignmentLoss()(points, torch.tensor([0, 0, 1, 1]))), 4)  # p_c are 0.8 and 1
    0.5
    """

    name = "class_alignment"

    def __init__(
        self,
        positive_weight: float = 50.0,
        negative_weight: float = 0.0,
        temperature: float = 0.3,
        negative_temperature: float | None = None,
        scale_free: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(check_finite)
        self.positive_weight = checks.at_least_zero(positive_weight, "positive_weight")
        self.negative_weight = checks.at_least_zero(negative_weight, "negative_weight")
        self.temperature = checks.temperature(temperature, "temperature")
        self.negative_temperature = (
            self.temperature
            if negative_temperature is None
            else checks.temperature(negative_temperature, "negative_temperature")
        )
        self.scale_free = checks.truth(scale_free, "scale_free")

    def begin(self, pairs: Pairs, weights: Tensor | None) -> _State:
        """Start with an empty state."""
        return _State(upload(pairs.row_classes, pairs.device))

    def visit(self, tile: Tile, state: _State) -> None:
        """Compute the log of the sum of exponentials for each row."""
        state.negative_sums.append(_log_sum_exp(tile.negatives / self.negative_temperature))
        state.positive_sums.append(_log_sum_exp(tile.pad(-tile.positives / self.temperature, -INFINITY)))

    def finish(self, pairs: Pairs, state: _State) -> Tensor | float:
        """Combine the rows of each class, and compute the variances over classes."""
        if not state.negative_sums:
            return 0.0
        classes = int(pairs.row_classes.max()) + 1
        state.negative_class_sums = _by_class(state.negative_sums, state.row_classes, classes)
        state.positive_class_sums = _by_class(state.positive_sums, state.row_classes, classes)
        pair_counts = pairs.negative_counts, pairs.positive_counts
        counts = np.stack([np.bincount(pairs.row_classes, of_rows, classes) for of_rows in pair_counts])
        negative_counts, positive_counts = upload(counts.astype(np.float32), pairs.device).to(state.negative_sums[0])
        both = (negative_counts > 0) & (positive_counts > 0)  # (classes,)
        shares = both / both.sum().clamp(min=1).to(negative_counts)
        n = self.negative_temperature * (state.negative_class_sums - negative_counts.log())
        p = -self.temperature * (state.positive_class_sums - positive_counts.log())
        n, p = (torch.where(both, quantiles, 0.0) for quantiles in (n, p))
        from_mean_n, from_mean_p = ((quantiles - (quantiles * shares).sum()) * both for quantiles in (n, p))
        variance_n, variance_p = ((from_mean.square() * shares).sum() for from_mean in (from_mean_n, from_mean_p))
        state.by_negative = 2 * self.negative_weight * from_mean_n * shares
        state.by_positive = 2 * self.positive_weight * from_mean_p * shares
        state.deviations = {"negative_deviation": variance_n.sqrt(), "positive_deviation": variance_p.sqrt()}
        loss: Tensor = self.negative_weight * variance_n + self.positive_weight * variance_p
        if self.scale_free:
            gap = ((p - n) * shares).sum()
            by_gap = torch.where(gap > SMALLEST_GAP, -2 * loss / gap * shares, 0.0)
            scale = gap.clamp(min=SMALLEST_GAP) ** -2
            state.by_negative = scale * (state.by_negative - by_gap)
            state.by_positive = scale * (state.by_positive + by_gap)
            loss = scale * loss
        return loss

    def records(self, pairs: Pairs, state: _State) -> Records:
        """Return how far apart the classes are."""
        return state.deviations

    def add_gradient(self, tile: Tile, state: _State, scale: float, gradient: Gradient) -> None:
        """Distribute the derivative of each class over its pairs, mostly to those that determine its quantile."""
        classes = state.row_classes[tile.start : tile.stop]
        # A class without pairs of one kind has -inf as its sum, and a derivative of 0.
        sums = state.negative_class_sums[classes].nan_to_num(neginf=0.0)
        scratch = tile.scratch(*tile.negatives.shape)
        forces = torch.div(tile.negatives, self.negative_temperature, out=scratch)
        forces.sub_(sums[:, None]).clamp_(max=0).exp_()
        gradient.negatives.add_(forces.mul_(scale * state.by_negative[classes][:, None]))
        sums = state.positive_class_sums[classes].nan_to_num(neginf=0.0)
        forces = (-tile.positives / self.temperature - sums[tile.rows]).clamp_(max=0).exp_()
        gradient.positives.add_(forces.mul_(scale * state.by_positive[classes][tile.rows]))


def _by_class(row_sums: list[Tensor], row_classes: Tensor, classes: int) -> Tensor:
    """Return log Σ exp over the rows of each class, from that of each row: (classes,), -inf without pairs."""
    rows = torch.cat(row_sums)
    largest = rows.new_full((classes,), -INFINITY).scatter_reduce_(0, row_classes, rows, "amax")
    largest = largest.nan_to_num(neginf=0.0)
    sums = torch.zeros_like(largest).index_add_(0, row_classes, (rows - largest[row_classes]).exp())
    return largest + sums.log()


def _log_sum_exp(values: Tensor) -> Tensor:
    """Return log Σ exp over each row of (b, m); -inf for a row without entries."""
    if values.shape[1] == 0:
        return values.new_full((len(values),), -INFINITY)
    return values.logsumexp(dim=1)
