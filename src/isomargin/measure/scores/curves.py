"""The curves of each class: its rates and its utility as functions of the distance threshold.

This is plain arithmetic on counts of pairs; ``consistency.py`` measures how much the curves differ.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.summary import PairSummary
from isomargin.measure.scores.utility import utility
from isomargin.measure.settings import Settings, Utility


@dataclass(frozen=True)
class Curves:
    """Rates and utility of every class that has pairs of both kinds, on the grid of the calibration range."""

    classes: NDArray[np.int64]
    """(curves,) index of the class of each curve."""
    distances: Floats
    """(grid,) distances from d_min to d_max."""
    sensitivity: Floats
    """(curves, grid) share of the class's positive pairs at most this far apart: recall, 1 - FRR."""
    specificity: Floats
    """(curves, grid) share of the class's negative pairs farther apart: 1 - FAR."""
    precision: Floats
    """(curves, grid) share of positive pairs among the class's pairs at most this far apart; 0 if there are none."""
    utility: Floats
    """(curves, grid) utility of the two rates that the settings choose."""
    mean_utility: Floats
    """(grid,) the curve from which OPIS measures deviations: the mean of the classes' curves, or the pooled curve."""
    pooled_far: Floats
    """(grid,) false accept rate of all pairs."""
    pooled_frr: Floats
    """(grid,) false reject rate of all pairs."""

    def first_rate(self, settings: Settings) -> Floats:
        """(curves, grid) the rate that the utility combines with sensitivity."""
        return self.specificity if settings.utility == "specificity_sensitivity" else self.precision

    @cached_property
    def class_mean_utility(self) -> Floats:
        """(curves,) mean of each utility curve over the grid."""
        return np.asarray(self.utility.mean(axis=1))

    @cached_property
    def squared_deviations(self) -> Floats:
        """(curves,) squared deviation of each curve from the mean curve, averaged over the grid."""
        return np.asarray(np.square(self.utility - self.mean_utility).mean(axis=1))


def share(part: Any, total: Any) -> Floats:
    """Divide ``part`` by ``total``, elementwise; 0 where the total is 0."""
    part = np.asarray(part, np.float64)
    total = np.asarray(total, np.float64)
    shape = np.broadcast_shapes(part.shape, total.shape)
    return np.asarray(np.divide(part, total, out=np.zeros(shape), where=total > 0))


def first_rate(kind: Utility, positives_within: Any, negatives_within: Any, negatives: Any) -> Floats:
    """Compute the rate that the utility combines with sensitivity: specificity, or precision.

    Args:
        kind: the utility of the settings, which decides the rate.
        positives_within: number of accepted positive pairs.
        negatives_within: number of accepted negative pairs.
        negatives: number of all negative pairs. The shapes of the three broadcast.

    >>> first_rate("specificity_sensitivity", 6, 2, 8), first_rate("precision_recall", 6, 2, 8)
    (array(0.75), array(0.75))
    """
    if kind == "specificity_sensitivity":
        return np.asarray(1 - share(negatives_within, negatives))
    return share(positives_within, np.asarray(positives_within, np.float64) + negatives_within)


def make_curves(
    summary: PairSummary,
    settings: Settings,
    positive_totals: NDArray[np.int64],  # (classes,)
    negative_totals: NDArray[np.int64],  # (classes,)
    pooled_positives: int,
    pooled_negatives: int,
    classes: NDArray[np.int64],  # (curves,) the classes that have a curve
) -> Curves:
    """Turn counts on the grid into rates and utility."""
    positives, negatives = summary.positives_within[classes], summary.negatives_within[classes]
    sensitivity = positives / positive_totals[classes, None]
    specificity = 1 - negatives / negative_totals[classes, None]
    precision = share(positives, positives + negatives)
    pooled_sensitivity = summary.pooled_positives_within / pooled_positives
    pooled_far = summary.pooled_negatives_within / pooled_negatives
    first = specificity if settings.utility == "specificity_sensitivity" else precision
    pooled_first = first_rate(
        settings.utility, summary.pooled_positives_within, summary.pooled_negatives_within, pooled_negatives
    )
    curves = utility(first, sensitivity, settings.c)
    pooled = utility(pooled_first, pooled_sensitivity, settings.c)
    return Curves(
        classes=classes,
        distances=summary.distances,
        sensitivity=sensitivity,
        specificity=specificity,
        precision=precision,
        utility=curves,
        mean_utility=curves.mean(axis=0) if settings.mean_curve == "classes" and len(curves) else pooled,
        pooled_far=pooled_far,
        pooled_frr=1 - pooled_sensitivity,
    )
