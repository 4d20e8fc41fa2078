"""``promise_threshold``: thresholds with a guarantee for unseen classes, for any number of classes and distribution.

The unit is the class: the guarantee requires that the calibration classes and the new class are exchangeable. It is
neither a confidence interval of the pooled rate nor a guarantee for a class that was chosen because it is difficult.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.text import percent
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.identification import NO_UNKNOWN
from isomargin.measure.pairs.distances import ClassDistances, Floats, ListedDistances
from isomargin.measure.pairs.rates import ROUNDING
from isomargin.measure.settings import Comparison, of_groups
from isomargin.measure.statistics.intervals import rate_intervals
from isomargin.thresholds.gaps import just_beyond, midway, next_above
from isomargin.thresholds.threshold_choice import ThresholdChoice, describe, share_over

Rate = Literal["far", "frr", "fpir"]

JOINED = "its items have joined the reference of the equalizer (partial_fit) before they are compared"
NOT_JOINED = "its items are not in the reference of the equalizer when they are compared"
OTHER_ITEMS = "other items of its class are there only if those of the calibration classes were"
NEIGHBOURS: dict[tuple[str, Rate], str] = {
    ("in_reference", "far"): f"{JOINED}; before that its FAR is higher: for such classes, measure with new_classes "
    "(--new-classes)",
    ("in_reference", "frr"): f"{JOINED}; before that its FRR is lower",
    (
        "left_out",
        "far",
    ): f"{NOT_JOINED}, but those that they are compared with are; once it has joined, its FAR is lower",
    ("left_out", "frr"): f"{NOT_JOINED}; once it has joined, its FRR is higher: for such classes, measure without "
    "new_classes (--new-classes)",
    ("outside", "far"): f"{NOT_JOINED}, nor are those that they are compared with; {OTHER_ITEMS}",
    ("outside", "frr"): f"{NOT_JOINED}; {OTHER_ITEMS}",
}
"""What a promise about equalized similarities assumes of the new class, by where its class was and by rate."""
OTHERWISE: dict[tuple[str, Rate, bool], str] = {
    ("in_reference", "far", False): "in tests, the mean FAR of classes that had not joined was up to 11% where 5% was "
    "promised",
    ("in_reference", "far", True): "in tests, up to 86% of the classes that had not joined exceeded a target promised "
    "for 95%",
    ("left_out", "far", True): "for pairs of two classes that have both not joined, evaluate classes that are not in "
    "the reference: in tests, up to 28% of classes exceeded a target promised for 95% in such pairs",
    ("left_out", "frr", False): "in tests, the mean FRR of classes that had joined was up to 15% where 5% was promised",
    ("left_out", "frr", True): "in tests, up to 26% of the classes that had joined exceeded a target promised for 95%",
}
"""What `benchmarks/check_equalized_promises.py` measured where that does not hold, for the mean and for each class."""
TRIED_AT_ONCE = 64  # places tried per round of the search; the bins are read once per round


@dataclass(frozen=True)
class Promise:
    """A threshold and what it promises for an unseen class."""

    rate: Rate
    """The rate that is promised."""
    target: float
    """The largest value of the rate."""
    delta: float | None
    """The probability with which a new class may exceed the target; None for a promise in expectation."""
    classes: int
    """Number of calibration classes with pairs of this kind."""
    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    far: float
    """Pooled false accept rate of the calibration set at the threshold."""
    frr: float
    """Pooled false reject rate of the calibration set at the threshold."""
    own_class: str | None = None
    """For equalized similarities: whether an item's class was among its neighbours, ``"in_reference"``, or was not:
    ``"left_out"`` of the reference that holds the others, or ``"outside"`` of it like all evaluated items."""
    comparison: Comparison = "all_pairs"
    """What was compared: all pairs of items, probes with the templates of a gallery, or the pairs of a list."""

    @property
    def on(self) -> Literal["mean", "class"]:
        """Whether the promise is about the mean over new classes or about each class."""
        return "mean" if self.delta is None else "class"

    @property
    def what(self) -> str:
        """The promise as a sentence.

        >>> Promise("far", 0.01, 0.05, 99, 0.8, 0.004, 0.1).what
        'the FAR of an unseen class exceeds 1% with probability at most 5%'
        """
        unseen = "a new unknown class" if self.rate == "fpir" else "an unseen class"
        if self.delta is None:
            return self._of_groups(f"the expected {self.rate.upper()} of {unseen} is at most {percent(self.target, 6)}")
        exceeds = f"exceeds {percent(self.target, 6)} with probability at most {percent(self.delta, 6)}"
        return self._of_groups(f"the {self.rate.upper()} of {unseen} {exceeds}")

    @property
    def short(self) -> str:
        """The promise in a few words, for the title of a card.

        >>> Promise("far", 0.01, 0.05, 99, 0.8, 0.004, 0.1).short
        'FAR at most 1% in 95% of unseen classes'
        """
        unseen = "new unknown classes" if self.rate == "fpir" else "unseen classes"
        if self.delta is None:
            text = f"an expected {self.rate.upper()} of at most {percent(self.target, 6)} in {unseen}"
        else:
            text = f"{self.rate.upper()} at most {percent(self.target, 6)} in {percent(1 - self.delta, 6)} of {unseen}"
        return self._of_groups(text)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the promise assumes, one sentence each.

        >>> Promise("frr", 0.05, None, 40, 1.1, 0.02, 0.03).assumptions[0]
        'the class is of the same kind as the 40 calibration classes, as if all were drawn at random together'
        """
        measured = (
            "; in tests, up to 7% of classes exceeded a target promised for 95%, and up to "
            f"{'11%' if self.own_class is None else '12%'} one promised for 90%"
        )
        pairs = {
            "far": "its negatives are the items of the calibration classes, or a similar mix; the promise is exact if "
            "all classes have the same negatives, and nearly so here, where they are the other calibration classes"
            + (measured if self.delta else ""),
            "frr": "it has two or more items, because a single item has no positive pair",
            "fpir": "the gallery stays as it is: with more enrolled classes, FPIR rises",
        }
        about_items = "its items are of the same kind and about as many, and are collected, prepared and embedded alike"
        if self.comparison == "trials":
            pairs["far"] = "its negative trials are drawn as those of the calibration groups were"
            pairs["frr"] = "its positive trials are drawn as those of the calibration groups were"
            about_items = "its trials are of the same kind and about as many, and are prepared and scored alike"
        if self.comparison == "gallery":
            pairs["far"] = "it is enrolled like the others, and its negatives are the same probes, or a similar mix"
            pairs["frr"] = "it is enrolled like the others: as many items, chosen alike"
        if self.delta is None:
            draw = (
                "the expectation is over random calibration classes and new classes: for a single calibration set, "
                "the mean over many new classes can be above or below the target"
            )
        else:
            deviation = percent(round(share_deviation(self.delta, self.classes), 3))
            draw = (
                "the probability is over random calibration classes and new classes: from one set of "
                f"{self.classes:,} classes to another, the share of new classes over the target has a standard "
                f"deviation of {deviation}"
            )
        others = "classes of unknown probes" if self.rate == "fpir" else "calibration classes"
        assumed = (
            f"the class is of the same kind as the {self.classes:,} {others}, as if all were drawn at random together",
            pairs[self.rate],
            about_items,
            *self._neighbours,
            draw,
        )
        return tuple(map(self._of_groups, assumed))

    def _of_groups(self, text: str) -> str:
        """Say group for class where the calibration set is a list of trials."""
        return of_groups(text, self.comparison)

    @property
    def _neighbours(self) -> tuple[str, ...]:
        """What the promise assumes of the neighbours of equalized items; empty for plain similarities."""
        if self.own_class is None:
            return ()
        otherwise = OTHERWISE.get((self.own_class, self.rate, self.delta is not None))
        assumed = NEIGHBOURS[self.own_class, self.rate]
        return (f"{assumed}; {otherwise}" if otherwise else assumed,)

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values, for a card.

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
    fpir: float | None = None,
    delta: float | None = None,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> ThresholdChoice:
    """Choose the threshold that promises a FAR, or an FRR, for unseen classes.

    Without delta, the promise is in expectation: E[FAR of a new class] <= far. With delta, it is for each class:
    P(FAR of a new class > far) <= delta. For FAR the threshold is the largest that keeps the promise, for FRR the
    smallest.

    Theorem (conformal risk control: Angelopoulos et al., 2022). Let l_1(d), ..., l_{T+1}(d) be the losses of T
    calibration classes and of a new class, exchangeable, in [0, 1] and increasing in d. If d is the largest threshold
    with

        (l_1(d) + ... + l_T(d) + 1) / (T + 1) <= level,

    then E[l_{T+1}(d)] <= level. The loss FAR_i(d) with the level far gives the promise in expectation. The loss
    1{FAR_i(d) > far} with the level delta gives the promise for each class: d is then just below the k-th smallest of
    the distances at which classes exceed the target, k = floor(delta (T + 1)), Vovk's order statistic. FRR is treated
    likewise, from above.

    Proof. As l_{T+1} <= 1, d is not above d', the largest threshold with (l_1(d') + ... + l_{T+1}(d')) / (T + 1) <=
    level. As d' does not depend on the order of the classes, E[l_{T+1}(d)] <= E[l_{T+1}(d')] = E[mean of all
    l_i(d')] <= level.

    One assumption holds only approximately for FAR. The negatives of a calibration class are the items of the other
    calibration classes, so their FARs share pairs. The classes are exchangeable in the sense of the theorem if all of
    them, including the new one, have the same negatives. Otherwise a new class that resembles calibration classes would
    have increased their FAR too, had it been among them. `benchmarks/check_promises.py` measures the effect on halves
    of glyphs and of Omniglot, embedded by their pixels: of a promised 5% of classes over the target, 5% to 7% exceeded
    it, and of 10%, 9% to 11%; with the same negatives for all classes both promises held. The promise in expectation
    was kept, and so were the promises of FRR, whose pairs no two classes share.

    With an equalizer, the offsets of a new class must come about as those of the calibration classes did: its items
    have joined the reference (``evaluate``), or they have not (``evaluate`` with ``new_classes``). The promise says
    which. For such classes promises of equalized similarities hold as plain ones do (docs/equalize-promises.md).

    Args:
        evaluation: the calibration set, with classes like those in production and not trained on.
        far: the false accept rate to promise, above 0 and below 1; or
        frr: the false reject rate to promise. Classes of one item have none and are left out.
        fpir: for a gallery, the false positive identification rate to promise for classes that are not enrolled. The
            calibration classes are those of the unknown probes; if all of these have one label, each probe is taken as
            a class of its own, and only an expected FPIR can be promised.
        delta: probability with which a new class may exceed the rate; None for the promise in expectation.
        draws: number of bootstrap draws of the confidence intervals, see `rate_intervals`.
        confidence: confidence level of the intervals.
        seed: seed of the draws.

    Returns: the same as ``choose_threshold``, with the promise in ``promise``. ``make_card`` takes both.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(400, 16)) + 3 * np.eye(40, 16)[np.arange(400) % 40]
    >>> evaluation = im.evaluate(embeddings, np.arange(400) % 40)
    >>> choice = promise_threshold(evaluation, far=0.1, delta=0.05)
    >>> choice.promise.what, choice.promise.classes
    ('the FAR of an unseen class exceeds 10% with probability at most 5%', 40)
    >>> choice.distance < promise_threshold(evaluation, far=0.1, delta=0.2).distance
    True
    >>> promise_threshold(evaluation, far=0.01)
    Traceback (most recent call last):
    isomargin.InputError: far is 0.01, but with 40 classes that have negative pairs no less than 0.0244 can be
    promised in expectation: 0.01 needs 99 classes
    """
    if not isinstance(evaluation, Evaluation):
        raise InputError(
            f"evaluation is of type {type(evaluation).__name__}: the result of isomargin.evaluate is needed"
        )
    if not evaluation.has_classes:
        raise InputError("these trials have no groups, and a promise is about unseen groups: give groups")
    wanted: dict[Rate, float | None] = {"far": far, "frr": frr, "fpir": fpir}
    given = [(name, value) for name, value in wanted.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"far is {far}, frr is {frr} and fpir is {fpir}: exactly one of them is needed, the rate to promise"
        )
    ((rate, target),) = given
    target = checks.share(target, rate)
    if delta is not None:
        delta = checks.share(delta, "delta")
    distances: ClassDistances = evaluation.counts.positives if rate == "frr" else evaluation.counts.negatives
    if rate == "fpir":
        distances = unknown_distances(evaluation)
        if delta is not None and int(distances.totals.max()) == 1:
            raise InputError(
                "every unknown probe is taken as a class of its own, whose FPIR is 0 or 1, so delta would be the FPIR: "
                "leave out delta for a promise in expectation (--unseen), or give unknown probes the labels of classes"
            )
    try:
        distance = promised_distance(distances, rate, target, delta)
    except InputError as error:
        raise InputError(of_groups(str(error), evaluation.comparison)) from error
    if rate == "frr" and isinstance(distances, ListedDistances):
        # Midway to the next pair of either kind: negative pairs beyond the last positive pair need not be accepted.
        last = int(np.searchsorted(distances.pooled, distance, side="right")) - 1
        distance = just_beyond(evaluation.counts, float(distances.pooled[last]))
    point = evaluation.at(distance)
    own_class = where_classes_were(evaluation)
    classes = int((distances.totals > 0).sum())
    promise = Promise(rate, target, delta, classes, distance, point.far, point.frr, own_class, evaluation.comparison)
    intervals = rate_intervals(evaluation, distance, draws, confidence, seed)
    rates, over = point.class_far if rate == "far" else point.class_frr, None
    if rate == "fpir":
        rates = evaluation.gallery.at(distance).class_fnir
    else:
        over = share_over(rates, target)
    return describe(evaluation, point, promise.short, rates, over, intervals, promise)


def unknown_distances(evaluation: Evaluation) -> ListedDistances:
    """Return, by unknown class, the distances of its probes to the nearest enrolled class."""
    gallery = evaluation.gallery
    if not gallery.unknown:
        raise InputError(NO_UNKNOWN)
    if gallery.margin > 0:
        raise InputError("an FPIR is promised for a threshold alone: evaluate without a margin")
    nearest, its_class = gallery.first_distance[gallery.known :], gallery.unknown_class
    order = np.lexsort((nearest, its_class))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(its_class, minlength=len(gallery.unknown_names)))])
    return ListedDistances(nearest[order], offsets.astype(np.int64), 1, gallery.axis)


def where_classes_were(evaluation: Evaluation) -> str | None:
    """Return where the classes of equalized items were; None for plain similarities."""
    if evaluation.equalizer is None or evaluation.comparison == "gallery":
        return None  # templates and probes of a gallery are what they are in production
    own_class = str(evaluation.equalizer["own_class"])
    if own_class == "own_neighbours":
        raise InputError(
            "rows were their own neighbours in the reference of the equalizer, so nothing can be promised: fit and "
            "evaluate the same rows in the same order, or give ids to both"
        )
    if (own_class, "far") not in NEIGHBOURS:
        raise InputError(
            "some of the evaluated rows are in the reference of the equalizer and others are not: to promise a rate, "
            "evaluate either the rows of the reference or rows of other classes"
        )
    return own_class


def promised_distance(distances: ClassDistances, rate: Rate, target: float, delta: float | None) -> float:
    """Find the threshold of a promise from the negative pairs (for FAR) or positive pairs (for FRR) of the classes.

    It lies midway between two listed distances, so that rounding does not matter, or at the edge of a bin.

    >>> listed = ListedDistances(np.array([0.25, 0.5, 0.75, 1.0]), np.array([0, 2, 4]), appearances=1)
    >>> promised_distance(listed, "far", 0.5, None), promised_distance(listed, "frr", 0.5, None)
    (0.375, 0.875)
    """
    has_pairs = distances.totals > 0
    totals = distances.totals[has_pairs][:, None]  # (classes, 1)
    level = target if delta is None else delta
    check_enough_classes(len(totals), rate, level, delta is not None)

    def kept(places: Floats) -> NDArray[np.bool_]:
        within = distances.within(places)[has_pairs]  # (classes, m)
        wrong = totals - within if rate == "frr" else within
        loss = wrong / totals if delta is None else wrong > target * totals + ROUNDING
        return np.asarray(loss.sum(axis=0) + 1 <= level * (len(totals) + 1) + ROUNDING)

    if rate == "frr":
        return just_above(distances, first_place(distances, kept))
    found = just_below(distances, first_place(distances, lambda places: ~kept(places)))
    if found == -math.inf:
        raise InputError(
            f"no threshold can promise a rate of {target:g}: even at the smallest distance that was counted, too many "
            "classes accept negative pairs; look for items that have two labels"
        )
    return found


def check_enough_classes(classes: int, rate: Rate, level: float, for_each: bool) -> None:
    """Refuse a level below 1/(T + 1): the new class may be the worst of all T + 1."""
    pairs = {"far": "negative pairs", "frr": "positive pairs", "fpir": "unknown probes"}[rate]
    if classes == 0:
        raise InputError(f"no class has {pairs}: promising {rate.upper()} needs some")
    if level * (classes + 1) + ROUNDING < 1:
        name, how = ("delta", "for each class") if for_each else (rate, "in expectation")
        raise InputError(
            f"{name} is {level:g}, but with {classes:,} classes that have {pairs} no less than "
            f"{rounded_up(1 / (classes + 1)):g} can be promised {how}: {level:g} needs "
            f"{math.ceil(1 / level - ROUNDING) - 1:,} classes"
        )


def first_place(distances: ClassDistances, holds: Callable[[Floats], NDArray[np.bool_]]) -> int:
    """Find the first place (a pooled distance, or an upper edge) from which a condition holds; at the last it must.

    >>> listed = ListedDistances(np.arange(1000) / 1000, np.array([0, 1000]), appearances=1)
    >>> first_place(listed, lambda places: places > 0.7)
    701
    """
    places = distances.pooled if isinstance(distances, ListedDistances) else distances.edges[1:]
    low, high = 0, len(places) - 1
    while low < high:
        tried = np.unique(np.linspace(low, high - 1, TRIED_AT_ONCE).astype(np.int64))
        # A condition that holds at one place holds at all later ones, so the number of failures says where to go on.
        short = int((~holds(np.asarray(places[tried], np.float64))).sum())
        low = int(tried[short - 1]) + 1 if short else low
        high = int(tried[short]) if short < len(tried) else high
    return low


def just_below(distances: ClassDistances, place: int) -> float:
    """Return the threshold that rejects this place and accepts all nearer ones; -inf if nothing is nearer."""
    if isinstance(distances, ListedDistances):
        return distances.pooled_distance_admitting(place)
    return distances.short_of(float(distances.edges[place])) if place else -math.inf


def just_above(distances: ClassDistances, place: int) -> float:
    """Return the threshold that accepts this place and nothing farther."""
    if not isinstance(distances, ListedDistances):
        edge = float(distances.edges[place + 1])
        beyond = 2 * edge - distances.short_of(edge)  # by what other thresholds fall short
        return min(beyond, distances.axis.highest)
    admitted = float(distances.pooled[place])
    return float(midway(np.array([admitted, next_above(distances.pooled, admitted, distances.axis)]))[0])


def share_deviation(delta: float, classes: int) -> float:
    """Compute the standard deviation, over calibration sets, of the share of new classes over the target.

    For a continuous distribution, the share is Beta(k, T + 1 - k) for the k-th of T order statistics.

    >>> round(share_deviation(0.05, 99), 4)
    0.0217
    """
    k = math.floor(delta * (classes + 1) + ROUNDING)
    return math.sqrt(k * (classes + 1 - k) / (classes + 2)) / (classes + 1)


def rounded_up(value: float) -> float:
    """Round up to three digits, so that the value in a message is not refused in turn.

    >>> rounded_up(1 / 41), rounded_up(0.5)
    (0.0244, 0.5)
    """
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return math.ceil(value * scale - ROUNDING) / scale
