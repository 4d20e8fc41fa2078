"""Recall@k, R-precision and MAP@R of one query, by their definitions, in float64.

The pass over all pairs computes the same scores from its tiles, and uses this module for the queries that float32
cannot decide.
"""

from typing import NamedTuple

import numpy as np

from isomargin.measure.pairs.distances import Floats

QUANTUM = 2.0**-42  # similarities closer than this count as equal: float64 rounding moves them by about 1e-16


class QueryRanks(NamedTuple):
    """The retrieval results of one query."""

    nearer: int
    """Negatives strictly nearer than the nearest positive; fewer than k of them make the query a hit for recall@k."""
    r_precision: float
    """Share of positives among the R nearest neighbours, where R is the number of positives."""
    average_precision: float
    """(1/R) times the sum of the precision at i, over those i <= R whose i-th nearest neighbour is a positive."""


def rank_query(positives: Floats, negatives: Floats) -> QueryRanks:
    """Rank a query's positives among all its neighbours; at equal distance positives rank first.

    Args:
        positives: (R,) distances from the query to the other items of its class.
        negatives: (n - R - 1,) distances from the query to the items of other classes.

    >>> rank_query(np.array([0.1, 0.5]), np.array([0.3, 0.9]))
    QueryRanks(nearer=0, r_precision=0.5, average_precision=0.5)
    """
    positives = np.sort(positives)
    # Only negatives nearer than the farthest positive can rank before a positive.
    negatives = np.sort(negatives[negatives < positives[-1]])
    passed = np.searchsorted(negatives, positives, side="left")
    place = np.arange(1, len(positives) + 1)
    found = place + passed <= len(positives)
    precision = (place / (place + passed))[found].sum() / len(positives)
    return QueryRanks(int(passed[0]), float(found.mean()), float(precision))
