"""``EmbeddingSet``: embeddings and their labels as one object that can be saved and loaded.

Shapes and types are checked here, values are not: `evaluate` checks that all numbers are finite. The file formats are
in `formats.py`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.labels import as_ids, as_labels
from isomargin.io._common import as_numpy, check_shapes
from isomargin.io.formats import Vectors, read_format, write_format
from isomargin.io.stores.address import as_path
from isomargin.io.stores.pages import PAGE, Rows

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

        The address of a store, such as `qdrant://localhost/items?label=sku`, is read too; docs/stores.md lists them.

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
        source = as_path(path)
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

    @property
    def sha256(self) -> str:
        """Hash of the vectors, labels and ids with their types; a file's own hash is another one.

        >>> import numpy as np
        >>> EmbeddingSet(np.eye(2), [0, 1]).sha256 == EmbeddingSet(np.eye(2), [1, 0]).sha256
        False
        """
        found = hashlib.sha256()
        for array in (as_numpy(self.vectors), self.labels, self.ids):
            if array is not None:
                found.update(f"{array.dtype.str} {array.shape}".encode())
                found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return found.hexdigest()

    @classmethod
    def from_frame(
        cls, frame: Any, *, label: str = "label", vector: str | Sequence[str] = "embedding", id: str | None = None
    ) -> Self:
        """Read a pandas or polars frame.

        Args:
            frame: one row per item.
            label: the column of labels.
            vector: the column of vectors, each a list or array of numbers; or the names of one column per dimension.
            id: the column of ids, if there is one.

        >>> import pandas
        >>> frame = pandas.DataFrame({"sku": ["a", "a", "b"], "x": [0.1, 0.2, 0.9], "y": [1.0, 0.9, 0.1]})
        >>> EmbeddingSet.from_frame(frame, label="sku", vector=["x", "y"])
        EmbeddingSet(vectors: (3, 2) float64, labels: (3,) <U1)
        """
        from isomargin.io.stores.frames import read_frame

        return cls._from_rows(read_frame(frame, label, vector, id))

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, label: str = "label", vector: str = "embedding", id: str | None = None, page: int = PAGE
    ) -> Self:
        """Read a `Dataset` or `IterableDataset` of Hugging Face, ``page`` rows at a time.

        The arguments name columns, as in ``from_frame``. Numbers of a `ClassLabel` become the names of their classes.
        """
        from isomargin.io.stores.datasets import read_dataset

        return cls._from_rows(read_dataset(dataset, label, vector, id, page))

    @classmethod
    def from_sql(
        cls,
        connection: Any,
        query: str,
        *,
        label: str = "label",
        vector: str = "embedding",
        id: str | None = None,
        page: int = PAGE,
    ) -> Self:
        """Read the rows of a query: PostgreSQL with pgvector (psycopg), DuckDB, SQLite, or another DB-API connection.

        The arguments name columns of the result. Vectors are arrays, lists, pgvector's `vector`, JSON text,
         or bytes with a float32 for each number. PostgreSQL is read through a cursor on the server.

        >>> import sqlite3
        >>> connection = sqlite3.connect(":memory:")
        >>> _ = connection.execute("CREATE TABLE items (sku TEXT, embedding TEXT)")
        >>> _ = connection.execute("INSERT INTO items VALUES ('a', '[0.1, 1.0]'), ('b', '[0.9, 0.1]')")
        >>> EmbeddingSet.from_sql(connection, "SELECT sku, embedding FROM items", label="sku")
        EmbeddingSet(vectors: (2, 2) float32, labels: (2,) <U1)
        """
        from isomargin.io.stores.sql import read_sql

        return cls._from_rows(read_sql(connection, query, label, vector, id, page))

    @classmethod
    def from_qdrant(
        cls, client: Any, collection: str, *, label: str, vector: str | None = None, page: int = PAGE
    ) -> Self:
        """Read a collection of qdrant, ``page`` points at a time, in the order of their ids.

        Args:
            client: a `QdrantClient`.
            collection: the name of the collection.
            label: where a payload has the label; parts of nested fields are separated by points.
            vector: the name of the vector, if the collection has named vectors.
            page: how many points to ask for at a time.
        """
        from isomargin.io.stores.qdrant import read_qdrant

        return cls._from_rows(read_qdrant(client, collection, label, vector, page))

    @classmethod
    def from_lancedb(
        cls, table: Any, *, label: str, vector: str = "vector", id: str | None = None, page: int = PAGE
    ) -> Self:
        """Read a table of LanceDB, ``page`` rows at a time; the arguments name columns."""
        from isomargin.io.stores.lancedb import read_lancedb

        return cls._from_rows(read_lancedb(table, label, vector, id, page))

    @classmethod
    def from_chroma(cls, collection: Any, *, label: str, page: int = PAGE) -> Self:
        """Read a collection of Chroma, ``page`` items at a time; ``label`` is the key of the label in the metadata."""
        from isomargin.io.stores.chroma import read_chroma

        return cls._from_rows(read_chroma(collection, label, page))

    @classmethod
    def from_faiss(cls, index: Any, labels: Any, *, page: int = PAGE) -> Self:
        """Read the vectors of an index of faiss, in the order in which they were added, with labels in that order.

        An index that compresses its vectors gives approximations: these are what it searches. Ids of an `IndexIDMap`
        become ids.
        """
        from isomargin.io.stores.faiss import read_faiss

        rows = read_faiss(index, page)
        return cls(rows.vectors, labels, rows.ids)

    @classmethod
    def _from_rows(cls, rows: Rows) -> Self:
        assert rows.labels is not None
        return cls(rows.vectors, rows.labels, rows.ids)
