"""Thresholds between the distances of pairs, so that rounding in a search engine does not matter."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats


def midway(ascending: Floats) -> Floats:
    """(m - 1,) the middle between each value and the next, or the value itself if floats have no number between.

    >>> midway(np.array([0.0, 1.0, 1.5, 1.5]))
    array([0.5 , 1.25, 1.5 ])
    """
    low, high = ascending[:-1], ascending[1:]
    middle = (low + high) / 2
    return np.where(middle < high, middle, low)


def next_above(ascending: NDArray[Any], value: float, axis: ScoreAxis) -> float:
    """Return the first entry above this, or the largest distance of the axis.

    >>> from isomargin.measure.pairs.axis import L2
    >>> next_above(np.array([0.1, 0.3, 0.3]), 0.1, L2), next_above(np.array([0.1]), 0.1, L2)
    (0.3, 2.0)
    """
    place = int(np.searchsorted(ascending, value, side="right"))
    return float(ascending[place]) if place < len(ascending) else axis.highest


def just_beyond(counts: PairCounts, pair: float) -> float:
    """Return the threshold that accepts a listed positive pair at this distance, and no pair that is farther.

    If negative pairs are binned, it lies just short of the next edge, because those in the same bin have no order.
    """
    positives, negatives = counts.positives, counts.negatives
    if isinstance(negatives, BinnedDistances):
        edge = next_above(negatives.edges, pair, negatives.axis)
        return max(negatives.short_of(edge), float(midway(np.array([pair, edge]))[0]))
    assert not isinstance(positives, BinnedDistances)
    beyond = min(next_above(pairs.pooled, pair, pairs.axis) for pairs in (positives, negatives))
    return float(midway(np.array([pair, beyond]))[0])
