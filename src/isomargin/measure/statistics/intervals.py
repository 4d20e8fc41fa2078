"""Intervals: within what bounds a score may be believed, had other classes of the same kind been measured.

Classes are drawn anew, with replacement, and the scores computed again from the stored counts (``resampling.py``). The
bounds are those of the bias-corrected and accelerated bootstrap (BCa, Efron 1987), which suits skewed scores such as
variances and small rates.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.registry import find_score, scores_of
from isomargin.measure.statistics.resampling import Resampler, draw_weights, leave_out_weights

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

FEWEST_DRAWS = 100
FEW_CLASSES = 20  # below which intervals over classes hold less than they say
LEAST_SLOPE = 0.1


@dataclass(frozen=True)
class Interval:
    """A value and the bounds within which it may be believed.

    >>> print(Interval(0.12, 0.1, 0.15, 0.95))
    0.12 (0.1 to 0.15)
    """

    value: float
    """As measured."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    confidence: float
    """Share of repetitions of the whole measurement whose bounds hold the truth."""

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def intervals(
    evaluation: "Evaluation", draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Intervals of every score: had other classes of the same kind been measured, by bootstrap over classes.

    By name: ``opis``, ``debiased_opis`` (where known), ``epsilon_opis``, ``relative_opis``, ``mean_utility``, ``eer``,
    ``far`` and ``frr`` at the pooled threshold for the target FAR, ``recall@k`` for each k, ``r_precision`` and
    ``map_at_r``. The calibration range is found anew in each draw. Retrieval scores are those of other queries in the
    same gallery.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(30), 8)
    >>> vectors = generator.normal(size=(30, 16))[labels] + 0.8 * generator.normal(size=(240, 16))
    >>> bounds = intervals(im.evaluate(vectors, labels))
    >>> bounds["opis"].low < bounds["opis"].value < bounds["opis"].high
    True
    """
    check_draws(draws, confidence)
    check_classes(evaluation)
    resampler, classes = Resampler(evaluation), evaluation.class_count
    values = score_values(evaluation)
    drawn = resampler.scores(draw_weights(evaluation.counts.positives.totals > 0, draws, seed))
    left_out = resampler.scores(leave_out_weights(classes))
    whole = resampler.scores(np.ones((1, classes), np.uint16))
    bounds = {}
    for name, value in values.items():
        if name in drawn:
            # What interpolating between distances has changed, it has changed in the draws too.
            moved = drawn[name] - whole[name] + value
            number = chances(evaluation, name)
            bounds[name] = interval(value, moved, left_out[name], confidence, find_score(name).bounds, number)
    far, frr = rate_intervals(evaluation, evaluation.target.distance, draws, confidence, seed)
    return bounds | {"far": far, "frr": frr}


def rate_intervals(
    evaluation: "Evaluation", distance: float, draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> tuple[Interval, Interval]:
    """Intervals of the pooled FAR and FRR at one threshold, by bootstrap over classes.

    Where no class has a single false accept (or reject) the bootstrap knows nothing: then the upper bound is the
    rate at which that would still happen in so many classes with the probability 1 - confidence.
    """
    check_draws(draws, confidence)
    check_classes(evaluation)
    resampler, classes, point = Resampler(evaluation), evaluation.class_count, evaluation.at(distance)
    drawn = resampler.rates_at(distance, draw_weights(evaluation.counts.positives.totals > 0, draws, seed))
    left_out = resampler.rates_at(distance, leave_out_weights(classes))
    far, frr = (
        interval(value, drawn[i], left_out[i], confidence, find_score(name).bounds, chances(evaluation, name))
        for i, (name, value) in enumerate((("far", point.far), ("frr", point.frr)))
    )
    return far, frr


def check_draws(draws: int, confidence: float) -> None:
    """Refuse what no interval can be made of."""
    checks.whole(draws, "draws", FEWEST_DRAWS)
    checks.share(confidence, "confidence")


def check_classes(evaluation: "Evaluation") -> None:
    """Refuse a single class."""
    if evaluation.class_count < 2:
        raise InputError("there is one class: intervals over classes need at least two")


def score_values(evaluation: "Evaluation") -> dict[str, float]:
    """Give the scores that are known, by name."""
    values = {name: float(score.read(evaluation)) for name, score in scores_of(evaluation).items()}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def chances(evaluation: "Evaluation", name: str) -> int | None:
    """How many classes could each have shown an error, for scores that are rates; None for others.

    Two classes make a negative pair: of so many classes, half as many pairs have none in common.
    """
    classes = int((evaluation.counts.positives.totals > 0).sum())
    return {None: None, "classes": classes, "pairs of classes": max(classes // 2, 1)}[find_score(name).events]


def note_on_few_classes(evaluation: "Evaluation") -> tuple[str, ...]:
    """Say so where there are too few classes for intervals over classes to hold what they say."""
    classes = int((evaluation.counts.positives.totals > 0).sum())
    if classes >= FEW_CLASSES:
        return ()
    return (
        f"{classes} classes with positive pairs are few for intervals over classes: below {FEW_CLASSES}, a 95% "
        "interval holds the truth in some 80% to 90% of cases",
    )


def interval(
    value: float,
    drawn: Floats,
    left_out: Floats,
    confidence: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    classes: int | None = None,
) -> Interval:
    """BCa bounds of a value from its (draws,) and its values with some classes left out; kept within its nature.

    Where nothing varies and the value is at a bound of its nature, so many classes without one event say how rare
    it must be: 1 - (1 - confidence)^(1 / classes).
    """
    low, high = bca_bounds(value, drawn, left_out, confidence)
    low, high = min(max(low, bounds[0]), value), max(min(high, bounds[1]), value)
    if classes and low == high:
        rare = 1 - (1 - confidence) ** (1 / classes)
        if value <= bounds[0]:
            high = bounds[0] + rare
        elif value >= bounds[1]:
            low = bounds[1] - rare
    return Interval(value, low, high, confidence)


def percentile_interval(value: float, drawn: Floats, confidence: float) -> Interval:
    """Bounds of a difference: the quantiles of its draws.

    Not BCa: a difference of two models alike is symmetric, and what BCa estimates of its skewness is then noise. And
    the bounds of a difference and of a ratio leave no difference out together.
    """
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, min(float(low), value), max(float(high), value), confidence)


def percentile_p_value(drawn: Floats) -> float:
    """Two-sided: one less the confidence at which the percentile bounds of a difference just reach zero."""
    below = share_below(0.0, drawn)
    return float(np.clip(2 * min(below, 1 - below), 1 / (len(drawn) + 1), 1.0))


def bca_bounds(value: float, drawn: Floats, left_out: Floats, confidence: float) -> tuple[float, float]:
    """Give the quantiles of the draws that BCa calls for.

    >>> drawn = np.random.default_rng(0).normal(size=100_000)
    >>> low, high = bca_bounds(0.0, drawn, np.array([-1.0, 0.0, 1.0]), 0.95)
    >>> round(low, 1), round(high, 1)
    (-2.0, 2.0)
    """
    from scipy.special import ndtr, ndtri

    shift, acceleration = bca_terms(value, drawn, left_out)
    tail = ndtri(np.array([1 - confidence, 1 + confidence]) / 2)
    slope = 1 - acceleration * (shift + tail)
    # Far out, BCa's approximation turns back on itself: there the plain quantiles are better.
    shares = ndtr(shift + (shift + tail) / slope) if slope.min() > LEAST_SLOPE else ndtr(tail)
    low, high = np.quantile(drawn, shares)
    return float(low), float(high)


def bca_terms(value: float, drawn: Floats, left_out: Floats) -> tuple[float, float]:
    """Give how far the draws' median lies from the value, in standard deviations, and the acceleration."""
    from scipy.special import ndtri

    deviations = left_out.mean() - left_out
    cubes, squares = np.sum(deviations**3), np.sum(deviations**2)
    acceleration = cubes / (6 * squares**1.5) if squares > 0 else 0.0
    return float(ndtri(share_below(value, drawn))), float(acceleration)


def share_below(value: float, drawn: Floats) -> float:
    """Share of the draws below a value, equal ones half, never quite 0 or 1."""
    below = np.sum(drawn < value) + 0.5 * np.sum(drawn == value)
    return float(np.clip(below / len(drawn), 0.5 / len(drawn), 1 - 0.5 / len(drawn)))
