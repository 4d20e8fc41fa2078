"""The compiled kernels of the pass over a gallery: counting one tile, and taking the best item of each class.

A tile has rows of the gallery and columns of probes. A row belongs to one class, whose counters stay in the cache while
the row is counted, and what is known about probes is read along the columns.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from isomargin.measure.pairs.kernels import FAST, Bins, bin_row

CHUNK = 64  # columns that are passed over together if none of them is among the best two


class Best(NamedTuple):
    """The best similarities of each probe to classes other than its own."""

    own: NDArray[np.float32]  # (n,) similarity to the own class, plus the float32 tolerance; above all if unknown
    nearer: NDArray[np.int32]  # (n,) rows (classes) of other classes that are nearer than the own class
    first: NDArray[np.float32]  # (n,)
    first_class: NDArray[np.int64]  # (n,)
    second: NDArray[np.float32]  # (n,)
    second_class: NDArray[np.int64]  # (n,)


class Probes(NamedTuple):
    """A block of probes, sorted by class, and the counters of their classes."""

    start: NDArray[np.int64]  # (classes,) first probe of each enrolled class, among all probes
    end: NDArray[np.int64]  # (classes,) one past the last
    base: NDArray[np.uint64]  # (probes of the block,) where the counters of each probe's class start
    counters: NDArray[np.uint32]  # (classes of the block * probe bins,)
    shift: np.uint32  # a bin of the gallery, shifted right by this, is a bin of the probes


@njit(nogil=True, cache=True)
def count_row(
    index: NDArray[np.uint32],
    base: np.uint64,
    counters: NDArray[np.uint32],
    columns: NDArray[np.uint64],
    probes: Probes,
) -> None:
    """Add a row's comparisons to the counters of its class and of the probes' classes."""
    for j in range(index.size):
        place = index[j]
        counters[base + np.uint64(place)] += np.uint32(1)
        probes.counters[columns[j] + np.uint64(place >> probes.shift)] += np.uint32(1)


@njit(nogil=True, fastmath=FAST, cache=True)
def count_nearer(similarity: NDArray[np.float32], own: NDArray[np.float32], nearer: NDArray[np.int32]) -> None:
    """Count the row for each probe to which it is nearer than the probe's own class."""
    for j in range(similarity.size):
        nearer[j] += np.int32(similarity[j] > own[j])


@njit(nogil=True, fastmath=FAST, cache=True)
def any_reaches(similarity: NDArray[np.float32], floor: NDArray[np.float32]) -> bool:
    """Whether any similarity reaches its floor."""
    reached = np.int32(0)
    for j in range(similarity.size):
        reached += np.int32(similarity[j] >= floor[j])
    return bool(reached > 0)


@njit(nogil=True, cache=True)
def precedes(value: float, its_class: int, other_value: float, other_class: int) -> bool:
    """Whether a class comes before another one: the more similar one, and the lower number among equals."""
    return bool(value > other_value or (value == other_value and its_class < other_class))


@njit(nogil=True, cache=True)
def meet(probe: int, value: float, its_class: int, best: Best) -> None:
    """Keep a similarity if its class is among the probe's best two. What is left does not depend on the order."""
    if its_class == best.first_class[probe]:
        best.first[probe] = max(best.first[probe], value)
    elif precedes(value, its_class, best.first[probe], best.first_class[probe]):
        best.second[probe] = best.first[probe]
        best.second_class[probe] = best.first_class[probe]
        best.first[probe] = value
        best.first_class[probe] = its_class
    elif its_class == best.second_class[probe]:
        best.second[probe] = max(best.second[probe], value)
    elif precedes(value, its_class, best.second[probe], best.second_class[probe]):
        best.second[probe] = value
        best.second_class[probe] = its_class


@njit(nogil=True, cache=True)
def count_tile(
    similarity: NDArray[np.float32],  # (rows, probes) of the tile
    row_class: NDArray[np.int64],  # (rows,)
    first_probe: int,
    bins: Bins,  # its base is that of the tile's rows
    probes: Probes,
    best: Best,
    index: NDArray[np.uint32],  # (probes,) scratch
) -> None:
    """Count a tile's comparisons with other classes, and keep the best two classes of each probe."""
    width = similarity.shape[1]
    for i in range(similarity.shape[0]):
        own_start = min(max(probes.start[row_class[i]] - first_probe, 0), width)
        own_end = min(max(probes.end[row_class[i]] - first_probe, 0), width)
        for part in range(2):
            a = 0 if part == 0 else own_end
            b = own_start if part == 0 else width
            if a >= b:
                continue
            values = similarity[i, a:b]
            first, end = first_probe + a, first_probe + b
            bin_row(values, bins, index[: b - a])
            count_row(index[: b - a], bins.base[i], bins.counters, probes.base[a:b], probes)
            count_nearer(values, best.own[first:end], best.nearer[first:end])
            for chunk in range(0, b - a, CHUNK):
                stop = min(chunk + CHUNK, b - a)
                if any_reaches(values[chunk:stop], best.second[first + chunk : first + stop]):
                    for j in range(chunk, stop):
                        meet(first + j, values[j], row_class[i], best)


@njit(nogil=True, fastmath=FAST, cache=True)
def raise_to(best: NDArray[np.float32], similarity: NDArray[np.float32]) -> None:
    """Raise each value to the other one, where that is larger."""
    for j in range(best.size):
        best[j] = max(best[j], similarity[j])


@njit(nogil=True, cache=True)
def best_of_class(
    similarity: NDArray[np.float32],  # (items, probes) of the tile
    place: NDArray[np.int64],  # (items,) row of each item's class in the result
    best: NDArray[np.float32],  # (classes, probes)
) -> None:
    """Raise the best similarity of each probe to each class to that of the class's items."""
    for i in range(similarity.shape[0]):
        raise_to(best[place[i]], similarity[i])
