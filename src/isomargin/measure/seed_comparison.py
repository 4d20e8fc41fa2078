"""Two ways of training on the same classes, each with several seeds: how the means over seeds differ.

In every draw classes are drawn anew, the same for all models, and so are seeds, the same for both ways. With few seeds
their part in the spread is estimated poorly and a little too small; that of the classes is as in `comparison.py`. Where
each seed was measured on classes of its own, as when they are held out of the training classes by chance, each seed's
are drawn by themselves.
"""

from collections.abc import Sequence

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
) -> tuple[Difference, ...]:
    """Give the difference of every score's mean over seeds, by paired bootstrap over classes and seeds.

    Args:
        first: the evaluations of one way of training, a seed each.
        other: those of another, with as many seeds, each on the same classes as the first's.
        draws: how often classes and seeds are drawn anew.
        confidence: of the intervals.
        seed: of the draws.

    Beside the scores of `compare` there are ``far_threshold_spread`` and ``frr_threshold_spread``: the deviation over
    classes of the thresholds that each would need for the target FAR or FRR, in units of the calibration range.

    >>> import isomargin as im
    >>> generator, labels = np.random.default_rng(0), np.repeat(np.arange(40), 8)
    >>> centres = generator.normal(size=(40, 16))[labels]
    >>> rough, fine = (
    ...     [im.evaluate(centres + spread * generator.normal(size=(320, 16)), labels) for _ in range(3)]
    ...     for spread in (0.9, 0.5)
    ... )
    >>> opis = next(row for row in compare_seeds(rough, fine) if row.score == "opis")
    >>> opis.change.high < 0, opis.first == sum(each.opis for each in rough) / 3
    (True, True)
    """
    check_draws(draws, confidence)
    if len(first) != len(other) or not first:
        raise InputError(f"{len(first)} and {len(other)} seeds were given: both ways of training need the same number")
    weights = weights_by_seed(first, other, draws, seed)
    chosen = np.random.default_rng([seed, 1]).integers(len(first), size=(draws, len(first)))
    one, two = (
        [SeedScores(each, drawn) for each, drawn in zip(evaluations, weights, strict=True)]
        for evaluations in (first, other)
    )
    names = [name for name in one[0].drawn if all(name in each.drawn for each in (*one, *two))]
    least = max(1 / (draws + 1), 2.0 ** (1 - len(first[0].curves.classes)))
    return tuple(difference(name, one, two, chosen, confidence, least) for name in names)


def weights_by_seed(first: Sequence[Evaluation], other: Sequence[Evaluation], draws: int, seed: int) -> list[Weights]:
    """Draw the classes of each seed: together where all seeds have the same."""
    for each in first:
        check_classes(each)
    names = {frozenset(each.names.tolist()) for each in first}
    if len(names) == 1:
        check_comparable({f"model {number}": each for number, each in enumerate([*first, *other])})
        return [draw_weights(first[0].counts.positives.totals > 0, draws, seed)] * len(first)
    for number, (one, two) in enumerate(zip(first, other, strict=True)):
        check_comparable({f"model {number}": one, f"model {len(first) + number}": two})
    return [
        draw_weights(
            each.counts.positives.totals > 0, draws, int(np.random.default_rng([seed, 2, number]).integers(2**31))
        )
        for number, each in enumerate(first)
    ]


class SeedScores(Scores):
    """One model's scores, and the spread of its classes' thresholds."""

    def __init__(self, evaluation: Evaluation, weights: Weights) -> None:
        super().__init__(evaluation, weights)
        classes = evaluation.curves.classes
        low, high = evaluation.calibration_range
        shares = weights[:, classes] / weights[:, classes].sum(axis=1, keepdims=True)
        for name, by_class, spread in (
            (FAR_SPREAD, evaluation.summary.class_far_distance, evaluation.far_threshold_spread),
            (FRR_SPREAD, evaluation.summary.class_frr_distance, evaluation.frr_threshold_spread),
        ):
            from_mean = by_class[classes] - by_class[classes].mean()
            variance = shares @ np.square(from_mean) - np.square(shares @ from_mean)
            self.values[name] = spread.relative_deviation
            self.drawn[name] = np.sqrt(np.maximum(variance, 0)) / (high - low)


def difference(
    name: str,
    first: Sequence[Scores],
    other: Sequence[Scores],
    chosen: NDArray[np.int64],
    confidence: float,
    least: float,
) -> Difference:
    """Give the difference of one score's means; chosen (draws, seeds) says which seeds each draw takes."""
    (a, drawn_a), (b, drawn_b) = (means(name, each, chosen) for each in (first, other))
    drawn = drawn_b - drawn_a
    change = None
    if find_score(name).relative and a > 0 and drawn_a.min() > 0:
        change = percentile_interval(b / a - 1, drawn_b / drawn_a - 1, confidence)
    p_value = max(percentile_p_value(drawn), least) if np.ptp(drawn) > 0 else (1.0 if b == a else least)
    return Difference(name, a, b, percentile_interval(b - a, drawn, confidence), change, p_value)


def means(name: str, models: Sequence[Scores], chosen: NDArray[np.int64]) -> tuple[float, Floats]:
    """Give a score's mean over seeds, and (draws,) that of the seeds drawn."""
    drawn = np.stack([each.drawn[name] for each in models])  # (seeds, draws)
    value = sum(each.values[name] for each in models) / len(models)
    return value, drawn[chosen.T, np.arange(drawn.shape[1])].mean(axis=0)
