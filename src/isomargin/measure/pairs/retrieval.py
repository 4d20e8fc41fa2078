"""Recall@k, R-precision and MAP@R of one query, by their definitions, in float64.

The pass over all pairs counts the same from its tiles; what it cannot decide in float32 it hands over to here.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats

QUANTUM = 2.0**-42  # similarities closer than this are equal, because float64 rounding moves them by some 1e-16


class QueryRanks(NamedTuple):
    """What retrieval scores are made of, for one query."""

    nearer: int
    """Negatives strictly nearer than the nearest positive: recall@k counts the query if there are fewer than k."""
    r_precision: float
    """Share of positives among the R nearest others, R being the number of positives."""
    average_precision: float
    """(1/R) sum over i <= R of the precision at i, if the i-th nearest is a positive."""


def rank_query(positives: Floats, negatives: Floats) -> QueryRanks:
    """Rank a query's positives among all others; at equal distance positives come first.

    Args:
        positives: (R,) distances of the others of its class.
        negatives: (n - R - 1,) distances of the rest.

    >>> rank_query(np.array([0.1, 0.5]), np.array([0.3, 0.9]))
    QueryRanks(nearer=0, r_precision=0.5, average_precision=0.5)
    """
    positives = np.sort(positives)
    # Only negatives nearer than the last positive can come before one.
    negatives = np.sort(negatives[negatives < positives[-1]])
    passed = np.searchsorted(negatives, positives, side="left")
    place = np.arange(1, len(positives) + 1)
    found = place + passed <= len(positives)
    precision = (place / (place + passed))[found].sum() / len(positives)
    return QueryRanks(int(passed[0]), float(found.mean()), float(precision))


def distances_from_similarity(similarity: Floats, quantum: float) -> Floats:
    """Distances of unit vectors, in place of their similarities; those closer than the quantum become equal.

    >>> distances_from_similarity(np.array([1.0, 0.5, -1.0]), 2.0**-42)
    array([0., 1., 2.])
    """
    similarity /= quantum
    np.round(similarity, out=similarity)
    similarity *= -2 * quantum
    similarity += 2
    np.maximum(similarity, 0, out=similarity)
    distances: NDArray[np.float64] = np.sqrt(similarity, out=similarity)
    return distances
