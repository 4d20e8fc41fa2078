"""Scores of resampled trials, for confidence intervals of trials that have no groups.

The positive and the negative trials are resampled separately, each kind with replacement. Trials between two thresholds
are interchangeable, so a draw is a multinomial draw of how many there are between each two.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats, ListedDistances
from isomargin.measure.scores.detection import detection_costs
from isomargin.measure.statistics.pooled_rates import threshold_ladder
from isomargin.measure.statistics.resampling import GROUPS, crossings

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

Draws = NDArray[np.int64]  # (2, draws, cells) how many positive and negative trials lie in each cell


@dataclass(frozen=True)
class TrialResampler:
    """Computes the scores of an evaluation for resampled trials.

    A cell holds the trials beyond one threshold and within the next.
    """

    evaluation: "Evaluation"
    distance: float
    """A threshold at which `rates_at` is asked for; it is one of those between the cells."""

    @cached_property
    def thresholds(self) -> Floats:
        """(cells,) ascending; the last accepts all trials."""
        return np.union1d(threshold_ladder(self.evaluation.counts), [self.distance, self.evaluation.eer_distance])

    @cached_property
    def listed(self) -> tuple[Floats, Floats]:
        """Return the distances of the positive and of the negative trials."""
        counts = self.evaluation.counts
        assert isinstance(counts.positives, ListedDistances)
        assert isinstance(counts.negatives, ListedDistances)
        return counts.positives.pooled, counts.negatives.pooled

    # ----- draws

    def undrawn(self) -> Draws:
        """(2, 1, cells) the trials as they are."""
        cells = len(self.thresholds)
        return np.array([[np.bincount(self.cells(pairs), minlength=cells)] for pairs in self.listed])

    def draw(self, draws: int, seed: int) -> Draws:
        """(2, draws, cells) resampled trials."""
        generator = np.random.default_rng(seed)
        return np.array([
            generator.multinomial(int(trials.sum()), trials[0] / trials.sum(), size=draws) for trials in self.undrawn()
        ])  # fmt: skip

    def leave_out(self) -> Draws:
        """(2, parts, cells) the trials without one of up to 200 random parts."""
        cells, parts = len(self.thresholds), min(GROUPS, *map(len, self.listed))
        left = np.repeat(self.undrawn(), parts, axis=1)
        for kind, pairs in enumerate(self.listed):
            part_of = np.random.default_rng(kind).permutation(len(pairs)) % parts
            taken = np.bincount(part_of * cells + self.cells(pairs), minlength=parts * cells)
            left[kind] -= taken.reshape(parts, cells)
        return left

    def cells(self, pairs: Floats) -> NDArray[np.int64]:
        """(pairs,) the cell of each distance."""
        return np.minimum(np.searchsorted(self.thresholds, pairs, side="left"), len(self.thresholds) - 1)

    # ----- scores

    def rates(self, draws: Draws) -> tuple[Floats, Floats]:
        """(draws, cells) FAR and FRR at each threshold."""
        accepted = np.cumsum(draws, axis=2)
        positives, negatives = accepted / np.maximum(accepted[:, :, -1:], 1)
        return negatives, 1 - positives

    def scores(self, draws: Draws) -> dict[str, Floats]:
        """(draws,) by name: the equal error rate and minDCF."""
        details = self.evaluation.trials
        assert details is not None
        far, frr = self.rates(draws)
        place = crossings(far - frr, 0.0, np.arange(far.shape[1], dtype=np.float64))
        left = np.minimum(place.astype(np.int64), far.shape[1] - 2)
        rows, part = np.arange(len(far)), place - left
        at = [(1 - part) * rate[rows, left] + part * rate[rows, left + 1] for rate in (far, frr)]
        costs = detection_costs(far, frr, details.prior, details.cost_false_accept, details.cost_false_reject)
        return {"eer": np.asarray((at[0] + at[1]) / 2), "min_dcf": np.minimum(costs.min(axis=1), 1.0)}

    def rates_at(self, distance: float, draws: Draws) -> tuple[Floats, Floats]:
        """(draws,) pooled FAR and (draws,) pooled FRR at the threshold."""
        at = int(np.searchsorted(self.thresholds, distance))
        far, frr = self.rates(draws)
        return far[:, at], frr[:, at]
