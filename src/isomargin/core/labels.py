"""Class labels, from what people have (lists, arrays, tensors, tables' columns) to one plain array.

What comes out is integers or text, so that it can be saved without pickling and two labels are equal exactly when
they name the same class. What would merge or split classes silently is refused. Reading files is in `formats.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError

AS_TEXT = "make them plain text with labels.astype(str)"


def is_tensor(value: object) -> bool:
    """Say whether `value` is a torch tensor, without importing torch.

    >>> is_tensor(np.zeros(3))
    False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def integer_array(values: list[int]) -> npt.NDArray[Any] | None:
    """Put Python integers into an int64 array (n,), else a uint64 array (n,), or None where neither can hold them.

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
    """Turn a list, array, tensor or column of n labels into an array (n,) of integers or of text.

    Integers keep their dtype. Truth values become 0 and 1; floats become int64 where each is a whole number that its
    dtype holds exactly; bytes are read as UTF-8. All else is refused: missing labels, fractions, mixed types, and text
    that ends with a NUL character, which numpy would drop.

    >>> as_labels(["cat", "dog"])
    array(['cat', 'dog'], dtype='<U3')
    >>> as_labels(np.array([True, False]))
    array([1, 0])
    >>> as_labels([1, "1"])
    Traceback (most recent call last):
    isomargin.InputError: labels mixes int and str, so that 1 and '1' may be one class or two: ...
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


def check_dimensions(labels: npt.NDArray[Any]) -> None:
    """Raise `InputError` unless labels have one dimension."""
    if labels.ndim != 1:
        raise InputError(f"labels has shape {labels.shape}: one dimension is needed, with one label a row")


def _as_array(labels: Any) -> npt.NDArray[Any]:
    if is_tensor(labels):
        try:
            tensor: npt.NDArray[Any] = labels.detach().cpu().numpy()
        except TypeError as error:
            raise InputError(
                f"labels is a tensor of {labels.dtype}, which rounds class numbers: give integers"
            ) from error
        return tensor
    # A list goes through objects, lest numpy turn [1, "a"] into text and large integers into floats.
    array = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    if isinstance(labels, np.ma.MaskedArray) and np.ma.getmaskarray(labels).any():
        raise InputError("labels is a masked array with masked entries: give every row a label or leave the row out")
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
            raise InputError("labels holds integers that fit neither int64 nor uint64: make them text with str(label)")
        return integers
    for row, value in enumerate(values):
        if value is None or value != value or type(value).__name__ == "NAType":
            raise InputError(f"labels[{row}] is {value}: give every row a label or leave the row out")
    if all(issubclass(kind, int | float | np.number) and not issubclass(kind, np.complexfloating) for kind in kinds):
        return np.array(values, dtype=np.float64)
    if len(kinds) == 1:
        raise InputError(f"labels holds objects of type {next(iter(kinds.values()))}: integers or text are needed")
    raise InputError(
        f"labels mixes {' and '.join(sorted(kinds.values()))}, so that 1 and '1' may be one class or two: "
        "make them all text with [str(label) for label in labels]"
    )


def _refuse_trailing_nul(values: list[Any], nul: str | bytes) -> None:
    for row, value in enumerate(values):
        if value.endswith(nul):
            raise InputError(
                f"labels[{row}] is {value[-40:]!a}, which ends with a NUL character: numpy drops it, which would merge "
                "classes, so remove it or write it differently"
            )


def _from_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    try:
        return np.char.decode(array, "utf-8")
    except UnicodeDecodeError as error:
        raise InputError("labels holds bytes that are not UTF-8 text: decode them before") from error


def _refuse_half_characters(array: npt.NDArray[Any]) -> None:
    codes = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), -1)
    halves = ((codes >= 0xD800) & (codes <= 0xDFFF)).any(axis=1)
    if halves.any():
        row = int(np.argmax(halves))
        raise InputError(
            f"labels[{row}] is {str(array[row])!a}, which no file can hold as text: file names that are not UTF-8 "
            "come out so, write them with os.fsencode(label).hex()"
        )


def _from_floats(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # From here on neighbouring whole numbers round to the same float: two classes may have become one.
    limit = 2.0 ** min(np.finfo(array.dtype).nmant + 1, 62)
    with np.errstate(invalid="ignore"):
        unusable = ~((array == np.floor(array)) & (np.abs(array) < limit))
    if not unusable.any():
        return array.astype(np.int64)
    row = int(np.argmax(unusable))
    if np.isnan(array[row]):
        raise InputError(f"labels[{row}] is nan: give every row a label or leave the row out")
    raise InputError(
        f"labels[{row}] is {array[row]} ({array.dtype}): labels name classes, so whole numbers below {limit:.0f} "
        f"or text are needed, {AS_TEXT}"
    )
