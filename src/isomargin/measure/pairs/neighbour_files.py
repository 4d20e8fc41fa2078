"""The files of neighbours that parts found: zip archives of plain numpy arrays with a header in JSON.

They are read superblock by superblock, so that merging needs memory for one superblock. Nothing is ever unpickled.
"""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file, reading
from isomargin.core.json_values import digest
from isomargin.measure.pairs.neighbour_parts import (
    FoundNeighbours,
    NeighbourPlan,
    check_found,
    merge_lists,
    plan_neighbours,
)
from isomargin.measure.pairs.neighbours import Singles
from isomargin.measure.pairs.part_files import difference, read_array, refuse_doubled, refuse_foreign
from isomargin.measure.pairs.prepare import Prepared, is_prepared

FORMAT = "isomargin neighbours"
VERSION = 1
HEADER = "header.json"
PATTERN = "neighbours-*.npz"
REMEDY = "remove it, and find its neighbours again"  # one that is there is not searched again


@dataclass(frozen=True)
class NeighbourFile:
    """The file of one part; its lists are read when they are asked for."""

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
    def open(cls, path: Path) -> "NeighbourFile":
        """Read the header of a file."""
        check_file(path, REMEDY)
        with reading(path, REMEDY), zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(HEADER))
            if header.get("format") != FORMAT or header.get("version") != VERSION:
                raise InputError(f"{path} was written by another version of isomargin: {REMEDY}")
        return cls(path, header)

    def lists(self, superblock: int) -> Singles | None:
        """Read the lists of a superblock; None if the part does not touch it."""
        if superblock not in self.header["superblocks"]:
            return None
        with reading(self.path, REMEDY), zipfile.ZipFile(self.path) as archive:
            return read_array(archive, f"{superblock}.npy")

    def found(self) -> FoundNeighbours:
        """Read everything."""
        lists = {i: lists for i in self.header["superblocks"] if (lists := self.lists(i)) is not None}
        return FoundNeighbours(self.header["plan"], (self.number,), lists)


def name_of(plan: NeighbourPlan, number: int) -> str:
    """Return the name of a part's file."""
    return f"neighbours-{number:0{len(str(plan.parts))}}-of-{plan.parts}.npz"


def header_of(plan: NeighbourPlan, settings: dict[str, Any], number: int) -> dict[str, Any]:
    """Return what a part's file says about itself; ``settings`` are those of the equalizer."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "number": number,
        "parts": plan.parts,
        "memory": plan.memory,
        "prepared": str(plan.prepared.folder.resolve()),
        "plan": plan.digest,
        "settings": settings,
    }


def save_found(folder: Path, plan: NeighbourPlan, settings: dict[str, Any], found: FoundNeighbours) -> Path:
    """Write the lists of one part into a folder, atomically, and return the file."""
    (number,) = found.numbers
    path = folder / name_of(plan, number)
    header = header_of(plan, settings, number) | {"superblocks": sorted(found.lists)}
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:  # similarities do not compress
        archive.writestr(HEADER, json.dumps(header, indent=1))
        for superblock, lists in sorted(found.lists.items()):
            with archive.open(f"{superblock}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, lists, allow_pickle=False)
    return path


def already_found(folder: Path, plan: NeighbourPlan, settings: dict[str, Any], number: int) -> bool:
    """Whether a folder has the file of this part of this plan; the file of another plan is refused."""
    path = folder / name_of(plan, number)
    if not path.exists():
        return False
    header, expected = NeighbourFile.open(path).header, header_of(plan, settings, number)
    if any(header[name] != expected[name] for name in ("plan", "settings")):
        raise InputError(
            f"{path} belongs to another plan, {difference([header, expected])}: remove it, or choose another folder"
        )
    return True


@dataclass(frozen=True)
class NeighbourFolder:
    """All parts of one plan in a folder, checked: none is missing, doubled or foreign."""

    plan: NeighbourPlan
    """The plan."""
    settings: dict[str, Any]
    """The settings of the equalizer."""
    files: tuple[NeighbourFile, ...]
    """The parts by number."""

    @classmethod
    def open(cls, folder: Path, prepared: Path | None = None) -> "NeighbourFolder":
        """Open the parts in a folder; ``prepared`` is where the embeddings are now, if they were moved."""
        files = [NeighbourFile.open(path) for path in sorted(folder.glob(PATTERN))]
        if not files:
            raise InputError(f"{folder} has no neighbours: find them with isomargin equalize --part")
        refuse_foreign(files)
        refuse_doubled(files)
        header = files[0].header
        where = Path(header["prepared"]) if prepared is None else prepared
        if not is_prepared(where):
            raise InputError(f"{where} has no prepared embeddings any more: say where they are with --prepared")
        settings = header["settings"]
        sizes = {name: settings[name] for name in ("neighbours", "skip")}
        plan = plan_neighbours(Prepared.open(where), int(header["parts"]), memory=int(header["memory"]), **sizes)
        if plan.digest != header["plan"]:
            raise InputError(
                f"{where} has other embeddings than those of the parts in {folder}: find their neighbours again"
            )
        check_found(plan, [file.number for file in files])
        return cls(plan, settings, tuple(sorted(files, key=lambda file: file.number)))

    def lists(self, superblock: int) -> Singles:
        """Merge the lists of a superblock from all parts that touch it."""
        merged: Singles | None = None
        for file in self.files:
            if (lists := file.lists(superblock)) is not None:
                merged = lists if merged is None else merge_lists(merged, lists)
        assert merged is not None
        return merged
