"""The offsets of enrolled classes: from the negatives of their templates and from their own items.

A class whose template is similar to everything gets a higher threshold, and so does a class whose own items are very
similar to each other. Both parts are taken relative to the mean class and are shrunk towards it where few items are
enrolled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.equalize.enrolled import NOTHING, Enrolled, Places, Positives
from isomargin.equalize.rows import Floats


class Mix(NamedTuple):
    """How an offset is composed."""

    quantile: float
    """The quantile of the negatives' similarities to the class."""
    negative_weight: float
    """The weight of that quantile."""
    positive_weight: float
    """The weight of the mean similarity of the class's items to the class without them."""
    shrink: float
    """By how much the offset of a class of two items is shrunk towards 0."""


ONE_THRESHOLD = Mix(0.99, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class ClassParts:
    """What the offsets of classes are composed of, while some of them are not enrolled."""

    enrolled: NDArray[np.bool_]
    """(classes,) which are."""
    sizes: Places
    """(classes,) number of items."""
    quantiles: dict[float, Floats]
    """By quantile, (classes,) that quantile of the negatives' similarities; NaN for a class without negatives."""
    positives: Floats
    """(classes,) mean similarity of the items to the class without them; NaN for a class of one item."""

    def offsets(self, mix: Mix) -> Floats:
        """(classes,) what is subtracted from the similarities to each class; infinite for those not enrolled."""
        offsets = self.composed(mix, np.arange(len(self.sizes)), self.positives, self.sizes - 1)
        return np.where(self.enrolled, offsets, np.inf)

    def composed(self, mix: Mix, classes: Places, positives: Floats, compared: Places) -> Floats:
        """Compose offsets.

        Args:
            mix: how.
            classes: (m,) the class of each offset.
            positives: (m,) the mean similarity of items to their class.
            compared: (m,) the number of items in it beyond the first.
        """
        usual = self.enrolled & (self.sizes > 1)
        offsets = np.zeros(len(classes))
        parts = (
            (mix.negative_weight, self.quantiles[mix.quantile][classes], self.quantiles[mix.quantile]),
            (mix.positive_weight, positives, self.positives),
        )
        for weight, values, of_all in parts:
            common = of_all[usual & np.isfinite(of_all)]
            if weight and len(common):
                offsets += weight * np.nan_to_num(values - common.mean())
        return offsets * kept_share(compared, mix.shrink)


def kept_share(compared: Places, shrink: float) -> Floats:
    """Return what is left of an offset: the reliability of a mean of so many items, if that of one is 1 - shrink.

    This is the Spearman-Brown formula. Nothing is left for a class of one item, which has no other to compare it with.

    >>> kept_share(np.array([0, 1, 9]), 0.5)
    array([0. , 0.5, 0.9])
    """
    reliable = (1 - shrink) * np.maximum(compared, 0)
    return np.asarray(reliable / np.maximum(reliable + shrink, 1e-12) * (compared > 0))


def negative_quantiles(
    gallery: Enrolled, rows: Places, held_out: list[NDArray[np.bool_]], quantiles: tuple[float, ...]
) -> list[dict[float, Floats]]:
    """Compute the quantiles of other classes' similarities to each class.

    Args:
        gallery: the enrolled classes.
        rows: (m,) the items that serve as negatives.
        held_out: for each element of the result, (classes,) whether the items of a class do not serve.
        quantiles: which.

    Returns:
        for each element of ``held_out``, by quantile, (classes,) the quantiles; NaN where there is no negative.
    """
    found = [{quantile: np.full(len(gallery.names), np.nan) for quantile in quantiles} for _ in held_out]
    probes, class_of = gallery.vectors[rows], gallery.class_of[rows]
    for classes in gallery.chunks():
        similarities = gallery.similarities(probes, classes).T  # (classes of the chunk, m)
        similarities = np.where(np.arange(classes.start, classes.stop)[:, None] == class_of, NOTHING, similarities)
        for left_out, by_quantile in zip(held_out, found, strict=True):
            used = similarities[:, ~left_out[class_of]]
            for quantile, values in row_quantiles(used, quantiles).items():
                by_quantile[quantile][classes] = values
    return found


def row_quantiles(values: NDArray[np.float32], quantiles: tuple[float, ...]) -> dict[float, Floats]:
    """Compute quantiles of the finite entries of each row, interpolated linearly; NaN for a row without any.

    >>> row_quantiles(np.array([[0, 3, 1, 2], [-np.inf, 1, -np.inf, 2]], np.float32), (0.5,))
    {0.5: array([1.5, 1.5])}
    """
    counts = np.isfinite(values).sum(axis=1)
    if not values.shape[1]:
        return {quantile: np.full(len(values), np.nan) for quantile in quantiles}
    length = min(values.shape[1], int((1 - min(quantiles)) * values.shape[1]) + 2)
    largest = -np.sort(np.partition(-values, length - 1, axis=1)[:, :length], axis=1)  # largest first
    found = {}
    for quantile in quantiles:
        place = (1 - quantile) * np.maximum(counts - 1, 0)  # from the largest
        above = np.floor(place + 1e-9).astype(np.int64)
        below = np.minimum(above + 1, np.maximum(counts - 1, 0))
        at = np.arange(len(values))
        higher, lower = largest[at, above].astype(np.float64), largest[at, below].astype(np.float64)
        with np.errstate(invalid="ignore"):  # rows without a finite entry
            found[quantile] = np.where(counts > 0, higher + (place - above) * (lower - higher), np.nan)
    return found


def positives_without(positives: Positives, sizes: Places, class_of: Places) -> Floats:
    """(probes,) the mean positives of each probe's class without the probe, as far above those of other classes.

    Without the probe the other items are compared with one item fewer, which lowers their similarities, in small
    classes most. The mean difference of classes of the same size is added again.

    Args:
        positives: those of the gallery.
        sizes: (classes,) number of items.
        class_of: (probes,) the class of each probe.
    """
    raised = positives.mean_without.copy()
    known = np.isfinite(raised)
    of_size, size = np.unique(sizes[class_of[known]], return_inverse=True)
    lower = positives.mean[class_of[known]] - raised[known]
    means = np.bincount(size, lower, len(of_size)) / np.maximum(np.bincount(size, minlength=len(of_size)), 1)
    raised[known] += means[size]
    return raised
