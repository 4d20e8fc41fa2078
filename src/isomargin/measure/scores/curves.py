"""Rates and utility against distance: from counts of pairs to the curves of each class.

Pure arithmetic on counts; what spread of these curves means is in ``consistency.py``.
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
    """Rates and utility of every class that has a positive pair, on the grid of the calibration range."""

    classes: NDArray[np.int64]
    """(curves,) index of each curve's class."""
    distances: Floats
    """(grid,) from d_min to d_max."""
    sensitivity: Floats
    """(curves, grid) share of the class's positive pairs at most this far apart: recall, 1 - FRR."""
    specificity: Floats
    """(curves, grid) share of the class's negative pairs farther apart: 1 - FAR."""
    precision: Floats
    """(curves, grid) share of positives among the class's pairs at most this far apart; 0 where there are none."""
    utility: Floats
    """(curves, grid) the two rates of the settings combined."""
    mean_utility: Floats
    """(grid,) what OPIS measures deviations from: the curves' mean, or the pooled curve."""
    pooled_far: Floats
    """(grid,) false accept rate of all pairs."""
    pooled_frr: Floats
    """(grid,) false reject rate of all pairs."""

    def first_rate(self, settings: Settings) -> Floats:
        """(curves, grid) the rate that the utility combines with sensitivity."""
        return self.specificity if settings.utility == "specificity_sensitivity" else self.precision

    @cached_property
    def class_mean_utility(self) -> Floats:
        """(curves,) mean over the grid of each curve."""
        return np.asarray(self.utility.mean(axis=1))

    @cached_property
    def squared_deviations(self) -> Floats:
        """(curves,) mean over the grid of the squared deviation from the mean curve."""
        return np.asarray(np.square(self.utility - self.mean_utility).mean(axis=1))


def share(part: Any, whole: Any) -> Floats:
    """Divide, 0 where there is nothing to divide by."""
    part = np.asarray(part, np.float64)
    whole = np.asarray(whole, np.float64)
    shape = np.broadcast_shapes(part.shape, whole.shape)
    return np.asarray(np.divide(part, whole, out=np.zeros(shape), where=whole > 0))


def first_rate(kind: Utility, positives_within: Any, negatives_within: Any, negatives: Any) -> Floats:
    """Give the rate that the utility combines with sensitivity: specificity, or precision.

    Of accepted positive pairs, accepted negative pairs, and all negative pairs; the shapes broadcast.

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
    pooled_negatives: int,
) -> Curves:
    """Turn counts on the grid into rates and utility."""
    some = np.flatnonzero(positive_totals > 0)
    positives, negatives = summary.positives_within[some], summary.negatives_within[some]
    sensitivity = positives / positive_totals[some, None]
    specificity = 1 - negatives / negative_totals[some, None]
    precision = share(positives, positives + negatives)
    pooled_sensitivity = summary.pooled_positives_within / positive_totals.sum()
    pooled_far = summary.pooled_negatives_within / pooled_negatives
    first = specificity if settings.utility == "specificity_sensitivity" else precision
    pooled_first = first_rate(
        settings.utility, summary.pooled_positives_within, summary.pooled_negatives_within, pooled_negatives
    )
    curves = utility(first, sensitivity, settings.c)
    pooled = utility(pooled_first, pooled_sensitivity, settings.c)
    return Curves(
        classes=some,
        distances=summary.distances,
        sensitivity=sensitivity,
        specificity=specificity,
        precision=precision,
        utility=curves,
        mean_utility=curves.mean(axis=0) if settings.mean_curve == "classes" else pooled,
        pooled_far=pooled_far,
        pooled_frr=1 - pooled_sensitivity,
    )
