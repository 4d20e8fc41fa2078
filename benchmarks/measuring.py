"""Shared by the benchmarks: timing, peak memory, and running work in a separate process."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1e6
GIGABYTE = 1e9


def seconds(work: Callable[[], object]) -> float:
    """Return how long the work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def memory_in_use(which: str) -> float:
    """Return the bytes that this process uses now (VmRSS) or has used at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


def memory_available() -> float:
    """Return the bytes of memory that are available on this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def cpu_seconds() -> float:
    """Return the CPU time that this process and all that descend from it have used, those that have ended included."""
    used: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            values = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        used[int(path.parent.name)] = int(values[1]), sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {number for number, (parent, _) in used.items() if parent in family} - family:
        family |= more
    return sum(used[number][1] for number in family)


def forget_peak() -> None:
    """Reset VmHWM to the memory in use now."""
    Path("/proc/self/clear_refs").write_text("5")


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run the work in a new process and return its result; None if the process died."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = None
    process.join()
    return result


def _send_result(sender: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(work(*arguments))


def verdict(holds: bool) -> str:
    """Return whether a limit is met, as text."""
    return "yes" if holds else "NO"
