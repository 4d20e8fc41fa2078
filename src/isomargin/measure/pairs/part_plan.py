"""The plan of a pass over all pairs in parts: which tiles each part counts, and how much memory that takes.

Rows are cut into superblocks that end where classes end, and superblocks into blocks. A part is a run of consecutive
tiles in the sequence of ``tile_sequence.py``.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import digest
from isomargin.core.memory import forget_pages, read_size
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.inputs import ClassSortedVectors, Shifts
from isomargin.measure.pairs.prepare import MEMORY, WORKING, Prepared
from isomargin.measure.pairs.row_ranks import large_strips
from isomargin.measure.pairs.row_shifts import EqualizesRows, RowShifts, row_shifts
from isomargin.measure.pairs.stratified import columns_for
from isomargin.measure.pairs.tile_sequence import TileSequence
from isomargin.measure.pairs.tiles import Layout, number_of_bins
from isomargin.measure.settings import Settings

VERSION = 2
HELD = 4  # superblocks' worth of memory in a part: two are counted, and the counts of two more wait to be merged
ROW_BYTES = 72  # of labels and ranks of a row, without the slots of its positives
SHIFT_BYTES = 20  # of the shift of a row, in float64 and float32


@dataclass(frozen=True)
class PartPlan(TileSequence):
    """How the pairs of a prepared set are divided into parts that can be counted anywhere.

    `isomargin.plan_parts` makes one. It is the same wherever it is made from the same folder with the same arguments.
    """

    FORMAT: ClassVar[str] = "isomargin part"
    prepared: Prepared
    """The embeddings."""
    parts: int
    """Number of parts, numbered from 1."""
    map_at_r: bool
    """Whether R-precision and MAP@R are computed."""
    class_edges: NDArray[np.int64]
    """(superblocks + 1,) the first class of each superblock, and the number of classes."""
    layout: Layout
    """Blocks, bins and what is listed, for all rows. No block belongs to two superblocks."""
    memory: int
    """Bytes that the process of a part may use."""
    columns: int | None = None
    """Number of sampled items that each block of rows is compared with; None if all pairs are counted."""
    seed: int = 0
    """Seed of that sample."""
    equalizer: RowShifts | None = None
    """What an equalizer adds to similarities; None if they are cosines."""

    def __repr__(self) -> str:
        tiles = "tiles" if self.columns is None else "blocks"
        return f"<PartPlan: {self.parts:,} parts of {self.tiles:,} {tiles}, {self.superblocks:,} superblocks>"

    @cached_property
    def row_edges(self) -> NDArray[np.int64]:
        """(superblocks + 1,) the first row of each superblock, and the number of rows."""
        ends = np.concatenate([[0], np.cumsum(self.prepared.sizes)])
        return np.asarray(ends[self.class_edges])

    @cached_property
    def block_edges(self) -> NDArray[np.int64]:
        """(superblocks + 1,) the first block of each superblock, and the number of blocks."""
        return np.searchsorted(self.layout.edges, self.row_edges)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the counts depend on: data, superblocks, bins, number of parts."""
        return digest({
            "version": VERSION,
            "data": self.prepared.digest,
            "parts": self.parts,
            "map_at_r": self.map_at_r,
            "columns": self.columns,
            "seed": self.seed,
            "classes": self.class_edges.tolist(),
            "blocks": self.layout.edges.tolist(),
            "bins": self.layout.bins,
            "span": list(self.layout.span),
            "list_positives": self.layout.list_positives,
            "ranked_class": tiles.RANKED_CLASS,
            **({} if self.equalizer is None else {"equalizer": self.equalizer.digest}),
        })  # fmt: skip

    # ----- rows

    @property
    def shifts(self) -> Shifts | None:
        """What is added to similarities."""
        return None if self.equalizer is None else self.equalizer.shifts

    def data(self) -> ClassSortedVectors:
        """Return all rows, with their shifts; the vectors stay on disk."""
        return self.prepared.data(self.shifts)

    def section(self, superblocks: tuple[int, ...]) -> tuple[ClassSortedVectors, Layout]:
        """Return the rows of superblocks, read into memory one after the other, and their blocks."""
        spans = [(int(self.row_edges[i]), int(self.row_edges[i + 1])) for i in superblocks]
        sizes = np.concatenate([self.sizes_of(i) for i in superblocks])
        vectors = np.concatenate([self.prepared.vectors[first:end] for first, end in spans])
        forget_pages(self.prepared.vectors)
        edges, before = [np.zeros(1, np.int64)], 0
        for i, (first, end) in zip(superblocks, spans, strict=True):
            own = self.layout.edges[self.block_edges[i] + 1 : self.block_edges[i + 1] + 1]
            edges.append(own - first + before)
            before += end - first
        layout = Layout(np.concatenate(edges), self.layout.bins, self.layout.span, self.layout.list_positives)
        class_of, names = np.repeat(np.arange(len(sizes)), sizes), np.arange(len(sizes))
        if self.shifts is None:
            return ClassSortedVectors(vectors, class_of, sizes, names, ()), layout
        values = np.concatenate([self.shifts.values[first:end] for first, end in spans])
        return ClassSortedVectors(vectors, class_of, sizes, names, (), values, self.shifts.axis), layout

    def sizes_of(self, superblock: int) -> NDArray[np.int64]:
        """(classes of the superblock,) their sizes."""
        return self.prepared.sizes[self.class_edges[superblock] : self.class_edges[superblock + 1]]

    def slots_of(self, superblock: int) -> NDArray[np.int64]:
        """(rows + 1,) where the positives of each row of a superblock start, as in `kernels.Ranks`."""
        return slot_offsets(self.sizes_of(superblock), self.map_at_r)

    @cached_property
    def strips(self) -> list[tuple[int, int]]:
        """Strips of complete rows for the queries of large classes, over which a part ranks its share of them."""
        return large_strips(self.prepared.data(), tiles.RANKED_CLASS) if self.map_at_r else []

    def strips_of(self, number: int) -> list[tuple[int, int]]:
        """List the strips of a part."""
        begin, end = (len(self.strips) * at // self.parts for at in (number - 1, number))
        return self.strips[begin:end]


def slot_offsets(sizes: NDArray[np.int64], map_at_r: bool) -> NDArray[np.int64]:
    """(rows + 1,) where the positives of each row start, if those of classes that are not too large are kept."""
    kept = np.where((sizes <= tiles.RANKED_CLASS) & map_at_r, sizes - 1, 0)
    return np.concatenate([[0], np.cumsum(np.repeat(kept, sizes))])


def plan_parts(
    prepared: Any,
    parts: int = 1,
    *,
    memory: str | int = MEMORY,
    map_at_r: bool = True,
    columns: int | None = None,
    seed: int = 0,
    equalizer: EqualizesRows | RowShifts | None = None,
) -> PartPlan:
    """Divide the pairs of a prepared set into parts, each of which needs at most ``memory``.

    Args:
        prepared: what `isomargin.prepare` returned, or its folder.
        parts: number of parts.
        memory: memory of the process that counts a part, such as ``"4GB"``. With one part, that process also holds the
            counts of all classes.
        map_at_r: whether to compute R-precision and MAP@R.
        columns: number of random items with which each item is compared, instead of all; there are no ranks then.
        seed: seed of these random items.
        equalizer: a fitted `isomargin.Equalizer`, to count equalized similarities instead of cosines. Its shifts of all
            rows are found here; rows that are not those of its reference are compared with the whole reference.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(8)[np.arange(2000) % 8], np.arange(2000) % 8).save(f"{name}/items.npy")
    ...     im.plan_parts(im.prepare(f"{name}/items.npy", f"{name}/prepared"), parts=3)
    <PartPlan: 3 parts of 10 tiles, 2 superblocks>
    """
    if not isinstance(prepared, Prepared):
        prepared = Prepared.open(prepared)
    checks.whole(parts, "parts")
    if columns is not None:
        checks.whole(columns, "columns")
        map_at_r = False
        if columns > len(prepared.vectors) // 2:
            raise InputError(
                f"the stated error needs {columns:,} sampled items for each class, and there are "
                f"{len(prepared.vectors):,} in all: count all pairs, or allow a larger relative_error"
            )
    sizes, width = prepared.sizes, prepared.vectors.shape[1]
    n = len(prepared.vectors)
    bins = number_of_bins(len(sizes), n)
    listed = int((sizes * (sizes - 1) // 2).sum()) <= tiles.LISTED_POSITIVES
    shifts = None if equalizer is None else row_shifts(prepared, equalizer)
    shift_bytes = 0 if shifts is None else SHIFT_BYTES * sizes
    per_class = class_bytes(sizes, width, bins, listed, map_at_r) + shift_bytes
    room = read_size(memory) - WORKING
    held = 0 if parts > 1 else count_bytes(sizes, bins, listed, map_at_r) + int(np.sum(shift_bytes))
    room -= held
    limit = room // HELD
    if (most := int(per_class.max())) > limit:
        needed = WORKING + HELD * most + held
        raise InputError(
            f"memory is {read_size(memory) / 1e9:.3g} GB: this plan needs at least {needed / 1e9:.3g} GB, because a "
            f"class of {int(sizes[int(per_class.argmax())]):,} items is counted as a whole"
            + (" and one process holds the counts of all classes" if parts == 1 else "")
        )
    by_parts = parts if columns is not None else math.ceil(math.sqrt(2 * parts + 0.25) - 0.5)  # about one cell each
    class_edges = cut_classes(sizes, per_class, limit, by_parts)
    edges = block_edges(np.concatenate([[0], np.cumsum(sizes)])[class_edges])
    span = prepared.data(None if shifts is None else shifts.shifts).span
    layout = Layout(edges, bins, span, listed)
    plan = PartPlan(prepared, parts, map_at_r, class_edges, layout, read_size(memory), columns, seed, shifts)
    if parts > plan.tiles:
        raise InputError(
            f"parts is {parts:,}: these {n:,} items have {plan.tiles:,} blocks or tiles, so use at most as many parts"
        )
    return plan


def plan_for(
    prepared: Prepared, parts: int, memory: str | int, settings: Settings, equalizer: RowShifts | None = None
) -> PartPlan:
    """Divide the pairs that the settings of an evaluation ask for."""
    shared: dict[str, Any] = {"memory": memory, "equalizer": equalizer}
    if settings.pairs != "stratified":
        return plan_parts(prepared, parts, map_at_r=settings.map_at_r, **shared)
    columns = columns_for(settings.target_far, settings.relative_error)
    return plan_parts(prepared, parts, map_at_r=False, columns=columns, seed=settings.seed, **shared)


def class_bytes(sizes: NDArray[np.int64], width: int, bins: int, listed: bool, map_at_r: bool) -> NDArray[np.int64]:
    """(classes,) bytes that each class takes while it is counted: vectors, ranks, counters and listed positives."""
    counters = (2 + sizes // tiles.TILE_ROWS) * bins * 4
    positives = sizes * (sizes - 1) // 2 * 4 if listed else counters
    slots = np.where((sizes <= tiles.RANKED_CLASS) & map_at_r, sizes - 1, 0) * sizes
    return np.asarray(sizes * (4 * width + ROW_BYTES) + 8 * slots + counters + positives, np.int64)


def count_bytes(sizes: NDArray[np.int64], bins: int, listed: bool, map_at_r: bool) -> int:
    """Return the bytes of the counts of all classes, with what is needed to rank all rows."""
    slots = np.where((sizes <= tiles.RANKED_CLASS) & map_at_r, sizes - 1, 0) * sizes
    wide = 8 if int(sizes.max()) * int(sizes.sum()) >= 2**32 else 4
    positives = int((sizes * (sizes - 1) // 2).sum()) * 4 if listed else len(sizes) * bins * wide
    return len(sizes) * bins * wide + positives + 44 * int(sizes.sum()) + 4 * int(slots.sum())


def cut_classes(sizes: NDArray[np.int64], per_class: NDArray[np.int64], limit: int, wanted: int) -> NDArray[np.int64]:
    """(superblocks + 1,) the first class of each superblock: about as many as wanted, and none above the limit.

    >>> cut_classes(np.full(6, 1000), np.full(6, 10), limit=40, wanted=2)
    array([0, 3, 6])
    >>> cut_classes(np.full(6, 1000), np.full(6, 10), limit=20, wanted=2)
    array([0, 2, 4, 6])
    """
    target = max(-(-int(sizes.sum()) // wanted), tiles.TILE_ROWS)
    row_ends, byte_ends = np.cumsum(sizes), np.cumsum(per_class)
    edges = [0]
    while edges[-1] < len(sizes):
        first = edges[-1]
        rows, size = (int(ends[first - 1]) if first else 0 for ends in (row_ends, byte_ends))
        by_rows = int(np.searchsorted(row_ends, rows + target, side="left")) + 1
        by_bytes = int(np.searchsorted(byte_ends, size + limit, side="right"))
        edges.append(min(max(first + 1, min(by_rows, by_bytes)), len(sizes)))
    return np.array(edges, np.int64)


def block_edges(row_edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """(blocks + 1,) where each block starts: blocks of 512 rows from the start of each superblock.

    >>> block_edges(np.array([0, 700, 1000]))
    array([   0,  512,  700, 1000])
    """
    starts = [np.arange(first, end, tiles.TILE_ROWS) for first, end in pairwise(row_edges.tolist())]
    return np.concatenate([*starts, row_edges[-1:]])
