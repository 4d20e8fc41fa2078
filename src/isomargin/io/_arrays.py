"""numpy's own formats: `.npz` with both arrays, `.npy` with the embeddings alone. Neither is ever unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.io._common import Vectors, as_numpy, check_keys


def _check_magic(path: Path, magic: bytes, writer: str) -> None:
    with path.open("rb") as file:
        start = file.read(len(magic))
    if start[:1] == b"\x80":
        raise InputError(f"{path} is a pickle, which can run code when read, and is refused: write it with {writer}")
    if start != magic:
        raise InputError(f"{path} is not a {path.suffix} file, or is damaged: write it with {writer}")


def _refuse_objects(path: Path, name: str, error: ValueError) -> None:
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        mend = "labels.astype(str)" if name == "labels" else "numpy.stack(embeddings).astype(numpy.float32)"
        plain = "a plain string array" if name == "labels" else "one plain array"
        raise InputError(
            f"{path} holds {name} as Python objects, which can run code when read, and is refused: "
            f"save {name} as {plain}: {mend}"
        ) from error


def read_npz(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any]:
    """Read two arrays of an archive."""
    _check_magic(path, b"PK", "numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        check_keys(path, archive.files, embeddings_key, labels_key)

        def member(key: str, name: str) -> npt.NDArray[Any]:
            try:
                array = archive[key]
            except ValueError as error:
                _refuse_objects(path, name, error)
                raise
            if not isinstance(array, np.ndarray):
                raise InputError(f"{path} holds {key!r} as something that is no array: write it with numpy.savez")
            return array

        return member(embeddings_key, "embeddings"), None if labels_key is None else member(labels_key, "labels")


def write_npz(path: Path, vectors: Vectors, labels: npt.NDArray[Any]) -> None:
    """Write the arrays `embeddings` and `labels`, not compressed."""
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, embeddings=as_numpy(vectors), labels=labels)


def read_npy_array(path: Path, name: str = "labels", mmap_mode: str | None = None) -> npt.NDArray[Any]:
    """Read one array; `name` says in an error what it holds."""
    _check_magic(path, b"\x93NUMPY", "numpy.save")
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)  # type: ignore[arg-type]
    except ValueError as error:
        _refuse_objects(path, name, error)
        raise
    return array


def read_npy(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any]:
    """Map an array of embeddings into memory; the file has no labels."""
    return read_npy_array(path, "embeddings", mmap_mode="r"), None


def write_npy(path: Path, vectors: Vectors, labels: npt.NDArray[Any]) -> None:
    """Write `X.npy`, and `X.labels.npy` beside it."""
    beside = path.with_name(f"{path.stem}.labels.npy")
    # Both are written in full before either takes its place.
    with atomic_write(beside) as temporary_labels, atomic_write(path) as temporary:
        np.save(temporary_labels, labels, allow_pickle=False)
        np.save(temporary, as_numpy(vectors), allow_pickle=False)
