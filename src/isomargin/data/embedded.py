"""Embeddings as a data set: vectors in place of images, to train a head on the features of a frozen network.

The files are those that `EmbeddingSet` reads. To evaluate embeddings as they are, no data set is needed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import reading
from isomargin.data.folder import TrainClasses, divide_classes, join_parts, way_to_divide
from isomargin.data.images import DataSplit, ImageSet
from isomargin.io._common import as_numpy
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.io.formats import FORMATS, Vectors

__all__ = ["read_all_embeddings", "read_embeddings"]


def read_embeddings(
    root: Path,
    train_share: float | None = None,
    seed: int = 0,
    train_classes: TrainClasses | None = None,
    order: int | None = None,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
) -> DataSplit:
    """Read embeddings with their labels and divide them into training and test classes.

    `root` is a file, whose classes are divided by the settings of `read_folder`; or a folder with a file `train` and a
    file `test`, with any of the suffixes, which may share classes. The keys are those of `EmbeddingSet.load`. Classes
    are named by their labels as text, and sorted as numbers where the labels are numbers. The order of the rows is
    kept. Vectors become float32.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/birds.npz", embeddings=np.eye(4), labels=np.array([10, 9, 2, 9]))
    ...     data = read_embeddings(Path(folder, "birds.npz"), order=2)
    >>> data.train, data.train.class_names, data.test.class_names
    (ImageSet(3 vectors in 2 classes), ('2', '9'), ('10',))
    """
    way = way_to_divide(train_share, train_classes, order)
    if not root.is_dir():
        rows, _ = _read(root, embeddings_key, labels_key)
        training = divide_classes(list(rows.class_names), str(root), train_share, seed, train_classes, order)
        chosen = np.array([name in training for name in rows.class_names])  # (classes,)
        for_training = chosen[rows.labels]  # (n,)
        return DataSplit("embeddings", rows.select(for_training), rows.select(~for_training), closed=False)
    if way is not None:
        raise InputError(
            f"{way} is given, and {root} is a folder, where the files train and test decide what is for training: "
            "give one file as the root to divide its classes"
        )
    files = [_file(root, part) for part in ("train", "test")]
    (train, train_kind), (test, test_kind) = (_read(file, embeddings_key, labels_key) for file in files)
    if train_kind != test_kind:
        raise InputError(
            f"{files[0]} has {train_kind} as labels and {files[1]} has {test_kind}, so that 1 and '1' may be one class "
            "or two: give both the same kind"
        )
    assert train.vectors is not None
    assert test.vectors is not None
    if train.vectors.shape[1] != test.vectors.shape[1]:
        raise InputError(
            f"{files[0]} has vectors of {train.vectors.shape[1]} dimensions and {files[1]} of {test.vectors.shape[1]}: "
            "both must come from the same network"
        )
    return join_parts("embeddings", train, test)


def read_all_embeddings(root: Path, embeddings_key: str = "embeddings", labels_key: str = "labels") -> ImageSet:
    """Read a file of embeddings as one set, in the order of its rows.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/birds.npz", embeddings=np.eye(4), labels=np.array([10, 9, 2, 9]))
    ...     rows = read_all_embeddings(Path(folder, "birds.npz"))
    >>> rows.class_labels[rows.labels]
    array([10,  9,  2,  9])
    """
    return _read(root, embeddings_key, labels_key)[0]


def _file(root: Path, part: str) -> Path:
    """Find the file of this part, whatever its suffix."""
    with reading(root):
        found = sorted(path for path in root.iterdir() if path.stem == part and path.suffix.lower() in FORMATS)
    if len(found) > 1:
        raise InputError(f"{root} holds {' and '.join(path.name for path in found)}: keep one file for {part}")
    if not found:
        *first, last = (f"{part}{suffix}" for suffix in FORMATS)
        raise InputError(
            f"{root} holds no file of {part} embeddings: {', '.join(first)} or {last} is expected there "
            "(or give one file as the root)"
        )
    return found[0]


def _read(file: Path, embeddings_key: str, labels_key: str) -> tuple[ImageSet, str]:
    """Read a file; return its rows, and whether its labels are text or numbers."""
    embeddings = EmbeddingSet.load(file, embeddings_key=embeddings_key, labels_key=labels_key)
    classes, labels = np.unique(embeddings.labels, return_inverse=True)  # (classes,) sorted, (n,)
    names = tuple(str(label) for label in classes.tolist())
    are_text = classes.dtype.kind == "U"
    rows = ImageSet(
        labels.astype(np.int64),
        names,
        vectors=_as_float32(embeddings.vectors, file),
        ids=embeddings.ids,
        class_labels=None if are_text else classes,
    )
    return rows, "text" if are_text else "numbers"


def _as_float32(vectors: Vectors, file: Path) -> NDArray[np.float32]:
    """Convert vectors (n, d) to contiguous float32; raise where they are not finite."""
    with np.errstate(over="ignore"):  # they become infinite and are refused
        plain = np.ascontiguousarray(as_numpy(vectors), np.float32)
    bad = np.flatnonzero(~np.isfinite(plain).all(axis=1)).tolist()
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (f" and {len(bad) - 5:,} more" if len(bad) > 5 else "")
        raise InputError(
            f"{file}: rows {shown} of embeddings are NaN, infinite or too large for float32: remove or recompute them"
        )
    return plain
