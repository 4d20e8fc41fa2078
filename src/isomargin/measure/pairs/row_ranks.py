"""Ranks that need complete rows: queries of large classes, and queries that float32 leaves unclear.

The pass over all pairs ranks most queries from its tiles (``kernels.py``). This module ranks the others, and sums the
results of all queries by class. Parts of a pass use it in the same way, so that the order of every sum is the same.
"""

from threading import local
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core.threads import share_tasks
from isomargin.measure.pairs import kernels
from isomargin.measure.pairs.counts import RankCounts
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.retrieval import QUANTUM, rank_query

STRIP_ROWS = 512
STRIP_CELLS = 1 << 22  # similarities of one strip of complete rows, unless a single row has more
FINE_BINS = 4096  # bins for the similarities of one query of a large class
UNRESOLVED = 0.02  # a query is ranked again in float64 if float32 leaves more than this share of its rank unclear
CHUNK = 1 << 22  # float64 distances held by one worker
LINE = 16  # bins in a line of the cache


class QueryScores(NamedTuple):
    """The results of each row as a query, before they are summed by class."""

    nearer: NDArray[np.int32]  # (n,) negatives certainly nearer than the nearest positive
    as_near: NDArray[np.int32]  # (n,) negatives nearer, or too close to call in float32
    r_precision: Floats  # (n,)
    average_precision: Floats  # (n,)


class Products:
    """Products of rows and columns, each worker's in a buffer of its own."""

    def __init__(self, data: ClassSortedVectors, columns: int = 0) -> None:
        self.data = data
        self.columns = columns
        self.scratch = local()

    def similarities(self, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[np.float32]:
        """(rows, columns) similarities, in this worker's buffer."""
        shape = (rows[1] - rows[0], columns[1] - columns[0])
        size = shape[0] * shape[1]
        if getattr(self.scratch, "product", np.empty(0)).size < size:
            self.scratch.product = np.empty(size, np.float32)
        out: NDArray[np.float32] = self.scratch.product[:size].reshape(shape)
        return self.data.similarity(slice(*rows), slice(*columns), out)

    @property
    def index(self) -> NDArray[np.uint32]:
        """(GROUP_ROWS, at least columns) room for the bins of a few rows of a tile, this worker's."""
        if not hasattr(self.scratch, "index"):
            # An odd number of cache lines wide, so that the entries of a column do not compete for the same lines.
            width = (self.columns // LINE + 1 | 1) * LINE
            self.scratch.index = np.empty((kernels.GROUP_ROWS, width), np.uint32)
        index: NDArray[np.uint32] = self.scratch.index
        return index


def large_strips(data: ClassSortedVectors, ranked_class: int) -> list[tuple[int, int]]:
    """List strips of rows that cover the classes of more than ``ranked_class`` items, each within one class."""
    height = max(1, min(STRIP_ROWS, STRIP_CELLS // len(data.class_of)))
    large = np.flatnonzero(data.sizes > ranked_class)
    return [
        (first, min(first + height, end))
        for start, end in zip(data.starts[large].tolist(), data.ends[large].tolist(), strict=True)
        for first in range(start, end, height)
    ]


def rank_strip(
    products: Products, rows: kernels.Rows, strip: tuple[int, int], r_precision: Floats, average_precision: Floats
) -> None:
    """Rank the queries of one strip among all rows; the results are written to the last two, (queries,) each."""
    similarities = products.similarities(strip, (0, len(rows.class_of)))
    scratch = np.empty((2, FINE_BINS), np.int32)
    kernels.rank_strip(similarities, strip[0], rows, scratch[0], scratch[1], r_precision, average_precision)


def finish_ranks(
    data: ClassSortedVectors, found: QueryScores, k: tuple[int, ...], map_at_r: bool, threads: int | None
) -> RankCounts:
    """Rank the unclear queries again, and sum the results of all queries by class."""
    class_of, sizes = data.class_of, data.sizes
    unclear = found.as_near - found.nearer
    wanted = (unclear > 0) & (found.nearer < max(k, default=1)) | (unclear > UNRESOLVED * found.as_near)
    rank_again(data, np.flatnonzero(wanted & (sizes[class_of] > 1)), found, threads)
    if not map_at_r:
        return RankCounts.from_queries(class_of, sizes, k, found.nearer, None, None)
    return RankCounts.from_queries(class_of, sizes, k, found.nearer, found.r_precision, found.average_precision)


def rank_again(data: ClassSortedVectors, queries: NDArray[np.int64], found: QueryScores, threads: int | None) -> None:
    """Rank in float64 the queries for which float32 could not tell a negative's distance from a positive's."""
    class_of, starts, ends = data.class_of, data.starts, data.ends
    step = max(1, CHUNK // len(class_of))

    def work(chunk: NDArray[np.int64]) -> None:
        for i, row in zip(chunk, data.axis.distances(data.exact_rows(chunk), QUANTUM), strict=True):
            start, end = starts[class_of[i]], ends[class_of[i]]
            negatives = np.concatenate([row[:start], row[end:]])
            ranks = rank_query(np.delete(row[start:end], i - start), negatives)
            found.nearer[i], found.r_precision[i], found.average_precision[i] = ranks

    share_tasks(work, [queries[first : first + step] for first in range(0, len(queries), step)], threads)
