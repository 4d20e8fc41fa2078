"""How much of a class's curve is noise of its few images, and OPIS without it.

OPIS is a variance over classes of curves that are themselves estimates: the noise of a class of few images inflates
it. Here the variance of each class's rates over other images of the same class is estimated without bias, by looking
once at how its images differ; that of its utility follows by the delta method.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from isomargin.measure.pairs.distances import ClassDistances, Floats
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.tiles import available_cores
from isomargin.measure.scores.curves import share
from isomargin.measure.settings import Settings

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

FEWEST = 4  # images that a class must have: two pairs without a common image
MOST = 64  # images of a class that are looked at; their noise says what that of all of them is
ALL_STRANGERS = 2048  # up to so many images, false accepts are counted against all of them
STRANGERS = 1024  # beyond, against so many, in two halves
LEAST_FAR, LARGEST_FAR, PER_DECADE = 1e-4, 0.3, 6
NOISY = 0.5  # share of OPIS from which on the user should know that it is noise
QUIET = 0.1  # share of noise that is small enough
ROWS = 512  # images whose similarities to the strangers are held at once


@dataclass(frozen=True)
class ItemNoise:
    """Variance of each class's rates over other images of the same class, at some distances."""

    classes: NDArray[np.int64]
    """(large,) classes of at least four images: fewer cannot tell noise from what the class is like."""
    distances: Floats
    """(levels,) ascending."""
    sensitivity: NDArray[np.float32]
    """(large, levels) variance of the share of accepted positive pairs."""
    false_accepts: NDArray[np.float32]
    """(large, levels) variance of the share of accepted negative pairs."""
    covariance: NDArray[np.float32]
    """(large, levels) of the two."""

    def of_utility(self, distances: Floats, evaluation: "Evaluation") -> Floats:
        r"""(large, m) variance of the utility at other distances, interpolated; the ends' beyond the ends.

        .. math:: \mathrm{Var}\,U \approx (\partial_\psi U)^2 \mathrm{Var}\,\psi + (\partial_f U)^2 \mathrm{Var} f
            + 2\, \partial_\psi U\, \partial_f U\, \mathrm{Cov}(\psi, f)

        with sensitivity :math:`\psi` and false accept rate :math:`f`.
        """
        counts, some = evaluation.counts, self.classes
        positives, negatives = (each.totals[some, None].astype(float) for each in (counts.positives, counts.negatives))
        sensitivity = share(counts.positives.within(self.distances)[some], positives)
        far = share(counts.negatives.within(self.distances)[some], negatives)
        false_accepts = self.false_accepts.astype(np.float64)
        if counts.negatives.appearances == 1:  # sampled pairs have noise of their own
            false_accepts += share(far * (1 - far), negatives)
        by_sensitivity, by_far = slopes(sensitivity, far, share(positives, negatives), evaluation.settings)
        variance = by_sensitivity**2 * self.sensitivity + by_far**2 * false_accepts
        variance += 2 * by_sensitivity * by_far * self.covariance
        place = np.interp(distances, self.distances, np.arange(len(self.distances)))
        left = np.minimum(place.astype(np.int64), len(self.distances) - 2)
        part = place - left
        return np.asarray((1 - part) * variance[:, left] + part * variance[:, left + 1])


def slopes(sensitivity: Floats, far: Floats, ratio: Floats, settings: Settings) -> tuple[Floats, Floats]:
    """Give the derivatives of the utility by sensitivity and by FAR; ratio is that of positive to negative pairs."""
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


def debiased_opis(evaluation: "Evaluation") -> float:
    """OPIS of the classes of at least four images, less the mean variance of their curves over other images.

    Without bias but for the delta method's; it may come out below zero where there is little but noise. NaN where
    fewer than two classes are large enough, or nothing is known about their images.
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


def opis_noise(evaluation: "Evaluation") -> float:
    """Give the part of OPIS that is the images' noise; the mean curve takes one of as many parts as classes away."""
    noise = evaluation.item_noise
    if noise is None or len(noise.classes) < 2:
        return float("nan")
    mean = noise.of_utility(evaluation.curves.distances, evaluation).mean()
    return float(mean * (1 - 1 / len(noise.classes)))


def notes_on_noise(evaluation: "Evaluation") -> tuple[str, ...]:
    """Say so where classes have too few images for OPIS to mean much, with the number that would do."""
    noise, classes = evaluation.item_noise, len(evaluation.curves.classes)
    known = 0 if noise is None else len(noise.classes)
    if noise is None or known < 2 or 2 * known < classes:
        return (
            f"{known:,} of the {classes:,} classes that OPIS is about have {FEWEST} images or more: how much of it is "
            f"noise of so few images cannot be told; measure more images a class",
        )
    part, left = evaluation.opis_noise, evaluation.debiased_opis
    if part <= NOISY * (part + left):
        return ()
    images = float(np.median(evaluation.sizes[noise.classes]))
    few = f"because classes have few images (half of them at most {images:g})"
    if left <= 0:
        return (f"all of OPIS may be noise, {few}: measure several times as many images a class",)
    enough = math.ceil(images * part / (QUIET * left))
    return (
        f"about {part / (part + left):.0%} of OPIS is noise, {few}: quote OPIS without the images' noise, {left:.3g}, "
        f"or measure some {enough:,} images a class",
    )


# ----- looking at the images


def measure_item_noise(
    data: ClassSortedVectors, negatives: ClassDistances, threads: int | None = None
) -> ItemNoise | None:
    """Estimate the noise of the classes' rates; None where fewer than two classes have four images."""
    classes = np.flatnonzero(data.sizes >= FEWEST)
    if len(classes) < 2:
        return None
    distances = choose_levels(negatives)
    taken = np.minimum(data.sizes[classes], MOST)
    lots = draw_lots(data.vectors)
    rows = np.concatenate([
        data.starts[each] + first_by_lot(lots[data.starts[each] : data.ends[each]], int(number))
        for each, number in zip(classes, taken, strict=True)
    ])  # fmt: skip
    everyone = np.arange(len(data.class_of))
    if len(everyone) <= ALL_STRANGERS:
        halves = [everyone, everyone]  # nothing is sampled, so there is no noise of sampling to keep out
    else:
        sampled = first_by_lot(lots, STRANGERS)
        halves = [sampled[::2], sampled[1::2]]
    friends, false_accepts = count_levels(data, rows, taken, halves, distances, threads)
    estimates = estimate(friends, false_accepts, taken, data.sizes[classes])
    return ItemNoise(classes, distances, *(each.astype(np.float32) for each in estimates))


def draw_lots(vectors: NDArray[Any]) -> NDArray[np.uint64]:
    """(n,) a number for each row that looks random, but depends on nothing but the row: not on where it stands."""
    bits = vectors.view(np.uint32 if vectors.dtype == np.float32 else np.uint64)
    factors = np.random.default_rng(0).integers(0, 2**63, bits.shape[1], np.uint64) | np.uint64(1)
    lots = np.empty(len(bits), np.uint64)
    for first in range(0, len(bits), ROWS):
        part = bits[first : first + ROWS].astype(np.uint64)
        lots[first : first + ROWS] = (part * factors).sum(axis=1, dtype=np.uint64) >> np.uint64(16)
    return lots


def first_by_lot(lots: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    """(number,) the rows of the smallest lots, in their order; all rows, as they stand, where there are no more."""
    return np.arange(len(lots)) if number == len(lots) else np.argsort(lots, kind="stable")[:number]


def choose_levels(negatives: ClassDistances) -> Floats:
    """(levels,) distances at even steps of the logarithm of the pooled FAR, from 1e-4 to 0.3, and four nearer ones."""
    steps = round(PER_DECADE * np.log10(LARGEST_FAR / LEAST_FAR))
    rates = np.geomspace(LEAST_FAR, LARGEST_FAR, steps + 1)
    distances = [negatives.pooled_distance_at(int(rate * negatives.pooled_total)) for rate in rates]
    return np.unique([*np.linspace(0.0, distances[0], 5), *distances])


def count_levels(
    data: ClassSortedVectors,
    rows: NDArray[np.int64],
    taken: NDArray[np.int64],
    halves: list[NDArray[np.int64]],
    distances: Floats,
    threads: int | None = None,
) -> tuple[Floats, Floats]:
    """(rows, levels) each image's accepted friends; (2, rows, levels) its FAR against either half of the strangers."""
    from isomargin.measure.pairs.kernels import count_levels as count

    nearest_first = (1 - distances**2 / 2).astype(data.vectors.dtype)
    friends = np.zeros((len(rows), len(distances)), np.int64)
    first = 0
    for number in taken:
        vectors = data.vectors[rows[first : first + number]]
        itself = np.arange(number)
        count(vectors @ vectors.T, nearest_first, itself, itself, friends[first : first + number])
        first += number
    accepted = np.zeros((2, len(rows), len(distances)), np.int64)
    compared = np.zeros((2, len(rows), 1))
    class_of = data.class_of
    for half, others in enumerate(halves):
        vectors = np.ascontiguousarray(data.vectors[others].T)
        per_class = np.bincount(class_of[others], minlength=len(data.sizes))
        compared[half, :, 0] = len(others) - per_class[class_of[rows]]

        def count_part(begin: int, vectors: Any = vectors, others: Any = others, found: Any = accepted[half]) -> None:
            part = slice(begin, begin + ROWS)
            product = data.vectors[rows[part]] @ vectors
            count(product, nearest_first, class_of[rows[part]], class_of[others], found[part])

        # As in the pass over all pairs: a thread takes its own product and counts it while it is in the cache.
        with threadpool_limits(1), ThreadPoolExecutor(threads or available_cores()) as pool:
            list(pool.map(count_part, range(0, len(rows), ROWS)))
    return friends.astype(np.float64), share(accepted.astype(np.float64), np.broadcast_to(compared, accepted.shape))


def estimate(
    friends: Floats,  # (rows, levels) accepted friends of each image
    false_accepts: Floats,  # (2, rows, levels) its FAR, twice
    taken: NDArray[np.int64],  # (large,) rows of each class
    sizes: NDArray[np.int64],  # (large,) images of each class
) -> tuple[Floats, Floats, Floats]:
    r"""(large, levels) variance of sensitivity, variance of FAR, and their covariance, each without bias.

    With h = 1 for an accepted pair of friends, sensitivity is the mean of h over pairs, a U-statistic of n images:

    .. math:: \mathrm{Var}\,\psi = \frac{4 (n - 2) \zeta_1 + 2 \zeta_2}{n (n - 1)}, \quad
        \zeta_1 = E[h_{ab} h_{ac}] - \theta^2, \quad \zeta_2 = E[h_{ab}] - \theta^2

    where θ² is estimated from two pairs without a common image. FAR is the mean of the images' own rates f, whose
    variance is estimated by the covariance of two halves of the strangers, so that the halves' noise is not counted;
    where all strangers were looked at, both halves are all of them.
    """
    starts = np.cumsum(taken) - taken

    def total(values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values, starts, axis=0))

    m, n = taken[:, None].astype(np.float64), sizes[:, None].astype(np.float64)
    pairs = total(friends)  # each counted at both ends
    sharing = total(friends * (friends - 1))
    squared = (pairs**2 - 2 * pairs - 4 * sharing) / (m * (m - 1) * (m - 2) * (m - 3))
    theta = pairs / (m * (m - 1))
    common_image = sharing / (m * (m - 1) * (m - 2)) - squared
    variance = (4 * (n - 2) * common_image + 2 * (theta - squared)) / (n * (n - 1))

    halves = [total(each) for each in false_accepts]
    products = total(false_accepts[0] * false_accepts[1])
    far_variance = (products - halves[0] * halves[1] / m) / (m - 1) / n

    rates = false_accepts.mean(axis=0)
    together, sums = total(friends * rates), total(rates)
    apart = (pairs * sums - 2 * together) / (m * (m - 1) * (m - 2))
    covariance = 2 / n * (together / (m * (m - 1)) - apart)
    return variance, far_variance, covariance
