"""Find out whether the hub of models can be reached: without network its client would try again for minutes."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

SECONDS = 5.0


@contextmanager
def cache_if_unreachable() -> Iterator[bool]:
    """In the block the hub's client has only its cache if the hub cannot be reached; yields whether it is asked."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    asked = not before and can_connect(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = not asked
    try:
        yield asked
    finally:
        constants.HF_HUB_OFFLINE = before


def can_connect(url: str) -> bool:
    """Return whether a server accepts a connection; with a proxy, which alone may know the server, it is assumed.

    >>> can_connect("http://127.0.0.1:1")
    False
    """
    if urllib.request.getproxies():
        return True
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname, parts.port or 443), timeout=SECONDS):
            return True
    except OSError:
        return False
