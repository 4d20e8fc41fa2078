"""Count one part of the pairs, and merge parts: counts add up, in any order, to those of the single pass.

A part counts tiles with the very functions of the single pass (``tiles.py``), over the rows of two superblocks at a
time. Counts are integers. For ranks, a part leaves how many negatives it met before each positive of a query; floating
sums are formed only once all parts are merged, in the order of the rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.text import listed_numbers, say_missing
from isomargin.core.threads import one_blas_thread, share_tasks
from isomargin.measure.pairs import kernels
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.pairs.part_plan import PartPlan
from isomargin.measure.pairs.row_ranks import Products, QueryScores, finish_ranks, rank_strip
from isomargin.measure.pairs.stratified import count_sampled
from isomargin.measure.pairs.tile_sequence import Cell
from isomargin.measure.pairs.tiles import Pass, PassResult, Progress, list_by_class


@dataclass(frozen=True)
class SuperblockCounts:
    """What a part has counted of the rows of one superblock."""

    negatives: NDArray[Any]
    """(classes, bins) negative pairs: uint32, or int64 where that could overflow; fewer bytes once `narrowed`."""
    positives: NDArray[Any] | None
    """(pairs,) similarities of positive pairs, or (classes, bins) if they are binned; None if another part has them."""
    nearer: NDArray[np.int32]
    """(rows,) negatives certainly nearer than the nearest positive."""
    as_near: NDArray[np.int32]
    """(rows,) negatives nearer, or too close to call in float32."""
    alive: NDArray[np.int32]
    """(rows,) positives that may still be among the R nearest."""
    between: NDArray[np.int32]
    """(slots,) negatives between consecutive positives; 0 for positives that are not alive."""


@dataclass(frozen=True)
class PartCounts:
    """What one part, or several merged ones, have counted."""

    plan: str
    """Digest of the plan."""
    numbers: tuple[int, ...]
    """The parts, ascending."""
    superblocks: dict[int, SuperblockCounts]
    """The counts of the superblocks that these parts touch."""
    large: dict[int, Floats]
    """By part: (2, rows) R-precision and average precision of its queries of large classes."""


def count_part(
    plan: PartPlan, number: int, *, threads: int | None = None, progress: Progress | None = None
) -> PartCounts:
    """Count the pairs of one part of a plan.

    The result depends on nothing but the plan and the number, so that parts can be counted in any process, in any
    order, and again after a failure.

    Args:
        plan: what `isomargin.plan_parts` returned.
        number: the number of the part, from 1.
        threads: number of CPU threads; by default one per core.
        progress: a function that is called with the share of the work done.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(8)[np.arange(2000) % 8], np.arange(2000) % 8).save(f"{name}/items.npy")
    ...     plan = im.plan_parts(im.prepare(f"{name}/items.npy", f"{name}/prepared"), parts=3)
    ...     counts = im.count_part(plan, 1)
    >>> counts.numbers, sorted(counts.superblocks)
    ((1,), [0])
    """
    checks.whole(number, "number", 1, plan.parts)
    found: dict[int, SuperblockCounts] = {}
    cells = list(plan.cells(number))
    total, done = sum(cell.end - cell.first for cell in cells), 0
    for cell in cells:
        share = (cell.end - cell.first) / total

        def report(part: float, begin: float = done / total, share: float = share) -> None:
            if progress is not None:
                progress(begin + share * part)

        for superblock, counts in count_cell(plan, cell, threads, report).items():
            known = found.get(superblock)
            found[superblock] = counts if known is None else merge_superblocks(plan, superblock, known, counts)
        done += cell.end - cell.first
    return PartCounts(plan.digest, (number,), found, rank_large(plan, number, threads))


def count_cell(
    plan: PartPlan, cell: Cell, threads: int | None, progress: Progress | None
) -> dict[int, SuperblockCounts]:
    """Count some tiles of two superblocks; the first tile on the diagonal brings the positives with it."""
    superblocks = (cell.one,) if cell.one == cell.other else (cell.one, cell.other)
    data, layout = plan.section(superblocks)
    keep = len(superblocks) == 1 and cell.first == 0
    with Pass(data, layout, plan.map_at_r, threads, progress, keep) as the_pass:
        if plan.columns is None or keep:
            the_pass.read_positives()
        if plan.columns is None:
            the_pass.count_negatives(plan.tiles_of(cell))
        else:
            first = int(plan.block_edges[cell.one])
            blocks = [(block, first + block) for block in range(cell.first, cell.end)]
            begins = int(plan.class_edges[cell.one]), int(plan.row_edges[cell.one])
            count_sampled(the_pass, plan.data(), plan.columns, plan.seed, *begins, blocks)
        negatives = the_pass.sum_counters(the_pass.negatives)
        positives = None
        if keep:
            positives = the_pass.listed if layout.list_positives else the_pass.sum_counters(the_pass.positives)
    found, first_class, first_row = {}, 0, 0
    for superblock in superblocks:
        sizes = plan.sizes_of(superblock)
        classes = slice(first_class, first_class + len(sizes))
        rows = slice(first_row, first_row + int(sizes.sum()))
        ranks, offset = the_pass.ranks, plan.slots_of(superblock)
        slots = slice(int(ranks.offset[rows.start]), int(ranks.offset[rows.stop]))
        alive, between = ranks.alive[rows].copy(), ranks.between[slots].copy()
        kernels.merge_ranks(offset, alive, between, alive.copy(), np.zeros_like(between))  # clears what was dropped
        found[superblock] = SuperblockCounts(
            negatives[classes], positives, ranks.nearer[rows].copy(), ranks.as_near[rows].copy(), alive, between
        )
        first_class, first_row = classes.stop, rows.stop
    return found


def rank_large(plan: PartPlan, number: int, threads: int | None) -> dict[int, Floats]:
    """Rank a part's share of the queries of large classes, from complete rows; empty if it has none."""
    strips = plan.strips_of(number)
    if not strips:
        return {}
    data = plan.data()
    products, rows = Products(data), kernels.Rows(data.class_of, data.starts, data.ends)
    ends = np.cumsum([0, *(end - first for first, end in strips)])
    scores = np.zeros((2, int(ends[-1])))

    def work(index: int) -> None:
        queries = slice(int(ends[index]), int(ends[index + 1]))
        rank_strip(products, rows, strips[index], scores[0, queries], scores[1, queries])

    with one_blas_thread():
        share_tasks(work, range(len(strips)), threads)
    return {number: scores}


def merge_counts(plan: PartPlan, one: PartCounts, other: PartCounts) -> PartCounts:
    """Merge the counts of two parts, or of parts that were merged before; the order does not matter."""
    check_mergeable(plan.digest, one, other)
    superblocks = dict(one.superblocks)
    for superblock, found in other.superblocks.items():
        known = superblocks.get(superblock)
        superblocks[superblock] = found if known is None else merge_superblocks(plan, superblock, known, found)
    return PartCounts(plan.digest, tuple(sorted(one.numbers + other.numbers)), superblocks, one.large | other.large)


def check_mergeable(plan: str, *counted: Any) -> None:
    """Refuse the counts of parts that do not belong to the plan with this digest, and parts that are there twice."""
    seen: set[int] = set()
    for counts in counted:
        if counts.plan != plan:
            raise InputError(
                f"part {listed_numbers(counts.numbers)} belongs to another plan, of other embeddings, with other "
                "settings or of another equalizer: count it again"
            )
        if doubled := sorted(seen & set(counts.numbers)):
            raise InputError(f"part {listed_numbers(doubled)} was given twice: give each part once")
        seen |= set(counts.numbers)


def merge_superblocks(
    plan: PartPlan, superblock: int, one: SuperblockCounts, other: SuperblockCounts
) -> SuperblockCounts:
    """Add the counts of the same superblock from two parts."""
    sizes, n = plan.sizes_of(superblock), len(plan.prepared.vectors)
    kind = np.int64 if int(sizes.max()) * n >= 2**32 else np.uint32
    alive, between = one.alive.copy(), one.between.copy()
    kernels.merge_ranks(plan.slots_of(superblock), alive, between, other.alive, other.between)
    return SuperblockCounts(
        np.add(one.negatives, other.negatives, dtype=kind, casting="same_kind"),
        other.positives if one.positives is None else one.positives,
        one.nearer + other.nearer,
        one.as_near + other.as_near,
        alive,
        between,
    )


def narrowed(counts: SuperblockCounts) -> SuperblockCounts:
    """Hold the negatives in as few bytes as they need: in one part, few bins have more than 255 pairs of a class."""
    most = counts.negatives.max(initial=0)
    return replace(counts, negatives=counts.negatives.astype(np.min_scalar_type(most), copy=False))


def finish_parts(
    plan: PartPlan,
    superblock_counts: Callable[[int], SuperblockCounts],
    large: dict[int, Floats],
    k: Iterable[int],
    threads: int | None = None,
) -> PassResult:
    """Assemble the counts of all superblocks, and score and sum the ranks of all queries in the order of the rows.

    ``superblock_counts`` returns the merged counts of a superblock; it is called once for each, in order.
    """
    data, layout, sizes = plan.data(), plan.layout, plan.prepared.sizes
    n = len(data.class_of)
    kind = np.int64 if int(sizes.max()) * n >= 2**32 else np.uint32
    negatives = np.empty((len(sizes), layout.bins), kind)
    pairs = int((sizes * (sizes - 1) // 2).sum())
    shape = (pairs,) if layout.list_positives else (len(sizes), layout.bins)
    positives = np.empty(shape, np.float32 if layout.list_positives else kind)
    found = QueryScores(np.empty(n, np.int32), np.empty(n, np.int32), np.zeros(n), np.zeros(n))
    listed = 0
    for superblock in range(plan.superblocks):
        counts = superblock_counts(superblock)
        classes = slice(plan.class_edges[superblock], plan.class_edges[superblock + 1])
        rows = slice(plan.row_edges[superblock], plan.row_edges[superblock + 1])
        check_complete(plan, superblock, counts)
        negatives[classes] = counts.negatives
        if layout.list_positives and counts.positives is not None:
            positives[listed : listed + len(counts.positives)] = counts.positives
            listed += len(counts.positives)
        elif counts.positives is not None:
            positives[classes] = counts.positives
        found.nearer[rows], found.as_near[rows] = counts.nearer, counts.as_near
        kernels.score_ranks(
            plan.slots_of(superblock),
            counts.alive,
            counts.between,
            found.r_precision[rows],
            found.average_precision[rows],
        )
    for number, scores in large.items():
        first = 0
        for start, end in plan.strips_of(number):
            found.r_precision[start:end] = scores[0, first : first + end - start]
            found.average_precision[start:end] = scores[1, first : first + end - start]
            first += end - start
    if plan.columns is None:
        with one_blas_thread():
            ranks = finish_ranks(data, found, tuple(k), plan.map_at_r, threads)
    else:  # no ranks without all negatives
        ranks = RankCounts.from_queries(data.class_of, sizes, (), found.nearer, None, None)
    kept = BinnedDistances.within_span(negatives, layout.span, data.axis, appearances=2 if plan.columns is None else 1)
    if layout.list_positives:
        return PassResult(PairCounts(list_by_class(positives, sizes, data.axis), kept), ranks)
    binned = BinnedDistances.within_span(positives, layout.span, data.axis, appearances=1)
    return PassResult(PairCounts(binned, kept), ranks)


def check_complete(plan: PartPlan, superblock: int, counts: SuperblockCounts) -> None:
    """Refuse counts that are not those of all pairs of each class."""
    sizes, n = plan.sizes_of(superblock), len(plan.prepared.vectors)
    pairs = sizes * (sizes - 1) // 2
    if plan.layout.list_positives:
        positives_fit = (0 if counts.positives is None else len(counts.positives)) == pairs.sum()
    else:
        positives_fit = counts.positives is not None and bool(
            (counts.positives.sum(axis=1, dtype=np.int64) == pairs).all()
        )
    compared = counts.negatives.sum(axis=1, dtype=np.int64)
    if plan.columns is None:
        most = least = sizes * (n - sizes)
    else:  # as many sampled items are of the class itself as it has stretches of rows, or one more
        most, least = sizes * plan.columns, sizes * (plan.columns - plan.columns * sizes // n - 2)
    if not positives_fit or ((compared < least) | (compared > most)).any():
        raise InputError("the counts of the parts do not add up to all pairs: a part is damaged, count the parts again")


def merge_all(plan: PartPlan, parts: Iterable[PartCounts]) -> PartCounts:
    """Merge the counts of all parts; missing parts are refused by number."""
    merged: PartCounts | None = None
    for counts in parts:
        merged = counts if merged is None else merge_counts(plan, merged, counts)
    check_numbers(plan, () if merged is None else merged.numbers)
    assert merged is not None
    return merge_counts(plan, merged, PartCounts(plan.digest, (), {}, {}))  # a single part is checked too


def check_numbers(plan: Any, numbers: Iterable[int]) -> None:
    """Refuse parts of which some are missing."""
    if missing := sorted(set(plan.numbers) - set(numbers)):
        raise InputError(f"{say_missing(missing, plan.parts)}: count what is missing, then merge again")
