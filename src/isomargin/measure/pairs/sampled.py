"""The paper's protocol for large sets: all positive pairs, and for each class random negatives in proportion to them.

Use it to compare with published numbers. Counting all pairs is more accurate and no slower.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats, ListedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.retrieval import QUANTUM

MOST_PAIRS = 1 << 26  # half a gigabyte of distances
CHUNK = 1 << 22  # values of one chunk's vectors
REPEATED = 0.01  # above this share of repeated distances, they are taken to be discrete


def sample_pairs(data: ClassSortedVectors, per_positive: int, seed: int) -> PairCounts:
    """List all positive pairs, and draw ``per_positive`` negative pairs of each class per positive pair of it.

    A negative pair joins a random item of the class with a random item of another class, both drawn uniformly with
    replacement. A pair drawn for one class counts for that class only.

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
        positives.append(np.sort(distances_between(data, start + one, start + other)))
        one = start + generator.integers(0, size, total)
        other = generator.integers(0, n - size, total)
        other += np.where(other >= start, size, 0)  # skip the class itself
        negatives.append(np.sort(distances_between(data, one, other)))
    return PairCounts(join_classes(positives, data.axis), join_classes(negatives, data.axis))


def join_classes(distances: list[Floats], axis: ScoreAxis) -> ListedDistances:
    """Concatenate the classes' lists; the first list must be empty."""
    offsets = np.cumsum([len(class_distances) for class_distances in distances])
    return ListedDistances(np.concatenate(distances), offsets, appearances=1, axis=axis)


def sampled_pairs(sizes: NDArray[np.int64], per_positive: int) -> NDArray[np.int64]:
    """(classes,) number of negative pairs to draw for each class; too many to keep in memory are refused.

    >>> sampled_pairs(np.array([2, 4]), per_positive=10)
    array([10, 60])
    """
    totals = per_positive * (sizes * (sizes - 1) // 2)
    if totals.sum() > MOST_PAIRS:
        raise InputError(
            f"the sampled protocol would draw {int(totals.sum()):,} negative pairs, more than {MOST_PAIRS:,}: "
            "use pairs='all', which takes less memory"
        )
    return np.asarray(totals)


def distances_between(data: ClassSortedVectors, one: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    """(m,) distance of each pair of rows, in float64."""
    vectors, similarity = data.vectors, np.empty(len(one))
    step = max(1, CHUNK // vectors.shape[1])
    for first, last in pairwise([*range(0, len(one), step), len(one)]):
        chunk = slice(first, last)
        similarity[chunk] = np.einsum("ij,ij->i", vectors[one[chunk]], vectors[other[chunk]], dtype=np.float64)
    if data.shifts is not None:
        similarity += data.shifts[one] + data.shifts[other]
    return data.axis.distances(similarity, QUANTUM)


def repeated_share(data: ClassSortedVectors, pairs: int = 1 << 10) -> float:
    """Estimate the share of negative pairs whose distance equals another pair's: near 0 for continuous embeddings.

    Above ``REPEATED``, distances are taken to repeat (binary codes, a lattice, collapsed classes). Many pairs then lie
    exactly at the distance where a rate is reached, and bins cannot tell on which side of it they are. The sample is
    small because a larger one would contain equal distances by chance where distances are concentrated.
    """
    n = len(data.class_of)
    if n * n <= pairs:
        one, other = np.triu_indices(n, 1)
    else:
        drawn = np.sort(np.random.default_rng(0).integers(0, n, (2, pairs)), axis=0)
        one, other = np.unique(drawn, axis=1)  # each pair once
    negative = data.class_of[one] != data.class_of[other]
    distances = distances_between(data, one[negative], other[negative])
    _, counts = np.unique(np.round(distances / data.reach * 2.0**24), return_counts=True)
    return float(counts[counts > 1].sum() / max(counts.sum(), 1))
