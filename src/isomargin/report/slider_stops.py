"""The thresholds that the page's slider stops at, and how many pairs of each class every one of them accepts.

The page computes all rates from these counts, so at each stop they are those of ``Evaluation.at``: nothing is
interpolated in the browser. Where pairs are counted in bins, the stops are ends of bins, where counts are exact.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import FARTHEST, BinnedDistances, ClassDistances, Floats
from isomargin.thresholds.choose import distance_at_far, short_of_edges

PRESETS = (1e-4, 1e-3, 1e-2, 5e-2, 1e-1)
"""False accept rates that the page offers, as far as the data resolves them."""
EVEN = 150  # stops that are even in distance
ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)  # and those of round false accept rates, times a power of ten
MANY_CLASSES = 5000  # from which on there are half as many stops


@dataclass(frozen=True)
class ThresholdStops:
    """Thresholds and the pairs that each accepts."""

    distances: Floats
    """(stops,) ascending."""
    positives: NDArray[np.int64]
    """(classes, stops) accepted positive pairs."""
    negatives: NDArray[np.int64]
    """(classes, stops) accepted negative pairs."""
    presets: dict[float, int]
    """The stop of each rate of PRESETS, and of the target FAR, that the data resolves."""


def threshold_stops(evaluation: Evaluation) -> ThresholdStops:
    """Choose the stops: the presets, the range's ends, the equal error rate, and what lies between.

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
    rates = [each * 10.0**power for power in range(-6, 0) for each in ROUND[::thinner]]
    by_rate = [each for far in rates if (each := resolved(counts, round(far, 12))) is not None]
    low, high = looked_at(counts)
    wanted = np.array(
        [*np.linspace(low, high, EVEN // thinner), *evaluation.calibration_range, evaluation.eer_distance]
    )
    distances = np.unique(np.clip([*stand(counts, wanted), *by_rate, *presets.values()], 0.0, FARTHEST))
    return ThresholdStops(
        distances=distances,
        positives=accepted(counts.positives, distances),
        negatives=accepted(counts.negatives, distances),
        presets={far: int(np.searchsorted(distances, distance)) for far, distance in presets.items()},
    )


def resolved(counts: PairCounts, far: float) -> float | None:
    """Give the largest threshold whose pooled FAR does not exceed this; None where the data cannot tell."""
    try:
        return distance_at_far(counts, far)
    except InputError:
        return None


def looked_at(counts: PairCounts) -> tuple[float, float]:
    """Give the distances between which thresholds make a difference that is worth looking at."""
    positives, negatives = counts.positives, counts.negatives
    friends, strangers = positives.pooled_total, negatives.pooled_total
    low = min(positives.pooled_distance_at(friends // 1000), negatives.pooled_distance_at(strangers // 10**6))
    high = max(
        positives.pooled_distance_at(friends - friends // 1000), negatives.pooled_distance_at(strangers * 9 // 10)
    )
    return max(low, 0.0), min(high, FARTHEST)


def stand(counts: PairCounts, distances: Floats) -> Floats:
    """(m,) the nearest thresholds at which counts are exact: any where pairs are listed, else those at an edge."""
    if not isinstance(counts.negatives, BinnedDistances):
        return distances
    edges = short_of_edges(counts.negatives)
    after = np.clip(np.searchsorted(edges, distances), 1, len(edges) - 1)
    return np.where(distances - edges[after - 1] < edges[after] - distances, edges[after - 1], edges[after])


def accepted(pairs: ClassDistances, distances: Floats) -> NDArray[np.int64]:
    """(classes, stops) pairs of each class within each distance."""
    return np.rint(pairs.within(distances)).astype(np.int64)
