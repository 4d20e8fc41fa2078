"""What a pass of probes over a gallery leaves behind, and the exact pass in float64.

The exact pass holds all scores at once, so it is for galleries of a few million comparisons;
``gallery_tiles.py`` counts larger ones in bins.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, ClassDistances, Floats, ListedDistances
from isomargin.measure.pairs.gallery_inputs import GalleryData, own_scores
from isomargin.measure.pairs.retrieval import QUANTUM
from isomargin.measure.pairs.tiles import LISTED_POSITIVES, MOST_CELLS

LISTED = 1 << 23  # up to this many comparisons are listed
CHUNK = 1 << 22  # similarities computed at a time
PROBE_BINS = 512  # bins of the scores of each probe class, which only intervals need
PROBE_CELLS = 1 << 25  # probe classes x bins
LEAST_PROBE_BINS = 64
FEWEST_BINS = 512
OWN_BINS = 1 << 13  # at most so many for the scores of probes against their own classes, if there are too many to list


class ProbeScores(NamedTuple):
    """The best scores of each probe, as distances.

    "First" and "second" are the nearest and second nearest class other than the probe's own.
    """

    own_distance: Floats  # (known,) to the probe's own class: its nearest row
    own_rank: NDArray[np.int64]  # (known,) 1 + classes (rows, if every item stands by itself) that are nearer
    first_distance: Floats  # (n,)
    first_class: NDArray[np.int64]  # (n,)
    second_distance: Floats  # (n,) the end of the axis if there is none
    second_class: NDArray[np.int64]  # (n,) -1 if there is none


class OwnDistances(NamedTuple):
    """The distances of some known probes to their own classes."""

    nearest: Floats  # (probes,) to the nearest row
    listed: Floats  # (pairs,) to every item, probe by probe, if every item stands by itself and they are few
    binned: NDArray[np.int64] | None  # (classes, bins) the same if they are many, from the class of the first probe on


class GalleryPass(NamedTuple):
    """The results of a pass of all probes over a gallery."""

    counts: PairCounts  # by enrolled class; a negative belongs to the class of the template
    by_probe: BinnedDistances  # (classes + unknown classes, bins) the same negatives by the class of the probe
    scores: ProbeScores


def probe_bins(data: GalleryData) -> int:
    """Return the number of bins for the scores of each probe class."""
    rows = data.classes + len(data.unknown_names)
    return int(np.clip(PROBE_CELLS // rows, LEAST_PROBE_BINS, PROBE_BINS))


def own_distances(data: GalleryData, first: int = 0, end: int | None = None) -> OwnDistances:
    """Compare the known probes from ``first`` to ``end`` with their own classes."""
    end = data.known if end is None else min(end, data.known)
    nearest = np.empty(max(end - first, 0))
    listed: list[Floats] = []
    bins = own_bins(data)
    classes = data.probe_class[first:end]
    first_class, last_class = (int(classes[0]), int(classes[-1])) if len(classes) else (0, -1)
    binned = np.zeros((last_class + 1 - first_class, bins), np.int64) if bins else None
    for probes, scores in own_scores(data, first, end):
        counted = ~np.isnan(scores)
        found = data.axis.distances(np.where(counted, scores, -np.inf), QUANTUM)
        nearest[probes.start - first : probes.stop - first] = found.min(axis=1)
        if binned is not None:
            span = data.axis.lowest, data.axis.highest
            binned[data.probe_class[probes.start] - first_class] += np.histogram(found[counted], bins, span)[0]
        elif data.template == "each":
            listed.append(found[counted])
    return OwnDistances(nearest, np.concatenate(listed) if listed else np.empty(0), binned)


def own_bins(data: GalleryData) -> int:
    """Return the number of bins of the distances to own classes; 0 if they are listed."""
    if data.template != "each" or int((data.known_sizes * (data.ends - data.starts)).sum()) <= LISTED_POSITIVES:
        return 0
    return int(np.clip(MOST_CELLS // data.classes, FEWEST_BINS, OWN_BINS))


def positives_of(data: GalleryData, own: OwnDistances) -> ClassDistances:
    """Return the distances of all known probes to their own classes, by class."""
    if own.binned is not None:
        counts = np.zeros((data.classes, own.binned.shape[1]), np.int64)
        first = int(data.probe_class[0])
        counts[first : first + len(own.binned)] = own.binned
        return BinnedDistances.within_span(counts, (data.axis.lowest, data.axis.highest), data.axis, 1)
    values, its_class, numbers = own.nearest, data.probe_class[: data.known], data.known_sizes
    if data.template == "each":
        items = data.ends - data.starts - (data.own_row is not None)
        values, its_class, numbers = own.listed, np.repeat(its_class, items[its_class]), numbers * items
    order = np.lexsort((values, its_class))
    return ListedDistances(values[order], np.concatenate([[0], np.cumsum(numbers)]), 1, data.axis)


def compare_own(data: GalleryData) -> tuple[ClassDistances, Floats]:
    """Return the distances of known probes to their own classes by class, and (known,) the nearest of each probe."""
    own = own_distances(data)
    return positives_of(data, own), own.nearest


def list_by_class(parts: Sequence[Floats], axis: ScoreAxis) -> ListedDistances:
    """Join the distances of each class, which are ascending."""
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return ListedDistances(np.concatenate(parts), offsets, 1, axis)


def compare_exactly(data: GalleryData) -> GalleryPass:
    """Compare all probes with the whole gallery in float64; memory grows with the number of comparisons."""
    positives, own_distance = compare_own(data)
    distances = np.empty((len(data.probes), data.columns))
    step = max(1, CHUNK // len(data.rows))
    for first in range(0, len(data.probes), step):
        part = slice(first, first + step)
        similarity = data.similarity(slice(None), part).T
        if data.template == "max":
            similarity = np.maximum.reduceat(similarity, data.starts, axis=1)
        distances[part] = data.axis.distances(similarity, QUANTUM)
    column_class = data.row_class if data.template == "each" else np.arange(data.classes)
    known = slice(0, data.known)
    own = data.probe_class[known, None] == column_class
    distances[known][own] = np.inf  # the own class is no negative
    scores = rank_probes(data, distances, own_distance)
    by_class = [np.sort(column[column < np.inf]) for column in columns_by_class(distances, data)]
    negatives = list_by_class(by_class, data.axis)
    return GalleryPass(PairCounts(positives, negatives), bin_by_probe(data, distances), scores)


def columns_by_class(distances: Floats, data: GalleryData) -> list[Floats]:
    """Return the scores of each class, as views of (n, columns) distances, flattened."""
    if data.template != "each":
        return list(distances.T)
    return [distances[:, first:end].ravel() for first, end in zip(data.starts, data.ends, strict=True)]


def rank_probes(data: GalleryData, distances: Floats, own_distance: Floats) -> ProbeScores:
    """Find the first and second other class of each probe, and the rank of its own class."""
    nearer = (distances[: data.known] < own_distance[:, None]).sum(axis=1)
    by_class = np.minimum.reduceat(distances, data.starts, axis=1) if data.template == "each" else distances.copy()
    rows = np.arange(len(by_class))
    first = by_class.argmin(axis=1)
    first_distance = by_class[rows, first]
    by_class[rows, first] = np.inf
    second = by_class.argmin(axis=1)
    second_distance = by_class[rows, second]
    missing = second_distance == np.inf
    second_distance[missing] = data.axis.highest
    return ProbeScores(own_distance, nearer + 1, first_distance, first, second_distance, np.where(missing, -1, second))


def bin_by_probe(data: GalleryData, distances: Floats) -> BinnedDistances:
    """Count the negatives of each probe class in bins."""
    finite = distances < np.inf
    low, high = float(distances.min()), float(distances[finite].max())
    high = max(high, low + 2.0**-20)
    bins, rows = probe_bins(data), data.classes + len(data.unknown_names)
    width = (high - low) / bins
    counts = np.zeros((rows, bins), np.int64)
    for i, (row, kept) in enumerate(zip(distances, finite, strict=True)):
        place = np.minimum(((row[kept] - low) / width).astype(np.int64), bins - 1)
        counts[data.probe_class[i]] += np.bincount(place, minlength=bins)
    return BinnedDistances.within_span(counts, (low, high), data.axis, 1)
