"""Integers as text that the HTML report can hold and a few lines of JavaScript can read: LEB128 bytes in base64."""

import base64

import numpy as np
from numpy.typing import NDArray

MOST_BYTES = 10  # of a 64-bit integer, in groups of seven bits


def pack_increments(counts: NDArray[np.int64]) -> str:
    """Pack counts (rows, columns) that never decrease along a row, as the first count of each row and its increments.

    Most increments fit into one byte, and the page reads back the exact counts.

    >>> pack_increments(np.array([[1, 1, 130], [0, 300, 300]]))
    'AQCBAQCsAgA='
    """
    increments = np.diff(counts, axis=1, prepend=0).ravel().astype(np.uint64)
    groups = np.empty((len(increments), MOST_BYTES), np.uint8)
    rest = increments.copy()
    for place in range(MOST_BYTES):
        groups[:, place] = (rest & np.uint64(127)).astype(np.uint8)
        rest >>= np.uint64(7)
    places = np.arange(MOST_BYTES)
    lengths = 1 + (increments[:, None] >> (7 * places[1:]).astype(np.uint64) > 0).sum(axis=1)
    groups[places[None, :] < lengths[:, None] - 1] |= 128
    return base64.b64encode(groups[places[None, :] < lengths[:, None]].tobytes()).decode("ascii")
