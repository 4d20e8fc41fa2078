"""The noise in OPIS that comes from classes with few items, and OPIS without it.

OPIS is the variance over classes of curves that are themselves estimates, so the noise of classes with few items
inflates it. This module estimates without bias how much the rates of each class would vary with other items of that
class, from how much its items differ. The variance of the utility follows by the delta method.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.memory import forget_pages
from isomargin.core.threads import one_blas_thread, share_tasks
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.distances import ClassDistances, Floats
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.scores.curves import share
from isomargin.measure.settings import UNITS, Settings

if TYPE_CHECKING:
    from isomargin.measure.evaluation_scores import EvaluationScores

FEWEST = 4  # items that a class must have, so that it has two pairs without a common item
MOST = 64  # items used per class; the noise of all items follows from theirs
ALL_OTHERS = 2048  # up to this many items, false accepts are counted against all of them
SAMPLED_OTHERS = 1024  # with more items, against a sample of this size, in two halves
LEAST_FAR, LARGEST_FAR, PER_DECADE = 1e-4, 0.3, 6
NOISY = 0.5  # if noise is a larger share of OPIS than this, the user is told
QUIET = 0.1  # a share of noise that is small enough
ROWS = 512  # items whose similarities to the others are held at a time
GROUP_ROWS = 1 << 18  # items whose accepted pairs are held at a time
CLASSES = 256  # classes whose noise is estimated at a time


@dataclass(frozen=True)
class ItemNoise:
    """Variance that each class's rates would have over other items of the same class, at a few distances."""

    classes: NDArray[np.int64]
    """(large,) index of the classes with at least four items; with fewer, the noise cannot be estimated."""
    distances: Floats
    """(levels,) the distances, ascending."""
    sensitivity: NDArray[np.float32]
    """(large, levels) variance of the sensitivity: the share of accepted positive pairs."""
    false_accepts: NDArray[np.float32]
    """(large, levels) variance of the FAR: the share of accepted negative pairs."""
    covariance: NDArray[np.float32]
    """(large, levels) covariance of the two."""

    def of_utility(self, distances: Floats, evaluation: "EvaluationScores") -> Floats:
        r"""(large, m) variance of the utility at the given distances, by interpolation; constant beyond the levels.

        .. math:: \mathrm{Var}\,U \approx (\partial_\psi U)^2 \mathrm{Var}\,\psi + (\partial_f U)^2 \mathrm{Var} f
            + 2\, \partial_\psi U\, \partial_f U\, \mathrm{Cov}(\psi, f)

        with sensitivity :math:`\psi` and false accept rate :math:`f`.
        """
        counts, large = evaluation.counts, self.classes
        positives = counts.positives.totals[large, None].astype(float)
        negatives = counts.negatives.totals[large, None].astype(float)
        sensitivity = share(counts.positives.within(self.distances)[large], positives)
        far = share(counts.negatives.within(self.distances)[large], negatives)
        false_accepts = self.false_accepts.astype(np.float64)
        if counts.negatives.appearances == 1 and evaluation.trials is None:  # sampling the pairs adds noise
            false_accepts += share(far * (1 - far), independent_negatives(evaluation)[large, None])
        by_sensitivity, by_far = slopes(sensitivity, far, share(positives, negatives), evaluation.settings)
        variance = by_sensitivity**2 * self.sensitivity + by_far**2 * false_accepts
        variance += 2 * by_sensitivity * by_far * self.covariance
        return self.between_levels(variance, distances)

    def of_rates(self, distance: float, evaluation: "EvaluationScores") -> tuple[Floats, Floats]:
        """(large,) variance of the FAR and (large,) of the FRR of each class at one distance."""
        at = np.array([distance])
        far_variance = self.between_levels(self.false_accepts, at)[:, 0]
        if evaluation.counts.negatives.appearances == 1 and evaluation.trials is None:  # sampling the pairs adds noise
            far = evaluation.at(distance).class_far[self.classes]
            far_variance += share(far * (1 - far), independent_negatives(evaluation)[self.classes])
        return far_variance, self.between_levels(self.sensitivity, at)[:, 0]

    def between_levels(self, values: NDArray[Any], distances: Floats) -> Floats:
        """(large, m) values of the levels at other distances, by interpolation; constant beyond the levels."""
        left, part = self.place(distances)
        return np.asarray((1 - part) * values[:, left] + part * values[:, left + 1])

    def place(self, distances: Floats) -> tuple[NDArray[np.int64], Floats]:
        """(m,) index of the level left of each distance, and the fraction of the step past it."""
        place = np.interp(distances, self.distances, np.arange(len(self.distances)))
        left = np.minimum(place.astype(np.int64), len(self.distances) - 2)
        return left, place - left

    def at_class_distances(self, variance: NDArray[np.float32], distances: Floats) -> Floats:
        """(classes,) variance of each class at a distance of its own; NaN if unknown.

        Args:
            variance: (large, levels) one of the variances above.
            distances: (classes,) a distance per class. Beyond the last level, nothing is known.
        """
        found, own = np.full(len(distances), np.nan), distances[self.classes]
        left, part = self.place(own)
        rows = np.arange(len(self.classes))
        values = (1 - part) * variance[rows, left] + part * variance[rows, left + 1]
        found[self.classes] = np.where(own <= self.distances[-1], values, np.nan)
        return found


def independent_negatives(evaluation: "EvaluationScores") -> Floats:
    """(classes,) number of independently sampled negatives of each class.

    All items of a class are compared with the same items if pairs are stratified: only those were drawn independently.
    """
    totals = evaluation.counts.negatives.totals.astype(np.float64)
    return totals / evaluation.sizes if evaluation.settings.pairs == "stratified" else totals


def slopes(sensitivity: Floats, far: Floats, ratio: Floats, settings: Settings) -> tuple[Floats, Floats]:
    """Return the derivatives of the utility by sensitivity and by FAR.

    ``ratio`` is the number of positive pairs divided by the number of negative pairs.
    """
    weight = settings.c**2
    if settings.utility == "specificity_sensitivity":
        first, first_by_sensitivity, first_by_far = 1 - far, np.zeros(far.shape), np.full(far.shape, -1.0)
    else:
        accepted = ratio * sensitivity + far
        first = share(ratio * sensitivity, accepted)
        first_by_sensitivity = share(ratio * far, accepted**2)
        first_by_far = -share(ratio * sensitivity, accepted**2)
    both = (weight * first + sensitivity) ** 2
    by_first = share((1 + weight) * sensitivity**2, both)
    by_second = share((1 + weight) * weight * first**2, both)
    return by_second + by_first * first_by_sensitivity, by_first * first_by_far


def debiased_opis(evaluation: "EvaluationScores") -> float:
    """Compute the OPIS of the classes with at least four items, minus the part that is noise.

    The only bias left is that of the delta method. The result may be below zero if OPIS is mostly noise. It is NaN if
    fewer than two classes are large enough, or if the noise was not measured.
    """
    noise = evaluation.item_noise
    if noise is None or len(noise.classes) < 2:
        return float("nan")
    curves = evaluation.curves
    large = np.isin(curves.classes, noise.classes)
    chosen = curves.utility[large]
    middle = chosen.mean(axis=0) if evaluation.settings.mean_curve == "classes" else curves.mean_utility
    variance = np.square(chosen - middle).mean()
    return float(variance - evaluation.opis_noise)


def opis_noise(evaluation: "EvaluationScores") -> float:
    """Compute the part of OPIS that is noise: the mean variance of the curves.

    The factor 1 - 1 / classes is there because the mean curve, from which OPIS measures deviations, is noisy too.
    """
    noise = evaluation.item_noise
    if noise is None or len(noise.classes) < 2:
        return float("nan")
    mean = noise.of_utility(evaluation.curves.distances, evaluation).mean()
    return float(mean * (1 - 1 / len(noise.classes)))


def notes_on_noise(evaluation: "EvaluationScores") -> tuple[str, ...]:
    """Return a note if classes have too few items for a meaningful OPIS, with the number that would be enough."""
    if not evaluation.has_classes:
        return ()
    if not evaluation.has_curves:
        return ("no enrolled class has two known probes: OPIS and the other scores over classes are absent",)
    noise, classes = evaluation.item_noise, len(evaluation.curves.classes)
    known = 0 if noise is None else len(noise.classes)
    units, groups = UNITS[evaluation.comparison]
    per_class = f"{units} per {'group' if groups == 'groups' else 'class'}"
    if noise is None or known < 2 or 2 * known < classes:
        fewest = f"{FEWEST} items" if evaluation.trials is None else "two trials of each kind"
        return (
            f"only {known:,} of {classes:,} {groups} have at least {fewest}, too few to estimate how much of OPIS "
            f"is noise: evaluate more {per_class}",
        )
    part, left = evaluation.opis_noise, evaluation.debiased_opis
    if part <= NOISY * (part + left):
        return ()
    median = float(np.median(evaluation.sizes[noise.classes]))
    few = f"because {groups} have few {units} (half of them have at most {median:g})"
    if left <= 0:
        return (f"all of OPIS may be noise, {few}: evaluate several times as many {per_class}",)
    enough = math.ceil(median * part / (QUIET * left))
    return (
        f"about {part / (part + left):.0%} of OPIS is noise, {few}: report OPIS without item noise ({left:.3g}), or "
        f"evaluate about {enough:,} {per_class}",
    )


# ----- measuring the noise


def measure_item_noise(
    data: ClassSortedVectors, negatives: ClassDistances, threads: int | None = None
) -> ItemNoise | None:
    """Estimate the noise of the classes' rates; None if fewer than two classes have at least four items."""
    classes = np.flatnonzero(data.sizes >= FEWEST)
    if len(classes) < 2:
        return None
    distances = choose_levels(negatives)
    taken = np.minimum(data.sizes[classes], MOST)
    hashes = hash_rows(data.vectors, threads)
    starts, ends = data.starts, data.ends
    everything = np.arange(len(data.class_of))
    if len(everything) <= ALL_OTHERS:
        halves = [everything, everything]  # nothing is sampled, so there is no sampling noise to cancel
    else:
        sampled = first_by_hash(hashes, SAMPLED_OTHERS)
        halves = [sampled[::2], sampled[1::2]]
    found = [np.empty((len(classes), len(distances)), np.float32) for _ in range(3)]
    group_of = (np.cumsum(taken) - 1) // GROUP_ROWS
    for group in range(int(group_of[-1]) + 1):
        part = slice(*np.searchsorted(group_of, [group, group + 1]))
        rows = np.concatenate([
            starts[i] + first_by_hash(hashes[starts[i] : ends[i]], int(number))
            for i, number in zip(classes[part], taken[part], strict=True)
        ])  # fmt: skip
        accepted_positives, false_accepts = count_levels(data, rows, taken[part], halves, distances, threads)
        estimates = estimate_all(accepted_positives, false_accepts, taken[part], data.sizes[classes[part]], threads)
        for values, estimated in zip(found, estimates, strict=True):
            values[part] = estimated
    return ItemNoise(classes, distances, *found)


def hash_rows(vectors: NDArray[Any], threads: int | None = None) -> NDArray[np.uint64]:
    """(n,) a hash of each row, so that a sample of rows does not depend on their order."""
    bits = vectors.view(np.uint32 if vectors.dtype == np.float32 else np.uint64)
    factors = np.random.default_rng(0).integers(0, 2**63, bits.shape[1], np.uint64) | np.uint64(1)
    hashes = np.empty(len(bits), np.uint64)

    def hash_part(begin: int) -> None:
        part = slice(begin, begin + ROWS)
        hashes[part] = (bits[part].astype(np.uint64) @ factors) >> np.uint64(16)
        forget_pages(vectors)

    share_tasks(hash_part, range(0, len(bits), ROWS), threads)
    return hashes


def first_by_hash(hashes: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    """(number,) the rows with the smallest hashes, in that order; if all rows are wanted, in their own order."""
    return np.arange(len(hashes)) if number == len(hashes) else np.argsort(hashes, kind="stable")[:number]


def choose_levels(negatives: ClassDistances) -> Floats:
    """(levels,) distances at which the pooled FAR rises in even logarithmic steps from 1e-4 to 0.3, and below."""
    steps = round(PER_DECADE * np.log10(LARGEST_FAR / LEAST_FAR))
    rates = np.geomspace(LEAST_FAR, LARGEST_FAR, steps + 1)
    distances = negatives.pooled_distances_at((rates * negatives.pooled_total).astype(np.int64))
    return np.unique([*np.linspace(negatives.start, distances[0], 5), *distances])


def count_levels(
    data: ClassSortedVectors,
    rows: NDArray[np.int64],
    taken: NDArray[np.int64],
    halves: list[NDArray[np.int64]],
    distances: Floats,
    threads: int | None = None,
) -> tuple[Floats, Floats]:
    """Count accepted pairs of each item at each distance.

    Returns:
        (rows, levels) accepted positives of each item; (2, rows, levels) FAR of each item against each of the halves.
    """
    from isomargin.measure.pairs import count_kernels

    nearest_first = similarity_of(distances).astype(data.vectors.dtype)
    class_of, shape = data.class_of, (len(rows), len(distances))
    accepted_positives, rates = np.empty(shape), np.empty((2, *shape))
    per_class = [np.bincount(class_of[others], minlength=len(data.sizes)) for others in halves]

    def count_positives(bounds: tuple[int, int]) -> None:
        part = slice(*bounds)
        counts = np.zeros((bounds[1] - bounds[0], len(distances)), np.int64)
        similarity = data.similarity(rows[part], rows[part])
        count_kernels.count_class_levels(similarity, nearest_first, class_of[rows[part]], counts)
        accepted_positives[part] = counts
        forget_pages(data.vectors)

    def count_negatives(task: tuple[int, int]) -> None:
        half, begin = task
        part, others = slice(begin, min(begin + ROWS, len(rows))), halves[half]
        row_class, counts = class_of[rows[part]], np.zeros((part.stop - begin, len(distances)), np.int64)
        similarity = data.similarity(rows[part], others)
        count_kernels.count_levels(similarity, nearest_first, row_class, class_of[others], counts)
        compared = len(others) - per_class[half][row_class, None]
        rates[half, part] = share(counts, compared)
        forget_pages(data.vectors)

    # As in the pass over all pairs, each thread computes a product and counts it while it is in the cache.
    with one_blas_thread():
        share_tasks(count_positives, list(whole_classes(taken)), threads)
        share_tasks(count_negatives, [(half, begin) for half in (0, 1) for begin in range(0, len(rows), ROWS)], threads)
    return accepted_positives, rates


def whole_classes(taken: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end row of groups of whole classes, of about as many rows as the largest class may have.

    >>> list(whole_classes(np.array([40, 20, 10, 64])))
    [(0, 60), (60, 70), (70, 134)]
    """
    ends = np.cumsum(taken)
    first = 0
    for last in np.flatnonzero(np.diff(ends // MOST, append=-1)):
        yield first, int(ends[last])
        first = int(ends[last])


def estimate_all(
    accepted_positives: Floats,
    false_accepts: Floats,
    taken: NDArray[np.int64],
    sizes: NDArray[np.int64],
    threads: int | None = None,
) -> list[NDArray[np.float32]]:
    """(large, levels) three arrays: what `estimate` returns, for a few classes at a time on all threads."""
    edges = np.concatenate([[0], np.cumsum(taken)])
    found = [np.empty((len(taken), accepted_positives.shape[1]), np.float32) for _ in range(3)]

    def estimate_part(begin: int) -> None:
        part = slice(begin, min(begin + CLASSES, len(taken)))
        rows = slice(edges[part.start], edges[part.stop])
        estimates = estimate(accepted_positives[rows], false_accepts[:, rows], taken[part], sizes[part])
        for values, estimated in zip(found, estimates, strict=True):
            values[part] = estimated

    share_tasks(estimate_part, range(0, len(taken), CLASSES), threads)
    return found


def estimate(
    accepted_positives: Floats,  # (rows, levels) accepted positives of each item
    false_accepts: Floats,  # (2, rows, levels) FAR of each item against each half of the others
    taken: NDArray[np.int64],  # (large,) number of rows of each class
    sizes: NDArray[np.int64],  # (large,) number of items in each class
) -> tuple[Floats, Floats, Floats]:
    r"""(large, levels) unbiased estimates of the variance of sensitivity, the variance of FAR, and their covariance.

    With h = 1 for an accepted positive pair and 0 otherwise, sensitivity is the mean of h over the pairs of n items, a
    U-statistic:

    .. math:: \mathrm{Var}\,\psi = \frac{4 (n - 2) \zeta_1 + 2 \zeta_2}{n (n - 1)}, \quad
        \zeta_1 = E[h_{ab} h_{ac}] - \theta^2, \quad \zeta_2 = E[h_{ab}] - \theta^2

    where θ² is estimated from two pairs without a common item. FAR is the mean of the items' own rates f. Their
    variance is estimated by the covariance of the rates against two halves of a sample of other items, which leaves
    out the noise of that sample. If all other items were used, both halves are all of them.
    """
    starts = np.cumsum(taken) - taken

    def total(values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, starts, axis=0))

    m, n = taken[:, None].astype(np.float64), sizes[:, None].astype(np.float64)
    pairs = total(accepted_positives)  # each pair counted for both of its items
    sharing = total(accepted_positives * (accepted_positives - 1))
    squared = (pairs**2 - 2 * pairs - 4 * sharing) / (m * (m - 1) * (m - 2) * (m - 3))
    theta = pairs / (m * (m - 1))
    common_item = sharing / (m * (m - 1) * (m - 2)) - squared
    variance = (4 * (n - 2) * common_item + 2 * (theta - squared)) / (n * (n - 1))

    halves = [total(half) for half in false_accepts]
    products = total(false_accepts[0] * false_accepts[1])
    far_variance = (products - halves[0] * halves[1] / m) / (m - 1) / n

    rates = false_accepts.mean(axis=0)
    together, sums = total(accepted_positives * rates), total(rates)
    apart = (pairs * sums - 2 * together) / (m * (m - 1) * (m - 2))
    covariance = 2 / n * (together / (m * (m - 1)) - apart)
    return variance, far_variance, covariance
