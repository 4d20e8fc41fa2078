"""Confidence intervals for the scores, by bootstrap over classes.

They say how much a score would vary if other classes of the same kind were measured. Classes are resampled with
replacement, and the scores are recomputed from the stored counts (``resampling.py``). The bounds are those of the
bias-corrected and accelerated bootstrap (BCa, Efron 1987), which suits skewed scores such as variances and small rates.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.text import percent
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.tiles import TILE_ROWS
from isomargin.measure.scores.registry import find_score, scores_of
from isomargin.measure.settings import UNITS
from isomargin.measure.statistics.gallery_resampling import GalleryResampler, make_resampler
from isomargin.measure.statistics.pooled_rates import classes_per_pair

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

FEWEST_DRAWS = 100
FEW_CLASSES = 20  # with fewer classes, intervals contain the true value less often than they claim
LEAST_SLOPE = 0.1  # below this, BCa's formula is unreliable


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval.

    >>> print(Interval(0.12, 0.1, 0.15, 0.95))
    0.12 (0.1 to 0.15)
    """

    value: float
    """The measured value."""
    low: float
    """Lower bound."""
    high: float
    """Upper bound."""
    confidence: float
    """Confidence level: the share of repeated measurements whose interval would contain the true value."""

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def intervals(
    evaluation: "Evaluation", draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Compute a confidence interval for every score, by bootstrap over classes.

    The intervals say how much the scores would vary if other classes of the same kind were measured. The calibration
    range is determined again in each draw. For retrieval scores the queries are resampled and the gallery stays the
    same.

    Args:
        evaluation: the evaluation whose scores get intervals.
        draws: number of bootstrap draws, at least 100.
        confidence: confidence level of the intervals.
        seed: seed of the random draws.

    Returns:
        Intervals by name: ``opis``, ``debiased_opis`` (if known), ``epsilon_opis``, ``relative_opis``,
        ``far_within_two`` and ``frr_within_two`` (if known), ``mean_utility``, ``eer``, ``far`` and ``frr`` at the
        pooled threshold for the target FAR, ``recall@k`` for each k, ``r_precision`` and ``map_at_r``.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(30), 8)
    >>> vectors = generator.normal(size=(30, 16))[labels] + 0.8 * generator.normal(size=(240, 16))
    >>> bounds = intervals(im.evaluate(vectors, labels))
    >>> bounds["opis"].low < bounds["opis"].value < bounds["opis"].high
    True
    """
    check_draws(draws, confidence)
    resampler = resampler_of(evaluation, evaluation.target.distance)
    values = score_values(evaluation)
    drawn = resampler.scores(resampler.draw(draws, seed))
    left_out = resampler.scores(resampler.leave_out())
    undrawn = resampler.scores(resampler.undrawn())
    bounds = {}
    for name, value in values.items():
        if name in drawn:
            # Interpolating between distances shifts the draws and the undrawn score alike: remove that shift.
            moved = drawn[name] - undrawn[name] + value
            number = chances(evaluation, name)
            bounds[name] = interval(value, moved, left_out[name], confidence, find_score(name).bounds, number)
    far, frr = rate_intervals(evaluation, evaluation.target.distance, draws, confidence, seed)
    return bounds | {"far": far, "frr": frr}


def rate_intervals(
    evaluation: "Evaluation", distance: float, draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> tuple[Interval, Interval]:
    """Compute confidence intervals for the pooled FAR and FRR at one threshold, by bootstrap over classes.

    If no class has a false accept (or reject), the bootstrap cannot tell how rare one is. The upper bound is then the
    rate at which that many classes would all be free of errors with probability 1 - confidence.
    """
    check_draws(draws, confidence)
    resampler, point = resampler_of(evaluation, distance), evaluation.at(distance)
    drawn = resampler.rates_at(distance, resampler.draw(draws, seed))
    left_out = resampler.rates_at(distance, resampler.leave_out())
    far, frr = (
        interval(value, drawn[i], left_out[i], confidence, find_score(name).bounds, chances(evaluation, name))
        for i, (name, value) in enumerate((("far", point.far), ("frr", point.frr)))
    )
    return with_sampling_error(evaluation, far), frr


def with_sampling_error(evaluation: "Evaluation", far: Interval) -> Interval:
    """Widen the interval of the pooled FAR by the error of stratified negatives; others are returned as they are.

    Classes of one block share their sample, which resampling classes does not show. Blocks have samples of their own,
    so that the variance of their mean is at most f (1 - f) / (sampled items x blocks).
    """
    if evaluation.settings.pairs != "stratified":
        return far
    columns = evaluation.counts.negatives.totals.sum() / evaluation.sizes.sum()
    blocks = math.ceil(evaluation.items / TILE_ROWS)
    error = NormalDist().inv_cdf((1 + far.confidence) / 2) * math.sqrt(far.value * (1 - far.value) / (columns * blocks))
    low, high = (math.hypot(far.value - bound, error) for bound in (far.low, far.high))
    return Interval(far.value, max(far.value - low, 0.0), min(far.value + high, 1.0), far.confidence)


def identification_intervals(
    evaluation: "Evaluation", distance: float, draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> tuple[Interval, Interval]:
    """Compute confidence intervals for FPIR and FNIR at one threshold of a gallery, by bootstrap over classes.

    Enrolled classes (templates and known probes) and the classes of unknown probes are resampled separately. Without
    unknown probes, that of FPIR is NaN.
    """
    check_draws(draws, confidence)
    check_classes(evaluation)
    resampler, point = GalleryResampler(evaluation), evaluation.gallery.at(distance)
    drawn = resampler.identification_at(distance, resampler.draw(draws, seed))
    left_out = resampler.identification_at(distance, resampler.leave_out())
    fpir, fnir = (
        Interval(value, np.nan, np.nan, confidence)
        if np.isnan(value)
        else interval(value, drawn[i], left_out[i], confidence, find_score(name).bounds, chances(evaluation, name))
        for i, (name, value) in enumerate((("fpir", point.fpir), ("fnir", point.fnir)))
    )
    return fpir, fnir


def check_draws(draws: int, confidence: float) -> None:
    """Refuse a number of draws or a confidence level from which no interval can be computed."""
    checks.whole(draws, "draws", FEWEST_DRAWS)
    checks.share(confidence, "confidence")


def resampler_of(evaluation: "Evaluation", distance: float) -> Any:
    """Return what resamples classes, or trials if they have no groups; ``distance`` is a threshold of interest."""
    from isomargin.measure.statistics.trial_resampling import TrialResampler

    if not evaluation.has_classes:
        return TrialResampler(evaluation, distance)
    check_classes(evaluation)
    return make_resampler(evaluation)


def check_classes(evaluation: "Evaluation") -> None:
    """Refuse an evaluation with a single class."""
    if not evaluation.has_classes:
        raise InputError("these trials have no groups, and the evaluation does not keep them one by one: give groups")
    if evaluation.class_count < 2:
        raise InputError("the evaluation has one class: intervals over classes need at least two")


def score_values(evaluation: "Evaluation") -> dict[str, float]:
    """Return the scores that are known, by name."""
    values = {name: float(score.read(evaluation)) for name, score in scores_of(evaluation).items()}
    return {name: value for name, value in values.items() if not np.isnan(value)}


def chances(evaluation: "Evaluation", name: str) -> int | None:
    """Return the number of independent units in which an error could have occurred; None for scores that are not rates.

    These are the classes, or for negative pairs, which involve two classes, half as many disjoint pairs of classes.
    """
    classes, events = int((evaluation.counts.positives.totals > 0).sum()), find_score(name).events
    if events == "classes that count":
        return int(getattr(evaluation, name).classes)
    if events == "unknown classes":
        return len(evaluation.gallery.unknown_names)
    if not evaluation.has_classes:
        trials = {"far": evaluation.negative_pairs, "frr": evaluation.positive_pairs}
        return None if events is None else trials.get(name, min(trials.values()))
    if evaluation.trials is not None and classes_per_pair(evaluation.counts.negatives) == 1:
        return None if events is None else classes
    return {None: None, "classes": classes, "pairs of classes": max(classes // 2, 1)}[events]


def note_on_few_classes(evaluation: "Evaluation") -> tuple[str, ...]:
    """Return a note if there are too few classes for intervals over classes to be reliable."""
    classes = int((evaluation.counts.positives.totals > 0).sum())
    if classes >= FEW_CLASSES or not evaluation.has_classes:
        return ()
    units = UNITS[evaluation.comparison][1]
    return (
        f"only {classes} {units} have positive pairs, so the intervals are too narrow: with fewer than {FEW_CLASSES} "
        f"{units}, a 95% interval contains the true value in only 80% to 90% of cases",
    )


def note_on_no_event(evaluation: "Evaluation", name: Literal["far", "frr"], rate: Interval) -> tuple[str, ...]:
    """Return a note on the interval of a rate of 0 or 1, which is not a bootstrap interval."""
    if rate.value not in (0.0, 1.0):
        return ()
    if not evaluation.has_classes:
        number, chance = chances(evaluation, name), percent(1 - rate.confidence)
        return (
            f"all of the {number:,} trials are decided alike, so the interval of {name.upper()} ends at the rate at "
            f"which that many trials would be with a probability of {chance}",
        )
    if name == "far":
        event = "false accept" if rate.value == 0 else "rejected pair"
        pairs, units = f"{evaluation.negative_pairs:,} negative pairs", "pairs of classes"
        independent = "with no class in common "
    else:
        event = "false reject" if rate.value == 0 else "accepted pair"
        pairs, units = f"{evaluation.positive_pairs:,} positive pairs", "classes"
        independent = ""
    limit = max(rate.high - rate.value, rate.value - rate.low)
    return (
        f"there is no {event} among {pairs}, so the interval of {name.upper()} counts {units} (pairs that share a "
        f"class are not independent): if more than {percent(limit)} of all {units} had a {event}, "
        f"{chances(evaluation, name):,} {units} {independent}would all be without one with a probability below "
        f"{percent(1 - rate.confidence)}",
    )


def interval(
    value: float,
    drawn: Floats,
    left_out: Floats,
    confidence: float,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    classes: int | None = None,
) -> Interval:
    """Compute a BCa confidence interval.

    If the value is at one of its bounds and no draw differs from it, the interval ends at the largest rate that is
    compatible with that many classes without an error, 1 - (1 - confidence)^(1 / classes).

    Args:
        value: the measured value.
        drawn: (draws,) the value in each bootstrap draw.
        left_out: (groups,) the value with each group of classes left out.
        confidence: confidence level.
        bounds: the smallest and largest possible value, to which the interval is clipped.
        classes: number of independent units without an error, for rates.
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
    """Compute the confidence interval of a difference from the quantiles of its draws.

    BCa is not used here. The difference of two similar models is distributed symmetrically, so BCa's estimate of the
    skewness would only add noise. And with plain quantiles, the intervals of a difference and of a ratio exclude "no
    difference" together.
    """
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, min(float(low), value), max(float(high), value), confidence)


def percentile_p_value(drawn: Floats) -> float:
    """Two-sided p value: 1 minus the confidence level at which the percentile interval of a difference touches zero."""
    below = share_below(0.0, drawn)
    return float(np.clip(2 * min(below, 1 - below), 1 / (len(drawn) + 1), 1.0))


def bca_bounds(value: float, drawn: Floats, left_out: Floats, confidence: float) -> tuple[float, float]:
    """Return the lower and the upper BCa bound.

    >>> drawn = np.random.default_rng(0).normal(size=100_000)
    >>> low, high = bca_bounds(0.0, drawn, np.array([-1.0, 0.0, 1.0]), 0.95)
    >>> round(low, 1), round(high, 1)
    (-2.0, 2.0)
    """
    from scipy.special import ndtr, ndtri

    shift, acceleration = bca_terms(value, drawn, left_out)
    tail = ndtri(np.array([1 - confidence, 1 + confidence]) / 2)
    slope = 1 - acceleration * (shift + tail)
    # For extreme quantiles BCa's formula is no longer monotone: plain quantiles are better there.
    shares = ndtr(shift + (shift + tail) / slope) if slope.min() > LEAST_SLOPE else ndtr(tail)
    low, high = np.quantile(drawn, shares)
    return float(low), float(high)


def bca_terms(value: float, drawn: Floats, left_out: Floats) -> tuple[float, float]:
    """Return the bias correction (how far the draws' median is from the value, in deviations) and the acceleration."""
    from scipy.special import ndtri

    deviations = left_out.mean() - left_out
    cubes, squares = np.sum(deviations**3), np.sum(deviations**2)
    acceleration = cubes / (6 * squares**1.5) if squares > 0 else 0.0
    return float(ndtri(share_below(value, drawn))), float(acceleration)


def share_below(value: float, drawn: Floats) -> float:
    """Return the share of the draws below a value, counting equal draws half; never exactly 0 or 1."""
    below = np.sum(drawn < value) + 0.5 * np.sum(drawn == value)
    return float(np.clip(below / len(drawn), 0.5 / len(drawn), 1 - 0.5 / len(drawn)))
