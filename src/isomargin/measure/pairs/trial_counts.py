"""Count a list of trials: distances of its positive and negative pairs, for each group that they belong to.

A trial names up to two groups, such as the speakers or the languages of its two sides, and counts for each of them
once: a trial within one group once, a trial between two groups for both.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.labels import as_labels
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts, RankCounts
from isomargin.measure.pairs.distances import Floats, ListedDistances

ALL = "all trials"
"""The name of the one group of trials without groups."""


@dataclass(frozen=True)
class TrialDetails:
    """What an evaluation of trials has besides its counts."""

    prior: float
    """Share of positive trials to expect, for minDCF."""
    cost_false_accept: float
    """Cost of a false accept, for minDCF."""
    cost_false_reject: float
    """Cost of a false reject, for minDCF."""
    cllr: float
    """Cllr of calibrated scores, cross-fitted; NaN if there are too few trials. It needs the trials one by one, so it
    is computed when they are counted."""
    folds: Literal["groups", "trials"]
    """What was left out when the scores of a trial were calibrated: its groups, or only the trial."""


@dataclass(frozen=True)
class TrialGroups:
    """The groups of each trial."""

    names: NDArray[Any]
    """(groups,) the distinct names, sorted."""
    first: NDArray[np.int64]
    """(trials,) index of one group of each trial."""
    second: NDArray[np.int64]
    """(trials,) index of its other group; the same if it has only one."""

    def sizes(self) -> NDArray[np.int64]:
        """(groups,) number of trials of each group."""
        return self.members(np.ones(len(self.first), np.bool_))[1]

    def members(self, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the chosen trials group by group: their indices, how many each group has, and the group of each."""
        first, second, trials = self.first[chosen], self.second[chosen], np.flatnonzero(chosen)
        both = first != second
        group_of = np.concatenate([first, second[both]])
        return np.concatenate([trials, trials[both]]), np.bincount(group_of, minlength=len(self.names)), group_of


def as_groups(groups: Any, trials: int) -> TrialGroups:
    """Check the groups of trials: None, (trials,) one group each, or (trials, 2) two groups each.

    >>> as_groups([["en", "de"], ["de", "de"]], 2)
    TrialGroups(names=array(['de', 'en'], dtype='<U2'), first=array([1, 0]), second=array([0, 0]))
    """
    if groups is None:
        nothing = np.zeros(trials, np.int64)
        return TrialGroups(np.array([ALL]), nothing, nothing)
    array = np.asarray(groups, dtype=object) if isinstance(groups, list | tuple) else np.asarray(groups)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 2):
        raise InputError(f"groups has shape {array.shape}: one group per trial is needed, or two, of shape (trials, 2)")
    if len(array) != trials:
        raise InputError(f"groups has {len(array):,} entries, scores has {trials:,}: one or two groups per trial")
    try:
        labels = as_labels(array.reshape(-1))
    except InputError as error:
        raise InputError(f"groups cannot be used ({error}): integers or text are needed") from error
    names, index = np.unique(labels, return_inverse=True)
    index = index.reshape(array.shape).astype(np.int64)
    return TrialGroups(names, index, index) if array.ndim == 1 else TrialGroups(names, index[:, 0], index[:, 1])


def count_trials(distances: Floats, same: NDArray[np.bool_], groups: TrialGroups, axis: ScoreAxis) -> PairCounts:
    """List the distances of the positive and of the negative trials of each group."""
    return PairCounts(*(list_by_group(distances, chosen, groups, axis) for chosen in (same, ~same)))


def list_by_group(
    distances: Floats, chosen: NDArray[np.bool_], groups: TrialGroups, axis: ScoreAxis
) -> ListedDistances:
    """List the distances of the chosen trials for each group, ascending.

    >>> groups = as_groups([["a", "b"], ["b", "b"]], 2)
    >>> listed = list_by_group(np.array([0.5, 0.7]), np.array([True, True]), groups, ScoreAxis("l2_distance", 0, 2))
    >>> listed.distances, listed.totals, listed.pooled
    (array([0.5, 0.5, 0.7]), array([1, 2]), array([0.5, 0.7]))
    """
    trials, sizes, group_of = groups.members(chosen)
    ascending = np.lexsort((distances[trials], group_of))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    number = int(chosen.sum())
    appearances = 2 if number and len(trials) == 2 * number else 1
    each_once = None if len(trials) == appearances * number else np.sort(distances[chosen])
    return ListedDistances(distances[trials][ascending], offsets, appearances, axis, each_once)


def no_ranks(groups: int) -> RankCounts:
    """Return retrieval results without any query: a list of trials has no neighbours."""
    return RankCounts(np.zeros(groups, np.int64), (), np.zeros((groups, 0), np.int64), None, None)
