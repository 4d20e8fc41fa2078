"""Compare two ways of training, each with several seeds: how the means over seeds differ.

Every draw resamples classes, the same for all models, and seeds, the same for both ways of training. With few seeds,
the variation between seeds is estimated poorly and slightly too small; the variation between classes is treated as in
``comparison.py``. If each seed was evaluated on different classes, for example because they were held out of the
training classes at random, the classes of each seed are resampled independently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.comparison import Difference, Scores, check_comparable
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.registry import find_score
from isomargin.measure.statistics.intervals import check_classes, check_draws, percentile_interval, percentile_p_value
from isomargin.measure.statistics.resampling import Weights, draw_weights

FAR_SPREAD, FRR_SPREAD = "far_threshold_spread", "frr_threshold_spread"


def compare_seeds(
    first: Sequence[Evaluation],
    other: Sequence[Evaluation],
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    folds: bool = False,
) -> tuple[Difference, ...]:
    """Compare the means of every score over seeds, by paired bootstrap over classes and seeds.

    Args:
        first: the evaluations of one way of training, one per seed.
        other: the evaluations of the other way of training, with the same number of seeds, each on the same classes
            as its counterpart in ``first``.
        draws: number of bootstrap draws, at least 100.
        confidence: confidence level of the intervals.
        seed: seed of the random draws.
        folds: whether the evaluations are folds of one set of classes instead of seeds: then every draw has all of
            them, because the only chance is that of the classes.

    Returns:
        The differences of the scores that `compare` returns, and of ``far_threshold_spread`` and
        ``frr_threshold_spread``: the standard deviation of the thresholds that the classes need for the target FAR or
        FRR, divided by the width of the calibration range.

    >>> import isomargin as im
    >>> generator, labels = np.random.default_rng(0), np.repeat(np.arange(40), 8)
    >>> centres = generator.normal(size=(40, 16))[labels]
    >>> rough, fine = (
    ...     [im.evaluate(centres + spread * generator.normal(size=(320, 16)), labels) for _ in range(3)]
    ...     for spread in (0.9, 0.5)
    ... )
    >>> opis = next(row for row in compare_seeds(rough, fine) if row.score == "opis")
    >>> opis.change.high < 0, opis.first == sum(evaluation.opis for evaluation in rough) / 3
    (True, True)
    """
    check_draws(draws, confidence)
    return tuple(row.difference(confidence) for row in draw_differences(first, other, draws, seed, folds))


@dataclass(frozen=True)
class DrawnDifference:
    """The means of one score over seeds for two ways of training: as measured, and in each draw."""

    score: str
    first: float
    other: float
    drawn_first: Floats
    """(draws,)."""
    drawn_other: Floats
    """(draws,), of the same classes and seeds."""
    least: float
    """The smallest p value that this number of draws and classes can give."""

    @property
    def relative(self) -> bool:
        """Whether the difference can be divided by the first way's score."""
        return find_score(self.score).relative and self.first > 0 and float(self.drawn_first.min()) > 0

    def difference(self, confidence: float = 0.95) -> Difference:
        """Return the difference with its interval and p value."""
        a, b, drawn = self.first, self.other, self.drawn_other - self.drawn_first
        change = None
        if self.relative:
            change = percentile_interval(b / a - 1, self.drawn_other / self.drawn_first - 1, confidence)
        p_value = p_value_of(drawn, self.least, b == a)
        return Difference(self.score, a, b, percentile_interval(b - a, drawn, confidence), change, p_value)


def p_value_of(drawn: Floats, least: float, equal: bool) -> float:
    """Return the two-sided p value of drawn differences; ``equal`` says whether the measured scores are equal."""
    if np.ptp(drawn) > 0:
        return max(percentile_p_value(drawn), least)
    return 1.0 if equal else least


def draw_differences(
    first: Sequence[Evaluation],
    other: Sequence[Evaluation],
    draws: int = 1000,
    seed: int = 0,
    folds: bool = False,
    scores: "Callable[[Evaluation, Weights], Scores] | None" = None,
) -> list[DrawnDifference]:
    """Draw the means of every score for two ways of training; the arguments are those of `compare_seeds`.

    ``scores`` computes the scores of one model for drawn classes: `SeedScores` unless given, for example to keep those
    of a model that is compared several times.
    """
    if len(first) != len(other) or not first:
        raise InputError(
            f"both ways of training need the same number of seeds, but {len(first)} and {len(other)} were given"
        )
    weights = weights_by_seed(first, other, draws, seed)
    chosen = np.random.default_rng([seed, 1]).integers(len(first), size=(draws, len(first)))
    if folds:
        chosen = np.broadcast_to(np.arange(len(first)), chosen.shape)
    make = scores or SeedScores
    one, two = (
        [make(evaluation, drawn) for evaluation, drawn in zip(evaluations, weights, strict=True)]
        for evaluations in (first, other)
    )
    names = [name for name in one[0].drawn if all(name in scores.drawn for scores in (*one, *two))]
    least = max(1 / (draws + 1), 2.0 ** (1 - len(first[0].curves.classes)))
    pairs = {name: (means(name, one, chosen), means(name, two, chosen)) for name in names}
    return [
        DrawnDifference(name, a, b, drawn_a, drawn_b, least) for name, ((a, drawn_a), (b, drawn_b)) in pairs.items()
    ]


def weights_by_seed(first: Sequence[Evaluation], other: Sequence[Evaluation], draws: int, seed: int) -> list[Weights]:
    """Draw the weights of the classes for each seed; the same weights if all seeds have the same classes."""
    for evaluation in first:
        check_classes(evaluation)
    names = {frozenset(evaluation.names.tolist()) for evaluation in first}
    if len(names) == 1:
        check_comparable({f"model {number}": evaluation for number, evaluation in enumerate([*first, *other])})
        return [draw_weights(first[0].counts.positives.totals > 0, draws, seed)] * len(first)
    for number, (one, two) in enumerate(zip(first, other, strict=True)):
        check_comparable({f"model {number}": one, f"model {len(first) + number}": two})
    return [
        draw_weights(
            evaluation.counts.positives.totals > 0, draws, int(np.random.default_rng([seed, 2, number]).integers(2**31))
        )
        for number, evaluation in enumerate(first)
    ]


class SeedScores(Scores):
    """The scores of one model, and the spread of its classes' thresholds."""

    def __init__(self, evaluation: Evaluation, weights: Weights, values: Mapping[str, float] | None = None) -> None:
        super().__init__(evaluation, weights, values)
        classes = evaluation.curves.classes
        low, high = evaluation.calibration_range
        shares = weights[:, classes] / weights[:, classes].sum(axis=1, keepdims=True)
        for name, by_class, spread in (
            (FAR_SPREAD, evaluation.summary.class_far_distance, evaluation.far_threshold_spread),
            (FRR_SPREAD, evaluation.summary.class_frr_distance, evaluation.frr_threshold_spread),
        ):
            from_mean = by_class[classes] - by_class[classes].mean()
            variance = shares @ np.square(from_mean) - np.square(shares @ from_mean)
            measured = spread.relative_deviation
            self.values[name] = measured if values is None else values[name]
            self.drawn[name] = np.sqrt(np.maximum(variance, 0)) / (high - low) + (self.values[name] - measured)


def means(name: str, models: Sequence[Scores], chosen: NDArray[np.int64]) -> tuple[float, Floats]:
    """Return the mean of a score over seeds, and (draws,) its mean over the seeds of each draw."""
    drawn = np.stack([model.drawn[name] for model in models])  # (seeds, draws)
    value = sum(model.values[name] for model in models) / len(models)
    return value, drawn[chosen.T, np.arange(drawn.shape[1])].mean(axis=0)
