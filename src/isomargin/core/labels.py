"""Class labels: convert lists, arrays, tensors and columns of tables to one plain array.

The result holds integers or text, so that it can be saved without pickling, and two labels are equal exactly if they
name the same class. Anything that would silently merge or split classes is refused. Reading files is in `io`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError

AS_TEXT = "convert them to text with labels.astype(str)"
NO_LABEL = "give every row a label or remove the row"


def is_tensor(value: object) -> bool:
    """Return whether `value` is a torch tensor, without importing torch.

    >>> is_tensor(np.zeros(3))
    False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def integer_array(values: list[int]) -> npt.NDArray[Any] | None:
    """Convert Python integers to an int64 array (n,), or to uint64 if needed; None if neither can hold them.

    >>> integer_array([3, -1])
    array([ 3, -1])
    >>> integer_array([2**63]).dtype
    dtype('uint64')
    >>> integer_array([-1, 2**63]) is None
    True
    """
    lowest, highest = min(values, default=0), max(values, default=0)
    for dtype in (np.int64, np.uint64):
        limits = np.iinfo(dtype)
        if limits.min <= lowest and highest <= limits.max:
            return np.array(values, dtype=dtype)
    return None


def as_labels(labels: Any) -> npt.NDArray[Any]:
    """Convert a list, array, tensor or column of n labels to an array (n,) of integers or text.

    Integers keep their dtype. Booleans become 0 and 1, floats become int64 if all of them are whole numbers that their
    dtype holds exactly, and bytes are decoded as UTF-8. Everything else is refused: missing labels, fractions, mixed
    types, and text that ends with a NUL character, which numpy would drop.

    >>> as_labels(["cat", "dog"])
    array(['cat', 'dog'], dtype='<U3')
    >>> as_labels(np.array([True, False]))
    array([1, 0])
    >>> as_labels([1, "1"])
    Traceback (most recent call last):
    isomargin.InputError: labels mixes int and str, so 1 and '1' may be one class or two: ...
    """
    array = _as_array(labels)
    check_dimensions(array)
    if array.dtype.kind in "OT":
        array = _from_objects(array.astype(object))
    if array.dtype.kind == "S":
        array = _from_bytes(array)
    if array.dtype.kind == "f":
        array = _from_floats(array)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iuU":
        raise InputError(f"labels has dtype {array.dtype}: integers or text are needed, {AS_TEXT}")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind == "U" and array.nbytes:
        _refuse_half_characters(array)
    return array


def labels_of_rows(labels: Any, rows: int) -> npt.NDArray[Any]:
    """Convert the labels of n rows to an array (n,), as `as_labels` does.

    >>> labels_of_rows(["cat", "dog"], 3)
    Traceback (most recent call last):
    isomargin.InputError: labels has 2 entries, embeddings has 3 rows: one label per row is needed
    """
    array = as_labels(labels)
    if len(array) != rows:
        raise InputError(
            f"labels has {len(array):,} entries, embeddings has {rows:,} rows: one label per row is needed"
        )
    return array


def as_ids(ids: Any, rows: int) -> npt.NDArray[Any]:
    """Convert the names of n rows to an array (n,) of integers or text, as `as_labels` does.

    >>> as_ids(["a", "b"], 3)
    Traceback (most recent call last):
    isomargin.InputError: ids has 2 entries, embeddings has 3 rows: one id per row is needed
    """
    try:
        array = as_labels(ids)
    except InputError as error:
        raise InputError(f"ids cannot be used ({error}): one integer or text per row is needed") from error
    if len(array) != rows:
        raise InputError(f"ids has {len(array):,} entries, embeddings has {rows:,} rows: one id per row is needed")
    return array


def check_dimensions(labels: npt.NDArray[Any]) -> None:
    """Raise `InputError` unless labels have one dimension."""
    if labels.ndim != 1:
        raise InputError(f"labels has shape {labels.shape}: one dimension is needed, with one label per row")


def _as_array(labels: Any) -> npt.NDArray[Any]:
    if is_tensor(labels):
        try:
            tensor: npt.NDArray[Any] = labels.detach().cpu().numpy()
        except TypeError as error:
            raise InputError(
                f"labels is a tensor of {labels.dtype}, which rounds class numbers: use integers"
            ) from error
        return tensor
    # As objects, because numpy would convert [1, "a"] to text and large integers to floats.
    array = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    if isinstance(labels, np.ma.MaskedArray) and np.ma.getmaskarray(labels).any():
        raise InputError(f"labels is a masked array with masked entries: {NO_LABEL}")
    return array


def _from_objects(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = array.tolist()
    kinds = {kind: kind.__name__ for kind in map(type, values)}
    if all(issubclass(kind, str) for kind in kinds):
        _refuse_trailing_nul(values, "\0")
        return np.array(values, dtype=str)
    if all(issubclass(kind, bytes) for kind in kinds):
        _refuse_trailing_nul(values, b"\0")
        return np.array(values, dtype=bytes)
    if all(issubclass(kind, int | np.integer | np.bool_) for kind in kinds):
        integers = integer_array([int(value) for value in values])
        if integers is None:
            raise InputError("labels has integers that fit neither int64 nor uint64: convert them with str(label)")
        return integers
    for row, value in enumerate(values):
        if value is None or value != value or type(value).__name__ == "NAType":
            raise InputError(f"labels[{row}] is {value}: {NO_LABEL}")
    if all(issubclass(kind, int | float | np.number) and not issubclass(kind, np.complexfloating) for kind in kinds):
        return np.array(values, dtype=np.float64)
    if len(kinds) == 1:
        raise InputError(f"labels has objects of type {next(iter(kinds.values()))}: integers or text are needed")
    raise InputError(
        f"labels mixes {' and '.join(sorted(kinds.values()))}, so 1 and '1' may be one class or two: "
        "convert all of them to text with [str(label) for label in labels]"
    )


def _refuse_trailing_nul(values: list[Any], nul: str | bytes) -> None:
    for row, value in enumerate(values):
        if value.endswith(nul):
            raise InputError(
                f"labels[{row}] is {value[-40:]!a}, which ends with a NUL character: numpy would drop it and could "
                "merge classes, so remove it or replace it"
            )


def _from_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError("labels has bytes that are not UTF-8 text: decode them first") from error


def _refuse_half_characters(array: npt.NDArray[Any]) -> None:
    codes = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
    halves = ((codes >= 0xD800) & (codes <= 0xDFFF)).any(axis=1)
    if halves.any():
        row = int(np.argmax(halves))
        raise InputError(
            f"labels[{row}] is {str(array[row])!a}, which cannot be saved as text: it may be a file name that is not "
            "UTF-8, so use os.fsencode(label).hex()"
        )


def _from_floats(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # From this limit on, neighbouring whole numbers round to the same float, so two classes may have become one.
    limit = 2.0 ** min(np.finfo(array.dtype).nmant + 1, 62)
    with np.errstate(invalid="ignore"):
        unusable = ~((array == np.floor(array)) & (np.abs(array) < limit))
    if not unusable.any():
        return array.astype(np.int64)
    row = int(np.argmax(unusable))
    if np.isnan(array[row]):
        raise InputError(f"labels[{row}] is nan: {NO_LABEL}")
    raise InputError(
        f"labels[{row}] is {array[row]} ({array.dtype}): labels name classes, so whole numbers below {limit:.0f} "
        f"or text are needed, {AS_TEXT}"
    )
