"""The noise in the rates of groups that have few trials, as if trials were independent.

All pairs of a class share its items, so their noise follows from the items (``item_noise.py``). A list of trials does
not say which items they share, so its noise is taken to be that of independent trials. Where trials share many items,
there is more.
"""

import numpy as np

from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import ClassDistances, Floats
from isomargin.measure.statistics.item_noise import ItemNoise, choose_levels

FEWEST = 2  # trials of each kind that a group must have


def measure_trial_noise(counts: PairCounts) -> ItemNoise | None:
    """Estimate the noise of the groups' rates; None if fewer than two groups have two trials of each kind."""
    groups = np.flatnonzero((counts.positives.totals >= FEWEST) & (counts.negatives.totals >= FEWEST))
    if len(groups) < 2:
        return None
    levels = choose_levels(counts.negatives)
    sensitivity, far = (
        binomial_variance(pairs, levels)[groups].astype(np.float32) for pairs in (counts.positives, counts.negatives)
    )
    return ItemNoise(groups, levels, sensitivity, far, np.zeros_like(far))


def binomial_variance(pairs: ClassDistances, distances: Floats) -> Floats:
    """(groups, levels) unbiased estimate of the variance of the share of a group's trials within each distance."""
    totals = np.maximum(pairs.totals, FEWEST)[:, None]
    accepted = pairs.within(distances) / totals
    return np.asarray(accepted * (1 - accepted) / (totals - 1))
