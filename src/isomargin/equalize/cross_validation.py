"""``EqualizerCV``: chooses the settings of an equalizer by cross-validation over labelled classes.

Every setting is judged on pairs of classes that were held out. The neighbours for all settings are found once. The
cross-validation is nested: whether equalizing is worth it is judged on classes that had no part in choosing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.labels import labels_of_rows
from isomargin.core.progress import progress_bar
from isomargin.equalize.equalizer import MANY_COPIES, SAME, Equalizer, Method, check_weight
from isomargin.equalize.folds import RAW, Candidate, Fold, FoldScores, Objective
from isomargin.equalize.rows import Floats, Singles, check_distinct, row_ids, unit_vectors
from isomargin.equalize.verdict import NewClassRates, Verdict
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.neighbours import nearest_in_reference, nearest_in_set
from isomargin.measure.scores.within_two import FEWEST_ERRORS, has_enough_pairs
from isomargin.measure.seed_comparison import compare_seeds
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import percentile_interval

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.comparison import Difference

MOST_ROWS = 6000  # rows of a fold that are compared with each other; more cost time and add little
FEWEST_ITEMS = 10  # of a class of a large fold; only if that is still too many, some classes are left out
FEWEST_CLASSES = 10
DRAWS = 1000
TARGET_FAR = 0.01
LARGEST_TARGET = 0.2  # a larger FAR says nothing about thresholds that anyone would use


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
        target_far: the false accept rate of the one threshold; by default 1%, or more where classes have too few pairs.
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
    target_far_: float
    """The false accept rate of the one threshold."""
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
        target_far: float | None = None,
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
        vectors = unit_vectors(embeddings)
        names, known_ids = labels_of_rows(labels, len(vectors)), row_ids(ids, len(vectors))
        check_distinct(known_ids)
        others = None if reference is None else unit_vectors(reference)
        if others is not None and others.shape[1] != vectors.shape[1]:
            raise InputError(
                f"reference has {others.shape[1]} dimensions, embeddings has {vectors.shape[1]}: embeddings of the "
                "same model are needed"
            )
        nearest = self._find_neighbours(vectors, others)
        folds = list(self._make_folds(vectors, names, nearest, others is not None))
        self.target_far_ = self._target(folds)
        candidates = self._candidates(nearest.shape[1])
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
        if others is None:
            self.equalizer_ = equalizer.with_neighbours(vectors, nearest, known_ids)
        else:
            self.equalizer_ = equalizer.fit(reference)
        return self

    @property
    def scores_(self) -> pandas.DataFrame:
        """One row per candidate: its settings, the mean objective and the mean recall@1 over the folds."""
        import pandas

        check_is_fitted(self)
        rows = [
            {**candidate._asdict(), "objective": self._objective(candidate), "recall@1": self._recall(candidate)}
            for candidate in self._candidates_
        ]
        return pandas.DataFrame(rows).sort_values("objective", kind="stable", ignore_index=True)

    def differences(self, draws: int = DRAWS, confidence: float = 0.95) -> tuple[Difference, ...]:
        """Return how every score of the held-out classes changes, with paired confidence intervals over classes."""
        check_is_fitted(self)
        return compare_seeds(self.raw_, self.equalized_, draws, confidence, self.seed, folds=True)

    # ----- folds

    def _check_settings(self) -> None:
        checks.one_of(self.objective, "objective", get_args(Objective))
        checks.truth(self.new_classes, "new_classes")
        checks.at_least_zero(self.recall_loss, "recall_loss")
        if self.target_far is not None:
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
            check_weight(value)

    def _find_neighbours(self, vectors: Singles, reference: Singles | None) -> Singles:
        """(n, m) similarities of each row to its nearest neighbours: as many as any setting needs."""
        length = max(self.skip) + max(self.neighbours)
        with progress_bar("finding neighbours") as progress:
            if reference is None:
                return nearest_in_set(vectors, length, None, self.threads, progress)
            nearest = nearest_in_reference(vectors, reference, length, None, self.threads, progress)
        copies = int((nearest[:, 0] >= SAME).sum())
        if copies > MANY_COPIES * len(vectors):
            raise InputError(
                f"{copies:,} of {len(vectors):,} rows have an exact copy in the reference, probably themselves: give "
                "other data as the reference, or leave it out to search neighbours among the embeddings themselves"
            )
        return nearest

    def _make_folds(self, vectors: Singles, labels: NDArray[Any], nearest: Singles, is_cohort: bool) -> Iterator[Fold]:
        """Divide the classes into folds, and yield each fold's rows."""
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
        outside = None
        if self.new_classes and not is_cohort:
            with progress_bar("finding neighbours of other classes") as progress:
                outside = nearest_in_set(vectors, nearest.shape[1], class_of, self.threads, progress)
        generator = np.random.default_rng(self.seed)
        order = generator.permutation(usable)
        for fold in range(self.folds):
            rows = rows_to_compare(class_of, order[fold :: self.folds], generator)
            data = sort_by_class(vectors[rows], labels[rows])
            yield Fold(data, nearest[rows], None if outside is None else outside[rows])

    def _target(self, folds: list[Fold]) -> float:
        """Return the target FAR: as given, if there are pairs enough to tell it, or else the usual or a larger one."""
        pairs = np.concatenate([fold.negative_pairs for fold in folds])
        fewest = min(int(fold.negative_pairs.sum()) // 2 for fold in folds)
        least = 1 / fewest  # at which one pair of a fold is accepted
        if self.objective == "far":
            least = max(least, FEWEST_ERRORS / float(np.median(pairs)))
        given = TARGET_FAR if self.target_far is None else self.target_far
        if given >= least * (1 - 1e-9):
            return given
        if self.target_far is None and least <= LARGEST_TARGET:
            return rounded_up(least)
        raise InputError(
            f"target_far is {given:g}, but there are too few negative pairs in a fold to tell such a FAR: use "
            f"target_far={rounded_up(least):g} or more (--target-far), more items, or Equalizer(skip=0), which is not "
            "judged (--unlabelled --skip 0)"
        )

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
        return Settings(target_far=self.target_far_, far=(self.target_far_, min(10 * self.target_far_, 0.9)))

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
        recall = [self._scores[choice][fold].recall for fold, choice in enumerate(choices)]
        change = 100 * float(np.mean(recall) - self._recall(RAW))
        return Verdict(
            self.objective, float(raw.mean()), float(equalized.mean()), interval, len(gain), change, self.recall_loss
        )

    def _new_class_rates(self, folds: list[Fold], choices: list[Candidate]) -> NewClassRates | None:
        """Compare the FARs of classes that are not in the index, each fold with its choice."""
        if folds[0].nearest_outside is None:
            return None
        raw: list[Floats] = []
        equalized: list[Floats] = []
        told: list[NDArray[np.bool_]] = []
        for fold, choice in zip(folds, choices, strict=True):
            for candidate, rates in ((RAW, raw), (choice, equalized)):
                found = fold.class_rates(candidate, fold.count(fold.shifts(candidate), self.threads), self._settings)
                rates.append(found.inside if found.outside is None else found.outside)
            told.append(found.judged & has_enough_pairs(fold.negative_pairs, self.target_far_))
        kept = np.concatenate(told)
        if not kept.any():
            return None
        return NewClassRates(
            self.target_far_, np.concatenate(raw)[kept], np.concatenate(equalized)[kept], int((~kept).sum())
        )


def rounded_up(value: float) -> float:
    """Return a number rounded up to two digits.

    >>> rounded_up(0.3701), rounded_up(0.02)
    (0.38, 0.02)
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.3g}")


def rows_to_compare(
    class_of: NDArray[np.int64], classes: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return the rows of these classes, sorted by class; if there are too many, as many of each class as there is room.

    >>> class_of = np.repeat([0, 1, 2], [3, 8000, 2500])
    >>> np.bincount(class_of[rows_to_compare(class_of, np.arange(3), np.random.default_rng(0))]).tolist()
    [3, 3497, 2500]
    """
    members = [np.flatnonzero(class_of == number) for number in classes]
    sizes = np.array([len(rows) for rows in members])
    if np.minimum(sizes, FEWEST_ITEMS).sum() > MOST_ROWS:
        kept = max(2, int(np.searchsorted(np.cumsum(np.minimum(sizes, FEWEST_ITEMS)), MOST_ROWS, side="right")))
        members, sizes = members[:kept], sizes[:kept]
    most = FEWEST_ITEMS
    while most < sizes.max() and np.minimum(sizes, most + 1).sum() <= MOST_ROWS:
        most += 1
    chosen = [rows if len(rows) <= most else generator.choice(rows, most, replace=False) for rows in members]
    rows = np.sort(np.concatenate(chosen))
    return rows[np.argsort(class_of[rows], kind="stable")]
