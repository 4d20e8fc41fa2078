"""The file formats of embeddings: one reader and one writer a suffix, and the labels files that may go with them.

No reader runs code that a file brings along: pickles are refused. Readers give what the file holds; whether it makes
sense as embeddings is judged by `EmbeddingSet`.
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
from isomargin.io._table import read_parquet, write_parquet
from isomargin.io._tensors import read_pt, read_safetensors, write_pt, write_safetensors

__all__ = ["Vectors", "labels_beside", "read_format", "read_labels", "write_format"]


def read_format(path: Path, embeddings_key: str, labels_key: str, labels: Path | None) -> tuple[Any, Any, Any]:
    """Read vectors (n, d), labels (n,) and ids (n,) or None from a file by its suffix.

    The labels come from the file `labels` where it is given.

    >>> read_format(Path("birds.csv"), "embeddings", "labels", None)
    Traceback (most recent call last):
    isomargin.InputError: birds.csv has the suffix .csv: .npz, .npy, .parquet, .pt or .safetensors is needed
    """
    read, _ = _format_of(path)
    check_file(path)
    if labels is None and path.suffix.lower() == ".npy":
        labels = labels_beside(path)
    with reading(path):
        vectors, own_labels, ids = read(path, embeddings_key, None if labels else labels_key)
    return vectors, own_labels if labels is None else read_labels(labels), ids


def write_format(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None = None) -> None:
    """Write vectors (n, d), labels (n,) and ids (n,) to a file by its suffix, atomically.

    >>> import numpy as np
    >>> write_format(Path("embeddings.txt"), np.zeros((1, 2)), np.array([0]))
    Traceback (most recent call last):
    isomargin.InputError: embeddings.txt has the suffix .txt: .npz, .npy, .parquet, .pt or .safetensors is needed
    """
    _, write = _format_of(path)
    write(path, vectors, labels, ids)


def check_suffix(path: Path) -> None:
    """Raise `InputError` unless the name of a file ends as that of a known format."""
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
"""How a file is read and written, by its suffix."""
