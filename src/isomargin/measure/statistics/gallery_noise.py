"""Noise in the rates of a gallery: of few probes per class, and of pairs of a template and a probe's class."""

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import ClassDistances, Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData, own_scores
from isomargin.measure.pairs.retrieval import QUANTUM
from isomargin.measure.scores.curves import share
from isomargin.measure.statistics.item_noise import FEWEST, ItemNoise

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
        parts = [scores for _, scores in own_scores(data)]
        variance = np.array([item_variance(parts[i], data, levels) for i in large])
    else:
        known_class, sizes = data.probe_class[: data.known], data.known_sizes[large, None]
        accepted = np.stack(
            [np.bincount(known_class[own_distance <= level], minlength=data.classes) for level in levels], axis=1
        )
        rate = accepted[large] / sizes
        variance = rate * (1 - rate) / (sizes - 1)
    nothing = np.zeros(variance.shape, np.float32)
    return ItemNoise(large, levels, variance.astype(np.float32), nothing, nothing)


def item_variance(scores: Floats, data: GalleryData, levels: Floats) -> Floats:
    """(levels,) variance of a class's sensitivity from the (probes, items) similarities of its probes to its items."""
    counted = ~np.isnan(scores)
    found = data.axis.distances(np.where(counted, scores, -np.inf), QUANTUM)
    accepted = [(found <= level).sum(axis=1) / counted.sum(axis=1) for level in levels]
    return np.asarray(np.var(accepted, axis=1, ddof=1) / len(scores))


def template_share(data: GalleryData, negatives: ClassDistances, levels: Floats) -> Floats:
    r"""(levels,) which part of the variance of the pooled FAR over templates is that of templates.

    The comparisons of a template and of a probe's class go together. With V_T, V_P and V_TP the variances of the pooled
    FAR if templates, probes' classes, or pairs of the two were independent, its variance is V_T + V_P - V_TP: what
    concerns pairs is in both of the first two. This is (V_T - V_TP) / V_T. V_TP is estimated from up to 1,024 probes
    and as many rows of the gallery, whole classes of each.
    """
    generator = np.random.default_rng(0)
    probes, of_probe = sample_classes(data.probe_class, generator)
    rows, of_row = sample_classes(data.row_class, generator)
    similarity = data.probes[probes].astype(np.float64) @ data.rows[rows].astype(np.float64).T
    if data.row_shifts is not None and data.probe_shifts is not None:
        similarity += data.probe_shifts[probes, None] + data.row_shifts[rows]
    starts = [np.flatnonzero(np.diff(places, prepend=-1)) for places in (of_probe, of_row)]
    if data.template == "max":
        similarity = np.maximum.reduceat(similarity, starts[1], axis=1)
        of_row = of_row[starts[1]]
        starts[1] = np.arange(len(of_row))
    other = of_probe[:, None] != of_row
    distances = np.where(other, data.axis.distances(similarity, QUANTUM), np.inf)
    compared = by_cell(other, starts)
    totals = negatives.totals.astype(np.float64)
    within = negatives.within(levels)
    pooled = within.sum(axis=0) / totals.sum()
    of_templates = np.square(within - pooled * totals[:, None]).sum(axis=0)
    of_pairs = [
        np.square(by_cell(distances <= level, starts) - rate * compared).sum()
        for level, rate in zip(levels, pooled, strict=True)
    ]
    scale = totals.sum() / max(compared.sum(), 1.0)
    return np.clip(1 - share(scale * np.array(of_pairs), of_templates), 0.0, 1.0)


def sample_classes(
    class_of: NDArray[np.int64], generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of random whole classes, ascending, and the class of each; about 1,024 places."""
    sizes = np.bincount(class_of)
    order = generator.permutation(np.flatnonzero(sizes))
    number = max(2, int(np.searchsorted(np.cumsum(sizes[order]), SAMPLED, side="right")))
    places = np.flatnonzero(np.isin(class_of, order[:number]))
    return places, class_of[places]


def by_cell(found: NDArray[np.bool_], starts: list[NDArray[np.int64]]) -> Floats:
    """(probe classes, classes) sums over the comparisons of each pair of classes."""
    sums = np.add.reduceat(found, starts[0], axis=0, dtype=np.float64)
    return np.asarray(np.add.reduceat(sums, starts[1], axis=1))
