"""How many threads work, how they share tasks, and that each computes its own matrix products."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock, Thread
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Task = TypeVar("Task")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_tasks(
    work: Callable[[Task], object],
    tasks: Sequence[Task],
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Apply ``work`` to all tasks, roughly in order, on that many threads (one per core unless given).

    The calling thread is one of them. Each thread takes the next task itself: with tasks of a millisecond, an executor
    spends a noticeable share of the time on handing them over. The calling thread reports ``progress``, the share of
    tasks that have been taken. After an error no task is begun; the first error is raised once all threads are done.

    >>> squares = [0] * 4
    >>> share_tasks(lambda i: squares.__setitem__(i, i * i), range(4))
    >>> squares
    [0, 1, 4, 9]
    """
    lock, taken, errors = Lock(), 0, list[BaseException]()

    def take_tasks(report: Callable[[float], None] | None) -> None:
        nonlocal taken
        try:
            while True:
                with lock:
                    if errors or taken == len(tasks):
                        return
                    number, taken = taken, taken + 1
                work(tasks[number])
                if report:
                    report((number + 1) / len(tasks))
        except BaseException as error:
            errors.append(error)

    count = min(threads or available_cores(), len(tasks))
    helpers = [Thread(target=take_tasks, args=(None,), daemon=True) for _ in range(count - 1)]
    for helper in helpers:
        helper.start()
    take_tasks(progress)
    for helper in helpers:
        helper.join()
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()  # an error that is kept here keeps everything alive that it has seen


def one_blas_thread() -> Any:
    """Limit matrix products to one thread each, as a context: workers that each compute one would compete otherwise.

    It is a setting of the whole process. The result has ``restore_original_limits`` as well.
    """
    return blas_libraries().limit(limits=1)


@cache
def blas_libraries() -> ThreadpoolController:
    """Return the libraries that numpy multiplies with. Finding them takes milliseconds, as long as a small set does."""
    import numpy  # noqa: F401  # loads them

    return ThreadpoolController()
