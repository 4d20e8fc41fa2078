"""``Evaluation``: the scores of one set of embeddings, with all that is needed to look closer or ask again.

Scores are computed when first asked for, from ``Answers`` and counts; changing a setting that concerns the pairs
already counted gives a new Evaluation at once.
"""

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, check_file
from isomargin.core.json_values import null_for_nan
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import BinnedDistances, Floats
from isomargin.measure.pairs.summary import Answers, answer
from isomargin.measure.scores import consistency
from isomargin.measure.scores.curves import Curves, make_curves, share
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import ImageNoise, debiased_opis, notes_on_noise, opis_noise

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.statistics.intervals import Interval

WORST_IS_LEAST = {"mean_utility": True, "opis_contribution": False, "far": False, "frr": False, "eer": False}
CONCERNS_ANSWERS = ("far", "frr", "grid", "target_far", "target_frr")  # and distances
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
    >>> evaluation.class_count, evaluation.images, evaluation.positive_pairs, evaluation.negative_pairs
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
    answers: Answers
    """What the pairs say for these settings."""
    method: Literal["exact", "binned"]
    """Whether the answers are exact or interpolated within bins."""
    image_noise: ImageNoise | None
    """How far the classes' rates are noise of their few images; None where too few classes have four images."""
    notes: tuple[str, ...] = ()
    """What the user should know about the input and the method."""

    def __repr__(self) -> str:
        recall = "".join(f", recall@{k}={value:.4f}" for k, value in list(self.recall_at_k.items())[:1])
        sizes = f"{self.images:,} images, {self.class_count:,} classes, {self.method}"
        return f"<Evaluation: {sizes}, opis={self.opis:.4g}, epsilon_opis={self.epsilon_opis:.4g}{recall}>"

    # ----- sizes

    @property
    def class_count(self) -> int:
        """Number of classes."""
        return len(self.sizes)

    @property
    def images(self) -> int:
        """Number of embeddings."""
        return int(self.sizes.sum())

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
        return self.answers.calibration_range

    @cached_property
    def curves(self) -> Curves:
        """Sensitivity, specificity, precision and utility of each class on the grid of the calibration range."""
        positives, negatives = self.counts.positives.totals, self.counts.negatives.totals
        return make_curves(self.answers, self.settings, positives, negatives, self.negative_pairs)

    @cached_property
    def opis(self) -> float:
        """Operating-Point-Inconsistency-Score: variance over classes of the utility curves; see `consistency.opis`."""
        return consistency.opis(self.curves.utility, self.curves.mean_utility)

    @cached_property
    def debiased_opis(self) -> float:
        """OPIS of the classes of at least four images, without what their images' noise adds; `image_noise` has more.

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
            self.answers.class_far_distance[self.curves.classes], self.calibration_range
        )

    @cached_property
    def frr_threshold_spread(self) -> consistency.ThresholdSpread:
        """Spread over classes of the threshold each would need for ``target_frr``; this project's own."""
        return consistency.threshold_spread(
            self.answers.class_frr_distance[self.curves.classes], self.calibration_range
        )

    # ----- verification

    @property
    def eer(self) -> float:
        """Equal error rate of all pairs: where the ROC curve, straight between its points, has FAR = FRR."""
        return self.answers.eer

    @property
    def eer_distance(self) -> float:
        """The smallest distance of a pair at which FAR >= FRR."""
        return self.answers.eer_distance

    @property
    def auc(self) -> float:
        """Area under the ROC curve of all pairs: P(a positive pair is nearer than a negative one), ties half."""
        return self.answers.auc

    @cached_property
    def target(self) -> OperatingPoint:
        """What the pooled threshold for ``target_far`` does, pooled and to each class."""
        answers, positives, negatives = self.answers, self.counts.positives, self.counts.negatives
        far = answers.target_negatives_within.sum() / negatives.totals.sum()
        frr = 1 - answers.target_positives_within.sum() / positives.pooled_total
        class_far = share_or_nan(answers.target_negatives_within, negatives.totals)
        return OperatingPoint(
            answers.target_distance, float(far), float(frr), class_far, self._frr(answers.target_positives_within)
        )

    def at(self, distance: float) -> OperatingPoint:
        """Say what any threshold does, pooled and to each class.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> point = evaluation.at(1.0)
        >>> point.far, point.frr
        (0.0, 0.0)
        """
        if not (isinstance(distance, Real) and 0 <= distance <= 2):
            raise InputError(f"distance is {distance!r}: a distance of unit vectors is needed, from 0 to 2")
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
        """One row a class: which classes break the threshold.

        Columns: ``class``, ``images``, ``positive_pairs``, ``negative_pairs``; ``far`` and ``frr`` at the pooled
        threshold for the target FAR; ``far_threshold`` and ``frr_threshold``, which the class would need itself for
        the target FAR and the target FRR; ``mean_utility`` over the calibration range; ``opis_contribution``, which
        sums to OPIS; ``eer``, ``auc``; ``recall@k`` for each k, ``r_precision``, ``map_at_r``. NaN where a class has
        no positive pair.
        """
        import pandas

        def of_curves(values: Floats) -> Floats:
            whole = np.full(self.class_count, np.nan)
            whole[self.curves.classes] = values
            return whole

        queries = np.where(self.ranks.queries > 0, self.ranks.queries, np.nan)
        columns: dict[str, Any] = {
            "class": self.names,
            "images": self.sizes,
            "positive_pairs": self.counts.positives.totals,
            "negative_pairs": self.counts.negatives.totals,
            "far": self.target.class_far,
            "frr": self.target.class_frr,
            "far_threshold": self.answers.class_far_distance,
            "frr_threshold": self.answers.class_frr_distance,
            "mean_utility": of_curves(self.curves.class_mean_utility),
            "opis_contribution": of_curves(self.curves.squared_deviations / len(self.curves.classes)),
            "eer": self.answers.class_eer,
            "auc": self.answers.class_auc,
        }
        for k, hits in zip(self.ranks.k, self.ranks.hits.T, strict=True):
            columns[f"recall@{k}"] = hits / queries
        if self.ranks.r_precision is not None and self.ranks.average_precision is not None:
            columns["r_precision"] = self.ranks.r_precision / queries
            columns["map_at_r"] = self.ranks.average_precision / queries
        return pandas.DataFrame(columns)

    def worst_classes(self, number: int = 10, by: str = "mean_utility") -> "pandas.DataFrame":
        """Give the worst rows of ``per_class``, the worst first.

        Args:
            number: how many.
            by: ``"mean_utility"``, least first: the classes that the thresholds of the calibration range serve worst.
                ``"opis_contribution"``, largest first: those farthest from the mean curve, on either side of it.
                Or ``"far"``, ``"frr"`` or ``"eer"``, largest first.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> worst = im.evaluate(embeddings, np.arange(60) % 6).worst_classes(2)
        >>> bool((worst["mean_utility"].diff().dropna() >= 0).all()), len(worst)
        (True, 2)
        """
        check_worst_by(by)
        if not (isinstance(number, int) and number >= 0):
            raise InputError(f"number is {number!r}: a whole number of classes is needed")
        table = self.per_class.dropna(subset=[by])
        return table.sort_values(by, ascending=WORST_IS_LEAST[by], kind="stable").head(number)

    # ----- how far to trust it

    def intervals(
        self,
        draws: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
        images: tuple[Any, Any] | None = None,
    ) -> "dict[str, Interval]":
        """Give every score within the bounds that other classes of the same kind would keep it; `uncertainty` says how.

        With ``images=(embeddings, labels)``, those that were evaluated, the bounds are those of other images of the
        same classes; `image_resampling` says how.

        >>> import isomargin as im
        >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
        >>> print(im.evaluate(embeddings, np.arange(60) % 6).intervals()["recall@1"])
        0.8667 (0.8 to 0.9667)
        """
        from isomargin.measure.statistics.intervals import intervals
        from isomargin.measure.statistics.item_resampling import image_intervals

        if images is not None:
            return image_intervals(self, *images, draws, confidence, seed)
        return intervals(self, draws, confidence, seed)

    # ----- asking again

    def with_settings(self, **changes: Any) -> "Evaluation":
        """Answer for another calibration range, grid, epsilon, utility or target, from the same counts, at once.

        Takes the settings of ``isomargin.evaluate`` except those that need the pairs again. Pairs kept in bins are
        interpolated, also where this Evaluation's own answers are exact.

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
        if all(getattr(settings, name) == kept[name] for name in CONCERNS_ANSWERS) and settings.distances == (
            self.settings.distances
        ):
            return replace(self, settings=settings)
        answers = answer(self.counts, settings)
        if self.method == "exact" and isinstance(self.counts.negatives, BinnedDistances):
            width = self.counts.negatives.reach / self.counts.negatives.counts.shape[1]
            note = f"interpolated within bins of {width:.2g} from pairs counted before: evaluate again to be exact"
            return replace(self, settings=settings, answers=answers, method="binned", notes=(*self.notes, note))
        return replace(self, settings=settings, answers=answers)

    # ----- saving

    def scores(self) -> dict[str, Any]:
        """Give the scores as plain numbers, for machines: what ``--json`` prints.

        >>> import isomargin as im
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scores()["recall_at_k"]["1"], evaluation.scores()["auc"]
        (1.0, 1.0)
        """
        low, high = self.calibration_range
        values = {
            "classes": self.class_count,
            "images": self.images,
            "positive_pairs": self.positive_pairs,
            "negative_pairs": self.negative_pairs,
            "opis": self.opis,
            "debiased_opis": self.debiased_opis,
            "epsilon_opis": self.epsilon_opis,
            "relative_opis": self.relative_opis,
            "mean_utility": self.mean_utility,
            "calibration_range": [low, high],
            "far_threshold_spread": spread_values(self.far_threshold_spread),
            "frr_threshold_spread": spread_values(self.frr_threshold_spread),
            "target": {"distance": self.target.distance, "far": self.target.far, "frr": self.target.frr},
            "eer": self.eer,
            "eer_distance": self.eer_distance,
            "auc": self.auc,
            "recall_at_k": {str(k): value for k, value in self.recall_at_k.items()},
            "r_precision": self.r_precision,
            "map_at_r": self.map_at_r,
        }
        return {name: null_for_nan(value) for name, value in values.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, whole or not at all.

        >>> import isomargin as im, tempfile
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     evaluation.save(f"{folder}/evaluation.json")
        ...     im.Evaluation.load(f"{folder}/evaluation.json").opis == evaluation.opis
        True
        """
        from isomargin.measure.saving import as_json_values

        text = json.dumps(as_json_values(self), allow_nan=False, indent=1)
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Evaluation":
        """Read an evaluation that ``save`` wrote."""
        from isomargin.measure.saving import from_json_values

        source = Path(path)
        check_file(source)
        try:
            return from_json_values(json.loads(source.read_text(encoding="utf-8")))
        except InputError as error:
            raise InputError(f"{source}: {error}") from error
        except Exception as error:  # whatever damage does to the readers
            raise InputError(f"{source} cannot be read as an evaluation: it is damaged or cut short") from error


def share_or_nan(part: Floats, whole: NDArray[np.int64]) -> Floats:
    """Divide, NaN where there is nothing to divide by."""
    return np.where(whole > 0, share(part, whole), np.nan)


def check_worst_by(by: str) -> None:
    """Refuse a column that says nothing about how bad a class is."""
    if by not in WORST_IS_LEAST:
        raise InputError(f"worst by {by!r} is not possible: choose from {', '.join(WORST_IS_LEAST)}")


def spread_values(spread: consistency.ThresholdSpread) -> dict[str, Any]:
    """Give a spread as JSON values."""
    return {
        name: {str(q): v for q, v in value.items()} if isinstance(value, dict) else value
        for name, value in asdict(spread).items()
    }
