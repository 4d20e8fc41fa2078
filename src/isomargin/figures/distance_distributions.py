"""Distances of positive and negative pairs, one row per evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isomargin.figures import style
from isomargin.figures._evaluations import (
    BINS,
    check_evaluations,
    density,
    distance_title,
    draw_densities,
    shown_distances,
)
from isomargin.measure.scores.registry import find_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.measure.evaluation import Evaluation


@style.styled
def distance_distributions(evaluations: Mapping[str, Evaluation]) -> Figure:
    """Draw the densities of the distances of positive and negative pairs, one row per evaluation, on the same axes.

    The title of each row gives the equal error rate, which measures the overlap of the two densities.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> distance_distributions({"mine": evaluation}).axes[0].get_title(loc="left")
    'mine: equal error rate 17.78%'
    """
    check_evaluations(evaluations)
    edges = np.linspace(*shown_distances(evaluations), BINS + 1)
    figure, axes = style.panels(len(evaluations), width=5.4, height=1.5 if len(evaluations) > 1 else 2.4)
    highest, equal_error = 0.0, find_score("eer")
    named = zip(style.labels(list(evaluations)), evaluations.values(), strict=True)
    for axis, (name, evaluation) in zip(axes, named, strict=True):
        counts = evaluation.counts
        heights = density(counts.positives, edges), density(counts.negatives, edges)
        draw_densities(axis, *heights, edges)
        highest = max(highest, *(float(side.max()) for side in heights))
        axis.set_title(f"{name}: {equal_error.title} {equal_error.text(evaluation.eer)}")
    axes[0].set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * highest))
    axes[-1].set_xlabel(distance_title(evaluations))
    figure.supylabel("density", fontsize=9)
    style.legend_below(figure, axes[0].get_legend_handles_labels()[0])
    return figure
