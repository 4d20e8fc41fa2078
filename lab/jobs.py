"""Do tasks one after another in this process, or several at a time, each in its own process.

Nothing heavy is imported here: new processes import this module first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Generic, TypeVar

from isomargin.core.errors import InputError

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Report = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Busy:
    """In place of a result: another process is doing this task."""


@dataclass(frozen=True)
class Task(Generic[Result]):
    """Something to do, which may turn out to be done already."""

    name: str
    do: Callable[[bool], Result | Busy]
    """Its argument says whether to wait for another process that is doing the task. With several jobs it is pickled."""


def do_all(tasks: Sequence[Task[Result]], jobs: int, report: Report) -> list[Result]:
    """Do tasks, `jobs` at a time, and give their results in order; those that other processes are doing come last."""
    results: dict[int, Result] = {}
    left = list(range(len(tasks)))
    for wait in (False, True):
        busy = []
        for number, result in do_some(tasks, left, wait, jobs, report):
            if isinstance(result, Busy):
                busy.append(number)
            else:
                results[number] = result
        left = busy
    return [results[number] for number in range(len(tasks))]


def do_some(
    tasks: Sequence[Task[Result]], numbers: Sequence[int], wait: bool, jobs: int, report: Report
) -> Iterator[tuple[int, Result | Busy]]:
    """Do some of the tasks, in this process or in others; yield each number with its result once it is done."""

    def tell(number: int) -> None:
        report(f"run {number + 1} of {len(tasks)}: {tasks[number].name}")

    if jobs == 1 or len(numbers) < 2:
        for number in numbers:
            tell(number)
            yield number, tasks[number].do(wait)
        return
    try:
        with processes(min(jobs, len(numbers)), threads(jobs)) as pool:
            begun: dict[Future[Result | Busy], int] = {
                pool.submit(tasks[number].do, wait): number for number in sorted(numbers)
            }
            for future in as_completed(begun):
                tell(begun[future])
                yield begun[future], future.result()
    except BrokenProcessPool as error:
        raise InputError(
            "a training process was killed, perhaps for lack of memory: run the same command again to continue, with "
            "fewer --jobs to use less memory"
        ) from error


@contextmanager
def processes(number: int, threads_each: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of processes with this many threads each; after an error, tasks that have not begun are dropped."""
    # Libraries read these when they are imported, which in a new process happens before anything can be called there.
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads_each)))
    pool = ProcessPoolExecutor(number, mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def end_with_parent() -> None:
    """End this process when its parent is gone: a parent that is killed cannot say so, and training would continue."""
    parent = parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        Thread(target=wait, daemon=True).start()


def threads(jobs: int) -> int:
    """Give how many threads each of several processes gets: its share of the cores, at least one."""
    return max(1, (os.cpu_count() or 1) // jobs)


def workers(jobs: int) -> int | None:
    """Give how many processes decode images per run when there are several; None leaves a single run to `train`."""
    return None if jobs == 1 else threads(jobs)
