"""How much memory there is, asked before a compressed file is unpacked: a few kilobytes can unpack to terabytes."""

from pathlib import Path

from isomargin.core.errors import InputError

MEMORY = Path("/proc/meminfo")
LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container


def available_memory() -> int | None:
    """Give the bytes that can still be taken without ending another process, or None where the system does not say.

    >>> found = available_memory()
    >>> found is None or found > 0
    True
    """
    try:
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        free = sum(1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):  # no Linux
        return None
    try:
        return min(free, int(LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free


def check_memory(size: int, what: str, remedy: str) -> None:
    """Raise `InputError` where `what` takes more bytes than there are.

    >>> check_memory(10**18, "birds.npz", "save it as .npy, which is read in parts")
    Traceback (most recent call last):
    isomargin.InputError: birds.npz unpacks to 1,000,000,000.0 GB, and ... GB of memory are available: save it as ...
    """
    available = available_memory()
    if available is not None and size > available:
        raise InputError(
            f"{what} unpacks to {size / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB of memory are available: {remedy}"
        )
