"""The offsets of enrolled classes: from the negatives of their templates and from their own items.

A class whose template is similar to everything gets a higher threshold, and so does a class whose own items are very
similar to each other. Both parts are taken relative to the mean class and are shrunk towards it where few items are
enrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from isomargin.equalize.enrolled import Enrolled, Places, Positives
from isomargin.equalize.rows import Floats

QUANTILE = 0.998  # of the negatives


class Mix(NamedTuple):
    """How an offset is composed."""

    negative_weight: float
    """The weight of the quantile of the negatives' similarities to the class."""
    positive_weight: float
    """The weight of the mean similarity of the class's items to the class without them."""
    shrink: float
    """By how much the offset of a class of two items is shrunk towards 0."""

    @property
    def words(self) -> str:
        """The mix in words.

        >>> Mix(0.5, 0.25, 0.0).words
        'weight 0.5 of the 99.8% quantile of the negatives, 0.25 of the mean of the positives, shrinkage 0'
        """
        return (
            f"weight {self.negative_weight:.3g} of the {100 * QUANTILE:g}% quantile of the negatives, "
            f"{self.positive_weight:.3g} of the mean of the positives, shrinkage {self.shrink:.3g}"
        )


ONE_THRESHOLD = Mix(0.0, 0.0, 0.0)


def mean_mix(mixes: Sequence[Mix], rates: Floats, width: float) -> Mix:
    """Average mixes by how low their rates are: one that is higher than the lowest by ``width`` counts 1/e as much.

    The lowest of several similar rates is so by chance; the mean does not depend on which.

    >>> mean_mix([Mix(0.25, 0.25, 0.0), Mix(0.5, 0.25, 0.0), Mix(1.0, 0.0, 0.0)], np.array([0.4, 0.4, 0.5]), 0.004)
    Mix(negative_weight=0.375, positive_weight=0.25, shrink=0.0)
    """
    weights = np.exp(-(rates - rates.min()) / max(width, 1e-12))
    return Mix(*(round(float(value), 6) for value in np.average(np.array(mixes), axis=0, weights=weights)))


@dataclass(frozen=True)
class ClassParts:
    """What the offsets of classes are composed of, while some of them are not enrolled."""

    enrolled: NDArray[np.bool_]
    """(classes,) which are."""
    sizes: Places
    """(classes,) number of items."""
    quantiles: Floats
    """(classes,) the quantile of the negatives' similarities; NaN for a class without negatives."""
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
            (mix.negative_weight, self.quantiles[classes], self.quantiles),
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


def negative_quantiles(gallery: Enrolled, rows: Places, held_out: NDArray[np.bool_]) -> Floats:
    """Compute the quantile of other classes' similarities to each class.

    Args:
        gallery: the enrolled classes.
        rows: (m,) the items that serve as negatives.
        held_out: (trials, classes) whether the items of a class do not serve.

    Returns:
        (trials, classes) the quantiles; NaN where there is no negative.
    """
    found = np.empty(held_out.shape)
    probes, class_of = gallery.vectors[rows], gallery.class_of[rows]
    for classes in gallery.chunks():
        similarities = np.ascontiguousarray(gallery.similarities(probes, classes).T)  # (classes of the chunk, m)
        order = np.argsort(-similarities, axis=1)
        numbers = np.arange(classes.start, classes.stop)
        found[:, classes] = quantiles_of_others(similarities, order, class_of, numbers, held_out, QUANTILE)
    return found


@njit(nogil=True, cache=True)
def quantiles_of_others(
    values: NDArray[np.float32],
    order: Places,
    class_of: Places,
    own: Places,
    left_out: NDArray[np.bool_],
    quantile: float,
) -> Floats:
    """Compute a quantile of each row's values, interpolated linearly, while some classes are left out.

    Args:
        values: (rows, m) similarities.
        order: (rows, m) the places of the largest first, which are sorted once for all trials.
        class_of: (m,) the class of each column.
        own: (rows,) the class of each row, whose columns do not count.
        left_out: (trials, classes) whether the columns of a class do not count.
        quantile: which.

    Returns:
        (trials, rows) the quantiles; NaN where no column counts.
    """
    found = np.full((len(left_out), len(values)), np.nan)
    for trial in range(len(left_out)):
        for row in range(len(values)):
            total = 0
            for column in range(len(class_of)):
                total += class_of[column] != own[row] and not left_out[trial, class_of[column]]
            if total == 0:
                continue
            place = (1 - quantile) * (total - 1)  # from the largest
            above = min(int(place + 1e-9), total - 1)
            below = min(above + 1, total - 1)
            seen, upper = 0, 0.0
            for column in order[row]:
                if class_of[column] != own[row] and not left_out[trial, class_of[column]]:
                    if seen == above:
                        upper = values[row, column]
                    if seen == below:
                        found[trial, row] = upper + (place - above) * (values[row, column] - upper)
                        break
                    seen += 1
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
