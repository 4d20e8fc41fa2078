"""Addresses of stores, such as qdrant://localhost/items?label=sku, wherever a path of embeddings is taken.

Credentials come from the environment only. An address that has some is refused, and they are dropped at once, so that
no message, card or saved evaluation can repeat them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.io.stores.pages import PAGE

HIDDEN = "***"
_COMMON = ("label", "vector", "page")


@dataclass(frozen=True)
class StoreKind:
    """What an address of a kind of store may have."""

    options: tuple[str, ...]
    """Names of the options after the question mark."""
    example: str
    """An address."""
    vector: str | None = None
    """Name of the column of vectors, where the address does not give it."""
    has_host: bool = True
    """Whether the first part of an address is a host, and not a folder."""
    secrets: str = ""
    """Where credentials come from."""


_QUERY = (*_COMMON, "id", "query")
STORES: Mapping[str, StoreKind] = MappingProxyType(
    {
        "qdrant": StoreKind(
            (*_COMMON, "tls"), "qdrant://localhost/items?label=sku", secrets="the environment variable QDRANT_API_KEY"
        ),
        "chroma": StoreKind(
            ("label", "page", "tls"),
            "chroma://localhost/items?label=sku",
            secrets="the environment variable CHROMA_TOKEN",
        ),
        "lancedb": StoreKind((*_COMMON, "id"), "lancedb://folder/items?label=sku", "vector", has_host=False),
        "duckdb": StoreKind(_QUERY, "duckdb:///file.db?query=SELECT label, embedding FROM items", "embedding"),
        "sqlite": StoreKind(_QUERY, "sqlite:///file.db?query=SELECT label, embedding FROM items", "embedding"),
        "postgresql": StoreKind(
            _QUERY,
            "postgresql://localhost/shop?query=SELECT label, embedding FROM items",
            "embedding",
            secrets="the environment variable PGPASSWORD, or from a password file",
        ),
    }
)
"""Kinds of stores by the scheme of their addresses."""

_UNKNOWN = StoreKind((), "qdrant://localhost/items?label=sku")
_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_address(text: str) -> bool:
    """Return whether a text is an address, of a store or of something else; that is never a file.

    >>> is_address("qdrant://localhost/items"), is_address("items.npz"), is_address("duckdb/items.npz")
    (True, False, False)
    """
    return _START.match(text) is not None


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a path, or the address of a store as a `StoreAddress`.

    >>> as_path("items.npz").suffix, as_path("lancedb://folder/items?label=sku").stem
    ('.npz', 'items')
    """
    if isinstance(path, StoreAddress):
        return path
    text = os.fspath(path)
    return StoreAddress(text) if is_address(text) else Path(text)


_PathOfSystem: Any = type(Path())


class StoreAddress(_PathOfSystem):  # type: ignore[misc]
    """The address of a store in place of a path, so that every command that takes a path takes it too.

    It is never a file: `io/formats.py` opens it. Its text never has credentials. Addresses of anything else, such as
    those of web pages, are of this type too, and `check` refuses them: as paths, messages would repeat them.

    >>> address = StoreAddress("postgresql://anna:secret@db/shop?query=SELECT 1")
    >>> str(address)
    'postgresql://anna:***@db/shop?query=SELECT 1'
    >>> address.check()
    Traceback (most recent call last):
    isomargin.InputError: postgresql://anna:***@db/shop?query=SELECT 1 has a password: ...
    """

    def __new__(cls, text: str) -> StoreAddress:
        """Read an address; what is wrong with it is told by `check`."""
        scheme, _, rest = text.partition("://")
        place, mark, tail = rest.partition("?")
        parts = _split(f"{scheme}://{place}")
        options = _options(tail)
        kind = STORES.get(scheme.lower(), _UNKNOWN)
        address: StoreAddress = super().__new__(cls, scheme)
        address.scheme = scheme.lower()
        address.kind = kind
        address.place = _location(parts, kind)
        address.problem = _problem(parts, options, kind)
        address.options = {name: value for name, value in options.items() if name in kind.options}
        shown = [f"{name}={address.options.get(name, HIDDEN)}" for name in options]
        address.shown = f"{address.scheme}://{_without_secrets(place, address.scheme)}{mark and '?'}{'&'.join(shown)}"
        if kind is _UNKNOWN:  # it may have credentials anywhere
            address.shown = f"{address.scheme}://{HIDDEN}"
            known = checks.nearest(address.scheme, list(STORES))
            address.problem = f"is not the address of a store that can be read: {known}; a file needs its path"
        return address

    def __init__(self, text: str) -> None:
        if sys.version_info >= (3, 12):  # earlier versions do everything in __new__
            super().__init__(text.partition("://")[0])

    scheme: str
    """The kind of store."""
    kind: StoreKind
    """What such an address may have."""
    place: tuple[str | None, int | None, str | None, str]
    """Host, port and user if given, and the path after them."""
    options: dict[str, str]
    """What follows the question mark."""
    problem: str | None
    """Why the address is refused, if it is."""
    shown: str
    """The address without credentials."""

    def check(self) -> None:
        """Raise `InputError` if the address cannot be used."""
        if self.problem is not None:
            raise InputError(f"{self.shown} {self.problem}")
        if not self.name and self.scheme != "postgresql":
            raise InputError(f"{self.shown} does not name what to read: an address such as {self.kind.example}")
        if "query" in self.kind.options and not self.options.get("query", "").strip():
            raise InputError(f"{self.shown} has no query: add one, as in {self.kind.example}")

    @property
    def page(self) -> int:
        """Rows to read at a time."""
        given = self.options.get("page", str(PAGE))
        return checks.whole(int(given) if given.isdecimal() else given, "page", most=1_000_000)

    def __str__(self) -> str:
        return self.shown

    def __fspath__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"StoreAddress({self.shown!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoreAddress) and self.shown == other.shown

    def __hash__(self) -> int:
        return hash(self.shown)

    @property
    def parts(self) -> tuple[str, ...]:
        """The kind of store, the host, the parts of the path, and the options: what tells two addresses apart."""
        host, _, _, path = self.place
        others = [f"{name}={value}" for name, value in self.options.items()]
        return tuple(part for part in (self.scheme, host, *path.split("/"), *others) if part)

    @property
    def name(self) -> str:
        """The last part of the path, such as the name of a collection."""
        return self.place[3].rstrip("/").rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The same as the name."""
        return self.name

    @property
    def suffix(self) -> str:
        """Empty: an address is not a file."""
        return ""

    def with_suffix(self, suffix: str) -> StoreAddress:
        """Return the address itself."""
        return self

    def resolve(self, strict: bool = False) -> StoreAddress:
        """Return the address itself."""
        return self

    def exists(self, **_: Any) -> bool:
        """Return False: there is no such file."""
        return False

    is_dir = is_file = exists


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return SplitResult("", "", "", "", "")  # refused by `_problem`, since it names nothing
    return parts


def _location(parts: SplitResult, kind: StoreKind) -> tuple[str | None, int | None, str | None, str]:
    if not kind.has_host:  # a folder, in which capital letters matter
        return None, None, None, unquote(parts.netloc + parts.path)
    user = None if parts.username is None else unquote(parts.username)
    return parts.hostname, parts.port, user or None, unquote(parts.path)


def _options(tail: str) -> dict[str, str]:
    """Read the options; `query` is the last one, and with spaces in it it is taken as it is."""
    before, found, query = tail.partition("query=") if re.search(r"(^|&)query=", tail) else (tail, "", "")
    pairs = [part.partition("=") for part in before.split("&") if part]
    options = {unquote(name): unquote(value) for name, _, value in pairs}
    if found:
        options["query"] = query if " " in query else unquote(query)
    return options


def _problem(parts: SplitResult, options: dict[str, str], kind: StoreKind) -> str | None:
    where = f"set {kind.secrets}" if kind.secrets else "leave it out"
    if not parts.scheme:
        return f"is not an address: it should look like {kind.example}"
    if parts.password:
        return f"has a password: credentials come from the environment alone, {where}"
    if parts.username and parts.scheme != "postgresql":
        return f"has a user name before @: credentials come from the environment alone, {where}"
    if unknown := [name for name in options if name not in kind.options]:
        return (
            f"has an option {unknown[0]!r}: known are {', '.join(kind.options)}; credentials come from the environment "
            f"alone, {where}"
        )
    return None


def _without_secrets(place: str, scheme: str) -> str:
    """Hide a password, and what may be a key in place of a user name."""
    login, at, rest = place.rpartition("@")
    if not at:
        return place
    user, colon, password = login.partition(":")
    if scheme != "postgresql":
        user, colon, password = HIDDEN, "", ""
    return f"{user}{colon}{HIDDEN if password else ''}@{rest}"
