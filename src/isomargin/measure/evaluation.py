"""``Evaluation``: the scores of one set of embeddings, with all that is needed to look closer or ask again.

Scores are computed when first asked for, from ``PairSummary`` and counts. ``scores/registry.py`` says what each is
called and means. Another calibration range or target needs no second pass over the pairs.
"""

import os
import warnings
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import null_for_nan
from isomargin.measure import saving
from isomargin.measure.class_table import class_table, worst_rows
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.pairs.summary import PairSummary, summarize
from isomargin.measure.scores import consistency
from isomargin.measure.scores.curves import Curves, make_curves, share
from isomargin.measure.scores.registry import scores_of
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import ItemNoise, debiased_opis, notes_on_noise, opis_noise

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.statistics.intervals import Interval

CONCERNS_SUMMARY = ("far", "frr", "grid", "target_far", "target_frr")  # and distances
NEEDS_PAIRS = ("k", "map_at_r", "pairs", "negatives_per_positive", "seed", "exact", "device")


@dataclass(frozen=True)
class OperatingPoint:
    """What one threshold does, pooled and to each class."""

    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    far: float
    """Pooled false accept rate."""
    frr: float
    """Pooled false reject rate."""
    class_far: Floats
    """(classes,) each class's false accept rate; NaN for a class without sampled negatives."""
    class_frr: Floats
    """(classes,) each class's false reject rate; NaN for a class of one image."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of one set of embeddings. Made by ``isomargin.evaluate``; saved and loaded as JSON without loss.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> evaluation.class_count, evaluation.items, evaluation.positive_pairs, evaluation.negative_pairs
    (6, 60, 270, 1500)
    >>> 0 <= evaluation.opis <= 0.25
    True
    """

    settings: Settings
    """Every choice that the scores depend on."""
    names: NDArray[Any]
    """(classes,) the labels, sorted."""
    sizes: NDArray[np.int64]
    """(classes,) images of each class."""
    counts: PairCounts
    """Distances of the pairs, listed or binned."""
    ranks: RankCounts
    """Retrieval results summed by class."""
    summary: PairSummary
    """What the pairs say for these settings."""
    method: Literal["exact", "binned"]
    """Whether the summary is exact or interpolated within bins."""
    item_noise: ItemNoise | None
    """How far the classes' rates are noise of their few images; None where too few classes have four images."""
    notes: tuple[str, ...] = ()
    """What the user should know about the input and the method."""

    def __repr__(self) -> str:
        recall = "".join(f", recall@{k}={value:.4f}" for k, value in list(self.recall_at_k.items())[:1])
        sizes = f"{self.items:,} items, {self.class_count:,} classes, {self.method}"
        return f"<Evaluation: {sizes}, opis={self.opis:.4g}, epsilon_opis={self.epsilon_opis:.4g}{recall}>"

    # ----- sizes

    @property
    def class_count(self) -> int:
        """Number of classes."""
        return len(self.sizes)

    @property
    def items(self) -> int:
        """Number of embeddings."""
        return int(self.sizes.sum())

    @property
    def images(self) -> int:
        """The old name of `items`, deprecated: rows need not be images."""
        warnings.warn("Evaluation.images is deprecated: use Evaluation.items", DeprecationWarning, stacklevel=2)
        return self.items

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
        """The notes, and whether classes have too few images for these settings' OPIS to mean much."""
        return (*self.notes, *notes_on_noise(self))

    # ----- threshold consistency

    @property
    def calibration_range(self) -> tuple[float, float]:
        """(d_min, d_max), the distances between which inconsistency is measured."""
        return self.summary.calibration_range

    @cached_property
    def curves(self) -> Curves:
        """Sensitivity, specificity, precision and utility of each class on the grid of the calibration range."""
        positives, negatives = self.counts.positives.totals, self.counts.negatives.totals
        return make_curves(self.summary, self.settings, positives, negatives, self.negative_pairs)

    @cached_property
    def opis(self) -> float:
        """Operating-Point-Inconsistency-Score: variance over classes of the utility curves; see `consistency.opis`."""
        return consistency.opis(self.curves.utility, self.curves.mean_utility)

    @cached_property
    def debiased_opis(self) -> float:
        """OPIS of the classes of at least four images, without what their images' noise adds; `item_noise` has more.

        The one to quote where classes are small or their sizes differ; OPIS is the paper's. NaN where unknown.
        """
        return debiased_opis(self)

    @cached_property
    def opis_noise(self) -> float:
        """The part of OPIS, of the classes of at least four images, that is their images' noise. NaN where unknown."""
        return opis_noise(self)

    @cached_property
    def epsilon_opis(self) -> float:
        """Squared utility gap between the best and worst epsilon share; see `consistency.epsilon_opis`."""
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
        """OPIS over the squared mean disutility, this project's own; see `consistency.relative_opis`."""
        return consistency.relative_opis(self.opis, self.curves.mean_utility)

    @cached_property
    def mean_utility(self) -> float:
        """Mean over classes and grid of the utility."""
        return float(self.curves.utility.mean())

    @cached_property
    def far_threshold_spread(self) -> consistency.ThresholdSpread:
        """Spread over classes of the threshold each would need for ``target_far``; this project's own."""
        return consistency.threshold_spread(
            self.summary.class_far_distance[self.curves.classes], self.calibration_range
        )

    @cached_property
    def frr_threshold_spread(self) -> consistency.ThresholdSpread:
        """Spread over classes of the threshold each would need for ``target_frr``; this project's own."""
        return consistency.threshold_spread(
            self.summary.class_frr_distance[self.curves.classes], self.calibration_range
        )

    # ----- verification

    @property
    def eer(self) -> float:
        """Equal error rate of all pairs: where the ROC curve, straight between its points, has FAR = FRR."""
        return self.summary.eer

    @property
    def eer_distance(self) -> float:
        """The smallest distance of a pair at which FAR >= FRR."""
        return self.summary.eer_distance

    @property
    def auc(self) -> float:
        """Area under the ROC curve of all pairs: P(a positive pair is nearer than a negative one), ties half."""
        return self.summary.auc

    @cached_property
    def target(self) -> OperatingPoint:
        """What the pooled threshold for ``target_far`` does, pooled and to each class."""
        summary, positives, negatives = self.summary, self.counts.positives, self.counts.negatives
        far = summary.target_negatives_within.sum() / negatives.totals.sum()
        frr = 1 - summary.target_positives_within.sum() / positives.pooled_total
        class_far = share_or_nan(summary.target_negatives_within, negatives.totals)
        return OperatingPoint(
            summary.target_distance, float(far), float(frr), class_far, self._frr(summary.target_positives_within)
        )

    def at(self, distance: float) -> OperatingPoint:
        """Say what any threshold does, pooled and to each class.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> point = evaluation.at(1.0)
        >>> point.far, point.frr
        (0.0, 0.0)
        """
        checks.distance(distance, "distance")
        if distance == self.target.distance:
            return self.target
        here = np.array([distance], np.float64)
        positives, negatives = self.counts.positives, self.counts.negatives
        return OperatingPoint(
            distance=float(distance),
            far=float(negatives.pooled_within(here)[0] / negatives.pooled_total),
            frr=float(1 - positives.pooled_within(here)[0] / positives.pooled_total),
            class_far=share_or_nan(negatives.within(here)[:, 0], negatives.totals),
            class_frr=self._frr(positives.within(here)[:, 0]),
        )

    def _frr(self, accepted: Floats) -> Floats:
        return 1 - share_or_nan(accepted, self.counts.positives.totals)

    # ----- retrieval

    @cached_property
    def recall_at_k(self) -> dict[int, float]:
        """Share of queries with one of their class among their k nearest others, for each k."""
        queries = self.ranks.queries.sum()
        return {k: float(hits / queries) for k, hits in zip(self.ranks.k, self.ranks.hits.sum(axis=0), strict=True)}

    @cached_property
    def r_precision(self) -> float:
        """Mean over queries of the share of positives among the R nearest, R being their number; NaN if left out."""
        return self._mean_over_queries(self.ranks.r_precision)

    @cached_property
    def map_at_r(self) -> float:
        """Mean average precision at R; NaN if left out.

        MAP@R averages over queries (1/R) sum_{i<=R} P(i), P(i) being the precision at i if the i-th is a positive.
        """
        return self._mean_over_queries(self.ranks.average_precision)

    def _mean_over_queries(self, sums: Floats | None) -> float:
        return float("nan") if sums is None else float(sums.sum() / self.ranks.queries.sum())

    # ----- classes

    @cached_property
    def per_class(self) -> "pandas.DataFrame":
        """One row per class: which classes break the threshold; see `class_table` for the columns."""
        return class_table(self)

    def worst_classes(self, number: int = 10, by: str = "mean_utility") -> "pandas.DataFrame":
        """Give the worst rows of ``per_class``, the worst first.

        Args:
            number: how many.
            by: ``"mean_utility"``, lowest first: the classes that the thresholds of the calibration range serve worst.
                ``"opis_contribution"``, largest first: those farthest from the mean curve, on either side of it.
                Or ``"far"``, ``"frr"`` or ``"eer"``, largest first.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> worst = im.evaluate(embeddings, np.arange(60) % 6).worst_classes(2)
        >>> bool((worst["mean_utility"].diff().dropna() >= 0).all()), len(worst)
        (True, 2)
        """
        return worst_rows(self.per_class, number, by)

    # ----- how far to trust it

    def intervals(
        self,
        draws: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
        items: tuple[Any, Any] | None = None,
    ) -> "dict[str, Interval]":
        """Give a confidence interval for every score, had other classes of the same kind been measured.

        By bootstrap over classes: see `statistics.intervals`. With ``items=(embeddings, labels)``, those that were
        evaluated, the intervals are for other items of the same classes: see `statistics.item_resampling`.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> print(im.evaluate(embeddings, np.arange(60) % 6).intervals()["recall@1"])
        0.8667 (0.8 to 0.9667)
        """
        from isomargin.measure.statistics.intervals import intervals
        from isomargin.measure.statistics.item_resampling import item_intervals

        if items is not None:
            return item_intervals(self, *items, draws, confidence, seed)
        return intervals(self, draws, confidence, seed)

    # ----- asking again

    def with_settings(self, **changes: Any) -> "Evaluation":
        """Answer for another calibration range, grid, epsilon, utility or target, from the same counts, at once.

        Takes the settings of ``isomargin.evaluate`` except those that need the pairs again. Pairs kept in bins are
        interpolated, also where this Evaluation's own summary is exact.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
        >>> wider = evaluation.with_settings(far=(1e-2, 5e-1), grid=201)
        >>> wider.calibration_range[1] > evaluation.calibration_range[1], wider.curves.utility.shape
        (True, (6, 201))
        """
        if again := [name for name in changes if name in NEEDS_PAIRS]:
            raise InputError(
                f"{', '.join(again)} cannot be changed afterwards, because it needs every pair again: call evaluate"
            )
        kept = {each.name: getattr(self.settings, each.name) for each in fields(Settings)}
        if {"far", "frr"} & set(changes) and "distances" not in changes:
            kept["distances"] = None  # a range asked for by rates takes the place of one given by distances
        settings = Settings.from_values(**{**kept, **changes})
        if all(getattr(settings, name) == kept[name] for name in CONCERNS_SUMMARY) and settings.distances == (
            self.settings.distances
        ):
            return replace(self, settings=settings)
        summary = summarize(self.counts, settings)
        if self.method == "exact" and isinstance(self.counts.negatives, BinnedDistances):
            width = self.counts.negatives.reach / self.counts.negatives.counts.shape[1]
            note = f"interpolated within bins of {width:.2g} from pairs counted before: evaluate again to be exact"
            return replace(self, settings=settings, summary=summary, method="binned", notes=(*self.notes, note))
        return replace(self, settings=settings, summary=summary)

    # ----- saving

    def scalars(self) -> dict[str, float]:
        """Give every score and size as a flat dictionary of plain floats, for any logger; NaN where unknown.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scalars()["recall@1"], evaluation.scalars()["items"]
        (1.0, 4.0)
        """
        low, high = self.calibration_range
        sizes = {
            "classes": self.class_count,
            "items": self.items,
            "positive_pairs": self.positive_pairs,
            "negative_pairs": self.negative_pairs,
        }
        distances = {"d_min": low, "d_max": high, "target_distance": self.target.distance}
        scores = {name: score.read(self) for name, score in scores_of(self).items()}
        numbers = {**sizes, **scores, **distances, "eer_distance": self.eer_distance}
        return {name: float(value) for name, value in numbers.items()}

    def scores(self) -> dict[str, Any]:
        """Give the scores as JSON values, what ``--json`` prints: `scalars`, and what is not one number.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scores()["recall_at_k"]["1"], evaluation.scores()["auc"]
        (1.0, 1.0)
        """
        whole = ("classes", "items", "positive_pairs", "negative_pairs")
        plain = {name: int(value) if name in whole else null_for_nan(value) for name, value in self.scalars().items()}
        return {
            **plain,
            "calibration_range": list(self.calibration_range),
            "target": {"distance": self.target.distance, "far": self.target.far, "frr": self.target.frr},
            "recall_at_k": {str(k): value for k, value in self.recall_at_k.items()},
            "class_thresholds": {
                "far": spread_values(self.far_threshold_spread),
                "frr": spread_values(self.frr_threshold_spread),
            },
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, atomically.

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
        """Read an evaluation that ``save`` wrote, and refuse one that was changed since."""
        return Evaluation(**saving.read(Path(path)))


def share_or_nan(part: Floats, whole: NDArray[np.int64]) -> Floats:
    """Divide, NaN where there is nothing to divide by."""
    return np.where(whole > 0, share(part, whole), np.nan)


def spread_values(spread: consistency.ThresholdSpread) -> dict[str, Any]:
    """Give a spread as JSON values."""
    return {
        name: {str(q): v for q, v in value.items()} if isinstance(value, dict) else value
        for name, value in asdict(spread).items()
    }
