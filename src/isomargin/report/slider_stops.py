"""The thresholds at which the slider of the report stops, and how many pairs of each class each of them accepts.

The page computes all rates from these counts, so at each stop they equal those of ``Evaluation.at``: nothing is
interpolated in the browser. Where pairs are counted in bins, the stops are edges of bins, where the counts are exact.
Only the thresholds for an FPIR, which is known from listed distances, may lie within a bin.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, ClassDistances, Floats
from isomargin.measure.pairs.rates import threshold_at_far
from isomargin.thresholds.choose import short_of_edges

PRESETS = (1e-4, 1e-3, 1e-2, 5e-2, 1e-1)
"""False accept rates offered as buttons, if the data can resolve them."""
FPIR_PRESETS = (1e-2, 5e-2, 1e-1)
"""The same for the false positive identification rates of a gallery."""
EVEN = 150  # stops at equal steps of distance
ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)  # stops at these false accept rates, times a power of ten
MANY_CLASSES = 5000  # above this there are half as many stops


@dataclass(frozen=True)
class ThresholdStops:
    """Thresholds, and how many pairs each accepts."""

    distances: Floats
    """(stops,) in ascending order."""
    positives: NDArray[np.int64]
    """(classes, stops) accepted positive pairs."""
    negatives: NDArray[np.int64]
    """(classes, stops) accepted negative pairs."""
    presets: dict[float, int]
    """The stop of each rate of PRESETS, and of the target FAR, if the data can resolve it."""
    fpir_presets: dict[float, int]
    """The stop of each rate of FPIR_PRESETS, and of the target FPIR; empty unless a gallery has unknown probes."""


def threshold_stops(evaluation: Evaluation) -> ThresholdStops:
    """Choose the stops: the presets, the ends of the calibration range, the equal error rate, and others in between.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> stops = threshold_stops(evaluation)
    >>> float(stops.distances[stops.presets[0.01]]) == im.choose_threshold(evaluation, far=0.01).distance
    True
    """
    counts, settings = evaluation.counts, evaluation.settings
    thinner = 2 if evaluation.class_count > MANY_CLASSES else 1
    presets = {}
    for far in sorted({*PRESETS, settings.target_far}):
        distance = resolved(counts, far)
        if distance is not None:
            presets[far] = distance
    by_fpir = {}
    for fpir in sorted({*FPIR_PRESETS, settings.target_fpir}):
        distance = resolved_fpir(evaluation, fpir)
        if distance is not None:
            by_fpir[fpir] = distance
    rates = [round(factor * 10.0**power, 12) for power in range(-6, 0) for factor in ROUND[::thinner]]
    by_rate = [distance for far in rates if (distance := resolved(counts, far)) is not None]
    by_round_fpir = [distance for fpir in rates if (distance := resolved_fpir(evaluation, fpir)) is not None]
    low, high = useful_range(counts)
    wanted = np.array(
        [
            *np.linspace(low, high, EVEN // thinner),
            *by_round_fpir,
            *evaluation.calibration_range,
            evaluation.eer_distance,
        ]
    )
    stops = [*exact_distances(counts, wanted), *by_rate, *presets.values(), *by_fpir.values()]
    distances = np.unique(np.clip(stops, evaluation.axis.lowest, evaluation.axis.highest))
    return ThresholdStops(
        distances=distances,
        positives=accepted(counts.positives, distances),
        negatives=accepted(counts.negatives, distances),
        presets={far: int(np.searchsorted(distances, distance)) for far, distance in presets.items()},
        fpir_presets={fpir: int(np.searchsorted(distances, distance)) for fpir, distance in by_fpir.items()},
    )


def resolved(counts: PairCounts, far: float) -> float | None:
    """Return the largest threshold whose pooled FAR is at most `far`, or None if the data cannot resolve it."""
    try:
        return threshold_at_far(counts, far, "not_exceeded")
    except InputError:
        return None


def resolved_fpir(evaluation: Evaluation, fpir: float) -> float | None:
    """Return the threshold of `Evaluation.at_fpir`, or None if there is no gallery or the data cannot resolve it."""
    gallery = evaluation.identification
    if gallery is None:
        return None
    try:
        return gallery.threshold_at_fpir(fpir, gallery.margin)
    except InputError:
        return None


def useful_range(counts: PairCounts) -> tuple[float, float]:
    """Return the range of thresholds in which almost all changes of FAR and FRR happen."""
    positives, negatives = counts.positives, counts.negatives
    positive_total, negative_total = positives.pooled_total, negatives.pooled_total
    low = min(
        positives.pooled_distance_at(positive_total // 1000), negatives.pooled_distance_at(negative_total // 10**6)
    )
    high = max(
        positives.pooled_distance_at(positive_total - positive_total // 1000),
        negatives.pooled_distance_at(negative_total * 9 // 10),
    )
    return max(low, negatives.axis.lowest), min(high, negatives.axis.highest)


def exact_distances(counts: PairCounts, distances: Floats) -> Floats:
    """(m,) the nearest thresholds at which counts are exact: any if pairs are listed, else the edges of bins."""
    if not isinstance(counts.negatives, BinnedDistances):
        return distances
    edges = short_of_edges(counts.negatives)
    after = np.clip(np.searchsorted(edges, distances), 1, len(edges) - 1)
    return np.where(distances - edges[after - 1] < edges[after] - distances, edges[after - 1], edges[after])


def accepted(pairs: ClassDistances, distances: Floats) -> NDArray[np.int64]:
    """(classes, stops) number of pairs of each class within each distance."""
    return np.rint(pairs.within(distances)).astype(np.int64)
