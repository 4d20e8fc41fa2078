"""What is done with the parts of all pairs and with those of a gallery, under the same names, for whoever runs them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isomargin.core.errors import InputError
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.gallery_part_files import counts_in, save_gallery_part
from isomargin.measure.pairs.gallery_parts import (
    Counts,
    GalleryPartCounts,
    count_gallery_part,
    finish_gallery,
    merge_sections,
)
from isomargin.measure.pairs.gallery_parts import narrowed as narrowed_section
from isomargin.measure.pairs.gallery_pass import GalleryPass
from isomargin.measure.pairs.gallery_plan import GalleryPlan, plan_gallery
from isomargin.measure.pairs.gallery_prepare import PreparedGallery, is_prepared_gallery
from isomargin.measure.pairs.part_files import PartFile, already_counted, save_part
from isomargin.measure.pairs.part_plan import PartPlan, plan_for
from isomargin.measure.pairs.parts import (
    PartCounts,
    SuperblockCounts,
    count_part,
    finish_parts,
    merge_superblocks,
    narrowed,
)
from isomargin.measure.pairs.prepare import Prepared, is_prepared
from isomargin.measure.pairs.tiles import PassResult
from isomargin.measure.settings import Settings

MORE_PARTS = (1, 4, 16, 64)  # times as many parts as there are places for, until the counts of a part fit into memory


@dataclass(frozen=True)
class PairsWork:
    """Parts of all pairs of a set."""

    settings: Settings
    """The settings of the evaluation."""

    def plan(self, prepared: Prepared, memory: int, parts: int) -> PartPlan:
        """Divide the pairs into so many parts."""
        return plan_for(prepared, parts, memory, self.settings)

    def plan_about(self, prepared: Prepared, memory: int, wanted: int) -> PartPlan:
        """Divide them into about as many parts as wanted, and at most one pair of superblocks for each part."""
        sampled, blocks = self.settings.pairs == "stratified", -(-len(prepared.vectors) // tiles.TILE_ROWS)
        most = blocks if sampled else blocks * (blocks + 1) // 2
        plan = self.plan(prepared, memory, min(wanted, most))
        cells = plan.superblocks if sampled else plan.superblocks * (plan.superblocks + 1) // 2
        return plan if cells <= plan.parts else self.plan(prepared, memory, min(cells, plan.tiles))

    def comparisons(self, plan: PartPlan) -> int:
        """Return how many pairs are counted."""
        n = len(plan.prepared.vectors)
        return n * (n - 1) // 2 if plan.columns is None else n * plan.columns

    def seen(self, folder: Path) -> bool:
        """Whether this process sees the prepared folder."""
        return is_prepared(folder)

    def count(self, plan: PartPlan, number: int, threads: int) -> PartCounts:
        """Count a part, in as few bytes as its counts need."""
        counts = count_part(plan, number, threads=threads)
        return replace(counts, superblocks={at: narrowed(found) for at, found in counts.superblocks.items()})

    def counted(
        self, digest: str, number: int, superblocks: dict[int, SuperblockCounts], large: dict[int, Floats]
    ) -> PartCounts:
        """Put the counts of a part together."""
        return PartCounts(digest, (number,), superblocks, large)

    def large(self, counts: PartCounts) -> dict[int, Floats]:
        """Return the ranks of queries of large classes."""
        return counts.large

    def merge(
        self, plan: PartPlan, superblock: int, one: SuperblockCounts, other: SuperblockCounts
    ) -> SuperblockCounts:
        """Merge the counts of one superblock from two parts."""
        return narrowed(merge_superblocks(plan, superblock, one, self.writable(other)))

    def writable(self, counts: SuperblockCounts) -> SuperblockCounts:
        """Copy the ranks, because arrays that were sent are read-only and kernels are compiled for the others."""
        return replace(counts, alive=counts.alive.copy(), between=counts.between.copy())

    def save(self, folder: Path, plan: PartPlan, counts: PartCounts) -> None:
        """Write a part into a folder."""
        save_part(folder, plan, self.settings, counts)

    def is_kept(self, folder: Path, plan: PartPlan, number: int) -> bool:
        """Whether a folder has the file of a part; that of another plan is refused."""
        return already_counted(folder, plan, self.settings, number)

    def read(self, file: PartFile) -> PartCounts:
        """Read the file of a part."""
        return file.counts()

    def finish(
        self, plan: PartPlan, superblock_counts: Callable[[int], SuperblockCounts], large: dict[int, Floats]
    ) -> PassResult:
        """Assemble the counts of all superblocks."""
        return finish_parts(plan, lambda at: self.writable(superblock_counts(at)), large, self.settings.k)


@dataclass(frozen=True)
class GalleryWork:
    """Parts of the comparisons of probes with a gallery; its superblocks are sections of both."""

    settings: Settings
    """The settings of the evaluation."""
    margin: float
    """The second rule for identification."""

    def plan(self, prepared: PreparedGallery, memory: int, parts: int) -> GalleryPlan:
        """Divide the comparisons into so many parts."""
        return plan_gallery(prepared, parts, memory=memory)

    def plan_about(self, prepared: PreparedGallery, memory: int, wanted: int) -> GalleryPlan:
        """Divide them into about as many parts as wanted, or into more if only their counts fit into memory."""
        blocks = [-(-len(rows) // tiles.TILE_ROWS) for rows in (prepared.probes, prepared.rows)]
        most = blocks[0] * min(blocks[1], len(prepared.names))
        numbers = sorted({min(times * wanted, most) for times in MORE_PARTS})
        for number in numbers[:-1]:
            try:
                return self.plan(prepared, memory, number)
            except InputError:  # more parts have fewer counts each
                continue
        return self.plan(prepared, memory, numbers[-1])

    def comparisons(self, plan: GalleryPlan) -> int:
        """Return how many comparisons are counted."""
        return plan.data.comparisons

    def seen(self, folder: Path) -> bool:
        """Whether this process sees the prepared folder."""
        return is_prepared_gallery(folder)

    def count(self, plan: GalleryPlan, number: int, threads: int) -> GalleryPartCounts:
        """Count a part, in as few bytes as its counts need."""
        counts = count_gallery_part(plan, number, threads=threads)
        return replace(counts, superblocks={at: narrowed_section(found) for at, found in counts.superblocks.items()})

    def counted(
        self, digest: str, number: int, superblocks: dict[int, Counts], large: dict[int, Floats]
    ) -> GalleryPartCounts:
        """Put the counts of a part together; there are no ranks of large classes."""
        assert not large
        return GalleryPartCounts(digest, (number,), superblocks)

    def large(self, counts: GalleryPartCounts) -> dict[int, Floats]:
        """Return no ranks: those of probes are counted with the sections."""
        return {}

    def merge(self, plan: GalleryPlan, section: int, one: Counts, other: Counts) -> Counts:
        """Merge the counts of one section from two parts."""
        return narrowed_section(merge_sections(plan, section, one, other))

    def save(self, folder: Path, plan: GalleryPlan, counts: GalleryPartCounts) -> None:
        """Write a part into a folder."""
        save_gallery_part(folder, plan, self.settings, self.margin, counts)

    def is_kept(self, folder: Path, plan: GalleryPlan, number: int) -> bool:
        """Whether a folder has the file of a part; that of another plan is refused."""
        return already_counted(folder, plan, self.settings, number, margin=self.margin)

    def read(self, file: PartFile) -> GalleryPartCounts:
        """Read the file of a part."""
        return counts_in(file)

    def finish(
        self, plan: GalleryPlan, section_counts: Callable[[int], Counts], large: dict[int, Floats]
    ) -> GalleryPass:
        """Assemble the counts of all sections."""
        return finish_gallery(plan, section_counts)


Work = PairsWork | GalleryWork
AnyPlan = PartPlan | GalleryPlan
Result = Any
"""`PassResult`, or `GalleryPass`."""
