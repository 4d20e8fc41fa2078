"""What the benchmarks share: seconds, peak memory, and work done in a process of its own."""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1e6
GIGABYTE = 1e9


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def memory_in_use(which: str) -> float:
    """Bytes that this process holds (VmRSS) or has held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


def memory_available() -> float:
    """Bytes that the machine could still give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def forget_peak() -> None:
    """Let VmHWM begin anew from what is in use now."""
    Path("/proc/self/clear_refs").write_text("5")


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do the work in a fresh process and return its result; None if that process died."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = None
    process.join()
    return result


def _answer(sender: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sender.send(work(*arguments))


def verdict(holds: bool) -> str:
    return "yes" if holds else "NO"
