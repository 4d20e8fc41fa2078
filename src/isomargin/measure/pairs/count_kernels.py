"""The compiled kernels that read what a pass has counted: sums over bins, lookups in lists, and counts at a few levels.

Like those of the pass (``kernels.py``), inner loops run over slices, so that the compiler vectorises them.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def sum_row(counts: NDArray[Any]) -> Any:
    """Sum the counts of a few bins."""
    total = np.int64(0)
    for b in range(counts.size):
        total += np.int64(counts[b])
    return total


@njit(nogil=True, cache=True)
def add_row(counts: NDArray[Any], pooled: NDArray[np.int64]) -> None:
    """Add the counts of one class to those of all classes."""
    for b in range(counts.size):
        pooled[b] += np.int64(counts[b])


@njit(nogil=True, cache=True)
def sum_bins(counts: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(classes,) sums of (classes, bins) counts over bins, and (bins,) sums over classes."""
    totals, pooled = np.empty(counts.shape[0], np.int64), np.zeros(counts.shape[1], np.int64)
    for i in range(counts.shape[0]):
        totals[i] = sum_row(counts[i])
        add_row(counts[i], pooled)
    return totals, pooled


@njit(nogil=True, cache=True)
def count_below(
    counts: NDArray[Any],  # (classes, bins) uint32 or int64
    offsets: NDArray[np.int64],  # (classes + 1,) where each class's lookups start
    bins: NDArray[np.int64],  # (lookups,) ascending within each class
) -> NDArray[np.int64]:
    """(lookups,) for each bin that is looked up, the number of the class's pairs in the bins before it."""
    below = np.empty(bins.size, np.int64)
    for i in range(counts.shape[0]):
        total, at = np.int64(0), 0
        for lookup in range(offsets[i], offsets[i + 1]):
            total += sum_row(counts[i, at : bins[lookup]])
            at = bins[lookup]
            below[lookup] = total
    return below


@njit(nogil=True, cache=True)
def bins_reaching(
    counts: NDArray[Any],  # (classes, bins) uint32 or int64
    wanted: NDArray[np.int64],  # (classes,) at least 1, at most the class's total
    found: NDArray[np.int64],  # (classes,) out: the first bin by whose end the class has that many pairs
    below: NDArray[np.int64],  # (classes,) out: the number of pairs before that bin
) -> None:
    """Find for each class the bin in which its number of pairs reaches the wanted count."""
    for i in range(counts.shape[0]):
        total, b = 0, 0
        while total + int(counts[i, b]) < wanted[i]:
            total += int(counts[i, b])
            b += 1
        found[i] = b
        below[i] = total


@njit(nogil=True, cache=True)
def count_within(
    listed: NDArray[Any],  # (pairs,) ascending within each class
    offsets: NDArray[np.int64],  # (classes + 1,) where each class's pairs start
    distances: NDArray[np.float64],  # (m,)
) -> NDArray[np.float64]:
    """(classes, m) number of listed pairs of each class within each distance."""
    within = np.empty((offsets.size - 1, distances.size), np.float64)
    for i in range(offsets.size - 1):
        for m in range(distances.size):
            low, high = offsets[i], offsets[i + 1]
            while low < high:
                middle = (low + high) // 2
                if listed[middle] <= distances[m]:
                    low = middle + 1
                else:
                    high = middle
            within[i, m] = low - offsets[i]
    return within


@njit(nogil=True, cache=True)
def continuous_errors(
    accepted: NDArray[np.float64],  # (positive pairs,) negatives of the class within the distance of each, ascending
    offsets: NDArray[np.int64],  # (classes + 1,) where each class's positive pairs start
    totals: NDArray[np.int64],  # (classes,) negatives of each class
    eer: NDArray[np.float64],  # (classes,) out; unchanged for classes that lack a kind of pair
    auc: NDArray[np.float64],  # (classes,) out
) -> None:
    """Compute the equal error rate of each class, as `verification.continuous_eer` does, and the area under its ROC."""
    for i in range(totals.size):
        first, positives = offsets[i], offsets[i + 1] - offsets[i]
        if positives == 0 or totals[i] == 0:
            continue
        crossed, sum_far = False, 0.0
        for m in range(positives):
            far = accepted[first + m] / totals[i]
            sum_far += far
            if not crossed and far >= 1 - (m + 1) / positives:
                crossed = True
                eer[i] = min(far, 1 - m / positives)
        auc[i] = 1 - sum_far / positives


@njit(nogil=True, cache=True)
def count_at_least(similarities: NDArray[Any], level: Any) -> int:
    """Count the similarities that are at least this high."""
    found = np.int32(0)  # 32 bits like the similarities: as many vector lanes
    for column in range(similarities.size):
        found += np.int32(similarities[column] >= level)
    return int(found)


@njit(nogil=True, cache=True)
def count_equal(classes: NDArray[np.int64], class_index: int) -> int:
    """Count the entries that are this class."""
    found = np.int64(0)
    for column in range(classes.size):
        found += np.int64(classes[column] == class_index)
    return int(found)


@njit(nogil=True, cache=True)
def count_levels(
    similarities: NDArray[Any],  # (rows, columns)
    levels: NDArray[Any],  # (levels,) descending
    row_class: NDArray[np.int64],  # (rows,)
    column_class: NDArray[np.int64],  # (columns,)
    counts: NDArray[np.int64],  # (rows, levels) out, zero before
) -> None:
    """Count for each row and level the columns of other classes that are at least that similar."""
    for row in range(similarities.shape[0]):
        for level in range(levels.size - 1, -1, -1):
            found = count_at_least(similarities[row], levels[level])
            if found == 0:
                break
            counts[row, level] = found
        if count_equal(column_class, row_class[row]) > 0:
            for column in range(column_class.size):
                if column_class[column] == row_class[row]:
                    add_to_levels(similarities[row, column], levels, -1, counts[row])


@njit(nogil=True, cache=True)
def count_class_levels(
    similarities: NDArray[Any],  # (rows, rows) of whole classes
    levels: NDArray[Any],  # (levels,) descending
    row_class: NDArray[np.int64],  # (rows,) ascending
    counts: NDArray[np.int64],  # (rows, levels) out, zero before
) -> None:
    """Count for each row and level the other rows of its class that are at least that similar."""
    start = 0
    for row in range(row_class.size):
        if row_class[row] != row_class[start]:
            start = row
        column = start
        while column < row_class.size and row_class[column] == row_class[row]:
            if column != row:
                add_to_levels(similarities[row, column], levels, 1, counts[row])
            column += 1


@njit(nogil=True, cache=True)
def add_to_levels(similarity: Any, levels: NDArray[Any], number: int, counts: NDArray[np.int64]) -> None:
    """Add a number to the counts of all levels that a similarity reaches."""
    level = levels.size - 1
    while level >= 0 and similarity >= levels[level]:
        counts[level] += number
        level -= 1
