"""The held-out classes of one fold, and how well a setting of the equalizer does on them.

Neighbours are searched in the whole index, as they will be in use. A class that is to come is judged by leaving it, and
it alone, out of the index: its items then have the offsets that they will have before the class joins.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core.json_values import array_digest, digest
from isomargin.equalize.equalizer import Method
from isomargin.equalize.rows import Floats, Singles, mean_of_ranks
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import ClassSortedVectors, Shifts
from isomargin.measure.pairs.neighbours import NOTHING
from isomargin.measure.pairs.outside import accepted_outside
from isomargin.measure.pairs.rates import threshold_at_far
from isomargin.measure.pairs.summary import calibration_range
from isomargin.measure.pairs.tiles import PassResult, count_pairs
from isomargin.measure.scores.curves import first_rate
from isomargin.measure.scores.utility import utility
from isomargin.measure.scores.within_two import has_enough_pairs
from isomargin.measure.settings import Settings

Objective = Literal["far", "opis"]

DOUBLINGS = 3.0  # a class whose FAR is off by more than this factor of two counts as this far off


class Candidate(NamedTuple):
    """The settings of an equalizer; a weight of 0 stands for the raw similarities."""

    neighbours: int
    skip: int
    weight: float

    def offsets(self, nearest: Singles) -> Floats:
        """(n,) r of each row from the (n, m) similarities to its nearest neighbours, largest first."""
        return mean_of_ranks(nearest, self.skip, self.neighbours)


RAW = Candidate(1, 0, 0.0)


class FoldScores(NamedTuple):
    """How well one candidate does on the classes of one fold."""

    by_class: Floats
    """(classes,) the part of the objective that each class has; lower is better."""
    recall: float
    """recall@1."""


class Outside(NamedTuple):
    """The rows of classes as if they were not in the index, each class alone."""

    shifts: Floats
    """(n,) what is added to the similarities of each row."""
    judged: NDArray[np.bool_]
    """(classes,) whether enough rows of other classes are in the index for all neighbours."""


class ClassRates(NamedTuple):
    """The FARs of classes at the one threshold of the index."""

    inside: Floats
    """(classes,) while the class is in the index."""
    outside: Floats | None
    """(classes,) while it alone is not, or as inside if that cannot be judged; None if it is not judged."""
    judged: NDArray[np.bool_]
    """(classes,) whether it can be judged."""


@dataclass(frozen=True)
class Fold:
    """The held-out classes of one fold."""

    data: ClassSortedVectors
    """Their rows, sorted by class."""
    nearest: Singles
    """(n, m) similarities of each row to its nearest neighbours in the reference, largest first."""
    nearest_outside: Singles | None
    """(n, m) the same with the row's own class left out of the reference; None if classes are not judged so."""

    @cached_property
    def cosines(self) -> Singles:
        """(n, n) the cosines of all rows."""
        return np.asarray(self.data.vectors @ self.data.vectors.T)

    def shifts(self, candidate: Candidate) -> Shifts | None:
        """Return what a candidate adds to the similarities of rows in the index; None for the raw similarities."""
        if not candidate.weight:
            return None
        offsets = candidate.offsets(self.nearest)
        bound = 1 + 2 * candidate.weight + 2 * candidate.weight * abs(float(offsets.mean()))
        return Shifts(candidate.weight * (offsets.mean() - offsets), ScoreAxis.equalized(-bound, bound))

    def outside(self, candidate: Candidate) -> Outside | None:
        """Return the shifts of rows whose class is not in the index; None if classes are not judged so."""
        if not candidate.weight or self.nearest_outside is None:
            return None
        too_few = self.nearest_outside[:, candidate.skip + candidate.neighbours - 1] == NOTHING
        offsets = np.where(too_few, 0.0, candidate.offsets(self.nearest_outside))
        judged = np.bincount(self.data.class_of, weights=too_few) == 0
        return Outside(candidate.weight * (candidate.offsets(self.nearest).mean() - offsets), judged)

    def accepted_outside(self, candidate: Candidate, outside: Outside, distances: Floats) -> Floats:
        """(classes, distances) negative pairs of each class within even distances while it is not in the index."""
        shifts = self.shifts(candidate)
        assert shifts is not None
        accepted = accepted_outside(self.cosines, self.data.class_of, outside.shifts, shifts.values, distances)
        return accepted.astype(np.float64)

    @property
    def negative_pairs(self) -> NDArray[np.int64]:
        """(classes,) number of negative pairs of each class within the fold."""
        sizes = self.data.sizes
        return np.asarray(sizes * (sizes.sum() - sizes))

    def count(self, shifts: Shifts | None, threads: int | None) -> PassResult:
        """Count the fold's pairs."""
        data = self.data if shifts is None else replace(self.data, shifts=shifts.values, axis=shifts.axis)
        return count_pairs(data, k=(1,), map_at_r=False, threads=threads)

    def score(self, candidate: Candidate, objective: Objective, settings: Settings, threads: int | None) -> FoldScores:
        """Return the objective of each class and recall@1 with a candidate."""
        found = self.count(self.shifts(candidate), threads)
        recall = float(found.ranks.hits.sum() / found.ranks.queries.sum())
        judge = self.doublings if objective == "far" else self.deviations
        return FoldScores(judge(candidate, found, settings, threads), recall)

    def doublings(self, candidate: Candidate, found: PassResult, settings: Settings, threads: int | None) -> Floats:
        """(classes,) by how many doublings each class's FAR is off the target, in the index and outside of it.

        Classes with too few pairs to tell are left out.
        """
        rates, target = self.class_rates(candidate, found, settings), settings.target_far
        cases = [rates.inside, rates.inside if rates.outside is None else rates.outside]
        off = [np.abs(np.log2(np.maximum(far, target / 2**DOUBLINGS) / target)) for far in cases]
        return np.asarray(np.minimum(off, DOUBLINGS).mean(axis=0)[has_enough_pairs(self.negative_pairs, target)])

    def class_rates(self, candidate: Candidate, found: PassResult, settings: Settings) -> ClassRates:
        """Return the FARs of all classes at the one threshold of the index."""
        threshold = np.array([threshold_at_far(found.counts, settings.target_far, "reached", "target_far")])
        inside = found.counts.negatives.within(threshold)[:, 0] / self.negative_pairs
        outside = self.outside(candidate)
        if outside is None:
            return ClassRates(inside, None, np.ones(len(inside), bool))
        accepted = self.accepted_outside(candidate, outside, threshold)[:, 0]
        return ClassRates(inside, np.where(outside.judged, accepted / self.negative_pairs, inside), outside.judged)

    def deviations(self, candidate: Candidate, found: PassResult, settings: Settings, threads: int | None) -> Floats:
        """(classes,) mean squared deviation of each class's utility from the mean, in the index and outside of it."""
        positives, negatives = found.counts.positives, found.counts.negatives
        grid = np.linspace(*calibration_range(found.counts, settings), settings.grid)

        def curves(accepted: Floats, wrong: Floats) -> Floats:
            first = first_rate(settings.utility, accepted, wrong, negatives.totals[:, None])
            return utility(first, accepted / positives.totals[:, None], settings.c)

        cases = [curves(positives.within(grid), negatives.within(grid))]
        outside, shifts = self.outside(candidate), self.shifts(candidate)
        if outside is not None and shifts is not None:
            together = self.count(replace(shifts, values=outside.shifts), threads).counts.positives
            apart = curves(together.within(grid), self.accepted_outside(candidate, outside, grid))
            cases.append(np.where(outside.judged[:, None], apart, cases[0]))
        return np.asarray(np.square(cases - np.mean(cases, axis=(0, 1))).mean(axis=(0, 2)))

    def evaluate(self, candidate: Candidate, method: Method, settings: Settings, threads: int | None) -> Evaluation:
        """Evaluate a candidate on the fold's classes, with everything in the index."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # notes about the input, once per fold
            return evaluate(
                self.data.vectors,
                self.data.names[self.data.class_of],
                far=settings.far,
                target_far=settings.target_far,
                equalizer=FoldEqualizer(self, candidate, method) if candidate.weight else None,
                threads=threads,
                progress=None,
            )


@dataclass(frozen=True)
class FoldEqualizer:
    """A candidate on one fold, as an evaluation takes it."""

    fold: Fold
    candidate: Candidate
    method: Method

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> Shifts:
        """Return the shifts of the fold's rows."""
        shifts = self.fold.shifts(self.candidate)
        assert shifts is not None
        return shifts

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return what `Equalizer.record` returns, with a digest of this fold's neighbours."""
        settings = {"method": self.method, **self.candidate._asdict()}
        constant = 2 * self.candidate.weight * float(self.candidate.offsets(self.fold.nearest).mean())
        named = digest({**settings, "offset": constant, "reference": array_digest(self.fold.nearest)})
        own_class = "outside" if self.method == "cohort" else "in_reference"
        return {**settings, "offset": constant, "own_class": own_class, "digest": named}
