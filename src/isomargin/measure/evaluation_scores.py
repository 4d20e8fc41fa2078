"""``EvaluationScores``: what an evaluation holds, and every score that is computed from it.

Scores are computed from ``PairSummary`` and the counts when they are first accessed. ``scores/registry.py`` lists their
names and meanings. ``evaluation.py`` adds tables, intervals, other settings and saving.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.identification import Identification, IdentificationPoint
from isomargin.measure.operating_point import OperatingPoint, operating_point, target_point
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import Floats, ListedDistances
from isomargin.measure.pairs.rates import ROUNDING
from isomargin.measure.pairs.summary import PairSummary
from isomargin.measure.pairs.trial_counts import TrialDetails
from isomargin.measure.scores import consistency, detection
from isomargin.measure.scores.curves import Curves, make_curves
from isomargin.measure.scores.within_two import WithinTwo
from isomargin.measure.settings import Comparison, Settings
from isomargin.measure.statistics.class_rates import far_within_two, frr_within_two
from isomargin.measure.statistics.item_noise import ItemNoise, debiased_opis, notes_on_noise, opis_noise

FEWEST_PROBES = 2  # a class of a gallery with fewer known probes has no utility curve


@dataclass(frozen=True, eq=False)
class EvaluationScores:
    """The fields and the scores of an `Evaluation`, which says what they are."""

    settings: Settings
    """The settings on which the scores depend."""
    names: NDArray[Any]
    """(classes,) the distinct labels, sorted."""
    sizes: NDArray[np.int64]
    """(classes,) number of items in each class."""
    counts: PairCounts
    """Distances of the pairs of each class, listed or binned."""
    ranks: RankCounts
    """Retrieval results, summed over the queries of each class."""
    summary: PairSummary
    """Counts and distances for these settings, from which the scores are computed."""
    method: Literal["exact", "binned"]
    """Whether the summary is exact or interpolated within bins."""
    item_noise: ItemNoise | None
    """How noisy the rates of classes with few items are; None if fewer than two classes have four items."""
    notes: tuple[str, ...] = ()
    """What the user should know about the input and the method."""
    equalizer: dict[str, Any] | None = None
    """Settings and digest of the equalizer, as JSON values; None for plain similarities."""
    comparison: Comparison = "all_pairs"
    """What is compared: all pairs of items, probes with the templates of a gallery, or the pairs of a list."""
    identification: Identification | None = None
    """For a gallery, the best classes of each probe; then ``names`` are the enrolled classes, ``sizes`` their known
    probes, and a pair is a probe and a template."""
    trials: TrialDetails | None = None
    """Costs and calibration of a list of trials, whose groups are the classes; None for other comparisons."""

    # ----- sizes

    @property
    def class_count(self) -> int:
        """Number of classes."""
        return len(self.sizes)

    @property
    def items(self) -> int:
        """Number of embeddings, or of trials."""
        if self.trials is not None:  # a trial may belong to two groups
            return self.positive_pairs + self.negative_pairs
        return int(self.sizes.sum())

    @property
    def has_classes(self) -> bool:
        """Whether there are classes to compare: False for trials without groups."""
        return self.trials is None or self.class_count > 1

    @property
    def has_curves(self) -> bool:
        """Whether scores over classes are known: False without classes, and if no class of a gallery has two probes."""
        return self.has_classes and len(self.with_curve) > 0

    @property
    def images(self) -> int:
        """Deprecated name of `items`."""
        warnings.warn("Evaluation.images is deprecated: use Evaluation.items", DeprecationWarning, stacklevel=2)
        return self.items

    @property
    def axis(self) -> ScoreAxis:
        """The axis of all distances: L2 distances of unit vectors, or equalized distances."""
        return self.counts.negatives.axis

    @property
    def positive_pairs(self) -> int:
        """Number of positive pairs."""
        return self.counts.positives.pooled_total

    @property
    def negative_pairs(self) -> int:
        """Number of negative pairs, each counted once."""
        return self.counts.negatives.pooled_total

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and a warning if classes have too few items for a meaningful OPIS with these settings."""
        return (*self.notes, *notes_on_noise(self))

    # ----- threshold consistency

    @property
    def calibration_range(self) -> tuple[float, float]:
        """(d_min, d_max), the range of distance thresholds over which consistency is measured."""
        return self.summary.calibration_range

    @cached_property
    def curves(self) -> Curves:
        """Sensitivity, specificity, precision and utility of each class on the grid of the calibration range."""
        positives, negatives = self.counts.positives.totals, self.counts.negatives.totals
        pooled = (self.positive_pairs, self.negative_pairs)
        return make_curves(self.summary, self.settings, positives, negatives, *pooled, self.with_curve)

    @property
    def with_curve(self) -> NDArray[np.int64]:
        """(curves,) the classes that have a utility curve: those with pairs of both kinds, or with two known probes."""
        fewest = 1 if self.identification is None else FEWEST_PROBES
        has_pairs = (self.counts.positives.totals > 0) & (self.counts.negatives.totals > 0)
        return np.flatnonzero(has_pairs & (self.sizes >= fewest))

    @cached_property
    def opis(self) -> float:
        """Operating-Point-Inconsistency-Score: variance of the utility over classes, averaged over the range.

        0 means that one threshold serves all classes equally well. See `consistency.opis` for the formula.
        """
        if not self.has_curves:
            return float("nan")
        return consistency.opis(self.curves.utility, self.curves.mean_utility)

    @cached_property
    def printed_opis(self) -> float:
        """OPIS as the paper's Algorithm 1 prints it, a sum without step width; see `consistency.printed_opis`."""
        if not self.has_curves:
            return float("nan")
        low, high = self.calibration_range
        return consistency.printed_opis(self.curves.utility, high - low, self.curves.mean_utility)

    @cached_property
    def debiased_opis(self) -> float:
        """OPIS of the classes with at least four items, without the noise that comes from classes having few items.

        Prefer it to OPIS, which is the paper's score, if classes are small or differ in size. NaN if it is unknown. See
        `statistics.item_noise` for the method.
        """
        return debiased_opis(self)

    @cached_property
    def opis_noise(self) -> float:
        """The part of the OPIS of classes with at least four items that is noise; NaN if it is unknown."""
        return opis_noise(self)

    @cached_property
    def epsilon_opis(self) -> float:
        """Squared difference in utility between the best and the worst classes; see `consistency.epsilon_opis`.

        Each group is the share ``epsilon`` of all classes.
        """
        if not self.has_curves:
            return float("nan")
        settings, curves = self.settings, self.curves
        return consistency.epsilon_opis(
            curves.first_rate(settings),
            curves.sensitivity,
            curves.class_mean_utility,
            settings.epsilon,
            settings.c,
            settings.epsilon_form,
        )

    @cached_property
    def relative_opis(self) -> float:
        """OPIS divided by the squared mean disutility; defined by this project, see `consistency.relative_opis`."""
        return consistency.relative_opis(self.opis, self.curves.mean_utility) if self.has_curves else float("nan")

    @cached_property
    def mean_utility(self) -> float:
        """Utility averaged over classes and over the calibration range."""
        return float(self.curves.utility.mean()) if len(self.with_curve) else float("nan")

    @cached_property
    def far_threshold_spread(self) -> consistency.ThresholdSpread:
        """How much the thresholds differ that the classes need for ``target_far``; defined by this project."""
        return consistency.threshold_spread(
            self.summary.class_far_distance[self.curves.classes], self.calibration_range
        )

    @cached_property
    def frr_threshold_spread(self) -> consistency.ThresholdSpread:
        """How much the thresholds differ that the classes need for ``target_frr``; defined by this project."""
        return consistency.threshold_spread(
            self.summary.class_frr_distance[self.curves.classes], self.calibration_range
        )

    @cached_property
    def far_within_two(self) -> WithinTwo:
        """How many classes have a FAR between half and twice ``target_far`` at the pooled threshold for it."""
        return far_within_two(self)

    @cached_property
    def frr_within_two(self) -> WithinTwo:
        """How many classes have an FRR between half and twice ``target_frr`` at the pooled threshold for it."""
        return frr_within_two(self)

    # ----- verification

    @property
    def eer(self) -> float:
        """Equal error rate of all pairs: the rate at which the linearly interpolated ROC curve has FAR = FRR."""
        return self.summary.eer

    @property
    def eer_distance(self) -> float:
        """The smallest distance of a pair at which FAR >= FRR."""
        return self.summary.eer_distance

    @property
    def auc(self) -> float:
        """Area under the ROC curve of all pairs: P(positive pair closer than negative pair), counting ties half."""
        return self.summary.auc

    @cached_property
    def target(self) -> OperatingPoint:
        """The error rates at the pooled threshold for ``target_far``, pooled and for each class."""
        return target_point(self.summary, self.counts)

    def at(self, distance: float) -> OperatingPoint:
        """Return the error rates at a distance threshold, pooled and for each class.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> point = evaluation.at(1.0)
        >>> point.far, point.frr
        (0.0, 0.0)
        """
        self.axis.check(distance)
        if distance == self.target.distance:
            return self.target
        return operating_point(distance, self.counts)

    def at_score(self, score: float) -> OperatingPoint:
        """Return the error rates if pairs are accepted by this score, for trials that were given as scores.

        >>> import isomargin as im
        >>> same = np.arange(8) < 3
        >>> evaluation = im.evaluate_pairs([7, 8, 9, 1, 2, 3, 4, 8], same, far=(0.2, 0.5), target_far=0.2)
        >>> point = evaluation.at_score(8)
        >>> round(point.far, 3), round(point.frr, 3)
        (0.2, 0.333)
        """
        if self.axis.has_similarities:
            raise InputError("these pairs have distances and no other scores: call at with a distance")
        return self.at(self.axis.shown(score))

    # ----- identification

    @cached_property
    def fpir_target(self) -> IdentificationPoint | None:
        """The rates of identification at ``target_fpir``; None without unknown probes, or with too few of them."""
        return self._or_none(lambda gallery: gallery.at_fpir(self.settings.target_fpir))

    @cached_property
    def fpir_margin_target(self) -> IdentificationPoint | None:
        """The rates of the margin rule alone at ``target_fpir``; None as for `fpir_target`."""
        return self._or_none(lambda gallery: gallery.at_fpir_by_margin(self.settings.target_fpir))

    def _or_none(self, find: Callable[[Identification], IdentificationPoint]) -> IdentificationPoint | None:
        if self.identification is None or self.identification.unknown * self.settings.target_fpir < 1 - ROUNDING:
            return None
        return find(self.identification)

    # ----- trials

    @cached_property
    def min_dcf(self) -> float:
        """Least normalised detection cost of any threshold; NaN unless trials were measured.

        See `detection.detection_costs` for the formula. The prior and the costs are those of `trials`.
        """
        if self.trials is None:
            return float("nan")
        costs = (self.trials.prior, self.trials.cost_false_accept, self.trials.cost_false_reject)
        return detection.min_dcf(*self._listed(), *costs)

    @cached_property
    def min_cllr(self) -> float:
        """Cllr after the best increasing map from scores to likelihood ratios; NaN unless trials were measured."""
        return float("nan") if self.trials is None else detection.min_cllr(*self._listed())

    @property
    def cllr(self) -> float:
        """Cllr of calibrated scores, cross-fitted by logistic regression; NaN unless trials were measured."""
        return float("nan") if self.trials is None else self.trials.cllr

    def _listed(self) -> tuple[Floats, Floats]:
        positives, negatives = self.counts.positives, self.counts.negatives
        assert isinstance(positives, ListedDistances)
        assert isinstance(negatives, ListedDistances)
        return positives.pooled, negatives.pooled

    # ----- retrieval

    @cached_property
    def recall_at_k(self) -> dict[int, float]:
        """Share of queries with at least one item of their class among their k nearest neighbours, for each k."""
        queries = self.ranks.queries.sum()
        return {k: float(hits / queries) for k, hits in zip(self.ranks.k, self.ranks.hits.sum(axis=0), strict=True)}

    @cached_property
    def r_precision(self) -> float:
        """Share of positives among the R nearest neighbours, averaged over queries; NaN if it was not computed.

        R is the number of the query's positives.
        """
        return self._mean_over_queries(self.ranks.r_precision)

    @cached_property
    def map_at_r(self) -> float:
        """Mean average precision at R; NaN if it was not computed.

        MAP@R is the mean over queries of (1/R) sum_{i<=R} P(i), where R is the number of the query's positives and P(i)
        is the precision at i if the i-th neighbour is a positive, else 0.
        """
        return self._mean_over_queries(self.ranks.average_precision)

    def _mean_over_queries(self, sums: Floats | None) -> float:
        return float("nan") if sums is None else float(sums.sum() / self.ranks.queries.sum())
