"""The paper's protocol for large sets: all positive pairs, and for each class random negatives in proportion to them.

For figures that are to be held against published ones; the count of all pairs is more exact and no slower to ask for.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats, ListedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.retrieval import QUANTUM, distances_from_similarity

MOST_PAIRS = 1 << 26  # half a gigabyte of distances
CHUNK = 1 << 22  # values of one chunk's vectors
REPEATED = 0.01  # share of repeated distances from which they are taken to be discrete


def sample_pairs(data: ClassSortedVectors, per_positive: int, seed: int) -> PairCounts:
    """List all positive pairs, and draw negatives of each class, ``per_positive`` for each of its positives.

    One end of a negative is uniform over the class, the other over the rest, with replacement. A pair drawn for one
    class counts for that class only.

    >>> from isomargin.measure.pairs.inputs import sort_by_class
    >>> counts = sample_pairs(sort_by_class(np.eye(4), [0, 0, 1, 1]), per_positive=10, seed=0)
    >>> counts.positives.totals, counts.negatives.totals
    (array([1, 1]), array([10, 10]))
    """
    sizes, starts, n = data.sizes, data.starts, len(data.class_of)
    totals = sampled_pairs(sizes, per_positive)
    generator = np.random.default_rng(seed)
    positives, negatives = [np.empty(0)], [np.empty(0)]
    for start, size, total in zip(starts, sizes, totals, strict=True):
        one, other = np.triu_indices(size, 1)
        positives.append(np.sort(distances_between(data.vectors, start + one, start + other)))
        one = start + generator.integers(0, size, total)
        other = generator.integers(0, n - size, total)
        other += np.where(other >= start, size, 0)  # skip the class itself
        negatives.append(np.sort(distances_between(data.vectors, one, other)))
    return PairCounts(list_each(positives), list_each(negatives))


def list_each(distances: list[Floats]) -> ListedDistances:
    """Put the lists of the classes, after an empty one, into one."""
    offsets = np.cumsum([len(each) for each in distances])
    return ListedDistances(np.concatenate(distances), offsets, appearances=1)


def sampled_pairs(sizes: NDArray[np.int64], per_positive: int) -> NDArray[np.int64]:
    """(classes,) negative pairs to draw for each class; refused where there would be too many to keep.

    >>> sampled_pairs(np.array([2, 4]), per_positive=10)
    array([10, 60])
    """
    totals = per_positive * (sizes * (sizes - 1) // 2)
    if totals.sum() > MOST_PAIRS:
        raise InputError(
            f"the sampled protocol would draw {int(totals.sum()):,} negative pairs, more than {MOST_PAIRS:,}: "
            "count all pairs, which takes less memory"
        )
    return np.asarray(totals)


def distances_between(vectors: NDArray[np.float32], one: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    """(m,) distance of each pair of rows, in float64."""
    similarity = np.empty(len(one))
    step = max(1, CHUNK // vectors.shape[1])
    for first, last in pairwise([*range(0, len(one), step), len(one)]):
        some = slice(first, last)
        similarity[some] = np.einsum("ij,ij->i", vectors[one[some]], vectors[other[some]], dtype=np.float64)
    return distances_from_similarity(similarity, QUANTUM)


def repeated_share(data: ClassSortedVectors, pairs: int = 1 << 10) -> float:
    """Share of random negative pairs whose distance is that of another: near 0 for continuous embeddings.

    Above ``REPEATED``, distances repeat (binary codes, a lattice, collapsed classes): then many pairs share the very
    distance at which a rate is reached, and bins cannot tell on which side of it they lie. More pairs would meet by
    chance where distances are concentrated.
    """
    n = len(data.class_of)
    if n * n <= pairs:
        one, other = np.triu_indices(n, 1)
    else:
        drawn = np.sort(np.random.default_rng(0).integers(0, n, (2, pairs)), axis=0)
        one, other = np.unique(drawn, axis=1)  # no pair twice
    apart = data.class_of[one] != data.class_of[other]
    distances = distances_between(data.vectors, one[apart], other[apart])
    _, counts = np.unique(np.round(distances / data.reach * 2.0**24), return_counts=True)
    return float(counts[counts > 1].sum() / max(counts.sum(), 1))
