"""The file formats of embeddings: one reader and one writer per suffix, and files of labels.

No reader runs code from a file: pickles are refused. Readers return what a file contains; `EmbeddingSet` checks whether
it is usable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.io._arrays import read_npy, read_npz, write_npy, write_npz
from isomargin.io._common import Reader, Vectors, Writer, suffix_of
from isomargin.io._label_files import labels_beside, read_labels
from isomargin.io._parquet import read_parquet, write_parquet
from isomargin.io._tensors import read_pt, read_safetensors, write_pt, write_safetensors
from isomargin.io.stores.address import StoreAddress
from isomargin.io.stores.opening import read_address

__all__ = ["Vectors", "labels_beside", "read_format", "read_labels", "read_vectors", "write_format"]


def read_format(path: Path, embeddings_key: str, labels_key: str, labels: Path | None) -> tuple[Any, Any, Any]:
    """Read vectors (n, d), labels (n,) and ids (n,) or None from a file, in the format of its suffix.

    If the file `labels` is given, the labels come from it. The address of a store is read as its scheme says.

    >>> read_format(Path("birds.csv"), "embeddings", "labels", None)
    Traceback (most recent call last):
    isomargin.InputError: birds.csv has the suffix .csv: .npz, .npy, .parquet, .pt or .safetensors is needed
    """
    if isinstance(path, StoreAddress):
        rows = read_address(path, embeddings_key, None if labels else labels_key)
        return rows.vectors, rows.labels if labels is None else read_labels(labels), rows.ids
    read, _ = _format_of(path)
    check_file(path)
    if labels is None and path.suffix.lower() == ".npy":
        labels = labels_beside(path)
    with reading(path):
        vectors, own_labels, ids = read(path, embeddings_key, None if labels else labels_key)
    return vectors, own_labels if labels is None else read_labels(labels), ids


def read_vectors(path: Path, embeddings_key: str) -> tuple[Any, Any]:
    """Read vectors (n, d) and ids (n,) or None from a file that need not have labels."""
    if isinstance(path, StoreAddress):
        rows = read_address(path, embeddings_key, None)
        return rows.vectors, rows.ids
    read, _ = _format_of(path)
    check_file(path)
    with reading(path):
        vectors, _, ids = read(path, embeddings_key, None)
    return vectors, ids


def write_format(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None = None) -> None:
    """Write vectors (n, d), labels (n,) and ids (n,) atomically, in the format of the suffix.

    >>> import numpy as np
    >>> write_format(Path("embeddings.txt"), np.zeros((1, 2)), np.array([0]))
    Traceback (most recent call last):
    isomargin.InputError: embeddings.txt has the suffix .txt: .npz, .npy, .parquet, .pt or .safetensors is needed
    """
    _, write = _format_of(path)
    write(path, vectors, labels, ids)


def check_suffix(path: Path) -> None:
    """Raise `InputError` unless the suffix is that of a known format."""
    _format_of(path)


def _format_of(path: Path) -> tuple[Reader, Writer]:
    if path.suffix.lower() not in FORMATS:
        if path.is_dir():
            raise InputError(f"{path} is a folder: give a file in it")
        *first, last = FORMATS
        raise InputError(f"{path} has {suffix_of(path)}: {', '.join(first)} or {last} is needed")
    return FORMATS[path.suffix.lower()]


FORMATS: dict[str, tuple[Reader, Writer]] = {
    ".npz": (read_npz, write_npz),
    ".npy": (read_npy, write_npy),
    ".parquet": (read_parquet, write_parquet),
    ".pt": (read_pt, write_pt),
    ".safetensors": (read_safetensors, write_safetensors),
}
"""Reader and writer by suffix."""
