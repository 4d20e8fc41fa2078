"""Examples for the report: which classes are mistaken for a class, and how both look.

Works on embeddings, of which only the rows of the classes asked for are compared with all others, a block at a time.
Pictures are small, and text (data: URIs), so that the page needs no file beside it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.data.images import ImageSet
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.pairs.inputs import ClassSortedVectors, as_matrix, sort_by_class, unit_rows
from isomargin.measure.pairs.retrieval import QUANTUM, distances_from_similarity
from isomargin.report.thumbnails import thumbnail

__all__ = ["ClassExamples", "Confusion", "class_examples", "run_images"]

Name = int | str

BLOCK = 1 << 23  # similarities in float32 held at once
EXACT_BLOCK = 1 << 22  # values in float64 held at once
UNCLEAR = 2.0**-20  # so near to the threshold float32 does not tell on which side of it a similarity lies


@dataclass(frozen=True)
class Confusion:
    """A class that is mistaken for another, and how often."""

    name: Name
    """The other class's label."""
    pairs: int
    """Pairs of the two classes that are within the distance."""
    share: float
    """Of all pairs of the two classes, the share within the distance."""
    nearest: float
    """Distance of their nearest pair."""
    thumbnails: tuple[str, str] | None
    """The nearest pair's images, the class's own first, as data: URIs; None unless images were given."""


@dataclass(frozen=True)
class ClassExamples:
    """What there is to see of one class."""

    confusions: tuple[Confusion, ...]
    """The classes most mistaken for this one, worst first; those with no pair within the distance are left out."""
    thumbnails: tuple[str, ...]
    """Some of the class's own images, as data: URIs; empty unless images were given."""


def class_examples(
    embeddings: EmbeddingSet,
    classes: Sequence[Name],
    distance: float,
    *,
    confusions: int = 5,
    images: ImageSet | None = None,
    thumbnails: int = 6,
    size: int = 48,
) -> dict[Name, ClassExamples]:
    """Find for each of these classes which others are mistaken for it at a threshold; show both if images are given.

    Parameters
    ----------
    embeddings: all that were evaluated.
    classes: labels of the classes wanted.
    distance: the threshold: pairs at most this far apart are accepted, as `Evaluation.at` counts them.
    confusions: how many at most, the most pairs first, then the nearest.
    images: those that were embedded, in the same order, such as `run_images` gives.
    thumbnails: how many of a class's own images at most, spread over all of them.
    size: of a picture, in pixels.

    >>> embeddings = EmbeddingSet(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]]), ["a", "a", "b", "c"])
    >>> [(each.name, each.pairs, each.share) for each in class_examples(embeddings, ["a"], 0.15)["a"].confusions]
    [('b', 1, 0.5)]
    """
    checks.whole(confusions, "confusions", least=0)
    checks.whole(thumbnails, "thumbnails", least=0)
    checks.whole(size, "size")
    if not 0 <= checks.number(distance, "distance") <= 2:
        raise InputError(f"distance is {distance!r}: a distance of unit vectors is needed, from 0 to 2")
    if images is not None:
        _check_same(images, embeddings, "the images")
    compared = _Compared(embeddings)
    numbers = {name: compared.number(name) for name in classes}
    with threadpool_limits(1, "blas"):  # products of two classes are too small for several threads to share
        found = {name: _confused_with(compared, number, distance, confusions) for name, number in numbers.items()}
    own = {name: _spread(compared.rows(number), thumbnails) for name, number in numbers.items()}
    pictures: dict[int, str] = {}
    if images is not None:
        pairs = {row for several in found.values() for each in several for row in each.rows}
        pictures = _pictures(images, {row for several in own.values() for row in several} | pairs, size)
    return {
        name: ClassExamples(
            tuple(compared.confusion(number, each, pictures) for each in found[name]),
            tuple(pictures[row] for row in own[name]) if images is not None else (),
        )
        for name, number in numbers.items()
    }


def run_images(folder: Path, changes: Sequence[str] = ()) -> ImageSet:
    """Open the images that a finished run was evaluated on, in the order of its embeddings.npz, as its recipe says.

    `changes` are of the recipe, such as `data.root=FOLDER` where the images have moved.

    >>> run_images(Path("no/such/run"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/run is no finished run: a folder with recipe.yaml and embeddings.npz is needed
    """
    from isomargin.training.recipe import load_recipe
    from isomargin.training.run_folder import RunFolder
    from isomargin.training.setup import open_data

    run = RunFolder(folder)
    if not (run.recipe.is_file() and run.embeddings.is_file()):
        raise InputError(f"{folder} is no finished run: a folder with recipe.yaml and embeddings.npz is needed")
    recipe = load_recipe(run.recipe, changes)
    root = recipe.data.get("root")
    where = f"{folder}: the images of {recipe.data.get('name')}" + ("" if root is None else f" at {root}")
    try:
        data = open_data(recipe, check=False)
    except InputError as error:
        raise InputError(f"{where} cannot be opened ({error}): {_MOVED}", error.details) from error
    images = data.test if recipe.evaluation.test else data.unseen
    if images.vectors is not None:
        raise InputError(f"{folder} was trained on vectors ({root}) and has no images: ask for no pictures")
    _check_same(images, EmbeddingSet.load(run.embeddings), where)
    return images


_MOVED = "if they have moved, say where to with data.root=FOLDER"


def _check_same(images: ImageSet, embeddings: EmbeddingSet, where: str) -> None:
    """Refuse images that are not those that were embedded, by their number and classes."""
    if images.vectors is not None:
        raise InputError(f"{where} are vectors: images are needed to show pictures")
    if len(images) != len(embeddings.labels):
        raise InputError(
            f"{where} are {len(images):,}, and the embeddings are of {len(embeddings.labels):,}: the same images in "
            f"the same order are needed; {_MOVED}"
        )
    came, expected = np.array(images.class_names)[images.labels], embeddings.labels.astype(str)
    if differs := np.flatnonzero(came != expected).tolist():
        raise InputError(
            f"{where} are not those that were embedded: image {differs[0]} is of {str(came[differs[0]])!r}, its "
            f"embedding of {str(expected[differs[0]])!r}; the same images in the same order are needed; {_MOVED}"
        )


# ----- confusions


class _Found(NamedTuple):
    """A confusion by numbers."""

    other: int
    pairs: int
    nearest: float
    rows: tuple[int, int]  # of the nearest pair, as the embeddings were given


class _Compared:
    """Embeddings sorted by class, with the way back to the rows that were given."""

    def __init__(self, embeddings: EmbeddingSet) -> None:
        from isomargin.measure.pairs.exact import QUANTUM_OF_REPEATED
        from isomargin.measure.pairs.sampled import REPEATED, repeated_share

        self.given = as_matrix(embeddings.vectors)
        self.data: ClassSortedVectors = sort_by_class(self.given, embeddings.labels)
        self.order = np.argsort(embeddings.labels, kind="stable")  # (n,) that sort_by_class sorts by too
        self.quantum = QUANTUM_OF_REPEATED if repeated_share(self.data) > REPEATED else QUANTUM
        self.names: list[Name] = self.data.names.tolist()
        self.places = {name: number for number, name in enumerate(self.names)}

    def number(self, name: Name) -> int:
        """Give the number of a class."""
        if name not in self.places:
            close = difflib.get_close_matches(str(name), [str(each) for each in self.names], n=1)
            hint = f"did you mean {close[0]}?" if close else f"the first of {len(self.names):,} is {self.names[0]!r}"
            raise InputError(f"there is no class {name!r} among the embeddings' labels: {hint}")
        return self.places[name]

    def span(self, number: int) -> slice:
        """Give the sorted rows of a class."""
        return slice(int(self.data.starts[number]), int(self.data.ends[number]))

    def rows(self, number: int) -> NDArray[np.int64]:
        """(images,) the rows of a class, as they were given, ascending."""
        return self.order[self.span(number)]

    def exact(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """(rows, d) unit vectors in float64 of sorted rows."""
        return unit_rows(self.given[self.order[which]], np.arange(len(which)), np.float64)

    def confusion(self, number: int, found: _Found, pictures: dict[int, str]) -> Confusion:
        """Name a confusion, with its pictures if there are any."""
        own, other = found.rows
        return Confusion(
            self.names[found.other],
            found.pairs,
            found.pairs / int(self.data.sizes[number] * self.data.sizes[found.other]),
            found.nearest,
            (pictures[own], pictures[other]) if pictures else None,
        )


def _confused_with(compared: _Compared, number: int, distance: float, most: int) -> list[_Found]:
    """List the classes with the most pairs within the distance of a class's, most first, then the nearest."""
    pairs, similarity = _count_within(compared, number, distance)
    # Only classes with a pair: to be near is not yet to be mistaken.
    ordered = [other for other in np.lexsort((-similarity, -pairs)).tolist() if pairs[other]][:most]
    found = [_Found(other, int(pairs[other]), *_nearest_pair(compared, number, other)) for other in ordered]
    return sorted(found, key=lambda each: (-each.pairs, each.nearest))


def _count_within(compared: _Compared, number: int, distance: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Count a class's pairs within the distance with each other class, and find the highest similarity; (classes,)."""
    data, own = compared.data, compared.span(number)
    least = np.float32(1 - distance**2 / 2)
    pairs = np.zeros(len(data.sizes), np.int64)
    highest = np.full(len(data.sizes), -2, np.float32)
    for rows in _pieces(own, max(1, BLOCK // len(data.vectors))):
        similarity = data.vectors[rows] @ data.vectors.T  # (rows, n)
        highest = np.maximum(highest, np.maximum.reduceat(similarity.max(axis=0), data.starts))
        within = similarity >= least
        unclear = (np.abs(similarity - least) <= UNCLEAR).any(axis=0)  # (n,)
        unclear[own] = False
        _decide(compared, rows, np.flatnonzero(unclear), distance, within)
        pairs += np.add.reduceat(within.sum(axis=0, dtype=np.int64), data.starts)
    pairs[number], highest[number] = 0, -2
    return pairs, highest


def _decide(
    compared: _Compared, rows: slice, unclear: NDArray[np.int64], distance: float, within: NDArray[np.bool_]
) -> None:
    """Decide again in float64, as the exact count does, which pairs of the unclear columns are within the distance.

    A threshold is often the distance of a pair, and where distances repeat, of many.
    """
    if not len(unclear):
        return
    own = compared.exact(np.arange(rows.start, rows.stop))
    for some in _pieces(slice(0, len(unclear)), max(1, EXACT_BLOCK // max(own.shape))):
        columns = unclear[some]
        within[:, columns] = distances_from_similarity(own @ compared.exact(columns).T, compared.quantum) <= distance


def _nearest_pair(compared: _Compared, number: int, other: int) -> tuple[float, tuple[int, int]]:
    """Find the distance of two classes' nearest pair and its rows, as they were given; the class's own first."""
    span, strangers = compared.span(number), compared.span(other)
    theirs = compared.exact(np.arange(strangers.start, strangers.stop))
    nearest, pair = np.inf, (span.start, strangers.start)
    for rows in _pieces(span, max(1, EXACT_BLOCK // len(theirs))):
        own = compared.exact(np.arange(rows.start, rows.stop))
        distances = distances_from_similarity(own @ theirs.T, compared.quantum)
        row, column = divmod(int(distances.argmin()), len(theirs))
        if distances[row, column] < nearest:
            nearest, pair = float(distances[row, column]), (rows.start + row, strangers.start + column)
    return nearest, (int(compared.order[pair[0]]), int(compared.order[pair[1]]))


def _pieces(span: slice, length: int) -> Iterator[slice]:
    """Cut a span into pieces of at most this length."""
    for first in range(span.start, span.stop, length):
        yield slice(first, min(first + length, span.stop))


# ----- which images


def _spread(rows: NDArray[np.int64], most: int) -> list[int]:
    """Choose at most so many rows, evenly spread over all of them.

    >>> _spread(np.arange(10, 20), 3)
    [10, 14, 19]
    """
    count = min(most, len(rows))
    chosen: list[int] = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)].tolist()
    return chosen


def _pictures(images: ImageSet, rows: set[int], size: int) -> dict[int, str]:
    """Draw the thumbnails of these rows."""
    ordered = sorted(rows)
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(ordered, pool.map(lambda row: thumbnail(images.read(row), size), ordered), strict=True))
