"""Check the shape and type of embeddings, not their values."""

from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.labels import is_tensor


def check_vectors(vectors: Any) -> None:
    """Raise `InputError` unless `vectors` is a numpy array or torch tensor (n, d) of a numeric type.

    >>> check_vectors(np.zeros(3))
    Traceback (most recent call last):
    isomargin.InputError: embeddings has shape (3,): two dimensions are needed, (rows, dimensions)
    """
    if is_tensor(vectors):
        usable = vectors.dtype.is_floating_point or str(vectors.dtype).startswith(("torch.int", "torch.uint"))
    elif isinstance(vectors, np.ndarray):
        usable = vectors.dtype.kind in "fiu" or vectors.dtype.name == "bfloat16"
    else:
        raise InputError(
            f"embeddings is a {type(vectors).__name__}: a numpy array or a torch tensor is needed, "
            "such as numpy.asarray(embeddings)"
        )
    shape = tuple(vectors.shape)
    if len(shape) != 2:
        raise InputError(f"embeddings has shape {shape}: two dimensions are needed, (rows, dimensions)")
    if 0 in shape:
        raise InputError(f"embeddings has shape {shape} and is empty: at least one row and one dimension are needed")
    if not usable:
        raise InputError(f"embeddings has dtype {vectors.dtype}: real numbers are needed, such as float32")
