"""The pass of probes over a large gallery: a tiled float32 product, whose tiles are counted at once.

Each worker takes a block of probes through all blocks of the gallery. A block of the gallery holds whole classes, so
its counters belong to it, and it is locked while a tile of it is counted.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from isomargin.measure.pairs.gallery_pass import GalleryPass, ProbeScores, compare_own, probe_bins
from isomargin.measure.pairs.kernels import ABOVE_ALL, Bins
from isomargin.measure.pairs.tiles import CELLS_TIMES_ROWS, MOST_BINS, MOST_CELLS, TIE, TILE_ROWS

FEWEST_ROWS = 64  # rows of a block of probes, where there are few of them
FEWEST_BINS = 512
BEYOND = 2.0**-6  # bins reach this far beyond the distances of unit vectors


class Block(NamedTuple):
    """Whole classes of the gallery."""

    first_row: int
    end_row: int
    first_class: int
    end_class: int


def compare_in_tiles(
    data: GalleryData, threads: int | None = None, progress: Callable[[float], None] | None = None
) -> GalleryPass:
    """Compare all probes with the whole gallery in float32, and count in bins.

    Memory in addition to the vectors: at most 268 MB of counters for the enrolled classes and half as much for those of
    the probes, and a few numbers per probe.
    """
    threads = threads or available_cores()
    positives, own_distance = compare_own(data)
    the_pass = TilePass(data, own_distance, threads)
    report = progress or (lambda share: None)
    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        for done, _ in enumerate(pool.map(the_pass.run_block, range(len(the_pass.probe_blocks))), start=1):
            report(done / len(the_pass.probe_blocks))
    negatives = the_pass.binned(the_pass.counters.reshape(data.classes, -1))
    by_probe = the_pass.binned(the_pass.probe_counters)
    return GalleryPass(PairCounts(positives, negatives), by_probe, the_pass.scores(own_distance))


def gallery_blocks(data: GalleryData) -> Iterator[Block]:
    """Yield blocks of whole classes with at most 512 rows each; a larger class is a block of its own."""
    first = 0
    for i in range(data.classes):
        if data.ends[i] - data.starts[first] > TILE_ROWS and i > first:
            yield Block(int(data.starts[first]), int(data.starts[i]), first, i)
            first = i
    yield Block(int(data.starts[first]), len(data.rows), first, data.classes)


class TilePass:
    """The state of one pass: blocks, counters, and the best scores of each probe."""

    def __init__(self, data: GalleryData, own_distance: Floats, threads: int) -> None:
        self.data = data
        n = len(data.probes)
        step = int(np.clip(-(-n // (4 * threads)), FEWEST_ROWS, TILE_ROWS))
        self.probe_blocks = [(first, min(first + step, n)) for first in range(0, n, step)]
        self.blocks = list(gallery_blocks(data))
        self.locks = [Lock() for _ in self.blocks]
        self.scratch = local()
        cells = min(MOST_CELLS, CELLS_TIMES_ROWS // (n + len(data.rows)))
        self.bins = power_of_two(int(np.clip(cells // data.classes, FEWEST_BINS, MOST_BINS)))
        self.probe_bins = min(power_of_two(probe_bins(data)), self.bins)
        self.counters = np.zeros(data.classes * self.bins, np.uint32)
        largest = int(np.bincount(data.probe_class).max()) * data.columns
        kind = np.uint32 if largest < 2**32 else np.int64
        self.probe_counters = np.zeros((data.classes + len(data.unknown_names), self.probe_bins), kind)
        self.probe_lock = Lock()
        self.span = self.find_span()
        low, high = self.span
        self.place = np.float32(low), np.float32(self.bins / (high - low)), np.float32(self.bins - 1)
        own = np.full(n, ABOVE_ALL, np.float32)  # no class is nearer to an unknown probe than its own
        own[: data.known] = similarity_of(own_distance) + TIE
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
        self.shift = np.uint32((self.bins // self.probe_bins).bit_length() - 1)

    def find_span(self) -> tuple[float, float]:
        """Return bounds of all distances, within the axis."""
        data = self.data
        if data.row_shifts is None or data.probe_shifts is None:
            return 0.0, 2.0
        low = distance_of(1 + float(data.row_shifts.max() + data.probe_shifts.max())) - BEYOND
        high = distance_of(-1 + float(data.row_shifts.min() + data.probe_shifts.min())) + BEYOND
        return max(data.axis.lowest, low), min(data.axis.highest, high)

    def buffer(self, name: str, size: int) -> NDArray[np.float32]:
        """Return this worker's scratch memory, with room for ``size`` values."""
        if getattr(self.scratch, name, np.empty(0)).size < size:
            setattr(self.scratch, name, np.empty(size, np.float32))
        found: NDArray[np.float32] = getattr(self.scratch, name)[:size]
        return found

    def run_block(self, number: int) -> None:
        """Compare one block of probes with the whole gallery."""
        first, end = self.probe_blocks[number]
        classes, place = np.unique(self.data.probe_class[first:end], return_inverse=True)
        counts = np.zeros(len(classes) * self.probe_bins, np.uint32)
        base = (place * self.probe_bins).astype(np.uint64)
        probes = kernels.Probes(self.probe_start, self.probe_end, base, counts, self.shift)
        index = np.empty(end - first, np.uint32)
        for turn in range(len(self.blocks)):
            which = (turn + number) % len(self.blocks)  # workers begin at different blocks, so that they rarely wait
            for row_class, values in self.tiles(self.blocks[which], (first, end)):
                bins = Bins(self.counters, (row_class * self.bins).astype(np.uint64), *self.place)
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

    def binned(self, counts: NDArray[Any]) -> BinnedDistances:
        """Return counts as distances."""
        return BinnedDistances.within_span(counts, self.span, self.data.axis, 1)

    def scores(self, own_distance: Floats) -> ProbeScores:
        """Return the best scores of each probe as distances."""
        best, axis = self.best, self.data.axis

        def as_distances(similarity: NDArray[np.float32]) -> Floats:
            squared = 2 - 2 * similarity.astype(np.float64)
            return np.clip(np.copysign(np.sqrt(np.abs(squared)), squared), axis.lowest, axis.highest)

        return ProbeScores(
            own_distance,
            best.nearer[: self.data.known].astype(np.int64) + 1,
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
