"""The rates of a labelled set at the threshold of a card, compared with what the card says."""

import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.json_values import null_for_nan
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.gallery import evaluate_gallery
from isomargin.measure.gallery_shifts import GalleryShifts
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.statistics.intervals import (
    Interval,
    identification_intervals,
    note_on_few_classes,
    rate_intervals,
)
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
    rate: Literal["far", "frr", "fpir"]
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
    """Which rates exceed those of the card by more than chance explains."""
    classes: int
    """Number of classes."""
    beyond: tuple[ClassBeyond, ...]
    """Classes whose rate is beyond twice the card's, worst first."""
    promise: PromiseKept | None = None
    """Whether the promise is kept, if the card has one; it then decides instead of that rate's measured value."""
    fpir: Interval | None = None
    """False positive identification rate; None for other comparisons than galleries, and without unknown probes."""
    fnir: Interval | None = None
    """False negative identification rate; None for other comparisons than galleries."""
    decisive: tuple[str, ...] = ("far", "frr")
    """The rates that decide: ``"fpir"`` and ``"fnir"`` if the threshold was chosen for an FPIR."""

    @property
    def intervals(self) -> dict[str, Interval]:
        """The rates that are known, by name."""
        found = {"far": self.far, "frr": self.frr, "fpir": self.fpir, "fnir": self.fnir}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def failed(self) -> tuple[str, ...]:
        """What fails the card: rates compared with the measured ones, or the ``"promise"``."""
        worse = tuple(name for name in self.worse if name in self.decisive)
        if self.promise is None:
            return worse
        others = tuple(name for name in worse if name != self.promise.rate)
        return others if self.promise.kept else (*others, "promise")

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "classes": self.classes,
            **{
                name: {part: null_for_nan(value) for part, value in asdict(found).items()}
                for name, found in self.intervals.items()
            },
            "decisive": list(self.decisive),
            "worse": list(self.worse),
            "beyond": [asdict(each) for each in self.beyond],
            "promise": None if self.promise is None else asdict(self.promise) | {"kept": self.promise.kept},
            "failed": list(self.failed),
        }


def realised_rates(
    card: ThresholdCard,
    embeddings: Any,
    labels: Any,
    shifts: GalleryShifts,
    ids: Any,
    level: float,
    draws: int,
    seed: int,
    gallery: EmbeddingSet | None = None,
) -> tuple[RealisedRates, list[str]]:
    """Measure a labelled set at the threshold of the card, and compare it with the card's rates; return notes too.

    The two tests, one per rate and for an increase only, share the level. Intervals over classes are somewhat too
    narrow if a few classes decide on a rate, so their confidence is 1 - level / 2, where 1 - level would do otherwise.
    """
    evaluation = evaluate_labelled(card, embeddings, labels, shifts, ids, gallery)
    evaluation.axis.check(card.distance)
    far, frr = rate_intervals(evaluation, card.distance, draws, 1 - level / 2, seed)
    fpir = fnir = None
    notes = [note.replace("the intervals", "the intervals of the rates") for note in note_on_few_classes(evaluation)]
    if gallery is not None:
        fpir, fnir = identification_intervals(evaluation, card.distance, draws, 1 - level / 2, seed)
        if not evaluation.gallery.unknown:
            fpir = None
            notes.append("no new probe is unknown, so FPIR was not compared: add labelled probes of other classes")
    rates = RealisedRates(
        far=far,
        frr=frr,
        worse=(),
        classes=evaluation.class_count,
        beyond=classes_beyond(evaluation, card, level),
        promise=check_promise(evaluation, card, level),
        fpir=fpir,
        fnir=fnir,
        decisive=("fpir", "fnir") if chosen_for_fpir(card) else ("far", "frr"),
    )
    before = measured_rates(card)
    worse = [name for name, found in rates.intervals.items() if name in before]
    worse = [name for name in worse if lowest_increase(rates.intervals[name], before[name]) > 0]
    return replace(rates, worse=tuple(worse)), notes


def chosen_for_fpir(card: ThresholdCard) -> bool:
    """Return whether the threshold of a card was chosen for an FPIR, or promises one."""
    return card.target.startswith("FPIR") or (card.promise or {}).get("rate") == "fpir"


def measured_rates(card: ThresholdCard) -> dict[str, dict[str, Any]]:
    """Return the rates on the card, with their intervals, by name."""
    found = {"far": card.measured["far"], "frr": card.measured["frr"]}
    found |= {name: (card.gallery or {}).get(name) for name in ("fpir", "fnir")}
    return {name: rate for name, rate in found.items() if rate is not None}


def check_promise(evaluation: Evaluation, card: ThresholdCard, level: float) -> PromiseKept | None:
    """Compare the classes with what the card promises for unseen ones; None if it promises nothing.

    The bound of a share of classes is binomial (Clopper and Pearson), that of a mean Student's. The mean FAR depends on
    both classes of a pair, so it varies twice as much as the mean of as many independent rates.
    """
    from scipy.special import betaincinv, stdtrit

    promise = card.promise or {}
    if promise.get("rate") not in ("far", "frr", "fpir") or "target" not in promise:
        return None
    rate, target, delta = promise["rate"], float(promise["target"]), promise.get("delta")
    point = evaluation.at(card.distance)
    if rate == "fpir":
        rates = evaluation.gallery.at(card.distance).unknown_fpir
    else:
        rates = point.class_far if rate == "far" else point.class_frr
    known = rates[~np.isnan(rates)]
    if len(known) < 2:
        return None
    if delta is not None:
        over = int((known > target + 1e-12).sum())
        low = float(betaincinv(over, len(known) - over + 1, level / 2)) if over else 0.0
        return PromiseKept(str(promise.get("what", "")), rate, over / len(known), low, float(delta))
    error = known.std(ddof=1) / np.sqrt(len(known)) * (2 if rate == "far" else 1)
    low = float(known.mean() + stdtrit(len(known) - 1, level / 2) * error)
    return PromiseKept(str(promise.get("what", "")), rate, float(known.mean()), low, target)


def evaluate_labelled(
    card: ThresholdCard,
    embeddings: Any,
    labels: Any,
    shifts: GalleryShifts,
    ids: Any,
    gallery: EmbeddingSet | None,
) -> Evaluation:
    """Evaluate a set near the threshold of the card, whatever its number of pairs; no other rate is used."""
    low = card.distance - NEAR if card.equalizer is not None else max(card.distance - NEAR, 0.0)
    how: dict[str, Any] = {"distances": (low, low + NEAR), "target_far": ANY_FAR, "k": (1,)}
    how["equalizer"] = shifts.equalizer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if gallery is None:
            return evaluate(embeddings, labels, **how, ids=ids, map_at_r=False)
        rule = card.gallery or {}
        how |= {"template": rule["template"], "margin": rule["margin"], "probe_ids": ids}
        how |= {"sides": shifts.sides, "class_thresholds": shifts.class_thresholds}
        return evaluate_gallery(gallery.vectors, gallery.labels, embeddings, labels, **how)


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
    """(classes,) variance of each rate as if its pairs were independent, the least that it can be.

    Half a pair is added to either side, so that a rate of 0 or 1 has a variance too.
    """
    counts = evaluation.counts.negatives if name == "far" else evaluation.counts.positives
    pairs = np.maximum(counts.totals[classes], 1)
    near = (rates * pairs + 0.5) / (pairs + 1)
    return np.asarray(near * (1 - near) / pairs)
