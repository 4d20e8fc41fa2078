"""Embeddings in a collection of Chroma."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import Page, Rows, as_matrix, collect, page_size, required_labels


def read_chroma(collection: Any, label: str | None, page: int) -> Rows:
    """Read a collection page by page; its vectors are float32, which Chroma returns as float64."""
    if not hasattr(collection, "get") or not hasattr(collection, "count"):
        raise InputError(
            f"collection is of type {type(collection).__name__}: a collection of Chroma is needed, such as "
            'chromadb.PersistentClient("folder").get_collection("items")'
        )
    what = f"the collection {collection.name!r}"
    return collect(_pages(collection, label, page_size(page), what), what, collection.count())


def _pages(collection: Any, label: str | None, page: int, what: str) -> Iterator[Page]:
    start = 0
    include = ["embeddings"] if label is None else ["embeddings", "metadatas"]
    while True:
        found = collection.get(limit=page, offset=start, include=include)
        ids = found["ids"]
        if not ids:
            return
        labels = None if label is None else required_labels(found["metadatas"], ids, label, what)
        yield Page(as_matrix([list(row) for row in found["embeddings"]], what, start), labels, ids)
        start += len(ids)
