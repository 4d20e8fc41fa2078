"""What `isomargin embed --model` embeds: the images of a folder, or the texts of a file, in a fixed order."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.core.labels import as_ids, labels_of_rows
from isomargin.data.folder import IMAGE_SUFFIXES, class_folders
from isomargin.data.images import as_rgb

TABLES = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class Items:
    """Images or texts with their names and, if there are any, their labels."""

    what: str
    """"images" or "text"."""
    values: Sequence[Any]
    """(n,) paths of images, or texts."""
    ids: NDArray[Any]
    """(n,) paths from the folder, or ids of the table, or numbers of lines from 0."""
    labels: NDArray[Any] | None
    """(n,) or None."""
    digest: str
    """SHA-256 of names, labels and texts, or of the sizes and times of files: tells whether the input has changed."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.values)

    def read(self, row: int) -> Any:
        """Return a text, or decode an image to RGB."""
        if self.what == "text":
            return self.values[row]
        path = Path(self.values[row])
        try:
            with Image.open(path) as image:
                return as_rgb(image)
        except Exception as error:  # decoders of damaged files fail in many ways
            raise InputError(
                f"{path} is not an image that can be decoded ({type(error).__name__}): remove it, or leave such files "
                "out with --skip-bad-images"
            ) from error


def list_images(folder: Path) -> Items:
    """List the images of a tree by their paths; the label of an image is the path of its folder, if all are in some.

    >>> list_images(Path("no/such/folder"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/folder does not exist: a folder of class folders is needed
    """
    found = class_folders(folder)
    if not found:
        raise InputError(f"{folder} holds no images: files of {', '.join(IMAGE_SUFFIXES)} are expected")
    listed = [(path, name) for name, paths in found.items() for path in paths]
    rows = sorted((Path(path).relative_to(folder).as_posix(), path, name) for path, name in listed)
    ids = np.array([name for name, _, _ in rows])
    labels = None if "." in found else np.array([label for _, _, label in rows])
    states = [Path(path).stat() for _, path, _ in rows]
    seen = [f"{name}\0{state.st_size}\0{state.st_mtime_ns}" for name, state in zip(ids, states, strict=True)]
    return Items("images", [path for _, path, _ in rows], ids, labels, _digest(seen))


def list_texts(file: Path, text: str | None = None, label: str | None = None, identifier: str | None = None) -> Items:
    """List the texts of a file: lines of `.txt`, or rows of `.csv`, `.tsv` (also `.gz`) or `.parquet`.

    The arguments name columns. By default they are `text`, and `label` and `id` if there are such columns.
    """
    check_file(file)
    ending = Path(file.stem if file.suffix == ".gz" else file.name).suffix.lower()
    if file.suffix.lower() == ".txt":
        if named := [f"--{name}" for name, value in _options(text, label, identifier) if value is not None]:
            raise InputError(f"{named[0]} names a column, but {file} has one text per line: leave it out")
        with reading(file):
            lines = file.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
        return _texts(file, lines, None, np.arange(len(lines)))
    if ending not in (*TABLES, ".parquet"):
        raise InputError(f"{file} should be .txt with one text per line, or a .csv, .tsv or .parquet table")
    table = _read_table(file, ending)
    for option, name in _options(text, label, identifier):
        if name is not None and name not in table:
            raise InputError(f"{file} has no column {name!r}: it has {', '.join(table.columns)}; give --{option}")
    column = text or "text"
    if column not in table:
        raise InputError(f"{file} has no column 'text': it has {', '.join(table.columns)}; give --text-column")
    labels = label or ("label" if "label" in table else None)
    ids = identifier or ("id" if "id" in table else None)
    return _texts(
        file,
        table[column].tolist(),
        None if labels is None else labels_of_rows(table[labels], len(table)),
        np.arange(len(table)) if ids is None else as_ids(table[ids], len(table)),
    )


def _options(text: str | None, label: str | None, identifier: str | None) -> tuple[tuple[str, str | None], ...]:
    return (("text-column", text), ("label-column", label), ("id-column", identifier))


def _read_table(file: Path, ending: str) -> Any:
    import pandas

    with reading(file):
        if ending == ".parquet":
            return pandas.read_parquet(file)
        # Labels stay text, and "null" or "NA" is a text as well.
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if ending == ".csv" else csv.QUOTE_NONE
        return pandas.read_csv(file, sep=TABLES[ending], dtype=str, keep_default_na=False, quoting=quoting)


def _texts(file: Path, texts: list[Any], labels: NDArray[Any] | None, ids: NDArray[Any]) -> Items:
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{file} has no text in row {row} (from 0): every row needs one")
    classes = [""] * len(texts) if labels is None else labels.tolist()
    seen = [f"{name}\0{label}\0{text}" for name, label, text in zip(ids, classes, texts, strict=True)]
    return Items("text", texts, ids, labels, _digest(seen))


def _digest(lines: list[str]) -> str:
    found = hashlib.sha256()
    for line in lines:
        found.update(f"{len(line)}\0{line}\n".encode())
    return found.hexdigest()
