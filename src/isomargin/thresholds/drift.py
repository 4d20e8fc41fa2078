r"""Is a set without labels a random sample of what a card was measured on? Tests against two null hypotheses.

- ``same_classes``: other items of the classes of the card, drawn at random in the same mix.
- ``new_classes``: items of other classes, drawn at random from the same population of classes.

With n items, the share U of pairs within a distance has the variance of a U-statistic,
:math:`(4 (n-2) \zeta_1 + 2 \zeta_2) / (n (n-1))`, where :math:`\zeta_1` is the variance over items of their own shares
and :math:`\zeta_2 \le U (1 - U)`. To it comes the error of the card's own U: for the same classes, that of its items;
for new classes, that of its classes, and as much again for the classes of the new set.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import UNIT_TOLERANCE, ClassSortedVectors
from isomargin.thresholds.reference import ROWS, Moments, Reference

Null = Literal["same_classes", "new_classes"]
NULLS: tuple[Null, ...] = ("same_classes", "new_classes")
LEAST_SHARE = 1e-9  # stands for an empty bin


@dataclass(frozen=True, eq=False)
class Sample:
    """What is known of a set without labels."""

    items: int
    """Number of items that were compared with each other."""
    shares: Floats
    """(1 + edges,) the share of their pairs within each distance of the reference."""
    log_lengths: Floats
    """(n,) logarithms of the vectors' lengths."""
    centre: Floats
    """(d,) the mean unit vector."""


@dataclass(frozen=True)
class DriftTest:
    """One statistic of a set, what a null hypothesis expects of it, and how likely a deviation like this is."""

    name: str
    """``"accept_rate"``, ``"distribution"``, ``"centre"`` or ``"lengths"``."""
    value: float
    """The statistic: a rate, a distance between distributions or means, or a mean length."""
    expected: float
    """Its value under the null hypothesis; for the distances, their root mean square."""
    error: float
    """Its standard error; NaN for the distances."""
    p_value: float
    """The probability of a deviation at least this large under the null hypothesis."""


def drift_tests(reference: Reference, sample: Sample, null: Null, classes: int | None = None) -> tuple[DriftTest, ...]:
    """Test a set against one null hypothesis, with every statistic that the reference has.

    ``classes`` is the number of classes of the set, for ``new_classes``; by default as many as the card's.
    """
    ratio = 1.0 if classes is None or null == "same_classes" else reference.classes / classes
    expected, covariance = null_moments(reference, sample.items, null, ratio)
    degrees = reference.classes - 1 if null == "new_classes" else max(reference.items - reference.classes, 1)
    tests = [accept_test(sample.shares[0], expected[0], covariance[0, 0], degrees)]
    if reference.whole:
        tests.append(distribution_test(sample.shares[1:], expected[1:], covariance[1:, 1:], degrees))
    if reference.centre is not None:
        tests.append(centre_test(reference, reference.centre, sample, null, ratio, degrees))
    if reference.log_length is not None and not reference.unit_lengths:
        tests.append(length_test(reference, reference.log_length, sample, null, ratio, degrees))
    return tuple(tests)


def null_moments(reference: Reference, items: int, null: Null, ratio: float) -> tuple[Floats, Floats]:
    """(m,) expected shares of pairs within each distance, and (m, m) the covariance of their deviations.

    ``ratio`` is how many times as many classes the card has. A set of fewer classes has more positive pairs: P grows by
    the ratio, its variance over classes by the ratio's cube. That of M grows by the ratio, and where single pairs of
    classes decide, which the jackknife counts twice, by its square.
    """
    share = reference.positive_share
    expected = reference.negatives * (1 - min(ratio * share, 1.0)) / (1 - share) + reference.positives * ratio
    m = len(reference.item_total)  # 1 if only the threshold is known
    shares = expected[:m]
    pairs = np.minimum.outer(shares, shares) - np.outer(shares, shares)
    covariance = u_variance(reference.item_total, pairs, items)
    if null == "same_classes":
        return expected, covariance + u_variance(reference.item_within, pairs, reference.items)
    known = np.r_[0:m, len(expected) : len(expected) + m]
    between = reference.between[np.ix_(known, known)]
    of_card = np.concatenate([np.eye(m), np.eye(m)], axis=1)  # U = M + P
    of_set = np.concatenate([np.sqrt(max(ratio, ratio**2 / 2)) * np.eye(m), ratio**1.5 * np.eye(m)], axis=1)
    return expected, covariance + of_card @ between @ of_card.T + of_set @ between @ of_set.T


def u_variance(projected: Floats, pairs: Floats, items: int) -> Floats:
    """Return the covariance of a U-statistic of pairs, from the covariance of its projection and that of one pair."""
    return (4 * (items - 2) * projected + 2 * pairs) / (items * (items - 1))


def accept_test(value: float, expected: float, variance: float, degrees: int) -> DriftTest:
    """Compare accept rates by their square roots, which are less skewed than small rates."""
    from scipy.special import stdtr

    error = float(np.sqrt(variance))
    if expected <= 0 or error <= 0:
        return DriftTest("accept_rate", float(value), float(expected), error, 1.0 if value == expected else 0.0)
    deviation = 2 * (np.sqrt(value) - np.sqrt(expected)) * np.sqrt(expected) / error
    return DriftTest("accept_rate", float(value), float(expected), error, float(2 * stdtr(degrees, -abs(deviation))))


def distribution_test(shares: Floats, expected: Floats, covariance: Floats, degrees: int) -> DriftTest:
    r"""Compare the whole distribution, by the mean over the edges of :math:`(U - E)^2 / (E (1 - E))`.

    It is a weighted sum of squares of normal deviations, whose weights are the eigenvalues of the scaled covariance.
    """
    scale = np.sqrt(expected * (1 - expected) * len(expected))
    statistic = float(np.square((shares - expected) / scale).sum())
    scaled = covariance / np.outer(scale, scale)
    traces = np.array([np.trace(scaled), np.square(scaled).sum()])
    return sum_of_squares("distribution", statistic, traces, degrees)


def sum_of_squares(name: str, statistic: float, traces: Floats, degrees: int) -> DriftTest:
    """Test a sum of squares of correlated normal deviations, given the traces of their covariance and of its square.

    By Satterthwaite's approximation it is distributed as a multiple of chi-square with trace² / (trace of the square)
    degrees of freedom; F instead of chi-square, because the covariance is estimated.
    """
    from scipy.special import fdtrc

    own = traces[0] ** 2 / traces[1]
    p_value = float(fdtrc(own, degrees, statistic / traces[0]))
    return DriftTest(name, float(np.sqrt(statistic)), float(np.sqrt(traces[0])), float("nan"), p_value)


def centre_test(
    reference: Reference, centre: Moments, sample: Sample, null: Null, ratio: float, degrees: int
) -> DriftTest:
    """Compare the mean unit vectors. A rotated space has the same distances, but another centre."""
    statistic = float(np.square(sample.centre - centre.mean).sum())
    parts = [centre.items / np.array([sample.items, sample.items**2])]
    if null == "same_classes":
        parts.append(centre.within / np.array([reference.items, reference.items**2]))
    else:
        parts += [centre.classes, centre.classes * np.array([ratio, ratio**2])]
    trace = sum(part[0] for part in parts)
    square = sum(np.sqrt(part[1]) for part in parts) ** 2  # at least the trace of the square of the sum
    return sum_of_squares("centre", statistic, np.array([trace, min(square, trace**2)]), degrees)


def length_test(
    reference: Reference, log_length: Moments, sample: Sample, null: Null, ratio: float, degrees: int
) -> DriftTest:
    """Compare the mean logarithms of the lengths; deviations far below the tolerance of a unit length do not count."""
    from scipy.special import stdtr

    value, expected = sample.log_lengths.mean(), log_length.mean[0]
    variance = log_length.items[0] / sample.items + UNIT_TOLERANCE**2
    if null == "same_classes":
        variance += log_length.within[0] / reference.items
    else:
        variance += log_length.classes[0] * (1 + ratio)
    deviation = (value - expected) / np.sqrt(variance)
    error = float(np.exp(expected) * np.sqrt(variance))
    p_value = float(2 * stdtr(degrees, -abs(deviation)))
    return DriftTest("lengths", float(np.exp(value)), float(np.exp(expected)), error, p_value)


def measure_sample(data: ClassSortedVectors, log_lengths: Floats, distances: Floats) -> Sample:
    """Compare the items of a set with each other; ``log_lengths`` (n,) are those of the vectors as they were given."""
    n, similarities, within = len(data.vectors), similarity_of(distances), np.zeros(len(distances))
    for first in range(0, n, ROWS):
        rows = np.arange(first, min(first + ROWS, n))
        similarity = data.similarity(rows, slice(None))
        similarity[rows - first, rows] = -np.inf  # an item is not paired with itself
        within += [np.count_nonzero(similarity >= least) for least in similarities]
    pairs = n * (n - 1)  # both orders of each
    return Sample(n, within / pairs, log_lengths, data.vectors.mean(axis=0))


def stability_index(shares: Floats, expected: Floats) -> float:
    """Compute the population stability index of the bins between cumulative shares.

    It is the sum over bins of (p - q) ln(p / q); by custom, below 0.1 is little change and above 0.25 much.

    >>> round(stability_index(np.array([0.9]), np.array([0.5])), 3)
    0.879
    """
    found = np.maximum(np.diff(np.concatenate([[0.0], shares, [1.0]])), LEAST_SHARE)
    usual = np.maximum(np.diff(np.concatenate([[0.0], expected, [1.0]])), LEAST_SHARE)
    return float(((found - usual) * np.log(found / usual)).sum())
