"""Check the available memory before a compressed file is unpacked: a few kilobytes can unpack to terabytes."""

from pathlib import Path

from isomargin.core.errors import InputError

MEMORY = Path("/proc/meminfo")
LIMIT = Path("/sys/fs/cgroup/memory.max")  # set by containers


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
