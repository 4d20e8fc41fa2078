"""Parquet: a column with a list of d numbers per row and a column of labels, read without a Python object per row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.core.labels import NO_LABEL
from isomargin.core.memory import check_memory
from isomargin.io._common import IDS, UNPACKED, Vectors, as_common, as_numpy, check_keys

READ_BUFFER = 1 << 20  # bytes


def read_parquet(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any, Any]:
    """Read the columns of embeddings and, unless its key is None, of labels, and the column `ids` if present."""
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path, memory_map=True) as file:
        check_keys(path, file.schema_arrow.names, embeddings_key, labels_key)
        vectors = _read_list_column(path, file, embeddings_key)
        labels = None if labels_key is None else _read_label_column(path, _read_column(file, labels_key))
        ids = None
        if IDS in file.schema_arrow.names:
            with suppress(InputError):  # empty cells: this package did not write it
                ids = _read_label_column(path, _read_column(file, IDS))
        return vectors, labels, ids


def open_lists(path: Path, key: str) -> tuple[int, int]:
    """Return the number of rows of a column of lists and their length, from the metadata and the first row."""
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path, memory_map=True) as file:
        check_keys(path, file.schema_arrow.names, key, None)
        _check_lists(path, file, key)
        for batch in file.iter_batches(batch_size=1, columns=[key]):
            return file.metadata.num_rows, _block(path, batch.column(key), 0, None).shape[1]
    raise InputError(f"{path} has no rows: remove the file, or write it again")


def read_lists(path: Path, key: str, rows: int) -> Iterator[npt.NDArray[Any]]:
    """Yield a column of lists as arrays of at most ``rows`` rows."""
    import pyarrow.parquet as parquet

    # Read through a buffer: mapped pages would stay in memory, and without a buffer whole groups of rows would.
    with parquet.ParquetFile(path, buffer_size=READ_BUFFER, pre_buffer=False) as file:
        start, width = 0, None
        for batch in file.iter_batches(batch_size=rows, columns=[key]):
            block = _block(path, batch.column(key), start, width)
            start, width = start + len(block), block.shape[1]
            yield block


def read_parquet_labels(path: Path, key: str) -> npt.NDArray[Any]:
    """Read the column of labels alone."""
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path, memory_map=True) as file:
        check_keys(path, file.schema_arrow.names, next(iter(file.schema_arrow.names), ""), key)
        return _read_label_column(path, _read_column(file, key))


def _read_column(file: Any, name: str) -> Any:
    return file.read(columns=[name]).column(name)


def _read_list_column(path: Path, file: Any, key: str) -> npt.NDArray[Any]:
    """Read an array (n, d) batch by batch, so that the peak memory is that array and one batch."""
    kind = _check_lists(path, file, key)
    check_memory(_values(file.metadata, key) * kind.value_type.bit_width // 8, str(path), UNPACKED)
    rows = file.metadata.num_rows
    vectors: npt.NDArray[Any] | None = None
    start = 0
    for batch in file.iter_batches(columns=[key]):
        block = _block(path, batch.column(key), start, None if vectors is None else vectors.shape[1])
        if vectors is None:
            vectors = np.empty((rows, block.shape[1]), dtype=block.dtype)
        vectors[start : start + len(block)] = block
        start += len(block)
    return np.empty((0, 0), dtype=np.float32) if vectors is None else vectors


def _check_lists(path: Path, file: Any, key: str) -> Any:
    """Return the type of a column that has a list of numbers per row; others are refused."""
    import pyarrow as arrow

    kind = file.schema_arrow.field(key).type
    is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
    if not is_list or not (arrow.types.is_floating(kind.value_type) or arrow.types.is_integer(kind.value_type)):
        raise InputError(f"{path} has column {key!r} of type {kind}: a list of numbers per row is needed")
    return kind


def _values(metadata: Any, key: str) -> int:
    """Return how many numbers a column has according to the metadata: runs of equal numbers take hardly any space."""
    parts = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = (part.column(number) for part in parts for number in range(part.num_columns))
    return sum(column.num_values for column in columns if column.path_in_schema.split(".")[0] == key)


def _block(path: Path, lists: Any, start: int, width: int | None) -> npt.NDArray[Any]:
    """Convert the lists of one batch to an array (rows, d), a view if arrow allows it; the first is row `start`."""
    import pyarrow.compute as compute

    if lists.null_count:
        row = start + int(np.argmax(lists.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(f"{path} has no embedding in row {row} (from 0): remove the row")
    lengths = compute.list_value_length(lists).to_numpy()
    width = int(lengths[0]) if width is None else width
    if (lengths != width).any():
        row = int(np.argmax(lengths != width))
        raise InputError(
            f"{path} has an embedding of {lengths[row]} numbers in row {start + row} (from 0) and {width} in row 0: "
            "all must have the same length"
        )
    values = lists.flatten()
    if values.null_count:
        row = start + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
        raise InputError(f"{path} has a null in the embedding of row {row} (from 0): remove the row")
    block: npt.NDArray[Any] = values.to_numpy().reshape(len(lists), width)
    return block


def _read_label_column(path: Path, column: Any) -> npt.NDArray[Any]:
    import pyarrow as arrow

    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy()))
        raise InputError(f"{path} has no label in row {row} (from 0): {NO_LABEL}")
    if not (arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)):
        labels: npt.NDArray[Any] = column.to_numpy()
        return labels
    # Only distinct names become Python objects, not rows. Objects keep NUL characters, which as_labels checks.
    encoded = column.cast(arrow.large_string()).combine_chunks().dictionary_encode()
    names: npt.NDArray[Any] = np.array(encoded.dictionary.to_pylist(), dtype=object)
    named: npt.NDArray[Any] = names[encoded.indices.to_numpy()]
    return named


def write_parquet(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None) -> None:
    """Write the columns `embeddings`, as lists of one length, `labels` and, if given, `ids`."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    array = as_common(as_numpy(vectors))
    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(array.reshape(-1)), array.shape[1])
    columns = {"embeddings": lists, "labels": arrow.array(labels)}
    if ids is not None:
        columns[IDS] = arrow.array(ids)
    table = arrow.table(columns)
    with atomic_write(path) as temporary:
        parquet.write_table(table, temporary, row_group_size=65536, use_dictionary=["labels"])
