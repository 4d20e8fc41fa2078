"""Embeddings in many files, or in one that is larger than memory: found by folder or pattern, and read in blocks.

A shard is a `.parquet`, `.npy` or `.safetensors` file. Its labels are read at once, because they are small; its vectors
are read a few rows at a time. No reader runs code from a file.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.core.json_values import digest
from isomargin.core.labels import as_labels, integer_array
from isomargin.core.memory import forget_pages
from isomargin.core.vectors import check_vectors
from isomargin.io._arrays import read_npy_array
from isomargin.io._label_files import labels_beside, read_labels
from isomargin.io._parquet import open_lists, read_lists, read_parquet_labels
from isomargin.io._tensors import map_tensor, read_tensor_labels

SUFFIXES = (".parquet", ".npy", ".safetensors")
LABEL_ENDINGS = (".labels.npy", ".labels.txt")


@dataclass(frozen=True)
class Shard:
    """One file of embeddings, whose rows are read in blocks."""

    path: Path
    """The file."""
    rows: int
    """Number of embeddings."""
    width: int
    """Number of dimensions."""
    embeddings_key: str = "embeddings"
    """Name of the column or tensor that holds the embeddings."""
    labels_key: str = "labels"
    """Name of the column or tensor that holds the labels."""

    def read_labels(self) -> npt.NDArray[Any]:
        """(rows,) the labels, as integers or text."""
        with reading(self.path):
            if self.path.suffix == ".npy":
                found = read_labels(self._labels_file)
            elif self.path.suffix == ".parquet":
                found = read_parquet_labels(self.path, self.labels_key)
            else:
                found = read_tensor_labels(self.path, self.labels_key)
        try:
            labels = as_labels(found)
            if len(labels) != self.rows:
                raise InputError(
                    f"labels has {len(labels):,} entries, embeddings has {self.rows:,} rows: "
                    "one label per row is needed"
                )
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error
        return labels

    @property
    def labels_are_lines(self) -> bool:
        """Whether the labels are lines of text, which are integers only if those of all shards are."""
        return self.path.suffix == ".npy" and self._labels_file.suffix == ".txt"

    @property
    def _labels_file(self) -> Path:
        return labels_beside(self.path, missing="write one of them", doubled="remove one of them")

    def blocks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the embeddings in order, at most ``rows`` of them at a time."""
        with reading(self.path):
            if self.path.suffix == ".parquet":
                yield from read_lists(self.path, self.embeddings_key, rows)
                return
            array = _map(self.path, self.embeddings_key)
            for first in range(0, self.rows, rows):
                yield np.asarray(array[first : first + rows])
                forget_pages(array)


@dataclass(frozen=True)
class Shards:
    """All files of one set, in the order of their names."""

    files: tuple[Shard, ...]
    """The files."""

    @property
    def rows(self) -> int:
        """Number of embeddings."""
        return sum(shard.rows for shard in self.files)

    @property
    def width(self) -> int:
        """Number of dimensions."""
        return self.files[0].width

    def fingerprint(self) -> str:
        """Return a digest of the files' names, sizes and times, by which changed files are recognised."""
        states = [(shard.path.name, shard.path.stat()) for shard in self.files]
        keys = [self.files[0].embeddings_key, self.files[0].labels_key]
        return digest({"keys": keys, "files": [[name, state.st_size, state.st_mtime_ns] for name, state in states]})

    def read_labels(self) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the distinct labels of all shards (classes,), sorted, and the class of each row (rows,).

        Only the distinct labels of a shard are held beside its own. Integers and text are not mixed, except that lines
        of a `.txt` file are text in every shard if they are in one.
        """
        names, codes = [], np.empty(self.rows, np.int64)
        first = 0
        for shard in self.files:
            found, inverse = np.unique(shard.read_labels(), return_inverse=True)
            names.append(found)
            codes[first : first + shard.rows] = inverse
            first += shard.rows
        names = self._of_one_kind(names)
        distinct = np.unique(_joined(names))
        first = 0
        for shard, found in zip(self.files, names, strict=True):
            rows = slice(first, first + shard.rows)
            codes[rows] = np.searchsorted(distinct, found.astype(distinct.dtype))[codes[rows]]
            first += shard.rows
        return distinct, codes

    def _of_one_kind(self, names: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        texts = [found.dtype.kind == "U" for found in names]
        if all(texts) or not any(texts):
            return names
        for shard, is_text in zip(self.files, texts, strict=True):
            if not is_text and not shard.labels_are_lines:
                other = self.files[texts.index(True)].path
                raise InputError(
                    f"{shard.path} has integers as labels and {other} has text, so 1 and '1' may be one class or two: "
                    "write the labels of all shards as text, or all as integers"
                )
        return [found.astype(str) for found in names]


def open_shards(
    source: str | Path | Sequence[str | Path], embeddings_key: str = "embeddings", labels_key: str = "labels"
) -> Shards:
    """Open a folder, a pattern such as `shards/*.parquet`, a file, or a list of files, without reading the vectors.

    The labels of `X.npy` are in `X.labels.npy` or `X.labels.txt`.

    >>> open_shards("no/such/*.parquet")
    Traceback (most recent call last):
    isomargin.InputError: no/such/*.parquet matches no file: give a folder or a pattern of .parquet, .npy or ...
    """
    shards = [_open(path, embeddings_key, labels_key) for path in _find(source)]
    for shard in shards[1:]:
        if shard.width != shards[0].width:
            raise InputError(
                f"{shard.path} has embeddings of {shard.width} numbers and {shards[0].path} of {shards[0].width}: "
                "all shards must have the same"
            )
    return Shards(tuple(shards))


def is_pattern(text: str) -> bool:
    """Whether a path is a pattern of several files.

    >>> is_pattern("shards/*.npy"), is_pattern("shards/a.npy")
    (True, False)
    """
    return glob.has_magic(text) and not Path(text).exists()


def shards_in(folder: Path) -> list[Path]:
    """List the files of a folder that hold embeddings, sorted by name; files of labels are left out."""
    with reading(folder):
        found = list(folder.iterdir())
    return sorted(
        path
        for path in found
        if path.suffix in SUFFIXES and not path.name.startswith(".") and not path.name.endswith(LABEL_ENDINGS)
    )


def _find(source: str | Path | Sequence[str | Path]) -> list[Path]:
    kinds = ".parquet, .npy or .safetensors files"
    if not isinstance(source, str | Path):
        found = [Path(path) for path in source]
        if not found:
            raise InputError(f"the list of shards is empty: give {kinds}")
        return found
    if is_pattern(str(source)):
        matches = sorted(Path(path) for path in glob.glob(str(source), recursive=True))
        found = [path for path in matches if path.is_file() and not path.name.endswith(LABEL_ENDINGS)]
        if not found:
            raise InputError(f"{source} matches no file: give a folder or a pattern of {kinds}")
        return found
    path = Path(source)
    if not path.is_dir():
        return [path]
    if not (found := shards_in(path)):
        raise InputError(f"{path} has no shards: a folder with {kinds} is needed")
    if len(suffixes := sorted({shard.suffix for shard in found})) > 1:
        raise InputError(
            f"{path} has {' and '.join(suffixes)} files, which may be two copies of one set: "
            f"give a pattern such as '{path}/*{suffixes[0]}'"
        )
    return found


def _open(path: Path, embeddings_key: str, labels_key: str) -> Shard:
    check_file(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is not a shard: .parquet, .npy or .safetensors is needed, which are read in blocks")
    with reading(path):
        if path.suffix == ".parquet":
            rows, width = open_lists(path, embeddings_key)
        else:
            array = _map(path, embeddings_key)
            try:
                check_vectors(array[:1] if len(array.shape) == 2 else array)
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
            rows, width = array.shape
    return Shard(path, rows, width, embeddings_key, labels_key)


def _map(path: Path, key: str) -> Any:
    return read_npy_array(path, "embeddings", mmap_mode="r") if path.suffix == ".npy" else map_tensor(path, key)


def _joined(names: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Join labels of one kind; signed and unsigned integers would become floats otherwise."""
    joined = np.concatenate(names)
    if joined.dtype.kind != "f":
        return joined
    integers = integer_array([int(name) for found in names for name in found])
    if integers is None:
        raise InputError("labels has integers that fit neither int64 nor uint64: write them as text")
    return integers
