"""Embeddings in an index of faiss, which has no labels: they are given beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import Page, Rows, collect, page_size

WHAT = "the index"


def read_faiss(index: Any, page: int) -> Rows:
    """Read the vectors of an index in the order in which they were added, and their ids if it has any.

    An index that compresses vectors returns approximations: these are what it searches.
    """
    if not hasattr(index, "ntotal") or not hasattr(index, "reconstruct_n"):
        raise InputError(f"index is of type {type(index).__name__}: an index of faiss is needed")
    import faiss

    index = faiss.downcast_index(index)
    ids = None
    if hasattr(index, "id_map"):  # IndexIDMap and IndexIDMap2
        ids, index = np.asarray(faiss.vector_to_array(index.id_map)), faiss.downcast_index(index.index)
    try:
        if isinstance(index, faiss.IndexIVF):
            index.make_direct_map()  # from the order of addition to the lists that vectors are in
        if index.ntotal:
            index.reconstruct(0)  # an error in reconstruct_n would end the process
    except RuntimeError as error:
        raise InputError(
            f"the index is a {type(index).__name__}, which does not give its vectors back in the order of addition: "
            "read them from where they came, or keep them in a flat index too"
        ) from error
    return collect(_pages(index, ids, page_size(page)), WHAT, index.ntotal)


def _pages(index: Any, ids: npt.NDArray[np.int64] | None, page: int) -> Iterator[Page]:
    for start in range(0, index.ntotal, page):
        count = min(page, index.ntotal - start)
        # An array also after `faiss.contrib.torch_utils` was imported, with which faiss returns tensors.
        vectors = np.asarray(index.reconstruct_n(start, count))
        yield Page(vectors, None, None if ids is None else ids[start : start + count])
