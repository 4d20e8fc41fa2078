"""The pass of probes over a large gallery: a tiled float32 product, whose tiles are counted at once.

Each worker takes a block of probes through all blocks of the gallery. A block of the gallery holds whole classes, so
its counters belong to it, and it is locked while a tile of it is counted. What is left does not depend on the order of
the tiles, so that a section of the gallery and of the probes can be counted anywhere (``gallery_parts.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock, local
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core.threads import available_cores, one_blas_thread
from isomargin.measure.pairs import gallery_kernels as kernels
from isomargin.measure.pairs.axis import distance_of, similarity_of
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData
from isomargin.measure.pairs.gallery_pass import FEWEST_BINS, GalleryPass, ProbeScores, compare_own, probe_bins
from isomargin.measure.pairs.kernels import ABOVE_ALL, Bins
from isomargin.measure.pairs.tiles import CELLS_TIMES_ROWS, MOST_BINS, MOST_CELLS, TIE, TILE_ROWS

FEWEST_ROWS = 64  # rows of a block of probes, where there are few of them
BEYOND = 2.0**-6  # bins reach this far beyond the distances of unit vectors


class Block(NamedTuple):
    """Whole classes of the gallery."""

    first_row: int
    end_row: int
    first_class: int
    end_class: int


class GalleryLayout(NamedTuple):
    """Which probes and which rows of the gallery form a tile, and how finely their comparisons are binned."""

    probe_edges: NDArray[np.int64]  # (blocks + 1,) where each block of probes starts, and the number of probes
    blocks: tuple[Block, ...]  # of the gallery
    bins: int  # of a class's comparisons
    probe_bins: int  # of those of a probe class


def compare_in_tiles(
    data: GalleryData,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
    layout: GalleryLayout | None = None,
) -> GalleryPass:
    """Compare all probes with the whole gallery in float32, and count in bins.

    Memory in addition to the vectors: at most 268 MB of counters for the enrolled classes and half as much for those of
    the probes, and a few numbers per probe.
    """
    threads = threads or available_cores()
    if layout is None:
        layout = make_layout(data, threads, [0, data.classes])
    positives, own_distance = compare_own(data)
    the_pass = TilePass(data, own_floor(own_distance, len(data.probes)), layout)
    the_pass.run(threads, progress)
    counted = the_pass.probe_counters
    by_probe = np.zeros((data.classes + len(data.unknown_names), layout.probe_bins), counted.dtype)
    by_probe[the_pass.probe_classes] = counted
    span = span_of(data)
    negatives = BinnedDistances.within_span(the_pass.counters.reshape(data.classes, -1), span, data.axis, 1)
    return GalleryPass(
        PairCounts(positives, negatives),
        BinnedDistances.within_span(by_probe, span, data.axis, 1),
        scores_of(data, own_distance, the_pass.best),
    )


def make_layout(data: GalleryData, workers: int, class_edges: Sequence[int]) -> GalleryLayout:
    """Cut the probes into blocks for so many workers, and the gallery into blocks that end where its sections end."""
    n = len(data.probes)
    step = int(np.clip(-(-n // (4 * workers)), FEWEST_ROWS, TILE_ROWS))
    cells = min(MOST_CELLS, CELLS_TIMES_ROWS // (n + len(data.rows)))
    bins = power_of_two(int(np.clip(cells // data.classes, FEWEST_BINS, MOST_BINS)))
    blocks = [block for first, end in pairwise(class_edges) for block in gallery_blocks(data, first, end)]
    edges = np.append(np.arange(0, n, step), n)
    return GalleryLayout(edges, tuple(blocks), bins, min(power_of_two(probe_bins(data)), bins))


def gallery_blocks(data: GalleryData, first: int, end: int) -> list[Block]:
    """List blocks of whole classes with at most 512 rows each; a larger class is a block of its own."""
    starts, ends = data.starts[first:end].tolist(), data.ends[first:end].tolist()
    edges = [0]
    for i in range(1, len(starts)):
        if ends[i] - starts[edges[-1]] > TILE_ROWS:
            edges.append(i)
    return [
        Block(starts[one], ends[other - 1], first + one, first + other)
        for one, other in pairwise([*edges, len(starts)])
    ]


def span_of(data: GalleryData) -> tuple[float, float]:
    """Return bounds of all distances, within the axis."""
    if data.row_shifts is None or data.probe_shifts is None:
        return 0.0, 2.0
    low = distance_of(1 + float(data.row_shifts.max() + data.probe_shifts.max())) - BEYOND
    high = distance_of(-1 + float(data.row_shifts.min() + data.probe_shifts.min())) + BEYOND
    return max(data.axis.lowest, low), min(data.axis.highest, high)


def own_floor(own_distance: Floats, probes: int) -> NDArray[np.float32]:
    """(probes,) the similarity above which a class is nearer than a probe's own; none is, to an unknown probe."""
    own = np.full(probes, ABOVE_ALL, np.float32)
    own[: len(own_distance)] = similarity_of(own_distance) + TIE
    return own


class TilePass:
    """The state of one pass: blocks, counters, and the best scores of each probe.

    ``data`` may be a section: of a larger gallery, whose classes are then counted from its first one; classes of
    probes that are not in it are below 0, or not below the number of its classes.
    """

    def __init__(self, data: GalleryData, own: NDArray[np.float32], layout: GalleryLayout) -> None:
        self.data = data
        self.layout = layout
        n = len(data.probes)
        self.locks = [Lock() for _ in layout.blocks]
        self.scratch = local()
        self.counters = np.zeros(data.classes * layout.bins, np.uint32)
        self.probe_classes, self.probe_place, sizes = np.unique(
            data.probe_class, return_inverse=True, return_counts=True
        )
        kind = np.uint32 if int(sizes.max()) * data.columns < 2**32 else np.int64
        self.probe_counters: NDArray[Any] = np.zeros((len(self.probe_classes), layout.probe_bins), kind)
        self.probe_lock = Lock()
        low, high = span_of(data)
        self.place = np.float32(low), np.float32(layout.bins / (high - low)), np.float32(layout.bins - 1)
        self.best = kernels.Best(
            own=own,
            nearer=np.zeros(n, np.int32),
            first=np.full(n, -ABOVE_ALL, np.float32),
            first_class=np.full(n, -1, np.int64),
            second=np.full(n, -ABOVE_ALL, np.float32),
            second_class=np.full(n, -1, np.int64),
        )
        self.probe_start = np.searchsorted(data.probe_class, np.arange(data.classes))
        self.probe_end = np.searchsorted(data.probe_class, np.arange(data.classes), side="right")
        self.shift = np.uint32((layout.bins // layout.probe_bins).bit_length() - 1)

    def run(self, threads: int, progress: Callable[[float], None] | None = None) -> None:
        """Count all blocks of probes."""
        blocks = len(self.layout.probe_edges) - 1
        with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
            for done, _ in enumerate(pool.map(self.run_block, range(blocks)), start=1):
                if progress is not None:
                    progress(done / blocks)

    def buffer(self, name: str, size: int) -> NDArray[np.float32]:
        """Return this worker's scratch memory, with room for ``size`` values."""
        if getattr(self.scratch, name, np.empty(0)).size < size:
            setattr(self.scratch, name, np.empty(size, np.float32))
        found: NDArray[np.float32] = getattr(self.scratch, name)[:size]
        return found

    def run_block(self, number: int) -> None:
        """Compare one block of probes with the whole gallery."""
        first, end = self.layout.probe_edges[number : number + 2].tolist()
        classes, place = np.unique(self.probe_place[first:end], return_inverse=True)
        counts = np.zeros(len(classes) * self.layout.probe_bins, np.uint32)
        base = (place * self.layout.probe_bins).astype(np.uint64)
        probes = kernels.Probes(self.probe_start, self.probe_end, base, counts, self.shift)
        index = np.empty(end - first, np.uint32)
        blocks = self.layout.blocks
        for turn in range(len(blocks)):
            which = (turn + number) % len(blocks)  # workers begin at different blocks, so that they rarely wait
            for row_class, values in self.tiles(blocks[which], (first, end)):
                bins = Bins(self.counters, (row_class * self.layout.bins).astype(np.uint64), *self.place)
                with self.locks[which]:
                    kernels.count_tile(values, row_class, first, bins, probes, self.best, index)
        with self.probe_lock:
            self.probe_counters[classes] += counts.reshape(len(classes), -1)

    def tiles(self, block: Block, probes: tuple[int, int]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the classes of a block's rows and their similarities to the probes, in pieces."""
        number = probes[1] - probes[0]
        reduced = None
        for first in range(block.first_row, block.end_row, TILE_ROWS):
            rows = slice(first, min(first + TILE_ROWS, block.end_row))
            out = self.buffer("product", number * (rows.stop - first)).reshape(-1, number)
            product = self.data.similarity(rows, slice(*probes), out)
            if self.data.template != "max":
                yield self.data.row_class[rows], product
                continue
            if reduced is None:
                classes = block.end_class - block.first_class
                reduced = self.buffer("reduced", number * classes).reshape(classes, number)
                reduced[:] = -ABOVE_ALL
            kernels.best_of_class(product, self.data.row_class[rows] - block.first_class, reduced)
        if reduced is not None:
            yield np.arange(block.first_class, block.end_class), reduced


def scores_of(data: GalleryData, own_distance: Floats, best: kernels.Best) -> ProbeScores:
    """Return the best scores of each probe as distances."""
    axis = data.axis

    def as_distances(similarity: NDArray[np.float32]) -> Floats:
        squared = 2 - 2 * similarity.astype(np.float64)
        return np.clip(np.copysign(np.sqrt(np.abs(squared)), squared), axis.lowest, axis.highest)

    return ProbeScores(
        own_distance,
        best.nearer[: len(own_distance)].astype(np.int64) + 1,
        as_distances(best.first),
        best.first_class,
        as_distances(best.second),
        best.second_class,
    )


def power_of_two(number: int) -> int:
    """Return the largest power of two that is not larger.

    >>> power_of_two(512), power_of_two(1000)
    (512, 512)
    """
    return 1 << (number.bit_length() - 1)
