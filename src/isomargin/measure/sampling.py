"""The paper's protocol for large sets: all positive pairs, and for each class random negatives in proportion to them.

For figures that are to be held against published ones; the count of all pairs is more exact and no slower to ask for.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isomargin.errors import InputError
from isomargin.measure.distances import ListedDistances
from isomargin.measure.inputs import ClassSortedVectors

MOST_PAIRS = 1 << 25  # as many as positives are listed; there are at least as many negatives
CHUNK = 1 << 22  # values of one chunk's vectors
REPEATED = 0.01  # share of repeated distances from which they are taken to be discrete


def sample_negatives(data: ClassSortedVectors, per_positive: int, seed: int) -> ListedDistances:
    """Draw negative pairs of each class, ``per_positive`` for each of its positive pairs, with replacement.

    One end is uniform over the class, the other over the rest. A pair drawn for one class counts for that class only.

    >>> from isomargin.measure.inputs import sort_by_class
    >>> data = sort_by_class(np.eye(4), [0, 0, 1, 1])
    >>> sample_negatives(data, per_positive=10, seed=0).totals
    array([10, 10])
    """
    sizes = data.sizes
    totals = sampled_pairs(sizes, per_positive)
    offsets = np.concatenate([[0], np.cumsum(totals)])
    distances = np.empty(offsets[-1], np.float32)
    generator = np.random.default_rng(seed)
    starts, n = data.starts, len(data.class_of)
    class_index = np.repeat(np.arange(len(sizes)), totals)
    step = max(1, CHUNK // data.vectors.shape[1])
    for first in range(0, len(class_index), step):
        of = class_index[first : first + step]
        one = starts[of] + generator.integers(0, sizes[of])
        other = generator.integers(0, n - sizes[of])
        other += np.where(other >= starts[of], sizes[of], 0)  # skip the class itself
        distances[first : first + step] = distances_between(data.vectors[one], data.vectors[other])
    for a, b in pairwise(offsets):
        distances[a:b].sort()
    return ListedDistances(distances, offsets, appearances=1)


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


def distances_between(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """(m,) distance of each row of one from the same row of the other, both of length one."""
    similarity = np.einsum("ij,ij->i", one, other, dtype=np.float64)
    return np.asarray(np.sqrt(np.maximum(2 - 2 * similarity, 0)))


def repeated_share(data: ClassSortedVectors, pairs: int = 1 << 14) -> float:
    """Share of random negative pairs whose distance is that of another: near 0 for continuous embeddings.

    Above ``REPEATED``, distances repeat (binary codes, a lattice, collapsed classes): then many pairs share the very
    distance at which a rate is reached, and bins cannot tell on which side of it they lie.
    """
    n = len(data.class_of)
    if n * n <= pairs:
        one, other = np.triu_indices(n, 1)
    else:
        drawn = np.sort(np.random.default_rng(0).integers(0, n, (2, pairs)), axis=0)
        one, other = np.unique(drawn, axis=1)  # no pair twice
    apart = data.class_of[one] != data.class_of[other]
    distances = distances_between(data.vectors[one[apart]], data.vectors[other[apart]])
    _, counts = np.unique(np.round(distances * 2.0**24), return_counts=True)
    return float(counts[counts > 1].sum() / max(counts.sum(), 1))
