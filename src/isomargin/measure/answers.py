"""From counted pairs to the raw answers that every score is computed from: counts on the grid, distances at rates.

``Answers`` is the seam between counting and scoring: it is filled from ``PairCounts`` here, at once, or by the exact
passes of ``exact.py``. What the scores make of it is in ``curves.py`` and ``consistency.py``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.errors import InputError
from isomargin.measure.counts import PairCounts
from isomargin.measure.distances import BinnedDistances, Floats, ListedDistances
from isomargin.measure.settings import Settings

ROUNDING = 1e-9  # a rate times a number of pairs that should be whole may be off by its rounding


@dataclass(frozen=True)
class Answers:
    """What the pairs say about one choice of calibration range and targets; NaN where a class has no positive pair."""

    calibration_range: tuple[float, float]
    """(d_min, d_max)."""
    distances: Floats
    """(grid,) even steps from d_min to d_max."""
    positives_within: Floats
    """(classes, grid) positive pairs at most this far apart."""
    negatives_within: Floats
    """(classes, grid) negative pairs at most this far apart."""
    pooled_positives_within: Floats
    """(grid,) the same over all classes."""
    pooled_negatives_within: Floats
    """(grid,) the same over all classes, each pair once."""
    target_distance: float
    """Pooled threshold for the target FAR."""
    target_positives_within: Floats
    """(classes,) positive pairs within that threshold."""
    target_negatives_within: Floats
    """(classes,) negative pairs within that threshold."""
    class_far_distance: Floats
    """(classes,) the threshold each class would need for the target FAR."""
    class_frr_distance: Floats
    """(classes,) the threshold each class would need for the target FRR."""
    eer: float
    """Pooled equal error rate."""
    eer_distance: float
    """The smallest distance of a pair at which FAR >= FRR."""
    class_eer: Floats
    """(classes,) equal error rate of each class."""
    auc: float
    """Pooled area under the ROC curve."""
    class_auc: Floats
    """(classes,) area under the ROC curve of each class."""


def answer(counts: PairCounts, settings: Settings) -> Answers:
    """Answer from the counts: exactly where they are listed, to within a bin's interpolation where they are binned."""
    positives, negatives = counts.positives, counts.negatives
    low, high = calibration_range(counts, settings)
    distances = np.linspace(low, high, settings.grid)
    target = negatives.pooled_distance_at(pairs_at_far(settings.target_far, negatives.pooled_total, "target_far"))
    eer, eer_distance = pooled_eer(counts)
    at = np.append(distances, target)
    positives_within, negatives_within = positives.within(at), negatives.within(at)
    return Answers(
        calibration_range=(low, high),
        distances=distances,
        positives_within=positives_within[:, :-1],
        negatives_within=negatives_within[:, :-1],
        pooled_positives_within=positives.pooled_within(distances),
        pooled_negatives_within=negatives.pooled_within(distances),
        target_distance=target,
        target_positives_within=positives_within[:, -1],
        target_negatives_within=negatives_within[:, -1],
        class_far_distance=negatives.class_distance_at(needed_pairs(settings.target_far, negatives.totals)),
        class_frr_distance=positives.class_distance_at(kept_pairs(settings.target_frr, positives.totals)),
        eer=eer,
        eer_distance=eer_distance,
        class_eer=class_eer(counts),
        auc=pooled_auc(counts),
        class_auc=class_auc(counts),
    )


def needed_pairs(far: float, negatives: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of negative pairs at which the false accept rate reaches this."""
    return np.asarray(np.maximum(np.ceil(far * negatives - ROUNDING), 1), np.int64)


def kept_pairs(frr: float, positives: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of positive pairs that must be accepted for the false reject rate to be at most this."""
    return np.asarray(np.maximum(positives - np.floor(frr * positives + ROUNDING), 1), np.int64)


def pairs_at_far(far: float, negatives: int, name: str) -> int:
    """Number of negative pairs at which the pooled FAR reaches this, refused where one pair is more than that."""
    if far * negatives < 1 - ROUNDING:
        raise InputError(
            f"{name} asks for a false accept rate of {far:g}, but with {negatives:,} negative pairs the smallest "
            f"that can be told from zero is {1 / negatives:.3g}"
        )
    return int(needed_pairs(far, np.array(negatives)))


def calibration_range(counts: PairCounts, settings: Settings) -> tuple[float, float]:
    """[d_min, d_max]: the distances themselves, or where the pooled FAR (or on the left the pooled FRR) is as asked."""
    if settings.distances is not None:
        return settings.distances
    negatives, positives = counts.negatives, counts.positives
    low_count = pairs_at_far(settings.far[0], negatives.pooled_total, "far") if settings.frr is None else 0
    high = negatives.pooled_distance_at(pairs_at_far(settings.far[1], negatives.pooled_total, "far"))
    if settings.frr is None:
        low = negatives.pooled_distance_at(low_count)
    else:
        low = positives.pooled_distance_at(int(kept_pairs(settings.frr, np.array(positives.pooled_total))))
    return check_range(low, high, settings)


def check_range(low: float, high: float, settings: Settings) -> tuple[float, float]:
    """Refuse a range that has no width, saying why."""
    if low < high:
        return low, high
    if settings.frr is not None:
        raise InputError(
            f"the calibration range is empty: the false reject rate comes down to frr={settings.frr:g} only at "
            f"distance {low:.6g}, beyond {high:.6g}, where the false accept rate reaches far={settings.far[1]:g}"
        )
    raise InputError(
        f"the calibration range is empty: the false accept rate passes {settings.far[0]:g} and {settings.far[1]:g} "
        f"at the same distance {low:.6g}, because too many negative pairs are equally far apart: ask for a wider far"
    )


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
    return eer_between(low, negatives[first:last], positives[at : at + 1], positives, negatives)


def eer_between(low: float, some: Floats, others: Floats, positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Equal error rate and its threshold, which is among some distances; at ``low``, below them, FAR < FRR."""
    thresholds = np.unique(np.concatenate([[low], some, others]))
    far = np.searchsorted(negatives, thresholds, side="right") / len(negatives)
    frr = 1 - np.searchsorted(positives, thresholds, side="right") / len(positives)
    eer, at = crossing(far, frr)
    return eer, float(thresholds[at])


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


def class_eer(counts: PairCounts) -> Floats:
    """(classes,) equal error rate of each class."""
    positives, negatives = counts.positives, counts.negatives
    found = np.full(len(positives.totals), np.nan)
    with_pairs = np.flatnonzero(positives.totals > 0).tolist()
    if isinstance(positives, BinnedDistances):
        assert isinstance(negatives, BinnedDistances)
        both = zip(negatives.cumulative_chunks(), positives.cumulative_chunks(), strict=True)
        for (chunk, accepted), (_, kept) in both:
            for i in range(chunk.start, chunk.stop):
                if positives.totals[i] > 0:
                    far = accepted[i - chunk.start] / negatives.totals[i]
                    frr = 1 - kept[i - chunk.start] / positives.totals[i]
                    found[i] = crossing(far, frr)[0]
        return found
    if isinstance(negatives, ListedDistances):
        for i in with_pairs:
            found[i] = listed_eer(positives.of_class(i), negatives.of_class(i))[0]
        return found
    far = class_far_at_positives(positives, negatives)
    for i in with_pairs:
        found[i] = continuous_eer(far[positives.offsets[i] : positives.offsets[i + 1]])[0]
    return found


def class_far_at_positives(positives: ListedDistances, negatives: BinnedDistances) -> Floats:
    """(positive pairs,) the class's own false accept rate at each of its positives."""
    class_index = np.repeat(np.arange(len(positives.totals)), positives.totals)
    return negatives.within_own(class_index, positives.distances.astype(np.float64)) / negatives.totals[class_index]


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


def class_auc(counts: PairCounts) -> Floats:
    """(classes,) area under the ROC curve of each class."""
    positives, negatives = counts.positives, counts.negatives
    found = np.full(len(positives.totals), np.nan)
    some = positives.totals > 0
    if isinstance(positives, BinnedDistances):
        assert isinstance(negatives, BinnedDistances)
        # Halves of the bins' own counts: a positive lies, in the mean, above half of the negatives in its bin.
        both = zip(negatives.cumulative_chunks(), positives.cumulative_chunks(), strict=True)
        for (chunk, below), (_, above) in both:
            nearer = (np.diff(above, axis=1) * (below[:, 1:] + below[:, :-1])).sum(axis=1) / 2
            pairs = positives.totals[chunk] * negatives.totals[chunk].astype(np.float64)
            found[chunk] = 1 - np.divide(nearer, pairs, out=np.full(len(nearer), np.nan), where=pairs > 0)
    elif isinstance(negatives, ListedDistances):
        for i in np.flatnonzero(some).tolist():
            found[i] = listed_auc(positives.of_class(i), negatives.of_class(i))
    else:
        far = class_far_at_positives(positives, negatives)
        class_index = np.repeat(np.arange(len(some)), positives.totals)
        found[some] = 1 - np.bincount(class_index, weights=far, minlength=len(some))[some] / positives.totals[some]
    return found
