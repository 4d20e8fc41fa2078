"""Open an address: connect, read, and close. Failures become one sentence without credentials."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isomargin.core.errors import InputError
from isomargin.core.extras import missing_package
from isomargin.core.text import printable
from isomargin.io.stores.address import HIDDEN, StoreAddress
from isomargin.io.stores.pages import Rows

SECRETS = ("QDRANT_API_KEY", "CHROMA_TOKEN", "PGPASSWORD")
"""Environment variables with credentials."""

_HERE = ("localhost", "127.0.0.1", "::1")


def read_address(address: StoreAddress, embeddings_key: str, labels_key: str | None) -> Rows:
    """Read what an address names. Its own options come before the keys; without a key of labels, none are read."""
    address.check()
    vector = address.options.get("vector")
    if vector is None:
        vector = address.kind.vector if embeddings_key == "embeddings" else embeddings_key
    label = None
    if labels_key is not None:
        label = address.options.get("label") or ("label" if labels_key == "labels" else labels_key)
    with explained(address):
        return _READERS[address.scheme](address, label, vector)


@contextmanager
def explained(address: StoreAddress) -> Iterator[None]:
    """Turn any error in the block into a sentence without credentials, and without the error that caused it."""
    problem: Exception
    try:
        yield
        return
    except InputError as error:
        problem = type(error)(without_secrets(f"{address}: {error}"))
    except ModuleNotFoundError as error:
        problem = missing_package(error) or error
    except Exception as error:
        words = " ".join(without_secrets(str(error)).split())  # first, so that no part of a secret is left
        reason = printable(f"{type(error).__name__}: {words[:200]}" if words else type(error).__name__)
        what = "the address and its query" if "query" in address.options else "the address"
        problem = InputError(without_secrets(f"{address} could not be read ({reason}): check {what}"))
    raise problem from None  # its cause may have credentials in its text


def without_secrets(text: str) -> str:
    """Hide the values of the environment's credentials in a text, also as Python, JSON and addresses write them."""
    for name in SECRETS:
        value = secret_of(name)
        if value:
            for written in (value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe="")):
                text = text.replace(written, HIDDEN)
    return text


def secret_of(name: str) -> str | None:
    """Return a credential from the environment without the white space around it, such as the end of a file's line."""
    return os.environ.get(name, "").strip() or None


def _file_of(address: StoreAddress) -> Path:
    """Return the file or folder of an address without a host: after the third slash, or from a fourth one on."""
    host, _, _, path = address.place
    if host:
        raise InputError(
            f"{address.scheme} takes a file, not the host {host!r}: write {address.scheme}:/// and the file, or four "
            "slashes for an absolute path"
        )
    return Path(path.removeprefix("/"))


def _existing(path: Path, address: StoreAddress) -> Path:
    if not path.exists():
        slashes = "four slashes" if address.kind.has_host else "three slashes"
        hint = "" if path.is_absolute() else f"; an absolute path has {slashes} after {address.scheme}:"
        raise InputError(f"{path} does not exist: check the path{hint}")
    return path


def _collection_in(address: StoreAddress) -> tuple[Path, str]:
    """Return the folder and the collection of an address without a host."""
    file = _file_of(address)
    return _existing(file.parent, address), file.name


def _tls(address: StoreAddress, host: str, secret: str | None) -> bool:
    """Return whether to encrypt: by the option tls, or if a secret goes to another machine."""
    given = address.options.get("tls")
    if given is not None and given not in ("yes", "no"):
        raise InputError(f"tls is {given!r}: yes or no is needed")
    return host not in _HERE and secret is not None if given is None else given == "yes"


def _read_qdrant(address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    from qdrant_client import QdrantClient

    from isomargin.io.stores.qdrant import read_qdrant

    host, port, _, path = address.place
    if host:
        secret = secret_of("QDRANT_API_KEY")
        scheme = "https" if _tls(address, host, secret) else "http"
        shown = f"[{host}]" if ":" in host else host
        url = f"{scheme}://{shown}:{port or 6333}"
        name = path.strip("/")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an unencrypted connection is to this machine, or asked for
            client = QdrantClient(url=url, api_key=secret, timeout=60, check_compatibility=False)
    else:
        folder, name = _collection_in(address)
        _existing(folder / "meta.json", address)  # else qdrant would make a new store there
        client = QdrantClient(path=str(folder))
    try:
        return read_qdrant(client, name, label, vector, address.page)
    finally:
        client.close()


def _read_chroma(address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    import chromadb

    from isomargin.io.stores.chroma import read_chroma

    host, port, _, path = address.place
    settings = chromadb.Settings(anonymized_telemetry=False)
    client: Any
    if host:
        secret = secret_of("CHROMA_TOKEN")
        headers = None if secret is None else {"Authorization": f"Bearer {secret}", "X-Chroma-Token": secret}
        ssl = _tls(address, host, secret)
        client = chromadb.HttpClient(host=host, port=port or 8000, ssl=ssl, headers=headers, settings=settings)
        name = path.strip("/")
    else:
        folder, name = _collection_in(address)
        _existing(folder / "chroma.sqlite3", address)  # else Chroma would make a new store there
        client = chromadb.PersistentClient(path=str(folder), settings=settings)
    return read_chroma(client.get_collection(name), label, address.page)


def _read_lancedb(address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    import lancedb

    from isomargin.io.stores.lancedb import read_lancedb

    folder = _existing(Path(address.place[3]).parent, address)
    table = lancedb.connect(str(folder)).open_table(address.name)
    return read_lancedb(table, label, str(vector), address.options.get("id"), address.page)


def _read_query(connection: Any, address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    from isomargin.io.stores.sql import read_sql

    options = address.options
    try:
        return read_sql(connection, options["query"], label, str(vector), options.get("id"), address.page)
    finally:
        connection.close()


def _read_duckdb(address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    import duckdb

    connection = duckdb.connect(str(_existing(_file_of(address), address)), read_only=True)
    return _read_query(connection, address, label, vector)


def _read_sqlite(address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    import sqlite3

    file = _existing(_file_of(address), address)
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    return _read_query(connection, address, label, vector)


def _read_postgresql(address: StoreAddress, label: str | None, vector: str | None) -> Rows:
    import psycopg

    host, port, user, path = address.place
    given: dict[str, Any] = {"host": host, "port": port, "user": user, "dbname": path.strip("/") or None}
    # What is not given, and the password, come from the environment: PGHOST, PGUSER, PGPASSWORD, PGPASSFILE.
    connection = psycopg.connect(**{name: value for name, value in given.items() if value is not None})
    connection.read_only = True
    return _read_query(connection, address, label, vector)


_READERS = {
    "qdrant": _read_qdrant,
    "chroma": _read_chroma,
    "lancedb": _read_lancedb,
    "duckdb": _read_duckdb,
    "sqlite": _read_sqlite,
    "postgresql": _read_postgresql,
}
