"""The methods that are compared, each a function from a split to an evaluation of its test classes.

A method may look at the embeddings of the test classes, never at their labels, except for the oracle. Whatever needs
labels is fitted on the classes of the first half.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.equalize.cross_validation import EqualizerCV
from isomargin.equalize.rows import mean_of_ranks, unit_vectors
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import Shifts
from isomargin.measure.pairs.neighbours import nearest_in_reference, nearest_in_set
from lab.equalizing.score_matrix import evaluate_scores

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]

LONGEST = 260  # neighbours that any method looks at
SHRINKAGE = 1e-3  # of the covariance, as a share of its mean variance, before it is inverted
EXPANDED = 10  # neighbours of query expansion
ALPHA = 3.0  # exponent of their weights
ORACLE_STEPS = 5


class Setting(NamedTuple):
    """The settings of a local equalizer."""

    neighbours: int
    skip: int
    weight: float = 0.5


@dataclass(frozen=True, eq=False)
class Split:
    """Unit vectors and labels of both halves of the classes."""

    known: Singles
    known_labels: NDArray[Any]
    test: Singles
    labels: NDArray[Any]
    seed: int
    threads: int = 1

    @cached_property
    def nearest(self) -> Singles:
        """(n, m) similarities of each test row to its nearest others."""
        return nearest_in_set(self.test, LONGEST, threads=self.threads)

    @cached_property
    def nearest_without_class(self) -> Singles:
        """(n, m) the same, with a row's own class left out."""
        _, classes = np.unique(self.labels, return_inverse=True)
        return nearest_in_set(self.test, LONGEST, classes, threads=self.threads)

    @cached_property
    def cohort(self) -> Singles:
        """(n, m) similarities of each test row to its nearest rows of the first half."""
        return nearest_in_reference(self.test, self.known, LONGEST, threads=self.threads)

    @cached_property
    def chosen_for_far(self) -> Setting:
        """The setting that cross-validation on the first half chooses for new classes."""
        return self.chosen(EqualizerCV("far", new_classes=True, threads=self.threads))

    @cached_property
    def chosen_for_opis(self) -> Setting:
        """The setting that cross-validation on the first half chooses for OPIS with everything in the index."""
        return self.chosen(EqualizerCV("opis", new_classes=False, threads=self.threads))

    def chosen(self, search: EqualizerCV) -> Setting:
        """Return the setting that a search on the first half chooses."""
        search.fit(self.known, self.known_labels)
        return Setting(search.neighbours_, search.skip_, search.weight_)

    def embedded(self, known: Singles, test: Singles) -> Split:
        """Return the split with other embeddings."""
        return Split(unit_vectors(known), self.known_labels, unit_vectors(test), self.labels, self.seed, self.threads)


@dataclass(frozen=True)
class GivenShifts:
    """Shifts of the rows, as an evaluation takes them."""

    values: Floats

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> Shifts:
        """Return the shifts on an axis that holds them."""
        bound = 1 + 2 * float(np.abs(self.values).max()) + 0.01
        return Shifts(self.values, ScoreAxis.equalized(-bound, bound))

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return nothing: the tables say what it is."""
        return {}


def plain(split: Split) -> Evaluation:
    """Evaluate cosines."""
    return evaluate(split.test, split.labels, threads=split.threads, progress=None)


def shifted(split: Split, offsets: Floats, weight: float = 0.5) -> Evaluation:
    """Evaluate cosines minus the weighted offsets of both rows."""
    values = weight * (offsets.mean() - offsets)
    return evaluate(split.test, split.labels, equalizer=GivenShifts(values), threads=split.threads, progress=None)


def local(split: Split, neighbours: int, skip: int, weight: float = 0.5) -> Evaluation:
    """Evaluate an equalizer whose reference is the test set itself."""
    return shifted(split, mean_of_ranks(split.nearest, skip, neighbours), weight)


def local_with(setting: Callable[[Split], Setting], split: Split) -> Evaluation:
    """Evaluate a local equalizer with the setting that a function of the split returns."""
    return local(split, *setting(split))


def cohort(split: Split, neighbours: int, skip: int = 0) -> Evaluation:
    """Evaluate an equalizer whose reference is the first half of the classes."""
    return shifted(split, mean_of_ranks(split.cohort, skip, neighbours))


def permuted(split: Split, neighbours: int, skip: int) -> Evaluation:
    """Evaluate the offsets of `local`, permuted among the rows: the control."""
    offsets = mean_of_ranks(split.nearest, skip, neighbours)
    return shifted(split, np.random.default_rng(split.seed).permutation(offsets))


def oracle(split: Split) -> Evaluation:
    """Evaluate offsets that give each test class the same threshold at FAR 1%, which needs the test labels."""
    _, classes = np.unique(split.labels, return_inverse=True)
    by_class = np.zeros(classes.max() + 1)
    for _ in range(ORACLE_STEPS):
        values = GivenShifts(-0.5 * by_class[classes] + 0.5 * by_class[classes].mean())
        found = evaluate(split.test, split.labels, equalizer=values, threads=split.threads, progress=None)
        thresholds = found.summary.class_far_distance
        by_class += 1 - thresholds * np.abs(thresholds) / 2 - (1 - thresholds * np.abs(thresholds) / 2).mean()
    return found


def centred(split: Split) -> Split:
    """Subtract the mean of the first half."""
    mean = split.known.mean(axis=0)
    return split.embedded(split.known - mean, split.test - mean)


def whitened(split: Split) -> Split:
    """Subtract the mean of the first half and divide by its covariance's root."""
    mean = split.known.mean(axis=0, dtype=np.float64)
    covariance = np.cov((split.known - mean).T)
    values, directions = np.linalg.eigh(covariance)
    scale = 1 / np.sqrt(values + SHRINKAGE * values.mean())
    matrix = directions * scale
    return split.embedded(
        ((split.known - mean) @ matrix).astype(np.float32), ((split.test - mean) @ matrix).astype(np.float32)
    )


def expanded(split: Split) -> Split:
    """Replace each test row by the weighted mean of itself and its nearest rows: alpha query expansion, both sides."""
    similarity = split.test @ split.test.T
    np.fill_diagonal(similarity, 1.0)
    nearest = np.argpartition(-similarity, EXPANDED, axis=1)[:, : EXPANDED + 1]
    weights = np.maximum(np.take_along_axis(similarity, nearest, axis=1), 0) ** ALPHA
    means = np.einsum("nk,nkd->nd", weights, split.test[nearest])
    return split.embedded(split.known, means.astype(np.float32))


def adaptive_norm(split: Split, lists: Singles, neighbours: int) -> Evaluation:
    """Evaluate AS-norm: z-scores with respect to each row's nearest rows of a reference, averaged over both rows."""
    kept = lists[:, :neighbours].astype(np.float64)
    mean, deviation = kept.mean(axis=1), np.maximum(kept.std(axis=1), 1e-6)
    similarity = split.test @ split.test.T
    scores = (similarity - mean[:, None]) / deviation[:, None] + (similarity - mean) / deviation
    middle = float(np.median(deviation))
    return evaluate_scores(split.test, split.labels, (0.5 * middle * scores).astype(np.float32), split.threads)


def adaptive_norm_by_choice(split: Split) -> Evaluation:
    """Evaluate AS-norm with the number of neighbours that is best on the first half, by the classes' FARs."""

    def off(neighbours: int) -> float:
        there = Split(split.known, split.known_labels, split.known, split.known_labels, split.seed, split.threads)
        far = adaptive_norm(there, there.nearest, neighbours).target.class_far
        return float(np.minimum(np.abs(np.log2(np.maximum(far, 1e-2 / 8) / 1e-2)), 3).mean())

    return adaptive_norm(split, split.nearest, min((30, 100, 200), key=off))


SETTINGS: dict[str, Callable[[Split], Setting]] = {
    "local, 1 to 30": lambda split: Setting(30, 0),
    "local, 31 to 130": lambda split: Setting(100, 30),
    "local, chosen for FAR": lambda split: split.chosen_for_far,
    "local, chosen for OPIS": lambda split: split.chosen_for_opis,
}
"""The settings of the local equalizers, by name."""
METHODS: dict[str, Callable[[Split], Evaluation]] = {
    "raw": plain,
    "centred": lambda split: plain(centred(split)),
    "whitened": lambda split: plain(whitened(split)),
    **{name: partial(local_with, setting) for name, setting in SETTINGS.items()},
    "whitened + local, 31 to 130": lambda split: local(whitened(split), 100, 30),
    "cohort, 1 to 100": lambda split: cohort(split, 100),
    "AS-norm, chosen": adaptive_norm_by_choice,
    "query expansion": lambda split: plain(expanded(split)),
    "permuted, 1 to 30": lambda split: permuted(split, 30, 0),
    "permuted, 31 to 130": lambda split: permuted(split, 100, 30),
    "oracle": oracle,
}
"""By name; the first is what the others are compared with."""
