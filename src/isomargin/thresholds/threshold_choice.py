"""``ThresholdChoice``: a threshold and what it does on the classes it was chosen on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isomargin.measure.evaluation import Evaluation
from isomargin.measure.operating_point import OperatingPoint
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.curves import first_rate
from isomargin.measure.scores.utility import utility as utility_of
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import Interval, identification_intervals

if TYPE_CHECKING:
    from isomargin.thresholds.conformal import Promise

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORST = 10  # number of classes in a list of the worst


@dataclass(frozen=True)
class ClassRates:
    """The rates of one class at the threshold."""

    name: int | str
    """Label of the class."""
    items: int
    """Number of items."""
    far: float
    """False accept rate; NaN for a class without sampled negative pairs."""
    frr: float
    """False reject rate; NaN for a class with one item."""


@dataclass(frozen=True)
class IdentificationRates:
    """The rates of identification at the threshold, in a gallery."""

    fpir: Interval | None
    """False positive identification rate; None without unknown probes."""
    fnir: Interval
    """False negative identification rate: of known probes whose own class is not accepted, or does not come first."""
    misidentified: float
    """Share of known probes for which another class comes first and is accepted."""


@dataclass(frozen=True)
class ThresholdChoice:
    """A threshold, its target, and what it does on the set it was chosen on."""

    target: str
    """The target in words, such as "FAR at most 0.01"."""
    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    far: float
    """Pooled false accept rate."""
    frr: float
    """Pooled false reject rate."""
    far_interval: Interval
    """Confidence interval of the pooled false accept rate."""
    frr_interval: Interval
    """Confidence interval of the pooled false reject rate."""
    class_far_quantiles: dict[float, float]
    """Quantiles over classes of the class FAR."""
    class_frr_quantiles: dict[float, float]
    """Quantiles over classes of the class FRR, without classes of one item."""
    share_over_target: float | None
    """Share of classes whose rate exceeds the target; None if the target is not a rate."""
    worst_classes: tuple[ClassRates, ...]
    """The classes that are farthest from the target, worst first, at most ten."""
    worst_by_far: tuple[ClassRates, ...]
    """The classes with the largest FAR, worst first, at most ten."""
    worst_by_frr: tuple[ClassRates, ...]
    """The classes with the largest FRR, worst first, at most ten."""
    promise: "Promise | None" = None
    """What the threshold promises for unseen classes, if ``promise_threshold`` chose it."""
    identification: IdentificationRates | None = None
    """What the threshold does to the probes of a gallery; None for other comparisons."""


def describe(
    evaluation: Evaluation,
    point: OperatingPoint,
    target: str,
    failure: Floats,
    over: float | None,
    intervals: tuple[Interval, Interval],
    promise: "Promise | None" = None,
) -> ThresholdChoice:
    """Describe what a threshold does; `failure` (classes,) is larger for classes that are farther from the target."""
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
        worst_by_far=worst_classes(evaluation, point, point.class_far),
        worst_by_frr=worst_classes(evaluation, point, point.class_frr),
        promise=promise,
        identification=None
        if evaluation.identification is None
        else identify(evaluation, point.distance, far_interval),
    )


def identify(evaluation: Evaluation, distance: float, like: Interval) -> IdentificationRates:
    """Return the rates of identification at a threshold, with intervals of the same confidence as another one."""
    point = evaluation.gallery.at(distance)
    fpir, fnir = identification_intervals(evaluation, distance, confidence=like.confidence)
    return IdentificationRates(fpir if evaluation.gallery.unknown else None, fnir, point.misidentified)


def rejected_share(counts: PairCounts, distance: float) -> float:
    """Compute the pooled FRR as a quotient, because one minus a quotient may round to just above the target."""
    positives = counts.positives
    accepted = float(positives.pooled_within(np.array([distance]))[0])
    return max(positives.pooled_total - accepted, 0.0) / positives.pooled_total


def share_over(rates: Floats, target: float) -> float:
    """Compute the share of classes whose rate exceeds the target, among those that have a rate."""
    known = rates[~np.isnan(rates)]
    return float((known > target + 1e-12).mean())  # more than rounding, but far less than one pair of a class


def quantiles(rates: Floats) -> dict[float, float]:
    """Compute quantiles over the classes that have a rate."""
    return dict(zip(QUANTILES, np.nanquantile(rates, QUANTILES).tolist(), strict=True))


def class_utility(counts: PairCounts, settings: Settings, point: OperatingPoint) -> Floats:
    """(classes,) the utility of each class at one threshold; NaN for a class without pairs of both kinds."""
    known = ~(np.isnan(point.class_far) | np.isnan(point.class_frr))
    false_accepts, sensitivity = point.class_far[known], 1 - point.class_frr[known]
    positives, negatives = counts.positives.totals[known], counts.negatives.totals[known]
    first = first_rate(settings.utility, sensitivity * positives, false_accepts * negatives, negatives)
    found = np.full(len(known), np.nan)
    found[known] = utility_of(first, sensitivity, settings.c)
    return found


def worst_classes(evaluation: Evaluation, point: OperatingPoint, failure: Floats) -> tuple[ClassRates, ...]:
    """Return the classes with the largest positive failure, worst first."""
    order = np.argsort(-failure, kind="stable")  # NaN comes last
    names = evaluation.names.tolist()
    return tuple(
        ClassRates(names[i], int(evaluation.sizes[i]), float(point.class_far[i]), float(point.class_frr[i]))
        for i in order[:WORST].tolist()
        if failure[i] > 0
    )
