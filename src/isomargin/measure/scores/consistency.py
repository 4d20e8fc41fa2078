"""Threshold inconsistency: OPIS and epsilon-OPIS as the paper defines them, and two scores defined by this project.

Each function turns the classes' curves into one number; none of them looks at pairs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.utility import utility
from isomargin.measure.settings import EpsilonForm

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def opis(class_utility: Floats, mean_utility: Floats | None = None) -> float:
    r"""Operating-Point-Inconsistency-Score, Eq. 2 of the paper: the variance over classes of their utility curves.

    .. math:: \mathrm{OPIS} = \frac{1}{T N} \sum_{i=1}^{T} \sum_{j=1}^{N} \bigl(U_i(d_j) - \bar U(d_j)\bigr)^2

    The paper's Algorithm 1 lacks the grid step, see `printed_opis`. This function follows the integral of Eq. 2.

    Args:
        class_utility: (classes, grid) each class's utility at each distance.
        mean_utility: (grid,) curve from which deviations are measured; by default the mean of the classes' curves.

    >>> opis(np.array([[1.0, 0.8], [0.6, 0.8]]))
    0.02
    """
    mean = class_utility.mean(axis=0) if mean_utility is None else mean_utility
    return round_off(np.square(class_utility - mean).mean())


def printed_opis(class_utility: Floats, width: float, mean_utility: Floats | None = None) -> float:
    r"""OPIS as the paper's Algorithm 1 prints it: the sum over the grid without its step width.

    .. math:: \sum_{j=1}^{N} \frac{\sum_{i=1}^{T} \bigl(U_i(d_j) - \bar U(d_j)\bigr)^2}{T (d_\max - d_\min)}

    This is N / (d_max - d_min) times `opis`, so it grows with the number of grid points. It is only for comparison with
    numbers that were computed by the letter of that algorithm.

    Args:
        class_utility: (classes, grid) each class's utility at each distance.
        width: d_max - d_min, the width of the calibration range.
        mean_utility: (grid,) curve from which deviations are measured; by default the mean of the classes' curves.

    >>> printed_opis(np.array([[1.0, 0.8], [0.6, 0.8]]), width=0.5)
    0.08
    """
    mean = class_utility.mean(axis=0) if mean_utility is None else mean_utility
    return round_off(np.square(class_utility - mean).mean(axis=0).sum() / width)


def round_off(value: float) -> float:
    """Keep 14 digits; the rest depend on the order of summation."""
    return float(f"{value:.14g}")


def group_size(epsilon: float, classes: int) -> int:
    """Return the number of classes in each group of epsilon-OPIS: their share, rounded to an integer, at least one.

    >>> group_size(0.1, 659), group_size(0.1, 3)
    (66, 1)
    """
    return max(1, int(np.floor(epsilon * classes + 0.5)))


def epsilon_groups(class_mean_utility: Floats, epsilon: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the worst and of the best classes, ranked by mean utility over the range.

    >>> worst, best = epsilon_groups(np.array([0.9, 0.5, 0.7]), epsilon=0.34)
    >>> worst.tolist(), best.tolist()
    ([1], [0])
    """
    # Rounded, so that classes that differ only in the last bits keep their order.
    ranked = np.argsort(np.round(class_mean_utility, 12), kind="stable")
    size = group_size(epsilon, len(ranked))
    return ranked[:size], ranked[len(ranked) - size :]


def epsilon_factor(form: EpsilonForm, c: float) -> float:
    """Return the factor of a group's utility in epsilon-OPIS: 1, or 1/(1 + c²) for the form printed in the paper.

    >>> epsilon_factor("f_score", 1.0), epsilon_factor("printed", 1.0)
    (1.0, 0.5)
    """
    return 1.0 if form == "f_score" else 1 / (1 + c**2)


def epsilon_opis(
    first_rate: Floats,
    second_rate: Floats,
    class_mean_utility: Floats,
    epsilon: float = 0.1,
    c: float = 1.0,
    form: EpsilonForm = "f_score",
) -> float:
    r"""Utility divide between the best and the worst classes, Eq. 4 of the paper.

    .. math:: \varepsilon\text{-OPIS} = \frac1N \sum_{j=1}^{N}
        \bigl(U_{\varepsilon_\mathrm{worst}}(d_j) - U_{\varepsilon_\mathrm{best}}(d_j)\bigr)^2

    The rates of a group are the means over its classes, and its utility is the F-score of those rates (Eq. 1). Eq. 3 of
    the paper prints the utility without the factor 1 + c², which makes the result four times smaller at c = 1; choose
    it with ``form="printed"``.

    Args:
        first_rate: (classes, grid) specificity, or precision.
        second_rate: (classes, grid) sensitivity, or recall.
        class_mean_utility: (classes,) mean utility of each class, by which the classes are ranked.
        epsilon: share of the classes in each of the two groups.
        c: weight of the second rate.
        form: ``"f_score"``, or ``"printed"`` for the utility as printed in the paper.

    >>> rates = np.array([[1.0, 1.0], [0.5, 0.5]])
    >>> epsilon_opis(rates, rates, rates.mean(axis=1))
    0.25
    >>> epsilon_opis(rates, rates, rates.mean(axis=1), form="printed")
    0.0625
    """
    worst, best = epsilon_groups(class_mean_utility, epsilon)
    low, high = (utility(first_rate[group].mean(axis=0), second_rate[group].mean(axis=0), c) for group in (worst, best))
    return round_off(np.square(epsilon_factor(form, c) * (low - high)).mean())


def relative_opis(opis_value: float, mean_utility: Floats) -> float:
    r"""OPIS relative to the squared mean disutility; a score defined by this project.

    .. math:: \mathrm{OPIS} \Big/ \frac1N \sum_{j=1}^{N} \bigl(1 - \bar U(d_j)\bigr)^2

    OPIS also falls when the disutility 1 - U of every class shrinks by the same factor. This score does not: it is the
    squared coefficient of variation of the classes' disutility. It is NaN if the mean disutility is zero.

    >>> relative_opis(0.02, np.array([0.8, 0.8]))
    0.5
    """
    disutility = np.square(1 - mean_utility).mean()
    return round_off(opis_value / disutility) if disutility > 0 else float("nan")


@dataclass(frozen=True)
class ThresholdSpread:
    """How much the thresholds differ that the classes need to reach one target rate; a score defined by this project.

    A spread of zero means that one threshold gives every class the target rate.
    """

    deviation: float
    """Standard deviation of the thresholds over classes, as a distance."""
    quantiles: dict[float, float]
    """Quantiles of the thresholds over classes, as distances."""
    relative_deviation: float
    """The standard deviation divided by the width of the calibration range."""
    relative_quantiles: dict[float, float]
    """The quantiles on the scale of the calibration range: 0 is d_min, 1 is d_max."""


def threshold_spread(class_distances: Floats, calibration_range: tuple[float, float]) -> ThresholdSpread:
    """Summarise the thresholds that the classes need to reach a target rate.

    Args:
        class_distances: (classes,) the threshold that each class needs.
        calibration_range: (d_min, d_max), the scale of the relative values.

    >>> threshold_spread(np.array([0.8, 1.0]), (0.9, 1.1)).deviation
    0.1
    """
    width = calibration_range[1] - calibration_range[0]
    values = np.quantile(class_distances, QUANTILES)
    deviation = round_off(class_distances.std())
    return ThresholdSpread(
        deviation=deviation,
        quantiles={q: float(v) for q, v in zip(QUANTILES, values, strict=True)},
        relative_deviation=deviation / width,
        relative_quantiles={
            q: (float(v) - calibration_range[0]) / width for q, v in zip(QUANTILES, values, strict=True)
        },
    )
