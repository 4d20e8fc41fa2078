r"""Is a set without labels a random sample of what a card was measured on? Tests against two null hypotheses.

- ``same_classes``: other items of the classes of the card, drawn at random in the same mix.
- ``new_classes``: items of other classes, drawn at random from the same population of classes.

With n items, the share U of pairs within a distance has the variance of a U-statistic,
:math:`(4 (n-2) \zeta_1 + 2 \zeta_2) / (n (n-1))`, where :math:`\zeta_1` is the variance over items of their own shares
and :math:`\zeta_2 \le U (1 - U)`. To it comes the error of the card's own U: for the same classes, that of its items;
for new classes, that of its classes, and as much again for the classes of the new set.

A few classes that resemble many others raise the accept rate and its variance together. For new classes, the variance
of the new set's accept rate is therefore scaled by how much its own items differ: a set that happens to have more such
classes than the card's would raise a false alarm otherwise.
"""

from dataclasses import dataclass
from typing import Any, Literal

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
    accept_variance: float
    """Variance over items of the share of the others that the threshold accepts."""


@dataclass(frozen=True)
class DriftTest:
    """One statistic of a set, what a null hypothesis expects of it, and how likely a deviation like this is."""

    name: str
    """``"accept_rate"``, ``"distribution"``, ``"centre"`` or ``"lengths"``; for galleries ``"accepted_probes"`` too."""
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
    expected, of_card, of_set = null_moments(reference, sample.items, null, ratio)
    degrees = reference.classes - 1 if null == "new_classes" else max(reference.items - reference.classes, 1)
    tests = [accept_test(reference, sample, null, ratio, degrees)]
    if reference.whole:
        tests.append(distribution_test(sample.shares[1:], expected[1:], (of_card + of_set)[1:, 1:], degrees))
    if reference.centre is not None:
        tests.append(centre_test(reference.items, reference.centre, sample, null, ratio, degrees))
    if reference.log_length is not None and not reference.unit_lengths:
        tests.append(length_test(reference.items, reference.log_length, sample, null, ratio, degrees))
    return tuple(tests)


def null_moments(reference: Reference, items: int, null: Null, ratio: float) -> tuple[Floats, Floats, Floats]:
    """(m,) expected shares of pairs within each distance, and (m, m) their covariances: the card's and the new set's.

    ``ratio`` is how many times as many classes the card has. A set of fewer classes has more positive pairs: P grows by
    the ratio, its variance over classes by the ratio's cube. That of M grows by the ratio, and where single pairs of
    classes decide, which the jackknife counts twice, by its square.
    """
    share = reference.positive_share
    expected = reference.negatives * (1 - min(ratio * share, 1.0)) / (1 - share) + reference.positives * ratio
    m = len(reference.item_total)  # 1 if only the threshold is known
    pairs = np.minimum.outer(expected[:m], expected[:m]) - np.outer(expected[:m], expected[:m])
    of_items = u_variance(reference.item_total, pairs, items)
    if null == "same_classes":
        return expected, u_variance(reference.item_within, pairs, reference.items), of_items
    return expected, over_classes(reference, m, 1.0), over_classes(reference, m, ratio) + of_items


def over_classes(reference: Reference, m: int, ratio: float) -> Floats:
    """(m, m) covariance of U = M + P, at the first m distances, over sets of ``1 / ratio`` times as many classes."""
    known = np.r_[0:m, len(reference.distances) : len(reference.distances) + m]
    between = reference.between[np.ix_(known, known)]
    sums = np.concatenate([np.sqrt(max(ratio, ratio**2 / 2)) * np.eye(m), ratio**1.5 * np.eye(m)], axis=1)
    return np.asarray(sums @ between @ sums.T)


def u_variance(projected: Any, pairs: Any, items: int) -> Any:
    """Return the covariance of a U-statistic of pairs, from the covariance of its projection and that of one pair."""
    return (4 * (items - 2) * projected + 2 * pairs) / (items * (items - 1))


def accept_test(reference: Reference, sample: Sample, null: Null, ratio: float, degrees: int) -> DriftTest:
    """Compare accept rates by their square roots, which are less skewed than small rates."""
    from scipy.special import stdtr

    moments = null_moments(reference, sample.items, null, ratio)
    value, expected = float(sample.shares[0]), float(moments[0][0])
    of_card, of_set, near = float(moments[1][0, 0]), float(moments[2][0, 0]), expected
    if null == "new_classes" and value > 0:
        classes = over_classes(reference, 1, ratio)[0, 0] * sample.accept_variance / reference.item_total[0, 0]
        of_set, near = classes + u_variance(sample.accept_variance, value * (1 - value), sample.items), value
    error = float(np.sqrt(of_card + of_set))
    if expected <= 0 or error <= 0:
        return DriftTest("accept_rate", value, expected, error, 1.0 if value == expected else 0.0)
    deviation = 2 * (np.sqrt(value) - np.sqrt(expected)) / np.sqrt(of_card / expected + of_set / near)
    return DriftTest("accept_rate", value, expected, error, float(2 * stdtr(degrees, -abs(deviation))))


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


def centre_test(items: int, centre: Moments, sample: Sample, null: Null, ratio: float, degrees: int) -> DriftTest:
    """Compare the mean unit vectors; ``items`` is the number of the card's items.

    A rotated space has the same distances, but another centre.
    """
    statistic = float(np.square(sample.centre - centre.mean).sum())
    parts = [centre.items / np.array([sample.items, sample.items**2])]
    if null == "same_classes":
        parts.append(centre.within / np.array([items, items**2]))
    else:
        parts += [centre.classes, centre.classes * np.array([ratio, ratio**2])]
    trace = sum(part[0] for part in parts)
    square = sum(np.sqrt(part[1]) for part in parts) ** 2  # at least the trace of the square of the sum
    return sum_of_squares("centre", statistic, np.array([trace, min(square, trace**2)]), degrees)


def length_test(items: int, log_length: Moments, sample: Sample, null: Null, ratio: float, degrees: int) -> DriftTest:
    """Compare the mean logarithms of the lengths; deviations far below the tolerance of a unit length do not count."""
    from scipy.special import stdtr

    value, expected = sample.log_lengths.mean(), log_length.mean[0]
    variance = log_length.items[0] / sample.items + UNIT_TOLERANCE**2
    if null == "same_classes":
        variance += log_length.within[0] / items
    else:
        spread = sample.log_lengths.var() / max(log_length.items[0], UNIT_TOLERANCE**2)  # as for the accept rate
        variance += log_length.classes[0] * (1 + ratio * spread)
    deviation = (value - expected) / np.sqrt(variance)
    error = float(np.exp(expected) * np.sqrt(variance))
    p_value = float(2 * stdtr(degrees, -abs(deviation)))
    return DriftTest("lengths", float(np.exp(value)), float(np.exp(expected)), error, p_value)


def measure_sample(data: ClassSortedVectors, log_lengths: Floats, distances: Floats) -> Sample:
    """Compare the items of a set with each other; ``log_lengths`` (n,) are those of the vectors as they were given."""
    n, similarities, within = len(data.vectors), similarity_of(distances), np.zeros(len(distances))
    accepted = np.empty(n)
    for first in range(0, n, ROWS):
        rows = np.arange(first, min(first + ROWS, n))
        similarity = data.similarity(rows, slice(None))
        similarity[rows - first, rows] = -np.inf  # an item is not paired with itself
        within += [np.count_nonzero(similarity >= least) for least in similarities]
        accepted[rows] = np.count_nonzero(similarity >= similarities[0], axis=1) / (n - 1)
    pairs = n * (n - 1)  # both orders of each
    return Sample(n, within / pairs, log_lengths, data.vectors.mean(axis=0), float(accepted.var()))


def stability_index(shares: Floats, expected: Floats) -> float:
    """Compute the population stability index of the bins between cumulative shares.

    It is the sum over bins of (p - q) ln(p / q); by custom, below 0.1 is little change and above 0.25 much.

    >>> round(stability_index(np.array([0.9]), np.array([0.5])), 3)
    0.879
    """
    found = np.maximum(np.diff(np.concatenate([[0.0], shares, [1.0]])), LEAST_SHARE)
    usual = np.maximum(np.diff(np.concatenate([[0.0], expected, [1.0]])), LEAST_SHARE)
    return float(((found - usual) * np.log(found / usual)).sum())
