"""Rates and utility against distance: from counts of pairs to the curves of each class.

Pure arithmetic on counts; what spread of these curves means is in ``consistency.py``.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.summary import Answers
from isomargin.measure.scores.utility import utility
from isomargin.measure.settings import Settings


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


def share(part: Floats, whole: Floats | NDArray[np.int64]) -> Floats:
    """Divide, 0 where there is nothing to divide by."""
    part = np.asarray(part, np.float64)
    return np.divide(part, whole, out=np.zeros(part.shape), where=np.asarray(whole) > 0)


def make_curves(
    answers: Answers,
    settings: Settings,
    positive_totals: NDArray[np.int64],  # (classes,)
    negative_totals: NDArray[np.int64],  # (classes,)
    pooled_negatives: int,
) -> Curves:
    """Turn counts on the grid into rates and utility."""
    some = np.flatnonzero(positive_totals > 0)
    positives, negatives = answers.positives_within[some], answers.negatives_within[some]
    sensitivity = positives / positive_totals[some, None]
    specificity = 1 - negatives / negative_totals[some, None]
    precision = share(positives, positives + negatives)
    pooled_sensitivity = answers.pooled_positives_within / positive_totals.sum()
    pooled_far = answers.pooled_negatives_within / pooled_negatives
    if settings.utility == "specificity_sensitivity":
        curves = utility(specificity, sensitivity, settings.c)
        pooled = utility(1 - pooled_far, pooled_sensitivity, settings.c)
    else:
        curves = utility(precision, sensitivity, settings.c)
        accepted = answers.pooled_positives_within + answers.pooled_negatives_within
        pooled = utility(share(answers.pooled_positives_within, accepted), pooled_sensitivity, settings.c)
    return Curves(
        classes=some,
        distances=answers.distances,
        sensitivity=sensitivity,
        specificity=specificity,
        precision=precision,
        utility=curves,
        mean_utility=curves.mean(axis=0) if settings.mean_curve == "classes" else pooled,
        pooled_far=pooled_far,
        pooled_frr=1 - pooled_sensitivity,
    )
