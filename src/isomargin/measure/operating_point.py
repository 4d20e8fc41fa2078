"""``OperatingPoint``: the error rates at one threshold, pooled and for each class, from the counts of pairs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats, pooled_share
from isomargin.measure.pairs.summary import PairSummary
from isomargin.measure.scores.curves import share


@dataclass(frozen=True)
class OperatingPoint:
    """The error rates at one threshold, pooled and for each class."""

    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    far: float
    """False accept rate of all negative pairs."""
    frr: float
    """False reject rate of all positive pairs."""
    class_far: Floats
    """(classes,) false accept rate of each class; NaN for a class without sampled negatives."""
    class_frr: Floats
    """(classes,) false reject rate of each class; NaN for a class of one item."""


def operating_point(distance: float, counts: PairCounts) -> OperatingPoint:
    """Return the error rates at a threshold."""
    threshold = np.array([distance], np.float64)
    positives, negatives = counts.positives, counts.negatives
    return OperatingPoint(
        distance=float(distance),
        far=float(negatives.pooled_within(threshold)[0] / negatives.pooled_total),
        frr=float(1 - positives.pooled_within(threshold)[0] / positives.pooled_total),
        class_far=share_or_nan(negatives.within(threshold)[:, 0], negatives.totals),
        class_frr=1 - share_or_nan(positives.within(threshold)[:, 0], positives.totals),
    )


def target_point(summary: PairSummary, counts: PairCounts) -> OperatingPoint:
    """Return the error rates at the pooled threshold for the target FAR, which a summary has counted."""
    positives, negatives = counts.positives, counts.negatives
    at = np.array([summary.target_distance])
    far = pooled_share(negatives, summary.target_negatives_within[:, None], at)[0]
    frr = 1 - pooled_share(positives, summary.target_positives_within[:, None], at)[0]
    return OperatingPoint(
        distance=summary.target_distance,
        far=float(far),
        frr=float(frr),
        class_far=share_or_nan(summary.target_negatives_within, negatives.totals),
        class_frr=1 - share_or_nan(summary.target_positives_within, positives.totals),
    )


def share_or_nan(part: Floats, total: NDArray[np.int64]) -> Floats:
    """Divide ``part`` by ``total``, elementwise; NaN where the total is 0."""
    return np.where(total > 0, share(part, total), np.nan)
