"""Count one part of a gallery's comparisons, and merge parts: in any order, they are those of the single pass.

A part counts cells with the pass of ``gallery_tiles.py``, over a section of probes and one of the gallery at a time.
Counts of classes add up, and so do the classes that are nearer than a probe's own; of the best two classes of each
section, the best two are kept.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.memory import forget_pages
from isomargin.core.threads import available_cores
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData
from isomargin.measure.pairs.gallery_kernels import Best
from isomargin.measure.pairs.gallery_pass import GalleryPass, OwnDistances, own_bins, own_distances, positives_of
from isomargin.measure.pairs.gallery_plan import GalleryPlan
from isomargin.measure.pairs.gallery_tiles import Block, TilePass, own_floor, scores_of, span_of
from isomargin.measure.pairs.parts import check_mergeable, check_numbers
from isomargin.measure.pairs.tiles import Progress

BROKEN = "the counts of the parts do not add up to all comparisons: a part is damaged, count the parts again"


@dataclass(frozen=True)
class ClassCounts:
    """What a part has counted of a section of the gallery."""

    negatives: NDArray[Any]
    """(classes, bins) comparisons with probes of other classes."""


@dataclass(frozen=True)
class ProbeCounts:
    """What a part has counted of a section of the probes."""

    by_probe: NDArray[Any]
    """(classes of the section's probes, bins) comparisons with other classes, by the class of the probe."""
    nearer: NDArray[np.int32]
    """(probes,) classes (rows, if every item stands by itself) that are nearer than the probe's own class."""
    first: NDArray[np.float32]
    """(probes,) similarity to the nearest other class."""
    first_class: NDArray[np.int64]
    """(probes,) that class."""
    second: NDArray[np.float32]
    """(probes,) similarity to the second nearest other class."""
    second_class: NDArray[np.int64]
    """(probes,) that class; -1 if there is none yet."""
    own_nearest: Floats | None = None
    """(known probes,) distance to the probe's own class; None unless the first section of the gallery was counted."""
    own_listed: Floats | None = None
    """(pairs,) distances to every item of it, if every item stands by itself and they are few."""
    own_binned: NDArray[np.int64] | None = None
    """(classes, bins) the same, if they are many."""


Counts = ClassCounts | ProbeCounts


@dataclass(frozen=True)
class GalleryPartCounts:
    """What one part, or several merged ones, have counted."""

    plan: str
    """Digest of the plan."""
    numbers: tuple[int, ...]
    """The parts, ascending."""
    superblocks: dict[int, Counts]
    """The counts of the sections that these parts touch."""


def count_gallery_part(
    plan: GalleryPlan, number: int, *, threads: int | None = None, progress: Progress | None = None
) -> GalleryPartCounts:
    """Count the comparisons of one part of a plan.

    The result depends on nothing but the plan and the number, so that parts can be counted in any process, in any
    order, and again after a failure.

    Args:
        plan: what `isomargin.plan_gallery` returned.
        number: the number of the part, from 1.
        threads: number of CPU threads; by default one per core.
        progress: a function that is called with the share of the work done.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(8), np.arange(8)).save(f"{name}/gallery.npy")
    ...     im.EmbeddingSet(np.eye(8)[np.arange(2000) % 8], np.arange(2000) % 9).save(f"{name}/probes.npy")
    ...     prepared = im.prepare_gallery(f"{name}/gallery.npy", f"{name}/probes.npy", f"{name}/prepared")
    ...     im.count_gallery_part(im.plan_gallery(prepared, parts=3), 1).numbers
    (1,)
    """
    checks.whole(number, "number", 1, plan.parts)
    found: dict[int, Counts] = {}
    cells, done = plan.cells(number), 0
    for section, its_cells in groupby(cells, key=itemgetter(0)):
        gallery = plan.gallery_section(section)
        for _, other in its_cells:

            def report(share: float, done: int = done) -> None:
                if progress is not None:
                    progress((done + share) / len(cells))

            for at, counts in count_cell(plan, section, gallery, other, threads, report).items():
                known = found.get(at)
                found[at] = counts if known is None else merge_sections(plan, at, known, counts)
            done += 1
    return GalleryPartCounts(plan.digest, (number,), found)


def count_cell(
    plan: GalleryPlan,
    one: int,
    gallery: tuple[GalleryData, tuple[Block, ...]],
    other: int,
    threads: int | None,
    progress: Progress,
) -> dict[int, Counts]:
    """Compare a section of probes with a section of the gallery; the first one brings the distances to own classes."""
    probes, first_class = plan.probes_of(other), plan.classes_of(one).start
    own = own_distances(plan.data, probes.start, probes.stop)
    for mapped in (plan.data.rows, plan.data.probes, plan.data.sums):
        forget_pages(mapped)
    layout = plan.layout._replace(probe_edges=plan.probe_blocks(other), blocks=gallery[1])
    floor = own_floor(own.nearest, probes.stop - probes.start)
    the_pass = TilePass(plan.with_probes(one, gallery[0], other), floor, layout)
    the_pass.run(threads or available_cores(), progress)
    best = the_pass.best
    of_probes = ProbeCounts(
        the_pass.probe_counters,
        best.nearer,
        best.first,
        np.where(best.first_class >= 0, best.first_class + first_class, -1),
        best.second,
        np.where(best.second_class >= 0, best.second_class + first_class, -1),
    )
    if one == 0:
        listed = own.listed if plan.prepared.template == "each" and own.binned is None else None
        of_probes = replace(of_probes, own_nearest=own.nearest, own_listed=listed, own_binned=own.binned)
    of_classes = ClassCounts(the_pass.counters.reshape(-1, layout.bins))
    return {one: of_classes, plan.gallery_sections + other: of_probes}


def merge_gallery_counts(plan: GalleryPlan, one: GalleryPartCounts, other: GalleryPartCounts) -> GalleryPartCounts:
    """Merge the counts of two parts, or of parts that were merged before; the order does not matter."""
    check_mergeable(plan.digest, one, other)
    sections = dict(one.superblocks)
    for section, found in other.superblocks.items():
        known = sections.get(section)
        sections[section] = found if known is None else merge_sections(plan, section, known, found)
    return GalleryPartCounts(plan.digest, tuple(sorted(one.numbers + other.numbers)), sections)


def merge_sections(plan: GalleryPlan, section: int, one: Counts, other: Counts) -> Counts:
    """Add the counts of the same section from two parts."""
    if isinstance(one, ClassCounts) and isinstance(other, ClassCounts):
        return ClassCounts(add(one.negatives, other.negatives, plan.class_counter))
    assert isinstance(one, ProbeCounts)
    assert isinstance(other, ProbeCounts)
    first, first_class, second, second_class = best_two(one, other)
    return replace(
        one if one.own_nearest is not None else other,
        by_probe=add(one.by_probe, other.by_probe, plan.probe_counter),
        nearer=one.nearer + other.nearer,
        first=first,
        first_class=first_class,
        second=second,
        second_class=second_class,
    )


def add(one: NDArray[Any], other: NDArray[Any], kind: type) -> NDArray[Any]:
    """Add counts in a type in which they do not overflow."""
    return np.asarray(np.add(one, other, dtype=kind, casting="same_kind"))


def best_two(one: ProbeCounts, other: ProbeCounts) -> tuple[NDArray[Any], ...]:
    """Return the best two classes of each probe of the best two of two sections: similarity, class, and again."""
    ahead = precedes(other.first, other.first_class, one.first, one.first_class)
    best, next_best = np.where(ahead, other.first, one.first), np.where(ahead, one.first, other.first)
    best_class = np.where(ahead, other.first_class, one.first_class)
    next_class = np.where(ahead, one.first_class, other.first_class)
    second = np.where(ahead, other.second, one.second)
    second_class = np.where(ahead, other.second_class, one.second_class)
    passed = precedes(next_best, next_class, second, second_class)
    return best, best_class, np.where(passed, next_best, second), np.where(passed, next_class, second_class)


def precedes(value: Any, its_class: Any, other_value: Any, other_class: Any) -> NDArray[np.bool_]:
    """Whether classes come before others: the more similar one, and the lower number among equals, as in the pass."""
    return np.asarray((value > other_value) | ((value == other_value) & (its_class < other_class)))


def narrowed(counts: Counts) -> Counts:
    """Hold counts in as few bytes as they need."""
    if isinstance(counts, ClassCounts):
        return ClassCounts(narrow(counts.negatives))
    return replace(counts, by_probe=narrow(counts.by_probe))


def narrow(counts: NDArray[Any]) -> NDArray[Any]:
    """Return counts in the smallest type that holds them."""
    return counts.astype(np.min_scalar_type(counts.max(initial=0)), copy=False)


def finish_gallery(plan: GalleryPlan, section_counts: Callable[[int], Counts]) -> GalleryPass:
    """Assemble the counts of all sections.

    ``section_counts`` returns the merged counts of a section; it is called once for each, in order.
    """
    data, n, span = plan.data, len(plan.data.probes), span_of(plan.data)
    negatives: NDArray[Any] = np.empty((data.classes, plan.layout.bins), plan.class_counter)
    columns = data.ends - data.starts if data.template == "each" else np.ones(data.classes, np.int64)
    for section in range(plan.gallery_sections):
        classes, counted = plan.classes_of(section), section_counts(section)
        assert isinstance(counted, ClassCounts)
        check_totals(counted.negatives, columns[classes] * (n - data.known_sizes[classes]))
        negatives[classes] = counted.negatives
    probe_rows = data.classes + len(data.unknown_names)
    by_probe: NDArray[Any] = np.zeros((probe_rows, plan.layout.probe_bins), plan.probe_counter)
    best = Best(
        own=np.empty(0, np.float32),
        nearer=np.empty(n, np.int32),
        first=np.empty(n, np.float32),
        first_class=np.empty(n, np.int64),
        second=np.empty(n, np.float32),
        second_class=np.empty(n, np.int64),
    )
    own = OwnOfSections(plan)
    for number in range(plan.probe_sections):
        probes, counts = plan.probes_of(number), section_counts(plan.gallery_sections + number)
        assert isinstance(counts, ProbeCounts)
        its_classes, sizes = np.unique(data.probe_class[probes], return_counts=True)
        own_columns = np.append(columns, np.zeros(len(data.unknown_names), np.int64))[its_classes]
        check_totals(counts.by_probe, sizes * (data.columns - own_columns))
        by_probe[its_classes] = add(by_probe[its_classes], counts.by_probe, by_probe.dtype.type)
        for name in ("nearer", "first", "first_class", "second", "second_class"):
            getattr(best, name)[probes] = getattr(counts, name)
        own.take(probes, counts)
    distances = own.distances()
    return GalleryPass(
        PairCounts(positives_of(data, distances), BinnedDistances.within_span(negatives, span, data.axis, 1)),
        BinnedDistances.within_span(by_probe, span, data.axis, 1),
        scores_of(data, distances.nearest, best),
    )


class OwnOfSections:
    """The distances of known probes to their own classes, taken from one section after the other."""

    def __init__(self, plan: GalleryPlan) -> None:
        self.data, self.bins = plan.data, own_bins(plan.data)
        self.nearest, self.listed = np.empty(self.data.known), [np.empty(0)]
        first, last = (int(self.data.probe_class[at]) for at in (0, self.data.known - 1))
        self.first_class = first
        self.binned = np.zeros((last + 1 - first, self.bins), np.int64) if self.bins else None

    def take(self, probes: slice, counts: ProbeCounts) -> None:
        """Take those of a section of probes."""
        end = min(probes.stop, self.data.known)
        if end <= probes.start:
            return
        if counts.own_nearest is None or len(counts.own_nearest) != end - probes.start:
            raise InputError(BROKEN)
        self.nearest[probes.start : end] = counts.own_nearest
        if counts.own_listed is not None:
            self.listed.append(counts.own_listed)
        if self.binned is not None and counts.own_binned is not None:
            first = int(self.data.probe_class[probes.start]) - self.first_class
            self.binned[first : first + len(counts.own_binned)] += counts.own_binned

    def distances(self) -> OwnDistances:
        """Return those of all probes."""
        return OwnDistances(self.nearest, np.concatenate(self.listed), self.binned)


def check_totals(counts: NDArray[Any], expected: NDArray[np.int64]) -> None:
    """Refuse counts that are not those of all comparisons of each class."""
    if len(counts) != len(expected) or (counts.sum(axis=1, dtype=np.int64) != expected).any():
        raise InputError(BROKEN)


def merge_all_gallery_parts(plan: GalleryPlan, parts: Iterable[GalleryPartCounts]) -> GalleryPartCounts:
    """Merge the counts of all parts; missing parts are refused by number."""
    merged = GalleryPartCounts(plan.digest, (), {})
    for counts in parts:
        merged = merge_gallery_counts(plan, merged, counts)
    check_numbers(plan, merged.numbers)
    return merged
