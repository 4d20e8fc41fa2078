"""The compiled kernels of the pass over a gallery: counting one tile, and taking the best item of each class."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from isomargin.measure.pairs.kernels import FAST, Bins, bin_row

CHUNK = 64  # columns that are passed over together if none of them is among the best two


class Best(NamedTuple):
    """The best similarities of each probe to classes other than its own."""

    own: NDArray[np.float32]  # (n,) similarity to the own class, plus the float32 tolerance; infinite if unknown
    nearer: NDArray[np.int64]  # (n,) columns of other classes that are nearer than the own class
    first: NDArray[np.float32]  # (n,)
    first_class: NDArray[np.int64]  # (n,)
    second: NDArray[np.float32]  # (n,)
    second_class: NDArray[np.int64]  # (n,)


@njit(nogil=True, cache=True)
def count_row(
    index: NDArray[np.uint32],
    column_base: NDArray[np.uint64],
    counters: NDArray[np.uint32],
    probe_counts: NDArray[np.uint32],
    per_probe_bin: np.uint32,
) -> None:
    """Add a probe's comparisons to the counters of the columns' classes and of its own class."""
    for j in range(index.size):
        place = index[j]
        counters[column_base[j] + np.uint64(place)] += np.uint32(1)
        probe_counts[place // per_probe_bin] += np.uint32(1)


@njit(nogil=True, fastmath={"nnan", "nsz", "contract", "arcp"}, cache=True)
def count_nearer(similarity: NDArray[np.float32], own: float) -> int:
    """Count the similarities above the own one."""
    nearer = np.int32(0)
    for j in range(similarity.size):
        nearer += np.int32(similarity[j] > own)
    return int(nearer)


@njit(nogil=True, fastmath=FAST, cache=True)
def any_above(similarity: NDArray[np.float32], floor: float) -> bool:
    """Whether any similarity exceeds the floor."""
    above = np.int32(0)
    for j in range(similarity.size):
        above += np.int32(similarity[j] > floor)
    return bool(above > 0)


@njit(nogil=True, cache=True)
def meet(row: int, value: float, its_class: int, best: Best) -> None:
    """Keep a similarity if its class is among the best two."""
    if value > best.first[row]:
        if its_class != best.first_class[row]:
            best.second[row] = best.first[row]
            best.second_class[row] = best.first_class[row]
            best.first_class[row] = its_class
        best.first[row] = value
    elif value > best.second[row] and its_class != best.first_class[row]:
        best.second[row] = value
        best.second_class[row] = its_class


@njit(nogil=True, cache=True)
def count_tile(
    similarity: NDArray[np.float32],  # (probes, columns) of the tile
    first_probe: int,
    first_column: int,
    probe_class: NDArray[np.int64],  # (n,)
    column_class: NDArray[np.int64],  # (all columns,)
    column_start: NDArray[np.int64],  # (classes,) first column of each class
    column_end: NDArray[np.int64],  # (classes,) one past the last
    bins: Bins,  # its base is that of the tile's columns
    best: Best,
    index: NDArray[np.uint32],  # (columns,) scratch
    place: NDArray[np.int64],  # (probes,) place of each probe's class in probe_counts
    probe_counts: NDArray[np.uint32],  # (classes of these probes, probe bins)
    per_probe_bin: int,
) -> None:
    """Count a tile's comparisons with other classes, and keep the best two classes of each probe."""
    width = similarity.shape[1]
    for i in range(similarity.shape[0]):
        row = first_probe + i
        own_start, own_end = width, width
        if probe_class[row] < column_start.size:
            own_start = min(max(column_start[probe_class[row]] - first_column, 0), width)
            own_end = min(max(column_end[probe_class[row]] - first_column, 0), width)
        for part in range(2):
            a = 0 if part == 0 else own_end
            b = own_start if part == 0 else width
            if a >= b:
                continue
            values = similarity[i, a:b]
            bin_row(values, bins, index[: b - a])
            count_row(index[: b - a], bins.base[a:b], bins.counters, probe_counts[place[i]], np.uint32(per_probe_bin))
            best.nearer[row] += count_nearer(values, best.own[row])
            for chunk in range(0, b - a, CHUNK):
                stop = min(chunk + CHUNK, b - a)
                if any_above(values[chunk:stop], best.second[row]):
                    for j in range(chunk, stop):
                        meet(row, values[j], column_class[first_column + a + j], best)


@njit(nogil=True, cache=True)
def best_of_class(
    similarity: NDArray[np.float32],  # (probes, items) of the tile
    place: NDArray[np.int64],  # (items,) column of each item's class, ascending
    best: NDArray[np.float32],  # (probes, classes)
) -> None:
    """Raise the best similarity of each probe to each class to that of the class's items."""
    items = place.size
    for i in range(similarity.shape[0]):
        j = 0
        while j < items:
            column = place[j]
            value = best[i, column]
            while j < items and place[j] == column:
                value = max(value, similarity[i, j])
                j += 1
            best[i, column] = value
