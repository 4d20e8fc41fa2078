"""``choose_threshold``: the one pooled threshold for a target, and what it does to the classes.

It works from the counts of an Evaluation. What it finds holds for the classes measured; what may be promised for
classes never seen is not answered here.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation, OperatingPoint
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import FARTHEST, BinnedDistances, Floats
from isomargin.measure.pairs.rates import ROUNDING, kept_pairs, threshold_at_far
from isomargin.measure.scores.curves import first_rate, share
from isomargin.measure.scores.utility import utility as utility_of
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import Interval, rate_intervals
from isomargin.thresholds.conformal import Promise
from isomargin.thresholds.gaps import just_beyond, midway

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORST = 10  # classes that are named
EQUAL = 16 * float(np.finfo(np.float64).eps)  # relative: what rounding may make of two costs that are the same


@dataclass(frozen=True)
class ClassRates:
    """What the threshold does to one class."""

    name: int | str
    """Its label."""
    images: int
    """Its number of images."""
    far: float
    """Its false accept rate; NaN for a class without sampled negatives."""
    frr: float
    """Its false reject rate; NaN for a class of one image."""


@dataclass(frozen=True)
class ThresholdChoice:
    """A threshold, what it was chosen for, and what it does on the set it was chosen on."""

    target: str
    """What was asked for, such as "FAR at most 0.01"."""
    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    far: float
    """Pooled false accept rate."""
    frr: float
    """Pooled false reject rate."""
    far_interval: Interval
    """Of the pooled false accept rate."""
    frr_interval: Interval
    """Of the pooled false reject rate."""
    class_far_quantiles: dict[float, float]
    """Quantiles over classes of their false accept rates."""
    class_frr_quantiles: dict[float, float]
    """Quantiles over classes of their false reject rates, classes of one image left out."""
    share_over_target: float | None
    """Share of the classes whose own rate exceeds the target; None where the target is no rate."""
    worst_classes: tuple[ClassRates, ...]
    """The classes where it fails, ten at most, the worst first."""


def choose_threshold(
    evaluation: Evaluation,
    *,
    far: float | None = None,
    frr: float | None = None,
    utility: str | None = None,
    cost: tuple[float, float, float] | None = None,
    distance: float | None = None,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> ThresholdChoice:
    """Choose the pooled threshold for exactly one target.

    Where all pairs are listed, it lies midway between two neighbouring distances (for ``far``, of negative pairs), as
    far from rounding as can be; where they are counted in bins, at a bin's edge, where counts are exact.

    Args:
        evaluation: the pairs to choose on.
        far: the largest threshold whose pooled false accept rate does not exceed this. Equally far pairs are accepted
            together or not at all, so the rate may stay below.
        frr: the smallest threshold whose pooled false reject rate does not exceed this.
        utility: ``"best"`` for the largest pooled utility, as the evaluation's settings define it.
        cost: (cost of a false accept, cost of a false reject, share π of positives among the pairs to come), for the
            least expected cost a pair, false_accept (1 - π) FAR + false_reject π FRR.
        distance: a threshold that is there already, from 0 to 2, to learn what it does.
        draws: of the intervals, see `rate_intervals`.
        confidence: of the intervals.
        seed: of the intervals.

    Where several thresholds are equally good, the smallest is chosen: it accepts the fewest strangers. The worst
    classes are those of the largest FAR for ``far``, the largest FRR for ``frr``, the least utility (for ``distance``
    too), the largest cost.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> choice = choose_threshold(evaluation, far=0.05)
    >>> choice.target, choice.far, round(choice.distance, 3)
    ('FAR at most 0.05', 0.05, 0.977)
    >>> choose_threshold(evaluation, far=1e-4)
    Traceback (most recent call last):
    isomargin.InputError: far asks for a false accept rate of 0.0001, but with 1,500 negative pairs ...
    """
    check_one_target({"far": far, "frr": frr, "utility": utility, "cost": cost, "distance": distance})
    check_pairs(evaluation)
    counts, settings = evaluation.counts, evaluation.settings
    if far is not None:
        distance = threshold_at_far(counts, checks.share(far, "far"), "not_exceeded")
        target, point = f"FAR at most {far:g}", evaluation.at(distance)
        failure, over = point.class_far, share_over(point.class_far, far)
    elif frr is not None:
        distance = distance_at_frr(counts, checks.share(frr, "frr"))
        target, point = f"FRR at most {frr:g}", evaluation.at(distance)
        failure, over = point.class_frr, share_over(point.class_frr, frr)
    elif distance is not None:
        distance = checks.distance(distance, "distance")
        target, point = f"a given distance of {distance:g}", evaluation.at(distance)
        failure, over = 1 - class_utility(counts, settings, point), None
    elif utility is not None:
        checks.one_of(utility, "utility", ["best"])
        distance = distance_of_best_utility(counts, settings)
        rates = settings.utility.replace("_", " and ")
        target, point = f"best utility of {rates}, c = {settings.c:g}", evaluation.at(distance)
        failure, over = 1 - class_utility(counts, settings, point), None
    else:
        false_accept, false_reject, prior = check_cost(cost)
        distance = distance_of_least_cost(counts, false_accept, false_reject, prior)
        target = f"least cost: false accept {false_accept:g}, false reject {false_reject:g}, prior {prior:g}"
        point = evaluation.at(distance)
        failure = false_accept * (1 - prior) * point.class_far + false_reject * prior * point.class_frr
        over = None
    return describe(
        evaluation, point, target, failure, over, rate_intervals(evaluation, distance, draws, confidence, seed)
    )


def choice_of_promise(
    evaluation: Evaluation, promise: Promise, *, draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> ThresholdChoice:
    """Give the threshold of a promise for unseen classes, with what it does on the calibration set.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(400, 16)) + 3 * np.eye(40, 16)[np.arange(400) % 40]
    >>> evaluation = im.evaluate(embeddings, np.arange(400) % 40)
    >>> promise = im.promise_threshold(evaluation, far=0.1, delta=0.05)
    >>> choice_of_promise(evaluation, promise).target
    'FAR at most 10% in 95% of unseen classes'
    """
    point = evaluation.at(promise.distance)
    rates = point.class_far if promise.rate == "far" else point.class_frr
    intervals = rate_intervals(evaluation, promise.distance, draws, confidence, seed)
    return describe(evaluation, point, promise.short, rates, share_over(rates, promise.target), intervals)


def describe(
    evaluation: Evaluation,
    point: OperatingPoint,
    target: str,
    failure: Floats,
    over: float | None,
    intervals: tuple[Interval, Interval],
) -> ThresholdChoice:
    """Put together what a threshold does; failure (classes,) says how badly it fails each class."""
    far_interval, frr_interval = intervals
    return ThresholdChoice(
        target=target,
        distance=point.distance,
        far=point.far,
        frr=rejected_share(evaluation.counts, point.distance),
        far_interval=far_interval,
        frr_interval=frr_interval,
        class_far_quantiles=quantiles(point.class_far),
        class_frr_quantiles=quantiles(point.class_frr),
        share_over_target=over,
        worst_classes=worst_classes(evaluation, point, failure),
    )


# ----- what was asked for


def check_one_target(targets: dict[str, Any]) -> None:
    """Refuse no target, and more than one."""
    given = [name for name, value in targets.items() if value is not None]
    if len(given) != 1:
        came = f"{' and '.join(given)} were given" if given else "none was given"
        raise InputError(f"a threshold is chosen for exactly one of {', '.join(targets)}, but {came}")


def check_cost(cost: Any) -> tuple[float, float, float]:
    """Return the two costs and the share of positives."""
    if not isinstance(cost, tuple | list) or len(cost) != 3:
        raise InputError(
            f"cost is {cost!r}: three numbers are needed, the cost of a false accept, the cost of a false reject and "
            "the share of positives among the pairs to come"
        )
    false_accept, false_reject, prior = cost
    return (
        checks.above_zero(false_accept, "cost of a false accept"),
        checks.above_zero(false_reject, "cost of a false reject"),
        checks.share(prior, "prior of cost"),
    )


def check_pairs(evaluation: Evaluation) -> None:
    """Refuse an evaluation that has no pairs of one kind."""
    for kind, number in (("positive", evaluation.positive_pairs), ("negative", evaluation.negative_pairs)):
        if number == 0:
            raise InputError(f"the evaluation has no {kind} pairs: a threshold is chosen between both kinds")


# ----- the threshold


def distance_at_frr(counts: PairCounts, frr: float) -> float:
    """Smallest threshold whose pooled FRR does not exceed this; where bins are known only, the smallest edge."""
    positives = counts.positives
    if frr * positives.pooled_total < 1 - ROUNDING:
        raise InputError(
            f"frr asks for a false reject rate of {frr:g}, but with {positives.pooled_total:,} positive pairs the "
            f"smallest that can be told from zero is {1 / positives.pooled_total:.3g}"
        )
    kept = int(kept_pairs(frr, np.array(positives.pooled_total)))
    if isinstance(positives, BinnedDistances):
        edge = float(positives.edges[np.searchsorted(positives.pooled_cumulative, kept, side="left")])
        return min(2 * edge - positives.short_of(edge), FARTHEST)  # as far beyond the edge as others stay short of it
    return just_beyond(counts, float(positives.pooled[kept - 1]))


def distance_of_best_utility(counts: PairCounts, settings: Settings) -> float:
    """Threshold of the largest pooled utility."""
    candidates = candidate_distances(counts)
    accepted, negatives = accepted_pairs(counts, candidates)
    sensitivity = accepted / counts.positives.pooled_total
    if settings.utility == "specificity_sensitivity":
        first = (counts.negatives.pooled_total - negatives) / counts.negatives.pooled_total
    else:
        first = share(accepted, accepted + negatives)
    return float(candidates[first_best(utility_of(first, sensitivity, settings.c))])


def distance_of_least_cost(counts: PairCounts, false_accept: float, false_reject: float, prior: float) -> float:
    """Threshold of the least expected cost a pair."""
    candidates = candidate_distances(counts)
    accepted, negatives = accepted_pairs(counts, candidates)
    rejected = counts.positives.pooled_total - accepted
    costs = (
        false_accept * (1 - prior) * (negatives / counts.negatives.pooled_total)
        + false_reject * prior * (rejected / counts.positives.pooled_total)
    )  # fmt: skip
    best = first_best(-costs)
    if costs[best] > false_reject * prior * (1 + EQUAL):
        raise InputError(
            f"with a false accept at {false_accept:g}, a false reject at {false_reject:g} and a prior of {prior:g} it "
            f"costs least to accept no pair at all, and distance {candidates[0]:.3g} accepts some already, because "
            "images of different classes are the same: look for duplicates, or make a false accept cheaper"
        )
    return float(candidates[best])


def candidate_distances(counts: PairCounts) -> Floats:
    """(m,) ascending thresholds, one of each set of those that accept the same pairs; bins' ends where binned.

    Where two pairs are at distance 0, no threshold accepts none. Of a first bin nothing is known but its end.
    """
    positives, negatives = counts.positives, counts.negatives
    if isinstance(negatives, BinnedDistances):
        return short_of_edges(negatives)
    if isinstance(positives, BinnedDistances):
        return short_of_edges(positives)
    places = np.union1d(np.asarray(positives.pooled, np.float64), np.asarray(negatives.pooled, np.float64))
    from_zero = places if places[0] <= 0 else np.append(0.0, places)
    return midway(np.append(from_zero, FARTHEST))


def short_of_edges(binned: BinnedDistances) -> Floats:
    """(bins,) a threshold for each bin's end, just short of it."""
    return np.append(binned.edges[1:-1] - binned.rounding, min(binned.reach, FARTHEST))


def accepted_pairs(counts: PairCounts, candidates: Floats) -> tuple[Floats, Floats]:
    """(m,) pooled positive and negative pairs at most so far apart: whole numbers, at a bin's edge too."""
    positives, negatives = counts.positives.pooled_within(candidates), counts.negatives.pooled_within(candidates)
    return np.rint(positives), np.rint(negatives)


def first_best(values: Floats) -> int:
    """Index of the first that is the largest, but for rounding.

    >>> first_best(np.array([0.1, 0.3, 0.1 + 0.2, 0.2]))
    1
    """
    best = values.max()
    return int(np.argmax(values >= best - EQUAL * abs(best)))


# ----- what it does to the classes


def rejected_share(counts: PairCounts, distance: float) -> float:
    """Pooled FRR, as a quotient: one minus a quotient may round to just above the target."""
    positives = counts.positives
    accepted = float(positives.pooled_within(np.array([distance]))[0])
    return max(positives.pooled_total - accepted, 0.0) / positives.pooled_total


def share_over(rates: Floats, target: float) -> float:
    """Share of the classes that have a rate whose rate exceeds the target."""
    known = rates[~np.isnan(rates)]
    return float((known > target + 1e-12).mean())  # far less than one pair of a class, more than rounding


def quantiles(rates: Floats) -> dict[float, float]:
    """Quantiles over the classes that have a rate."""
    return dict(zip(QUANTILES, np.nanquantile(rates, QUANTILES).tolist(), strict=True))


def class_utility(counts: PairCounts, settings: Settings, point: OperatingPoint) -> Floats:
    """(classes,) each class's utility at one threshold; NaN where a class lacks pairs of one kind."""
    known = ~(np.isnan(point.class_far) | np.isnan(point.class_frr))
    false_accepts, sensitivity = point.class_far[known], 1 - point.class_frr[known]
    positives, negatives = counts.positives.totals[known], counts.negatives.totals[known]
    first = first_rate(settings.utility, sensitivity * positives, false_accepts * negatives, negatives)
    found = np.full(len(known), np.nan)
    found[known] = utility_of(first, sensitivity, settings.c)
    return found


def worst_classes(evaluation: Evaluation, point: OperatingPoint, failure: Floats) -> tuple[ClassRates, ...]:
    """The classes of the largest failure; none where it does not fail."""
    order = np.argsort(-failure, kind="stable")  # NaN comes last
    names = evaluation.names.tolist()
    return tuple(
        ClassRates(names[i], int(evaluation.sizes[i]), float(point.class_far[i]), float(point.class_frr[i]))
        for i in order[:WORST].tolist()
        if failure[i] > 0
    )
