"""The similarities of each row to its nearest rows: of the same set, of another set, or of a set that grows.

One pass over tiles of the product, as in ``tiles.py``. Each row keeps a list of its largest similarities; most tiles
hold hardly any value above a row's floor, the smallest on its full list, so keeping the lists costs little.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock, local
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from isomargin.core.threads import available_cores, one_blas_thread
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.tiles import Progress, Tile, tournament

Singles = NDArray[np.float32]

NOTHING = np.float32(-1e30)  # below every similarity
CHUNK = 64  # similarities that are compared with the floors at a time
LEAST_ROOM = 32  # a list is cut to its length when it has grown by as much again, or by this


@dataclass(frozen=True)
class NearestLists:
    """The largest similarities of each row, in lists that are sorted only at the end."""

    length: int
    """Number of similarities that a row keeps."""
    values: Singles
    """(rows, room) each row's values; the first ``count`` are in use."""
    count: NDArray[np.int64]
    """(rows,) values in use."""
    floor: Singles
    """(rows,) values up to this are not among the largest."""

    @classmethod
    def empty(cls, rows: int, length: int) -> "NearestLists":
        """Return lists without a value."""
        room = length + max(length, LEAST_ROOM)
        return cls(length, np.full((rows, room), NOTHING), np.zeros(rows, np.int64), np.full(rows, NOTHING, np.float32))

    @classmethod
    def holding(cls, nearest: Singles, length: int) -> "NearestLists":
        """Return lists that hold the (rows, m) similarities found so far."""
        lists = cls.empty(len(nearest), length)
        lists.values[:, : nearest.shape[1]] = nearest
        lists.count[:] = nearest.shape[1]
        if nearest.shape[1] == length:
            lists.floor[:] = nearest.min(axis=1, initial=-NOTHING)
        return lists

    def descending(self, threads: int | None = None) -> Singles:
        """(rows, length) the largest similarities of each row, largest first."""
        nearest = np.empty((len(self.values), self.length), np.float32)

        def work(block: slice) -> None:
            sort_lists(self.values[block], self.count[block], self.length, nearest[block])

        run(work, blocks_of(len(nearest)), threads, None)
        return nearest


def nearest_in_set(
    vectors: Singles,
    length: int,
    groups: NDArray[np.int64] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Singles:
    """(n, length) similarities of each unit vector to its nearest others, largest first.

    With ``groups`` (n,), rows of the same group are not neighbours of each other; a row with fewer others than
    ``length`` has ``NOTHING`` at the end.

    >>> nearest_in_set(np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32), 2).round(2).tolist()
    [[0.6000000238418579, 0.0], [0.800000011920929, 0.0], [0.800000011920929, 0.6000000238418579]]
    """
    lists = NearestLists.empty(len(vectors), min(length, len(vectors) - 1))
    add_triangle(vectors, lists, groups, threads, progress)
    return lists.descending(threads)


def nearest_in_reference(
    queries: Singles,
    reference: Singles,
    length: int,
    excluded: NDArray[np.int64] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Singles:
    """(n, length) similarities of each query to its nearest rows of the reference, largest first.

    ``excluded`` (n,) is the row of the reference that is not a neighbour of the query, or -1.
    """
    lists = NearestLists.empty(len(queries), min(length, len(reference)))
    add_rectangle(queries, reference, lists, None, excluded, threads, progress)
    return lists.descending(threads)


def grow(
    known: Singles, known_nearest: Singles, new: Singles, length: int, threads: int | None = None
) -> tuple[Singles, Singles]:
    """Return the (rows, length) nearest similarities of the known rows and of new rows, in the set of both.

    ``known_nearest`` are those of the known rows among each other: at least ``length``, or all there are.
    """
    most = min(length, len(known) + len(new) - 1)
    old, added = NearestLists.holding(known_nearest, most), NearestLists.empty(len(new), most)
    add_rectangle(new, known, added, old, None, threads, None)
    add_triangle(new, added, None, threads, None)
    return old.descending(threads), added.descending(threads)


# ----- the passes


def blocks_of(rows: int) -> list[slice]:
    """Cut rows into blocks."""
    return [slice(first, min(first + tiles.TILE_ROWS, rows)) for first in range(0, rows, tiles.TILE_ROWS)]


def run(work: Callable[[Any], None], tasks: list[Any], threads: int | None, progress: Progress | None) -> None:
    """Run tasks on all threads, each with one BLAS thread."""
    with one_blas_thread(), ThreadPoolExecutor(threads or available_cores()) as pool:
        for done, _ in enumerate(pool.map(work, tasks), start=1):
            if progress:
                progress(done / len(tasks))


def add_triangle(
    vectors: Singles,
    lists: NearestLists,
    groups: NDArray[np.int64] | None,
    threads: int | None,
    progress: Progress | None,
    chosen: list[Tile] | None = None,
) -> None:
    """Add the similarities of each pair of rows to the lists of both; of all tiles, or of the chosen ones."""
    blocks = blocks_of(len(vectors))
    locks, scratch = [Lock() for _ in blocks], local()
    group_of = np.arange(len(vectors)) if groups is None else groups

    def work(tile: tuple[int, int]) -> None:
        one, other = tile
        rows, columns = blocks[one], blocks[other]
        similarity = product(vectors[rows], vectors[columns], scratch)
        with locks[one], nullcontext() if one == other else locks[other]:
            keep_both(similarity, rows.start, columns.start, group_of, lists.length, *parts(lists))

    run(work, list(tournament(len(blocks))) if chosen is None else chosen, threads, progress)


def add_rectangle(
    rows: Singles,
    columns: Singles,
    row_lists: NearestLists,
    column_lists: NearestLists | None,
    excluded: NDArray[np.int64] | None,
    threads: int | None,
    progress: Progress | None,
) -> None:
    """Add the similarities of rows and columns to the lists of the rows and, if given, of the columns."""
    row_blocks, column_blocks = blocks_of(len(rows)), blocks_of(len(columns))
    row_locks, column_locks = [Lock() for _ in row_blocks], [Lock() for _ in column_blocks]
    scratch = local()
    left_out = np.full(len(rows), -1) if excluded is None else excluded

    def work(tile: tuple[int, int]) -> None:
        block, other = row_blocks[tile[0]], column_blocks[tile[1]]
        similarity = product(rows[block], columns[other], scratch)
        with row_locks[tile[0]]:
            keep_rows(similarity, block.start, other.start, left_out, row_lists.length, *parts(row_lists))
        if column_lists is not None:
            with column_locks[tile[1]]:
                keep_columns(similarity, other.start, column_lists.length, *parts(column_lists))

    order = [(i, (i + step) % len(column_blocks)) for step in range(len(column_blocks)) for i in range(len(row_blocks))]
    run(work, order, threads, progress)


def parts(lists: NearestLists) -> tuple[Singles, NDArray[np.int64], Singles]:
    """Return the arrays that the kernels change."""
    return lists.values, lists.count, lists.floor


def product(rows: Singles, columns: Singles, scratch: Any) -> Singles:
    """(rows, columns) similarities, in a buffer of this thread."""
    size = len(rows) * len(columns)
    if getattr(scratch, "buffer", np.empty(0)).size < size:
        scratch.buffer = np.empty(size, np.float32)
    out: Singles = scratch.buffer[:size].reshape(len(rows), len(columns))
    return np.matmul(rows, columns.T, out=out)


# ----- the kernels


@njit(nogil=True, cache=True)
def cut(values: Singles, length: int) -> Any:
    """Move the ``length`` largest values to the front, by quickselect, and return the smallest of them."""
    left, right = 0, values.size - 1
    target = length - 1
    while left < right:
        pivot = values[(left + right) // 2]
        i, j = left, right
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if target <= j:
            right = j
        elif target >= i:
            left = i
        else:
            break
    return values[target]


@njit(nogil=True, cache=True)
def sort_lists(values: Singles, count: NDArray[np.int64], length: int, nearest: Singles) -> None:
    """Write each row's largest values to ``nearest``, largest first; ``NOTHING`` where a row has fewer."""
    for row in range(values.shape[0]):
        if count[row] > length:
            cut(values[row, : count[row]], length)
        used = min(count[row], nearest.shape[1])
        nearest[row] = NOTHING
        nearest[row, :used] = np.sort(values[row, : min(count[row], length)])[::-1][:used]


@njit(nogil=True, cache=True)
def merge_sorted(one: Singles, other: Singles, merged: Singles) -> None:
    """Write the largest values of two lists of each row to ``merged``; all lists are sorted, largest first."""
    for row in range(one.shape[0]):
        i, j = 0, 0
        for place in range(merged.shape[1]):
            if one[row, i] >= other[row, j]:
                merged[row, place] = one[row, i]
                i += 1
            else:
                merged[row, place] = other[row, j]
                j += 1


@njit(nogil=True, cache=True)
def keep(row: int, value: Any, length: int, values: Singles, count: NDArray[np.int64], floor: Singles) -> None:
    """Add a value above the row's floor to its list; a full list is cut and raises the floor."""
    number = count[row]
    values[row, number] = value
    number += 1
    if number == values.shape[1]:
        floor[row] = cut(values[row], length)
        number = length
    count[row] = number


@njit(nogil=True, fastmath={"nnan", "ninf", "nsz"}, cache=True)
def any_above(similarity: Singles, row_floor: Any, column_floor: Singles) -> bool:
    """Whether any similarity exceeds the row's floor or its column's."""
    above = np.int32(0)
    for j in range(similarity.size):
        above += np.int32(similarity[j] > min(row_floor, column_floor[j]))
    return bool(above > 0)


@njit(nogil=True, fastmath={"nnan", "ninf", "nsz"}, cache=True)
def any_above_row(similarity: Singles, row_floor: Any) -> bool:
    """Whether any similarity exceeds the row's floor."""
    above = np.int32(0)
    for j in range(similarity.size):
        above += np.int32(similarity[j] > row_floor)
    return bool(above > 0)


@njit(nogil=True, cache=True)
def keep_both(
    similarity: Singles,
    first_row: int,
    first_column: int,
    group_of: NDArray[np.int64],
    length: int,
    values: Singles,
    count: NDArray[np.int64],
    floor: Singles,
) -> None:
    """Add a tile of the upper triangle to the lists of its rows and columns; pairs of one group are left out."""
    for i in range(similarity.shape[0]):
        row = first_row + i
        for chunk in range(max(row + 1 - first_column, 0), similarity.shape[1], CHUNK):
            stop = min(chunk + CHUNK, similarity.shape[1])
            if not any_above(similarity[i, chunk:stop], floor[row], floor[first_column + chunk : first_column + stop]):
                continue
            for j in range(chunk, stop):
                column, value = first_column + j, similarity[i, j]
                if group_of[row] == group_of[column]:
                    continue
                if value > floor[row]:
                    keep(row, value, length, values, count, floor)
                if value > floor[column]:
                    keep(column, value, length, values, count, floor)


@njit(nogil=True, cache=True)
def keep_rows(
    similarity: Singles,
    first_row: int,
    first_column: int,
    excluded: NDArray[np.int64],
    length: int,
    values: Singles,
    count: NDArray[np.int64],
    floor: Singles,
) -> None:
    """Add a tile to the lists of its rows, except for the column that a row excludes."""
    for i in range(similarity.shape[0]):
        row = first_row + i
        for chunk in range(0, similarity.shape[1], CHUNK):
            stop = min(chunk + CHUNK, similarity.shape[1])
            if not any_above_row(similarity[i, chunk:stop], floor[row]):
                continue
            for j in range(chunk, stop):
                if similarity[i, j] > floor[row] and first_column + j != excluded[row]:
                    keep(row, similarity[i, j], length, values, count, floor)


@njit(nogil=True, cache=True)
def keep_columns(
    similarity: Singles, first_column: int, length: int, values: Singles, count: NDArray[np.int64], floor: Singles
) -> None:
    """Add a tile to the lists of its columns."""
    for i in range(similarity.shape[0]):
        for j in range(similarity.shape[1]):
            column = first_column + j
            if similarity[i, j] > floor[column]:
                keep(column, similarity[i, j], length, values, count, floor)
