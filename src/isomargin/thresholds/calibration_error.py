"""Calibration errors of match probabilities: ECE, MCE and adaptive ECE, pooled and per class.

They are computed from the counts of an Evaluation and any map from similarity to probability. Fitting such a map is in
`calibrate.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, ClassDistances, Floats, ListedDistances
from isomargin.measure.scores.consistency import QUANTILES

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.thresholds.calibrate import Calibration

LISTED = 1 << 17  # lists of more pairs than this are binned
FINE_BINS = 1 << 12  # number of bins of similarity
CHUNK = 1 << 22  # pairs, or counters, processed at a time

Probability = Callable[[Any], Any]  # of similarities
Weighted = tuple[Floats, Floats]  # (points,) probabilities and weights


# ----- the counts as points of similarity


@dataclass(frozen=True)
class Points:
    """Positive or negative pairs as points of similarity, with the number of pairs of each group of classes."""

    similarity: Floats
    """(points,)."""
    weight: Floats
    """(groups, points) pairs of the group's classes; a negative pair counts for both of its classes."""
    appearances: int
    """Number of classes in which each pair appears."""


def as_similarity(distances: NDArray[Any]) -> Floats:
    """Convert distances to similarities, in float64."""
    return np.asarray(similarity_of(np.asarray(distances, np.float64)))


def bin_similarity(distances: BinnedDistances) -> Floats:
    """(bins,) similarity at the middle of each bin of distance."""
    return as_similarity((distances.edges[1:] + distances.edges[:-1]) / 2)


def gather_points(distances: ClassDistances, group_of: NDArray[np.int64], groups: int) -> Points:
    """Add up the pairs of each group of classes.

    Lists of up to 131,072 pairs keep every pair. Longer lists are put into 4,096 bins of similarity, each represented
    by the mean similarity of its pairs. A bin is at most 5e-4 wide, and the mean of sigmoid(a s + b) over its pairs
    differs from the value at their mean by at most a²/(20 · 4,096²), which is below 5e-6 for slopes a of up to 40.
    Binned counts stay in their bins, each represented by its middle, with a similar error. A pair within a bin's width
    of the edge between two bins of probability may count on either side.

    Args:
        distances: positive or negative pairs.
        group_of: (classes,) the group of each class.
        groups: number of groups.

    >>> listed = ListedDistances(np.array([0.0, 1.0, 2.0]), np.array([0, 2, 3]), appearances=1)
    >>> points = gather_points(listed, np.array([1, 0]), 2)
    >>> points.similarity.tolist(), points.weight.tolist()
    ([1.0, 0.5, -1.0], [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    """
    if isinstance(distances, BinnedDistances):
        weight = np.zeros((groups, distances.counts.shape[1]))
        step = max(1, CHUNK // distances.counts.shape[1])
        for group in range(groups):
            members = np.flatnonzero(group_of == group)
            for first in range(0, len(members), step):
                weight[group] += distances.counts[members[first : first + step]].sum(axis=0, dtype=np.int64)
        return Points(bin_similarity(distances), weight, distances.appearances)
    pair_group = np.repeat(group_of.astype(np.int32), distances.totals)
    if len(pair_group) <= LISTED:
        one_hot = (pair_group == np.arange(groups)[:, None]).astype(np.float64)
        return Points(as_similarity(distances.distances), one_hot, distances.appearances)
    return group_list(distances, pair_group, groups)


def group_list(distances: ListedDistances, pair_group: NDArray[np.int32], groups: int) -> Points:
    """Put a long list into fine bins of similarity, each represented by the mean of its pairs."""
    low, high = float(as_similarity(distances.distances.max())), float(as_similarity(distances.distances.min()))
    weight, sums = np.zeros(groups * FINE_BINS), np.zeros(FINE_BINS)
    for first in range(0, len(pair_group), CHUNK):
        similarity = as_similarity(distances.distances[first : first + CHUNK])
        place = ((similarity - low) * (FINE_BINS / max(high - low, 1e-12))).astype(np.int64)
        np.clip(place, 0, FINE_BINS - 1, out=place)
        sums += np.bincount(place, weights=similarity, minlength=FINE_BINS)
        place += pair_group[first : first + CHUNK] * np.int64(FINE_BINS)
        weight += np.bincount(place, minlength=groups * FINE_BINS)
    by_group = weight.reshape(groups, FINE_BINS)
    pairs = by_group.sum(axis=0)
    occupied = pairs > 0
    return Points(sums[occupied] / pairs[occupied], by_group[:, occupied], distances.appearances)


# ----- errors of one set of pairs


def errors_of(positives: Weighted, negatives: Weighted, prior: float, bins: int) -> tuple[float, float, float]:
    """Compute (ECE, MCE, adaptive ECE) of pairs with these probabilities and weights; positive pairs sum to the prior.

    In the example, a positive pair at 0.9 weighs 1/2 and negative pairs at 0.9 and 0.2 weigh 1/4 each, so that 2/3 of
    the weight at 0.9 are matches.

    >>> positives, negatives = (np.array([0.9]), np.ones(1)), (np.array([0.9, 0.2]), np.ones(2))
    >>> [round(error, 4) for error in errors_of(positives, negatives, prior=0.5, bins=10)]
    [0.225, 0.2333, 0.225]
    """
    positive_probability, positive_weight = positives
    negative_probability, negative_weight = negatives
    positive_mass = positive_weight * (prior / positive_weight.sum())
    negative_mass = negative_weight * ((1 - prior) / negative_weight.sum())
    probability = np.concatenate([positive_probability, negative_probability])
    mass = np.concatenate([positive_mass, negative_mass])
    excess = np.concatenate([positive_mass * (1 - positive_probability), -negative_mass * negative_probability])

    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], probability)  # open on the left, as in Guo et al.
    bin_mass = np.bincount(place, weights=mass, minlength=bins)
    bin_excess = np.abs(np.bincount(place, weights=excess, minlength=bins))
    occupied = bin_mass > 0

    order = np.argsort(probability, kind="stable")  # merges two sorted runs
    ascending = probability[order]
    last = np.append(ascending[1:] > ascending[:-1], True)  # pairs of equal probability form one point
    mass_below = np.append(0.0, np.cumsum(mass[order])[last])
    excess_below = np.append(0.0, np.cumsum(excess[order])[last])
    at_levels = np.interp(np.linspace(0, mass_below[-1], bins + 1), mass_below, excess_below)
    return (
        float(bin_excess.sum()),
        float((bin_excess[occupied] / bin_mass[occupied]).max()),
        float(np.abs(np.diff(at_levels)).sum()),
    )


def group_errors(
    positives: Points, negatives: Points, group: int, probability: Probability, prior: float, bins: int
) -> tuple[float, float, float]:
    """Compute the errors of the pooled pairs of one group of classes."""

    def weighted(points: Points) -> Weighted:
        occupied = points.weight[group] > 0
        return np.asarray(probability(points.similarity[occupied])), points.weight[group][occupied]

    return errors_of(weighted(positives), weighted(negatives), prior, bins)


def class_errors(
    counts: PairCounts, maps: Sequence[Probability], map_of: NDArray[np.int64], prior: float, bins: int
) -> Floats:
    """(3, classes) ECE, MCE and adaptive ECE of each class under its map; NaN without pairs of both kinds."""
    found = np.full((3, len(map_of)), np.nan)
    positives, negatives = (class_points(side, maps, map_of) for side in (counts.positives, counts.negatives))
    for i in np.flatnonzero((counts.positives.totals > 0) & (counts.negatives.totals > 0)).tolist():
        found[:, i] = errors_of(positives(i), negatives(i), prior, bins)
    return found


def class_points(
    distances: ClassDistances, maps: Sequence[Probability], map_of: NDArray[np.int64]
) -> Callable[[int], Weighted]:
    """Return a function that takes a class and returns the probabilities of its pairs under its map, and weights."""
    if isinstance(distances, ListedDistances):
        listed = distances

        def of_list(which: int) -> Weighted:
            probability = np.asarray(maps[map_of[which]](as_similarity(listed.of_class(which))))
            return probability, np.ones(len(probability))

        return of_list
    counts = distances.counts
    probabilities = [np.asarray(probability(bin_similarity(distances))) for probability in maps]

    def of_bins(which: int) -> Weighted:
        occupied = np.flatnonzero(counts[which])
        return probabilities[map_of[which]][occupied], counts[which, occupied].astype(np.float64)

    return of_bins


# ----- errors of an evaluation


@dataclass(frozen=True)
class ErrorSummary:
    """Calibration errors in a few numbers, as on a card."""

    ece: float
    """Expected calibration error of all pairs."""
    mce: float
    """Maximum calibration error: the largest error of a bin."""
    adaptive_ece: float
    """Expected calibration error in bins of equal mass."""
    class_ece_mean: float
    """Mean over classes of the class ECE."""
    class_ece_quantiles: dict[float, float]
    """Quantiles over classes of the class ECE."""
    class_ece_worst: float
    """The largest ECE of a class."""
    worst_class: str | int
    """The class with that ECE."""
    bins: int
    """Number of bins of probability."""

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        quantiles = {str(q): value for q, value in self.class_ece_quantiles.items()}
        return asdict(self) | {"class_ece_quantiles": quantiles}

    @classmethod
    def from_values(cls, values: Any, name: str) -> ErrorSummary:
        """Convert from the JSON values of ``as_values``; anything else is refused."""
        quantile_names = [str(q) for q in QUANTILES]
        checked = named_values(values, name, list(cls.__dataclass_fields__))
        quantiles = named_values(checked["class_ece_quantiles"], f"{name}'s class_ece_quantiles", quantile_names)
        worst = checked["worst_class"]
        if isinstance(worst, bool) or not isinstance(worst, str | int):
            raise InputError(f"{name}'s worst_class is {worst!r}: a class name is needed, text or a whole number")
        numbers = ("ece", "mce", "adaptive_ece", "class_ece_mean", "class_ece_worst")
        return cls(
            **{field: zero_to_one(checked[field], f"{name}'s {field}") for field in numbers},
            class_ece_quantiles={q: zero_to_one(quantiles[str(q)], f"{name}'s quantile {q}") for q in QUANTILES},
            worst_class=worst,
            bins=checks.whole(checked["bins"], f"{name}'s bins"),
        )


def named_values(values: Any, name: str, wanted: Sequence[str]) -> dict[str, Any]:
    """Return a mapping that has exactly these names."""
    if not isinstance(values, dict):
        raise InputError(f"{name} is {values!r}: a mapping is needed, with {', '.join(wanted)}")
    if set(values) != set(wanted):
        found = ", ".join(sorted(map(str, values))) or "nothing"
        raise InputError(f"{name} has {found}: exactly {', '.join(wanted)} are needed")
    return values


def zero_to_one(value: Any, name: str) -> float:
    """Return a number from 0 to 1, or above 1 by no more than rounding."""
    if not 0 <= checks.number(value, name) <= 1 + 1e-9:
        raise InputError(f"{name} is {value}: a number from 0 to 1 is needed")
    return float(value)


@dataclass(frozen=True, eq=False)
class CalibrationErrors:
    """Calibration errors, pooled and for each class.

    Pairs are put into bins of their probability p. With y = 1 for a match and 0 otherwise, and weights w (those of the
    positive pairs sum to the prior, those of the negative pairs to the rest), ECE is the sum over bins of
    |sum of w (y - p)|, and MCE is the largest |sum of w (y - p)| / sum of w over the bins that have pairs. Bins have
    equal width, or for the adaptive ECE equal weight; there pairs of equal probability are split in proportion, so that
    their order does not matter.
    """

    prior: float
    """Share of matches to which the pairs are weighted."""
    bins: int
    """Number of bins of probability."""
    ece: float
    """Expected calibration error of all pairs, in bins of equal width."""
    mce: float
    """Largest error of such a bin, however few pairs it has."""
    adaptive_ece: float
    """Expected calibration error of all pairs, in bins of equal weight."""
    names: NDArray[Any]
    """(classes,) the names of the classes."""
    class_ece: Floats
    """(classes,) ECE of each class, with its positive pairs weighted to the prior; NaN without pairs of both kinds."""
    class_mce: Floats
    """(classes,) MCE of each class."""
    class_adaptive_ece: Floats
    """(classes,) adaptive ECE of each class, in bins of equal weight for that class."""

    @property
    def summary(self) -> ErrorSummary:
        """The errors in a few numbers."""
        quantiles = np.nanquantile(self.class_ece, QUANTILES)
        worst = int(np.nanargmax(self.class_ece))
        name = self.names[worst]
        return ErrorSummary(
            ece=self.ece,
            mce=self.mce,
            adaptive_ece=self.adaptive_ece,
            class_ece_mean=float(np.nanmean(self.class_ece)),
            class_ece_quantiles={q: float(value) for q, value in zip(QUANTILES, quantiles, strict=True)},
            class_ece_worst=float(self.class_ece[worst]),
            worst_class=name.item() if isinstance(name, np.generic) else name,
            bins=self.bins,
        )


def calibration_errors(
    evaluation: Evaluation, probability_of_similarity: Calibration, bins: int = 15
) -> CalibrationErrors:
    """Compute the errors of a calibration on the pairs of an evaluation, weighted to the calibration's prior.

    On the evaluation on which the calibration was fitted, the errors are too small; ``calibrate`` reports errors on
    held-out classes. The ECE of a class never vanishes: ten positive pairs cannot fill fifteen bins evenly.

    Args:
        evaluation: the pairs, of any set.
        probability_of_similarity: the calibration.
        bins: number of bins of probability.

    >>> import isomargin as im
    >>> from isomargin.thresholds.calibrate import calibrate
    >>> rows = np.random.default_rng(0).normal(size=(120, 8)) + 2 * np.eye(8)[np.arange(120) % 6]
    >>> evaluation = im.evaluate(rows, np.arange(120) % 6)
    >>> errors = calibration_errors(evaluation, calibrate(evaluation, "platt"))
    >>> errors.ece < 0.05, errors.class_ece.shape
    (True, (6,))
    """
    bins, prior, counts = checks.whole(bins, "bins"), probability_of_similarity.prior, evaluation.counts
    check_pairs(counts)
    alone = np.zeros(evaluation.class_count, np.int64)
    positives, negatives = gather_points(counts.positives, alone, 1), gather_points(counts.negatives, alone, 1)
    pooled = group_errors(positives, negatives, 0, probability_of_similarity, prior, bins)
    by_class = class_errors(counts, [probability_of_similarity], alone, prior, bins)
    return CalibrationErrors(prior, bins, *pooled, evaluation.names, *by_class)


def check_pairs(counts: PairCounts) -> None:
    """Refuse counts without pairs of both kinds, overall or in every class."""
    for kind, side in (("positive", counts.positives), ("negative", counts.negatives)):
        if side.pooled_total == 0:
            raise InputError(
                f"the evaluation has no {kind} pairs: calibration needs both kinds, so evaluate at least two classes "
                "of which some have two or more items"
            )
    if not np.any((counts.positives.totals > 0) & (counts.negatives.totals > 0)):
        raise InputError("no class has both positive and negative pairs: evaluate with pairs='all'")
