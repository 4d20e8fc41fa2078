"""The files of counted parts of a gallery, in the format of ``part_files.py``, and a folder of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.pairs.gallery_parts import (
    ClassCounts,
    Counts,
    GalleryPartCounts,
    ProbeCounts,
    merge_sections,
    narrowed,
)
from isomargin.measure.pairs.gallery_plan import GalleryPlan, plan_gallery
from isomargin.measure.pairs.gallery_prepare import PreparedGallery, is_prepared_gallery
from isomargin.measure.pairs.part_files import (
    PartFile,
    header_of,
    name_of,
    open_parts,
    refuse_parts_of_others,
    write_part,
)
from isomargin.measure.pairs.parts import check_numbers
from isomargin.measure.settings import Settings


def save_gallery_part(
    folder: Path, plan: GalleryPlan, settings: Settings, margin: float, counts: GalleryPartCounts
) -> Path:
    """Write the counts of one part into a folder, atomically, and return the file."""
    (number,) = counts.numbers
    header = header_of(plan, settings, number, margin=margin) | {"superblocks": sorted(counts.superblocks)}
    return write_part(folder / name_of(plan, number), header, arrays_of(counts))


def arrays_of(counts: GalleryPartCounts) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a part with their names in its file."""
    for section, found in sorted(counts.superblocks.items()):
        narrow = narrowed(found)
        for field in fields(narrow):
            if (array := getattr(narrow, field.name)) is not None:
                yield f"{section}/{field.name}", array


def section_in(file: PartFile, section: int) -> Counts | None:
    """Read the counts of a section; None if the part does not touch it."""
    arrays = file.arrays(section)
    if arrays is None:
        return None
    return ClassCounts(**arrays) if "negatives" in arrays else ProbeCounts(**arrays)


def counts_in(file: PartFile) -> GalleryPartCounts:
    """Read the counts of a part."""
    found = {section: section_in(file, section) for section in file.header["superblocks"]}
    there = {section: counts for section, counts in found.items() if counts is not None}
    return GalleryPartCounts(file.header["plan"], (file.number,), there)


def has_gallery_parts(folder: Path) -> bool:
    """Whether the parts in a folder are those of a gallery; a folder of parts of several plans is refused by name."""
    return bool(open_parts(folder)[0].header["format"] == GalleryPlan.FORMAT)


@dataclass(frozen=True)
class GalleryPartFolder:
    """All parts of one plan in a folder, checked: none is missing, doubled or foreign."""

    plan: GalleryPlan
    """The plan."""
    settings: Settings
    """The settings of the evaluation."""
    margin: float
    """The second rule for identification."""
    files: tuple[PartFile, ...]
    """The parts by number."""

    @classmethod
    def open(cls, folder: Path, prepared: Path | None = None) -> "GalleryPartFolder":
        """Open the parts in a folder; ``prepared`` is where gallery and probes are now, if they were moved."""
        files = open_parts(folder)
        refuse_parts_of_others(files, GalleryPlan.FORMAT)
        header = files[0].header
        where = Path(header["prepared"]) if prepared is None else prepared
        if not is_prepared_gallery(where):
            raise InputError(f"{where} has no prepared gallery any more: say where it is with --prepared")
        chosen = dict(header["settings"])
        margin = float(chosen.pop("margin"))
        plan = plan_gallery(PreparedGallery.open(where), int(header["parts"]), memory=int(header["memory"]))
        if plan.digest != header["plan"]:
            raise InputError(
                f"{where} has another gallery or other probes than those of the parts in {folder}: "
                "count the parts again"
            )
        check_numbers(plan, [file.number for file in files])
        return cls(plan, Settings.from_values(**chosen), margin, tuple(sorted(files, key=lambda file: file.number)))

    def section(self, section: int) -> Counts:
        """Merge the counts of a section from all parts that touch it."""
        merged: Counts | None = None
        for file in self.files:
            if (found := section_in(file, section)) is not None:
                merged = found if merged is None else merge_sections(self.plan, section, merged, found)
        assert merged is not None
        return merged
