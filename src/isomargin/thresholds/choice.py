"""``ThresholdChoice``: a threshold and what it does to the classes that it was chosen on, however it was chosen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isomargin.measure.evaluation import Evaluation, OperatingPoint
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.curves import first_rate
from isomargin.measure.scores.utility import utility as utility_of
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import Interval

if TYPE_CHECKING:
    from isomargin.thresholds.conformal import Promise

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
WORST = 10  # classes that are named


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
    """The classes that are farthest from the target, ten at most, the worst first."""
    worst_by_far: tuple[ClassRates, ...]
    """The classes of the largest FAR, ten at most, the worst first."""
    worst_by_frr: tuple[ClassRates, ...]
    """The classes of the largest FRR, ten at most, the worst first."""
    promise: "Promise | None" = None
    """What it promises of classes never seen, where it was chosen for that."""


def describe(
    evaluation: Evaluation,
    point: OperatingPoint,
    target: str,
    failure: Floats,
    over: float | None,
    intervals: tuple[Interval, Interval],
    promise: "Promise | None" = None,
) -> ThresholdChoice:
    """Assemble what a threshold does; failure (classes,) says how badly it fails each class."""
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
    )


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
