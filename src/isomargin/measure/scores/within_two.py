"""The share of classes whose error rate is within a factor of two of the target; a score defined by this project.

One threshold is set for all classes, where the pooled rate is the target. The score says for how many classes the rate
is about right. Chance alone moves some classes away from the target, so the result also says how many would be near it
if every class truly had the target rate.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isomargin.core.json_values import null_for_nan
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.rates import ROUNDING

FACTOR = 2.0
FEWEST_ERRORS = 10.0  # with fewer errors to expect, counting them is too coarse to tell a factor of two


@dataclass(frozen=True)
class WithinTwo:
    """How many classes have an error rate within a factor of two of the target, at the pooled threshold for it."""

    share: float
    """Share of the classes that count whose rate lies between half and twice the target; NaN if no class counts."""
    expected: float
    """The share to expect if every class truly had the target rate; NaN if the noise is known for too few classes."""
    classes: int
    """Number of classes that count."""
    left_out: int
    """Number of classes with positive pairs that do not count: they have too few pairs to expect ten errors."""

    def as_values(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {name: null_for_nan(value) for name, value in asdict(self).items()}


def within_two(rates: Floats, pairs: NDArray[np.int64], target: float, variance: Floats) -> WithinTwo:
    """Summarise the error rates of the classes at the pooled threshold for the target rate.

    Args:
        rates: (classes,) error rate of each class: FAR or FRR.
        pairs: (classes,) number of pairs of each class in which that error can occur: negative or positive pairs.
        target: the target rate.
        variance: (classes,) variance of each class's rate by chance, were its true rate the target; NaN if unknown.

    >>> within_two(np.array([0.01, 0.02, 0.03, 0.5]), np.array([1000, 1000, 1000, 999]), 0.01, np.zeros(4))
    WithinTwo(share=0.6666666666666666, expected=1.0, classes=3, left_out=1)
    """
    counted = has_enough_pairs(pairs, target)
    number = int(counted.sum())
    share = float(is_within_two(rates[counted], target).mean()) if number else float("nan")
    return WithinTwo(share, expected_share(variance[counted], target), number, len(rates) - number)


def has_enough_pairs(pairs: NDArray[np.int64], target: float) -> NDArray[np.bool_]:
    """(classes,) whether a class counts: whether at least ten errors are to be expected among its pairs.

    >>> has_enough_pairs(np.array([999, 1000]), 0.01)
    array([False,  True])
    """
    return np.asarray(target * pairs >= FEWEST_ERRORS - ROUNDING)


def is_within_two(rates: Floats, target: float) -> NDArray[np.bool_]:
    """Whether each rate lies between half and twice the target, ends included; any shape.

    >>> is_within_two(np.array([0.0049, 0.005, 0.02, 0.021]), 0.01)
    array([False,  True,  True, False])
    """
    # A rate that is 1 minus another is rounded: the slack keeps it at an end of the interval.
    low, high = target / FACTOR * (1 - ROUNDING), target * FACTOR * (1 + ROUNDING)
    return np.asarray((rates >= low) & (rates <= high))


def expected_share(variance: Floats, target: float) -> float:
    """Return the mean probability of a rate within a factor of two of the target, its mean.

    It is the mean over the classes whose variance is known, or NaN if that is less than half of them.

    >>> round(expected_share(np.array([0.0, 0.01**2, np.nan]), 0.01), 3)
    0.736
    """
    known = variance[~np.isnan(variance)]
    if len(known) == 0 or 2 * len(known) < len(variance):
        return float("nan")
    return float(chance_within_two(known / target**2).mean())


def chance_within_two(relative_variance: ArrayLike) -> Any:
    """Return the probability that a rate lies between half and twice its mean, given its variance / mean².

    Rates are taken to follow a gamma distribution. Like them it has no values below zero and a longer tail above: a few
    items cause most of a class's errors. A normal distribution would put up to a third of its mass below zero. In
    simulations of equal classes, the gamma distribution comes closest to the share that is found.

    >>> chance_within_two([0.0, 0.04, 1.0]).round(3)
    array([1.   , 0.999, 0.471])
    """
    from scipy.special import gammainc

    relative = np.asarray(relative_variance, np.float64)
    shape = 1 / np.maximum(relative, 1e-9)  # with less variance, the probability is 1 to all digits
    return gammainc(shape, FACTOR * shape) - gammainc(shape, shape / FACTOR)
