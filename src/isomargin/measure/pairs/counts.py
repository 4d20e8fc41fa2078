"""What a pass over the pairs leaves behind: distances per class, and per-class sums of the retrieval scores.

Everything of size pairs ends here: all later steps work on these, of size classes x bins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import ClassDistances


@dataclass(frozen=True)
class PairCounts:
    """The distances of each class's positive and negative pairs, listed or binned."""

    positives: ClassDistances
    """Pairs with both ends in the class, each once, no image with itself."""
    negatives: ClassDistances
    """Pairs with exactly one end in the class; each belongs to two classes (to one if sampled class by class)."""


@dataclass(frozen=True)
class RankCounts:
    """Sums over each class's queries of what retrieval scores are the means of.

    A query is an image whose class has another. Among neighbours equally far, positives come first.
    """

    queries: NDArray[np.int64]
    """(classes,) number of queries: the class's size, or 0 for a class of one image."""
    k: tuple[int, ...]
    """The numbers of neighbours looked at."""
    hits: NDArray[np.int64]
    """(classes, len(k)) queries with a positive among their k nearest others."""
    r_precision: NDArray[np.float64] | None
    """(classes,) sum of R-precision; None where it was not asked for."""
    average_precision: NDArray[np.float64] | None
    """(classes,) sum of average precision at R; None where it was not asked for."""

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
        """Sum each query's result over its class."""
        counted = (sizes > 1)[class_of]

        def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
            weights = np.where(counted, values, 0.0)
            return np.asarray(np.bincount(class_of, weights=weights, minlength=len(sizes)), np.float64)

        hits = [total((nearer < each).astype(np.float64)) for each in k]
        return cls(
            queries=np.where(sizes > 1, sizes, 0),
            k=k,
            hits=np.array(hits, np.int64).reshape(len(k), len(sizes)).T,
            r_precision=None if r_precision is None else total(r_precision),
            average_precision=None if average_precision is None else total(average_precision),
        )
