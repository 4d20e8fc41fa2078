"""``Evaluation``: the scores of one set of embeddings, and everything needed to examine them further.

Scores are computed from ``PairSummary`` and the counts when they are first accessed. ``scores/registry.py`` lists their
names and meanings. A different calibration range or target rate needs no second pass over the pairs.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure import saving, score_values
from isomargin.measure.class_table import class_table, worst_rows
from isomargin.measure.identification import Identification, IdentificationPoint
from isomargin.measure.operating_point import OperatingPoint, operating_point, target_point
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats, ListedDistances
from isomargin.measure.pairs.inputs import Shifts
from isomargin.measure.pairs.rates import ROUNDING
from isomargin.measure.pairs.summary import PairSummary, summarize
from isomargin.measure.pairs.trial_counts import TrialDetails
from isomargin.measure.scores import consistency, detection
from isomargin.measure.scores.curves import Curves, make_curves
from isomargin.measure.scores.within_two import WithinTwo
from isomargin.measure.settings import COMPARED, UNITS, Comparison, Settings
from isomargin.measure.statistics.class_rates import far_within_two, frr_within_two
from isomargin.measure.statistics.item_noise import ItemNoise, debiased_opis, notes_on_noise, opis_noise

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.statistics.intervals import Interval

CONCERNS_SUMMARY = ("far", "frr", "grid", "target_far", "target_frr")  # and distances, which are compared separately
FEWEST_PROBES = 2  # a class of a gallery with fewer known probes has no utility curve
NEEDS_PAIRS = ("k", "map_at_r", "pairs", "negatives_per_positive", "relative_error", "seed", "exact", "device")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `isomargin.evaluate`: every score of one set of embeddings, and what they were computed from.

    - **Threshold consistency**: `opis`, `debiased_opis`, `epsilon_opis`, `relative_opis`, `far_threshold_spread`,
      `frr_threshold_spread`, `far_within_two`, `frr_within_two`.
    - **Verification**: `eer`, `auc`, and the error rates at the threshold for the target FAR (`target`) or at any other
      threshold (`at`).
    - **Retrieval**: `recall_at_k`, `r_precision`, `map_at_r`.
    - **Classes**: `per_class` (a table with one row per class), `worst_classes`, `curves`.
    - **Trials**, if a list of them was measured: `min_dcf`, `min_cllr`, `cllr`.
    - **Reliability**: `intervals` (confidence intervals), `all_notes` (warnings about the input and the method).

    `with_settings` computes the scores for other settings without another pass over the pairs. `save` and `load` store
    an evaluation as JSON without loss.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> evaluation.class_count, evaluation.items, evaluation.positive_pairs, evaluation.negative_pairs
    (6, 60, 270, 1500)
    >>> 0 <= evaluation.opis <= 0.25
    True
    """

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

    def __repr__(self) -> str:
        recall = "".join(f", recall@{k}={value:.4f}" for k, value in list(self.recall_at_k.items())[:1])
        items, classes = UNITS[self.comparison]
        sizes = f"{self.items:,} {items}, {self.class_count:,} {classes}, {self.method}"
        if self.trials is not None:
            sizes += f", eer={self.eer:.4g}"
        if not self.has_curves:
            return f"<Evaluation: {sizes}>"
        return f"<Evaluation: {sizes}, opis={self.opis:.4g}, epsilon_opis={self.epsilon_opis:.4g}{recall}>"

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

    def at_fpir(self, fpir: float, margin: float | None = None, rank: int = 1) -> IdentificationPoint:
        """Return FNIR and misidentification at the largest threshold whose FPIR does not exceed a rate.

        Only for galleries; see `identification` for the terms.

        Args:
            fpir: the false positive identification rate, above 0 and below 1.
            margin: by how much the similarity of the first class must exceed that of the second, beside the
                threshold; that of the evaluation unless given.
            rank: R, if a known probe counts as identified where its own class is among the first R.
        """
        return self.gallery.at_fpir(fpir, margin, rank)

    @property
    def gallery(self) -> Identification:
        """`identification`; an evaluation that is not of a gallery is refused."""
        if self.identification is None:
            raise InputError(
                f"this evaluation compares {COMPARED[self.comparison]}: FPIR and FNIR need a gallery, see "
                "evaluate_gallery or --gallery"
            )
        return self.identification

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

    # ----- classes

    @cached_property
    def per_class(self) -> "pandas.DataFrame":
        """A table with one row per class, which shows the classes that a single threshold serves badly.

        `class_table.class_table` lists the columns.
        """
        return class_table(self)

    def worst_classes(self, number: int = 10, by: str = "mean_utility") -> "pandas.DataFrame":
        """Return the rows of ``per_class`` for the worst classes, the worst first.

        Args:
            number: number of classes.
            by: the column that says which classes are worst. ``"mean_utility"``, lowest first: the classes that the
                thresholds of the calibration range serve worst. ``"opis_contribution"``, largest first: the classes
                whose utility is farthest from the mean curve, above or below it. ``"far"``, ``"frr"`` or ``"eer"``,
                largest first: the classes with the highest error rates.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> worst = im.evaluate(embeddings, np.arange(60) % 6).worst_classes(2)
        >>> bool((worst["mean_utility"].diff().dropna() >= 0).all()), len(worst)
        (True, 2)
        """
        return worst_rows(self.per_class, number, by)

    # ----- reliability

    def intervals(
        self,
        draws: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
        items: tuple[Any, Any] | None = None,
        shifts: Shifts | None = None,
    ) -> "dict[str, Interval]":
        """Compute a confidence interval for every score, by bootstrap.

        By default classes are resampled: the intervals say how much the scores would vary if other classes of the same
        kind were measured. With ``items``, the items of each class are resampled instead: the intervals then say how
        much the scores would vary with other items of the same classes. See `statistics.intervals` and
        `statistics.item_resampling` for the methods.

        Args:
            draws: number of bootstrap draws, at least 100.
            confidence: confidence level of the intervals.
            seed: seed of the random draws.
            items: (embeddings, labels), the same that were evaluated, to resample items instead of classes.
            shifts: with ``items``, what the equalizer added to their similarities, if they were equalized. Intervals of
                equalized scores are conditional on it: neighbours are not searched again for each draw.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> print(im.evaluate(embeddings, np.arange(60) % 6).intervals()["recall@1"])
        0.8667 (0.8 to 0.9667)
        """
        from isomargin.measure.statistics.intervals import intervals
        from isomargin.measure.statistics.item_resampling import item_intervals

        if items is not None:
            if self.trials is not None:
                raise InputError("a list of trials does not say which items they share: leave out items")
            return item_intervals(self, *items, draws, confidence, seed, shifts)
        return intervals(self, draws, confidence, seed)

    # ----- other settings

    def with_settings(self, **changes: Any) -> "Evaluation":
        """Return an evaluation with other settings, computed from the same counts without a pass over the pairs.

        Accepts the settings of `isomargin.evaluate` except those that need the pairs again (such as ``k``). If the
        pairs are kept in bins, the new scores are interpolated, even if this evaluation is exact.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
        >>> wider = evaluation.with_settings(far=(1e-2, 5e-1), grid=201)
        >>> wider.calibration_range[1] > evaluation.calibration_range[1], wider.curves.utility.shape
        (True, (6, 201))
        """
        if fixed := [name for name in changes if name in NEEDS_PAIRS]:
            raise InputError(
                f"{', '.join(fixed)} cannot be changed after the pairs were counted: call evaluate with the new value"
            )
        kept = {field.name: getattr(self.settings, field.name) for field in fields(Settings)}
        if {"far", "frr"} & set(changes) and "distances" not in changes:
            kept["distances"] = None  # a range requested by rates replaces one given by distances
        settings = Settings.from_values(**{**kept, **changes})
        if all(getattr(settings, name) == kept[name] for name in CONCERNS_SUMMARY) and settings.distances == (
            self.settings.distances
        ):
            return replace(self, settings=settings)
        summary = summarize(self.counts, settings)
        if self.method == "exact" and isinstance(self.counts.negatives, BinnedDistances):
            width = self.counts.negatives.width
            note = f"the new scores are interpolated within bins of width {width:.2g}: evaluate again to be exact"
            return replace(self, settings=settings, summary=summary, method="binned", notes=(*self.notes, note))
        return replace(self, settings=settings, summary=summary)

    # ----- saving

    def scalars(self) -> dict[str, float]:
        """Return every score and size as a flat dictionary of floats, for any logger; NaN for unknown scores.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scalars()["recall@1"], evaluation.scalars()["items"]
        (1.0, 4.0)
        """
        return score_values.scalars(self)

    def scores(self) -> dict[str, Any]:
        """Return the scores as JSON values, as ``--json`` prints them: `scalars`, and scores of more than one number.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scores()["recall_at_k"]["1"], evaluation.scores()["auc"]
        (1.0, 1.0)
        """
        return score_values.as_json(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the evaluation to a JSON file, atomically.

        >>> import isomargin as im, tempfile
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     evaluation.save(f"{folder}/evaluation.json")
        ...     im.Evaluation.load(f"{folder}/evaluation.json").opis == evaluation.opis
        True
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        saving.write(Path(path), saving.as_json_values(parts, self.scores()))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Evaluation":
        """Read an evaluation that ``save`` wrote; a file that was changed since is refused."""
        return Evaluation(**saving.read(Path(path)))
