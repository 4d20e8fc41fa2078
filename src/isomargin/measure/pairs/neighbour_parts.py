"""Find the similarities of each row to its nearest rows in parts, for sets larger than memory and many machines.

A part computes tiles with the functions of ``neighbours.py`` and leaves, for each row that it touches, the largest
similarities among them. Two such lists merge to the largest of both, so the order of merging does not matter. Blocks of
rows do not depend on the plan: lists are those of one pass over the same rows, bit for bit, whatever the parts.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import digest
from isomargin.core.memory import forget_pages, read_size
from isomargin.core.text import listed_numbers, say_missing
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.neighbours import LEAST_ROOM, NOTHING, NearestLists, Singles, add_triangle, merge_sorted
from isomargin.measure.pairs.prepare import MEMORY, Prepared
from isomargin.measure.pairs.tile_sequence import TileSequence
from isomargin.measure.pairs.tiles import Progress

VERSION = 1
PROGRAM = 320 << 20  # bytes for the program itself, with scikit-learn and compiled code
Lists = dict[int, Singles]
"""By superblock: (rows, length) each row's largest similarities, largest first; ``NOTHING`` where it has fewer."""


@dataclass(frozen=True)
class NeighbourPlan(TileSequence):
    """How the search for neighbours in a prepared set is divided into parts that can be done anywhere.

    `isomargin.plan_neighbours` makes one. It is the same wherever it is made from the same folder with the same
    arguments.
    """

    prepared: Prepared
    """The embeddings."""
    parts: int
    """Number of parts, numbered from 1."""
    length: int
    """Number of similarities that each row keeps."""
    row_edges: NDArray[np.int64]
    """(superblocks + 1,) the first row of each superblock, and the number of rows."""
    memory: int
    """Bytes that the process of a part may use."""

    def __repr__(self) -> str:
        return f"<NeighbourPlan: {self.parts:,} parts of {self.tiles:,} tiles, {self.superblocks:,} superblocks>"

    @cached_property
    def block_edges(self) -> NDArray[np.int64]:
        """(superblocks + 1,) the first block of each superblock, and the number of blocks."""
        return -(-self.row_edges // tiles.TILE_ROWS)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the lists depend on: data, superblocks, number of parts, length."""
        return digest({
            "version": VERSION,
            "data": self.prepared.digest,
            "parts": self.parts,
            "length": self.length,
            "rows": self.row_edges.tolist(),
            "tile_rows": tiles.TILE_ROWS,
        })  # fmt: skip

    def rows_of(self, superblock: int) -> slice:
        """Return the rows of a superblock."""
        return slice(int(self.row_edges[superblock]), int(self.row_edges[superblock + 1]))

    def vectors_of(self, superblocks: tuple[int, ...]) -> Singles:
        """Read the rows of superblocks into memory, one after the other."""
        vectors = np.concatenate([self.prepared.vectors[self.rows_of(superblock)] for superblock in superblocks])
        forget_pages(self.prepared.vectors)
        return vectors


@dataclass(frozen=True)
class FoundNeighbours:
    """What one part, or several merged ones, have found."""

    plan: str
    """Digest of the plan."""
    numbers: tuple[int, ...]
    """The parts, ascending."""
    lists: Lists
    """The lists of the superblocks that these parts touch."""


# ----- the plan


def plan_neighbours(
    prepared: Any,
    parts: int = 1,
    *,
    neighbours: int = 100,
    skip: int = 30,
    memory: str | int = MEMORY,
    on_disk: bool = False,
) -> NeighbourPlan:
    """Divide the search for the neighbours of all rows of a prepared set, each part within ``memory``.

    Args:
        prepared: what `isomargin.prepare` returned, or its folder.
        parts: number of parts.
        neighbours: number of neighbours, as in `isomargin.Equalizer`.
        skip: number of nearest neighbours that are left out.
        memory: memory of the process that searches a part, such as ``"4GB"``.
        on_disk: whether lists are kept on disk, so that memory is needed only for those of two superblocks.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(8)[np.arange(2000) % 8], np.arange(2000) % 8).save(f"{name}/items.npy")
    ...     im.plan_neighbours(im.prepare(f"{name}/items.npy", f"{name}/prepared"), parts=3)
    <NeighbourPlan: 3 parts of 10 tiles, 2 superblocks>
    """
    if not isinstance(prepared, Prepared):
        prepared = Prepared.open(prepared)
    checks.whole(parts, "parts")
    checks.whole(neighbours, "neighbours")
    checks.whole(skip, "skip", 0)
    n, width = prepared.vectors.shape
    length, size = min(skip + neighbours, n - 1), read_size(memory)
    if parts > (most := number_of_tiles(n)):
        raise InputError(f"parts is {parts:,}: these {n:,} items have {most:,} tiles, so use at most as many parts")
    least = math.inf
    wanted = math.ceil(math.sqrt(2 * parts + 0.25) - 0.5)  # about one cell for each part
    while True:
        plan = NeighbourPlan(prepared, parts, length, cut_rows(n, wanted), size)
        needed = bytes_needed(plan, width, on_disk)
        if needed <= size:
            return plan
        least = min(least, needed)
        if plan.superblocks == number_of_blocks(n):
            raise InputError(
                f"memory is {size / 1e9:.3g} GB: finding neighbours with this plan needs at least "
                f"{least / 1e9:.3g} GB; use more memory or more parts"
            )
        wanted = wanted + wanted // 4 + 1


def number_of_blocks(rows: int) -> int:
    """Return into how many blocks rows are cut."""
    return -(-rows // tiles.TILE_ROWS)


def number_of_tiles(rows: int) -> int:
    """Return the number of tiles of the upper triangle."""
    return number_of_blocks(rows) * (number_of_blocks(rows) + 1) // 2


def cut_rows(rows: int, wanted: int) -> NDArray[np.int64]:
    """(superblocks + 1,) the first row of each superblock: about as many as wanted, of whole blocks.

    >>> cut_rows(2000, 3)
    array([   0, 1024, 2000])
    """
    blocks = -(-number_of_blocks(rows) // wanted)
    return np.append(np.arange(0, rows, blocks * tiles.TILE_ROWS), rows)


def bytes_needed(plan: NeighbourPlan, width: int, on_disk: bool) -> int:
    """Return the bytes that a part takes: two superblocks in work, and the lists of all that it touches."""
    largest = int(np.diff(plan.row_edges).max())
    room = plan.length + max(plan.length, LEAST_ROOM)
    in_work = 2 * largest * (8 * width + 4 * room + 8 * plan.length + 24)
    if on_disk:
        return PROGRAM + in_work
    touched = max(len(plan.touched_by(number)) for number in plan.numbers)
    return PROGRAM + in_work + 4 * plan.length * min(touched * largest, int(plan.row_edges[-1]))


# ----- parts


def find_neighbours(
    plan: NeighbourPlan, number: int, *, threads: int | None = None, progress: Progress | None = None
) -> FoundNeighbours:
    """Find the largest similarities of each row among the tiles of one part of a plan.

    The result depends on nothing but the plan and the number.

    Args:
        plan: what `isomargin.plan_neighbours` returned.
        number: the number of the part, from 1.
        threads: number of CPU threads; by default one per core.
        progress: a function that is called with the share of the work done.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(8)[np.arange(2000) % 8], np.arange(2000) % 8).save(f"{name}/items.npy")
    ...     plan = im.plan_neighbours(im.prepare(f"{name}/items.npy", f"{name}/prepared"), parts=3)
    ...     found = im.find_neighbours(plan, 1)
    >>> found.numbers, found.lists[0].shape
    ((1,), (1024, 130))
    """
    checks.whole(number, "number", 1, plan.parts)
    lists: Lists = {}
    add_part(plan, number, lists.get, lists.__setitem__, threads, progress)
    return FoundNeighbours(plan.digest, (number,), lists)


def find_on_disk(plan: NeighbourPlan, nearest: Singles, threads: int | None, progress: Progress | None) -> None:
    """Find the lists of all rows in a plan of one part; ``nearest`` (n, length) maps a file that keeps them."""
    there: set[int] = set()

    def load(superblock: int) -> Singles | None:
        return nearest[plan.rows_of(superblock)] if superblock in there else None

    def keep(superblock: int, lists: Singles) -> None:
        nearest[plan.rows_of(superblock)] = lists
        there.add(superblock)
        forget_pages(nearest)

    add_part(plan, 1, load, keep, threads, progress)


def add_part(
    plan: NeighbourPlan,
    number: int,
    load: Callable[[int], Singles | None],
    keep: Callable[[int, Singles], None],
    threads: int | None,
    progress: Progress | None,
) -> None:
    """Add the tiles of a part, cell by cell, to lists that are loaded and kept by superblock."""
    cells = list(plan.cells(number))
    total, done = sum(cell.end - cell.first for cell in cells), 0
    for cell in cells:
        share = (cell.end - cell.first) / total

        def report(part: float, begin: float = done / total, share: float = share) -> None:
            if progress is not None:
                progress(begin + share * part)

        superblocks = (cell.one,) if cell.one == cell.other else (cell.one, cell.other)
        # The lists so far come along: what is not above their smallest values is passed over.
        known = [nothing_yet(plan, i) if (lists := load(i)) is None else lists for i in superblocks]
        in_work = NearestLists.holding(np.concatenate(known), plan.length)
        del known
        add_triangle(plan.vectors_of(superblocks), in_work, None, threads, report, plan.tiles_of(cell))
        nearest, first = in_work.descending(threads), 0
        for superblock in superblocks:
            rows = plan.rows_of(superblock)
            keep(superblock, nearest[first : first + rows.stop - rows.start].copy())
            first += rows.stop - rows.start
        done += cell.end - cell.first


def nothing_yet(plan: NeighbourPlan, superblock: int) -> Singles:
    """(rows, length) the lists of a superblock before any tile."""
    rows = plan.rows_of(superblock)
    return np.full((rows.stop - rows.start, plan.length), NOTHING)


def merge_lists(one: Singles, other: Singles) -> Singles:
    """(rows, length) the largest similarities in two lists of each row.

    >>> merge_lists(np.array([[0.5, 0.25]], np.float32), np.array([[0.5, 0.375]], np.float32)).tolist()
    [[0.5, 0.5]]
    """
    merged = np.empty_like(one)
    merge_sorted(one, other, merged)
    return merged


def merge_found(plan: NeighbourPlan, one: FoundNeighbours, other: FoundNeighbours) -> FoundNeighbours:
    """Merge the lists of two parts, or of parts that were merged before; the order does not matter."""
    for found in (one, other):
        if found.plan != plan.digest:
            raise InputError(
                f"part {listed_numbers(found.numbers)} belongs to another plan, of other embeddings or with other "
                "settings: find its neighbours again"
            )
    if doubled := sorted(set(one.numbers) & set(other.numbers)):
        raise InputError(f"part {listed_numbers(doubled)} was given twice: give each part once")
    lists = dict(one.lists)
    for superblock, nearest in other.lists.items():
        known = lists.get(superblock)
        lists[superblock] = nearest if known is None else merge_lists(known, nearest)
    return FoundNeighbours(plan.digest, tuple(sorted(one.numbers + other.numbers)), lists)


def merge_all_found(plan: NeighbourPlan, parts: Iterable[FoundNeighbours]) -> FoundNeighbours:
    """Merge the lists of all parts; missing parts are refused by number."""
    merged = FoundNeighbours(plan.digest, (), {})
    for found in parts:
        merged = merge_found(plan, merged, found)
    check_found(plan, merged.numbers)
    return merged


def check_found(plan: NeighbourPlan, numbers: Iterable[int]) -> None:
    """Refuse parts of which some are missing."""
    if missing := sorted(set(plan.numbers) - set(numbers)):
        raise InputError(f"{say_missing(missing, plan.parts)}: find what is missing, then merge again")


def collect(plan: NeighbourPlan, merged: Callable[[int], Singles], nearest: Singles) -> None:
    """Write the merged lists of all superblocks to ``nearest`` (n, length); incomplete ones are refused."""
    for superblock in range(plan.superblocks):
        found = merged(superblock)
        if found.min() == NOTHING:
            raise InputError("the lists of the parts are incomplete: a part is damaged, find its neighbours again")
        nearest[plan.rows_of(superblock)] = found
        forget_pages(nearest)
