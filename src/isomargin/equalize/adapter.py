"""``Adapter``: one linear layer for embeddings that were computed already, ready for use without torch.

`isomargin.fit_adapter` learns it from labelled embeddings and needs torch. Loading it and transforming embeddings
needs only the core install.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.equalize import saving
from isomargin.equalize.equalizer import Equalizer
from isomargin.equalize.rows import unit_vectors

ADAPTER, EQUALIZER = "adapter.json", "equalizer.json"  # the files of arrays beside them end in .safetensors
Singles = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Adapter:
    """A linear layer between unit vectors: x is scaled to length one, becomes x @ matrix + bias, and is scaled again.

    Unit vectors of the same model go in; unit vectors come out, which are compared by cosine as before.

    >>> adapter = Adapter(matrix=np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), bias=np.zeros(2))
    >>> adapter.transform([[5.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    matrix: Singles
    """(d_in, d_out) the weights."""
    bias: Singles
    """(d_out,) added to each product."""
    equalizer: Equalizer | None = None
    """An equalizer of adapted vectors, if one is recommended; None otherwise."""
    record: dict[str, Any] = field(default_factory=dict)
    """How the adapter was made, as JSON values: sizes of the data, chosen settings, scores."""

    def __post_init__(self) -> None:
        matrix, bias = (as_singles(getattr(self, name), name) for name in ("matrix", "bias"))
        if matrix.ndim != 2 or 0 in matrix.shape or bias.shape != matrix.shape[1:]:
            raise InputError(
                f"matrix has shape {matrix.shape} and bias {bias.shape}: (d_in, d_out) and (d_out,) are needed"
            )
        if self.equalizer is not None and self.equalizer.n_features_in_ != len(bias):
            raise InputError(
                f"the equalizer was fitted on vectors of {self.equalizer.n_features_in_} dimensions, the adapter "
                f"returns {len(bias)}: fit the equalizer on adapted vectors"
            )
        values = {"matrix": matrix, "bias": bias, "record": as_json_values(self.record)}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"<Adapter: {len(self.matrix)} to {len(self.bias)} dimensions, equalizer={self.equalizer}>"

    def transform(self, embeddings: Any) -> Singles:
        """(n, d_out) the adapted unit vectors of (n, d_in) embeddings, which need not have length one."""
        vectors = unit_vectors(embeddings)
        if vectors.shape[1] != len(self.matrix):
            raise InputError(
                f"embeddings has {vectors.shape[1]} dimensions, the adapter needs {len(self.matrix)}: "
                "embeddings of the model that it was fitted on are needed"
            )
        return unit_vectors(vectors @ self.matrix + self.bias)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write adapter.json and adapter.safetensors into a folder, atomically; those of the equalizer too.

        The folder is created if needed. Without an equalizer, the files of an earlier one are removed.
        """
        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise InputError(f"{place} is a file: give a folder for the adapter")
        place.mkdir(parents=True, exist_ok=True)
        digest = None if self.equalizer is None else self.equalizer.digest_
        arrays = {"matrix": self.matrix, "bias": self.bias}
        contents = {place / ADAPTER: saving.Content("adapter", {"equalizer": digest, "record": self.record}, arrays)}
        if self.equalizer is not None:
            contents[place / EQUALIZER] = self.equalizer.content()
        saving.write(contents)
        if self.equalizer is None and saving.is_of_kind(place / EQUALIZER, "equalizer"):
            for file in (place / EQUALIZER, saving.beside(place / EQUALIZER)):
                file.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read an adapter from the folder that `save` wrote; files that were changed since are refused."""
        place = Path(folder)
        if not (place / ADAPTER).is_file():
            raise InputError(f"{place} has no {ADAPTER}: give the folder that Adapter.save or isomargin adapt wrote")
        values, arrays = saving.read(place / ADAPTER, "adapter")
        equalizer = None if values["equalizer"] is None else Equalizer.load(place / EQUALIZER)
        if equalizer is not None and equalizer.digest_ != values["equalizer"]:
            raise InputError(f"{place / EQUALIZER} does not belong to {ADAPTER}: copy the whole folder, or fit again")
        return cls(arrays["matrix"], arrays["bias"], equalizer, values["record"])


def as_singles(values: Any, name: str) -> Singles:
    """Return a contiguous float32 array of finite numbers that cannot be written to."""
    try:
        array = np.array(values, np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be converted to an array of numbers: {error}") from error
    if not np.isfinite(array).all():
        raise InputError(f"{name} has entries that are NaN or infinite: finite numbers are needed")
    array.flags.writeable = False
    return array


def as_json_values(record: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the record as it is read back from JSON."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(record, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"record cannot be written as JSON ({error}): use numbers, text, lists and dicts") from error
    return copy
