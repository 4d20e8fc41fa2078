"""Embeddings in pandas and polars data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import Rows, arrow_matrix, arrow_values, as_matrix, check_columns

WHAT = "the frame"


def read_frame(frame: Any, label: str | None, vector: str | Sequence[str], identifier: str | None) -> Rows:
    """Read a frame with a column of vectors, or with one column for each dimension."""
    package = type(frame).__module__.split(".")[0]
    if package not in ("pandas", "polars") or not hasattr(frame, "columns"):
        raise InputError(f"frame is of type {type(frame).__name__}: a pandas or polars DataFrame is needed")
    if package == "polars" and hasattr(frame, "collect"):  # a LazyFrame
        frame = frame.collect()
    if isinstance(vector, str):
        check_columns(WHAT, frame.columns, vector, label, identifier)
    elif not len(vector):
        raise InputError("vector is an empty list: the name of a column is needed, or one name per dimension")
    else:
        for name in vector:
            check_columns(WHAT, frame.columns, name, label, identifier)
    if not len(frame):
        raise InputError(f"{WHAT} has no rows: at least one item is needed")
    vectors = _vectors(frame, vector, package)
    return Rows(vectors, _values(frame, label, package), _values(frame, identifier, package))


def _vectors(frame: Any, vector: str | Sequence[str], package: str) -> npt.NDArray[Any]:
    if not isinstance(vector, str):
        matrix: npt.NDArray[Any] = np.ascontiguousarray(frame[list(vector)].to_numpy())
        return matrix
    if package == "polars":
        return arrow_matrix(frame[vector].to_arrow(), WHAT, vector)
    return as_matrix(frame[vector].tolist(), WHAT)


def _values(frame: Any, name: str | None, package: str) -> Any:
    if name is None:
        return None
    if package == "polars":
        return np.array([*arrow_values(frame[name].to_arrow()), None], dtype=object)[:-1]
    return frame[name]
