"""The files of counted parts: zip archives of plain numpy arrays with a header in JSON, written atomically.

They are read superblock by superblock, so that merging needs memory for one superblock beside the counts of all
classes. Nothing is ever unpickled.
"""

import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file, reading
from isomargin.core.json_values import digest
from isomargin.core.text import listed_numbers
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.part_plan import PartPlan, plan_for
from isomargin.measure.pairs.parts import PartCounts, SuperblockCounts, check_numbers, merge_superblocks, narrowed
from isomargin.measure.pairs.prepare import Prepared, is_prepared
from isomargin.measure.pairs.row_shifts import DESCRIPTION, RowShifts, has_shifts
from isomargin.measure.settings import Settings

FORMATS = {"isomargin part": "all pairs", "isomargin gallery part": "a gallery"}
"""What the header of a part's file says, and what it is a part of in words."""
VERSION = 1
HEADER = "header.json"
REMEDY = "remove it, and count the part again"  # one that is there is not counted again
COMPRESSION = 1  # zlib's fastest level: counts shrink to about a third


class AnyPlan(Protocol):
    """What files hold of a plan, of all pairs or of a gallery."""

    FORMAT: ClassVar[str]

    @property
    def parts(self) -> int:
        """Number of parts."""

    @property
    def memory(self) -> int:
        """Bytes that the process of a part may use."""

    @property
    def digest(self) -> str:
        """SHA-256 of all that the counts depend on."""

    @property
    def prepared(self) -> Any:
        """The folder that was prepared."""

    @property
    def equalizer(self) -> Any:
        """What equalizes similarities; None if they are plain."""


class NumberedFile(Protocol):
    """The file of a part of any plan."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def header(self) -> dict[str, Any]:
        """What it says about itself."""

    @property
    def number(self) -> int:
        """The number of the part."""

    @property
    def origin(self) -> str:
        """What parts that belong together have in common."""


@dataclass(frozen=True)
class PartFile:
    """The file of one part; its arrays are read when they are asked for."""

    path: Path
    """The file."""
    header: dict[str, Any]
    """What it says about itself."""

    @property
    def number(self) -> int:
        """The number of the part."""
        return int(self.header["number"])

    @property
    def origin(self) -> str:
        """What parts that belong together have in common: data, plan and settings."""
        return digest({name: self.header[name] for name in ("plan", "settings")})

    @classmethod
    def open(cls, path: Path) -> "PartFile":
        """Read the header of a file."""
        check_file(path, REMEDY)
        with reading(path, REMEDY), zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(HEADER))
            if header.get("format") not in FORMATS or header.get("version") != VERSION:
                raise InputError(f"{path} was written by another version of isomargin: {REMEDY}")
        return cls(path, header)

    @property
    def of(self) -> str:
        """What it is a part of: all pairs, or a gallery."""
        return FORMATS[self.header["format"]]

    def arrays(self, superblock: int) -> dict[str, NDArray[Any]] | None:
        """Read the arrays of a superblock by name; None if the part does not touch it."""
        if superblock not in self.header["superblocks"]:
            return None
        with reading(self.path, REMEDY), zipfile.ZipFile(self.path) as archive:
            begin = f"{superblock}/"
            names = [name for name in archive.namelist() if name.startswith(begin)]
            return {name.removeprefix(begin).removesuffix(".npy"): read_array(archive, name) for name in names}

    def superblock(self, superblock: int) -> SuperblockCounts | None:
        """Read the counts of a superblock; None if the part does not touch it."""
        arrays = self.arrays(superblock)
        if arrays is None:
            return None
        return SuperblockCounts(**{field.name: arrays.get(field.name) for field in fields(SuperblockCounts)})  # type: ignore[arg-type]

    def large(self) -> dict[int, Floats]:
        """Read the ranks of queries of large classes."""
        with reading(self.path, REMEDY), zipfile.ZipFile(self.path) as archive:
            return {self.number: read_array(archive, "large.npy")} if "large.npy" in archive.namelist() else {}

    def counts(self) -> PartCounts:
        """Read everything."""
        found = {number: self.superblock(number) for number in self.header["superblocks"]}
        superblocks = {number: counts for number, counts in found.items() if counts is not None}
        return PartCounts(self.header["plan"], (self.number,), superblocks, self.large())


def read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read an array of an archive; the archive checks its checksum."""
    with archive.open(name) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        member.read()  # to the end, where the checksum is compared
    return array


def name_of(plan: AnyPlan, number: int) -> str:
    """Return the name of a part's file."""
    digits = len(str(plan.parts))
    return f"part-{number:0{digits}}-of-{plan.parts}.npz"


def header_of(plan: AnyPlan, settings: Settings, number: int, **more: Any) -> dict[str, Any]:
    """Return what a part's file says about itself; ``more`` are further settings, such as the margin of a gallery."""
    return {
        "format": plan.FORMAT,
        "version": VERSION,
        "number": number,
        "parts": plan.parts,
        "memory": plan.memory,
        "prepared": str(plan.prepared.folder.resolve()),
        "plan": plan.digest,
        "settings": json.loads(json.dumps(asdict(settings) | more)),
        "equalizer": None if plan.equalizer is None else plan.equalizer.record["digest"],
    }


def save_part(folder: Path, plan: PartPlan, settings: Settings, counts: PartCounts) -> Path:
    """Write the counts of one part into a folder, atomically, and return the file."""
    (number,) = counts.numbers
    header = header_of(plan, settings, number) | {"superblocks": sorted(counts.superblocks)}
    return write_part(folder / name_of(plan, number), header, arrays_of(counts))


def write_part(path: Path, header: dict[str, Any], arrays: Iterable[tuple[str, NDArray[Any]]]) -> Path:
    """Write a header and named arrays into one file, atomically, and return it."""
    with (
        atomic_write(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as archive,
    ):
        archive.writestr(HEADER, json.dumps(header, indent=1))
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
    return path


def arrays_of(counts: PartCounts) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays of a part with their names in its file."""
    for superblock, found in sorted(counts.superblocks.items()):
        narrow = narrowed(found)
        for field in fields(SuperblockCounts):
            if (array := getattr(narrow, field.name)) is not None:
                yield f"{superblock}/{field.name}", array
    for scores in counts.large.values():
        yield "large", scores


def already_counted(folder: Path, plan: AnyPlan, settings: Settings, number: int, **more: Any) -> bool:
    """Whether a folder has the file of this part of this plan; the file of another plan is refused."""
    path = folder / name_of(plan, number)
    if not path.exists():
        return False
    header = PartFile.open(path).header
    expected = header_of(plan, settings, number, **more)
    if any(header[name] != expected[name] for name in ("plan", "settings")):
        raise InputError(
            f"{path} belongs to another plan, {difference([header, expected])}: remove it, or choose another folder"
        )
    return True


@dataclass(frozen=True)
class PartFolder:
    """All parts of one plan in a folder, checked: none is missing, doubled or foreign."""

    plan: PartPlan
    """The plan."""
    settings: Settings
    """The settings of the evaluation."""
    files: tuple[PartFile, ...]
    """The parts by number."""

    @classmethod
    def open(cls, folder: Path, prepared: Path | None = None) -> "PartFolder":
        """Open the parts in a folder; ``prepared`` is where the embeddings are now, if they were moved."""
        files = open_parts(folder)
        refuse_parts_of_others(files, PartPlan.FORMAT)
        header = files[0].header
        where = Path(header["prepared"]) if prepared is None else prepared
        if not is_prepared(where):
            raise InputError(f"{where} has no prepared embeddings any more: say where they are with --prepared")
        settings = Settings.from_values(**header["settings"])
        equalizer = header.get("equalizer")
        shifts = None if equalizer is None else shifts_beside(folder, equalizer)
        plan = plan_for(Prepared.open(where), int(header["parts"]), int(header["memory"]), settings, shifts)
        if plan.digest != header["plan"]:
            raise InputError(f"{where} has other embeddings than those of the parts in {folder}: count the parts again")
        check_numbers(plan, [file.number for file in files])
        return cls(plan, settings, tuple(sorted(files, key=lambda file: file.number)))

    def superblock(self, superblock: int) -> SuperblockCounts:
        """Merge the counts of a superblock from all parts that touch it."""
        merged: SuperblockCounts | None = None
        for file in self.files:
            if (found := file.superblock(superblock)) is not None:
                merged = found if merged is None else merge_superblocks(self.plan, superblock, merged, found)
        assert merged is not None
        return merged

    def large(self) -> dict[int, Floats]:
        """Read the ranks of queries of large classes from all parts."""
        return {number: scores for file in self.files for number, scores in file.large().items()}


def open_parts(folder: Path) -> list[PartFile]:
    """Open all files of parts in a folder; doubled and foreign ones are refused by name."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the folder with the files of all parts")
    files = [PartFile.open(path) for path in sorted(folder.glob("part-*.npz"))]
    if not files:
        raise InputError(f"{folder} has no parts: count them with isomargin evaluate --part")
    refuse_foreign(files)
    refuse_doubled(files)
    return files


def refuse_parts_of_others(files: Sequence[PartFile], wanted: str) -> None:
    """Refuse the parts of all pairs where those of a gallery are wanted, and the other way round."""
    if files[0].header["format"] != wanted:
        raise InputError(f"{files[0].path.parent} has parts of {files[0].of} and not of {FORMATS[wanted]}")


def shifts_beside(folder: Path, equalizer: str) -> RowShifts:
    """Open the shifts beside parts that were counted with the equalizer of this digest."""
    if not has_shifts(folder):
        raise InputError(f"{folder} has no {DESCRIPTION}, which its parts were counted with: copy the whole folder")
    found = RowShifts.open(folder)
    if found.record["digest"] != equalizer:
        raise InputError(f"the parts in {folder} are of another equalizer than {DESCRIPTION}: count the parts again")
    return found


def refuse_foreign(files: Sequence[NumberedFile]) -> None:
    """Refuse files that do not belong to the plan of most of them."""
    origins = [file.origin for file in files]
    usual = max(origins, key=origins.count)
    foreign = [file.path.name for file in files if file.origin != usual]
    if foreign:
        found = difference([file.header for file in files])
        raise InputError(
            f"{names(foreign)} in {files[0].path.parent} belong to another plan than the other parts, {found}: "
            "remove them, or count them again"
        )


def difference(headers: Sequence[dict[str, Any]]) -> str:
    """Say in what parts of different plans differ.

    >>> difference([{"equalizer": None, "memory": 10**9}, {"equalizer": None, "memory": 10**8}])
    'with another memory'
    """
    reasons = {
        "format": "of a gallery and not of all pairs or the other way round",
        "equalizer": "of another equalizer",
        "parts": "of another number of parts",
        "memory": "with another memory",
    }
    for name, reason in reasons.items():
        if len({header.get(name) for header in headers}) > 1:
            return reason
    return "of other embeddings or with other settings"


def refuse_doubled(files: Sequence[NumberedFile]) -> None:
    """Refuse two files of the same part."""
    by_number: dict[int, list[str]] = {}
    for file in files:
        by_number.setdefault(file.number, []).append(file.path.name)
    if doubled := {number: found for number, found in by_number.items() if len(found) > 1}:
        first = next(iter(doubled.values()))
        raise InputError(
            f"part {listed_numbers(doubled)} is there twice ({names(first)} in {files[0].path.parent}): keep one file"
        )


def names(paths: Iterable[str], most: int = 5) -> str:
    """List a few names."""
    found = list(paths)
    return ", ".join(found[:most]) + (f" and {len(found) - most:,} more" if len(found) > most else "")
