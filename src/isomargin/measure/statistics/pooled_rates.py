"""Pooled rates of resampled classes, of pairs that belong to one class, to two, or to some of each."""

import numpy as np

from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import ClassDistances, Floats, pooled_share
from isomargin.measure.scores.curves import share

STEPS = 256  # thresholds of a ladder by each kind of pairs


def classes_per_pair(pairs: ClassDistances) -> float:
    """Return the number of classes in which a pair is counted, on average."""
    return float(pairs.totals.sum() / pairs.pooled_total)


def resampled_share(
    pairs: ClassDistances, within: Floats, distances: Floats, weights: Floats, classes: float
) -> Floats:
    """(draws, m) share of all pairs within each distance if classes are drawn, to first order.

    A pair in several classes is drawn with each of them, so that its weight deviates from 1 by the sum of the
    deviations of their weights.

    Args:
        pairs: the pairs.
        within: (classes, m) number of pairs of each class within each distance.
        distances: (m,) the distances.
        weights: (draws, classes) how often each class was drawn.
        classes: number of classes to which a pair belongs, on average.
    """
    whole, totals = pooled_share(pairs, within, distances), pairs.totals
    drawn = (weights @ totals)[:, None]
    deviation = (weights @ within - within.sum(axis=0)) - whole * (drawn - totals.sum())
    return np.asarray(np.clip(whole + classes * share(deviation, drawn), 0.0, 1.0))


def threshold_ladder(counts: PairCounts) -> Floats:
    """(m,) thresholds from the strictest to the most lenient, dense where few negative pairs are accepted."""
    steps = np.concatenate([np.geomspace(1, counts.negatives.pooled_total, STEPS), [0]])
    strict = [counts.negatives.pooled_distance_at(int(step)) for step in steps]
    shares = np.linspace(0, 1, STEPS)
    even = [counts.positives.pooled_distance_at(int(part * counts.positives.pooled_total)) for part in shares]
    axis = counts.negatives.axis
    return np.unique([axis.lowest, *strict, *even, axis.highest])
