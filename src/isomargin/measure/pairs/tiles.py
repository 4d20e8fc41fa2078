"""The single pass over all pairs: a tiled matrix product over the upper triangle, whose tiles are counted at once.

Workers take tiles in the order of a round-robin tournament, so that tiles processed at the same time rarely share a
block of rows. A block owns its counters and is locked while a tile of it is counted. The few tiles that contain
positives come first, because the positives decide which negatives matter for the ranks.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core.threads import one_blas_thread, share_tasks
from isomargin.measure.pairs import kernels
from isomargin.measure.pairs.axis import L2, ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.row_ranks import Products, QueryScores, finish_ranks, large_strips, rank_strip

Progress = Callable[[float], None]
Tile = tuple[int, int]

TILE_ROWS = 512  # 512 x 512 similarities are 1 MB, so they are still in the core's cache when they are counted
MOST_CELLS = 1 << 26  # classes x bins: 268 MB of counters
CLEARED = 1 << 22  # counters that a thread sets to zero at a time
CELLS_TIMES_ROWS = 1 << 41  # the more rows, the fewer bins, so that the counters of a tile stay in the cache
MOST_BINS = 1 << 17
LISTED_POSITIVES = 1 << 24  # more positive pairs than this are counted in bins instead of listed
RANKED_CLASS = 512  # the R-precision of larger classes takes a second pass, to keep memory proportional to n
TIE = 2.0**-22  # similarities this close cannot be told apart in float32


@dataclass(frozen=True)
class Layout:
    """What passes must agree on so that their counts add up: blocks of rows, bins, and whether positives are listed."""

    edges: NDArray[np.int64]
    """(blocks + 1,) where each block of rows starts, and the end of the last one."""
    bins: int
    """Number of bins."""
    span: tuple[float, float]
    """Where the first bin starts and the last one ends."""
    list_positives: bool
    """Whether positive pairs are listed one by one, or counted in bins."""

    @classmethod
    def of_whole(cls, data: ClassSortedVectors, tile_rows: int | None = None) -> "Layout":
        """Return the layout of a pass over all rows, in blocks of equal size."""
        n, sizes = len(data.class_of), data.sizes
        edges = np.append(np.arange(0, n, tile_rows or TILE_ROWS), n)
        listed = int((sizes * (sizes - 1) // 2).sum()) <= LISTED_POSITIVES
        return cls(edges, number_of_bins(len(sizes), n), data.span, listed)


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
    layout: Layout | None = None,
    progress: Progress | None = None,
) -> PassResult:
    """Count all pairs of unit vectors by class and distance, and rank every query's positives.

    This takes 25% to 50% longer than the float32 product over the upper triangle alone. Memory in addition to the
    vectors: at most 268 MB of counters (twice that if there are too many positives to list), and at most 4 KB per row
    for the ranks. Each worker uses one BLAS thread, which is a setting of the whole process: calls from several threads
    of one program slow each other down. A ``layout`` replaces blocks of ``tile_rows`` rows.
    """
    with Pass(data, layout or Layout.of_whole(data, tile_rows), map_at_r, threads, progress) as the_pass:
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
    """The state of one pass: blocks of rows, counters, ranks."""

    def __init__(
        self,
        data: ClassSortedVectors,
        layout: Layout,
        map_at_r: bool = True,
        threads: int | None = None,
        progress: Progress | None = None,
        keep_positives: bool = True,
    ) -> None:
        self.data = data
        self.layout = layout
        self.map_at_r = map_at_r
        self.threads = threads
        self.progress = progress or (lambda share: None)
        self.done = 0.0
        self.rows = kernels.Rows(data.class_of, data.starts, data.ends)
        self.blocks = [(int(first), int(end)) for first, end in pairwise(layout.edges)]
        self.locks = [Lock() for _ in self.blocks]
        self.products = Products(data, max(end - first for first, end in self.blocks))
        self.bins = layout.bins
        self.extra_class, base = self.assign_counters()
        self.negatives = self.new_bins(base)
        sizes = data.sizes
        self.pairs_of_class = sizes * (sizes - 1) // 2
        list_them = layout.list_positives and keep_positives
        self.listed = np.empty(self.pairs_of_class.sum() if list_them else 0, np.float32)
        if list_them:
            self.positives = self.negatives
        elif keep_positives:
            self.positives = self.new_bins(base)
        else:  # one row of counters that nobody reads
            self.positives = self.new_bins(np.zeros_like(base), rows=1)
        self.ranks = self.new_ranks()

    def __enter__(self) -> "Pass":
        self.limit = one_blas_thread()  # each worker computes its own product
        return self

    def __exit__(self, *exception: object) -> None:
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

    def new_bins(self, base: NDArray[np.uint64], rows: int | None = None) -> kernels.Bins:
        """Return counters set to zero: a row for each class in each block, unless another number is given."""
        counters = np.empty((rows or len(self.data.sizes) + len(self.extra_class)) * self.bins, np.uint32)
        # Unlike those of np.zeros, the pages may be large ones, of which a tile touches few. The system clears them at
        # their first use, on the thread that uses them.
        parts = [slice(first, first + CLEARED) for first in range(0, counters.size, CLEARED)]
        share_tasks(lambda part: counters[part].fill(0), parts, self.threads)
        low, high = self.layout.span
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
            limit=np.full(n, -kernels.ABOVE_ALL, np.float32),
        )

    def run(self, work: Callable[[Any], None], tasks: list[Any], until: float) -> None:
        """Run the tasks on all threads and report progress up to ``until``; the first error stops the pass."""
        begin = self.done
        share_tasks(work, tasks, self.threads, lambda share: self.progress(begin + (until - begin) * share))
        self.done = until
        self.progress(until)

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
            product = self.products.similarities(rows, columns)
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

    def count_negatives(self, tiles: Iterable[Tile] | None = None) -> None:
        """Count the pairs between classes, and the negatives nearer to a query than its positives.

        ``tiles`` are some of the tiles, in an order in which neighbours do not share blocks; all of them unless given.
        """

        def work(product: NDArray[np.float32], first_row: int, first_column: int) -> None:
            kernels.count_negatives(
                product, first_row, first_column, self.rows, self.negatives, self.ranks, self.products.index
            )

        chosen = tournament(len(self.blocks)) if tiles is None else tiles
        between = [tile for tile in chosen if not self.one_class(tile)]
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
        axis, span = self.data.axis, self.layout.span
        negatives = BinnedDistances.within_span(self.sum_counters(self.negatives), span, axis, appearances=2)
        if self.listed.size:
            return PairCounts(list_by_class(self.listed, self.data.sizes, axis), negatives)
        positives = BinnedDistances.within_span(self.sum_counters(self.positives), span, axis, appearances=1)
        return PairCounts(positives, negatives)

    def rank_counts(self, k: tuple[int, ...]) -> RankCounts:
        """Score the ranks of every query; those of large classes take a second pass."""
        n = len(self.data.class_of)
        found = QueryScores(self.ranks.nearer, self.ranks.as_near, np.zeros(n), np.zeros(n))
        if self.map_at_r:
            ranks = self.ranks
            kernels.score_ranks(ranks.offset, ranks.alive, ranks.between, found.r_precision, found.average_precision)
            self.rank_large_classes(found)
        return finish_ranks(self.data, found, k, self.map_at_r, self.threads)

    def rank_large_classes(self, found: QueryScores) -> None:
        """Rank the queries of classes too large to store their positives."""

        def work(strip: tuple[int, int]) -> None:
            queries = slice(*strip)
            rank_strip(self.products, self.rows, strip, found.r_precision[queries], found.average_precision[queries])

        if strips := large_strips(self.data, RANKED_CLASS):
            self.run(work, strips, until=1.0)
