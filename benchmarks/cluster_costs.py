"""What counting in parts costs: time, bytes and memory of every part, of preparing, and of what follows merging.

Parts are those of the project's own plan (`plan_parts`), of rows that need not exist. What a tile, a row and a byte
cost is in `Costs`, measured by ``measure_parts.py``.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.part_plan import HELD, PartPlan, class_bytes, count_bytes, plan_parts
from isomargin.measure.pairs.prepare import WORKING, Prepared
from isomargin.measure.pairs.tile_sequence import Cell

TILE = tiles.TILE_ROWS**2
GRID = 101
SCORE_BYTES = 50 * GRID  # of a class, while scores are computed


@dataclass(frozen=True)
class Costs:
    """Seconds of one core, measured on an AMD EPYC (Zen 5) by ``measure_parts.py``."""

    tile: dict[int, float] = field(default_factory=lambda: {256: 1.65e-3, 512: 2.90e-3})
    """By width: for 512 x 512 pairs."""
    sampled: dict[int, float] = field(default_factory=lambda: {256: 1.73e-3, 512: 2.99e-3})
    """By width: for 512 x 512 sampled pairs."""
    row: dict[int, float] = field(default_factory=lambda: {256: 4.0e-6, 512: 5.0e-6})
    """By width: for a row that is brought into a cell, with its positives."""
    counter: float = 2.3e-9
    """For a byte of counters of a cell, which are cleared and added up."""
    merge: float = 0.06e-9
    """For a byte of counts that is merged."""
    write: float = 4.9e-9
    """For a byte of counts that is compressed into the file of a part; one thread."""
    file_share: float = 0.2
    """Bytes of such a file for a byte of counts."""
    prepare: float = 3.3e-9
    """For a byte of vectors that are sorted, without reading and writing them; one process."""
    finish_row: float = 3.7e-6
    """For a row after merging; on the driver."""
    finish_class: float = 15e-6
    """For a class after merging."""
    noise_row: float = 16e-6
    """For a row whose item noise is measured; threads share it, which is left out here."""
    torch_ratio: dict[int, float] = field(default_factory=lambda: {256: 9.9, 512: 6.6})
    """By width: the torch pass on one core in units of its product."""
    torch_bytes: float = 240.0
    """Bytes that the operations of the torch pass read and write for a pair; counted by hand, not measured."""


@dataclass(frozen=True)
class Job:
    """What is to be counted."""

    items: int
    class_size: int = 20
    width: int = 512
    map_at_r: bool = True
    columns: int | None = None
    """Sampled items that each block is compared with; None for all pairs."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of all vectors."""
        return 4 * self.width * self.items

    def prepared(self) -> Prepared:
        """Return rows that need no memory, for the plan."""
        sizes = np.full(max(2, self.items // self.class_size), self.class_size)
        rows = np.broadcast_to(np.float32(0), (int(sizes.sum()), self.width))
        return Prepared(Path("planned"), rows, sizes, np.arange(len(sizes)), (), 2.0, "", "")


# ----- the parts of a plan


@dataclass(frozen=True)
class Part:
    """What counting a part takes."""

    core_seconds: float
    """Time of one core; threads share it."""
    read: tuple[int, ...]
    """Superblocks in the order in which they are read; some of them several times."""
    touched: tuple[int, ...]
    """Superblocks of which counts are left."""
    sampled_bytes: float = 0.0
    """Bytes of sampled rows, which lie anywhere."""


@dataclass(frozen=True)
class Work:
    """All parts of a plan."""

    parts: tuple[Part, ...]
    vector_bytes: tuple[float, ...]
    """Of the vectors of each superblock."""
    count_bytes: tuple[float, ...]
    """Of the counts of each superblock that a part leaves, without positive pairs."""
    positive_bytes: float = 0.0
    """Of all positive pairs, each of which one part leaves."""
    worker_memory: float = 0.0
    driver_memory: float = 0.0

    @property
    def core_seconds(self) -> float:
        """Time of one core for all parts."""
        return sum(part.core_seconds for part in self.parts)

    @property
    def merged_bytes(self) -> float:
        """Bytes of one set of counts."""
        return sum(self.count_bytes) + self.positive_bytes


@cache
def prepared_for(job: Job) -> Prepared:
    """Return the rows of a job, made once."""
    return job.prepared()


def work_of(job: Job, parts: int, memory: float, costs: Costs) -> Work:
    """Plan a job, and compute what each of its parts takes."""
    prepared = prepared_for(replace(job, map_at_r=True, columns=None))
    plan = plan_parts(prepared, parts, memory=int(memory), map_at_r=job.map_at_r, columns=job.columns)
    rows, blocks = np.diff(plan.row_edges), np.diff(plan.block_edges)
    sizes, bins, listed = prepared.sizes, plan.layout.bins, plan.layout.list_positives
    per_row = costs.row[job.width] + costs.counter * 4 * bins / job.class_size
    each = [part_of(plan, job, number, rows, blocks, per_row, costs) for number in plan.numbers]
    classes = np.diff(plan.class_edges)
    wide = 8 if job.class_size * len(prepared.vectors) >= 2**32 else 4
    slots = (job.class_size - 1) * (plan.map_at_r and job.class_size <= tiles.RANKED_CLASS)
    per_class = int(class_bytes(sizes[:1], job.width, bins, listed, plan.map_at_r)[0])
    driver = count_bytes(sizes, bins, listed, plan.map_at_r) + SCORE_BYTES * len(sizes)
    return Work(
        tuple(each),
        tuple((4.0 * job.width * rows).tolist()),
        tuple((classes * bins * wide + rows * (12.0 + 4 * slots)).tolist()),
        float(len(sizes)) * (job.class_size * (job.class_size - 1) * 2 if listed else bins * wide),
        WORKING + HELD * per_class * int(classes.max()),
        WORKING + driver,
    )


def part_of(
    plan: PartPlan,
    job: Job,
    number: int,
    rows: NDArray[np.int64],
    blocks: NDArray[np.int64],
    per_row: float,
    costs: Costs,
) -> Part:
    """Compute what a part of a plan takes; ``rows`` and ``blocks`` are those of each superblock."""
    seconds, read, sampled = 0.0, [], 0.0
    for cell in plan.cells(number):
        here = (cell.one,) if cell.one == cell.other else (cell.one, cell.other)
        read.extend(here)
        seconds += per_row * int(rows[list(here)].sum())
        if plan.columns is None:
            seconds += costs.tile[job.width] * full_tiles(cell, rows, blocks)
        else:
            share = cell.end - cell.first
            pairs = share / int(blocks[cell.one]) * int(rows[cell.one]) * plan.columns
            seconds += costs.sampled[job.width] * pairs / TILE
            sampled += share * plan.columns * 4.0 * job.width
    return Part(seconds, tuple(read), tuple(sorted(set(read))), sampled)


def full_tiles(cell: Cell, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> float:
    """Return the pairs of a cell's tiles in units of 512 x 512; the last block of a superblock is seldom full."""
    share, one, other = cell.end - cell.first, cell.one, cell.other
    if one == other:  # tiles of a block with itself are computed whole
        there = int(blocks[one]) * (int(blocks[one]) + 1) / 2
        return share / there * int(rows[one]) * (int(rows[one]) + tiles.TILE_ROWS) / 2 / TILE
    return share / int(blocks[one] * blocks[other]) * int(rows[one] * rows[other]) / TILE


# ----- before and after


def prepare_seconds(job: Job, memory: float, network: float, costs: Costs) -> float:
    """Return how long one process sorts the vectors; what is larger than a third of its memory is written twice."""
    moved = 2 if job.vector_bytes <= memory / 3 else 4
    return job.vector_bytes * (costs.prepare + moved / network)


def finish_seconds(job: Job, network: float, costs: Costs) -> float:
    """Return how long the driver takes after merging: it reads all vectors once, for the noise of items."""
    rows, classes = costs.finish_row + costs.noise_row, costs.finish_class
    return job.items * rows + job.items / job.class_size * classes + job.vector_bytes / network


# ----- text


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    for unit, size, least in (("days", 86_400, 2), ("h", 3600, 2), ("min", 60, 2)):
        if seconds >= least * size:
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
    return f"{seconds:.0f} s"


def size_text(size: float) -> str:
    """Return a number of bytes as people say it."""
    unit, name = (1e12, "TB") if size >= 1e12 else (1e9, "GB") if size >= 1e9 else (1e6, "MB")
    return f"{size / unit:.0f} {name}" if size >= 10 * unit else f"{size / unit:.1f} {name}"
