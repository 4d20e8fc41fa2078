"""The enrolled classes of a gallery: their templates, and the similarities of items to classes.

With ``"mean"`` a class's template is the unit mean of its unit vectors. With ``"max"`` and ``"each"`` every enrolled
item is a template, and the best of a class counts. Products are computed in chunks, never for all items at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.labels import labels_of_rows
from isomargin.equalize.rows import Floats, Singles, unit_vectors

Template = Literal["mean", "max", "each"]
Places = NDArray[np.int64]

MOST_POSITIVES = 500  # items of a class that are compared with the class without them
TEMPLATE_ROWS = 1024  # templates in one chunk of a product
SHORTEST = 1e-6  # a mean of unit vectors that is shorter has no direction
NOTHING = np.float32(-np.inf)  # the similarity to a class without templates


class Positives(NamedTuple):
    """The similarities of enrolled items to the rest of their own class."""

    mean: Floats
    """(classes,) mean over the items of a class, each compared with the others; NaN for a class of one item."""
    own: Floats
    """(probes,) similarity of each probe to its class without it; NaN for a class of one item."""
    mean_without: Floats
    """(probes,) what `mean` of the class would be if the probe were not enrolled; NaN for a class of two items."""


@dataclass(frozen=True)
class Enrolled:
    """Enrolled items, sorted by class."""

    vectors: Singles
    """(n, d) unit vectors."""
    starts: Places
    """(classes + 1,) the first row of each class, and n."""
    names: NDArray[Any]
    """(classes,) labels, in ascending order."""
    template: Template
    """How templates are made."""

    @classmethod
    def of(cls, gallery: Any, labels: Any, template: Template) -> Enrolled:
        """Sort the items of a gallery by class."""
        vectors = unit_vectors(gallery)
        names, class_of = np.unique(labels_of_rows(labels, len(vectors)), return_inverse=True)
        order = np.argsort(class_of, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(class_of))])
        return cls(np.ascontiguousarray(vectors[order]), starts, names, template)

    @property
    def sizes(self) -> Places:
        """(classes,) number of enrolled items."""
        return np.diff(self.starts)

    @cached_property
    def class_of(self) -> Places:
        """(n,) the class of each row."""
        return np.repeat(np.arange(len(self.names)), self.sizes)

    @property
    def means(self) -> Floats:
        """(classes, d) the mean of each class's unit vectors, which is shorter than one."""
        sums = np.add.reduceat(self.vectors, self.starts[:-1], axis=0, dtype=np.float64)
        return np.asarray(sums / self.sizes[:, None])

    @cached_property
    def templates(self) -> Singles:
        """(classes, d) the mean templates, or the items themselves."""
        if self.template != "mean":
            return self.vectors
        means = self.means
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        if (lengths < SHORTEST).any():
            name = self.names[int(lengths.argmin())]
            raise InputError(
                f"the unit vectors of class {str(name)!r} cancel out, so that their mean has no direction: enrol other "
                'items, or use template="max"'
            )
        return np.asarray(means / lengths, np.float32)

    @property
    def template_starts(self) -> Places:
        """(classes + 1,) the first template of each class, and their number."""
        return np.arange(len(self.names) + 1) if self.template == "mean" else self.starts

    def chunks(self) -> Iterator[slice]:
        """Yield ranges of classes with few templates each; a class is never divided."""
        first, starts = 0, self.template_starts
        while first < len(self.names):
            last = max(first + 1, int(np.searchsorted(starts, starts[first] + TEMPLATE_ROWS, side="right")) - 1)
            yield slice(first, last)
            first = last

    def similarities(self, probes: Singles, classes: slice) -> Singles:
        """(probes, classes) the similarity of each probe to each class of a range."""
        starts = self.template_starts[classes.start : classes.stop + 1]
        products = probes @ self.templates[starts[0] : starts[-1]].T
        if self.template == "mean":
            return np.asarray(products)
        return np.asarray(np.maximum.reduceat(products, starts[:-1] - starts[0], axis=1))

    def positives(self, probes: Places, generator: np.random.Generator) -> Positives:
        """Compare items with the rest of their own class.

        Args:
            probes: (probes,) rows, in ascending order.
            generator: draws the items of classes with more than `MOST_POSITIVES`.
        """
        mean = np.full(len(self.names), np.nan)
        own, without = np.full((2, len(probes)), np.nan)
        first_probe = np.searchsorted(probes, self.starts)
        for number in np.flatnonzero(self.sizes > 1):
            start, size = self.starts[number], self.sizes[number]
            of_class = slice(first_probe[number], first_probe[number + 1])
            judged = probes[of_class] - start
            rows = np.arange(size)
            if size > MOST_POSITIVES:
                drawn = generator.choice(size, MOST_POSITIVES, replace=False)
                rows = np.union1d(drawn, judged)
            compare = without_one_mean if self.template == "mean" else without_one_best
            one, both = compare(self.vectors[start : start + size], rows, np.searchsorted(rows, judged))
            mean[number], own[of_class] = one.mean(), one[np.searchsorted(rows, judged)]
            if size > 2:
                without[of_class] = (both.sum(axis=1)) / (len(rows) - 1)
        return Positives(mean, own, without)


def without_one_mean(vectors: Singles, rows: Places, judged: Places) -> tuple[Floats, Floats]:
    """Compare the items of a class with the mean of the others.

    Args:
        vectors: (n, d) the class.
        rows: (m,) the items that are compared.
        judged: (p,) places in ``rows``.

    Returns:
        (m,) similarities of the items to the mean of all others, and (p, m) the same if a judged item were not
        enrolled; there the item itself has 0.
    """
    items = vectors[rows].astype(np.float64)
    total = vectors.sum(axis=0, dtype=np.float64)
    to_total, square = items @ total, float(total @ total)
    squares = np.einsum("ij,ij->i", items, items)
    one = cosine(to_total - squares, square - 2 * to_total + squares)
    between = items[judged] @ items.T
    rest = square - 2 * (to_total[judged, None] + to_total) + squares[judged, None] + squares + 2 * between
    both = cosine(to_total - squares - between, rest)
    both[np.arange(len(judged)), judged] = 0
    return one, both


def cosine(products: Floats, squares: Floats) -> Floats:
    """Divide products with unit vectors by the lengths of what they are products with; 0 where there is no direction.

    >>> cosine(np.array([2.0, 1e-9]), np.array([16.0, 0.0]))
    array([0.5, 0. ])
    """
    directed = squares > SHORTEST**2
    return np.where(directed, products / np.sqrt(np.where(directed, squares, 1)), 0.0)


def without_one_best(vectors: Singles, rows: Places, judged: Places) -> tuple[Floats, Floats]:
    """Compare the items of a class with the most similar of the others; arguments as `without_one_mean`."""
    best, second = np.zeros((2, len(rows)))
    nearest = np.zeros(len(rows), np.int64)
    for first in range(0, len(rows), 64):
        part = np.arange(first, min(first + 64, len(rows)))
        products = (vectors[rows[part]] @ vectors.T).astype(np.float64)
        at = np.arange(len(part))
        products[at, rows[part]] = -np.inf
        nearest[part] = products.argmax(axis=1)
        best[part] = products[at, nearest[part]]
        products[at, nearest[part]] = -np.inf
        second[part] = products.max(axis=1)
    both = np.where(nearest == rows[judged, None], second, best)
    both[np.arange(len(judged)), judged] = 0
    return best, both
