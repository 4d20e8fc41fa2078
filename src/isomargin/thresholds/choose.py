"""``choose_threshold``: the pooled threshold for a target, from the counts of an Evaluation.

The target is met on the classes that were measured. Promises for unseen classes are in `conformal.py`.
"""

from typing import Any

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.pairs.rates import ROUNDING, kept_pairs, threshold_at_far
from isomargin.measure.scores.curves import share
from isomargin.measure.scores.utility import utility as utility_of
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import rate_intervals
from isomargin.thresholds.gaps import just_beyond, midway
from isomargin.thresholds.threshold_choice import ThresholdChoice, class_utility, describe, share_over

EQUAL = 16 * float(np.finfo(np.float64).eps)  # relative difference that rounding can make between two equal costs


def choose_threshold(
    evaluation: Evaluation,
    *,
    far: float | None = None,
    frr: float | None = None,
    utility: str | None = None,
    cost: tuple[float, float, float] | None = None,
    distance: float | None = None,
    fpir: float | None = None,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> ThresholdChoice:
    """Choose the pooled threshold for exactly one target.

    If all pairs are listed, the threshold lies midway between two neighbouring distances (for ``far``, of negative
    pairs), so that rounding does not matter. If pairs are binned, it lies at the edge of a bin, where counts are exact.

    Args:
        evaluation: the pairs.
        far: largest pooled false accept rate; the largest threshold that does not exceed it. Pairs at the same distance
            are accepted together, so the rate may stay below.
        frr: largest pooled false reject rate; the smallest threshold that does not exceed it.
        utility: ``"best"`` for the largest pooled utility, as defined by the settings of the evaluation.
        cost: (cost of a false accept, cost of a false reject, share π of positive pairs in production), for the least
            expected cost per pair, false_accept (1 - π) FAR + false_reject π FRR.
        distance: an existing threshold to be described, from 0 to 2 unless similarities are equalized; for trials that
            were given as scores, the score, or minus the score if higher scores are more similar.
        fpir: for a gallery, largest false positive identification rate; the largest threshold that does not exceed it,
            given the margin of the evaluation.
        draws: number of bootstrap draws of the confidence intervals, see `rate_intervals`.
        confidence: confidence level of the intervals.
        seed: seed of the draws.

    Among equally good thresholds the smallest is chosen, which accepts the fewest negative pairs. The worst classes are
    those with the largest FAR for ``far``, the largest FRR for ``frr``, the largest FNIR for ``fpir``, the lowest
    utility for ``utility`` and ``distance``, and the largest cost for ``cost``.

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
    targets = {"far": far, "frr": frr, "utility": utility, "cost": cost, "distance": distance, "fpir": fpir}
    check_one_target(targets)
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
    elif fpir is not None:
        found = evaluation.at_fpir(fpir)
        distance, point = found.distance, evaluation.at(found.distance)
        target, failure, over = f"FPIR at most {fpir:g}", found.class_fnir, None
    elif distance is not None:
        distance = evaluation.axis.check(distance)
        kind, value = evaluation.axis.text(distance).split()
        target, point = f"a given {kind} of {float(value):g}", evaluation.at(distance)
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


# ----- the target


def check_one_target(targets: dict[str, Any]) -> None:
    """Refuse anything but exactly one target."""
    given = [name for name, value in targets.items() if value is not None]
    if len(given) != 1:
        came = f"{' and '.join(given)} were given" if given else "none was given"
        raise InputError(f"a threshold is chosen for exactly one of {', '.join(targets)}, but {came}")


def check_cost(cost: Any) -> tuple[float, float, float]:
    """Return the two costs and the share of positive pairs."""
    if not isinstance(cost, tuple | list) or len(cost) != 3:
        raise InputError(
            f"cost is {cost!r}: three numbers are needed, the cost of a false accept, the cost of a false reject and "
            "the share of positive pairs in production"
        )
    false_accept, false_reject, prior = cost
    return (
        checks.above_zero(false_accept, "cost of a false accept"),
        checks.above_zero(false_reject, "cost of a false reject"),
        checks.share(prior, "prior of cost"),
    )


def check_pairs(evaluation: Evaluation) -> None:
    """Refuse an evaluation without pairs of both kinds."""
    for kind, number in (("positive", evaluation.positive_pairs), ("negative", evaluation.negative_pairs)):
        if number == 0:
            raise InputError(f"the evaluation has no {kind} pairs: choosing a threshold needs both kinds")


# ----- the threshold


def distance_at_frr(counts: PairCounts, frr: float) -> float:
    """Find the smallest threshold whose pooled FRR does not exceed this; among the edges if pairs are binned."""
    positives = counts.positives
    if frr * positives.pooled_total < 1 - ROUNDING:
        raise InputError(
            f"frr asks for a false reject rate of {frr:g}, but with {positives.pooled_total:,} positive pairs the "
            f"smallest that can be told from zero is {1 / positives.pooled_total:.3g}"
        )
    kept = int(kept_pairs(frr, np.array(positives.pooled_total)))
    if isinstance(positives, BinnedDistances):
        edge = float(positives.edges[np.searchsorted(positives.pooled_cumulative, kept, side="left")])
        beyond = 2 * edge - positives.short_of(edge)  # by what other thresholds fall short
        return min(beyond, positives.axis.highest)
    return just_beyond(counts, float(positives.pooled[kept - 1]))


def distance_of_best_utility(counts: PairCounts, settings: Settings) -> float:
    """Find the threshold with the largest pooled utility."""
    candidates = candidate_distances(counts)
    accepted, negatives = accepted_pairs(counts, candidates)
    sensitivity = accepted / counts.positives.pooled_total
    if settings.utility == "specificity_sensitivity":
        first = (counts.negatives.pooled_total - negatives) / counts.negatives.pooled_total
    else:
        first = share(accepted, accepted + negatives)
    return float(candidates[first_best(utility_of(first, sensitivity, settings.c))])


def distance_of_least_cost(counts: PairCounts, false_accept: float, false_reject: float, prior: float) -> float:
    """Find the threshold with the least expected cost per pair."""
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
            f"costs least to accept no pair at all, but distance {candidates[0]:.3g} accepts some, because items of "
            "different classes are identical: look for duplicates, or make a false accept cheaper"
        )
    return float(candidates[best])


def candidate_distances(counts: PairCounts) -> Floats:
    """(m,) ascending thresholds, one for each set of pairs that a threshold can accept; edges if pairs are binned.

    If a pair has the lowest distance of the axis, every threshold accepts it. In the first bin, only the upper edge is
    known.
    """
    positives, negatives = counts.positives, counts.negatives
    if isinstance(negatives, BinnedDistances):
        return short_of_edges(negatives)
    if isinstance(positives, BinnedDistances):
        return short_of_edges(positives)
    places = np.union1d(np.asarray(positives.pooled, np.float64), np.asarray(negatives.pooled, np.float64))
    axis = negatives.axis
    from_lowest = places if places[0] <= axis.lowest else np.append(axis.lowest, places)
    return midway(np.append(from_lowest, axis.highest))


def short_of_edges(binned: BinnedDistances) -> Floats:
    """(bins,) a threshold just short of the upper edge of each bin."""
    return np.append(binned.edges[1:-1] - binned.rounding, binned.reach)


def accepted_pairs(counts: PairCounts, candidates: Floats) -> tuple[Floats, Floats]:
    """(m,) numbers of pooled positive and negative pairs within each distance, rounded to whole numbers."""
    positives, negatives = counts.positives.pooled_within(candidates), counts.negatives.pooled_within(candidates)
    return np.rint(positives), np.rint(negatives)


def first_best(values: Floats) -> int:
    """Return the index of the first value that equals the largest, except for rounding.

    >>> first_best(np.array([0.1, 0.3, 0.1 + 0.2, 0.2]))
    1
    """
    best = values.max()
    return int(np.argmax(values >= best - EQUAL * abs(best)))
