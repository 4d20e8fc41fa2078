"""A progress bar that appears on a terminal after two seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DELAY = 2.0


@contextmanager
def progress_bar(title: str, details: bool = False) -> Iterator[Callable[..., None] | None]:
    """Yield a function that takes the share that is done, or None if standard error is not a terminal.

    With ``details`` it takes a text as well, which replaces the bar's own estimate of the time left.

    >>> with progress_bar("counting") as report:
    ...     report is None or callable(report)
    True
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    last = TextColumn("{task.fields[detail]}") if details else TimeRemainingColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), last)
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    task = bar.add_task(title, total=1.0, detail="")
    begin = time.monotonic()

    def report(share: float, detail: str = "") -> None:
        if time.monotonic() - begin > DELAY:
            bar.start()  # has no effect if it has started
        bar.update(task, completed=share, detail=detail)

    try:
        yield report
    finally:
        if bar.live.is_started:  # stopping a bar that has not started would print an empty line
            bar.stop()
