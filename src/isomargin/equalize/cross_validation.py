"""``EqualizerCV``: chooses the settings of an equalizer by cross-validation over labelled classes.

Every setting is judged on pairs of classes that were held out. One pass finds the neighbours for all settings. The
cross-validation is nested: whether equalizing is worth it is judged on classes that had no part in choosing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import array_digest, digest
from isomargin.core.labels import as_labels
from isomargin.core.progress import progress_bar
from isomargin.equalize.equalizer import (
    Equalizer,
    Floats,
    Method,
    Singles,
    check_distinct,
    row_ids,
    unit_vectors,
)
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import Shifts, sort_by_class
from isomargin.measure.pairs.neighbours import NOTHING, nearest_in_reference, nearest_in_set
from isomargin.measure.pairs.rates import threshold_at_far
from isomargin.measure.pairs.summary import calibration_range
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.scores.curves import first_rate
from isomargin.measure.scores.utility import utility
from isomargin.measure.seed_comparison import compare_seeds
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import Interval, percentile_interval

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.comparison import Difference

Objective = Literal["far", "opis"]

MOST_ROWS = 6000  # rows of a fold that are compared with each other; more cost time and add little
FEWEST_CLASSES = 10
DOUBLINGS = 3.0  # a class whose FAR is off by more than this factor of two counts as this far off
DRAWS = 1000


class Candidate(NamedTuple):
    """The settings of an equalizer; a weight of 0 stands for the raw similarities."""

    neighbours: int
    skip: int
    weight: float


RAW = Candidate(1, 0, 0.0)


class FoldScores(NamedTuple):
    """How well one candidate does on the classes of one fold."""

    by_class: Floats
    """(classes,) the part of the objective that each class has; lower is better."""
    recall: float
    """recall@1."""


@dataclass(frozen=True)
class Fold:
    """The held-out classes of one fold."""

    vectors: Singles
    """(n, d) unit vectors."""
    labels: NDArray[Any]
    """(n,) labels."""
    nearest: Singles
    """(n, m) similarities of each row to its nearest neighbours in the reference, largest first."""

    @cached_property
    def running_sums(self) -> Floats:
        """(n, m + 1) sums of the first similarities of each row."""
        return np.concatenate(
            [np.zeros((len(self.nearest), 1)), np.cumsum(self.nearest, axis=1, dtype=np.float64)], axis=1
        )

    def offsets(self, candidate: Candidate) -> Floats:
        """(n,) r of each row."""
        first, last = candidate.skip, candidate.skip + candidate.neighbours
        return np.asarray((self.running_sums[:, last] - self.running_sums[:, first]) / candidate.neighbours)

    def shifts(self, candidate: Candidate) -> Shifts:
        """Return what a candidate adds to the similarities."""
        offsets = self.offsets(candidate)
        centred = candidate.weight * (offsets.mean() - offsets)
        constant = 2 * candidate.weight * float(offsets.mean())
        bound = 1 + 2 * candidate.weight + abs(constant)
        return Shifts(centred, ScoreAxis.equalized(-bound, bound))


@dataclass(frozen=True)
class FoldEqualizer:
    """A candidate on one fold, as an evaluation takes it."""

    fold: Fold
    candidate: Candidate
    method: Method
    own_class: str
    """``"left_out"`` of the reference, or ``"in_reference"``."""

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> Shifts:
        """Return the shifts of the fold's rows."""
        return self.fold.shifts(self.candidate)

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return what `Equalizer.record` returns, with a digest of this fold's neighbours."""
        settings = {"method": self.method, **self.candidate._asdict()}
        constant = 2 * self.candidate.weight * float(self.fold.offsets(self.candidate).mean())
        named = digest({**settings, "offset": constant, "reference": array_digest(self.fold.nearest)})
        return {**settings, "offset": constant, "own_class": self.own_class, "digest": named}


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


class EqualizerCV(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Chooses neighbours, skip and weight by cross-validation over classes, and fits the `Equalizer` on all rows.

    Classes are divided into folds. A candidate is judged on the pairs of each fold's classes. With ``new_classes``,
    the fold's classes are left out of the reference, as classes are that come later; without, everything is in the
    index. The candidate with the best mean objective is chosen, among those that lose at most ``recall_loss`` points
    of recall@1. For the verdict each fold is judged with the candidate that the other folds choose.

    Args:
        objective: ``"far"``: by how many doublings the classes' FARs are off the target at the one threshold, on
            average. ``"opis"``: OPIS.
        new_classes: whether held-out classes are left out of the reference.
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
    raw_: tuple[Evaluation, ...]
    """The evaluation of each fold's classes with raw similarities."""
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
        method: Method = "local" if others is None else "cohort"
        self.raw_ = tuple(self._evaluate(fold, RAW, method) for fold in folds)
        self.equalized_ = tuple(self._evaluate(fold, best, method) for fold, best in zip(folds, choices, strict=True))
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
        groups = fold_of_class[class_of] if self.new_classes else None
        length = max(self.skip) + max(self.neighbours)
        with progress_bar("finding neighbours") as progress:
            if reference is None:
                nearest = nearest_in_set(vectors, length, groups, self.threads, progress)
            else:
                nearest = nearest_in_reference(vectors, reference, length, None, self.threads, progress)
        known = int((nearest > NOTHING).sum(axis=1).min())  # fewer rows are outside a large fold
        for fold in range(self.folds):
            classes = generator.permutation(np.flatnonzero((fold_of_class == fold) & (sizes > 1)))
            fitting = classes[: max(2, int(np.searchsorted(np.cumsum(sizes[classes]), MOST_ROWS, side="right")))]
            rows = np.flatnonzero(np.isin(class_of, fitting))
            yield Fold(vectors[rows], labels[rows], nearest[rows, :known])

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
                found[candidate].append(self._score(fold, candidate))
                if progress:
                    progress(number / len(folds) / len(candidates))
        return found

    def _score(self, fold: Fold, candidate: Candidate) -> FoldScores:
        """Count the fold's pairs with a candidate, and compute the objective."""
        data = sort_by_class(fold.vectors, fold.labels, shifts=fold.shifts(candidate) if candidate.weight else None)
        counts, ranks = count_pairs(data, k=(1,), map_at_r=False, threads=self.threads)
        settings, positives, negatives = self._settings, counts.positives, counts.negatives
        recall = float(ranks.hits.sum() / ranks.queries.sum())
        if self.objective == "far":
            threshold = np.array([threshold_at_far(counts, self.target_far, "reached", "target_far")])
            far = negatives.within(threshold)[:, 0] / negatives.totals
            off = np.abs(np.log2(np.maximum(far, self.target_far / 2**DOUBLINGS) / self.target_far))
            return FoldScores(np.minimum(off, DOUBLINGS), recall)
        grid = np.linspace(*calibration_range(counts, settings), settings.grid)
        accepted, wrong = positives.within(grid), negatives.within(grid)
        first = first_rate(settings.utility, accepted, wrong, negatives.totals[:, None])
        curves = utility(first, accepted / positives.totals[:, None], settings.c)
        return FoldScores(np.square(curves - curves.mean(axis=0)).mean(axis=1), recall)

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

    def _evaluate(self, fold: Fold, candidate: Candidate, method: Method) -> Evaluation:
        """Evaluate a candidate on a fold's classes."""
        own_class = "outside" if method == "cohort" else "left_out" if self.new_classes else "in_reference"
        equalizer = FoldEqualizer(fold, candidate, method, own_class) if candidate.weight else None
        settings = self._settings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # notes about the input, once per fold
            return evaluate(
                fold.vectors,
                fold.labels,
                far=settings.far,
                target_far=settings.target_far,
                equalizer=equalizer,
                threads=self.threads,
                progress=None,
            )
