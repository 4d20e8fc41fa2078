"""Rows of embeddings as the equalizer takes them: unit vectors, their ids, and the means of their neighbours."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.labels import as_ids, as_labels
from isomargin.core.memory import forget_pages
from isomargin.measure.pairs.inputs import as_matrix, unit_rows

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

LARGEST_INT64 = np.iinfo(np.int64).max
ROUNDED = 1e-6  # difference that rounding can make between two entries of one unit vector
CHUNK = 4096  # rows that are compared at a time


def unit_vectors(embeddings: Any) -> Singles:
    """(n, d) embeddings as unit vectors in float32."""
    matrix = as_matrix(embeddings)
    return unit_rows(matrix, np.arange(len(matrix)), np.float32)


def row_ids(ids: Any, rows: int) -> NDArray[Any] | None:
    """(n,) ids as text, int64 or, where that is too small, uint64; None stays None."""
    if ids is None:
        return None
    array = as_ids(ids, rows)
    return array.astype(np.int64) if array.dtype.kind in "iu" and array.max() <= LARGEST_INT64 else array


def check_distinct(ids: NDArray[Any] | None) -> None:
    """Refuse ids of which two are equal."""
    if ids is not None and len(np.unique(ids)) < len(ids):
        names, counts = np.unique(ids, return_counts=True)
        repeated = names[counts > 1].tolist()[0]
        raise InputError(f"the id {repeated!r} names more than one row of the reference: each row needs its own id")


def comparable(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return two arrays of ids in a type in which equal ones are equal; integers and text are not compared.

    >>> comparable(np.array([7]), np.array(["7"]))
    Traceback (most recent call last):
    isomargin.InputError: the ids of the reference and of the rows are integers and text: give both in the same type
    """
    if (one.dtype.kind == "U") != (other.dtype.kind == "U"):
        raise InputError("the ids of the reference and of the rows are integers and text: give both in the same type")
    if one.dtype.kind == other.dtype.kind:
        return one, other
    return one.astype(str), other.astype(str)  # numpy would round int64 and uint64 to floats


def joined(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """(n + m,) the ids of known and of new rows."""
    comparable(one, other)
    if one.dtype.kind == other.dtype.kind:
        return np.concatenate([one, other])
    return as_labels([*one.tolist(), *other.tolist()])


def fitting_ranks(skip: int, neighbours: int, others: int) -> tuple[int, int]:
    """Return how many neighbours to skip and to average if there are only so many others.

    >>> fitting_ranks(30, 100, 1000), fitting_ranks(30, 100, 50), fitting_ranks(30, 100, 20)
    ((30, 100), (30, 20), (19, 1))
    """
    averaged = min(neighbours, max(1, others - skip))
    return min(skip, others - averaged), averaged


def mean_of_ranks(nearest: Singles, skip: int, neighbours: int) -> Floats:
    """(n,) mean of the similarities ranked skip + 1 to skip + neighbours."""
    means = np.empty(len(nearest))
    for first in range(0, len(nearest), CHUNK):
        part = slice(first, first + CHUNK)
        means[part] = nearest[part, skip : skip + neighbours].mean(axis=1, dtype=np.float64)
        forget_pages(nearest)
    return means


def are_same(vectors: Singles, others: Singles) -> NDArray[np.bool_]:
    """(n,) whether each of (n, d) unit vectors is the other one of the same row, except for rounding."""
    same = np.empty(len(vectors), bool)
    for first in range(0, len(vectors), CHUNK):
        part = slice(first, first + CHUNK)
        same[part] = np.abs(vectors[part] - others[part]).max(axis=1) <= ROUNDED
    return same
