"""What a search for margins found, and its table; the command draws the heat maps (`figures/margins_grid.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isomargin.measure.scores.registry import find_score
from isomargin.training.recipe import Recipe

_ROUNDING = 1e-12  # a recall that is lower by the tolerance exactly is still within it


@dataclass(frozen=True)
class TunedRun:
    """A run of the search, with its scores on the held-out classes."""

    name: str
    """Of its folder."""
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
    """What a search has found."""

    rows: tuple[TunedRun, ...]
    """The baseline first, then the grid in its order."""
    recipe: Recipe
    """The one that was searched for, with the picked margins and weight and its own evaluation."""
    notes: tuple[str, ...] = ()
    """Sentences for who reads the results."""

    @property
    def picked(self) -> TunedRun:
        """The run that was picked."""
        return next(row for row in self.rows if row.picked)


def recall_floor(rows: Sequence[TunedRun], tolerance: float) -> float:
    """Give the recall@1 that a run needs to be picked."""
    best = max((row.recall_at_1 for row in rows if has_scores(row)), default=math.nan)
    return best - tolerance - _ROUNDING


def has_scores(row: TunedRun) -> bool:
    """Tell whether a run of the grid came to an end with scores."""
    return not row.is_baseline and math.isfinite(row.recall_at_1) and math.isfinite(row.opis)


def tune_table(tuned: Tuned) -> RenderableType:
    """Give the runs with their scores, the picked one marked, and the notes."""
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    shown = [find_score(name) for name in ("recall@1", "map_at_r", "opis", "epsilon_opis")]
    for header in ("m⁺", "m⁻", "weight", *(score.title for score in shown)):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("")
    for row in tuned.rows:
        settings = (row.positive_margin, row.negative_margin, row.weight)
        cells = ["" if each is None else f"{each:g}" for each in settings]
        values = (row.recall_at_1, row.map_at_r, row.opis, row.epsilon_opis)
        cells += [score.text(value) for score, value in zip(shown, values, strict=True)]
        style = "bold" if row.picked else "dim" if row.is_baseline else ""
        table.add_row(row.name, *cells, "← picked" if row.picked else "", style=style)
    title = Text("scores on the held-out classes", style="bold")
    return Group(title, table, *(Text(f"note: {note}") for note in tuned.notes))
