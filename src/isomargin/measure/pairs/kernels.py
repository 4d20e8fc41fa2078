"""The compiled kernels of the pass over all pairs: counting and ranking within one tile of similarities.

Rows are sorted by class. Index arithmetic is unsigned and inner loops run over slices, because signed indices
(which numba lets wrap around) and offset indices prevent vectorisation, which costs a factor of three.
No kernel takes a lock: two tiles that share a block of rows must not be counted at the same time.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# NaN and infinity are refused before the pass, so the compiler may assume that there are none.
FAST = {"nnan", "ninf", "nsz", "contract", "arcp"}
ABOVE_ALL = np.float32(1e30)  # above every similarity, equalized or not
CHUNK = 256  # columns that are passed over together if none of them changes a rank
GROUP_ROWS = 128  # rows of a tile whose bins are held at once, 256 KB, to be counted by row and then by column


class Rows(NamedTuple):
    """The rows, sorted by class."""

    class_of: NDArray[np.int64]  # (n,)
    class_start: NDArray[np.int64]  # (classes,)
    class_end: NDArray[np.int64]  # (classes,)


class Bins(NamedTuple):
    """Counters of pairs. Each block of rows owns a separate row of bins for each of its classes."""

    counters: NDArray[np.uint32]  # (counter rows * bins,)
    base: NDArray[np.uint64]  # (n,) where each row's counters start
    lowest: np.float32  # where the first bin starts
    per_distance: np.float32  # bins per unit of distance
    last: np.float32  # the last bin's index


class Ranks(NamedTuple):
    """What decides the ranks of each query's positives: their similarities, and how many negatives are nearer.

    ``similarity[offset[i]:offset[i + 1]]`` are the similarities of query i's positives, nearest first. ``between[...]``
    counts the negatives that are nearer than that positive but not nearer than the one before it. Positives that can
    no longer be among the R nearest are dropped from the end; ``alive`` counts the remaining ones. Each drop raises
    ``floor``, the similarity below which a negative changes nothing: after a few tiles hardly any negative exceeds it.
    """

    above: NDArray[np.float32]  # (n,) similarity of the nearest positive, plus the float32 tolerance
    below: NDArray[np.float32]  # (n,) similarity of the nearest positive, minus the tolerance
    nearer: NDArray[np.int32]  # (n,) negatives certainly nearer than the nearest positive
    as_near: NDArray[np.int32]  # (n,) negatives nearer, or too close to call in float32
    offset: NDArray[np.int64]  # (n + 1,); equal offsets where a query's positives are not kept
    similarity: NDArray[np.float32]  # (slots,)
    between: NDArray[np.int32]  # (slots,)
    alive: NDArray[np.int32]  # (n,)
    total: NDArray[np.int32]  # (n,) negatives nearer than the farthest positive alive
    floor: NDArray[np.float32]  # (n,)
    limit: NDArray[np.float32]  # (n,) the lower of below and floor: no negative below it changes a rank of the query


@njit(nogil=True, fastmath=FAST, cache=True, inline="always")
def place_of(similarity: float, bins: Bins) -> Any:
    """Return the bin of a similarity, not yet rounded down; below the first bin it is 0.

    The distance is the root of 2 - 2s with its sign, because equalized similarities may exceed 1.
    """
    squared = np.float32(2) - np.float32(2) * similarity
    distance = np.copysign(np.sqrt(np.abs(squared)), squared)
    return min(max((distance - bins.lowest) * bins.per_distance, np.float32(0)), bins.last)


@njit(nogil=True, cache=True)
def read_positives(
    similarity: NDArray[np.float32],  # (rows, columns) of the tile
    first_row: int,
    first_column: int,
    rows: Rows,
    ranks: Ranks,
    listed: NDArray[np.float32],  # (positive pairs,), or empty to count them in bins instead
    list_offset: NDArray[np.int64],  # (classes + 1,)
    bins: Bins,
) -> None:
    """Find each query's nearest positive, store its positives where there is room, and list or bin the distances."""
    for i in range(similarity.shape[0]):
        row = first_row + i
        row_class = rows.class_of[row]
        start = rows.class_start[row_class]
        size = rows.class_end[row_class] - start
        local = row - start
        slots = ranks.offset[row + 1] > ranks.offset[row]
        first = max(row + 1, first_column)
        for column in range(first, min(rows.class_end[row_class], first_column + similarity.shape[1])):
            value = similarity[i, column - first_column]
            other = column - start
            ranks.above[row] = max(ranks.above[row], value)
            ranks.above[column] = max(ranks.above[column], value)
            if slots:
                ranks.similarity[ranks.offset[row] + other - 1] = value
                ranks.similarity[ranks.offset[column] + local] = value
            if listed.size > 0:
                pair = local * (2 * size - local - 1) // 2 + other - local - 1
                listed[list_offset[row_class] + pair] = value
            else:
                bins.counters[bins.base[row] + np.uint64(place_of(value, bins))] += np.uint32(1)


@njit(nogil=True, cache=True)
def arrange_positives(ranks: Ranks, tolerance: float) -> None:
    """Sort each query's positives, nearest first, and set its floor to the farthest one."""
    for i in range(ranks.above.size):
        ranks.below[i] = ranks.above[i] - np.float32(tolerance)
        ranks.above[i] += np.float32(tolerance)
        first, end = ranks.offset[i], ranks.offset[i + 1]
        if end > first:
            ranks.similarity[first:end] = np.sort(ranks.similarity[first:end])[::-1] + np.float32(tolerance)
            ranks.alive[i] = end - first
            ranks.floor[i] = ranks.similarity[end - 1]
        ranks.limit[i] = min(ranks.below[i], ranks.floor[i])


@njit(nogil=True, cache=True)
def meet_negative(i: int, value: float, ranks: Ranks) -> None:
    """Count a negative above query i's floor, and drop the positives that it pushes out of the R nearest.

    Between calls ``total`` is the number of negatives nearer than the farthest positive alive.
    """
    first = ranks.offset[i]
    possible = ranks.offset[i + 1] - first  # R
    alive = ranks.alive[i]
    slot = alive - 1
    while slot > 0 and value > ranks.similarity[first + slot - 1]:
        slot -= 1
    ranks.between[first + slot] += 1
    total = ranks.total[i] + 1
    while alive > 0 and total + alive > possible:
        total -= ranks.between[first + alive - 1]
        alive -= 1
    ranks.alive[i] = alive
    ranks.total[i] = total
    ranks.floor[i] = ranks.similarity[first + alive - 1] if alive > 0 else ABOVE_ALL
    ranks.limit[i] = min(ranks.below[i], ranks.floor[i])


@njit(nogil=True, fastmath=FAST, cache=True)
def bin_row(similarity: NDArray[np.float32], bins: Bins, index: NDArray[np.uint32]) -> None:
    """Write the bin of each similarity to ``index``."""
    for j in range(similarity.size):
        index[j] = np.uint32(np.int32(place_of(similarity[j], bins)))


@njit(nogil=True, fastmath=FAST, cache=True)
def bin_chunk(
    similarity: NDArray[np.float32],
    limit: float,
    column_limit: NDArray[np.float32],
    bins: Bins,
    index: NDArray[np.uint32],
) -> bool:
    """Write the bin of each similarity to ``index``; return whether any exceeds the row's limit or its column's.

    Both in one loop, so that the similarities are read once.
    """
    above = np.int32(0)  # 32 bits like the similarities: as many vector lanes
    for j in range(similarity.size):
        index[j] = np.uint32(np.int32(place_of(similarity[j], bins)))
        above += np.int32(similarity[j] > min(limit, column_limit[j]))
    return bool(above > 0)


@njit(nogil=True, cache=True)
def count_row(index: NDArray[np.uint32], base: np.uint64, counters: NDArray[np.uint32]) -> None:
    """Add a row's pairs to the counters of its class."""
    for j in range(index.size):
        counters[base + np.uint64(index[j])] += np.uint32(1)


@njit(nogil=True, cache=True)
def count_columns(
    index: NDArray[np.uint32],  # (GROUP_ROWS, at least width)
    begins: NDArray[np.int64],  # (rows of the group,) the first column that each row is compared with, ascending
    width: int,
    column_base: NDArray[np.uint64],  # (width,)
    counters: NDArray[np.uint32],
) -> None:
    """Add the pairs of a group of rows to the counters of the columns' classes, column by column.

    Neighbouring columns belong to the same class, whose counters then stay in the cache.
    """
    rows = 0
    for j in range(begins[0], width):
        while rows < begins.size and begins[rows] <= j:
            rows += 1
        base = column_base[j]
        for i in range(rows):
            counters[base + np.uint64(index[i, j])] += np.uint32(1)


@njit(nogil=True, fastmath=FAST, cache=True)
def count_nearer(
    similarity: NDArray[np.float32],
    above: float,
    below: float,
    column_above: NDArray[np.float32],
    column_below: NDArray[np.float32],
    column_nearer: NDArray[np.int32],
    column_as_near: NDArray[np.int32],
) -> tuple[int, int]:
    """Count the similarities above the row's two limits (returned) and above each column's (added to its counts)."""
    nearer, as_near = np.int32(0), np.int32(0)  # 32 bits like the similarities: as many vector lanes
    for j in range(similarity.size):
        nearer += np.int32(similarity[j] > above)
        as_near += np.int32(similarity[j] > below)
        column_nearer[j] += np.int32(similarity[j] > column_above[j])
        column_as_near[j] += np.int32(similarity[j] > column_below[j])
    return int(nearer), int(as_near)


@njit(nogil=True, fastmath=FAST, cache=True)
def any_above(similarity: NDArray[np.float32], limit: float, column_limit: NDArray[np.float32]) -> bool:
    """Whether any similarity exceeds the row's limit or its column's."""
    above = np.int32(0)
    for j in range(similarity.size):
        above += np.int32(similarity[j] > min(limit, column_limit[j]))
    return bool(above > 0)


@njit(nogil=True, cache=True)
def rank_chunk(similarity: NDArray[np.float32], row: int, first_column: int, ranks: Ranks) -> None:
    """Count what a few negatives of a row change in the ranks of the row and of the columns."""
    end_column = first_column + similarity.size
    nearer, as_near = count_nearer(
        similarity,
        ranks.above[row],
        ranks.below[row],
        ranks.above[first_column:end_column],
        ranks.below[first_column:end_column],
        ranks.nearer[first_column:end_column],
        ranks.as_near[first_column:end_column],
    )
    ranks.nearer[row] += nearer
    ranks.as_near[row] += as_near
    column_floor = ranks.floor[first_column:end_column]
    if any_above(similarity, ranks.floor[row], column_floor):
        for j in range(similarity.size):
            if similarity[j] > ranks.floor[row]:
                meet_negative(row, similarity[j], ranks)
            if similarity[j] > column_floor[j]:
                meet_negative(first_column + j, similarity[j], ranks)


@njit(nogil=True, cache=True)
def count_negatives(
    similarity: NDArray[np.float32],  # (rows, columns) of the tile, which does not lie below the diagonal
    first_row: int,
    first_column: int,
    rows: Rows,
    bins: Bins,
    ranks: Ranks,
    index: NDArray[np.uint32],  # (GROUP_ROWS, at least columns) scratch
) -> None:
    """Count a tile's negative pairs: in the bins of both classes, and for the ranks of both items.

    Rows are sorted by class, so the negatives of a row in the upper triangle are the columns after its class.
    """
    height, width = similarity.shape
    begins = np.empty(GROUP_ROWS, np.int64)
    for group in range(0, height, GROUP_ROWS):
        size = min(GROUP_ROWS, height - group)
        for i in range(size):
            row = first_row + group + i
            begin = min(max(rows.class_end[rows.class_of[row]] - first_column, 0), width)
            begins[i] = begin
            if begin == width:
                continue
            # Most negatives are farther than all positives that matter, and change no rank.
            for a in range(begin, width, CHUNK):
                b = min(a + CHUNK, width)
                values = similarity[group + i, a:b]
                limits = ranks.limit[first_column + a : first_column + b]
                if bin_chunk(values, ranks.limit[row], limits, bins, index[i, a:b]):
                    rank_chunk(values, row, first_column + a, ranks)
            count_row(index[i, begin:width], bins.base[row], bins.counters)
        count_columns(index, begins[:size], width, bins.base[first_column : first_column + width], bins.counters)


@njit(nogil=True, cache=True)
def score_ranks(
    offset: NDArray[np.int64],  # (n + 1,) these three as in `Ranks`
    alive: NDArray[np.int32],  # (n,)
    between: NDArray[np.int32],  # (slots,)
    r_precision: NDArray[np.float64],
    average_precision: NDArray[np.float64],
) -> None:
    """Compute R-precision and average precision at R of each query whose positives were stored."""
    for i in range(alive.size):
        first, end = offset[i], offset[i + 1]
        if end == first:
            continue
        nearer = 0
        precision = 0.0
        for m in range(alive[i]):
            nearer += between[first + m]
            precision += (m + 1) / (m + 1 + nearer)
        r_precision[i] = alive[i] / (end - first)
        average_precision[i] = precision / (end - first)


@njit(nogil=True, fastmath=FAST, cache=True)
def rank_strip(
    similarity: NDArray[np.float32],  # (queries, n) complete rows
    first_row: int,
    rows: Rows,
    positives: NDArray[np.int32],  # (fine bins,) scratch
    negatives: NDArray[np.int32],  # (fine bins,) scratch
    r_precision: NDArray[np.float64],  # (queries,) out
    average_precision: NDArray[np.float64],  # (queries,) out
) -> None:
    """Compute the same for queries of large classes, from complete rows, each sorted into its own fine bins."""
    fine = positives.size
    n = similarity.shape[1]
    for i in range(similarity.shape[0]):
        row = first_row + i
        values = similarity[i]
        start, end = rows.class_start[rows.class_of[row]], rows.class_end[rows.class_of[row]]
        values[row] = values[start] if row > start else values[start + 1]
        low, high = values[0], values[0]
        for j in range(n):
            low = min(low, values[j])
            high = max(high, values[j])
        per_unit = np.float32(fine - 1) / max(high - low, np.float32(1e-12))
        positives[:] = 0
        negatives[:] = 0
        for j in range(start, end):
            positives[np.uint64((high - values[j]) * per_unit)] += 1
        positives[np.uint64((high - values[row]) * per_unit)] -= 1  # the query itself
        for j in range(start):
            negatives[np.uint64((high - values[j]) * per_unit)] += 1
        for j in range(end, n):
            negatives[np.uint64((high - values[j]) * per_unit)] += 1
        possible = end - start - 1
        found, passed, hits, precision = 0, 0, 0.0, 0.0
        for b in range(fine):
            inside = positives[b] + negatives[b]
            room = possible - found - passed
            if inside <= room:
                for m in range(positives[b]):
                    # The order within a bin is unknown: assume that the negatives lie evenly between the positives.
                    precision += (found + m + 1) / (found + m + 1 + passed + negatives[b] * (m + 0.5) / positives[b])
                hits += positives[b]
            elif positives[b] > 0:
                # The R-th neighbour is in this bin: count the expected share of the bin's positives.
                part = room * positives[b] / inside
                precision += part * (found + (part + 1) / 2) / (found + passed + (room + 1) / 2)
                hits += part
            found += positives[b]
            passed += negatives[b]
            if found + passed >= possible:
                break
        r_precision[i] = hits / possible
        average_precision[i] = precision / possible


@njit(nogil=True, cache=True)
def merge_ranks(
    offset: NDArray[np.int64],  # (rows + 1,) as in `Ranks`
    alive: NDArray[np.int32],  # (rows,) of one part; out: of both
    between: NDArray[np.int32],  # (slots,) of one part; out: of both, and 0 for positives that are dropped
    other_alive: NDArray[np.int32],  # (rows,) of the other part
    other_between: NDArray[np.int32],  # (slots,) of the other part
) -> None:
    """Add the negatives between positives that two parts of a pass met, and drop positives as the whole pass would.

    A positive that one part dropped is out of the R nearest with more negatives too. Those that neither dropped have
    complete counts, so what remains depends on the negatives alone and not on how they were divided.
    """
    for i in range(alive.size):
        first, slots = offset[i], offset[i + 1] - offset[i]
        left = min(alive[i], other_alive[i])
        nearer = 0
        for m in range(left):
            between[first + m] += other_between[first + m]
            nearer += between[first + m]
        while left > 0 and nearer + left > slots:
            left -= 1
            nearer -= between[first + left]
        between[first + left : first + slots] = 0
        alive[i] = left


@njit(nogil=True, cache=True)
def count_sampled(
    similarity: NDArray[np.float32],  # (rows, columns)
    first_row: int,
    class_of: NDArray[np.int64],  # (n,) class of each row
    column_class: NDArray[np.int64],  # (columns,)
    bins: Bins,
) -> None:
    """Count the pairs of rows with sampled columns of other classes, for the rows' classes only."""
    for i in range(similarity.shape[0]):
        row = first_row + i
        base = bins.base[row]
        for j in range(similarity.shape[1]):
            if column_class[j] != class_of[row]:
                bins.counters[base + np.uint64(np.int32(place_of(similarity[i, j], bins)))] += np.uint32(1)
