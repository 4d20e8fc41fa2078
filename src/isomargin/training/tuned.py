"""The result of a search for margins, and its table; the command draws the heat maps (`figures/margins_grid.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isomargin.measure.scores.registry import find_score
from isomargin.training.recipe import Recipe

_ROUNDING = 1e-12  # a recall that is lower by exactly the tolerance is still within it


@dataclass(frozen=True)
class TunedRun:
    """A run of the search, with its scores on the held-out classes."""

    name: str
    """The name of its folder."""
    positive_margin: float | None
    """None for the baseline, like the next two."""
    negative_margin: float | None
    weight: float | None
    recall_at_1: float
    opis: float
    epsilon_opis: float
    map_at_r: float
    picked: bool = False

    @property
    def is_baseline(self) -> bool:
        """Whether it was trained without TCM."""
        return self.positive_margin is None


@dataclass(frozen=True)
class Tuned:
    """The result of a search."""

    rows: tuple[TunedRun, ...]
    """The baseline first, then the grid in order."""
    recipe: Recipe
    """The given recipe with the picked margins and weight, and its own evaluation settings."""
    notes: tuple[str, ...] = ()
    """Sentences to show with the results."""

    @property
    def picked(self) -> TunedRun:
        """The run that was picked."""
        return next(row for row in self.rows if row.picked)


def recall_floor(rows: Sequence[TunedRun], tolerance: float) -> float:
    """Return the recall@1 that a run needs to be picked."""
    best = max((row.recall_at_1 for row in rows if has_scores(row)), default=math.nan)
    return best - tolerance - _ROUNDING


def has_scores(row: TunedRun) -> bool:
    """Return whether this is a run of the grid that has scores."""
    return not row.is_baseline and math.isfinite(row.recall_at_1) and math.isfinite(row.opis)


def tune_table(tuned: Tuned) -> RenderableType:
    """Return a table of the runs with their scores, the picked one marked, and the notes."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    shown = [find_score(name) for name in ("recall@1", "map_at_r", "opis", "epsilon_opis")]
    for header in ("m⁺", "m⁻", "weight", *(score.title for score in shown)):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("")
    for row in tuned.rows:
        settings = (row.positive_margin, row.negative_margin, row.weight)
        cells = ["" if value is None else f"{value:g}" for value in settings]
        values = (row.recall_at_1, row.map_at_r, row.opis, row.epsilon_opis)
        cells += [score.text(value) for score, value in zip(shown, values, strict=True)]
        style = "bold" if row.picked else "dim" if row.is_baseline else ""
        table.add_row(row.name, *cells, "← picked" if row.picked else "", style=style)
    title = Text("scores on the held-out classes", style="bold")
    return Group(title, table, *(Text(f"note: {note}") for note in tuned.notes))
