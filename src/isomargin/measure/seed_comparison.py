"""Compare two ways of training, each with several seeds: how the means over seeds differ.

Every draw resamples classes, the same for all models, and seeds, the same for both ways of training. With few seeds,
the variation between seeds is estimated poorly and slightly too small; the variation between classes is treated as in
``comparison.py``. If each seed was evaluated on different classes, for example because they were held out of the
training classes at random, the classes of each seed are resampled independently.
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
    if len(first) != len(other) or not first:
        raise InputError(
            f"both ways of training need the same number of seeds, but {len(first)} and {len(other)} were given"
        )
    weights = weights_by_seed(first, other, draws, seed)
    chosen = np.random.default_rng([seed, 1]).integers(len(first), size=(draws, len(first)))
    if folds:
        chosen = np.broadcast_to(np.arange(len(first)), chosen.shape)
    one, two = (
        [SeedScores(evaluation, drawn) for evaluation, drawn in zip(evaluations, weights, strict=True)]
        for evaluations in (first, other)
    )
    names = [name for name in one[0].drawn if all(name in scores.drawn for scores in (*one, *two))]
    least = max(1 / (draws + 1), 2.0 ** (1 - len(first[0].curves.classes)))
    return tuple(difference(name, one, two, chosen, confidence, least) for name in names)


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
    """Return the difference of one score's means; ``chosen`` (draws, seeds) holds the seeds that each draw takes."""
    (a, drawn_a), (b, drawn_b) = (means(name, models, chosen) for models in (first, other))
    drawn = drawn_b - drawn_a
    change = None
    if find_score(name).relative and a > 0 and drawn_a.min() > 0:
        change = percentile_interval(b / a - 1, drawn_b / drawn_a - 1, confidence)
    p_value = max(percentile_p_value(drawn), least) if np.ptp(drawn) > 0 else (1.0 if b == a else least)
    return Difference(name, a, b, percentile_interval(b - a, drawn, confidence), change, p_value)


def means(name: str, models: Sequence[Scores], chosen: NDArray[np.int64]) -> tuple[float, Floats]:
    """Return the mean of a score over seeds, and (draws,) its mean over the seeds of each draw."""
    drawn = np.stack([model.drawn[name] for model in models])  # (seeds, draws)
    value = sum(model.values[name] for model in models) / len(models)
    return value, drawn[chosen.T, np.arange(drawn.shape[1])].mean(axis=0)
