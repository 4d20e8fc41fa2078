"""Check embeddings and labels, and turn them into unit vectors sorted by class.

Accepts numpy arrays, torch tensors and lists, in any float type, with labels of any kind. Invalid input is refused
here with a one-sentence error, before any work is done.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.labels import is_tensor, labels_of_rows
from isomargin.core.memory import forget_pages
from isomargin.core.threads import share_tasks
from isomargin.core.vectors import check_vectors
from isomargin.measure.pairs.axis import L2, ScoreAxis, distance_of

UNIT_TOLERANCE = 1e-3  # largest deviation from one of the length of a unit vector
FEW = 0.01  # up to this share of embeddings of other lengths, there is no note
OTHER_LENGTHS = "do not have length one"
EXACT_COLUMNS = 512  # columns of float64 products at a time
ROUNDED_SPAN = 2.0**-9  # bounds of equalized distances are multiples of this
CHUNK = 1 << 18  # values converted at a time: 2 MB in float64, most of which stays in the cache


Rows = slice | NDArray[np.int64]


@dataclass(frozen=True)
class Shifts:
    """What an equalizer adds to similarities: the sum of the shifts of a pair's two rows."""

    values: NDArray[np.float64]
    """(n,) the shift of each row."""
    axis: ScoreAxis
    """The axis of the shifted similarities."""
    own_class: str | None = None
    """Whether the classes of the rows were among their neighbours; None if the equalizer does not tell."""
    notes: tuple[str, ...] = ()
    """What the user should know."""


@dataclass(frozen=True)
class ClassSortedVectors:
    """Unit vectors sorted by class, ready for the pass over pairs."""

    vectors: NDArray[Any]
    """(n, d) float32 or float64; each row has length one, and the rows of a class are contiguous."""
    class_of: NDArray[np.int64]
    """(n,) class index of each row, ascending."""
    sizes: NDArray[np.int64]
    """(classes,) number of items in each class."""
    names: NDArray[Any]
    """(classes,) the distinct labels, sorted, in the type they were given in."""
    notes: tuple[str, ...]
    """What the user should know about this input."""
    shifts: NDArray[np.float64] | None = None
    """(n,) what is added to the similarity of each pair of a row; None if similarities are not equalized."""
    axis: ScoreAxis = L2
    """The axis on which pairs are counted."""

    def similarity(self, rows: Rows, columns: Rows, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """(rows, columns) similarities, equalized if there are shifts: the one place where vectors are multiplied."""
        return self.shift(np.matmul(self.vectors[rows], self.vectors[columns].T, out=out), rows, columns)

    def exact_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(rows, n) similarities of a few rows to all others, computed in float64 part by part."""
        chosen, n = self.vectors[rows].astype(np.float64), len(self.vectors)
        similarity = np.empty((len(rows), n))
        for first in range(0, n, EXACT_COLUMNS):
            part = slice(first, first + EXACT_COLUMNS)
            similarity[:, part] = chosen @ self.vectors[part].astype(np.float64).T
        return self.shift(similarity, rows, slice(None))

    def shift(self, product: NDArray[Any], rows: Rows, columns: Rows) -> NDArray[Any]:
        """Add the shifts to the cosines of these rows and columns, in place."""
        if self.shifts is None:
            return product
        if product.dtype == np.float64:
            # Their sum first: both orders of a pair then have the same similarity, and count on the same side.
            product += self.shifts[rows, None] + self.shifts[columns]
        else:
            product += self.single_shifts[rows, None]
            product += self.single_shifts[columns]
        return product

    @cached_property
    def single_shifts(self) -> NDArray[np.float32]:
        """(n,) the shifts in float32."""
        assert self.shifts is not None
        return self.shifts.astype(np.float32)

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
        """An upper bound on all distances: twice the largest distance from the mean, rounded up, at most 2.

        Bins end here instead of at 2, so that they stay fine when the embeddings fill only a small part of the sphere.
        """
        total = sum(chunk.sum(axis=0, dtype=np.float64) for chunk in self.chunks())
        mean = (total / len(self.vectors)).astype(self.vectors.dtype)
        farthest = max(float(np.square(chunk - mean).sum(axis=1).max()) for chunk in self.chunks())
        bound = max(2 * np.sqrt(farthest), 2.0**-30)
        step = 2.0 ** (np.floor(np.log2(bound)) - 8)  # rounding to 8 bits makes the bound independent of the row order
        return float(min(2.0, np.ceil(bound / step + 0.01) * step))

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Yield all vectors, some rows at a time; of those in a file, no more are held in memory."""
        step = max(1, CHUNK // self.vectors.shape[1])
        for first in range(0, len(self.vectors), step):
            yield self.vectors[first : first + step]
            forget_pages(self.vectors)

    @cached_property
    def span(self) -> tuple[float, float]:
        """Bounds of all distances, within the axis; bins lie between them."""
        if self.shifts is None:
            return 0.0, self.reach
        low = distance_of(1 + 2 * float(self.shifts.max())) - ROUNDED_SPAN
        high = distance_of(1 - self.reach**2 / 2 + 2 * float(self.shifts.min())) + ROUNDED_SPAN
        return (
            max(self.axis.lowest, math.floor(low / ROUNDED_SPAN) * ROUNDED_SPAN),
            min(self.axis.highest, math.ceil(high / ROUNDED_SPAN) * ROUNDED_SPAN),
        )


def sort_by_class(
    embeddings: Any,
    labels: Any,
    dtype: type = np.float32,
    shifts: Shifts | None = None,
    threads: int | None = None,
) -> ClassSortedVectors:
    """Check the embeddings and labels, normalise each row to length one, and sort the rows by class.

    Args:
        embeddings: (n, d) numpy array (memory-mapped or not), torch tensor or nested list; float16, bfloat16,
            float32, float64 or integers. Rows need not have length one.
        labels: n labels: integers, strings or booleans.
        dtype: type of the returned vectors: float32, or float64 for the exact count.
        shifts: what an equalizer adds to the similarities.
        threads: number of CPU threads; by default one per core.

    >>> sorted_vectors = sort_by_class([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0]], ["cat", "dog", "cat"])
    >>> sorted_vectors.vectors.tolist(), sorted_vectors.names.tolist(), sorted_vectors.sizes.tolist()
    ([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], ['cat', 'dog'], [2, 1])
    """
    array = as_matrix(embeddings)
    names, class_of_row = np.unique(labels_of_rows(labels, len(array)), return_inverse=True)
    sizes = np.bincount(class_of_row, minlength=len(names)).astype(np.int64)
    check_classes(names, sizes)
    order = np.argsort(class_of_row, kind="stable")
    lengths = np.empty(len(array))
    vectors = unit_rows(array, order, dtype, lengths, threads=threads)
    notes = note_on_singles(sizes) + note_on_lengths(lengths)
    class_of = class_of_row[order].astype(np.int64)
    if shifts is None:
        return ClassSortedVectors(vectors, class_of, sizes, names, tuple(notes))
    return ClassSortedVectors(
        vectors, class_of, sizes, names, tuple(notes), shifts=shifts.values[order], axis=shifts.axis
    )


def check_classes(names: NDArray[Any], sizes: NDArray[np.int64]) -> None:
    """Refuse labels of a single class, and classes of a single item each."""
    if len(names) < 2:
        only = repr(names.tolist()[0])
        shown = only if len(only) <= 60 else f"{only[:57]}..."
        raise InputError(f"all labels are {shown}: at least two classes are needed to have negative pairs")
    if sizes.max() < 2:
        raise InputError(
            f"each of the {len(names):,} classes has a single item, so there are no positive pairs: "
            "at least one class needs two items"
        )


def note_on_singles(sizes: NDArray[np.int64]) -> list[str]:
    """Return a note if classes have a single item.

    >>> note_on_singles(np.array([3, 1]))
    ['1 of 2 classes have a single item: they have no positive pairs and so no curve, and only serve as ...']
    """
    if not (singles := int((sizes == 1).sum())):
        return []
    return [
        f"{singles:,} of {len(sizes):,} classes have a single item: they have no positive pairs and so no curve, "
        "and only serve as negatives for the other classes"
    ]


def note_on_lengths(lengths: NDArray[np.float64]) -> list[str]:
    """Return a note if more than a few embeddings do not have length one.

    >>> note_on_lengths(np.array([1.0, 0.9999, 1.0001]))
    []
    >>> note_on_lengths(np.array([1.0, 7.5]))
    ['1 of 2 embeddings do not have length one (lengths from 1 to 7.5) and were normalised: ...']
    """
    return note_on_other_lengths(count_other_lengths(lengths), len(lengths), lengths.min(), lengths.max())


def count_other_lengths(lengths: NDArray[np.float64]) -> int:
    """Return how many lengths are not one."""
    return int((np.abs(lengths - 1) > UNIT_TOLERANCE).sum())


def note_on_other_lengths(other: int, rows: int, low: float, high: float) -> list[str]:
    """Return the same note from the number of embeddings that do not have length one, and the range of lengths."""
    if other <= FEW * rows:
        return []
    return [
        f"{other:,} of {rows:,} embeddings {OTHER_LENGTHS} (lengths from {low:.3g} to "
        f"{high:.3g}) and were normalised: scale yours in the same way before you apply a threshold of L2 "
        "distances or inner products"
    ]


class LengthCounts:
    """How many lengths of embeddings are not one, block by block, and their range."""

    def __init__(self) -> None:
        self.rows, self.other, self.low, self.high = 0, 0, math.inf, 0.0

    def add(self, lengths: NDArray[np.float64]) -> None:
        """Add the lengths of a block."""
        self.rows += len(lengths)
        self.other += count_other_lengths(lengths)
        self.low, self.high = min(self.low, float(lengths.min())), max(self.high, float(lengths.max()))

    def __add__(self, other: "LengthCounts") -> "LengthCounts":
        found = LengthCounts()
        found.rows, found.other = self.rows + other.rows, self.other + other.other
        found.low, found.high = min(self.low, other.low), max(self.high, other.high)
        return found

    @classmethod
    def of(cls, lengths: NDArray[np.float64]) -> "LengthCounts":
        """Count the lengths of embeddings in memory."""
        found = cls()
        found.add(lengths)
        return found

    def note(self) -> list[str]:
        """Return a note if more than a few embeddings do not have length one."""
        return note_on_other_lengths(self.other, self.rows, self.low, self.high)


def as_matrix(embeddings: Any) -> Any:
    """Return embeddings as a checked two-dimensional array; torch tensors stay tensors and are moved to the CPU."""
    if is_tensor(embeddings):
        if embeddings.is_sparse or embeddings.is_meta:
            raise InputError("embeddings is a sparse or meta tensor: a dense tensor is needed")
        embeddings = embeddings.detach().cpu()
    elif isinstance(embeddings, np.ma.MaskedArray) and np.ma.getmaskarray(embeddings).any():
        raise InputError("embeddings is a masked array with masked entries: fill them or remove their rows")
    elif hasattr(embeddings, "toarray"):  # of scipy; numpy would make one object of it
        raise InputError("embeddings is a sparse matrix, which is not supported: convert it with embeddings.toarray()")
    elif not isinstance(embeddings, np.ndarray):
        try:
            embeddings = np.asarray(embeddings)
        except (ValueError, TypeError, RuntimeError) as error:
            raise InputError(f"embeddings cannot be converted to one array of numbers: {error}") from error
    check_vectors(embeddings)
    return embeddings


def unit_rows(
    array: Any,
    order: NDArray[np.int64],
    dtype: type,
    lengths: NDArray[np.float64] | None = None,
    first_row: int = 0,
    threads: int | None = None,
) -> NDArray[Any]:
    """(n, d) the rows in the given order, each divided by its length; rows without a direction are refused.

    The lengths are written into ``lengths`` (n,) if it is given. Errors number rows from ``first_row``.
    """
    n, width = array.shape
    vectors = np.empty((n, width), dtype)
    not_finite: list[NDArray[np.int64]] = []
    zero: list[NDArray[np.int64]] = []
    step = max(1, CHUNK // width)

    def normalise(first: int) -> None:
        rows = order[first : first + step]
        values = as_float64(array[rows])
        # Scale by the largest entry first, so that squares neither overflow nor vanish.
        largest = np.abs(values).max(axis=1, keepdims=True)
        finite = np.isfinite(largest[:, 0])
        not_finite.append(rows[~finite])
        zero.append(rows[finite & (largest[:, 0] == 0)])
        values /= np.where(finite[:, None] & (largest > 0), largest, 1)
        length = np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
        with np.errstate(invalid="ignore", over="ignore"):  # only in rows that are refused below
            vectors[first : first + step] = values / np.where(length > 0, length, 1)
            if lengths is not None:
                lengths[first : first + step] = (length * largest)[:, 0]

    share_tasks(normalise, range(0, n, step), threads)
    refuse_rows(np.concatenate(not_finite) + first_row, "are NaN or infinite", "remove or recompute them")
    refuse_rows(np.concatenate(zero) + first_row, "are zero vectors, which have no direction", "remove them")
    return vectors


def as_float64(rows: Any) -> NDArray[np.float64]:
    """Convert rows of a numpy array or torch tensor (bfloat16 too) to float64."""
    if not isinstance(rows, np.ndarray):
        rows = rows.double().numpy()
    with np.errstate(over="ignore"):  # wider floats may overflow to infinity, which is refused
        return np.array(rows, dtype=np.float64)


def refuse_rows(rows: NDArray[np.int64], problem: str, remedy: str) -> None:
    """Raise an error that names up to five of the rows, if there are any."""
    if rows.size == 0:
        return
    shown = ", ".join(str(row) for row in np.sort(rows)[:5])
    more = f" and {rows.size - 5:,} more" if rows.size > 5 else ""
    raise InputError(f"rows {shown}{more} of embeddings {problem}: {remedy}")
