"""From whatever the user has (numpy or torch, any float type, any labels) to unit vectors sorted by class.

Everything that can be wrong with embeddings and labels is refused here, in one sentence, before any work is done.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.labels import as_labels, is_tensor
from isomargin.core.vectors import check_vectors

CHUNK = 1 << 22  # values converted at once, so that a memory-mapped array is never held whole in float64


@dataclass(frozen=True)
class ClassSortedVectors:
    """Unit vectors sorted by class, ready for the pass over pairs."""

    vectors: NDArray[Any]
    """(n, d) float32 or float64, each row of length one, rows of a class together."""
    class_of: NDArray[np.int64]
    """(n,) class index of each row, ascending."""
    sizes: NDArray[np.int64]
    """(classes,) images of each class."""
    names: NDArray[Any]
    """(classes,) the labels, sorted: integers, strings, or whatever they were."""
    notes: tuple[str, ...]
    """What the user should know about this input."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """(classes,) first row of each class."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def ends(self) -> NDArray[np.int64]:
        """(classes,) one past the last row of each class."""
        return np.cumsum(self.sizes)

    @cached_property
    def reach(self) -> float:
        """A bound of all distances: twice the largest distance from the mean, rounded up, at most 2.

        Bins up to there instead of up to 2 keep their resolution for embeddings that fill a small part of the sphere.
        """
        mean = self.vectors.mean(axis=0, dtype=np.float64).astype(self.vectors.dtype)
        step = max(1, CHUNK // self.vectors.shape[1])
        chunks = (self.vectors[first : first + step] for first in range(0, len(self.vectors), step))
        farthest = max(float(np.square(chunk - mean).sum(axis=1).max()) for chunk in chunks)
        bound = max(2 * np.sqrt(farthest), 2.0**-30)
        step = 2.0 ** (np.floor(np.log2(bound)) - 8)  # rounded to 8 bits, which the order of rows does not change
        return float(min(2.0, np.ceil(bound / step + 0.01) * step))


def sort_by_class(embeddings: Any, labels: Any, dtype: type = np.float32) -> ClassSortedVectors:
    """Check, normalise and sort by class.

    Args:
        embeddings: (n, d) numpy array, memory-mapped or not, torch tensor, or nested list; float16, bfloat16,
            float32, float64 or integers. Rows need not have length one: they are normalised.
        labels: n labels of any kind that can be told apart: integers, strings, booleans.
        dtype: float32, or float64 for the exact count.

    >>> sorted_vectors = sort_by_class([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]], ["cat", "dog", "cat"])
    >>> sorted_vectors.vectors.tolist(), sorted_vectors.names.tolist(), sorted_vectors.sizes.tolist()
    ([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], ['cat', 'dog'], [2, 1])
    """
    array = as_matrix(embeddings)
    names, class_of_row = np.unique(as_labels(labels), return_inverse=True)
    if len(class_of_row) != len(array):
        raise InputError(
            f"labels has {len(class_of_row):,} entries, embeddings has {len(array):,} rows: one label a row is needed"
        )
    sizes = np.bincount(class_of_row, minlength=len(names)).astype(np.int64)
    if len(names) < 2:
        only = repr(names.tolist()[0])
        shown = only if len(only) <= 60 else f"{only[:57]}..."
        raise InputError(f"all labels are {shown}: at least two classes are needed to have negative pairs")
    if sizes.max() < 2:
        raise InputError(f"each of the {len(names):,} classes has a single image: there is no positive pair to measure")
    order = np.argsort(class_of_row, kind="stable")
    vectors = unit_rows(array, order, dtype)
    notes = []
    if singles := int((sizes == 1).sum()):
        notes.append(
            f"{singles:,} of {len(names):,} classes have a single image: they have no positive pair and so no curve, "
            "and take part as the others' negatives only"
        )
    return ClassSortedVectors(vectors, class_of_row[order].astype(np.int64), sizes, names, tuple(notes))


def as_matrix(embeddings: Any) -> Any:
    """Give embeddings as a checked two-dimensional array that can be sliced; torch tensors stay tensors, on the CPU."""
    if is_tensor(embeddings):
        if embeddings.is_sparse or embeddings.is_meta:
            raise InputError("embeddings is a tensor without its values in place: a dense tensor is needed")
        embeddings = embeddings.detach().cpu()
    elif isinstance(embeddings, np.ma.MaskedArray) and np.ma.getmaskarray(embeddings).any():
        raise InputError("embeddings is a masked array with masked entries: fill them or leave their rows out")
    elif not isinstance(embeddings, np.ndarray):
        try:
            embeddings = np.asarray(embeddings)
        except (ValueError, TypeError, RuntimeError) as error:
            raise InputError(f"embeddings cannot be made one array of numbers: {error}") from error
    check_vectors(embeddings)
    return embeddings


def unit_rows(array: Any, order: NDArray[np.int64], dtype: type) -> NDArray[Any]:
    """Take the rows in this order, each divided by its length; refuse those that have none. (n, d)"""
    n, width = array.shape
    vectors = np.empty((n, width), dtype)
    bad: list[NDArray[np.int64]] = []
    zero: list[NDArray[np.int64]] = []
    step = max(1, CHUNK // width)
    for first in range(0, n, step):
        which = order[first : first + step]
        values = as_float64(array[which])
        # Scaled by the largest entry first, so that squares neither overflow nor vanish.
        largest = np.abs(values).max(axis=1, keepdims=True)
        finite = np.isfinite(largest[:, 0])
        bad.append(which[~finite])
        zero.append(which[finite & (largest[:, 0] == 0)])
        values /= np.where(finite[:, None] & (largest > 0), largest, 1)
        length = np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
        with np.errstate(invalid="ignore", over="ignore"):  # of the rows that are refused
            vectors[first : first + step] = values / np.where(length > 0, length, 1)
    refuse_rows(np.concatenate(bad), "are NaN or infinite", "remove or recompute them")
    refuse_rows(np.concatenate(zero), "are zero vectors, which have no direction", "remove them")
    return vectors


def as_float64(rows: Any) -> NDArray[np.float64]:
    """Convert a few rows, from numpy or torch, bfloat16 included."""
    if not isinstance(rows, np.ndarray):
        rows = rows.double().numpy()
    with np.errstate(over="ignore"):  # of wider floats: infinite then, and refused
        return np.array(rows, dtype=np.float64)


def refuse_rows(which: NDArray[np.int64], what: str, remedy: str) -> None:
    """Raise an error that names the rows, the first five of them, if there are any."""
    if which.size == 0:
        return
    shown = ", ".join(str(row) for row in np.sort(which)[:5])
    more = f" and {which.size - 5:,} more" if which.size > 5 else ""
    raise InputError(f"rows {shown}{more} of embeddings {what}: {remedy}")
