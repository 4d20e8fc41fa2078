"""Thresholds with a promise for classes never seen: finite-sample, whatever the distribution of distances.

The unit is the class: the promise needs the calibration classes and the class to come to be exchangeable, nothing more.
It is no confidence interval of the pooled rate, and no promise for a class chosen because it is difficult.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.distances import FARTHEST, ClassDistances, Floats, ListedDistances
from isomargin.measure.pairs.rates import ROUNDING
from isomargin.measure.statistics.intervals import rate_intervals
from isomargin.thresholds.choice import ThresholdChoice, describe, share_over
from isomargin.thresholds.gaps import just_beyond, midway, next_above

Rate = Literal["far", "frr"]

TRIED_AT_ONCE = 64  # places of a round of the search: bins are read once a round, whatever the number of places


@dataclass(frozen=True)
class Promise:
    """A threshold, and what it promises of a class never seen."""

    rate: Rate
    """The rate that the promise is about."""
    target: float
    """What the rate is held against."""
    delta: float | None
    """The probability with which a new class may exceed the target; None for a promise in expectation."""
    classes: int
    """Calibration classes that have pairs of this kind."""
    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    far: float
    """Pooled false accept rate of the calibration set at the threshold."""
    frr: float
    """Pooled false reject rate of the calibration set at the threshold."""

    @property
    def on(self) -> Literal["mean", "class"]:
        """Whether the mean over new classes is promised, or a single class, up to delta."""
        return "mean" if self.delta is None else "class"

    @property
    def what(self) -> str:
        """The promise as a sentence.

        >>> Promise("far", 0.01, 0.05, 99, 0.8, 0.004, 0.1).what
        'the FAR of a class never seen exceeds 1% with probability at most 5%'
        """
        if self.delta is None:
            return f"the expected {self.rate.upper()} of a class never seen is at most {percent(self.target)}"
        exceeds = f"exceeds {percent(self.target)} with probability at most {percent(self.delta)}"
        return f"the {self.rate.upper()} of a class never seen {exceeds}"

    @property
    def short(self) -> str:
        """The same in a few words, as a card's title has it.

        >>> Promise("far", 0.01, 0.05, 99, 0.8, 0.004, 0.1).short
        'FAR at most 1% in 95% of unseen classes'
        """
        if self.delta is None:
            return f"an expected {self.rate.upper()} of at most {percent(self.target)} in unseen classes"
        return f"{self.rate.upper()} at most {percent(self.target)} in {percent(1 - self.delta)} of unseen classes"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise rests on, a sentence each.

        >>> Promise("frr", 0.05, None, 40, 1.1, 0.02, 0.03).assumptions[0]
        'the class is of the same kind as the 40 calibration classes, as if all had been drawn together at random'
        """
        pairs = {
            "far": "it is compared with the same strangers, or with a like mix of them; this is exact where all "
            "classes meet one fixed set of strangers, and nearly so here, where each calibration class met the others"
            + (": in checks, 5% of classes over the target became up to 7%, and 10% up to 11%" if self.delta else ""),
            "frr": "it has two or more images, since one alone has no pair to reject",
        }
        if self.delta is None:
            draw = (
                "the expectation is over the draw of the calibration classes and of the new class: for one "
                "calibration set the mean of many new classes can lie above the target, for another below it"
            )
        else:
            deviation = percent(round(share_deviation(self.delta, self.classes), 3))
            draw = (
                "the probability is over the draw of the calibration classes and of the new class: from one set of "
                f"{self.classes:,} classes to another, the share of new classes over the target has a standard "
                f"deviation of {deviation}"
            )
        return (
            f"the class is of the same kind as the {self.classes:,} calibration classes, as if all had been drawn "
            "together at random",
            pairs[self.rate],
            "its images are of the same kind and about as many, taken, prepared and embedded in the same way",
            draw,
        )

    def as_values(self) -> dict[str, Any]:
        """Give the promise as JSON values, for a card.

        >>> Promise("far", 0.01, 0.05, 99, 0.8, 0.004, 0.1).as_values()["classes"]
        99
        """
        return {
            "what": self.what,
            "rate": self.rate,
            "target": self.target,
            "on": self.on,
            "delta": self.delta,
            "classes": self.classes,
            "distance": self.distance,
            "far": self.far,
            "frr": self.frr,
            "assumptions": list(self.assumptions),
        }


def promise_threshold(
    evaluation: Evaluation,
    *,
    far: float | None = None,
    frr: float | None = None,
    delta: float | None = None,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> ThresholdChoice:
    """Find the threshold that promises a FAR, or an FRR, for classes never seen.

    Without delta the promise is in expectation, E[FAR of a new class] <= far; with it, for one class at a time,
    P(FAR of a new class > far) <= delta. For FAR the threshold is the largest that keeps the promise, for FRR the
    smallest.

    Theorem (conformal risk control: Angelopoulos et al., 2022). Let l_1(d), ..., l_{T+1}(d) be the losses of T
    calibration classes and of a new one, exchangeable, in [0, 1] and rising with d. If d is the largest threshold with

        (l_1(d) + ... + l_T(d) + 1) / (T + 1) <= level,

    then E[l_{T+1}(d)] <= level. The loss FAR_i(d) at the level far gives the promise in expectation, the loss
    1{FAR_i(d) > far} at the level delta the one for a class: d is then just below the k-th smallest of the distances
    at which classes leave the target, k = floor(delta (T + 1)), Vovk's order statistic. For FRR the same from above.

    Proof. As l_{T+1} <= 1, d is not above d', the largest threshold with (l_1(d') + ... + l_{T+1}(d')) / (T + 1) <=
    level. As d' does not depend on the order of the classes, E[l_{T+1}(d)] <= E[l_{T+1}(d')] = E[mean of all
    l_i(d')] <= level.

    What is not exact: the negatives of a calibration class are the images of the other calibration classes, so its FAR
    and theirs share pairs. The classes are exchangeable in the theorem's sense if all, the new one too, are measured
    against the same negatives; else a new class that resembles calibration classes would have raised their FAR too,
    had they met. `benchmarks/check_promises.py` measures it: in halves of glyphs and of Omniglot, by their pixels, a
    promised 5% of classes over the target became 5% to 7%, and 10% became 9% to 11%; with fixed strangers both held.
    The promise in expectation was kept, and so were those of FRR, whose pairs no two classes share.

    Args:
        evaluation: the calibration set, of classes like those to come and not trained on.
        far: the false accept rate to promise, above 0 and below 1; or
        frr: the false reject rate to promise. Classes of one image have none and are left out.
        delta: with which probability a new class may exceed it; leave it out for the promise in expectation.
        draws: of the intervals, see `rate_intervals`.
        confidence: of the intervals.
        seed: of the intervals.

    Returns: what ``choose_threshold`` gives, with the promise in ``promise``; ``make_card`` takes both alike.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(400, 16)) + 3 * np.eye(40, 16)[np.arange(400) % 40]
    >>> evaluation = im.evaluate(embeddings, np.arange(400) % 40)
    >>> choice = promise_threshold(evaluation, far=0.1, delta=0.05)
    >>> choice.promise.what, choice.promise.classes
    ('the FAR of a class never seen exceeds 10% with probability at most 5%', 40)
    >>> choice.distance < promise_threshold(evaluation, far=0.1, delta=0.2).distance
    True
    >>> promise_threshold(evaluation, far=0.01)
    Traceback (most recent call last):
    isomargin.InputError: far is 0.01, but from 40 classes with negative pairs no less than 0.0244 can be
    promised in expectation: 0.01 needs 99 classes
    """
    if not isinstance(evaluation, Evaluation):
        raise InputError(f"evaluation is of type {type(evaluation).__name__}: what isomargin.evaluate gives is needed")
    if (far is None) == (frr is None):
        raise InputError(f"far is {far} and frr is {frr}: give one of them, as what to promise")
    rate: Rate = "far" if frr is None else "frr"
    target = checks.share(far if frr is None else frr, rate)
    if delta is not None:
        delta = checks.share(delta, "delta")
    distances = evaluation.counts.negatives if rate == "far" else evaluation.counts.positives
    distance = promised_distance(distances, rate, target, delta)
    if rate == "frr" and isinstance(distances, ListedDistances):
        # Midway to the next pair of either kind: strangers between two friends need not be accepted.
        last = int(np.searchsorted(distances.pooled, distance, side="right")) - 1
        distance = just_beyond(evaluation.counts, float(distances.pooled[last]))
    point = evaluation.at(distance)
    rates = point.class_far if rate == "far" else point.class_frr
    promise = Promise(rate, target, delta, int((distances.totals > 0).sum()), distance, point.far, point.frr)
    intervals = rate_intervals(evaluation, distance, draws, confidence, seed)
    return describe(evaluation, point, promise.short, rates, share_over(rates, target), intervals, promise)


def promised_distance(distances: ClassDistances, rate: Rate, target: float, delta: float | None) -> float:
    """Find the threshold of a promise from the classes' negative pairs (for FAR) or positive pairs (for FRR).

    Midway between two listed distances, so that rounding changes nothing; a bin's edge where they are binned.

    >>> listed = ListedDistances(np.array([0.25, 0.5, 0.75, 1.0]), np.array([0, 2, 4]), appearances=1)
    >>> promised_distance(listed, "far", 0.5, None), promised_distance(listed, "frr", 0.5, None)
    (0.375, 0.875)
    """
    some = distances.totals > 0
    totals = distances.totals[some][:, None]  # (classes, 1)
    level = target if delta is None else delta
    check_enough_classes(len(totals), rate, level, delta is not None)

    def kept(places: Floats) -> NDArray[np.bool_]:
        within = distances.within(places)[some]  # (classes, m)
        wrong = within if rate == "far" else totals - within
        loss = wrong / totals if delta is None else wrong > target * totals + ROUNDING
        return np.asarray(loss.sum(axis=0) + 1 <= level * (len(totals) + 1) + ROUNDING)

    if rate == "frr":
        return just_above(distances, first_place(distances, kept))
    found = just_below(distances, first_place(distances, lambda places: ~kept(places)))
    if found < 0:
        raise InputError(
            f"no threshold can promise a FAR of {target:g}: already at distance 0, or as near as distances were "
            "counted, too many classes accept strangers; look for images that are there under two labels"
        )
    return found


def check_enough_classes(classes: int, rate: Rate, level: float, for_each: bool) -> None:
    """Refuse a level below 1/(T + 1): the class to come may be the worst of all T + 1."""
    pairs = "negative" if rate == "far" else "positive"
    if classes == 0:
        raise InputError(f"no class has {pairs} pairs: there is nothing to promise a {rate.upper()} from")
    if level * (classes + 1) + ROUNDING < 1:
        name, how = ("delta", "for a class") if for_each else (rate, "in expectation")
        raise InputError(
            f"{name} is {level:g}, but from {classes:,} classes with {pairs} pairs no less than "
            f"{rounded_up(1 / (classes + 1)):g} can be promised {how}: {level:g} needs "
            f"{math.ceil(1 / level - ROUNDING) - 1:,} classes"
        )


def first_place(distances: ClassDistances, holds: Callable[[Floats], NDArray[np.bool_]]) -> int:
    """Find the first place (a pooled distance, or a bin's end) from which on this holds; at the last it always does.

    >>> listed = ListedDistances(np.arange(1000) / 1000, np.array([0, 1000]), appearances=1)
    >>> first_place(listed, lambda places: places > 0.7)
    701
    """
    places = distances.pooled if isinstance(distances, ListedDistances) else distances.edges[1:]
    low, high = 0, len(places) - 1
    while low < high:
        tried = np.unique(np.linspace(low, high - 1, TRIED_AT_ONCE).astype(np.int64))
        # How many fall short says where to look on: what holds at one place holds at all later ones.
        short = int((~holds(np.asarray(places[tried], np.float64))).sum())
        low = int(tried[short - 1]) + 1 if short else low
        high = int(tried[short]) if short < len(tried) else high
    return low


def just_below(distances: ClassDistances, place: int) -> float:
    """Give the threshold that refuses this place and admits all nearer ones; -inf where nothing is nearer."""
    if isinstance(distances, ListedDistances):
        return distances.pooled_distance_admitting(place)
    return distances.short_of(float(distances.edges[place])) if place else -math.inf


def just_above(distances: ClassDistances, place: int) -> float:
    """Give the threshold that admits this place and nothing farther."""
    if not isinstance(distances, ListedDistances):
        edge = float(distances.edges[place + 1])
        return min(2 * edge - distances.short_of(edge), FARTHEST)  # as far beyond the edge as others stay short of it
    admitted = float(distances.pooled[place])
    return float(midway(np.array([admitted, next_above(distances.pooled, admitted)]))[0])


def share_deviation(delta: float, classes: int) -> float:
    """Standard deviation, over calibration sets, of the share of new classes over the target.

    With a continuous distribution, the share is Beta(k, T + 1 - k) for the k-th of T order statistics.

    >>> round(share_deviation(0.05, 99), 4)
    0.0217
    """
    k = math.floor(delta * (classes + 1) + ROUNDING)
    return math.sqrt(k * (classes + 1 - k) / (classes + 2)) / (classes + 1)


def percent(value: float) -> str:
    """Write a share as people read it.

    >>> percent(0.07), percent(0.0125)
    ('7%', '1.25%')
    """
    return f"{100 * value:g}%"


def rounded_up(value: float) -> float:
    """Round up to three digits, so that what a message offers is not refused in turn.

    >>> rounded_up(1 / 41), rounded_up(0.5)
    (0.0244, 0.5)
    """
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.ceil(value * scale - ROUNDING) / scale
