"""Embeddings in an index of faiss, which has no labels: they are given beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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

    if isinstance(index, faiss.IndexBinary):
        raise InputError(f"index is of type {type(index).__name__}, of bits: an index of vectors of numbers is needed")
    size = page_size(page)
    index = faiss.downcast_index(index)
    ids = None
    if hasattr(index, "id_map"):  # IndexIDMap and IndexIDMap2
        ids, index = faiss.vector_to_array(index.id_map), faiss.downcast_index(index.index)
    try:
        with _in_order_of_addition(index):
            if index.ntotal:
                index.reconstruct(0)  # an error in reconstruct_n would end the process
            return collect(_pages(index, ids, size), WHAT, index.ntotal)
    except RuntimeError as error:
        raise InputError(
            f"the index is a {type(index).__name__}, which does not give its vectors back in the order of addition: "
            "read them from where they came, or keep them in a flat index too"
        ) from error


@contextmanager
def _in_order_of_addition(index: Any) -> Iterator[None]:
    """Map the order of addition to the lists that an inverted file keeps vectors in; its own map comes back."""
    import faiss

    lists = faiss.try_extract_index_ivf(index)
    if lists is None:
        yield
        return
    before = lists.direct_map.type
    try:
        lists.set_direct_map_type(lists.direct_map.Array)
        yield
    finally:
        lists.set_direct_map_type(before)  # with another one, ids could not be removed


def _pages(index: Any, ids: npt.NDArray[np.int64] | None, page: int) -> Iterator[Page]:
    for start in range(0, index.ntotal, page):
        count = min(page, index.ntotal - start)
        # Given an array, faiss.contrib.torch_utils, which pytorch-metric-learning imports, returns no tensor.
        vectors = index.reconstruct_n(start, count, np.empty((count, index.d), np.float32))
        yield Page(vectors, None, None if ids is None else ids[start : start + count])
