"""The exact count: float64 products, no bins, in three passes over groups of classes.

The first pass computes what concerns one class at a time and finds the narrow bins that contain the pooled quantiles.
The second collects the distances in those bins. The third counts the pairs within the distances found. This takes
three full float64 products, so it is slower than the binned pass, and the rows of the largest class must fit into
memory. It is meant for small sets, for distances that repeat, and for checking the binned pass.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.threads import available_cores, one_blas_thread
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats, ListedDistances
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.rates import kept_pairs, needed_pairs, pairs_at_far, threshold_at_frr
from isomargin.measure.pairs.retrieval import QUANTUM, rank_query
from isomargin.measure.pairs.sampled import REPEATED, repeated_share
from isomargin.measure.pairs.summary import PairSummary, check_range
from isomargin.measure.pairs.tiles import Progress, number_of_bins
from isomargin.measure.pairs.verification import crossing, listed_auc, listed_eer
from isomargin.measure.settings import Settings

Result = TypeVar("Result")

QUANTUM_OF_REPEATED = 2.0**-36  # coarser, so that where distances repeat, equal ones rarely round to different steps
GROUP_BYTES = 1 << 27  # size of the distances held by one worker
LARGEST_CLASS_BYTES = 1 << 29  # size of one class's distances; a worker needs about four times as much
MOST_POSITIVES = 1 << 26
LISTED_NEGATIVES = 1 << 19  # up to this many negative pairs are kept one by one, so that `with_settings` is exact too
FINE_BITS = (10, 19)  # fewest and most pooled bins per unit of distance, as powers of two; more for more pairs
KEPT_DISTANCES = 1 << 25  # up to this many distances are kept from pass to pass instead of recomputed


class ExactResult(NamedTuple):
    """An exact summary, and the counts from which other settings can be computed later."""

    counts: PairCounts
    ranks: RankCounts
    summary: PairSummary


@dataclass(frozen=True)
class ClassResult:
    """What the first pass finds out about one class."""

    positives: Floats  # ascending
    negatives: Floats | NDArray[np.uint32]  # the distances, ascending, if they are kept; else counts in bins
    far_distance: float
    auc: float
    eer: float
    nearer: NDArray[np.int32]  # (queries,)
    r_precision: Floats  # (queries,)
    average_precision: Floats  # (queries,)


def fits(data: ClassSortedVectors) -> bool:
    """Whether the distances of the largest class, and those of all positive pairs, fit into memory."""
    sizes = data.sizes
    positives = int((sizes * (sizes - 1) // 2).sum())
    return int(sizes.max()) * len(data.class_of) * 8 <= LARGEST_CLASS_BYTES and positives <= MOST_POSITIVES


class ExactPass:
    """The three passes and the state they share. ``data`` must hold float64 vectors."""

    def __init__(
        self, data: ClassSortedVectors, settings: Settings, threads: int | None, progress: Progress | None
    ) -> None:
        if not fits(data):
            raise InputError(
                "the exact count keeps all distances within classes and all distances of the largest class in memory, "
                f"and a class of {data.sizes.max():,} among {len(data.class_of):,} items is too large for that: "
                "leave out exact"
            )
        self.data, self.settings = data, settings
        self.threads = threads or available_cores()
        self.progress = progress or (lambda share: None)
        self.starts, self.ends = data.starts, data.ends
        n = len(data.class_of)
        self.negative_totals = data.sizes * (n - data.sizes)
        self.pooled_negatives = int(self.negative_totals.sum()) // 2
        self.keep_negatives = self.pooled_negatives <= LISTED_NEGATIVES
        self.edges = np.linspace(*data.span, number_of_bins(len(data.sizes), n) + 1)
        self.fine = 1 << int(np.clip(self.pooled_negatives.bit_length(), *FINE_BITS))
        self.fine_bins = int(np.ceil((data.axis.highest - data.axis.lowest) * self.fine)) + 1
        self.kept: dict[int, Floats] | None = {} if n * n <= KEPT_DISTANCES else None
        self.quantum = QUANTUM_OF_REPEATED if repeated_share(data) > REPEATED else QUANTUM
        self.done = 0.0

    def groups(self) -> list[slice]:
        """Split the classes into groups of consecutive classes, each as large as a worker can hold."""
        most_rows = max(1, GROUP_BYTES // 8 // len(self.data.class_of))
        groups, first = [], 0
        while first < len(self.data.sizes):
            last = int(np.searchsorted(self.ends, self.starts[first] + most_rows, side="right"))
            groups.append(slice(first, max(last, first + 1)))
            first = groups[-1].stop
        return groups

    def distances(self, group: slice) -> Floats:
        """(rows of the group, n) distances from the group's items to all items."""
        if self.kept is not None and group.start in self.kept:
            return self.kept[group.start]
        rows = slice(self.starts[group.start], self.ends[group.stop - 1])
        distances = self.data.axis.distances(self.data.similarity(rows, slice(None)), self.quantum)
        if self.kept is not None:
            self.kept[group.start] = distances
        return distances

    def fine_bin(self, distances: Floats) -> NDArray[np.int64]:
        """The narrow bin of each distance."""
        return ((distances - self.data.axis.lowest) * self.fine).astype(np.int64)

    def fine_edge(self, number: NDArray[np.int64] | int) -> Any:
        """The distance at which a narrow bin starts."""
        return self.data.axis.lowest + number / self.fine

    def each_group(self, work: Callable[[slice, Floats], Result]) -> Iterator[Result]:
        """Apply ``work`` to each group's distances on all threads; results come in the order of the groups."""
        groups = self.groups()
        share = 1 / 3 / len(groups)
        with one_blas_thread(), ThreadPoolExecutor(self.threads) as pool:
            for result in pool.map(lambda group: work(group, self.distances(group)), groups):
                self.done += share
                self.progress(self.done)
                yield result

    def blocks(self, group: slice, distances: Floats) -> Iterator[tuple[int, Floats]]:
        """Yield each class of a group with the (size, n) distances of its rows."""
        origin = self.starts[group.start]
        for i in range(group.start, group.stop):
            yield i, distances[self.starts[i] - origin : self.ends[i] - origin]

    def negatives(self, class_index: int, block: Floats) -> Floats:
        """Distances of the class's negative pairs, unsorted."""
        return np.concatenate(
            [block[:, : self.starts[class_index]].ravel(), block[:, self.ends[class_index] :].ravel()]
        )

    def pooled_negatives_of(self, group: slice, distances: Floats) -> Floats:
        """Distances of the negative pairs between these classes and later ones, so that each pair is counted once."""
        return np.concatenate([block[:, self.ends[i] :].ravel() for i, block in self.blocks(group, distances)])

    def ranks_alone(self) -> RankCounts:
        """Run the first pass only, for the retrieval results."""
        return self.ranks_of(self.first_pass()[0])

    def ranks_of(self, classes: list[ClassResult]) -> RankCounts:
        """Sum the queries' ranks over each class."""
        return RankCounts.from_queries(
            self.data.class_of,
            self.data.sizes,
            self.settings.k,
            np.concatenate([result.nearer for result in classes]),
            np.concatenate([result.r_precision for result in classes]) if self.settings.map_at_r else None,
            np.concatenate([result.average_precision for result in classes]) if self.settings.map_at_r else None,
        )

    def run(self) -> ExactResult:
        """Run all three passes."""
        sizes = self.data.sizes
        classes, fine_counts = self.first_pass()
        positives = ListedDistances(
            np.concatenate([result.positives for result in classes]),
            np.concatenate([[0], np.cumsum(sizes * (sizes - 1) // 2)]),
            appearances=1,
            axis=self.data.axis,
        )
        quantiles = self.find_quantiles(positives, fine_counts)
        counts = PairCounts(positives, self.keep(classes))
        return ExactResult(counts, self.ranks_of(classes), self.third_pass(classes, positives, quantiles))

    def keep(self, classes: list[ClassResult]) -> ListedDistances | BinnedDistances:
        """Return the negatives in the form in which they are kept: listed if there are few, else binned."""
        if self.keep_negatives:
            offsets = np.concatenate([[0], np.cumsum(self.negative_totals)])
            listed = np.concatenate([result.negatives for result in classes])
            return ListedDistances(listed, offsets, appearances=2, axis=self.data.axis)
        binned = np.stack([result.negatives for result in classes])
        return BinnedDistances.within_span(binned, self.data.span, self.data.axis, appearances=2)

    def first_pass(self) -> tuple[list[ClassResult], NDArray[np.int64]]:
        """Return the result of each class, and (fine bins,) the counts of the pooled negatives in narrow bins."""

        def work(group: slice, distances: Floats) -> tuple[list[ClassResult], NDArray[np.int64]]:
            results = [self.study_class(i, block) for i, block in self.blocks(group, distances)]
            fine = self.fine_bin(self.pooled_negatives_of(group, distances))
            return results, np.bincount(fine, minlength=self.fine_bins)

        classes: list[ClassResult] = []
        fine_counts = np.zeros(self.fine_bins, np.int64)
        for results, fine in self.each_group(work):
            classes += results
            fine_counts += fine
        return classes, fine_counts

    def study_class(self, class_index: int, block: Floats) -> ClassResult:
        """Compute everything about one class that needs only the pairs of that class."""
        size, start = len(block), self.starts[class_index]
        positives = np.sort(np.concatenate([block[i, start + i + 1 : start + size] for i in range(size)]))
        negatives = np.sort(self.negatives(class_index, block))
        needed = int(needed_pairs(self.settings.target_far, np.array(len(negatives))))
        has_positives = len(positives) > 0
        return ClassResult(
            positives,
            negatives if self.keep_negatives else self.count_in_bins(negatives),
            float(negatives[needed - 1]),
            listed_auc(positives, negatives) if has_positives else np.nan,
            listed_eer(positives, negatives)[0] if has_positives else np.nan,
            *self.rank_queries(class_index, block),
        )

    def count_in_bins(self, ascending: Floats) -> NDArray[np.uint32]:
        """(bins,) number of distances in each bin."""
        below = np.searchsorted(ascending, self.edges, side="left")
        below[-1] = len(ascending)
        return np.diff(below).astype(np.uint32)

    def rank_queries(self, class_index: int, block: Floats) -> tuple[NDArray[np.int32], Floats, Floats]:
        """For each item of the class: negatives nearer than its nearest positive, R-precision, average precision."""
        size, start, end = len(block), self.starts[class_index], self.ends[class_index]
        nearer, r_precision, average_precision = np.zeros(size, np.int32), np.zeros(size), np.zeros(size)
        if size == 1:
            return nearer, r_precision, average_precision
        for i, row in enumerate(block):
            negatives = np.concatenate([row[:start], row[end:]])
            nearer[i], r_precision[i], average_precision[i] = rank_query(np.delete(row[start:end], i), negatives)
        return nearer, r_precision, average_precision

    def find_quantiles(self, positives: ListedDistances, fine_counts: NDArray[np.int64]) -> "Quantiles":
        """Second pass: collect the distances in the bins that contain the pooled quantiles, and find them exactly."""
        settings, total = self.settings, self.pooled_negatives
        below = np.concatenate([[0], np.cumsum(fine_counts)])
        wanted = [pairs_at_far(settings.target_far, total, "target_far")]
        if settings.distances is None:
            wanted.append(pairs_at_far(settings.far[1], total, "far"))
            if settings.frr is None:
                wanted.append(pairs_at_far(settings.far[0], total, "far"))
        bins = [int(np.searchsorted(below, count, side="left")) - 1 for count in wanted]
        # FAR - FRR rises. The equal error rate is reached at a distance in the bin where it stops being negative, or at
        # the last distance before that bin.
        kept = np.searchsorted(positives.pooled, self.fine_edge(np.arange(1, len(below))), side="left")
        frr = 1 - kept / positives.pooled_total
        meeting = int(np.argmax(below[1:] / total >= frr))
        earlier = np.flatnonzero(fine_counts[:meeting])[-1:]
        inside, auc = self.second_pass(positives, np.unique([*bins, meeting, *earlier]))
        at = [inside.distance_at(self.fine_edge(b), count - below[b]) for b, count in zip(bins, wanted, strict=True)]
        low, high = self.range_from(at, positives)
        eer = self.eer_around(meeting, inside, positives, below)
        return Quantiles(at[0], low, high, eer, auc)

    def range_from(self, at: list[float], positives: ListedDistances) -> tuple[float, float]:
        """Return the calibration range, given the pooled distances at the requested rates."""
        settings = self.settings
        if settings.distances is not None:
            return self.data.axis.check_range(settings.distances)
        if settings.frr is None:
            return check_range(at[2], at[1], settings)
        return check_range(threshold_at_frr(positives, settings.frr), at[1], settings)

    def second_pass(self, positives: ListedDistances, bins: NDArray[np.int64]) -> tuple["Tally", float]:
        """Return the distances of the pooled negatives in these narrow bins, and the pooled AUC."""
        wanted = np.zeros(self.fine_bins, bool)
        wanted[bins] = True
        pooled_positives = positives.pooled

        def work(group: slice, distances: Floats) -> tuple[Tally, int]:
            once = np.sort(self.pooled_negatives_of(group, distances))
            nearer = np.searchsorted(once, pooled_positives, side="left").sum()
            as_near = np.searchsorted(once, pooled_positives, side="right").sum()
            return Tally(*np.unique(once[wanted[self.fine_bin(once)]], return_counts=True)), int(nearer + as_near)

        collected, twice_nearer = [], 0
        for inside, twice in self.each_group(work):
            collected.append(inside)
            twice_nearer += twice
        auc = 1 - twice_nearer / 2 / positives.pooled_total / self.pooled_negatives
        return Tally.merge(collected), auc

    def eer_around(
        self, meeting: int, inside: "Tally", positives: ListedDistances, below: NDArray[np.int64]
    ) -> tuple[float, float]:
        """Return the equal error rate and its threshold, from the distances around the bin where FAR meets FRR."""
        pooled = positives.pooled
        edges = self.fine_edge(np.array([meeting, meeting + 1]))
        first, last = np.searchsorted(pooled, edges, side="left")
        a, b = np.searchsorted(inside.values, edges, side="left")
        previous = max([-np.inf, *pooled[max(first - 1, 0) : first], *inside.values[max(a - 1, 0) : a]])
        thresholds = np.unique(np.concatenate([[previous], pooled[first:last], inside.values[a:b]]))
        accepted = np.concatenate([[0], np.cumsum(inside.counts[a:b])])
        found = np.searchsorted(inside.values[a:b], thresholds, side="right")
        far = (below[meeting] + accepted[found]) / self.pooled_negatives
        frr = 1 - np.searchsorted(pooled, thresholds, side="right") / len(pooled)
        eer, at = crossing(far, frr)
        return eer, float(thresholds[at])

    def third_pass(self, classes: list[ClassResult], positives: ListedDistances, quantiles: "Quantiles") -> PairSummary:
        """Count each class's negatives within the distances of the grid and within the target distance."""
        grid = np.linspace(quantiles.low, quantiles.high, self.settings.grid)
        at = np.append(grid, quantiles.target)
        order = np.argsort(at)

        def work(group: slice, distances: Floats) -> Floats:
            within = np.empty((group.stop - group.start, len(at)))
            for i, block in self.blocks(group, distances):
                cells = np.searchsorted(at[order], self.negatives(i, block), side="left")
                counts = np.bincount(cells, minlength=len(at) + 1)[: len(at)]
                within[i - group.start, order] = np.cumsum(counts)
            return within

        negatives_within = np.concatenate(list(self.each_group(work)))
        return PairSummary(
            calibration_range=(quantiles.low, quantiles.high),
            distances=grid,
            positives_within=positives.within(grid),
            negatives_within=negatives_within[:, :-1],
            pooled_positives_within=positives.pooled_within(grid),
            pooled_negatives_within=negatives_within[:, :-1].sum(axis=0) / 2,
            target_distance=quantiles.target,
            target_positives_within=positives.within(np.array([quantiles.target]))[:, 0],
            target_negatives_within=negatives_within[:, -1],
            class_far_distance=np.array([result.far_distance for result in classes]),
            class_frr_distance=positives.class_distance_at(kept_pairs(self.settings.target_frr, positives.totals)),
            eer=quantiles.eer[0],
            eer_distance=quantiles.eer[1],
            class_eer=np.array([result.eer for result in classes]),
            auc=quantiles.auc,
            class_auc=np.array([result.auc for result in classes]),
        )


class Tally(NamedTuple):
    """Distinct distances, ascending, and the number of pairs at each; small where distances repeat."""

    values: Floats
    counts: NDArray[np.int64]

    @classmethod
    def merge(cls, tallies: "list[Tally]") -> "Tally":
        """Add up several tallies."""
        values, place = np.unique(np.concatenate([tally.values for tally in tallies]), return_inverse=True)
        counts = np.zeros(len(values), np.int64)
        np.add.at(counts, place, np.concatenate([tally.counts for tally in tallies]))
        return cls(values, counts)

    def distance_at(self, low: float, count: int) -> float:
        """Return the distance of the ``count``-th nearest pair among those at least ``low`` apart."""
        first = int(np.searchsorted(self.values, low, side="left"))
        return float(self.values[first + np.searchsorted(np.cumsum(self.counts[first:]), count, side="left")])


@dataclass(frozen=True)
class Quantiles:
    """What the second pass finds for all classes pooled: the target distance, the range, the EER and the AUC."""

    target: float
    low: float
    high: float
    eer: tuple[float, float]
    auc: float
