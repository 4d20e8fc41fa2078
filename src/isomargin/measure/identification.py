"""Identification of probes in a gallery: FPIR, FNIR and misidentification at a threshold, or at a margin.

The terms are those of ISO/IEC 19795-1 and of NIST's 1:N tests. A comparison is accepted if its distance is at most the
threshold t.

- FPIR(t), the false positive identification rate: the share of unknown probes for which any class is accepted.
- FNIR(t, R), the false negative identification rate: the share of known probes whose own class is not accepted, or
  is not among the first R.
- Misidentified: the share of known probes for which another class comes first and is accepted.

Among equally near classes, the probe's own comes first. A margin is a second rule: the first class is accepted only
if its similarity exceeds that of the second class by the margin.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.pairs.axis import ScoreAxis, similarity_of
from isomargin.measure.pairs.distances import BinnedDistances, Floats, admitting
from isomargin.measure.pairs.gallery_inputs import Template
from isomargin.measure.pairs.rates import ROUNDING

NO_UNKNOWN = "the gallery was evaluated without unknown probes, so FPIR is not known: add probes of other classes"
LARGEST_GAP = 8.0  # above the difference of any two similarities, equalized or not


@dataclass(frozen=True)
class IdentificationPoint:
    """The rates of identification at one threshold and margin."""

    distance: float
    """The threshold: classes at most this far from a probe are accepted."""
    margin: float
    """By how much the similarity of the first class must exceed that of the second; 0 for no such rule."""
    rank: int
    """R: a known probe is identified if its own class is among the first R."""
    fpir: float
    """False positive identification rate; NaN without unknown probes."""
    fnir: float
    """False negative identification rate."""
    misidentified: float
    """Share of known probes for which another class comes first and is accepted."""
    class_fnir: Floats
    """(classes,) FNIR of the probes of each enrolled class; NaN for a class without known probes."""
    unknown_fpir: Floats
    """(unknown classes,) FPIR of the probes of each unknown class."""
    false_positive_share: Floats
    """(classes,) share of the false positives (accepted unknown probes) for which the class comes first."""


@dataclass(frozen=True)
class Identification:
    """What each probe's best classes are, and how the gallery was made.

    Probes are sorted by class; known probes come before unknown ones. "First" and "second" are the nearest and second
    nearest class other than the probe's own.
    """

    template: Template
    """How a class's enrolled items are compared with a probe: ``"mean"``, ``"max"`` or ``"each"``."""
    leave_one_out: bool
    """Whether the probes are the enrolled items, each compared with its own class without itself."""
    sides: str
    """Where similarities were equalized or shifted: ``"both"``, ``"template"``, ``"probe"``, or ``"none"``."""
    margin: float
    """The margin that `at_fpir` adds to the threshold unless told otherwise; 0 for none."""
    enrolled: NDArray[np.int64]
    """(classes,) number of enrolled items."""
    unknown_names: NDArray[Any]
    """(unknown classes,) the labels of unknown probes, sorted. If all have one label, such as "unknown", each of them
    is taken to be of a class of its own, and the label is repeated."""
    probe_class: NDArray[np.int64]
    """(n,) class of each probe, ascending: an enrolled class, or ``classes`` + its place in ``unknown_names``."""
    own_distance: Floats
    """(known,) distance to the probe's own class."""
    own_rank: NDArray[np.int64]
    """(known,) rank of the probe's own class."""
    first_distance: Floats
    """(n,) distance to the nearest other class."""
    first_class: NDArray[np.int64]
    """(n,) that class."""
    second_distance: Floats
    """(n,) distance to the second nearest other class; the end of the axis if there is none."""
    second_class: NDArray[np.int64]
    """(n,) that class; -1 if there is none."""
    by_probe: BinnedDistances
    """(classes + unknown classes, bins) comparisons with other classes, counted for the class of the probe."""
    levels: Floats
    """(levels,) distances at which ``class_share`` is known, ascending."""
    class_share: Floats
    """(levels,) which part of the variance of the pooled FAR that resampled classes show is real."""

    @property
    def known(self) -> int:
        """Number of known probes."""
        return len(self.own_distance)

    @property
    def unknown(self) -> int:
        """Number of unknown probes."""
        return len(self.first_distance) - self.known

    @property
    def axis(self) -> ScoreAxis:
        """The axis of the distances."""
        return self.by_probe.axis

    @property
    def unknown_class(self) -> NDArray[np.int64]:
        """(unknown,) place of each unknown probe's class in ``unknown_names``."""
        return self.probe_class[self.known :] - len(self.enrolled)

    @cached_property
    def gaps(self) -> Floats:
        """(n,) by how much the similarity of the first class, the own one included, exceeds that of the second."""
        first, second = similarity_of(self.first_distance), similarity_of(self.second_distance)
        gaps = np.asarray(first - second)
        own = similarity_of(self.own_distance)
        best_other, next_other = first[: self.known], second[: self.known]
        gaps[: self.known] = np.where(self.comes_first, own - best_other, best_other - np.maximum(own, next_other))
        return gaps

    @cached_property
    def comes_first(self) -> NDArray[np.bool_]:
        """(known,) whether the probe's own class comes first."""
        return np.asarray(self.own_rank == 1)

    def identified(self, distance: float, margin: float = 0.0, rank: int = 1) -> NDArray[np.bool_]:
        """(known,) whether the own class of each known probe is accepted and among the first ``rank``."""
        found = (self.own_distance <= distance) & (self.own_rank <= rank)
        return np.asarray(found & (self.gaps[: self.known] >= margin) if margin > 0 else found)

    def accepted_other(self, distance: float, margin: float = 0.0) -> NDArray[np.bool_]:
        """(n,) whether another class than the probe's own comes first and is accepted."""
        found = self.first_distance <= distance
        found[: self.known] &= ~self.comes_first
        return np.asarray(found & (self.gaps >= margin) if margin > 0 else found)

    def at(self, distance: float, margin: float | None = None, rank: int = 1) -> IdentificationPoint:
        """Return the rates at a threshold, a margin (that of the evaluation unless given) and a rank."""
        self.axis.check(distance)
        margin = self.margin if margin is None else check_margin(margin)
        checks.whole(rank, "rank")
        if margin > 0 and rank > 1:
            raise InputError("a margin concerns the first class alone: leave out the margin, or use rank 1")
        identified, wrong = self.identified(distance, margin, rank), self.accepted_other(distance, margin)
        false_positives = wrong[self.known :]
        classes = len(self.enrolled)
        where = self.first_class[self.known :][false_positives]
        accepted = int(false_positives.sum())
        return IdentificationPoint(
            distance=float(distance),
            margin=margin,
            rank=rank,
            fpir=accepted / self.unknown if self.unknown else math.nan,
            fnir=int((~identified).sum()) / self.known,
            misidentified=int(wrong[: self.known].sum()) / self.known,
            class_fnir=shares(~identified, self.probe_class[: self.known], classes),
            unknown_fpir=shares(false_positives, self.unknown_class, len(self.unknown_names)),
            false_positive_share=np.bincount(where, minlength=classes) / max(accepted, 1),
        )

    def at_fpir(self, fpir: float, margin: float | None = None, rank: int = 1) -> IdentificationPoint:
        """Return the rates at the largest threshold whose FPIR does not exceed a rate, given a margin."""
        margin = self.margin if margin is None else check_margin(margin)
        return self.at(self.threshold_at_fpir(fpir, margin), margin, rank)

    def at_fpir_by_margin(self, fpir: float) -> IdentificationPoint:
        """Return the rates of the margin rule alone: the least margin whose FPIR does not exceed a rate."""
        allowed = self.allowed(fpir)
        descending = np.sort(self.gaps[self.known :])[::-1]
        if allowed >= len(descending):
            return self.at(self.axis.highest, 0.0)
        refused = float(descending[allowed])
        above = descending[descending > refused]
        middle = (refused + float(above[-1])) / 2 if above.size else refused + max(abs(refused), 1.0) * 2.0**-20
        return self.at(self.axis.highest, middle if middle > refused else float(np.nextafter(refused, np.inf)))

    def threshold_at_fpir(self, fpir: float, margin: float = 0.0) -> float:
        """Return the largest threshold whose FPIR does not exceed a rate, midway between two unknown probes' scores."""
        distances = self.first_distance[self.known :]
        if margin > 0:
            distances = distances[self.gaps[self.known :] >= margin]
        found = admitting(np.sort(distances), self.allowed(fpir), self.axis)
        if found == -math.inf:
            raise InputError(
                f"no threshold has an FPIR of at most {fpir:g}, because many unknown probes are identical to an "
                "enrolled item: look for enrolled items among the unknown probes, or use a larger fpir"
            )
        return found

    def allowed(self, fpir: float) -> int:
        """Return how many unknown probes may be accepted; a rate of less than one probe is refused."""
        checks.share(fpir, "fpir")
        if not self.unknown:
            raise InputError(NO_UNKNOWN)
        if fpir * self.unknown < 1 - ROUNDING:
            raise InputError(
                f"fpir is {fpir:g}, but with {self.unknown:,} unknown probes the smallest rate above zero is "
                f"{1 / self.unknown:.3g}: use a larger fpir or more unknown probes"
            )
        return math.floor(fpir * self.unknown + ROUNDING)


def check_margin(margin: Any) -> float:
    """Return a margin, and refuse a value that no difference of similarities can have."""
    if not 0 <= checks.number(margin, "margin") <= LARGEST_GAP:
        raise InputError(f"margin is {margin}: a difference of similarities is needed, 0 or more")
    return float(margin)


def shares(found: NDArray[np.bool_], class_of: NDArray[np.int64], classes: int) -> Floats:
    """(classes,) share of each class's probes for which something was found; NaN for a class without probes."""
    number = np.bincount(class_of, minlength=classes)
    part = np.bincount(class_of, weights=found, minlength=classes)
    return np.asarray(np.divide(part, number, out=np.full(classes, np.nan), where=number > 0))
