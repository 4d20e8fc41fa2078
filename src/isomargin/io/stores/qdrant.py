"""Embeddings in a collection of qdrant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import Page, Rows, as_matrix, collect, page_size, required_labels


def read_qdrant(client: Any, collection: str, label: str | None, vector: str | None, page: int) -> Rows:
    """Scroll through a collection in the order of its ids; `vector` is the name of a named vector."""
    if not hasattr(client, "scroll"):
        raise InputError(f"client is of type {type(client).__name__}: a QdrantClient is needed")
    what = f"the collection {collection!r}"
    if not client.collection_exists(collection):
        there = sorted(each.name for each in client.get_collections().collections)
        raise InputError(f"qdrant has no collection {collection!r}: it has {', '.join(map(repr, there)) or 'none'}")
    expected = client.count(collection, exact=True).count
    rows = collect(_pages(client, collection, label, vector, page_size(page), what), what, expected)
    if rows.ids is not None and len({type(name) for name in rows.ids}) > 1:  # numbers and UUIDs
        return replace(rows, ids=np.array([str(name) for name in rows.ids]))
    return rows


def _pages(client: Any, collection: str, label: str | None, vector: str | None, page: int, what: str) -> Iterator[Page]:
    def whole(name: Any) -> Any:
        return next(iter(client.retrieve(collection, [name], with_payload=True))).payload

    position, start = None, 0
    while True:
        points, position = client.scroll(
            collection,
            limit=page,
            offset=position,
            with_payload=False if label is None else [label],
            with_vectors=True if vector is None else [vector],
        )
        ids = [point.id for point in points]
        payloads = [point.payload for point in points]
        labels = None if label is None else required_labels(payloads, ids, label, what, whole)
        vectors = [_vector(point.vector, vector, what) for point in points]
        yield Page(as_matrix(vectors, what, start), labels, ids)
        start += len(points)
        if position is None:
            return


def _vector(found: Any, name: str | None, what: str) -> Any:
    """Return the vector of a point, which is in a dictionary if it has a name."""
    if not isinstance(found, dict):
        return found
    names = ", ".join(map(repr, sorted(found)))
    if name is None:
        raise InputError(f"{what} has named vectors, {names}: name one with vector=")
    if name not in found:
        raise InputError(f"{what} has an item without a vector {name!r}: it has {names or 'none'}")
    return found[name]
