"""Convert false accept and false reject rates into numbers of pairs and into thresholds.

This module defines what "the threshold at FAR x" means. A rate over finitely many pairs rises in steps, so there are
two such thresholds: one that reaches the rate and one that does not exceed it. Each has its uses.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import ClassDistances, ListedDistances

Mode = Literal["reached", "not_exceeded"]

ROUNDING = 1e-9  # tolerance for the rounding of a rate times a number of pairs that should be an integer


def needed_pairs(far: float, negatives: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of accepted negative pairs at which the false accept rate reaches ``far``."""
    return np.asarray(np.maximum(np.ceil(far * negatives - ROUNDING), 1), np.int64)


def kept_pairs(frr: float, positives: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of positive pairs that must be accepted for a false reject rate of at most ``frr``."""
    return np.asarray(np.maximum(positives - np.floor(frr * positives + ROUNDING), 1), np.int64)


def pairs_at_far(far: float, negatives: int, name: str) -> int:
    """Return the number of accepted negative pairs at which the pooled FAR reaches ``far``.

    Raises an error if a single negative pair already exceeds ``far``; ``name`` is the setting that the error names.
    """
    if far * negatives < 1 - ROUNDING:
        raise InputError(
            f"{name} asks for a false accept rate of {far:g}, but with {negatives:,} negative pairs the smallest rate "
            f"above zero is {1 / negatives:.3g}: use a larger {name} or more items"
        )
    return int(needed_pairs(far, np.array(negatives)))


def threshold_at_far(counts: PairCounts, far: float, mode: Mode, name: str = "far") -> float:
    """Return the pooled threshold at a false accept rate.

    - ``"reached"``: the smallest distance at which the pooled FAR reaches ``far``. It is the distance of a negative
      pair, and its FAR may exceed ``far``. The scores use it for the calibration range and for the target FAR.
    - ``"not_exceeded"``: the largest threshold whose pooled FAR does not exceed ``far``. It lies between the distances
      of pairs, and its FAR may be below ``far``. ``choose_threshold`` and the slider of the report use it.

    If pairs are listed, no negative pair lies strictly between the two. Raises an error if ``far`` is less than one
    negative pair, or if every threshold exceeds it.

    Args:
        counts: the pairs.
        far: the false accept rate, above 0 and below 1.
        mode: which of the two thresholds to return.
        name: the name of the setting in error messages.

    >>> negatives = ListedDistances(np.array([0.5, 0.75, 1.0, 1.25]), np.array([0, 4]), appearances=1)
    >>> counts = PairCounts(positives=negatives, negatives=negatives)
    >>> threshold_at_far(counts, 0.5, "reached"), threshold_at_far(counts, 0.5, "not_exceeded")
    (0.75, 0.875)
    """
    negatives = counts.negatives
    needed = pairs_at_far(far, negatives.pooled_total, name)
    if mode == "reached":
        return negatives.pooled_distance_at(needed)
    threshold = largest_within(negatives, far)
    if threshold == -math.inf:
        smallest = negatives.start if isinstance(negatives, ListedDistances) else float(negatives.edges[1])
        reached = float(negatives.pooled_within(np.array([smallest]))[0]) / negatives.pooled_total
        raise InputError(
            f"no threshold has a false accept rate of at most {far:g}: even at {negatives.axis.text(smallest)} it is "
            f"{reached:.3g}, because many items of different classes have the same embedding: remove duplicates, or "
            f"use a larger {name}"
        )
    return threshold


def threshold_at_frr(positives: ClassDistances, frr: float) -> float:
    """Return the pooled threshold at a false reject rate: the smallest distance at which it is at most ``frr``.

    >>> threshold_at_frr(ListedDistances(np.array([0.5, 0.75, 1.0, 1.25]), np.array([0, 4]), appearances=1), 0.25)
    1.0
    """
    return positives.pooled_distance_at(int(kept_pairs(frr, np.array(positives.pooled_total))))


def largest_within(negatives: ClassDistances, far: float) -> float:
    """Return the largest threshold whose pooled FAR does not exceed ``far`` (0 is allowed); -inf if there is none."""
    distance = negatives.pooled_distance_admitting(math.floor(far * negatives.pooled_total + ROUNDING))
    return negatives.short_of(distance) if distance > -math.inf else distance
