"""``PairSummary``: the counts and distances from which every score is computed.

It is the interface between counting and scoring. It is filled here from ``PairCounts``, or by the exact passes of
``exact.py``; ``scores/curves.py`` and ``scores/consistency.py`` turn it into scores.
"""

from dataclasses import dataclass

import numpy as np

from isomargin.core.errors import InputError
from isomargin.measure.pairs.axis import L2, ScoreAxis
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.rates import kept_pairs, needed_pairs, threshold_at_far, threshold_at_frr
from isomargin.measure.pairs.verification import class_errors, pooled_auc, pooled_eer
from isomargin.measure.settings import Settings


@dataclass(frozen=True)
class PairSummary:
    """What the pairs say about one calibration range and its target rates.

    For a class without positive pairs, the counts are 0 and values that need a positive pair are NaN.
    """

    calibration_range: tuple[float, float]
    """(d_min, d_max)."""
    distances: Floats
    """(grid,) evenly spaced distances from d_min to d_max."""
    positives_within: Floats
    """(classes, grid) positive pairs of each class at most this far apart."""
    negatives_within: Floats
    """(classes, grid) negative pairs of each class at most this far apart."""
    pooled_positives_within: Floats
    """(grid,) positive pairs of all classes at most this far apart."""
    pooled_negatives_within: Floats
    """(grid,) negative pairs of all classes at most this far apart, each pair counted once."""
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
    """Summarize the counts: exactly for listed distances, by interpolation within bins for binned ones."""
    positives, negatives = counts.positives, counts.negatives
    low, high = calibration_range(counts, settings)
    distances = np.linspace(low, high, settings.grid)
    target = threshold_at_far(counts, settings.target_far, "reached", "target_far")
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


def calibration_range(counts: PairCounts, settings: Settings) -> tuple[float, float]:
    """Return (d_min, d_max): ``distances`` if set, else where the pooled rates reach ``frr`` and ``far``."""
    if settings.distances is not None:
        return counts.positives.axis.check_range(settings.distances)
    if settings.frr is None:
        low = threshold_at_far(counts, settings.far[0], "reached")
    else:
        low = threshold_at_frr(counts.positives, settings.frr)
    high = threshold_at_far(counts, settings.far[1], "reached")
    return check_range(low, high, settings, counts.negatives.axis)


def check_range(low: float, high: float, settings: Settings, axis: ScoreAxis = L2) -> tuple[float, float]:
    """Return the range, or raise an error that says why it is empty."""
    if low < high:
        return low, high
    if settings.frr is not None:
        raise InputError(
            f"the calibration range is empty: the false reject rate falls to frr={settings.frr:g} only at "
            f"{axis.text(low)}, beyond {axis.shown(high):.6g}, where the false accept rate reaches its upper end "
            f"far={settings.far[1]:g}: use a larger frr or a larger upper far"
        )
    raise InputError(
        f"the calibration range is empty: the false accept rate reaches {settings.far[0]:g} and {settings.far[1]:g} at "
        f"the same {axis.text(low)}, because many negative pairs are equally far apart: use a wider far range"
    )
