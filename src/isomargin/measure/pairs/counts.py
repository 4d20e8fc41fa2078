"""The results of a pass over the pairs: distances per class, and per-class sums of the retrieval scores.

Nothing after this point depends on the number of pairs: all later steps work on these arrays of classes x bins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import ClassDistances


@dataclass(frozen=True)
class PairCounts:
    """The distances of each class's positive and negative pairs, listed or binned."""

    positives: ClassDistances
    """Pairs of two items of the class, each pair counted once; an item is not paired with itself."""
    negatives: ClassDistances
    """Pairs of an item of the class and an item of another; each pair appears in both classes (in one if sampled)."""


@dataclass(frozen=True)
class RankCounts:
    """Retrieval results of single queries, summed over the queries of each class.

    Every item whose class has at least two items is a query. Among neighbours at equal distance, positives rank first.
    """

    queries: NDArray[np.int64]
    """(classes,) number of queries: the class's size, or 0 for a class of one item."""
    k: tuple[int, ...]
    """The values of k in recall@k."""
    hits: NDArray[np.int64]
    """(classes, len(k)) queries with a positive among their k nearest neighbours."""
    r_precision: NDArray[np.float64] | None
    """(classes,) sum of R-precision; None if it was not requested."""
    average_precision: NDArray[np.float64] | None
    """(classes,) sum of average precision at R; None if it was not requested."""

    @classmethod
    def from_queries(
        cls,
        class_of: NDArray[np.int64],  # (n,) ascending
        sizes: NDArray[np.int64],  # (classes,)
        k: tuple[int, ...],
        nearer: NDArray[np.int32],  # (n,) negatives nearer than the nearest positive
        r_precision: NDArray[np.float64] | None,  # (n,)
        average_precision: NDArray[np.float64] | None,  # (n,)
    ) -> "RankCounts":
        """Sum the queries' results over each class."""
        is_query = (sizes > 1)[class_of]

        def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
            weights = np.where(is_query, values, 0.0)
            return np.asarray(np.bincount(class_of, weights=weights, minlength=len(sizes)), np.float64)

        hits = [total((nearer < neighbours).astype(np.float64)) for neighbours in k]
        return cls(
            queries=np.where(sizes > 1, sizes, 0),
            k=k,
            hits=np.array(hits, np.int64).reshape(len(k), len(sizes)).T,
            r_precision=None if r_precision is None else total(r_precision),
            average_precision=None if average_precision is None else total(average_precision),
        )
