"""Embeddings as the result of a query: PostgreSQL with pgvector, DuckDB, SQLite and other databases of the DB-API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import (
    Page,
    Rows,
    arrow_pages,
    as_matrix,
    check_columns,
    collect,
    page_size,
)

WHAT = "the result of the query"


def read_sql(connection: Any, query: str, label: str | None, vector: str, identifier: str | None, page: int) -> Rows:
    """Read the rows of a query page by page; its columns are found by their names."""
    if not hasattr(connection, "cursor"):
        raise InputError(f"connection is of type {type(connection).__name__}: a connection of the DB-API is needed")
    if not isinstance(query, str) or not query.strip():
        raise InputError(f"query is {query!r}: a query in SQL is needed, such as SELECT label, embedding FROM items")
    driver = type(connection).__module__.split(".")[0].lstrip("_")
    size = page_size(page)
    if driver == "duckdb":
        return collect(_duckdb_pages(connection, query, label, vector, identifier, size), WHAT)
    with _cursor(connection, driver) as cursor:
        cursor.execute(query)
        return collect(_cursor_pages(cursor, label, vector, identifier, size), WHAT)


def _duckdb_pages(
    connection: Any, query: str, label: str | None, vector: str, identifier: str | None, page: int
) -> Iterator[Page]:
    # A relation gives whole columns, which are faster than Python objects, as they are computed. The result of
    # `execute` would copy all rows first. Older versions call the reader otherwise.
    relation = connection.sql(query)
    if relation is None:
        raise InputError("the query returns no rows: a SELECT is needed")
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    batches = read(page)
    check_columns(WHAT, batches.schema.names, vector, label, identifier)
    yield from arrow_pages(batches, WHAT, vector, label, identifier)


@contextmanager
def _cursor(connection: Any, driver: str) -> Iterator[Any]:
    """Yield a cursor that does not fetch all rows at once: for PostgreSQL, one on the server."""
    if driver == "psycopg":
        from psycopg.rows import tuple_row

        with connection.transaction(), connection.cursor(name="isomargin", row_factory=tuple_row) as cursor:
            yield cursor
    elif driver == "psycopg2":
        with connection.cursor(name="isomargin") as cursor:
            yield cursor
    else:
        cursor = connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()


def _cursor_pages(cursor: Any, label: str | None, vector: str, identifier: str | None, page: int) -> Iterator[Page]:
    start = 0
    rows = cursor.fetchmany(page)  # psycopg2 knows the columns of a cursor on the server only after the first rows
    if cursor.description is None:
        raise InputError("the query returns no rows: a SELECT is needed")
    names = [column[0] for column in cursor.description]
    check_columns(WHAT, names, vector, label, identifier)
    places = {name: names.index(name) for name in (vector, label, identifier) if name is not None}
    while rows:
        yield Page(
            as_matrix([row[places[vector]] for row in rows], WHAT, start),
            None if label is None else [row[places[label]] for row in rows],
            None if identifier is None else [row[places[identifier]] for row in rows],
        )
        start += len(rows)
        rows = cursor.fetchmany(page)
