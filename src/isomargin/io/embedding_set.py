"""``EmbeddingSet``: embeddings and their labels as one object that can be saved and loaded.

Shapes and types are checked here, values are not: `evaluate` checks that all numbers are finite. The file formats are
in `formats.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.labels import as_ids, as_labels
from isomargin.io._common import check_shapes
from isomargin.io.formats import Vectors, read_format, write_format

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, init=False, eq=False, repr=False)
class EmbeddingSet:
    """Vectors (n, d) of floats or integers, and labels (n,) of integers or text: one label per row.

    Vectors are kept as given: a numpy array, memory-mapped or not, or a torch tensor, of any precision. Labels, and
    `ids`, which name the rows, can be lists, arrays or tensors, and become numpy arrays.

    >>> import numpy as np
    >>> EmbeddingSet(np.eye(3, dtype=np.float32), ["cat", "cat", "dog"])
    EmbeddingSet(vectors: (3, 3) float32, labels: (3,) <U3)
    >>> EmbeddingSet(np.eye(3), [0, 1])
    Traceback (most recent call last):
    isomargin.InputError: labels has 2 entries, embeddings has 3 rows: one label per row is needed
    """

    vectors: Vectors
    """(n, d) numpy array or torch tensor, as given."""

    labels: npt.NDArray[Any]
    """(n,) integers or text."""

    ids: npt.NDArray[Any] | None
    """(n,) integers or text that name the rows, such as paths of files; None if there are none."""

    def __init__(
        self,
        vectors: Vectors,
        labels: npt.NDArray[Any] | torch.Tensor | Sequence[int] | Sequence[str],
        ids: npt.NDArray[Any] | torch.Tensor | Sequence[int] | Sequence[str] | None = None,
    ) -> None:
        check_shapes(vectors)
        label_array = as_labels(labels)
        check_shapes(vectors, label_array)
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "labels", label_array)
        object.__setattr__(self, "ids", None if ids is None else as_ids(ids, len(vectors)))

    def __repr__(self) -> str:
        vectors = f"{tuple(self.vectors.shape)} {self.vectors.dtype}"
        ids = "" if self.ids is None else f", ids: {self.ids.shape} {self.ids.dtype}"
        return f"EmbeddingSet(vectors: {vectors}, labels: {self.labels.shape} {self.labels.dtype}{ids})"

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        labels: str | os.PathLike[str] | None = None,
        embeddings_key: str = "embeddings",
        labels_key: str = "labels",
    ) -> Self:
        """Read a `.npz`, `.npy`, `.parquet`, `.pt` or `.safetensors` file; the suffix decides on the format.

        The keys name arrays (`.npz`), columns (`.parquet`, with a list of d numbers per row), entries of a dictionary
        (`.pt`) or tensors (`.safetensors`). Text labels in `.safetensors` are numbers (n,) into a JSON list of class
        names, which is in the metadata under the key of the labels followed by `.names`.

        `labels` is a file of labels to use instead: `.npy`, or `.txt` with one label per line. A `.npy` file is
        memory-mapped and has no labels: without `labels`, those of `X.npy` are in `X.labels.npy` or `X.labels.txt`.

        `ids` are read if the file has one per row under this name: an array, a column, an entry, or in `.safetensors`
        a JSON list in the metadata. Unusable ids are ignored.

        Files that can run code when they are read (pickles, arrays of objects) are refused, and so are compressed files
        that unpack to more than the available memory.

        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/birds.npz", features=np.eye(3), labels=np.array(["owl", "owl", "wren"]))
        ...     EmbeddingSet.load(f"{folder}/birds.npz", embeddings_key="features")
        EmbeddingSet(vectors: (3, 3) float64, labels: (3,) <U4)
        """
        source = Path(path)
        parts = read_format(source, embeddings_key, labels_key, None if labels is None else Path(labels))
        vectors, its_labels, ids = parts
        try:
            found = cls(vectors, its_labels)
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        if ids is not None:
            with suppress(InputError):  # something else with this name
                object.__setattr__(found, "ids", as_ids(ids, len(vectors)))
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.npz`, `.npy`, `.parquet`, `.pt` or `.safetensors` file, atomically.

        The labels of `X.npy` go to `X.labels.npy`, and its ids are not saved. Values and dtypes are kept, except that
        bfloat16 becomes float32, with the same values, in `.npz`, `.npy` and `.parquet`, which do not have it.

        >>> import numpy as np
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     EmbeddingSet(np.eye(3), [5, 5, 7]).save(f"{folder}/embeddings.parquet")
        ...     print(EmbeddingSet.load(f"{folder}/embeddings.parquet").labels)
        [5 5 7]
        """
        write_format(Path(path), self.vectors, self.labels, self.ids)
