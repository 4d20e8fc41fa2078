"""Utility against the threshold, one thin line per class. OPIS measures how far apart the lines are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.figures import style
from isomargin.figures._evaluations import check_alike, check_evaluations, shown_distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.measure.evaluation import Evaluation

GRID = 201  # number of distances at which curves are drawn
MANY = 300  # with more classes, their lines are rasterized in vector formats


@style.styled
def utility_curves(evaluations: Mapping[str, Evaluation], distances: tuple[float, float] | None = None) -> Figure:
    """Draw the utility of each class against the threshold, one panel per evaluation, on the same axes.

    The calibration range is shaded. The title gives OPIS, the variance of the curves within this range.

    Parameters
    ----------
    evaluations: evaluations by the names to show.
    distances: the ends of the axis. By default about the nearest and the farthest pairs.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> figure = utility_curves({"mine": evaluation})
    >>> figure.axes[0].get_ylabel(), len(figure.axes[0].collections[0].get_segments())
    ('utility', 6)
    """
    check_evaluations(evaluations)
    check_alike(evaluations)
    ends = shown_distances(evaluations) if distances is None else distances
    columns = min(3, len(evaluations))
    rows = -(-len(evaluations) // columns)
    figure, axes = style.panels(rows, columns, width=3.6 if columns > 1 else 4.8, height=2.9)
    named = zip(style.labels(list(evaluations)), evaluations.values(), strict=True)
    for axis, (name, evaluation) in zip(axes, named, strict=False):
        _draw_panel(axis, evaluation, ends)
        axis.set_title(f"{name}\nOPIS {style.scientific(evaluation.opis)}")
        axis.set(xlim=ends, ylim=(0, 1.02), xlabel="threshold (distance)")
    for axis in axes[len(evaluations) :]:
        axis.remove()
    for axis in axes[: len(evaluations) : columns]:
        axis.set_ylabel("utility")
    style.legend_below(figure, _legend(next(iter(evaluations.values()))))
    return figure


def _legend(evaluation: Evaluation) -> list[Any]:
    """Return the entries of the legend; the line of a class has full opacity there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    mean = "mean over classes" if evaluation.settings.mean_curve == "classes" else "all pairs pooled"
    return [
        Line2D([], [], color=style.BLUE, lw=0.8, label="one class"),
        Line2D([], [], color=style.BLACK, lw=1.8, label=mean),
        Patch(color=style.RANGE, alpha=0.35, lw=0, label="calibration range"),
    ]


def _draw_panel(axis: Any, evaluation: Evaluation, ends: tuple[float, float]) -> None:
    """Draw the curves of one evaluation, their mean and the calibration range."""
    from matplotlib.collections import LineCollection

    curves = evaluation.with_settings(distances=ends, grid=GRID).curves
    low, high = evaluation.calibration_range
    axis.axvspan(low, high, color=style.RANGE, alpha=0.35, lw=0, zorder=0)
    for end in (low, high):
        axis.axvline(end, color=style.GREY, lw=0.8, ls=style.DASHES[1], zorder=1)
    number = len(curves.classes)
    segments = np.stack([np.broadcast_to(curves.distances, curves.utility.shape), curves.utility], axis=2)
    thin: dict[str, Any] = {"colors": style.BLUE, "linewidths": 0.6, "alpha": float(np.clip(40 / number, 0.04, 0.6))}
    lines = LineCollection(list(segments), **thin, rasterized=number > MANY)
    axis.add_collection(lines)
    axis.plot(curves.distances, curves.mean_utility, color=style.BLACK, lw=1.8)
