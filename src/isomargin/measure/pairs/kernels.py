"""The compiled kernels, and nothing else: what is done with one tile of similarities, and walks over counters.

Rows are sorted by class. Index arithmetic is unsigned and inner loops run over slices, because signed indices
(which numba lets wrap around) and offset indices keep the compiler from vectorising: worth a factor of three.
No kernel takes a lock: two tiles that share a block of rows must not be counted at the same time.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# NaN and infinity are refused before the pass, so the compiler may assume that there are none.
FAST = {"nnan", "ninf", "nsz", "contract", "arcp"}


class Rows(NamedTuple):
    """The rows, sorted by class."""

    class_of: NDArray[np.int64]  # (n,)
    class_start: NDArray[np.int64]  # (classes,)
    class_end: NDArray[np.int64]  # (classes,)


class Bins(NamedTuple):
    """Counters of pairs, one row of bins for each class in each block of rows, so that a block owns its counters."""

    counters: NDArray[np.uint32]  # (counter rows * bins,)
    base: NDArray[np.uint64]  # (n,) where each row's counters start
    per_distance: np.float32  # bins a unit of distance
    last: np.float32  # the last bin's index


class Ranks(NamedTuple):
    """For each query what decides its rank: its positives' similarities and how many negatives lie nearer.

    ``similarity[offset[i]:offset[i + 1]]`` are query i's positives, nearest first; ``between[...]`` counts the
    negatives nearer than that positive but not nearer than the one before. Positives that can no longer be among
    the R nearest are dropped from the end (``alive`` counts the others), and with them the ``floor`` rises under
    which a negative changes nothing: after a few tiles hardly any negative does.
    """

    above: NDArray[np.float32]  # (n,) similarity of the nearest positive, and what float32 cannot tell apart more
    below: NDArray[np.float32]  # (n,) the same, as much less
    nearer: NDArray[np.int32]  # (n,) negatives surely nearer than that
    as_near: NDArray[np.int32]  # (n,) negatives nearer, or so close to it that float32 cannot tell
    offset: NDArray[np.int64]  # (n + 1,); equal offsets where a query's positives are not kept
    similarity: NDArray[np.float32]  # (slots,)
    between: NDArray[np.int32]  # (slots,)
    alive: NDArray[np.int32]  # (n,)
    total: NDArray[np.int32]  # (n,) negatives nearer than the last positive alive
    floor: NDArray[np.float32]  # (n,)


@njit(nogil=True, cache=True)
def read_positives(
    similarity: NDArray[np.float32],  # (rows, columns) of the tile
    first_row: int,
    first_column: int,
    rows: Rows,
    ranks: Ranks,
    listed: NDArray[np.float32],  # (positive pairs,) or empty: then they are counted in bins
    list_offset: NDArray[np.int64],  # (classes + 1,)
    bins: Bins,
) -> None:
    """Find each query's nearest positive, keep its positives where there is room, list or bin the distances."""
    for i in range(similarity.shape[0]):
        row = first_row + i
        of = rows.class_of[row]
        start = rows.class_start[of]
        size = rows.class_end[of] - start
        local = row - start
        slots = ranks.offset[row + 1] > ranks.offset[row]
        first = max(row + 1, first_column)
        for column in range(first, min(rows.class_end[of], first_column + similarity.shape[1])):
            value = similarity[i, column - first_column]
            other = column - start
            ranks.above[row] = max(ranks.above[row], value)
            ranks.above[column] = max(ranks.above[column], value)
            if slots:
                ranks.similarity[ranks.offset[row] + other - 1] = value
                ranks.similarity[ranks.offset[column] + local] = value
            if listed.size > 0:
                pair = local * (2 * size - local - 1) // 2 + other - local - 1
                listed[list_offset[of] + pair] = value
            else:
                distance = np.sqrt(max(np.float32(2) - np.float32(2) * value, np.float32(0)))
                bins.counters[bins.base[row] + np.uint64(min(distance * bins.per_distance, bins.last))] += np.uint32(1)


@njit(nogil=True, cache=True)
def arrange_positives(ranks: Ranks, tolerance: float) -> None:
    """Sort each query's positives, nearest first, and set the floor at its farthest."""
    for i in range(ranks.above.size):
        ranks.below[i] = ranks.above[i] - np.float32(tolerance)
        ranks.above[i] += np.float32(tolerance)
        first, end = ranks.offset[i], ranks.offset[i + 1]
        if end > first:
            ranks.similarity[first:end] = np.sort(ranks.similarity[first:end])[::-1] + np.float32(tolerance)
            ranks.alive[i] = end - first
            ranks.floor[i] = ranks.similarity[end - 1]


@njit(nogil=True, cache=True)
def meet_negative(i: int, value: float, ranks: Ranks) -> None:
    """Count a negative above query i's floor, and drop the positives that it pushes out of the R nearest.

    Between calls ``total`` is the number of negatives nearer than the last positive alive.
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
    ranks.floor[i] = ranks.similarity[first + alive - 1] if alive > 0 else np.float32(4)


@njit(nogil=True, fastmath=FAST, cache=True)
def bin_row(similarity: NDArray[np.float32], bins: Bins, index: NDArray[np.uint32]) -> None:
    """The bin of each similarity."""
    for j in range(similarity.size):
        distance = np.sqrt(max(np.float32(2) - np.float32(2) * similarity[j], np.float32(0)))
        index[j] = np.uint32(np.int32(min(distance * bins.per_distance, bins.last)))


@njit(nogil=True, cache=True)
def count_row(
    index: NDArray[np.uint32], base: np.uint64, column_base: NDArray[np.uint64], counters: NDArray[np.uint32]
) -> None:
    """Add a row's pairs to its own class's counters and to the columns' classes'."""
    for j in range(index.size):
        which = np.uint64(index[j])
        counters[base + which] += np.uint32(1)
        counters[column_base[j] + which] += np.uint32(1)


@njit(nogil=True, fastmath=FAST, cache=True)
def count_nearer(
    similarity: NDArray[np.float32],
    best: float,
    column_best: NDArray[np.float32],
    column_counts: NDArray[np.int32],
) -> int:
    """Count the similarities above the row's best (returned) and above the columns' (added to their counts)."""
    nearer = np.int32(0)  # 32 bits, so that it is summed in as many lanes as there are similarities
    for j in range(similarity.size):
        nearer += np.int32(similarity[j] > best)
    for j in range(similarity.size):
        column_counts[j] += np.int32(similarity[j] > column_best[j])
    return int(nearer)


@njit(nogil=True, fastmath=FAST, cache=True)
def any_above(similarity: NDArray[np.float32], floor: float, column_floor: NDArray[np.float32]) -> bool:
    """Whether any similarity reaches the row's floor or its column's."""
    above = np.int32(0)
    for j in range(similarity.size):
        above += np.int32(similarity[j] > min(floor, column_floor[j]))
    return bool(above > 0)


@njit(nogil=True, cache=True)
def count_negatives(
    similarity: NDArray[np.float32],  # (rows, columns) of the tile
    first_row: int,
    first_column: int,
    rows: Rows,
    bins: Bins,
    ranks: Ranks,
    index: NDArray[np.uint32],  # (columns,) scratch
) -> None:
    """Count a tile's negative pairs: in bins for both their classes, and for the ranks of both their ends."""
    width = similarity.shape[1]
    for i in range(similarity.shape[0]):
        row = first_row + i
        of = rows.class_of[row]
        # Columns up to the row itself are another tile's or this one's lower half; its class's are positives.
        after_self = max(row + 1 - first_column, 0)
        same_start = min(max(rows.class_start[of] - first_column, after_self), width)
        same_end = min(max(rows.class_end[of] - first_column, after_self), width)
        for part in range(2):
            a = min(after_self, width) if part == 0 else same_end
            b = same_start if part == 0 else width
            if a >= b:
                continue
            values = similarity[i, a:b]
            first, end = first_column + a, first_column + b
            bin_row(values, bins, index[: b - a])
            count_row(index[: b - a], bins.base[row], bins.base[first:end], bins.counters)
            ranks.nearer[row] += count_nearer(values, ranks.above[row], ranks.above[first:end], ranks.nearer[first:end])
            ranks.as_near[row] += count_nearer(
                values, ranks.below[row], ranks.below[first:end], ranks.as_near[first:end]
            )
            for chunk in range(0, b - a, 64):
                stop = min(chunk + 64, b - a)
                if any_above(values[chunk:stop], ranks.floor[row], ranks.floor[first + chunk : first + stop]):
                    for j in range(chunk, stop):
                        if values[j] > ranks.floor[row]:
                            meet_negative(row, values[j], ranks)
                        if values[j] > ranks.floor[first + j]:
                            meet_negative(first + j, values[j], ranks)


@njit(nogil=True, cache=True)
def score_ranks(ranks: Ranks, r_precision: NDArray[np.float64], average_precision: NDArray[np.float64]) -> None:
    """R-precision and average precision at R of each query whose positives were kept."""
    for i in range(ranks.above.size):
        first, end = ranks.offset[i], ranks.offset[i + 1]
        if end == first:
            continue
        nearer = 0
        precision = 0.0
        for m in range(ranks.alive[i]):
            nearer += ranks.between[first + m]
            precision += (m + 1) / (m + 1 + nearer)
        r_precision[i] = ranks.alive[i] / (end - first)
        average_precision[i] = precision / (end - first)


@njit(nogil=True, fastmath=FAST, cache=True)
def rank_strip(
    similarity: NDArray[np.float32],  # (queries, n): whole rows
    first_row: int,
    rows: Rows,
    positives: NDArray[np.int32],  # (fine bins,) scratch
    negatives: NDArray[np.int32],  # (fine bins,) scratch
    r_precision: NDArray[np.float64],
    average_precision: NDArray[np.float64],
) -> None:
    """The same for queries of large classes, from whole rows, each sorted into fine bins of its own."""
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
                    # Within one bin the order is unknown: the negatives are taken to lie evenly between the positives.
                    precision += (found + m + 1) / (found + m + 1 + passed + negatives[b] * (m + 0.5) / positives[b])
                hits += positives[b]
            elif positives[b] > 0:
                # The bin that the R-th neighbour is in: of its positives the expected share comes in.
                part = room * positives[b] / inside
                precision += part * (found + (part + 1) / 2) / (found + passed + (room + 1) / 2)
                hits += part
            found += positives[b]
            passed += negatives[b]
            if found + passed >= possible:
                break
        r_precision[row] = hits / possible
        average_precision[row] = precision / possible


@njit(nogil=True, cache=True)
def count_below(
    counts: NDArray[Any],  # (classes, bins) uint32 or int64
    offsets: NDArray[np.int64],  # (classes + 1,) where each class's questions start
    bins: NDArray[np.int64],  # (questions,) ascending within each class
) -> NDArray[np.int64]:
    """For each question, the class's pairs in bins before this one."""
    below = np.empty(bins.size, np.int64)
    for i in range(counts.shape[0]):
        total, at = 0, 0
        for question in range(offsets[i], offsets[i + 1]):
            for b in range(at, bins[question]):
                total += int(counts[i, b])
            at = bins[question]
            below[question] = total
    return below


@njit(nogil=True, cache=True)
def bins_reaching(
    counts: NDArray[Any],  # (classes, bins) uint32 or int64
    wanted: NDArray[np.int64],  # (classes,) at most the class's total, at least 1
    found: NDArray[np.int64],  # (classes,) out: the first bin by whose end there are so many
    below: NDArray[np.int64],  # (classes,) out: how many there are before it
) -> None:
    """For each class, the bin in which a count is reached."""
    for i in range(counts.shape[0]):
        total, b = 0, 0
        while total + int(counts[i, b]) < wanted[i]:
            total += int(counts[i, b])
            b += 1
        found[i] = b
        below[i] = total


@njit(nogil=True, cache=True)
def count_levels(
    similarities: NDArray[Any],  # (rows, columns)
    levels: NDArray[Any],  # (levels,) descending
    row_class: NDArray[np.int64],  # (rows,)
    column_class: NDArray[np.int64],  # (columns,)
    counts: NDArray[np.int64],  # (rows, levels) out
) -> None:
    """For each row, how many columns of another class are at least as similar as each level."""
    number = levels.size
    for row in range(similarities.shape[0]):
        for column in range(similarities.shape[1]):
            similarity = similarities[row, column]
            if similarity < levels[number - 1] or row_class[row] == column_class[column]:
                continue
            low, high = 0, number - 1
            while low < high:
                middle = (low + high) // 2
                if similarity >= levels[middle]:
                    high = middle
                else:
                    low = middle + 1
            counts[row, low] += 1
        for level in range(1, number):
            counts[row, level] += counts[row, level - 1]
