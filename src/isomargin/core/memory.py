"""Check the available memory before a compressed file is unpacked, read sizes such as 4GB, and map arrays on disk.

A few kilobytes can unpack to terabytes.
"""

import errno
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError

MEMORY = Path("/proc/meminfo")
LIMIT = Path("/sys/fs/cgroup/memory.max")  # set by containers


UNITS = {
    "": 1,
    "B": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
SIZE = re.compile(r"([0-9]*\.?[0-9]+)\s*(|B|([KMGT]I?)B?)")


def read_size(text: str | int, name: str = "memory") -> int:
    """Return a size of memory in bytes.

    >>> read_size("4GB"), read_size("1.5 GiB"), read_size(100)
    (4000000000, 1610612736, 100)
    >>> read_size("plenty")
    Traceback (most recent call last):
    isomargin.InputError: memory is 'plenty': a size such as 4GB or 500MB is needed
    """
    found = SIZE.fullmatch(str(text).strip().upper())
    if isinstance(text, bool) or found is None or float(found[1]) == 0:
        raise InputError(f"{name} is {text!r}: a size such as 4GB or 500MB is needed")
    return int(float(found[1]) * UNITS[found[3] or ""])


def available_memory() -> int | None:
    """Return the available memory in bytes, with free swap, or None if the system does not tell.

    >>> found = available_memory()
    >>> found is None or found > 0
    True
    """
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):  # not Linux
        return None
    try:
        return min(free, int(LIMIT.read_text()))
    except (OSError, ValueError):  # not a container, or one without a limit
        return free


def check_memory(size: int, what: str, remedy: str) -> None:
    """Raise `InputError` if `size` bytes are not available; `what` unpacks to them, `remedy` says what to do.

    >>> check_memory(10**18, "birds.npz", "save it as .npy, which is read in parts")
    Traceback (most recent call last):
    isomargin.InputError: birds.npz unpacks to 1,000,000,000.0 GB, and ... GB of memory is available: save it as ...
    """
    available = available_memory()
    if available is not None and size > available:
        raise InputError(
            f"{what} unpacks to {size / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB of memory is available: {remedy}"
        )


def map_new_array(path: str | os.PathLike[str], dtype: npt.DTypeLike, shape: tuple[int, ...]) -> "np.memmap[Any, Any]":
    """Create a `.npy` file and map it into memory; raise `OSError` if the disk has no room for all of it.

    Its blocks are allocated at once: a process that writes to a mapped page for which a full disk has no block would be
    killed (SIGBUS), without a word and without removing its files.
    """
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # others: it cannot be done here
                    raise
    return array


def forget_pages(array: Any) -> None:
    """Let go of the pages of an array that maps a file; they are read again when they are needed.

    Otherwise the memory in use would grow to the size of the file while it is read from beginning to end. Nothing
    happens to other arrays, to views of arrays, or where the system cannot do this.
    """
    mapped = getattr(array, "base", None)
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
