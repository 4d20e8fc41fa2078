"""From counted pairs to what every score is computed from: counts on the grid, distances at rates.

``PairSummary`` is the seam between counting and scoring. It is filled from ``PairCounts`` here, or by the exact passes
of ``exact.py``; ``scores/curves.py`` and ``scores/consistency.py`` turn it into scores.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.verification import class_errors, pooled_auc, pooled_eer
from isomargin.measure.settings import Settings

ROUNDING = 1e-9  # a rate times a number of pairs that should be whole may be off by its rounding


@dataclass(frozen=True)
class PairSummary:
    """What the pairs say about one choice of calibration range and targets.

    A class without a positive pair has counts of 0, and NaN for what needs one.
    """

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


def summarize(counts: PairCounts, settings: Settings) -> PairSummary:
    """Summarize the counts: exactly where they are listed, to within a bin's interpolation where they are binned."""
    positives, negatives = counts.positives, counts.negatives
    low, high = calibration_range(counts, settings)
    distances = np.linspace(low, high, settings.grid)
    target = negatives.pooled_distance_at(pairs_at_far(settings.target_far, negatives.pooled_total, "target_far"))
    eer, eer_distance = pooled_eer(counts)
    class_eer, class_auc = class_errors(counts)
    at = np.append(distances, target)
    positives_within, negatives_within = positives.within(at), negatives.within(at)
    return PairSummary(
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
        class_eer=class_eer,
        auc=pooled_auc(counts),
        class_auc=class_auc,
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
