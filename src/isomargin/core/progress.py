"""A progress bar that appears on a terminal after two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 2.0


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None] | None]:
    """Yield a function that takes the share that is done, or None if standard error is not a terminal.

    >>> with progress_bar("counting") as report:
    ...     report is None or callable(report)
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    task = bar.add_task(title, total=1.0)
    begin = time.monotonic()

    def report(share: float) -> None:
        if time.monotonic() - begin > DELAY:
            bar.start()  # has no effect if it has started
        bar.update(task, completed=share)

    try:
        yield report
    finally:
        if bar.live.is_started:  # stopping a bar that has not started would print an empty line
            bar.stop()
