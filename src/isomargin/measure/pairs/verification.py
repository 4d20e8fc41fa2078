"""Equal error rate and area under the ROC curve, from listed or binned distances, pooled and for each class."""

import numpy as np

from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats, ListedDistances


def listed_auc(positives: Floats, negatives: Floats) -> float:
    """P(positive pair nearer than negative pair) + P(equally far) / 2, of two ascending lists."""
    nearer = np.searchsorted(negatives, positives, side="left").mean()
    as_near = np.searchsorted(negatives, positives, side="right").mean()
    return float(1 - (nearer + as_near) / 2 / len(negatives))


def crossing(far: Floats, frr: Floats) -> tuple[float, int]:
    """Rate at which a rising FAR meets a falling FRR, both straight between their points; and the point after.

    The first point must lie before the crossing: FAR < FRR.
    """
    at = int(np.argmax(far >= frr))
    before, after = frr[at - 1] - far[at - 1], far[at] - frr[at]
    return float(far[at - 1] + before / (before + after) * (far[at] - far[at - 1])), at


def listed_eer(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Equal error rate and its threshold, of two ascending lists.

    The rate at which the ROC curve, straight between its points, has FAR = FRR; the threshold is the smallest
    distance of a pair at which FAR >= FRR.
    """
    far = np.searchsorted(negatives, positives, side="right") / len(negatives)
    frr = 1 - np.searchsorted(positives, positives, side="right") / len(positives)
    # The crossing lies between the last positive at which FAR < FRR and the next: only what is there is looked at.
    at = int(np.argmax(far >= frr))
    low = positives[at - 1] if at else -np.inf
    first, last = np.searchsorted(negatives, [low, positives[at]], side="left")
    thresholds = np.unique(np.concatenate([[low], negatives[first:last], positives[at : at + 1]]))
    far = np.searchsorted(negatives, thresholds, side="right") / len(negatives)
    frr = 1 - np.searchsorted(positives, thresholds, side="right") / len(positives)
    eer, after = crossing(far, frr)
    return eer, float(thresholds[after])


def continuous_eer(far: Floats) -> tuple[float, int]:
    """Equal error rate where FAR is a continuous curve, known at the positives, ascending; and the positive after it.

    FAR passes the FRR that holds between two positives, or the drop of FRR at a positive passes FAR.
    """
    frr = 1 - np.arange(len(far) + 1) / len(far)  # frr[m]: m positives accepted
    at = int(np.argmax(far >= frr[1:]))
    return float(min(far[at], frr[at])), at


def pooled_eer(counts: PairCounts) -> tuple[float, float]:
    """Equal error rate of all pairs, and its threshold."""
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
    """(classes,) equal error rate and (classes,) area under the ROC curve; NaN where a class has no positive pair."""
    positives, negatives = counts.positives, counts.negatives
    eer, auc = np.full((2, len(positives.totals)), np.nan)
    some = np.flatnonzero(positives.totals > 0).tolist()
    if isinstance(positives, ListedDistances) and isinstance(negatives, ListedDistances):
        for i in some:
            eer[i] = listed_eer(positives.of_class(i), negatives.of_class(i))[0]
            auc[i] = listed_auc(positives.of_class(i), negatives.of_class(i))
    elif isinstance(positives, ListedDistances) and isinstance(negatives, BinnedDistances):
        accepted = negatives.within_own(positives.offsets, positives.distances.astype(np.float64))
        for i in some:
            far = accepted[positives.offsets[i] : positives.offsets[i + 1]] / negatives.totals[i]
            eer[i] = continuous_eer(far)[0]
            auc[i] = 1 - far.mean()
    elif isinstance(positives, BinnedDistances) and isinstance(negatives, BinnedDistances):
        for i in some:
            far = np.append(0, np.cumsum(negatives.counts[i], dtype=np.int64)) / negatives.totals[i]
            frr = 1 - np.append(0, np.cumsum(positives.counts[i], dtype=np.int64)) / positives.totals[i]
            eer[i] = crossing(far, frr)[0]
            # A positive lies, in the mean, above half of the negatives in its bin.
            auc[i] = 1 - -np.diff(frr) @ (far[1:] + far[:-1]) / 2
    else:
        raise TypeError("binned positives go with binned negatives")
    return eer, auc
