"""The rates of a labelled set at the threshold of a card, compared with what the card says."""

import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.json_values import null_for_nan
from isomargin.measure.evaluate import EqualizesSimilarity, evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.statistics.intervals import Interval, note_on_few_classes, rate_intervals
from isomargin.thresholds.card import ThresholdCard

FACTOR = 2  # a class has left its tolerance if its rate is beyond this multiple of the card's rate
NEAR = 0.01  # width of the range of distances that is evaluated, at the threshold
ANY_FAR = 0.5  # a rate that any number of pairs allows


@dataclass(frozen=True)
class ClassBeyond:
    """A class with more errors than the card allows."""

    name: int | str
    """Label of the class."""
    items: int
    """Number of items."""
    rate: Literal["far", "frr"]
    """Which rate."""
    value: float
    """The rate."""
    low: float
    """Lower bound of its interval, at a level that allows for the number of classes."""


@dataclass(frozen=True)
class PromiseKept:
    """Whether the classes of a labelled set keep what the card promises for unseen classes."""

    what: str
    """The promise as a sentence."""
    rate: Literal["far", "frr"]
    """The rate that is promised."""
    value: float
    """The mean rate of the classes, or the share of classes beyond the promised rate."""
    low: float
    """Its lower bound."""
    allowed: float
    """The largest value that was promised."""

    @property
    def kept(self) -> bool:
        """Whether the promise may be kept: the lower bound does not exceed it."""
        return self.low <= self.allowed


@dataclass(frozen=True)
class RealisedRates:
    """The error rates of a labelled set at the threshold of the card."""

    far: Interval
    """False accept rate."""
    frr: Interval
    """False reject rate."""
    worse: tuple[str, ...]
    """Which of them, ``"far"`` or ``"frr"``, exceed those of the card by more than chance explains."""
    classes: int
    """Number of classes."""
    beyond: tuple[ClassBeyond, ...]
    """Classes whose rate is beyond twice the card's, worst first."""
    promise: PromiseKept | None = None
    """Whether the promise is kept, if the card has one; it then decides instead of that rate's measured value."""

    @property
    def failed(self) -> tuple[str, ...]:
        """What fails the card: ``"far"`` or ``"frr"``, compared with the measured rates, or the ``"promise"``."""
        if self.promise is None:
            return self.worse
        others = tuple(name for name in self.worse if name != self.promise.rate)
        return others if self.promise.kept else (*others, "promise")

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "classes": self.classes,
            "far": {name: null_for_nan(value) for name, value in asdict(self.far).items()},
            "frr": {name: null_for_nan(value) for name, value in asdict(self.frr).items()},
            "worse": list(self.worse),
            "beyond": [asdict(each) for each in self.beyond],
            "promise": None if self.promise is None else asdict(self.promise) | {"kept": self.promise.kept},
            "failed": list(self.failed),
        }


def realised_rates(
    card: ThresholdCard,
    embeddings: Any,
    labels: Any,
    equalizer: EqualizesSimilarity | None,
    ids: Any,
    level: float,
    draws: int,
    seed: int,
) -> tuple[RealisedRates, list[str]]:
    """Measure a labelled set at the threshold of the card, and compare it with the card's rates; return notes too.

    The two tests, one per rate and for an increase only, share the level. Intervals over classes are somewhat too
    narrow if a few classes decide on a rate, so their confidence is 1 - level / 2, where 1 - level would do otherwise.
    """
    evaluation = evaluate_labelled(card, embeddings, labels, equalizer, ids)
    evaluation.axis.check(card.distance)
    intervals = rate_intervals(evaluation, card.distance, draws, 1 - level / 2, seed)
    measured = (card.measured["far"], card.measured["frr"])
    worse = [
        name
        for name, found, before in zip(("far", "frr"), intervals, measured, strict=True)
        if lowest_increase(found, before) > 0
    ]
    beyond = classes_beyond(evaluation, card, level)
    notes = [note.replace("the intervals", "the intervals of the rates") for note in note_on_few_classes(evaluation)]
    promise = check_promise(evaluation, card, level)
    return RealisedRates(*intervals, tuple(worse), evaluation.class_count, beyond, promise), notes


def check_promise(evaluation: Evaluation, card: ThresholdCard, level: float) -> PromiseKept | None:
    """Compare the classes with what the card promises for unseen ones; None if it promises nothing.

    The bound of a share of classes is binomial (Clopper and Pearson), that of a mean Student's. The mean FAR depends on
    both classes of a pair, so it varies twice as much as the mean of as many independent rates.
    """
    from scipy.special import betaincinv, stdtrit

    promise = card.promise or {}
    if promise.get("rate") not in ("far", "frr") or "target" not in promise:
        return None
    rate, target, delta = promise["rate"], float(promise["target"]), promise.get("delta")
    point = evaluation.at(card.distance)
    rates = point.class_far if rate == "far" else point.class_frr
    known = rates[~np.isnan(rates)]
    if delta is not None:
        over = int((known > target + 1e-12).sum())
        low = float(betaincinv(over, len(known) - over + 1, level / 2)) if over else 0.0
        return PromiseKept(str(promise.get("what", "")), rate, over / len(known), low, float(delta))
    error = known.std(ddof=1) / np.sqrt(len(known)) * (2 if rate == "far" else 1)
    low = float(known.mean() + stdtrit(len(known) - 1, level / 2) * error)
    return PromiseKept(str(promise.get("what", "")), rate, float(known.mean()), low, target)


def evaluate_labelled(
    card: ThresholdCard, embeddings: Any, labels: Any, equalizer: EqualizesSimilarity | None, ids: Any
) -> Evaluation:
    """Evaluate a set near the threshold of the card, whatever its number of pairs; no other rate is used."""
    low = card.distance - NEAR if equalizer is not None else max(card.distance - NEAR, 0.0)
    more: dict[str, Any] = {} if equalizer is None else {"equalizer": equalizer, "ids": ids}
    more |= {"distances": (low, low + NEAR), "target_far": ANY_FAR, "k": (1,), "map_at_r": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return evaluate(embeddings, labels, **more)


def lowest_increase(found: Interval, before: dict[str, Any]) -> float:
    """Return the lower bound of the increase of a rate, from the intervals of both (Donner and Zou, 2012).

    Bounds of the card at another confidence level are scaled to that of the new interval.

    >>> before = {"value": 0.01, "low": 0.008, "high": 0.013, "confidence": 0.95}
    >>> lowest_increase(Interval(0.012, 0.009, 0.015, 0.95), before) > 0
    False
    >>> lowest_increase(Interval(0.02, 0.017, 0.023, 0.95), before) > 0
    True
    """
    from scipy.special import ndtri

    scale = ndtri((1 + found.confidence) / 2) / ndtri((1 + before["confidence"]) / 2)
    above = scale * ((before["high"] if before["high"] is not None else before["value"]) - before["value"])
    return float(found.value - before["value"] - np.hypot(found.value - found.low, above))


def classes_beyond(evaluation: Evaluation, card: ThresholdCard, level: float) -> tuple[ClassBeyond, ...]:
    """Return the classes whose FAR or FRR is beyond twice the card's, with intervals that exclude it.

    The intervals are over other items of the class, and wide enough for all classes together. Classes of fewer than
    four items have none.
    """
    from scipy.special import ndtri

    noise = evaluation.item_noise
    if noise is None:
        return ()
    point, large = evaluation.at(card.distance), noise.classes
    width = -ndtri(level / (2 * max(len(large), 1)))
    found = []
    rates: dict[Literal["far", "frr"], Floats] = {"far": point.class_far[large], "frr": point.class_frr[large]}
    for (name, values), variance in zip(rates.items(), noise.of_rates(card.distance, evaluation), strict=True):
        low = values - width * np.sqrt(np.maximum(variance, by_pairs(values, evaluation, name, large)))
        limit = FACTOR * card.measured[name]["value"]
        for i in np.flatnonzero(low > limit).tolist():
            label, items = evaluation.names[large[i]].item(), int(evaluation.sizes[large[i]])
            found.append(ClassBeyond(label, items, name, float(values[i]), float(low[i])))
    return tuple(sorted(found, key=lambda each: -each.value / max(card.measured[each.rate]["value"], 1e-12)))


def by_pairs(rates: Floats, evaluation: Evaluation, name: str, classes: NDArray[np.int64]) -> Floats:
    """(classes,) variance of each rate as if its pairs were independent, the least that it can be."""
    counts = evaluation.counts.negatives if name == "far" else evaluation.counts.positives
    return np.asarray(rates * (1 - rates) / np.maximum(counts.totals[classes], 1))
