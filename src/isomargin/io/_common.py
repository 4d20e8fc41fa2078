"""Shared by the formats: types of readers and writers, checks of keys and shapes, conversions to numpy and torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError, MissingLabelsError
from isomargin.core.labels import check_dimensions, is_tensor
from isomargin.core.vectors import check_vectors

if TYPE_CHECKING:
    import torch

Vectors: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
"""Embeddings (n, d): a numpy array, memory-mapped or not, or a torch tensor."""

# A reader takes the path and the keys of embeddings and labels; the key of the labels is None if they are in a file of
# their own. It returns the vectors (n, d), the labels (n,) or None, and the ids (n,) or None.
Reader: TypeAlias = Callable[[Path, str, str | None], tuple[Any, Any, Any]]
# A writer takes the path, the vectors, the labels, and the ids or None.
Writer: TypeAlias = Callable[[Path, Vectors, npt.NDArray[Any], npt.NDArray[Any] | None], None]

IDS = "ids"
"""Name of the ids in a file."""

LABELS_HINT = "give a labels file with labels= (--labels)"
UNPACKED = "save the embeddings as .npy, which is read in parts"


def suffix_of(path: Path) -> str:
    """Return the suffix in words, for a sentence."""
    return f"the suffix {path.suffix}" if path.suffix else "no suffix"


def check_keys(path: Path, there: Iterable[Any], embeddings_key: str, labels_key: str | None) -> None:
    """Raise `InputError` if a key is missing, with the keys that the file has."""
    names = [str(name) for name in there]
    shown = ", ".join(map(repr, names[:20])) + (", …" if len(names) > 20 else "")
    has = f"it has {shown}" if names else "it is empty"
    if embeddings_key not in names:
        raise InputError(
            f"{path} has no {embeddings_key!r}: {has}; name the right one with embeddings_key= (--embeddings-key)"
        )
    if labels_key is not None and labels_key not in names:
        raise MissingLabelsError(
            f"{path} has no {labels_key!r}: {has}; name the right one with labels_key= (--labels-key), or {LABELS_HINT}"
        )


def check_shapes(vectors: Vectors, labels: npt.NDArray[Any] | None = None) -> None:
    """Raise `InputError` unless vectors have shape (n, d) and a numeric type, and labels, if given, shape (n,)."""
    check_vectors(vectors)
    if labels is None:
        return
    check_dimensions(labels)
    if len(labels) != len(vectors):
        raise InputError(
            f"labels has {len(labels)} entries, embeddings has {len(vectors)} rows: one label per row is needed"
        )


def as_numpy(vectors: Vectors) -> npt.NDArray[Any]:
    """Convert vectors (n, d) to a numpy array; bfloat16 becomes float32."""
    if not is_tensor(vectors):
        return np.asarray(vectors)
    tensor: Any = vectors.detach().cpu()  # type: ignore[union-attr]
    try:
        array: npt.NDArray[Any] = tensor.numpy()
    except TypeError:  # bfloat16 and smaller floats, which numpy does not have
        array = tensor.float().numpy()
    return array


def as_common(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make values contiguous, in native byte order and of at most 8 bytes each, as torch and arrow require."""
    dtype = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array, dtype=dtype)


def as_tensor(values: Vectors) -> torch.Tensor:
    """Convert values to a contiguous tensor on the CPU that is not a view of a larger one."""
    import torch

    if not is_tensor(values):
        array = as_common(np.asarray(values))
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    tensor: torch.Tensor = values.detach().cpu().contiguous()  # type: ignore[union-attr]
    # torch.save would write the whole storage behind a view.
    owns_storage = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if owns_storage else tensor.clone()
