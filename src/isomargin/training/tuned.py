"""What a search for margins has found, and how it is shown: a table, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isomargin.files import atomic_write
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
    for header in ("m⁺", "m⁻", "weight", "recall@1", "MAP@R", "OPIS", "ε-OPIS"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("")
    for row in tuned.rows:
        settings = (row.positive_margin, row.negative_margin, row.weight)
        cells = ["" if each is None else f"{each:g}" for each in settings]
        cells += [f"{row.recall_at_1:.2%}", f"{row.map_at_r:.2%}", f"{row.opis:.3e}", f"{row.epsilon_opis:.3e}"]
        style = "bold" if row.picked else "dim" if row.is_baseline else ""
        table.add_row(row.name, *cells, "← picked" if row.picked else "", style=style)
    title = Text("scores on the held-out classes", style="bold")
    return Group(title, table, *(Text(f"note: {note}") for note in tuned.notes))


@dataclass(frozen=True)
class _Map:
    """What a map shows, and how."""

    title: str
    colours: str
    score: str
    """The field of `TunedRun`."""
    factor: float
    """From the score to what is written."""
    written: Callable[[float], str]

    def text(self, row: TunedRun) -> str:
        return self.written(self.value(row))

    def value(self, row: TunedRun) -> float:
        return float(self.factor * getattr(row, self.score))


def draw(rows: Sequence[TunedRun], path: Path, tolerance: float) -> None:
    """Draw OPIS and recall@1 over the margins side by side, a pair of maps for each weight, the picked cell framed."""
    from matplotlib.figure import Figure

    grid = [row for row in rows if not row.is_baseline]
    weights = list(dict.fromkeys(row.weight for row in grid))
    positives, negatives = ({row.positive_margin for row in grid}, {row.negative_margin for row in grid})
    exponent = _exponent([row.opis for row in rows])
    opis = _Map(f"OPIS in $10^{{{exponent}}}$", "Oranges", "opis", 10.0**-exponent, _three_digits)
    recall = _Map("recall@1 in %", "Blues", "recall_at_1", 100.0, "{:.2f}".format)
    width, height = 2 * max(3.4, 0.75 * len(negatives) + 1.4), max(1.9, 0.5 * len(positives) + 1.2)
    figure = Figure(figsize=(width, height * len(weights) + 0.4), layout="constrained")
    axes = figure.subplots(len(weights), 2, squeeze=False)
    floor = recall_floor(rows, tolerance)
    for column, shown in enumerate((opis, recall)):
        without = "".join(f" (without TCM {shown.text(row)})" for row in rows if row.is_baseline)
        for axis, weight in zip(axes[:, column], weights, strict=True):
            of_weight = f", weight {weight:g}" if len(weights) > 1 else ""
            axis.set_title(f"{shown.title}{of_weight}{without}", loc="left", fontsize=10)
            _draw_map(axis, shown, grid, weight, floor)
    legend = "Scores on the held-out classes. Framed: picked."
    if any(row.recall_at_1 < floor for row in grid):
        legend += f" In brackets: recall@1 below {100 * floor:.2f}%, too low to be picked."
    figure.supxlabel(legend, x=0.01, ha="left", fontsize=8, color="#4b5563")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _draw_map(axis: Any, shown: _Map, grid: Sequence[TunedRun], weight: float | None, floor: float) -> None:
    """Draw one map, with the colours and margins of the whole grid, so that maps can be compared."""
    from matplotlib.patches import Rectangle

    positives: list[Any] = np.unique(np.array([row.positive_margin for row in grid])).tolist()
    negatives: list[Any] = np.unique(np.array([row.negative_margin for row in grid])).tolist()
    cells = np.full((len(positives), len(negatives)), np.nan)  # (m⁺, m⁻)
    for row in grid:
        if row.weight != weight:
            continue
        up, right = positives.index(row.positive_margin), negatives.index(row.negative_margin)
        cells[up, right] = shown.value(row)
        text = f"({shown.text(row)})" if row.recall_at_1 < floor else shown.text(row)
        font = {"fontsize": 9, "fontweight": "bold" if row.picked else "normal"}
        axis.text(right, up, text, ha="center", va="center", **font)
        if row.picked:
            axis.add_patch(Rectangle((right - 0.5, up - 0.5), 1, 1, fill=False, lw=2.5, clip_on=False, zorder=3))
    values = [shown.value(row) for row in grid if math.isfinite(shown.value(row))]
    span = max(values) - min(values) or 1.0
    # The palest colours are kept for cells that are left out, the darkest would swallow the text.
    ends = {"vmin": min(values) - 0.2 * span, "vmax": max(values) + 0.8 * span}
    axis.imshow(cells, cmap=shown.colours, origin="lower", aspect="auto", **ends)
    axis.set_xticks(range(len(negatives)), [f"{each:g}" for each in negatives])
    axis.set_yticks(range(len(positives)), [f"{each:g}" for each in positives])
    axis.set(xlabel="negative margin", ylabel="positive margin")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _exponent(values: Sequence[float]) -> int:
    """Give the power of ten that the smallest of the values is written with.

    >>> _exponent([0.012, 0.0034, math.nan, 0.0])
    -3
    """
    return min((math.floor(math.log10(each)) for each in values if math.isfinite(each) and each > 0), default=0)


def _three_digits(value: float) -> str:
    """Write three digits, or those before the point if they are more.

    >>> _three_digits(1.0), _three_digits(12.345), _three_digits(1234.5)
    ('1.00', '12.3', '1234')
    """
    return f"{value:.{max(0, 2 - _exponent([value]))}f}"
