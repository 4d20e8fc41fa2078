"""Scores of resampled classes, for the bootstrap, the jackknife and comparisons of models.

A draw gives each class a weight: how often it was drawn. The scores of many draws are computed from the stored counts
of the classes by matrix products, without visiting the pairs again. ``intervals.py`` and ``comparison.py`` turn the
draws into confidence intervals.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.rates import threshold_at_frr
from isomargin.measure.scores.consistency import epsilon_factor, group_size
from isomargin.measure.scores.curves import first_rate, share
from isomargin.measure.scores.detection import detection_costs
from isomargin.measure.scores.utility import utility
from isomargin.measure.scores.within_two import has_enough_pairs, is_within_two
from isomargin.measure.statistics.class_rates import frr_target, with_negatives_resampled
from isomargin.measure.statistics.pooled_rates import classes_per_pair, resampled_share, threshold_ladder

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

Weights = NDArray[Any]  # (draws, classes) how often each class was drawn

FINE = 256  # distances between which the draws' curves are interpolated
MARGIN = 4.0  # a draw's calibration range is searched for up to this factor beyond the requested rates
GROUPS = 200  # the largest number of groups in which classes are left out
AT_ONCE = 1 << 23  # weights that are held in floating point at a time


def draw_weights(has_positives: NDArray[np.bool_], draws: int, seed: int) -> Weights:
    """(draws, classes) how often each class is drawn when the classes are resampled with replacement.

    ``has_positives`` (classes,) says which classes have a positive pair. A draw without any such class is repeated.

    >>> draw_weights(np.array([True, True, False, False]), 3, seed=0).sum(axis=1).tolist()
    [4, 4, 4]
    """
    generator, classes = np.random.default_rng(seed), len(has_positives)
    weights = np.empty((draws, classes), np.uint16)
    for row in weights:
        row[:] = 0
        while not row[has_positives].any():
            row[:] = np.bincount(generator.integers(0, classes, classes), minlength=classes)
    return weights


def leave_out_weights(classes: int) -> Weights:
    """(groups, classes) weights that leave out one class each, or one of 200 random groups if there are more classes.

    >>> leave_out_weights(3).tolist()
    [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    """
    groups = min(classes, GROUPS)
    group_of = np.arange(classes) % groups
    if groups < classes:
        group_of = np.random.default_rng(0).permutation(group_of)
    return np.asarray(group_of != np.arange(groups)[:, None], np.uint16)


def in_parts(weights: Weights) -> Iterator[Floats]:
    """Yield the weights in floating point, in parts small enough for memory."""
    step = max(1, AT_ONCE // weights.shape[1])
    for first in range(0, len(weights), step):
        yield weights[first : first + step].astype(np.float64)


@dataclass(frozen=True)
class Resampler:
    """Computes the scores of an evaluation for resampled classes.

    The pooled FAR is a mean over pairs of classes, both of which are resampled. If the mean class FAR of a draw differs
    by δ from that of all classes, its pooled FAR differs by 2δ (the first-order term of a U-statistic of degree two).
    Without the factor 2, intervals of FAR would be half as wide as they should be. The FAR of each class also shifts by
    δ; this is neglected, because a shift common to all classes hardly changes a variance over them.
    """

    evaluation: "Evaluation"

    @cached_property
    def distances(self) -> Floats:
        """(fine,) evenly spaced distances over the calibration range, extended as far as a draw's range may reach."""
        settings, curves = self.evaluation.settings, self.evaluation.curves
        low, high = self.evaluation.calibration_range
        if settings.distances is None:
            negatives, positives = self.evaluation.counts.negatives, self.evaluation.counts.positives
            far = curves.pooled_far[-1] * MARGIN
            high = max(high, negatives.pooled_distance_at(int(min(far, 1.0) * negatives.pooled_total)))
            if settings.frr is None:
                low = min(
                    low, negatives.pooled_distance_at(int(curves.pooled_far[0] / MARGIN * negatives.pooled_total))
                )
            else:
                kept = 1 - min(curves.pooled_frr[0] * MARGIN, 1.0)
                low = min(low, positives.pooled_distance_at(int(kept * positives.pooled_total)))
        return np.linspace(low, high, FINE)

    @cached_property
    def positives(self) -> Floats:
        """(classes, fine) number of positive pairs within each distance."""
        return self.evaluation.counts.positives.within(self.distances)

    @cached_property
    def negatives(self) -> Floats:
        """(classes, fine) number of negative pairs within each distance."""
        return self.evaluation.counts.negatives.within(self.distances)

    @cached_property
    def rates(self) -> tuple[Floats, Floats]:
        """(curves, fine) the two rates that the utility combines, of the classes that have a curve."""
        with_curve, counts = self.evaluation.curves.classes, self.evaluation.counts
        positives, negatives = self.positives[with_curve], self.negatives[with_curve]
        sensitivity = positives / counts.positives.totals[with_curve, None]
        totals = counts.negatives.totals[with_curve, None]
        return first_rate(self.evaluation.settings.utility, positives, negatives, totals), sensitivity

    @cached_property
    def utility(self) -> Floats:
        """(curves, fine) utility of the classes that have a curve."""
        return utility(*self.rates, self.evaluation.settings.c)

    # ----- weights

    def draw(self, draws: int, seed: int) -> Weights:
        """(draws, classes) weights of resampled classes."""
        return draw_weights(self.evaluation.counts.positives.totals > 0, draws, seed)

    def leave_out(self) -> Weights:
        """(groups, classes) weights that leave out one class, or one group of classes, at a time."""
        return leave_out_weights(self.evaluation.class_count)

    def undrawn(self) -> Weights:
        """(1, classes) weights that take every class once."""
        return np.ones((1, self.evaluation.class_count), np.uint16)

    def scores(self, weights: Weights) -> dict[str, Floats]:
        """(draws,) by name: every score in each draw."""
        parts = [
            self.consistency(part) | self.near_targets(part) | self.verification(part) | self.retrieval(part)
            for part in in_parts(weights)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    # ----- threshold consistency

    def consistency(self, weights: Floats) -> dict[str, Floats]:
        """(draws,) by name: OPIS and the scores related to it; none if no class has a curve."""
        if not self.evaluation.has_curves:
            return {}
        with_curve = self.evaluation.curves.classes
        far = self.pooled_far(self.negatives, self.distances, weights)
        frr = self.pooled_frr(self.positives, self.distances, weights)
        grid = Grid(self.distances, *self.ranges(far, frr), self.evaluation.settings.grid)
        drawn = share(weights[:, with_curve], weights[:, with_curve].sum(axis=1, keepdims=True))  # (draws, curves)
        middle = self.utility.mean(axis=0)  # deviations from it are small, and so is their interpolation error
        deviations = self.utility - middle
        mean, square = grid.at(drawn @ deviations), grid.at(drawn @ np.square(deviations))  # (draws, grid)
        mean_curve = mean + grid.at(middle[None])
        pooled_curve = None
        if self.evaluation.settings.mean_curve == "classes":
            opis = (square - np.square(mean)).mean(axis=1)
        else:
            pooled_curve = self.pooled_utility(far, frr)
            pooled = grid.at(pooled_curve - middle)
            opis = (square - 2 * pooled * mean + np.square(pooled)).mean(axis=1)
            mean_curve = pooled + grid.at(middle[None])
        scores = {
            "opis": opis,
            "epsilon_opis": self.epsilon_opis(drawn, grid),
            "relative_opis": share(opis, np.square(1 - mean_curve).mean(axis=1)),
            "mean_utility": (mean + grid.at(middle[None])).mean(axis=1),
        }
        if self.evaluation.item_noise is not None:
            scores["debiased_opis"] = self.debiased_opis(weights, grid, pooled_curve)
        return scores

    def debiased_opis(self, weights: Floats, grid: "Grid", pooled_curve: Floats | None) -> Floats:
        """(draws,) OPIS without item noise, over the classes large enough to estimate it.

        Deviations are measured from the (draws, fine) pooled curve if it is given, else from the mean of the classes.
        """
        item_noise = self.evaluation.item_noise
        assert item_noise is not None
        large = np.isin(self.evaluation.curves.classes, item_noise.classes)
        drawn = weights[:, item_noise.classes]
        number = np.maximum(drawn.sum(axis=1, keepdims=True), 1)
        middle = self.utility[large].mean(axis=0)
        deviations = self.utility[large] - middle
        mean, square = (grid.at((drawn / number) @ values) for values in (deviations, np.square(deviations)))
        noise = grid.at((drawn / number) @ item_noise.of_utility(self.distances, self.evaluation))
        repeated = np.square(drawn / number).sum(axis=1, keepdims=True)  # share of the noise in the draw's mean curve
        middle_of_draw = mean if pooled_curve is None else grid.at(pooled_curve - middle)
        variance = square - 2 * middle_of_draw * mean + np.square(middle_of_draw)
        return np.asarray((variance - noise * (1 - repeated)).mean(axis=1))

    def epsilon_opis(self, drawn: Floats, grid: "Grid") -> Floats:
        """(draws,) epsilon-OPIS; classes are ranked by their mean utility over the original calibration range."""
        settings = self.evaluation.settings
        ranked = np.argsort(self.evaluation.curves.class_mean_utility, kind="stable")
        share_of_group = group_size(settings.epsilon, len(ranked)) / len(ranked)
        groups = []
        for order in (ranked, ranked[::-1]):
            sorted_shares = drawn[:, order]
            before = np.cumsum(sorted_shares, axis=1) - sorted_shares
            taken = np.clip(share_of_group - before, 0.0, sorted_shares)  # of the last class only a part may be taken
            used = np.flatnonzero(taken.any(axis=0))
            first, second = (grid.at(taken[:, used] @ rate[order[used]]) / share_of_group for rate in self.rates)
            groups.append(utility(first, second, settings.c))
        factor = epsilon_factor(settings.epsilon_form, settings.c)
        return np.asarray(np.square(factor * (groups[0] - groups[1])).mean(axis=1))

    def ranges(self, far: Floats, frr: Floats) -> tuple[Floats, Floats]:
        """(draws,) start and (draws,) end of each draw's calibration range, from its (draws, fine) rates."""
        if self.evaluation.settings.distances is not None:
            ends = self.evaluation.settings.distances
            return np.full(len(far), ends[0]), np.full(len(far), ends[1])
        # Use the measured rates at the ends of the range: equal distances may have pushed them past the requested ones.
        curves, rising = self.evaluation.curves, np.maximum.accumulate(far, axis=1)
        high = crossings(rising, float(curves.pooled_far[-1]), self.distances)
        if self.evaluation.settings.frr is None:
            low = crossings(rising, float(curves.pooled_far[0]), self.distances)
        else:
            low = crossings(1 - frr, float(1 - curves.pooled_frr[0]), self.distances)
        return np.minimum(low, high), high

    # ----- classes near the target rates

    def near_targets(self, weights: Floats) -> dict[str, Floats]:
        """(draws,) by name: share of the classes within a factor of two of each target rate, if it is known."""
        evaluation, scores = self.evaluation, {}
        counts, settings = evaluation.counts, evaluation.settings
        if evaluation.far_within_two.classes:
            distances, negatives = self.around_target
            places = Grid.at_points(distances, self.target_thresholds(weights))
            near = self.share_near(settings.target_far, negatives, counts.negatives.totals, places, weights)
            scores["far_within_two"] = with_negatives_resampled(
                near, evaluation.far_within_two.share, self.classes_per_negative
            )
        if evaluation.frr_within_two.classes:
            distances, rejected, frr = self.around_frr_target
            pooled = self.pooled_frr(counts.positives.totals[:, None] - rejected, distances, weights)
            places = Grid.at_points(distances, crossings(-pooled, -frr, distances))
            scores["frr_within_two"] = self.share_near(
                settings.target_frr, rejected, counts.positives.totals, places, weights
            )
        return scores

    def share_near(
        self, target: float, errors: Floats, pairs: NDArray[np.int64], places: "Grid", weights: Floats
    ) -> Floats:
        """(draws,) share of the drawn classes that are near the target rate at each draw's threshold.

        Args:
            target: the target rate.
            errors: (classes, fine) number of errors of each class at each fine distance.
            pairs: (classes,) number of pairs in which they can occur.
            places: the draws' thresholds among the fine distances.
            weights: (draws, classes) how often each class was drawn.
        """
        counted = np.intersect1d(np.flatnonzero(has_enough_pairs(pairs, target)), self.evaluation.curves.classes)
        left, part = (values[:, 0] for values in places.places)
        errors = errors[counted]
        rates = ((1 - part) * errors[:, left] + part * errors[:, left + 1]) / pairs[counted, None]
        near, drawn = is_within_two(rates, target).T, weights[:, counted]  # both (draws, counted)
        number = drawn.sum(axis=1)
        # A draw without any class that counts says nothing: all of them stand in for it.
        return np.where(number > 0, share((drawn * near).sum(axis=1), number), near.mean(axis=1))

    @cached_property
    def around_frr_target(self) -> tuple[Floats, Floats, float]:
        """(fine,) distances around the threshold for the target FRR, (classes, fine) pairs beyond each, and its FRR."""
        positives, target = self.evaluation.counts.positives, frr_target(self.evaluation)
        low, high = (threshold_at_frr(positives, min(target.frr * factor, 1.0)) for factor in (MARGIN, 1 / MARGIN))
        distances = np.linspace(min(low, target.distance), max(high, target.distance), FINE)
        return distances, positives.totals[:, None] - positives.within(distances), target.frr

    # ----- verification

    @cached_property
    def around_eer(self) -> tuple[Floats, Floats, Floats]:
        """(fine,) distances around the equal error rate, and (classes, fine) negative and positive pairs within."""
        negatives, eer_distance = self.evaluation.counts.negatives, self.evaluation.eer_distance
        low, high = (
            negatives.pooled_distance_at(int(min(self.evaluation.eer * factor, 1.0) * negatives.pooled_total))
            for factor in (1 / MARGIN, MARGIN)
        )
        distances = np.linspace(min(low, eer_distance), max(high, eer_distance), FINE)
        return distances, negatives.within(distances), self.evaluation.counts.positives.within(distances)

    def verification(self, weights: Floats) -> dict[str, Floats]:
        """(draws,) the equal error rate, and for trials minDCF."""
        distances, negatives, positives = self.around_eer
        far = np.maximum.accumulate(self.pooled_far(negatives, distances, weights), axis=1)
        frr = self.pooled_frr(positives, distances, weights)
        place = crossings(far - frr, 0.0, np.arange(FINE, dtype=np.float64))
        left = np.minimum(place.astype(np.int64), FINE - 2)
        rows, part = np.arange(len(far)), place - left
        at = [(1 - part) * rate[rows, left] + part * rate[rows, left + 1] for rate in (far, frr)]
        eer = {"eer": np.asarray((at[0] + at[1]) / 2)}
        return eer if self.evaluation.trials is None else eer | {"min_dcf": self.min_dcf(weights)}

    @cached_property
    def cost_thresholds(self) -> tuple[Floats, Floats, Floats]:
        """(m,) thresholds at which minDCF is searched, and (classes, m) negative and positive pairs within."""
        distances = threshold_ladder(self.evaluation.counts)
        counts = self.evaluation.counts
        return distances, counts.negatives.within(distances), counts.positives.within(distances)

    def min_dcf(self, weights: Floats) -> Floats:
        """(draws,) least normalised detection cost."""
        details = self.evaluation.trials
        assert details is not None
        distances, negatives, positives = self.cost_thresholds
        far = np.maximum.accumulate(self.pooled_far(negatives, distances, weights), axis=1)
        frr = self.pooled_frr(positives, distances, weights)
        costs = detection_costs(far, frr, details.prior, details.cost_false_accept, details.cost_false_reject)
        return np.asarray(np.minimum(costs.min(axis=1), 1.0))

    def rates_at(self, distance: float, weights: Weights) -> tuple[Floats, Floats]:
        """(draws,) pooled FAR and (draws,) pooled FRR at one threshold."""
        threshold, counts = np.array([distance]), self.evaluation.counts
        negatives, positives = counts.negatives.within(threshold), counts.positives.within(threshold)
        parts = [
            (self.pooled_far(negatives, threshold, part)[:, 0], self.pooled_frr(positives, threshold, part)[:, 0])
            for part in in_parts(weights)
        ]
        return np.concatenate([far for far, _ in parts]), np.concatenate([frr for _, frr in parts])

    def frr_at_target(self, weights: Weights) -> Floats:
        """(draws,) pooled FRR at the threshold where the draw's pooled FAR equals the measured FAR at the target."""
        distances, _ = self.around_target
        positives = self.evaluation.counts.positives.within(distances)
        parts = []
        for part in in_parts(weights):
            place = Grid.at_points(distances, self.target_thresholds(part))
            parts.append(place.at(self.pooled_frr(positives, distances, part))[:, 0])
        return np.concatenate(parts)

    @cached_property
    def around_target(self) -> tuple[Floats, Floats]:
        """(fine,) distances around the threshold for the target FAR, and (classes, fine) negative pairs within each."""
        negatives, target = self.evaluation.counts.negatives, self.evaluation.target
        low, high = (
            negatives.pooled_distance_at(int(min(target.far * factor, 1.0) * negatives.pooled_total))
            for factor in (1 / MARGIN, MARGIN)
        )
        distances = np.linspace(min(low, target.distance), max(high, target.distance), FINE)
        return distances, negatives.within(distances)

    def target_thresholds(self, weights: Floats) -> Floats:
        """(draws,) the threshold where each draw's pooled FAR equals the measured FAR at the target."""
        distances, negatives = self.around_target
        far = np.maximum.accumulate(self.pooled_far(negatives, distances, weights), axis=1)
        return crossings(far, self.evaluation.target.far, distances)

    @cached_property
    def classes_per_negative(self) -> float:
        """Number of resampled classes to which a negative pair belongs: 2, but for trials as many as they name."""
        return 2.0 if self.evaluation.trials is None else classes_per_pair(self.evaluation.counts.negatives)

    def pooled_far(self, within: Floats, distances: Floats, weights: Floats) -> Floats:
        """(draws, m) pooled FAR of each draw, from (classes, m) counts of negative pairs within (m,) distances."""
        negatives = self.evaluation.counts.negatives
        return resampled_share(negatives, within, distances, weights, self.classes_per_negative)

    def pooled_frr(self, within: Floats, distances: Floats, weights: Floats) -> Floats:
        """(draws, m) pooled FRR of each draw, from (classes, m) counts of positive pairs within (m,) distances."""
        positives = self.evaluation.counts.positives
        if (number := classes_per_pair(positives)) > 1:
            return 1 - resampled_share(positives, within, distances, weights, number)
        drawn = self.of_classes(weights)
        return 1 - share(drawn @ within, (drawn @ positives.totals)[:, None])

    def of_classes(self, weights: Floats) -> Floats:
        """(draws, classes) the weights of the evaluation's own classes; galleries resample unknown ones too."""
        return weights

    def pooled_utility(self, far: Floats, frr: Floats) -> Floats:
        """(draws, m) utility of the pooled rates."""
        settings, counts = self.evaluation.settings, self.evaluation.counts
        positives, negatives = counts.positives.pooled_total, counts.negatives.pooled_total
        first = first_rate(settings.utility, (1 - frr) * positives, far * negatives, negatives)
        return utility(first, 1 - frr, settings.c)

    # ----- retrieval

    def retrieval(self, weights: Floats) -> dict[str, Floats]:
        """(draws,) by name: recall@k, R-precision and MAP@R; queries are resampled, the gallery is not."""
        ranks, drawn = self.evaluation.ranks, self.of_classes(weights)
        queries = drawn @ ranks.queries
        sums = {f"recall@{k}": hits for k, hits in zip(ranks.k, ranks.hits.T, strict=True)}
        for name, values in (("r_precision", ranks.r_precision), ("map_at_r", ranks.average_precision)):
            if values is not None:
                sums[name] = values
        return {name: share(drawn @ class_sums, queries) for name, class_sums in sums.items()}


@dataclass(frozen=True)
class Grid:
    """The grid of each draw: evenly spaced distances over its calibration range, for interpolation."""

    distances: Floats
    """(fine,) evenly spaced distances at which values are known."""
    low: Floats
    """(draws,) first distance of each draw's grid."""
    high: Floats
    """(draws,) last distance of each draw's grid."""
    number: int
    """Number of distances in a grid."""

    @classmethod
    def at_points(cls, distances: Floats, points: Floats) -> "Grid":
        """Return grids of one distance each: (draws,) points among the (fine,) distances."""
        return cls(distances, points, points, 1)

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], Floats]:
        """(draws, grid) index of the fine distance left of each grid point, and the fraction of the step past it."""
        place = np.linspace(self.low, self.high, self.number, axis=1) - self.distances[0]
        width = self.distances[-1] - self.distances[0]
        place *= (len(self.distances) - 1) / width if width > 0 else 0.0
        left = np.clip(place.astype(np.int64), 0, len(self.distances) - 2)
        return left, np.clip(place - left, 0.0, 1.0)

    def at(self, values: Floats) -> Floats:
        """(draws, grid) the (draws or 1, fine) values interpolated at the grid points."""
        left, part = self.places
        values = np.broadcast_to(values, (len(left), values.shape[1]))
        below, above = np.take_along_axis(values, left, axis=1), np.take_along_axis(values, left + 1, axis=1)
        return np.asarray((1 - part) * below + part * above)


def crossings(rising: Floats, level: float, at: Floats) -> Floats:
    """(rows,) where each row, with values (rows, m) at positions ``at`` (m,) and linear in between, reaches a level.

    >>> crossings(np.array([[0.0, 0.4, 1.0], [0.6, 0.7, 0.8]]), 0.7, np.array([1.0, 2.0, 3.0]))
    array([2.5, 2. ])
    """
    reached = rising >= level
    right = np.where(reached.any(axis=1), reached.argmax(axis=1), rising.shape[1] - 1)
    left = np.maximum(right - 1, 0)
    rows = np.arange(len(rising))
    low, high = rising[rows, left], rising[rows, right]
    part = np.clip(share(level - low, high - low), 0.0, 1.0)
    return np.asarray(at[left] + part * (at[right] - at[left]))
