"""Embeddings in a table of LanceDB."""

from __future__ import annotations

from typing import Any

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import Rows, arrow_pages, check_columns, collect, page_size


def read_lancedb(table: Any, label: str | None, vector: str, identifier: str | None, page: int) -> Rows:
    """Read a table page by page, in its order, without a limit."""
    if not hasattr(table, "search") or not hasattr(table, "count_rows"):
        raise InputError(
            f"table is of type {type(table).__name__}: a table of LanceDB is needed, such as "
            'lancedb.connect("folder").open_table("items")'
        )
    what = f"the table {table.name!r}"
    check_columns(what, table.schema.names, vector, label, identifier)
    columns = [name for name in (vector, label, identifier) if name is not None]
    expected = table.count_rows()
    batches = table.search().select(columns).limit(max(expected, 1)).to_batches(batch_size=page_size(page))
    return collect(arrow_pages(batches, what, vector, label, identifier), what, expected)
