"""Compare the runs of an experiment: which row with which, how often classes and seeds are resampled, in which scores.

Every comparison resamples classes and seeds 5,000 times. The smallest p value is then 1 in 5,000, so that Holm's
correction can find significance at 5% among up to 250 comparisons; 1,000 draws suffice for 50.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isomargin.measure.comparison import Difference
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.seed_comparison import DrawnDifference, SeedScores, draw_differences
from isomargin.measure.statistics.resampling import Weights
from lab.kept import Measured

DRAWS = 5000
COLUMNS = (
    *("opis", "debiased_opis", "epsilon_opis", "recall@1", "map_at_r", "eer", "frr"),
    *("far_threshold_spread", "frr_threshold_spread", "far_within_two"),
)
"""The scores whose differences are in every table.csv; an experiment's own columns are added."""
KEPT = 64  # models whose drawn scores stay in memory, about 1 MB each


@dataclass(frozen=True, eq=False)
class Compared:
    """How one score differs between two rows, with the draws that its interval and p value come from."""

    difference: Difference
    draws: Floats
    """(draws,) the relative change where it is known, else the difference; not in order."""
    least: float
    """The smallest p value that this number of draws and classes can give."""

    @property
    def kind(self) -> str:
        """What the draws are of: ``change`` or ``difference``."""
        return "change" if self.difference.change else "difference"


class Comparer:
    """Compares rows of runs; the drawn scores of a model are computed once, if it is compared several times."""

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self.columns = frozenset((*COLUMNS, *columns))
        self.known: OrderedDict[tuple[str, bytes], SeedScores] = OrderedDict()

    def compare(self, first: Sequence[Measured], other: Sequence[Measured]) -> dict[str, Compared]:
        """Compare two ways of training, one model per seed each, by column."""
        by_evaluation = {id(run.evaluation): run for run in (*first, *other)}
        drawn = draw_differences(
            [run.evaluation for run in first],
            [run.evaluation for run in other],
            DRAWS,
            scores=lambda evaluation, weights: self.scores(by_evaluation[id(evaluation)], weights),
        )
        return {row.score: as_compared(row) for row in drawn if row.score in self.columns}

    def scores(self, run: Measured, weights: Weights) -> SeedScores:
        """Give the drawn scores of a model."""
        key = (run.name, weights[:8].tobytes())  # the first draws tell which classes were drawn
        if key not in self.known:
            scores = SeedScores(run.evaluation, weights, run.scores)
            scores.drawn = {name: drawn for name, drawn in scores.drawn.items() if name in self.columns}
            self.known[key] = scores
            if len(self.known) > KEPT:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]


def as_compared(drawn: DrawnDifference) -> Compared:
    """Give a difference with its draws."""
    difference = drawn.difference()
    draws = drawn.drawn_other - drawn.drawn_first
    if difference.change:
        # A change has the sign of its difference, also where rounding would lose it.
        change = drawn.drawn_other / drawn.drawn_first - 1
        draws = np.where(draws == 0, 0.0, np.copysign(np.maximum(np.abs(change), np.finfo(float).tiny), draws))
    return Compared(difference, draws, drawn.least)
