"""Heat maps of OPIS and recall@1 over the two margins of TCM: the results of `isomargin tune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.training.tuned import TunedRun


@dataclass(frozen=True)
class _Map:
    """A heat map: its score, colours and number format."""

    title: str
    colours: str
    score: str
    """Field of `TunedRun`."""
    factor: float
    """The displayed number is the score times this factor."""
    written: Callable[[float], str]

    def text(self, row: TunedRun) -> str:
        return self.written(self.value(row))

    def value(self, row: TunedRun) -> float:
        return float(self.factor * getattr(row, self.score))


@style.styled
def margins_grid(rows: Sequence[TunedRun], tolerance: float = 0.01) -> Figure:
    """Draw OPIS and recall@1 over the margins side by side, one pair of maps per weight; the picked cell is framed.

    Parameters
    ----------
    rows: the runs of a search, including the baseline if there is one.
    tolerance: the loss of recall@1 that the search allowed; cells that lost more are in brackets.

    >>> from isomargin.training.tuned import TunedRun
    >>> row = TunedRun("0.9-0.5", 0.9, 0.5, 1.0, recall_at_1=0.8, opis=3e-3, epsilon_opis=0.1, map_at_r=0.4)
    >>> [axis.get_title(loc="left") for axis in margins_grid([row]).axes][1]
    'recall@1 in %'
    """
    from isomargin.training.tuned import recall_floor

    grid = [row for row in rows if not row.is_baseline]
    if not grid:
        raise InputError("the search has no runs with margins: there is nothing to draw")
    weights = list(dict.fromkeys(row.weight for row in grid))
    positives, negatives = ({row.positive_margin for row in grid}, {row.negative_margin for row in grid})
    exponent = _exponent([row.opis for row in rows])
    opis = _Map(f"OPIS in $10^{{{exponent}}}$", "Oranges", "opis", 10.0**-exponent, _three_digits)
    recall = _Map("recall@1 in %", "Blues", "recall_at_1", 100.0, "{:.2f}".format)
    width, height = max(3.4, 0.75 * len(negatives) + 1.4), max(1.9, 0.5 * len(positives) + 1.2)
    figure, axes = style.panels(len(weights), 2, width, height + 0.4 / len(weights), same_axes=False)
    floor = recall_floor(rows, tolerance)
    for column, shown in enumerate((opis, recall)):
        without = "".join(f" (without TCM {shown.text(row)})" for row in rows if row.is_baseline)
        for axis, weight in zip(axes[column::2], weights, strict=True):
            of_weight = f", weight {weight:g}" if len(weights) > 1 else ""
            axis.set_title(f"{shown.title}{of_weight}{without}")
            _draw_map(axis, shown, grid, weight, floor)
    sentence = "Scores on the held-out classes. Framed: picked."
    if any(row.recall_at_1 < floor for row in grid):
        sentence += f" In brackets: recall@1 below {100 * floor:.2f}%, too low to be picked."
    style.remark(figure, sentence)
    return figure


def _draw_map(axis: Any, shown: _Map, grid: Sequence[TunedRun], weight: float | None, floor: float) -> None:
    """Draw one map with the colour scale and the margins of the whole grid, so that maps can be compared."""
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
    values = [shown.value(row) for row in grid if math.isfinite(shown.value(row))] or [0.0]
    span = max(values) - min(values) or 1.0
    # The palest colours are left for empty cells; on the darkest the text could not be read.
    ends = {"vmin": min(values) - 0.2 * span, "vmax": max(values) + 0.8 * span}
    axis.imshow(cells, cmap=shown.colours, origin="lower", aspect="auto", **ends)
    axis.set_xticks(range(len(negatives)), [f"{margin:g}" for margin in negatives])
    axis.set_yticks(range(len(positives)), [f"{margin:g}" for margin in positives])
    axis.set(xlabel="negative margin", ylabel="positive margin")
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)


def _exponent(values: Sequence[float]) -> int:
    """Return the power of ten of the smallest positive value.

    >>> _exponent([0.012, 0.0034, math.nan, 0.0])
    -3
    """
    return min((math.floor(math.log10(value)) for value in values if math.isfinite(value) and value > 0), default=0)


def _three_digits(value: float) -> str:
    """Write a number with three digits, or with all digits before the point if there are more.

    >>> _three_digits(1.0), _three_digits(12.345), _three_digits(1234.5)
    ('1.00', '12.3', '1234')
    """
    return f"{value:.{max(0, 2 - _exponent([value]))}f}"
