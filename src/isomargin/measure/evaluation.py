"""``Evaluation``: the scores of one set of embeddings, and everything needed to examine them further.

The scores are in ``evaluation_scores.py``. A different calibration range or target rate needs no second pass over the
pairs.
"""

import os
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomargin.core.errors import InputError
from isomargin.measure import saving, score_values
from isomargin.measure.class_table import class_table, worst_rows
from isomargin.measure.evaluation_scores import EvaluationScores
from isomargin.measure.identification import Identification, IdentificationPoint
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.inputs import Shifts
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.settings import COMPARED, UNITS, Settings

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.statistics.intervals import Interval

CONCERNS_SUMMARY = ("far", "frr", "grid", "target_far", "target_frr")  # and distances, which are compared separately
NEEDS_PAIRS = ("k", "map_at_r", "pairs", "negatives_per_positive", "relative_error", "seed", "exact", "device")


@dataclass(frozen=True, eq=False)
class Evaluation(EvaluationScores):
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

    >>> import isomargin as im, numpy as np
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> evaluation.class_count, evaluation.items, evaluation.positive_pairs, evaluation.negative_pairs
    (6, 60, 270, 1500)
    >>> 0 <= evaluation.opis <= 0.25
    True
    """

    def __repr__(self) -> str:
        recall = "".join(f", recall@{k}={value:.4f}" for k, value in list(self.recall_at_k.items())[:1])
        items, classes = UNITS[self.comparison]
        sizes = f"{self.items:,} {items}, {self.class_count:,} {classes}, {self.method}"
        if self.trials is not None:
            sizes += f", eer={self.eer:.4g}"
        if not self.has_curves:
            return f"<Evaluation: {sizes}>"
        return f"<Evaluation: {sizes}, opis={self.opis:.4g}, epsilon_opis={self.epsilon_opis:.4g}{recall}>"

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

        >>> import isomargin as im, numpy as np
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

        >>> import isomargin as im, numpy as np
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

        >>> import isomargin as im, numpy as np
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

        >>> import isomargin as im, numpy as np
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scalars()["recall@1"], evaluation.scalars()["items"]
        (1.0, 4.0)
        """
        return score_values.scalars(self)

    def scores(self) -> dict[str, Any]:
        """Return the scores as JSON values, as ``--json`` prints them: `scalars`, and scores of more than one number.

        >>> import isomargin as im, numpy as np
        >>> evaluation = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)
        >>> evaluation.scores()["recall_at_k"]["1"], evaluation.scores()["auc"]
        (1.0, 1.0)
        """
        return score_values.as_json(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the evaluation to a JSON file, atomically.

        >>> import isomargin as im, numpy as np, tempfile
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
