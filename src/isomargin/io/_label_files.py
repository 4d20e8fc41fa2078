"""Files that hold labels alone: `.npy`, or `.txt` with one label a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.core.labels import integer_array
from isomargin.io._arrays import read_npy_array
from isomargin.io._common import LABELS_HINT, suffix_of

_CANONICAL_INTEGER = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def read_labels(path: Path) -> Any:
    """Read labels (n,) from a `.npy` file, or from a `.txt` file with one label a line in UTF-8.

    Lines become integers where each is one as Python would print it; "007" is text, and makes all of them text.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "labels.txt"
    ...     _ = file.write_text("7\\n-12\\n")
    ...     print(read_labels(file))
    ...     _ = file.write_text("007\\n12\\n")
    ...     print(read_labels(file))
    [  7 -12]
    ['007' '12']
    """
    readers = {".npy": read_npy_array, ".txt": _read_text_labels}
    if path.suffix.lower() not in readers:
        raise InputError(
            f"{path} has {suffix_of(path)}: a labels file is .npy, or .txt with one label a line; {LABELS_HINT}"
        )
    check_file(path)
    with reading(path):
        return readers[path.suffix.lower()](path)


def labels_beside(path: Path) -> Path:
    """Find the labels file that goes with `X.npy`."""
    candidates = [path.with_name(f"{path.stem}.labels{suffix}") for suffix in (".npy", ".txt")]
    names = [candidate.name for candidate in candidates]
    match [candidate for candidate in candidates if candidate.exists()]:
        case [one]:
            return one
        case []:
            raise InputError(f"{path} holds no labels, nor is {' or '.join(names)} beside it: {LABELS_HINT}")
        case _:
            raise InputError(f"{path} has both {' and '.join(names)} beside it: say which with labels= (--labels)")


def _read_text_labels(path: Path) -> npt.NDArray[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    lines = text.removesuffix("\n").split("\n")
    if "" in lines:
        raise InputError(f"{path} has nothing on line {lines.index('') + 1}: one label a line is needed")
    integers = integer_array([int(line) for line in lines]) if _are_integers(lines) else None
    # Objects keep NUL characters for as_labels to see.
    return np.array(lines, dtype=object) if integers is None else integers


def _are_integers(lines: list[str]) -> bool:
    # No integer of 64 bits has more than 20 characters, and int() refuses very long ones.
    return all(len(line) <= 20 and _CANONICAL_INTEGER.fullmatch(line) for line in lines)
