"""How many classes have an error rate near the target at one pooled threshold, and how many would have it by chance.

Pairs of a class share items, so its rate varies far more than that of as many independent pairs would. The variance is
therefore taken from how much the items of the class differ (``item_noise.py``).
"""

from typing import TYPE_CHECKING

import numpy as np

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.rates import threshold_at_frr
from isomargin.measure.scores.curves import share
from isomargin.measure.scores.within_two import WithinTwo, within_two
from isomargin.measure.statistics.item_noise import ALL_OTHERS, independent_negatives

if TYPE_CHECKING:
    from isomargin.measure.evaluation_scores import EvaluationScores
    from isomargin.measure.operating_point import OperatingPoint

# Resampled classes and items also change the FAR of the classes that they are negatives of. The counts do not tell
# which classes those are, so the draws leave it out. Where pairs of classes were resampled, on made and on real data,
# the share of classes near the target FAR varied about this many times as much.
AS_NEGATIVES_TOO = 2**0.5


def far_within_two(evaluation: "EvaluationScores") -> WithinTwo:
    """Count the classes whose FAR is near ``target_far`` at the pooled threshold for it.

    Classes of a single item serve as negatives only, as everywhere in the consistency scores.
    """
    classes, pairs = evaluation.curves.classes, evaluation.counts.negatives.totals
    rates, target = evaluation.target.class_far, evaluation.settings.target_far
    return within_two(rates[classes], pairs[classes], target, far_variance(evaluation)[classes])


def frr_within_two(evaluation: "EvaluationScores") -> WithinTwo:
    """Count the classes whose FRR is near ``target_frr`` at the pooled threshold for it."""
    classes, pairs = evaluation.curves.classes, evaluation.counts.positives.totals
    rates, target = frr_target(evaluation).class_frr, evaluation.settings.target_frr
    return within_two(rates[classes], pairs[classes], target, frr_variance(evaluation)[classes])


def with_negatives_resampled(drawn: Floats, measured: float, classes_per_pair: float = 2.0) -> Floats:
    """(draws,) share of classes near the target FAR, with the deviations that resampled negatives would cause.

    There are none if each negative pair belongs to one class.
    """
    factor = 1 + (AS_NEGATIVES_TOO - 1) * (classes_per_pair - 1)
    return np.clip(measured + factor * (drawn - measured), 0.0, 1.0)


def frr_target(evaluation: "EvaluationScores") -> "OperatingPoint":
    """Return the error rates at the pooled threshold for ``target_frr``."""
    return evaluation.at(threshold_at_frr(evaluation.counts.positives, evaluation.settings.target_frr))


def far_variance(evaluation: "EvaluationScores") -> Floats:
    """(classes,) variance of each class's FAR over other items of the class; NaN if unknown.

    It is the variance that the FAR would have if it were ``target_far``, so it is taken at the threshold where the
    class has that FAR. That the items of the other classes vary too is left out: most of it changes all classes alike.
    """
    noise, counts, target = evaluation.item_noise, evaluation.counts, evaluation.settings.target_far
    if noise is None:
        return np.full(evaluation.class_count, np.nan)
    by_items = noise.at_class_distances(noise.false_accepts, evaluation.summary.class_far_distance)
    by_pairs = share(target * (1 - target), independent_negatives(evaluation))  # as if these were independent
    if evaluation.trials is not None:
        return np.maximum(by_items, by_pairs)  # both are the noise of independent trials
    if evaluation.items <= ALL_OTHERS and counts.negatives.appearances == 2:
        return np.maximum(by_items, by_pairs)  # all pairs were compared: the noise of pairs is part of that of items
    return np.maximum(by_items, 0.0) + by_pairs


def frr_variance(evaluation: "EvaluationScores") -> Floats:
    """(classes,) variance of each class's FRR over other items of the class; NaN if unknown.

    As for the FAR, it is taken at the threshold where the class has the FRR ``target_frr``.
    """
    noise = evaluation.item_noise
    if noise is None:
        return np.full(evaluation.class_count, np.nan)
    return np.maximum(noise.at_class_distances(noise.sensitivity, evaluation.summary.class_frr_distance), 0.0)
