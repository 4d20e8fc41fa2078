"""The paper's protocol for large sets: all positive pairs, and for each class random negatives in proportion to them.

Use it to compare with published numbers. Counting all pairs is more accurate and usually faster.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isomargin.core.memory import forget_pages
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats, ListedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.retrieval import QUANTUM
from isomargin.measure.pairs.tiles import LISTED_POSITIVES, number_of_bins

MOST_LISTED = 1 << 26  # half a gigabyte of distances; more negative pairs than this are counted in bins
BLOCK = 1 << 22  # pairs that are drawn and compared at a time
CHUNK = 1 << 22  # values of one chunk's vectors
REPEATED = 0.01  # above this share of repeated distances, they are taken to be discrete


def sample_pairs(data: ClassSortedVectors, per_positive: int, seed: int) -> PairCounts:
    """List all positive pairs, and draw ``per_positive`` negative pairs of each class per positive pair of it.

    A negative pair joins a random item of the class with a random item of another class, both drawn uniformly with
    replacement. A pair drawn for one class counts for that class only.

    Pairs are drawn and compared in blocks. Up to 2²⁶ negative pairs are listed; more are counted in bins, as when all
    pairs are counted, and more than 2²⁴ positive pairs with them. Memory beside the vectors is then at most 268 MB of
    counters on each side, however many pairs there are.

    >>> from isomargin.measure.pairs.inputs import sort_by_class
    >>> counts = sample_pairs(sort_by_class(np.eye(4), [0, 0, 1, 1]), per_positive=10, seed=0)
    >>> counts.positives.totals, counts.negatives.totals
    (array([1, 1]), array([10, 10]))
    """
    sizes, totals = data.sizes, sampled_pairs(data.sizes, per_positive)
    list_negatives = totals.sum() <= MOST_LISTED
    list_positives = list_negatives or (sizes * (sizes - 1) // 2).sum() <= LISTED_POSITIVES
    generator = np.random.default_rng(seed)
    positives = (positive_distances(data, i) for i in range(len(sizes)))
    negatives = (negative_distances(data, i, int(total), generator) for i, total in enumerate(totals))
    return PairCounts(
        list_distances(positives, data.axis) if list_positives else count_distances(positives, data),
        list_distances(negatives, data.axis) if list_negatives else count_distances(negatives, data),
    )


def positive_distances(data: ClassSortedVectors, class_index: int) -> Iterator[Floats]:
    """Yield the distances of a class's positive pairs, in blocks."""
    start, size = int(data.starts[class_index]), int(data.sizes[class_index])
    rows = max(1, BLOCK // size)
    for first in range(0, size - 1, rows):
        one, other = np.nonzero(np.arange(first, min(first + rows, size))[:, None] < np.arange(size))
        yield distances_between(data, start + first + one, start + other)


def negative_distances(
    data: ClassSortedVectors, class_index: int, total: int, generator: np.random.Generator
) -> Iterator[Floats]:
    """Yield the distances of ``total`` random negative pairs of a class, in blocks."""
    start, size, n = data.starts[class_index], data.sizes[class_index], len(data.class_of)
    for first in range(0, total, BLOCK):
        drawn = min(BLOCK, total - first)
        one = start + generator.integers(0, size, drawn)
        other = generator.integers(0, n - size, drawn)
        other += np.where(other >= start, size, 0)  # skip the class itself
        yield distances_between(data, one, other)


def list_distances(of_classes: Iterable[Iterator[Floats]], axis: ScoreAxis) -> ListedDistances:
    """Sort each class's distances, and list the classes one after the other."""
    listed = [np.sort(np.concatenate([np.empty(0), *blocks])) for blocks in of_classes]
    offsets = np.cumsum([0, *map(len, listed)])
    return ListedDistances(np.concatenate(listed), offsets, appearances=1, axis=axis)


def count_distances(of_classes: Iterable[Iterator[Floats]], data: ClassSortedVectors) -> BinnedDistances:
    """Count each class's distances in bins, as many as when all pairs are counted."""
    bins, (low, high) = number_of_bins(len(data.sizes), len(data.class_of)), data.span
    counts = np.zeros((len(data.sizes), bins), np.uint32)
    for i, blocks in enumerate(of_classes):
        row = np.zeros(bins, np.int64)
        for distances in blocks:
            places = ((distances - low) * (bins / (high - low))).astype(np.int64)
            row += np.bincount(np.clip(places, 0, bins - 1), minlength=bins)
        if row.max() >= 2**32 and counts.dtype == np.uint32:
            counts = counts.astype(np.int64)
        counts[i] = row
    return BinnedDistances.within_span(counts, data.span, data.axis, appearances=1)


def sampled_pairs(sizes: NDArray[np.int64], per_positive: int) -> NDArray[np.int64]:
    """(classes,) number of negative pairs to draw for each class.

    >>> sampled_pairs(np.array([2, 4]), per_positive=10)
    array([10, 60])
    """
    return np.asarray(per_positive * (sizes * (sizes - 1) // 2))


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
    forget_pages(data.vectors)
    _, counts = np.unique(np.round(distances / data.reach * 2.0**24), return_counts=True)
    return float(counts[counts > 1].sum() / max(counts.sum(), 1))
