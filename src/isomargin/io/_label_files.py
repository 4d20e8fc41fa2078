"""Files with labels only: `.npy`, or `.txt` with one label per line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError, MissingLabelsError
from isomargin.core.files import check_file, reading
from isomargin.core.labels import integer_array
from isomargin.io._arrays import read_npy_array
from isomargin.io._common import LABELS_HINT, suffix_of

_CANONICAL_INTEGER = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)


def read_labels(path: Path) -> Any:
    """Read labels (n,) from a `.npy` file, or from a `.txt` file in UTF-8 with one label per line.

    Lines become integers if every one is an integer as Python prints it. A line such as "007" makes all of them text.

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
            f"{path} has {suffix_of(path)}: a labels file is .npy, or .txt with one label per line; {LABELS_HINT}"
        )
    check_file(path)
    with reading(path):
        return readers[path.suffix.lower()](path)


def labels_beside(path: Path, missing: str = LABELS_HINT, doubled: str = "name one with labels= (--labels)") -> Path:
    """Find the labels file of `X.npy`: `X.labels.npy` or `X.labels.txt`; otherwise say what to do."""
    candidates = [path.with_name(f"{path.stem}.labels{suffix}") for suffix in (".npy", ".txt")]
    names = [candidate.name for candidate in candidates]
    match [candidate for candidate in candidates if candidate.exists()]:
        case [one]:
            return one
        case []:
            raise MissingLabelsError(f"{path} has no labels, and its folder has no {' or '.join(names)}: {missing}")
        case _:
            raise InputError(f"the folder of {path} has both {' and '.join(names)}: {doubled}")


def _read_text_labels(path: Path) -> npt.NDArray[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    lines = text.removesuffix("\n").split("\n")
    if "" in lines:
        raise InputError(f"{path} has an empty line {lines.index('') + 1}: one label per line is needed")
    integers = integer_array([int(line) for line in lines]) if _are_integers(lines) else None
    # Objects keep NUL characters, which as_labels checks.
    return np.array(lines, dtype=object) if integers is None else integers


def _are_integers(lines: list[str]) -> bool:
    # A 64-bit integer has at most 20 characters, and int() refuses very long ones.
    return all(len(line) <= 20 and _CANONICAL_INTEGER.fullmatch(line) for line in lines)
