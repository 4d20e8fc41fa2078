"""The pair distances of each class, kept in one of two forms: listed one by one, or counted in fine bins.

Both forms have the same methods, per class and pooled: how many pairs lie within a distance, and at which distance a
number of pairs is reached. Lists are exact; bins interpolate within a bin. The code is the same for positive and
negative pairs.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.axis import L2, ScoreAxis, similarity_of

Floats = NDArray[np.float64]
ROUNDED = 2e-6  # the largest float32 rounding error of a distance that is not small


def admitting(ascending: NDArray[Any], count: int, axis: ScoreAxis = L2) -> float:
    """Return the threshold, midway between two distances, that admits as many pairs as it can but at most ``count``.

    Pairs at equal distance are admitted or refused together. Returns -inf if even the lowest threshold of the axis
    admits too many.

    >>> admitting(np.array([0.1, 0.3, 0.3]), 2), admitting(np.array([0.1, 0.3]), 2), admitting(np.array([0.0, 0.1]), 0)
    (0.2, 2.0, -inf)
    """
    if count >= len(ascending):
        return axis.highest
    refused = float(ascending[count])
    admitted = int(np.searchsorted(ascending, refused, side="left"))
    if admitted == 0:
        return (axis.lowest + refused) / 2 if refused > axis.lowest else -np.inf
    nearest = float(ascending[admitted - 1])
    middle = (nearest + refused) / 2
    return middle if middle < refused else nearest


@dataclass(frozen=True)
class ListedDistances:
    """The distances themselves, sorted within each class.

    >>> listed = ListedDistances(np.array([0.1, 0.3, 0.2, 0.4]), np.array([0, 2, 4]), appearances=1)
    >>> listed.within(np.array([0.2, 0.3]))
    array([[1., 2.],
           [1., 1.]])
    >>> listed.pooled_within(np.array([0.2]))
    array([2.])
    """

    distances: NDArray[Any]
    """(pairs,) the distances, class after class, ascending within each class."""
    offsets: NDArray[np.int64]
    """(classes + 1,) where each class's distances start."""
    appearances: int
    """Number of classes in which each pair appears: 2 for negative pairs, unless they were sampled class by class."""
    axis: ScoreAxis = L2
    """The axis of the distances."""
    each_once: NDArray[Any] | None = None
    """(pairs,) all distances, ascending, each pair once; only for pairs that appear in different numbers of classes."""

    @property
    def start(self) -> float:
        """No pair is nearer than this."""
        return self.axis.lowest

    @property
    def totals(self) -> NDArray[np.int64]:
        """(classes,) number of pairs of each class."""
        return np.diff(self.offsets)

    @property
    def pooled_total(self) -> int:
        """Number of pairs, each counted once."""
        return int(self.offsets[-1]) // self.appearances if self.each_once is None else len(self.each_once)

    @cached_property
    def pooled(self) -> NDArray[Any]:
        """(pairs,) all distances, ascending, each pair counted once."""
        if self.each_once is not None:
            return self.each_once
        return np.sort(self.distances)[:: self.appearances]

    @property
    def mean_similarity(self) -> float:
        """Mean similarity of all pairs.

        >>> ListedDistances(np.array([0.0, 1.0]), np.array([0, 2]), appearances=1).mean_similarity
        0.75
        """
        return float(similarity_of(self.distances.astype(np.float64)).mean())

    def of_class(self, class_index: int) -> NDArray[Any]:
        """(pairs of the class,) its distances, ascending."""
        return self.distances[self.offsets[class_index] : self.offsets[class_index + 1]]

    def within(self, distances: Floats) -> Floats:
        """(classes, m) number of pairs of each class within each distance."""
        from isomargin.measure.pairs.count_kernels import count_within

        return np.asarray(count_within(self.distances, self.offsets, np.array(distances, np.float64)))

    def pooled_within(self, distances: Floats) -> Floats:
        """(m,) number of pairs within each distance, each pair counted once."""
        return np.searchsorted(self.pooled, distances, side="right").astype(np.float64)

    def class_distance_at(self, counts: NDArray[np.int64]) -> Floats:
        """(classes,) smallest distance within which each class has its count of pairs; NaN for an empty class."""
        found = np.full(len(self.totals), np.nan)
        nonempty = self.totals > 0
        found[nonempty] = self.distances[self.offsets[:-1][nonempty] + np.clip(counts, 1, self.totals)[nonempty] - 1]
        return found

    def pooled_distance_at(self, count: int) -> float:
        """Return the smallest distance within which there are ``count`` pairs."""
        return float(self.pooled_distances_at(np.array([count]))[0])

    def pooled_distances_at(self, counts: NDArray[np.int64]) -> Floats:
        """(m,) smallest distance within which there are that many pairs, for each count."""
        return np.asarray(self.pooled[np.clip(counts, 1, len(self.pooled)) - 1], np.float64)

    def pooled_distance_admitting(self, count: int) -> float:
        """Return the threshold that admits as many pairs as it can but at most ``count``; -inf if there is none.

        >>> listed = ListedDistances(np.array([0.1, 0.3, 0.2]), np.array([0, 2, 3]), appearances=1)
        >>> listed.pooled_distance_admitting(2), listed.pooled_distance_admitting(3)
        (0.25, 2.0)
        """
        return admitting(self.pooled, count, self.axis)

    def short_of(self, distance: float) -> float:
        """Return a threshold that accepts exactly the pairs counted within this distance: the distance itself."""
        return distance


@dataclass(frozen=True)
class BinnedDistances:
    """Counts of pairs in bins of equal width from ``start`` to ``reach``.

    Within a bin, a monotone cubic through the pooled counts gives the share of the bin's pairs that lies below a
    distance. Every class uses that share of its own count, so that the classes' counts add up to the pooled count.

    >>> binned = BinnedDistances(np.array([[2, 0, 2], [0, 4, 0]]), reach=0.3, appearances=1)
    >>> binned.within(np.array([0.1, 0.2, 0.3])).round(6)
    array([[2., 2., 4.],
           [0., 4., 4.]])
    """

    counts: NDArray[Any]
    """(classes, bins) number of pairs in each bin."""
    reach: float
    """The end of the last bin: no pair is farther apart."""
    appearances: int
    """Number of classes in which each pair appears: 2 for negative pairs."""
    start: float = 0.0
    """The start of the first bin: no pair is nearer."""
    axis: ScoreAxis = L2
    """The axis of the distances."""

    @classmethod
    def within_span(
        cls, counts: NDArray[Any], span: tuple[float, float], axis: ScoreAxis, appearances: int
    ) -> "BinnedDistances":
        """Return counts in bins from the start of a span to its end."""
        return cls(counts, span[1], appearances, span[0], axis)

    @cached_property
    def edges(self) -> Floats:
        """(bins + 1,) the edges of the bins."""
        return np.linspace(self.start, self.reach, self.counts.shape[1] + 1)

    @property
    def width(self) -> float:
        """The width of a bin."""
        return float((self.reach - self.start) / self.counts.shape[1])

    @cached_property
    def sums(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(classes,) number of pairs of each class, and (bins,) number of pairs of all classes."""
        from isomargin.measure.pairs.count_kernels import sum_bins

        totals, pooled = sum_bins(self.counts)
        return totals, pooled

    @property
    def totals(self) -> NDArray[np.int64]:
        """(classes,) number of pairs of each class."""
        return self.sums[0]

    @property
    def pooled_total(self) -> int:
        """Number of pairs, each counted once."""
        return int(self.totals.sum()) // self.appearances

    @cached_property
    def pooled_cumulative(self) -> Floats:
        """(bins + 1,) number of pairs below each edge, each pair counted once."""
        return np.concatenate([[0.0], np.cumsum(self.sums[1])]) / self.appearances

    @property
    def mean_similarity(self) -> float:
        """Mean similarity of all pairs, each taken to lie in the middle of its bin."""
        middles = (self.edges[:-1] + self.edges[1:]) / 2
        return float(np.average(similarity_of(middles), weights=np.diff(self.pooled_cumulative)))

    @cached_property
    def curve(self) -> Any:
        """The monotone cubic through the pooled counts."""
        from scipy.interpolate import PchipInterpolator

        return PchipInterpolator(self.edges, self.pooled_cumulative)

    def place(self, distances: Floats) -> tuple[NDArray[np.int64], Floats]:
        """(m,) the bin of each distance, and (m,) the share of that bin's pairs that lies below the distance."""
        distances = self.at_edges(distances)
        bins = np.clip(np.searchsorted(self.edges, distances, side="right") - 1, 0, self.counts.shape[1] - 1)
        low, high = self.pooled_cumulative[bins], self.pooled_cumulative[bins + 1]
        share = np.divide(self.curve(distances) - low, high - low, out=np.zeros(len(bins)), where=high > low)
        return bins, np.clip(share, 0.0, 1.0)

    def within(self, distances: Floats) -> Floats:
        """(classes, m) number of pairs of each class within each distance."""
        from isomargin.measure.pairs.count_kernels import count_below

        bins, share = self.place(distances)
        classes, order = len(self.counts), np.argsort(bins, kind="stable")
        lookups = np.tile(bins[order], classes)
        below = np.empty((classes, len(bins)))
        below[:, order] = count_below(self.counts, np.arange(classes + 1) * len(bins), lookups).reshape(classes, -1)
        return np.asarray(below + share * self.counts[:, bins])

    def within_own(self, offsets: NDArray[np.int64], distances: Floats) -> Floats:
        """(m,) number of pairs of class i within each of ``distances[offsets[i]:offsets[i + 1]]``, ascending."""
        from isomargin.measure.pairs.count_kernels import count_below

        bins, share = self.place(distances)
        class_index = np.repeat(np.arange(len(self.counts)), np.diff(offsets))
        return np.asarray(count_below(self.counts, offsets, bins) + share * self.counts[class_index, bins])

    def pooled_within(self, distances: Floats) -> Floats:
        """(m,) number of pairs within each distance, each pair counted once."""
        return np.asarray(self.curve(self.at_edges(distances)))

    def invert(self, counts: Floats) -> Floats:
        """(m,) distance at which the pooled cubic reaches each count, found by bisection."""
        bins = np.clip(np.searchsorted(self.pooled_cumulative, counts, side="left") - 1, 0, self.counts.shape[1] - 1)
        low, high = self.edges[bins], self.edges[bins + 1]
        for _ in range(50):
            middle = (low + high) / 2
            reached = self.curve(middle) >= counts
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return high

    def class_distance_at(self, counts: NDArray[np.int64]) -> Floats:
        """(classes,) smallest distance within which each class has its count of pairs; NaN for an empty class."""
        from isomargin.measure.pairs.count_kernels import bins_reaching

        found = np.full(len(self.counts), np.nan)
        nonempty = np.flatnonzero(self.totals)
        wanted = np.clip(counts, 1, self.totals)[nonempty]
        bins, below = np.empty(len(nonempty), np.int64), np.empty(len(nonempty), np.int64)
        bins_reaching(self.counts[nonempty] if len(nonempty) < len(self.counts) else self.counts, wanted, bins, below)
        # The k-th of m values spread over a bin lies, on average, at (k - 1/2) / m of its width.
        share = (wanted - 0.5 - below) / self.counts[nonempty, bins]
        low, high = self.pooled_cumulative[bins], self.pooled_cumulative[bins + 1]
        found[nonempty] = self.invert(np.asarray(low + share * (high - low), np.float64))
        return found

    def pooled_distance_at(self, count: int) -> float:
        """Return the smallest distance within which there are ``count`` pairs."""
        return float(self.pooled_distances_at(np.array([count]))[0])

    def pooled_distances_at(self, counts: NDArray[np.int64]) -> Floats:
        """(m,) smallest distance within which there are that many pairs, for each count."""
        return self.invert(np.clip(counts, 1, self.pooled_total).astype(np.float64) - 0.5)

    def pooled_distance_admitting(self, count: int) -> float:
        """Return the bin edge that admits as many pairs as it can but at most ``count``; -inf if there is none.

        Use `short_of` to turn it into a threshold: pairs exactly at an edge are counted in the bin beyond it.
        """
        if count >= self.pooled_total:
            return self.axis.highest
        edge = int(np.searchsorted(self.pooled_cumulative, count, side="right")) - 1
        return float(self.edges[edge]) if edge > 0 else -np.inf

    def short_of(self, distance: float) -> float:
        """Return a threshold that accepts only pairs counted below this edge, in spite of float32 rounding.

        Where many pairs are equally far apart, as with binary codes, they may lie exactly at the edge.
        """
        return max(distance - self.rounding, self.axis.lowest) if distance < self.reach else distance

    @property
    def rounding(self) -> float:
        """The distance from an edge within which a pair may have been counted on the wrong side of it."""
        return float(min(ROUNDED, self.width / 4))

    def at_edges(self, distances: Floats) -> Floats:
        """(m,) distances clipped to the reach; those just short of an edge, like thresholds, moved to the edge."""
        distances = np.clip(distances, self.start, self.reach)
        beyond = self.edges[np.clip(np.searchsorted(self.edges, distances, side="left"), 0, len(self.edges) - 1)]
        return np.where(beyond - distances <= 1.001 * self.rounding, beyond, distances)


ClassDistances = ListedDistances | BinnedDistances


def pooled_share(pairs: ClassDistances, within: Floats, distances: Floats) -> Floats:
    """(m,) share of all pairs within each distance, each pair counted once.

    ``within`` are the (classes, m) numbers of pairs of each class within them. They suffice if each pair appears in the
    same number of classes.

    >>> listed = ListedDistances(np.array([0.1, 0.3, 0.3]), np.array([0, 2, 3]), 1, each_once=np.array([0.1, 0.3]))
    >>> pooled_share(listed, listed.within(np.array([0.2])), np.array([0.2]))
    array([0.5])
    """
    if isinstance(pairs, ListedDistances) and pairs.each_once is not None:
        return pairs.pooled_within(distances) / pairs.pooled_total
    return np.asarray(within.sum(axis=0) / pairs.totals.sum())
