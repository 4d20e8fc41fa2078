"""Float32 arrays in a .safetensors file, a few megabytes at a time, so that they may be larger than memory.

The package `safetensors` reads what is written here; it holds all arrays in memory while it writes.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isomargin.core.memory import forget_pages

Arrays = dict[str, NDArray[np.float32]]

ALIGNMENT = 8  # of the first array in the file
WRITTEN = 1 << 24  # bytes that are written at a time


def write(path: Path, arrays: Arrays) -> None:
    """Write arrays by their names."""
    header, begin = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, begin + array.nbytes]}
        begin += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            step = max(1, WRITTEN // max(1, array.nbytes // max(1, len(array))))
            for first in range(0, len(array), step):
                file.write(np.ascontiguousarray(array[first : first + step], "<f4").data)
                forget_pages(array)


def mapped(path: Path) -> Arrays:
    """Map the arrays of a file into memory."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {
        name: np.memmap(path, "<f4", "r", 8 + size + found["data_offsets"][0], tuple(found["shape"]))
        for name, found in header.items()
        if name != "__metadata__"
    }
