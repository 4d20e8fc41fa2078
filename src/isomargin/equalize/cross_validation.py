"""``EqualizerCV``: chooses the settings of an equalizer by cross-validation over labelled classes.

Every setting is judged on pairs of classes that were held out. The neighbours for all settings are found once. The
cross-validation is nested: whether equalizing is worth it is judged on classes that had no part in choosing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.labels import as_labels
from isomargin.core.progress import progress_bar
from isomargin.core.text import percent
from isomargin.equalize.equalizer import (
    Equalizer,
    Floats,
    Method,
    Singles,
    check_distinct,
    row_ids,
    unit_vectors,
)
from isomargin.equalize.folds import RAW, Candidate, Fold, FoldScores, Objective
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.neighbours import NOTHING, nearest_in_reference, nearest_in_set
from isomargin.measure.scores.within_two import is_within_two
from isomargin.measure.seed_comparison import compare_seeds
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import Interval, percentile_interval

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.comparison import Difference

MOST_ROWS = 6000  # rows of a fold that are compared with each other; more cost time and add little
FEWEST_CLASSES = 10
DRAWS = 1000


@dataclass(frozen=True)
class Verdict:
    """Whether equalizing is worth it, judged on classes that had no part in choosing the settings."""

    objective: Objective
    """What was to be improved."""
    raw: float
    """The objective of the raw similarities."""
    equalized: float
    """The objective of the equalized similarities."""
    gain: Interval
    """How much lower the objective is, with its confidence interval over classes."""
    classes: int
    """Number of classes."""

    @property
    def worth_it(self) -> bool:
        """Whether the objective improves significantly."""
        return self.gain.low > 0

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.objective == "far":
            before, after = (f"{2**value:.2f}" for value in (self.raw, self.equalized))
            found = f"class FARs are off the target by a factor of {after} on average, {before} without equalizing"
        else:
            found = f"OPIS is {self.equalized:.3g}, {self.raw:.3g} without equalizing"
        level = f"{1 - self.gain.confidence:.0%} level, {self.classes:,} held-out classes"
        if self.worth_it:
            return f"Equalizing is worth it: {found} (significant at the {level})."
        return f"Keep the raw similarities: {found}, which is no significant improvement ({level})."


@dataclass(frozen=True)
class NewClassRates:
    """The FARs of held-out classes that are not in the index, at the threshold for the target FAR of those that are."""

    target: float
    """The target FAR."""
    raw: Floats
    """(classes,) FARs of the raw similarities."""
    equalized: Floats
    """(classes,) FARs of the equalized similarities."""

    def summary(self) -> dict[str, dict[str, float]]:
        """Return mean FARs and shares of classes within a factor of two of the target, as JSON values."""
        return {
            name: {"mean_far": float(far.mean()), "within_two": float(is_within_two(far, self.target).mean())}
            for name, far in (("raw", self.raw), ("equalized", self.equalized))
        }

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        raw, equalized = self.summary().values()
        return (
            f"Left out of the index one at a time, {percent(equalized['within_two'], 2)} of classes are within a "
            f"factor of two of FAR {percent(self.target)} at the same threshold ({percent(raw['within_two'], 2)} "
            f"without equalizing), and their mean FAR is {percent(equalized['mean_far'])} ({percent(raw['mean_far'])})."
        )


class EqualizerCV(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Chooses neighbours, skip and weight by cross-validation over classes, and fits the `Equalizer` on all rows.

    Classes are divided into folds. A candidate is judged on the pairs of each fold's classes, with neighbours searched
    in the whole index. With ``new_classes`` every class counts twice: as it is in the index, and as if it alone had not
    joined yet, both at the one threshold of the index. The candidate with the best mean objective is chosen, among
    those that lose at most ``recall_loss`` points of recall@1. For the verdict each fold is judged with the candidate
    that the other folds choose.

    Args:
        objective: ``"far"``: by how many doublings the classes' FARs are off the target at the one threshold, on
            average. ``"opis"``: OPIS.
        new_classes: whether classes are also judged as if they were not in the index yet. With a reference of other
            data none is in it, and this changes nothing.
        recall_loss: how many points of recall@1 may be lost.
        neighbours: numbers of neighbours to try.
        skip: numbers of skipped neighbours to try.
        weight: weights to try.
        target_far: the false accept rate of the one threshold.
        folds: number of folds, at least 3.
        seed: seed of the random folds.
        threads: number of CPU threads; by default one per core.

    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(1200) % 60
    >>> crowding = np.linspace(0.4, 2.0, 6)[:, None]  # six regions, some with their classes close together
    >>> regions = 2 * generator.normal(size=(6, 16))
    >>> centres = (regions + crowding * generator.normal(size=(10, 6, 16))).reshape(60, 16)
    >>> embeddings = centres[labels] + generator.normal(size=(1200, 16))
    >>> search = EqualizerCV(neighbours=(30, 100), skip=(0, 30), weight=(0.5,)).fit(embeddings, labels)
    >>> search.verdict_.worth_it, search.verdict_.equalized < search.verdict_.raw
    (True, True)
    """

    neighbours_: int
    """The chosen number of neighbours."""
    skip_: int
    """The chosen number of skipped neighbours."""
    weight_: float
    """The chosen weight."""
    equalizer_: Equalizer
    """The equalizer with the chosen settings, fitted on all rows."""
    verdict_: Verdict
    """Whether it is worth it."""
    new_class_rates_: NewClassRates | None
    """FARs of held-out classes that are not in the index; None without ``new_classes`` or with a reference."""
    raw_: tuple[Evaluation, ...]
    """The evaluation of each fold's classes with raw similarities, all in the index."""
    equalized_: tuple[Evaluation, ...]
    """The same, equalized with the settings that the other folds choose."""

    def __init__(
        self,
        objective: Objective = "far",
        new_classes: bool = True,
        recall_loss: float = 0.3,
        neighbours: Sequence[int] = (10, 30, 100),
        skip: Sequence[int] = (0, 10, 30, 100),
        weight: Sequence[float] = (0.35, 0.5, 0.65),
        target_far: float = 1e-2,
        folds: int = 3,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.objective = objective
        self.new_classes = new_classes
        self.recall_loss = recall_loss
        self.neighbours = neighbours
        self.skip = skip
        self.weight = weight
        self.target_far = target_far
        self.folds = folds
        self.seed = seed
        self.threads = threads

    def fit(self, embeddings: Any, labels: Any, ids: Any = None, reference: Any = None) -> Self:
        """Choose the settings on labelled embeddings, and fit the equalizer on all of them.

        Args:
            embeddings: (n, d) embeddings.
            labels: n labels.
            ids: n names of the rows, for the equalizer.
            reference: (m, d) other embeddings, without labels. If given, neighbours are searched among them, and the
                equalizer is fitted on them with the method ``"cohort"``.
        """
        self._check_settings()
        vectors, names = unit_vectors(embeddings), as_labels(labels)
        if len(names) != len(vectors):
            raise InputError(
                f"labels has {len(names):,} entries, embeddings has {len(vectors):,} rows: one label per row is needed"
            )
        check_distinct(row_ids(ids, len(vectors)))
        others = None if reference is None else unit_vectors(reference)
        if others is not None and others.shape[1] != vectors.shape[1]:
            raise InputError(
                f"reference has {others.shape[1]} dimensions, embeddings has {vectors.shape[1]}: embeddings of the "
                "same model are needed"
            )
        folds = list(self._make_folds(vectors, names, others))
        candidates = self._candidates(min(fold.nearest.shape[1] for fold in folds))
        self._candidates_, self._scores = candidates, self._judge(folds, candidates)
        self.neighbours_, self.skip_, self.weight_ = self._best(range(len(folds)))
        choices = [self._best([other for other in range(len(folds)) if other != fold]) for fold in range(len(folds))]
        self.verdict_ = self._verdict(choices)
        self.new_class_rates_ = self._new_class_rates(folds, choices)
        method: Method = "local" if others is None else "cohort"
        settings, threads = self._settings, self.threads
        self.raw_ = tuple(fold.evaluate(RAW, method, settings, threads) for fold in folds)
        self.equalized_ = tuple(
            fold.evaluate(best, method, settings, threads) for fold, best in zip(folds, choices, strict=True)
        )
        equalizer = Equalizer(self.neighbours_, self.skip_, self.weight_, method, self.threads)
        self.equalizer_ = equalizer.fit(embeddings, ids=ids) if others is None else equalizer.fit(reference)
        return self

    @property
    def scores_(self) -> pandas.DataFrame:
        """One row per candidate: its settings, the mean objective and the mean recall@1 over the folds."""
        import pandas

        rows = [
            {**candidate._asdict(), "objective": self._objective(candidate), "recall@1": self._recall(candidate)}
            for candidate in self._candidates_
        ]
        return pandas.DataFrame(rows).sort_values("objective", kind="stable", ignore_index=True)

    def differences(self, draws: int = DRAWS, confidence: float = 0.95) -> tuple[Difference, ...]:
        """Return how every score of the held-out classes changes, with paired confidence intervals over classes."""
        return compare_seeds(self.raw_, self.equalized_, draws, confidence, self.seed, folds=True)

    # ----- folds

    def _check_settings(self) -> None:
        checks.one_of(self.objective, "objective", get_args(Objective))
        checks.at_least_zero(self.recall_loss, "recall_loss")
        checks.share(self.target_far, "target_far")
        checks.whole(self.folds, "folds", 3)
        checks.whole(self.seed, "seed", 0)
        if self.threads is not None:
            checks.whole(self.threads, "threads")
        for name in ("neighbours", "skip", "weight"):
            values = getattr(self, name)
            if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or len(values) == 0:
                raise InputError(f"{name} is {values!r}: a list of the values to try is needed")
        for name, least in (("neighbours", 1), ("skip", 0)):
            for value in getattr(self, name):
                checks.whole(value, name, least)
        for value in self.weight:
            if not 0 < checks.number(value, "weight") <= 1:
                raise InputError(f"weight is {value}: numbers above 0 and at most 1 are needed")

    def _make_folds(self, vectors: Singles, labels: NDArray[Any], reference: Singles | None) -> Iterator[Fold]:
        """Divide the classes into folds, find all neighbours in one pass, and yield each fold's rows."""
        _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        usable = np.flatnonzero(sizes > 1)
        if len(usable) < FEWEST_CLASSES:
            raise InputError(
                f"{len(usable)} classes have two or more items, too few for cross-validation: at least "
                f"{FEWEST_CLASSES} are needed, or use Equalizer with its default settings (--unlabelled)"
            )
        if len(usable) < 2 * self.folds:
            raise InputError(
                f"folds is {self.folds}, but only {len(usable)} classes have two or more items: at most "
                f"{len(usable) // 2} folds have two of them each"
            )
        generator = np.random.default_rng(self.seed)
        fold_of_class = np.empty(len(sizes), np.int64)
        for members in (usable, np.flatnonzero(sizes <= 1)):
            fold_of_class[generator.permutation(members)] = np.arange(len(members)) % self.folds
        length = max(self.skip) + max(self.neighbours)
        outside = None
        with progress_bar("finding neighbours") as progress:
            if reference is not None:
                nearest = nearest_in_reference(vectors, reference, length, None, self.threads, progress)
            else:
                nearest = nearest_in_set(vectors, length, None, self.threads, progress)
        if reference is None and self.new_classes:
            with progress_bar("finding neighbours of other classes") as progress:
                outside = nearest_in_set(vectors, length, class_of, self.threads, progress)
            known = int((outside > NOTHING).sum(axis=1).min())  # fewer rows are outside a large class
            nearest, outside = nearest[:, :known], outside[:, :known]
        for fold in range(self.folds):
            classes = generator.permutation(np.flatnonzero((fold_of_class == fold) & (sizes > 1)))
            fitting = classes[: max(2, int(np.searchsorted(np.cumsum(sizes[classes]), MOST_ROWS, side="right")))]
            rows = np.flatnonzero(np.isin(class_of, fitting))
            rows = rows[np.argsort(class_of[rows], kind="stable")]
            data = sort_by_class(vectors[rows], labels[rows])
            yield Fold(data, nearest[rows], None if outside is None else outside[rows])

    def _candidates(self, length: int) -> list[Candidate]:
        """List the settings to try, the raw similarities first; those that need more neighbours are left out."""
        tried = [
            Candidate(int(neighbours), int(skip), float(weight))
            for skip, neighbours, weight in product(self.skip, self.neighbours, self.weight)
            if skip + neighbours <= length
        ]
        if not tried:
            raise InputError(
                f"the reference has {length:,} neighbours for a row, fewer than any setting needs: use smaller values "
                "of neighbours and skip, or more embeddings"
            )
        return [RAW, *tried]

    # ----- judging

    @property
    def _settings(self) -> Settings:
        return Settings(target_far=self.target_far, far=(self.target_far, min(10 * self.target_far, 0.9)))

    def _judge(self, folds: list[Fold], candidates: list[Candidate]) -> dict[Candidate, list[FoldScores]]:
        """Return every candidate's scores on each fold."""
        found: dict[Candidate, list[FoldScores]] = {candidate: [] for candidate in candidates}
        with progress_bar("cross-validating") as progress:
            for number, (fold, candidate) in enumerate(product(folds, candidates), start=1):
                found[candidate].append(fold.score(candidate, self.objective, self._settings, self.threads))
                if progress:
                    progress(number / len(folds) / len(candidates))
        return found

    def _objective(self, candidate: Candidate, folds: Sequence[int] | None = None) -> float:
        """Return the mean objective of a candidate over all classes of these folds."""
        chosen = range(len(self._scores[candidate])) if folds is None else folds
        return float(np.concatenate([self._scores[candidate][fold].by_class for fold in chosen]).mean())

    def _recall(self, candidate: Candidate, folds: Sequence[int] | None = None) -> float:
        """Return the mean recall@1 of a candidate over these folds."""
        chosen = range(len(self._scores[candidate])) if folds is None else folds
        return float(np.mean([self._scores[candidate][fold].recall for fold in chosen]))

    def _best(self, folds: Sequence[int]) -> Candidate:
        """Return the candidate with the best objective on these folds that does not lose too much recall."""
        least = self._recall(RAW, folds) - self.recall_loss / 100
        kept = [candidate for candidate in self._candidates_[1:] if self._recall(candidate, folds) >= least]
        # Where every candidate loses too much, the one that loses least is judged, and the verdict says what it is.
        if not kept:
            return max(self._candidates_[1:], key=lambda candidate: self._recall(candidate, folds))
        return min(kept, key=lambda candidate: self._objective(candidate, folds))

    def _verdict(self, choices: list[Candidate]) -> Verdict:
        """Compare each fold's choice with the raw similarities, class by class."""
        raw = np.concatenate([scores.by_class for scores in self._scores[RAW]])
        equalized = np.concatenate([self._scores[choice][fold].by_class for fold, choice in enumerate(choices)])
        gain = raw - equalized
        drawn = np.random.default_rng([self.seed, 1]).integers(len(gain), size=(DRAWS, len(gain)))
        interval = percentile_interval(float(gain.mean()), gain[drawn].mean(axis=1), 0.95)
        return Verdict(self.objective, float(raw.mean()), float(equalized.mean()), interval, len(gain))

    def _new_class_rates(self, folds: list[Fold], choices: list[Candidate]) -> NewClassRates | None:
        """Compare the FARs of classes that are not in the index, each fold with its choice."""
        if folds[0].nearest_outside is None:
            return None

        def rates(fold: Fold, candidate: Candidate) -> Floats:
            found = fold.count(fold.shifts(candidate), self.threads)
            return fold.class_rates(candidate, found, self._settings)[-1]  # raw similarities know no index

        raw, equalized = (
            np.concatenate([rates(fold, candidate) for fold, candidate in zip(folds, chosen, strict=True)])
            for chosen in ([RAW] * len(folds), choices)
        )
        return NewClassRates(self.target_far, raw, equalized)
