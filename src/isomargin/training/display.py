"""What a run prints to standard error: one line per evaluation, and on a terminal a live line with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from isomargin.measure.scores.registry import find_score

_REFRESH = 0.5  # seconds between reads of the loss, which wait for the GPU


class Display:
    """The display of one run.

    Parameters
    ----------
    title: of the run.
    steps, first: the number of steps, and how many of them are done.
    batches_an_epoch: batches per epoch.
    """

    def __init__(self, title: str, steps: int, first: int, batches_an_epoch: int) -> None:
        self.title, self.steps, self.first, self.batches = title, steps, first, batches_an_epoch
        self.begin = self.looked = time.monotonic()
        self.bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(bar_width=20), TaskProgressColumn(), TextColumn("{task.fields[now]}"))
            self.bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            self.task = self.bar.add_task("", total=steps, completed=first, now=title)
            self.bar.start()

    def step(self, done: int, loss: Any) -> None:
        """Show the progress, at most twice per second; `loss` is a tensor or a number."""
        now = time.monotonic()
        if self.bar is None or now - self.looked < _REFRESH:
            return
        self.looked = now
        epochs = f"epoch {done / self.batches:.1f} of {self.steps / self.batches:.4g}"
        # A narrow terminal cuts off the end.
        line = f"{self._left(done)}  {epochs}  loss {float(loss):.4g}  {self.title}"
        self.bar.update(self.task, completed=done, now=line)

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Print a line with the loss and, where the model was evaluated, its scores."""
        done = int(row["step"])
        scores = [find_score(name) for name in ("recall@1", "opis", "epsilon_opis") if name in row]
        parts = [f"epoch {row['epoch']:6.2f}", f"loss {row['loss']:8.4f}"]
        parts += [f"{score.title} {score.text(row[score.name]):>9}" for score in scores]
        if done < self.steps:
            parts.append(self._left(done))
        self.say(f"{self.title}: " + "  ".join(parts))

    def say(self, line: str) -> None:
        """Print a line above the live one."""
        if self.bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self.bar.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the live line."""
        if self.bar is not None:
            self.bar.stop()

    def _left(self, done: int) -> str:
        since = done - self.first
        if since <= 0:
            return ""
        seconds = (time.monotonic() - self.begin) / since * (self.steps - done)
        return f"{in_words(seconds)} left"


class NoDisplay(Display):
    """Shows nothing: for all processes except the first, and for callers that want no output."""

    def __init__(self) -> None:
        self.bar = None

    def step(self, done: int, loss: Any) -> None:
        """Do nothing."""

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Do nothing."""

    def say(self, line: str) -> None:
        """Do nothing."""


def in_words(seconds: float) -> str:
    """Return a duration in words.

    >>> in_words(42), in_words(150), in_words(9000)
    ('42 s', '2 min 30 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
