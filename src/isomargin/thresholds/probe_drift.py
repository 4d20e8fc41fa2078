r"""Are probes without labels a random sample of what the card of a gallery was measured on? Tests of two hypotheses.

The gallery is that of the card in both cases.

- ``same_classes``: other probes of the same classes, enrolled and unknown, drawn at random in the same mix.
- ``new_classes``: probes of other classes of the same kind, known and unknown in the same proportion. Other known
  classes are other enrolled classes (as if the classes that are asked for were drawn again among the enrolled ones);
  other unknown classes are classes never seen.

Every statistic is a mean over probes. For the same classes its variance is that of one probe divided by their number,
once for the card and once for the new probes. For new classes the variance over classes is added, of known and of
unknown classes apart, and the card's own error is that over its classes and of its proportion of unknown probes.
"""

import numpy as np

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData
from isomargin.thresholds.drift import DriftTest, Null, Sample, centre_test, distribution_test, length_test
from isomargin.thresholds.probe_reference import ProbeReference, probe_values


def measure_probes(data: GalleryData, log_lengths: Floats, distances: Floats, margin: float) -> tuple[Sample, float]:
    """Compare probes with a gallery; return the sample, and the share of the probes with any class accepted."""
    values = probe_values(data, distances, margin)
    centre = data.probes.mean(axis=0, dtype=np.float64)
    means = values.mean(axis=0)
    return Sample(len(values), means[1:], log_lengths, centre, float(values[:, 1].var())), float(means[0])


def probe_tests(
    reference: ProbeReference, sample: Sample, accepted: float, null: Null, classes: int | None = None
) -> tuple[DriftTest, ...]:
    """Test probes against one null hypothesis, with every statistic.

    ``accepted`` is the share of the probes with any class accepted, ``classes`` the number of their classes, for
    ``new_classes``; by default as many as the card's.
    """
    ratio = 1.0 if classes is None or null == "same_classes" else reference.classes / classes
    of_card, of_set = null_covariances(reference, sample.items, null, ratio)
    edges = slice(2, None)
    degrees = degrees_of(reference, edges, null)
    tests = [
        accepted_test(reference, sample.items, accepted, null, ratio),
        accept_rate_test(reference, sample, null, ratio),
        distribution_test(
            sample.shares[1:], reference.means[edges], (of_card + of_set)[edges, edges], max(int(degrees), 1)
        ),
        centre_test(reference.items, reference.centre, sample, null, ratio, max(int(degrees), 1)),
    ]
    if not reference.unit_lengths:
        tests.append(length_test(reference.items, reference.log_length, sample, null, ratio, max(int(degrees), 1)))
    return tuple(tests)


def null_covariances(reference: ProbeReference, probes: int, null: Null, ratio: float) -> tuple[Floats, Floats]:
    """(m, m) covariances of the means: the card's, and those of new probes; ``ratio`` is of the numbers of classes."""
    of_probes = reference.total / probes
    if null == "same_classes":
        return reference.total / reference.items, of_probes
    over_classes = reference.over_known + reference.over_unknown
    difference = reference.known_means - reference.unknown_means
    known, unknown = reference.known / reference.items, reference.unknown / reference.items
    of_proportion = known * unknown * np.outer(difference, difference) / reference.items
    return over_classes + of_proportion, ratio * over_classes + of_probes


def degrees_of(reference: ProbeReference, which: slice, null: Null) -> float:
    """Return the degrees of freedom of variances over classes, known and unknown ones apart (Welch, 1947)."""
    if null == "same_classes":
        return float(reference.items - 1)
    parts = [float(np.diag(over)[which].sum()) for over in (reference.over_known, reference.over_unknown)]
    numbers = (reference.known_classes, reference.unknown_classes)
    below = sum(part**2 / (number - 1) for part, number in zip(parts, numbers, strict=True) if number > 1)
    return sum(parts) ** 2 / below if below > 0 else float(reference.items - 1)


def accepted_test(reference: ProbeReference, probes: int, accepted: float, null: Null, ratio: float) -> DriftTest:
    """Compare the shares of probes with any class accepted; half a probe is added to each side of a share."""
    expected = float(reference.means[0])
    near, usual = smoothed(accepted, probes), smoothed(expected, reference.items)
    of_card, of_set = null_covariances(reference, probes, null, ratio)
    one_probe = usual * (1 - usual)
    card = max(float(of_card[0, 0]), one_probe / reference.items)
    new = max(float(of_set[0, 0]), one_probe / probes)
    degrees = degrees_of(reference, slice(0, 1), null)
    if null == "new_classes":  # a set of other classes varies as its own share says
        new, one_probe = new * near * (1 - near) / one_probe, near * (1 - near)
    deviation = arcsine_deviation(near, usual, card, new, one_probe)
    error = float(np.sqrt(card + new))
    return DriftTest("accepted_probes", accepted, expected, error, two_sided(deviation, degrees))


def accept_rate_test(reference: ProbeReference, sample: Sample, null: Null, ratio: float) -> DriftTest:
    """Compare the shares of accepted comparisons; for new classes, the set's variance is that of its own probes."""
    value, expected = float(sample.shares[0]), float(reference.means[1])
    covariances = null_covariances(reference, sample.items, null, ratio)
    of_card, of_set = (float(covariance[1, 1]) for covariance in covariances)
    at = expected * (1 - expected)
    if null == "new_classes" and 0 < value < 1 and reference.total[1, 1] > 0:
        of_set *= sample.accept_variance / float(reference.total[1, 1])
        at = value * (1 - value)
    error = float(np.sqrt(of_card + of_set))
    if not 0 < expected < 1 or error <= 0:
        return DriftTest("accept_rate", value, expected, error, 1.0 if value == expected else 0.0)
    deviation = arcsine_deviation(value, expected, of_card, of_set, at)
    degrees = degrees_of(reference, slice(1, 2), null)
    return DriftTest("accept_rate", value, expected, error, two_sided(deviation, degrees))


def arcsine_deviation(value: float, expected: float, of_card: float, of_set: float, at: float) -> float:
    """Compare two shares on the scale of arcsines of square roots, on which small and large ones are less skewed.

    ``of_card`` and ``of_set`` are their variances, and ``at`` is p (1 - p) at the share p to which the latter belongs.
    """
    difference = np.arcsin(np.sqrt(value)) - np.arcsin(np.sqrt(expected))
    return float(2 * difference / np.sqrt(of_card / (expected * (1 - expected)) + of_set / at))


def smoothed(share: float, number: int) -> float:
    """Return a share with half an event added on either side, so that it is never 0 or 1."""
    return (share * number + 0.5) / (number + 1)


def two_sided(deviation: float, degrees: float) -> float:
    """Return the probability of a deviation at least this large, by Student's distribution."""
    from scipy.special import stdtr

    return float(2 * stdtr(degrees, -abs(deviation)))
