"""Noise in the rates of a gallery: of few probes per class, and of pairs of a template and a probe's class."""

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import ClassDistances, Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData, own_scores
from isomargin.measure.pairs.retrieval import QUANTUM
from isomargin.measure.scores.curves import share
from isomargin.measure.statistics.item_noise import FEWEST, ItemNoise

LEAST_SHARE = 0.5  # what pairs alone would leave, if classes did not differ
SAMPLED = 1024  # probes, and rows of the gallery, whose comparisons are looked at by pairs of classes


def probe_noise(data: GalleryData, own_distance: Floats, levels: Floats) -> ItemNoise | None:
    """Estimate the variance of each class's sensitivity over other probes of the class, the templates as they are.

    That of its FAR is the noise of independent comparisons, which is added where it is used. None if fewer than two
    classes have at least four known probes.

    Args:
        data: the gallery and its probes.
        own_distance: (known,) distance of each known probe to its own class.
        levels: (levels,) distances at which to estimate it.
    """
    large = np.flatnonzero(data.known_sizes >= FEWEST)
    if len(large) < 2:
        return None
    if data.template == "each":
        variance = item_variance(data, large, levels)
    else:
        known_class, sizes = data.probe_class[: data.known], data.known_sizes[large, None]
        accepted = np.stack(
            [np.bincount(known_class[own_distance <= level], minlength=data.classes) for level in levels], axis=1
        )
        rate = accepted[large] / sizes
        variance = rate * (1 - rate) / (sizes - 1)
    nothing = np.zeros(variance.shape, np.float32)
    return ItemNoise(large, levels, variance.astype(np.float32), nothing, nothing)


def item_variance(data: GalleryData, large: NDArray[np.int64], levels: Floats) -> Floats:
    """(large, levels) variance of the sensitivity of classes of which every item stands by itself, over their probes.

    A probe's share is that of the items of its class that it is compared with and that accept it.
    """
    accepted = np.empty((data.known, len(levels)))
    for probes, scores in own_scores(data):
        counted = ~np.isnan(scores)
        found = data.axis.distances(np.where(counted, scores, -np.inf), QUANTUM)
        for j, level in enumerate(levels):
            accepted[probes, j] = (found <= level).sum(axis=1) / counted.sum(axis=1)
    starts = np.searchsorted(data.probe_class[: data.known], large)
    sizes = data.known_sizes[large]
    return np.array(
        [
            np.var(accepted[first : first + size], axis=0, ddof=1) / size
            for first, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]
    )


def class_share(data: GalleryData, negatives: ClassDistances, by_probe: ClassDistances, levels: Floats) -> Floats:
    r"""(levels,) which part of the variance of the pooled FAR that resampled classes show is real.

    A class takes part in comparisons as a template and with its probes. If :math:`T_i` is what all comparisons of
    class i deviate from the mean, and :math:`P_{ij}` what those of two classes do, in both directions, the variance of
    the sum is :math:`\sum_i T_i^2 - \sum_{i<j} P_{ij}^2`, since every pair is in the totals of both classes
    (Fafchamps and Gubert, 2007). Resampled classes show the first term alone; this is the quotient, at least one half,
    which is its mean if classes do not differ. The second term is estimated from the comparisons of up to 1,024 probes
    with up to 1,024 rows of the gallery, whole classes of each.
    """
    generator = np.random.default_rng(0)
    enrolled = draw_classes(np.bincount(data.row_class) + data.known_sizes, generator)
    unknown_sizes = np.bincount(data.probe_class[data.known :] - data.classes, minlength=len(data.unknown_names))
    unknown = data.classes + draw_classes(unknown_sizes, generator)
    totals = [pairs.totals.astype(np.float64) for pairs in (negatives, by_probe)]
    within = [pairs.within(levels) for pairs in (negatives, by_probe)]
    pooled = within[0].sum(axis=0) / totals[0].sum()
    of_probes = within[1] - totals[1][:, None] * (within[1].sum(axis=0) / totals[1].sum())
    of_probes[: data.classes] += within[0] - pooled * totals[0][:, None]
    of_classes = np.square(of_probes).sum(axis=0)
    known_total = float(totals[1][: data.classes].sum())
    of_pairs = np.zeros(len(levels))
    for chosen, number in ((enrolled, known_total), (unknown, float(totals[1].sum()) - known_total)):
        if number > 0 and chosen.size:
            of_pairs += number * pair_squares(data, enrolled, chosen, levels, pooled)
    return np.clip(1 - share(of_pairs, of_classes), LEAST_SHARE, 1.0)


def pair_squares(
    data: GalleryData, enrolled: NDArray[np.int64], probe_classes: NDArray[np.int64], levels: Floats, pooled: Floats
) -> Floats:
    """(levels,) squared deviations of pairs of classes, summed, per comparison, for some templates and probes."""
    probes, rows = (
        np.flatnonzero(np.isin(of, chosen))
        for of, chosen in ((data.probe_class, probe_classes), (data.row_class, enrolled))
    )
    if not probes.size:
        return np.zeros(len(levels))
    similarity = data.probes[probes].astype(np.float64) @ data.rows[rows].astype(np.float64).T
    if data.row_shifts is not None and data.probe_shifts is not None:
        similarity += data.probe_shifts[probes, None] + data.row_shifts[rows]
    starts = [np.flatnonzero(np.diff(of, prepend=-1)) for of in (data.probe_class[probes], data.row_class[rows])]
    probe_class, row_class = data.probe_class[probes], data.row_class[rows]
    if data.template == "max":
        similarity = np.maximum.reduceat(similarity, starts[1], axis=1)
        row_class = row_class[starts[1]]
        starts[1] = np.arange(len(row_class))
    other = probe_class[:, None] != row_class
    distances = np.where(other, data.axis.distances(similarity, QUANTUM), np.inf)
    compared = by_cell(other, starts)
    ends = [np.searchsorted(enrolled, of[begin]) for of, begin in ((probe_class, starts[0]), (row_class, starts[1]))]
    both_ways = bool((probe_classes < data.classes).all())
    found = []
    for level, rate in zip(levels, pooled, strict=True):
        cells = by_cell(distances <= level, starts) - rate * compared
        if both_ways:  # classes that are templates and probes: both directions of a pair go together
            square = np.zeros((len(enrolled), len(enrolled)))
            square[np.ix_(*ends)] = cells
            found.append(np.square(square + square.T).sum() / 2)
        else:
            found.append(np.square(cells).sum())
    return np.array(found) / max(float(compared.sum()), 1.0)


def draw_classes(sizes: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return random classes, ascending, with about 1,024 probes or rows together."""
    order = generator.permutation(np.flatnonzero(sizes))
    number = max(2, int(np.searchsorted(np.cumsum(sizes[order]), SAMPLED, side="right")))
    return np.sort(order[:number])


def by_cell(found: NDArray[np.bool_], starts: list[NDArray[np.int64]]) -> Floats:
    """(probe classes, classes) sums over the comparisons of each pair of classes."""
    sums = np.add.reduceat(found, starts[0], axis=0, dtype=np.float64)
    return np.asarray(np.add.reduceat(sums, starts[1], axis=1))
