"""Compare probes with a gallery in the parts of a plan on a Ray cluster: the tasks, which ``ray_parts.py`` runs."""

from dataclasses import replace
from typing import Any

from isomargin.measure.pairs.gallery_part_files import counts_in, save_gallery_part
from isomargin.measure.pairs.gallery_parts import (
    Counts,
    GalleryPartCounts,
    count_gallery_part,
    finish_gallery,
    merge_sections,
    narrowed,
)
from isomargin.measure.pairs.gallery_pass import GalleryPass
from isomargin.measure.pairs.gallery_plan import GalleryPlan
from isomargin.measure.pairs.part_files import PartFile, already_counted, name_of
from isomargin.measure.ray_parts import Counted, Journal, Report, Run, SentPlan, Tasks


class GalleryJournal(Journal):
    """The folder of the files of finished parts; its settings are those of the evaluation, and the margin."""

    def has(self, plan: GalleryPlan, number: int) -> bool:
        """Whether a part is in the journal; the file of another plan is refused."""
        settings, margin = self.settings
        return already_counted(self.folder, plan, settings, number, margin=margin)


def count_or_read(sent: SentPlan, journal: Journal | None, number: int, threads: int) -> list[Any]:
    """Count a part and write it into the journal; or read it from there, if an earlier attempt came that far.

    Returns:
        `Counted`, and the counts of each section that the part touches, in order.
    """
    plan: GalleryPlan = sent.open()
    keeps = journal is not None and journal.seen()
    if keeps and journal is not None and journal.has(plan, number):
        counts = counts_in(PartFile.open(journal.folder / name_of(plan, number)))
    else:
        counts = count_gallery_part(plan, number, threads=threads)
        counts = replace(counts, superblocks={at: narrowed(found) for at, found in counts.superblocks.items()})
        if keeps and journal is not None:
            settings, margin = journal.settings
            save_gallery_part(journal.folder, plan, settings, margin, counts)
    return [Counted({}, keeps), *(found for _, found in sorted(counts.superblocks.items()))]


def save_here(
    sent: SentPlan, journal: Journal, number: int, sections: list[int], counted: Counted, *found: Counts
) -> None:
    """Write a part into the journal, on the driver's node, because its worker does not see the folder."""
    counts = GalleryPartCounts(sent.digest, (number,), dict(zip(sections, found, strict=True)))
    settings, margin = journal.settings
    save_gallery_part(journal.folder, sent.open(), settings, margin, counts)


def merge_some(sent: SentPlan, section: int, *counts: Counts) -> list[Any]:
    """Merge counts of one section. Returns None, which the driver waits for, and the merged counts."""
    plan, merged = sent.open(), counts[0]
    for found in counts[1:]:
        merged = merge_sections(plan, section, merged, found)
    return [None, narrowed(merged)]


COMPARING = Tasks(count_or_read, save_here, merge_some)


def compare_on_ray(plan: GalleryPlan, journal: Journal | None, threads: int, report: Report | None) -> GalleryPass:
    """Count all parts of a plan on the cluster that this process is connected to, and assemble their counts."""
    with Run(plan, journal, threads, COMPARING) as run:
        run.count_all(report)
        return finish_gallery(plan, run.take)
