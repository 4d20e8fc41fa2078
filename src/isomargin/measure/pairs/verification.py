"""Equal error rate and area under the ROC curve, pooled over all pairs and for each class.

Both are computed from listed or from binned distances.
"""

import numpy as np

from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats, ListedDistances


def listed_auc(positives: Floats, negatives: Floats) -> float:
    """P(positive pair nearer than negative pair) + P(equally far) / 2, from two ascending lists of distances."""
    nearer = np.searchsorted(negatives, positives, side="left").mean()
    as_near = np.searchsorted(negatives, positives, side="right").mean()
    return float(1 - (nearer + as_near) / 2 / len(negatives))


def crossing(far: Floats, frr: Floats) -> tuple[float, int]:
    """Return the rate at which a rising FAR meets a falling FRR, and the index of the first point past the crossing.

    Both curves are interpolated linearly. The first point must lie before the crossing: FAR < FRR.
    """
    at = int(np.argmax(far >= frr))
    before, after = frr[at - 1] - far[at - 1], far[at] - frr[at]
    return float(far[at - 1] + before / (before + after) * (far[at] - far[at - 1])), at


def listed_eer(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Return the equal error rate and its threshold, from two ascending lists of distances.

    The rate is where the linearly interpolated ROC curve has FAR = FRR. The threshold is the smallest distance of a
    pair at which FAR >= FRR.
    """
    far = np.searchsorted(negatives, positives, side="right") / len(negatives)
    frr = 1 - np.searchsorted(positives, positives, side="right") / len(positives)
    # The crossing lies between the last positive with FAR < FRR and the next one: only that stretch is searched.
    at = int(np.argmax(far >= frr))
    low = positives[at - 1] if at else -np.inf
    first, last = np.searchsorted(negatives, [low, positives[at]], side="left")
    thresholds = np.unique(np.concatenate([[low], negatives[first:last], positives[at : at + 1]]))
    far = np.searchsorted(negatives, thresholds, side="right") / len(negatives)
    frr = 1 - np.searchsorted(positives, thresholds, side="right") / len(positives)
    eer, after = crossing(far, frr)
    return eer, float(thresholds[after])


def continuous_eer(far: Floats) -> tuple[float, int]:
    """Return the equal error rate for a continuous FAR curve, and the index of the first positive past it.

    ``far`` holds the FAR at each positive pair's distance, ascending. The curves cross either between two positives,
    where FRR is constant, or at a positive, where FRR drops.
    """
    frr = 1 - np.arange(len(far) + 1) / len(far)  # frr[m]: FRR with m positives accepted
    at = int(np.argmax(far >= frr[1:]))
    return float(min(far[at], frr[at])), at


def pooled_eer(counts: PairCounts) -> tuple[float, float]:
    """Return the equal error rate of all pairs, and its threshold."""
    positives, negatives = counts.positives, counts.negatives
    if isinstance(positives, BinnedDistances):
        far = negatives.pooled_within(positives.edges) / negatives.pooled_total
        eer, at = crossing(far, 1 - positives.pooled_cumulative / positives.pooled_total)
        return eer, float(positives.edges[at])
    if isinstance(negatives, ListedDistances):
        return listed_eer(positives.pooled, negatives.pooled)
    far = negatives.pooled_within(positives.pooled) / negatives.pooled_total
    eer, at = continuous_eer(far)
    met = negatives.pooled_distance_at(round(eer * negatives.pooled_total))
    return eer, min(met, float(positives.pooled[at]))


def pooled_auc(counts: PairCounts) -> float:
    """Area under the ROC curve of all pairs."""
    positives, negatives = counts.positives, counts.negatives
    if isinstance(positives, BinnedDistances):
        middle = (positives.edges[1:] + positives.edges[:-1]) / 2
        weights = np.diff(positives.pooled_cumulative)
        return float(1 - (weights @ negatives.pooled_within(middle)) / positives.pooled_total / negatives.pooled_total)
    if isinstance(negatives, ListedDistances):
        return listed_auc(positives.pooled, negatives.pooled)
    return float(1 - negatives.pooled_within(positives.pooled).mean() / negatives.pooled_total)


def class_errors(counts: PairCounts) -> tuple[Floats, Floats]:
    """(classes,) equal error rate and (classes,) area under the ROC curve; NaN for classes that lack a kind of pair."""
    positives, negatives = counts.positives, counts.negatives
    eer, auc = np.full((2, len(positives.totals)), np.nan)
    with_positives = np.flatnonzero((positives.totals > 0) & (negatives.totals > 0)).tolist()
    if isinstance(positives, ListedDistances) and isinstance(negatives, ListedDistances):
        for i in with_positives:
            eer[i] = listed_eer(positives.of_class(i), negatives.of_class(i))[0]
            auc[i] = listed_auc(positives.of_class(i), negatives.of_class(i))
    elif isinstance(positives, ListedDistances) and isinstance(negatives, BinnedDistances):
        from isomargin.measure.pairs.count_kernels import continuous_errors

        accepted = negatives.within_own(positives.offsets, positives.distances.astype(np.float64))
        continuous_errors(accepted, positives.offsets, negatives.totals, eer, auc)
    elif isinstance(positives, BinnedDistances) and isinstance(negatives, BinnedDistances):
        for i in with_positives:
            far = np.append(0, np.cumsum(negatives.counts[i], dtype=np.int64)) / negatives.totals[i]
            frr = 1 - np.append(0, np.cumsum(positives.counts[i], dtype=np.int64)) / positives.totals[i]
            eer[i] = crossing(far, frr)[0]
            # On average a positive is farther apart than half of the negatives in its bin.
            auc[i] = 1 - -np.diff(frr) @ (far[1:] + far[:-1]) / 2
    else:
        raise TypeError("binned positives need binned negatives")
    return eer, auc
