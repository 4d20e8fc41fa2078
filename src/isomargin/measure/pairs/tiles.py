"""The single pass over all pairs: a tiled matrix product over the upper triangle, whose tiles are counted at once.

Workers take tiles in the order of a round-robin tournament, so that tiles processed at the same time rarely share a
block of rows. A block owns its counters and is locked while a tile of it is counted. The few tiles that contain
positives come first, because the positives decide which negatives matter for the ranks.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from threading import Lock, local
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core.threads import available_cores, one_blas_thread
from isomargin.measure.pairs import kernels
from isomargin.measure.pairs.axis import L2, ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats, ListedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.retrieval import QUANTUM, rank_query

Progress = Callable[[float], None]
Tile = tuple[int, int]

TILE_ROWS = 512  # 512 x 512 similarities are 1 MB, so they are still in the core's cache when they are counted
MOST_CELLS = 1 << 26  # classes x bins: 268 MB of counters
CELLS_TIMES_ROWS = 1 << 41  # the more rows, the fewer bins, so that the counters of a tile stay in the cache
MOST_BINS = 1 << 17
LISTED_POSITIVES = 1 << 24  # more positive pairs than this are counted in bins instead of listed
RANKED_CLASS = 512  # the R-precision of larger classes takes a second pass, to keep memory proportional to n
FINE_BINS = 4096  # bins for the similarities of one query in that pass
TIE = 2.0**-22  # similarities this close cannot be told apart in float32
UNRESOLVED = 0.02  # a query is ranked again in float64 if float32 leaves more than this share of its rank unclear
CHUNK = 1 << 22  # float64 distances held by one worker


class PassResult(NamedTuple):
    """The results of the pass over all pairs."""

    counts: PairCounts
    ranks: RankCounts


def count_pairs(
    data: ClassSortedVectors,
    *,
    k: tuple[int, ...],
    map_at_r: bool = True,
    threads: int | None = None,
    tile_rows: int = TILE_ROWS,
    progress: Progress | None = None,
) -> PassResult:
    """Count all pairs of unit vectors by class and distance, and rank every query's positives.

    This takes 25% to 50% longer than the float32 product over the upper triangle alone. Memory in addition to the
    vectors: at most 268 MB of counters (twice that if there are too many positives to list), and at most 4 KB per row
    for the ranks. Each worker uses one BLAS thread, which is a setting of the whole process: calls from several threads
    of one program slow each other down.
    """
    with Pass(data, map_at_r, threads, tile_rows, progress) as the_pass:
        the_pass.read_positives()
        the_pass.count_negatives()
        return PassResult(the_pass.pair_counts(), the_pass.rank_counts(k))


def number_of_bins(classes: int, n: int) -> int:
    """Return as many bins as memory and cache allow, at most 131,072.

    A class that continues in another block has counters in both, hence the ``n // TILE_ROWS``.
    """
    cells = min(MOST_CELLS, CELLS_TIMES_ROWS // n)
    return int(min(MOST_BINS, max(512, cells // (classes + n // TILE_ROWS))))


def tournament(teams: int) -> Iterable[Tile]:
    """Yield every pair of teams once (each team with itself first), in rounds in which no team plays twice."""
    yield from ((team, team) for team in range(teams))
    circle = list(range(teams + teams % 2))
    for _ in range(len(circle) - 1):
        for one, other in zip(circle[: len(circle) // 2], reversed(circle), strict=False):
            if max(one, other) < teams:
                yield min(one, other), max(one, other)
        circle = [circle[0], circle[-1], *circle[1:-1]]


def list_by_class(similarity: NDArray[np.float32], sizes: NDArray[np.int64], axis: ScoreAxis = L2) -> ListedDistances:
    """Turn the similarities of positive pairs, ordered by class, into distances sorted within each class."""
    squared = 2 - 2 * similarity
    distances = np.maximum(np.copysign(np.sqrt(np.abs(squared)), squared), np.float32(axis.lowest))
    offsets = np.concatenate([[0], np.cumsum(sizes * (sizes - 1) // 2)])
    for first, end in pairwise(offsets):
        distances[first:end].sort()
    return ListedDistances(distances, offsets, appearances=1, axis=axis)


class Pass:
    """The state of one pass: blocks of rows, counters, ranks, worker threads."""

    def __init__(
        self,
        data: ClassSortedVectors,
        map_at_r: bool,
        threads: int | None,
        tile_rows: int,
        progress: Progress | None,
    ) -> None:
        self.data = data
        self.map_at_r = map_at_r
        self.threads = threads or available_cores()
        self.tile_rows = tile_rows
        self.progress = progress or (lambda share: None)
        self.done = 0.0
        self.rows = kernels.Rows(data.class_of, data.starts, data.ends)
        starts = range(0, len(data.class_of), tile_rows)
        self.blocks = [(first, min(first + tile_rows, len(data.class_of))) for first in starts]
        self.locks = [Lock() for _ in self.blocks]
        self.scratch = local()
        self.bins = number_of_bins(len(data.sizes), len(data.class_of))
        self.extra_class, base = self.assign_counters()
        self.negatives = self.new_bins(base)
        sizes = data.sizes
        self.pairs_of_class = sizes * (sizes - 1) // 2
        list_them = self.pairs_of_class.sum() <= LISTED_POSITIVES
        self.listed = np.empty(self.pairs_of_class.sum() if list_them else 0, np.float32)
        self.positives = self.negatives if list_them else self.new_bins(base)
        self.ranks = self.new_ranks()

    def __enter__(self) -> "Pass":
        self.limit = one_blas_thread()  # each worker computes its own product
        self.pool = ThreadPoolExecutor(self.threads)
        return self

    def __exit__(self, *exception: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.limit.restore_original_limits()

    def assign_counters(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Assign a row of counters to each class in each block.

        The first row of counters of class i is row i. A class that continues in another block gets extra rows, which
        come after those of all classes.

        Returns:
            (extra rows,) the class of each extra row of counters; (n,) where the counters of each row start.
        """
        class_of = self.data.class_of
        begins = np.diff(class_of, prepend=-1) != 0
        continues = np.zeros(len(class_of), bool)
        continues[[first for first, _ in self.blocks]] = True
        continues &= ~begins
        number = np.where(continues, len(self.data.sizes) + np.cumsum(continues) - 1, class_of)
        segment = np.cumsum(begins | continues) - 1
        counter_row = number[begins | continues][segment]
        return class_of[continues], (counter_row * self.bins).astype(np.uint64)

    def new_bins(self, base: NDArray[np.uint64]) -> kernels.Bins:
        """Return counters set to zero."""
        counters = np.zeros((len(self.data.sizes) + len(self.extra_class)) * self.bins, np.uint32)
        low, high = self.data.span
        per_distance = np.float32(self.bins / (high - low))
        return kernels.Bins(counters, base, np.float32(low), per_distance, np.float32(self.bins - 1))

    def new_ranks(self) -> kernels.Ranks:
        """Return ranks before any pair is seen, with room for the positives of classes that are not too large."""
        n, size = len(self.data.class_of), self.data.sizes[self.data.class_of]
        kept = (size <= RANKED_CLASS) & self.map_at_r
        offset = np.concatenate([[0], np.cumsum(np.where(kept, size - 1, 0))])
        return kernels.Ranks(
            above=np.full(n, -kernels.ABOVE_ALL, np.float32),
            below=np.full(n, -kernels.ABOVE_ALL, np.float32),
            nearer=np.zeros(n, np.int32),
            as_near=np.zeros(n, np.int32),
            offset=offset,
            similarity=np.empty(offset[-1], np.float32),
            between=np.zeros(offset[-1], np.int32),
            alive=np.zeros(n, np.int32),
            total=np.zeros(n, np.int32),
            floor=np.full(n, kernels.ABOVE_ALL, np.float32),
        )

    def similarities(self, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[np.float32]:
        """(rows, columns) similarities, in this worker's buffer."""
        shape = (rows[1] - rows[0], columns[1] - columns[0])
        size = shape[0] * shape[1]
        if getattr(self.scratch, "product", np.empty(0)).size < size:
            self.scratch.product = np.empty(size, np.float32)
            self.scratch.index = np.empty(max(shape[1], self.tile_rows), np.uint32)
        out: NDArray[np.float32] = self.scratch.product[:size].reshape(shape)
        return self.data.similarity(slice(*rows), slice(*columns), out)

    def run(self, work: Callable[[Any], None], tasks: list[Any], until: float) -> None:
        """Run the tasks on all threads and report progress up to ``until``; the first error stops the pass."""
        begin = self.done
        for count, _ in enumerate(self.pool.map(work, tasks), start=1):
            self.done = begin + (until - begin) * count / len(tasks)
            self.progress(self.done)

    def run_tiles(
        self, work: Callable[[NDArray[np.float32], int, int], None], tiles: list[Tile], until: float, trim: bool = False
    ) -> None:
        """Compute the product of each tile and apply ``work`` to it, while its blocks are locked.

        With ``trim``, a tile of two blocks is cut to the class that continues from one block to the other.
        """

        def locked(tile: Tile) -> None:
            one, other = tile
            rows, columns = self.blocks[one], self.blocks[other]
            if trim and one != other:
                shared_class = self.data.class_of[columns[0]]
                rows = max(rows[0], int(self.rows.class_start[shared_class])), rows[1]
                columns = columns[0], min(columns[1], int(self.rows.class_end[shared_class]))
            product = self.similarities(rows, columns)
            with self.locks[one], nullcontext() if one == other else self.locks[other]:
                work(product, rows[0], columns[0])

        self.run(locked, tiles, until)

    def one_class(self, tile: Tile) -> bool:
        """Whether all of a tile's pairs are positives."""
        return bool(self.data.class_of[self.blocks[tile[0]][0]] == self.data.class_of[self.blocks[tile[1]][1] - 1])

    def holds_positives(self, tile: Tile) -> bool:
        """Whether any of a tile's pairs is positive."""
        return bool(self.data.class_of[self.blocks[tile[0]][1] - 1] == self.data.class_of[self.blocks[tile[1]][0]])

    def read_positives(self) -> None:
        """List or bin the distances within classes, and find each query's positives."""
        list_offset = np.concatenate([[0], np.cumsum(self.pairs_of_class)])

        def work(product: NDArray[np.float32], first_row: int, first_column: int) -> None:
            kernels.read_positives(
                product, first_row, first_column, self.rows, self.ranks, self.listed, list_offset, self.positives
            )

        tiles = tournament(len(self.blocks))
        inside = [tile for tile in tiles if tile[0] == tile[1] or self.holds_positives(tile)]
        self.run_tiles(work, inside, until=len(inside) / len(self.blocks) ** 2, trim=True)
        kernels.arrange_positives(self.ranks, TIE)

    def count_negatives(self) -> None:
        """Count the pairs between classes, and the negatives nearer to a query than its positives."""

        def work(product: NDArray[np.float32], first_row: int, first_column: int) -> None:
            kernels.count_negatives(
                product, first_row, first_column, self.rows, self.negatives, self.ranks, self.scratch.index
            )

        between = [tile for tile in tournament(len(self.blocks)) if not self.one_class(tile)]
        self.run_tiles(work, between, until=1.0 if self.data.sizes.max() <= RANKED_CLASS else 0.4)

    def sum_counters(self, bins: kernels.Bins) -> NDArray[Any]:
        """(classes, bins) counts of each class summed over its blocks; in place and uint32 if that cannot overflow."""
        counters = bins.counters.reshape(-1, self.bins)
        counts: NDArray[Any] = counters[: len(self.data.sizes)]
        if int(self.data.sizes.max()) * len(self.data.class_of) >= 2**32:
            counts = counts.astype(np.int64)
        for class_index, extra in zip(self.extra_class, counters[len(counts) :], strict=True):
            counts[class_index] += extra
        return counts

    def pair_counts(self) -> PairCounts:
        """Sum the counters and sort the lists."""
        axis, span = self.data.axis, self.data.span
        negatives = BinnedDistances.within_span(self.sum_counters(self.negatives), span, axis, appearances=2)
        if self.listed.size:
            return PairCounts(list_by_class(self.listed, self.data.sizes, axis), negatives)
        positives = BinnedDistances.within_span(self.sum_counters(self.positives), span, axis, appearances=1)
        return PairCounts(positives, negatives)

    def rank_counts(self, k: tuple[int, ...]) -> RankCounts:
        """Score the ranks of every query; those of large classes take a second pass."""
        class_of, sizes, nearer = self.data.class_of, self.data.sizes, self.ranks.nearer
        r_precision, average_precision = np.zeros(len(class_of)), np.zeros(len(class_of))
        if self.map_at_r:
            kernels.score_ranks(self.ranks, r_precision, average_precision)
            self.rank_large_classes(r_precision, average_precision)
        unclear = self.ranks.as_near - nearer
        wanted = (unclear > 0) & (nearer < max(k, default=1)) | (unclear > UNRESOLVED * self.ranks.as_near)
        self.rank_again(np.flatnonzero(wanted & (sizes[class_of] > 1)), r_precision, average_precision)
        if not self.map_at_r:
            return RankCounts.from_queries(class_of, sizes, k, nearer, None, None)
        return RankCounts.from_queries(class_of, sizes, k, nearer, r_precision, average_precision)

    def rank_again(self, queries: NDArray[np.int64], r_precision: Floats, average_precision: Floats) -> None:
        """Rank in float64 the queries for which float32 could not tell a negative's distance from a positive's."""
        rows, axis = self.rows, self.data.axis
        step = max(1, CHUNK // len(self.data.class_of))

        def work(chunk: NDArray[np.int64]) -> None:
            for i, row in zip(chunk, axis.distances(self.data.exact_rows(chunk), QUANTUM), strict=True):
                start, end = rows.class_start[rows.class_of[i]], rows.class_end[rows.class_of[i]]
                negatives = np.concatenate([row[:start], row[end:]])
                ranks = rank_query(np.delete(row[start:end], i - start), negatives)
                self.ranks.nearer[i], r_precision[i], average_precision[i] = ranks

        for _ in self.pool.map(work, [queries[first : first + step] for first in range(0, len(queries), step)]):
            pass

    def rank_large_classes(self, r_precision: NDArray[np.float64], average_precision: NDArray[np.float64]) -> None:
        """Rank the queries of classes too large to store their positives, one strip of complete rows at a time."""
        n = len(self.data.class_of)
        height = max(1, min(self.tile_rows, (1 << 22) // n))
        strips = [
            (first, min(first + height, int(end)))
            for start, end in zip(self.rows.class_start, self.rows.class_end, strict=True)
            if end - start > RANKED_CLASS
            for first in range(start, end, height)
        ]

        def work(strip: tuple[int, int]) -> None:
            product = self.similarities(strip, (0, n))
            scratch = np.empty((2, FINE_BINS), np.int32)
            kernels.rank_strip(product, strip[0], self.rows, scratch[0], scratch[1], r_precision, average_precision)

        if strips:
            self.run(work, strips, until=1.0)
