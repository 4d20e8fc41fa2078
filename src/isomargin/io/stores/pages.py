"""Shared by the readers of stores: pages of rows, collected into one array, and values of columns as arrays.

A reader yields pages of a few thousand rows, so that the peak memory is the result and one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core import checks
from isomargin.core.errors import InputError, MissingLabelsError
from isomargin.core.memory import check_memory
from isomargin.core.text import printable, shortened

PAGE = 4096
"""Rows that a reader asks for at a time."""

READ_FEWER = "read fewer items at a time"


@dataclass(frozen=True)
class Page:
    """Some rows of a store, in its order."""

    vectors: npt.NDArray[Any]
    """(p, d)."""
    labels: Sequence[Any] | npt.NDArray[Any] | None
    """(p,), or None if labels were not asked for."""
    ids: Sequence[Any] | npt.NDArray[Any] | None
    """(p,), or None if the rows have no names."""


@dataclass(frozen=True)
class Rows:
    """Everything that was read from a store."""

    vectors: npt.NDArray[Any]
    """(n, d)."""
    labels: npt.NDArray[Any] | None
    """(n,) as they came, or None."""
    ids: npt.NDArray[Any] | None
    """(n,) as they came, or None."""


def page_size(page: Any) -> int:
    """Return the number of rows to ask for at a time, checked."""
    return checks.whole(page, "page", most=1_000_000)


def collect(pages: Iterable[Page], what: str, expected: int | None = None) -> Rows:
    """Collect pages into one array; `what` is what errors call the store, `expected` its number of rows if known.

    >>> pages = [Page(np.ones((2, 3)), ["a", "b"], None), Page(np.zeros((1, 3)), ["a"], None)]
    >>> rows = collect(pages, "the table")
    >>> rows.vectors.shape, rows.labels.tolist()
    ((3, 3), ['a', 'b', 'a'])
    """
    vectors: npt.NDArray[Any] | None = None
    labels: list[Any] = []
    ids: list[Any] = []
    done, labelled, named = 0, False, False
    for page in pages:
        block = page.vectors
        if not len(block):
            continue
        if vectors is None:
            capacity = max(expected or len(block), len(block))
            check_memory(capacity * block.shape[1] * block.itemsize, what, READ_FEWER)
            vectors = np.empty((capacity, block.shape[1]), block.dtype)
            labelled, named = page.labels is not None, page.ids is not None
        _check_width(block, vectors, done, what)
        if done + len(block) > len(vectors):
            # In place: the system moves the pages of a large array instead of copying it.
            vectors.resize((max(done + len(block), len(vectors) * 3 // 2), vectors.shape[1]), refcheck=False)
        vectors[done : done + len(block)] = block
        done += len(block)
        if labelled and page.labels is not None:
            labels.extend(page.labels)
        if named and page.ids is not None:
            ids.extend(page.ids)
    if vectors is None:
        raise InputError(f"{what} has no rows: at least one item is needed")
    if done < len(vectors):
        vectors.resize((done, vectors.shape[1]), refcheck=False)
    return Rows(vectors, _objects(labels) if labelled else None, _objects(ids) if named else None)


def _check_width(block: npt.NDArray[Any], vectors: npt.NDArray[Any], start: int, what: str) -> None:
    if block.shape[1] != vectors.shape[1]:
        raise InputError(
            f"{what} has an embedding of {block.shape[1]} numbers in row {start} (from 0) and {vectors.shape[1]} in "
            "row 0: all must have the same length"
        )


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def as_matrix(values: Sequence[Any], what: str, start: int = 0) -> npt.NDArray[Any]:
    """Convert the vectors of a page, as drivers return them, to an array (p, d).

    Vectors are numbers in lists or arrays; text such as "[0.1, 0.2]", as pgvector and JSON write it; or bytes with a
    float32 for each number, as SQLite's extensions store them. All but arrays become float32.

    >>> as_matrix(["[1, 2]", "[3, 4]"], "the table")
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    rows = [_as_row(value, what, start + i) for i, value in enumerate(values)]
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{what} has an embedding of {len(row)} numbers in row {start + i} (from 0) and {len(rows[0])} in row "
                f"{start}: all must have the same length"
            )
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _as_row(value: Any, what: str, row: int) -> npt.NDArray[Any]:
    if value is None:
        raise InputError(f"{what} has no embedding in row {row} (from 0): leave the row out")
    if hasattr(value, "to_numpy"):  # pgvector's own type
        value = value.to_numpy()
    try:
        if isinstance(value, str):
            array: npt.NDArray[Any] = np.array(value.strip().strip("[]{}()").split(","), dtype=np.float32)
        elif isinstance(value, bytes | bytearray | memoryview):
            array = np.frombuffer(bytes(value), dtype="<f4")
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            array = value
        else:
            array = np.asarray(value, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{what} has {shortened(repr(value), 40)} as the embedding of row {row} (from 0): a list of numbers is "
            "needed"
        ) from error
    if array.ndim != 1:
        raise InputError(
            f"{what} has an embedding of shape {array.shape} in row {row} (from 0): one vector per item is needed"
        )
    return array


def arrow_matrix(column: Any, what: str, name: str, start: int = 0) -> npt.NDArray[Any]:
    """Convert a column of arrow, with a list of numbers per row, to an array (p, d) without an object per row.

    >>> import pyarrow as arrow
    >>> arrow_matrix(arrow.array([[1.0, 2.0], [3.0, 4.0]]), "the table", "embedding").tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    import pyarrow as arrow

    from isomargin.io._parquet import _block

    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, arrow.ExtensionArray):
        column = column.storage
    kind = column.type
    is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
    if is_list and (arrow.types.is_floating(kind.value_type) or arrow.types.is_integer(kind.value_type)):
        return np.empty((0, 0), np.float32) if not len(column) else _block(Path(what), column, start, None)
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_binary(kind):
        return as_matrix(column.to_pylist(), what, start)
    raise InputError(f"{what} has column {name!r} of type {kind}: a list of numbers per row is needed")


def arrow_values(column: Any) -> list[Any]:
    """Convert a column of labels or ids to a list; floats stay floats, nulls become None."""
    values: list[Any] = column.to_pylist()
    return values


def check_columns(
    what: str, there: Iterable[Any], vector: str, label: str | None, identifier: str | None = None
) -> None:
    """Raise `InputError` if a column is missing, with those that there are."""
    names = list(there)
    shown = printable(", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else ""))
    for option, name in (("vector", vector), ("label", label), ("id", identifier)):
        if name is not None and name not in names:
            error = MissingLabelsError if option == "label" else InputError
            has = f"it has {shown}" if names else "it has none"
            raise error(f"{what} has no column {name!r}: {has}; name the right one with {option}=")


def arrow_pages(
    batches: Iterable[Any], what: str, vector: str, label: str | None, identifier: str | None
) -> Iterator[Page]:
    """Yield the record batches of arrow, or its tables, as pages."""
    start = 0
    for batch in batches:
        check_columns(what, batch.schema.names, vector, label, identifier)
        yield Page(
            arrow_matrix(batch.column(vector), what, vector, start),
            None if label is None else arrow_values(batch.column(label)),
            None if identifier is None else arrow_values(batch.column(identifier)),
        )
        start += batch.num_rows


def from_field(record: Any, field: str) -> Any:
    """Return an entry of nested dictionaries by its name or by names separated by points; None if it is missing.

    >>> from_field({"product": {"sku": 7}}, "product.sku"), from_field({"a.b": 1}, "a.b"), from_field(None, "a")
    (7, 1, None)
    """
    if not isinstance(record, dict):
        return None
    if field in record:
        return record[field]
    first, point, rest = field.partition(".")
    return from_field(record.get(first), rest) if point else None


def required_labels(
    records: Sequence[Any], ids: Sequence[Any], label: str, what: str, whole: Callable[[Any], Any] | None = None
) -> list[Any]:
    """Return the label of each record, a dictionary; the first one without it is named, with what it has.

    If records have nothing but labels, `whole` gives the whole record of an id.
    """
    found = [from_field(record, label) for record in records]
    for name, value, record in zip(ids, found, records, strict=True):
        if value is None:
            fields = (record if whole is None else whole(name)) or {}
            keys = ", ".join(sorted(repr(key) for key, held in fields.items() if held is not None)) or "nothing"
            raise MissingLabelsError(
                printable(
                    f"{what} has no {label!r} for item {shortened(repr(name))}, which has {shortened(keys)}: name "
                    "what holds the label with label=, or leave out items without one"
                )
            )
    return found
