"""What an equalizer adds to the similarities of a prepared set, row by row, with the equalizer's record.

It is found once for all parts. In the folder of the parts it is a file that each part maps into memory, so that parts
agree to the last bit and need not read the equalizer's reference again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_writes, locked, reading
from isomargin.core.json_values import array_digest, digest
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import Shifts
from isomargin.measure.pairs.prepare import Prepared

FORMAT = "isomargin shifts"
VERSION = 1
DESCRIPTION, VALUES = "shifts.json", "shifts.npy"


class EqualizesRows(Protocol):
    """What counting in parts needs of an equalizer; `isomargin.Equalizer` is one."""

    def shifts_of_rows(self, vectors: NDArray[np.float32]) -> Shifts:
        """Return what is added to the similarity of a pair by each of its rows, which may be larger than memory."""

    def record(self) -> dict[str, Any]:
        """Return settings and digest as JSON values."""


@dataclass(frozen=True)
class RowShifts:
    """The shifts of all rows of a prepared set."""

    prepared: str
    """Digest of the prepared set."""
    shifts: Shifts
    """The shifts, their axis, and what the user should know."""
    record: dict[str, Any]
    """The equalizer's settings and digest, as an evaluation holds them."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that equalized counts depend on, with the equalizer's digest."""
        axis = [self.shifts.axis.lowest, self.shifts.axis.highest]
        values = array_digest(self.shifts.values)
        return digest({"prepared": self.prepared, "record": self.record, "axis": axis, "values": values})

    def save(self, folder: Path) -> None:
        """Write the shifts into a folder, atomically."""
        shifts = self.shifts
        description = {
            "format": FORMAT,
            "version": VERSION,
            "prepared": self.prepared,
            "record": self.record,
            "axis": [shifts.axis.name, shifts.axis.lowest, shifts.axis.highest],
            "own_class": shifts.own_class,
            "notes": list(shifts.notes),
            "digest": self.digest,
        }
        with atomic_writes(folder / DESCRIPTION, folder / VALUES) as (as_json, as_array):
            as_json.write_text(json.dumps(description, indent=1), encoding="utf-8")
            np.save(as_array, shifts.values)

    @classmethod
    def open(cls, folder: Path) -> "RowShifts":
        """Map the shifts that `save` wrote into memory; files that were changed are refused."""
        with reading(folder / DESCRIPTION):
            found = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            if found.get("format") != FORMAT or found.get("version") != VERSION:
                raise InputError(f"{folder / DESCRIPTION} was written by another version of isomargin: remove it")
            axis, notes = ScoreAxis(*found["axis"]), tuple(found["notes"])
        with reading(folder / VALUES):
            values = np.asarray(np.load(folder / VALUES, mmap_mode="r", allow_pickle=False))  # is sent as an array
        shifts = cls(found["prepared"], Shifts(values, axis, found["own_class"], notes), found["record"])
        if shifts.digest != found["digest"]:
            raise InputError(
                f"{folder / VALUES} does not belong to {DESCRIPTION} beside it: remove both, and count the parts again"
            )
        return shifts


def check_equalizer(equalizer: Any) -> None:
    """Refuse what is not an equalizer."""
    if not isinstance(equalizer, RowShifts) and not hasattr(equalizer, "shifts_of_rows"):
        hint = ", such as the equalizer_ of EqualizerCV" if hasattr(equalizer, "fit") else ""
        raise InputError(
            f"equalizer is of type {type(equalizer).__name__}: a fitted isomargin.Equalizer is needed{hint}"
        )


def row_shifts(prepared: Prepared, equalizer: EqualizesRows | RowShifts) -> RowShifts:
    """Find the shifts of all rows of a prepared set, unless they are known already."""
    if isinstance(equalizer, RowShifts):
        if equalizer.prepared != prepared.digest:
            raise InputError(f"the shifts are those of other embeddings than {prepared.folder}: find them again")
        return equalizer
    check_equalizer(equalizer)
    shifts = equalizer.shifts_of_rows(prepared.vectors)
    record = equalizer.record()
    return RowShifts(prepared.digest, shifts, {**record, "own_class": shifts.own_class or record["own_class"]})


def has_shifts(folder: Path) -> bool:
    """Whether a folder has a file of shifts."""
    return (folder / DESCRIPTION).is_file()


def shifts_once(
    prepared: Prepared, folder: Path, equalizer_digest: str, load: Callable[[], EqualizesRows]
) -> RowShifts:
    """Open the shifts in the folder of the parts; whoever comes first finds them with the equalizer and writes them."""
    if not has_shifts(folder):
        with locked(folder, wait=True):
            if not has_shifts(folder):
                row_shifts(prepared, load()).save(folder)
    found = RowShifts.open(folder)
    if found.record["digest"] != equalizer_digest:
        raise InputError(f"{folder} has parts of another equalizer: choose another folder, or remove what is in it")
    if found.prepared != prepared.digest:
        raise InputError(f"{folder} has parts of other embeddings: choose another folder, or remove what is in it")
    return found
