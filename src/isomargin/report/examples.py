"""Examples for the report: which classes a class is confused with, and images of both.

Only the embeddings of the requested classes are compared with all others, one block at a time. Images are small and
stored as text (data: URIs), so that the report is a single file.
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

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.threads import one_blas_thread
from isomargin.data.images import ImageSet
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.pairs.axis import L2, similarity_of
from isomargin.measure.pairs.inputs import ClassSortedVectors, Shifts, as_matrix, sort_by_class, unit_rows
from isomargin.measure.pairs.retrieval import QUANTUM
from isomargin.report.thumbnails import thumbnail

__all__ = ["ClassExamples", "Confusion", "class_examples", "run_images"]

Name = int | str

BLOCK = 1 << 23  # similarities in float32 that are in memory at once
EXACT_BLOCK = 1 << 22  # values in float64 that are in memory at once
UNCLEAR = 2.0**-20  # within this of the threshold, float32 cannot tell on which side a similarity lies


@dataclass(frozen=True)
class Confusion:
    """A class that another class is confused with, and how often."""

    name: Name
    """Label of the other class."""
    pairs: int
    """Number of pairs between the two classes that are within the distance."""
    share: float
    """Share of all pairs between the two classes that are within the distance."""
    nearest: float
    """Distance of the nearest pair between the two classes."""
    thumbnails: tuple[str, str] | None
    """Images of the nearest pair as data: URIs, the item of the class itself first; None without images."""


@dataclass(frozen=True)
class ClassExamples:
    """Confusions and images of one class."""

    confusions: tuple[Confusion, ...]
    """The classes most often confused with this one, worst first; only those with a pair within the distance."""
    thumbnails: tuple[str, ...]
    """Images of items of the class as data: URIs; empty without images."""


def class_examples(
    embeddings: EmbeddingSet,
    classes: Sequence[Name],
    distance: float,
    *,
    confusions: int = 5,
    images: ImageSet | None = None,
    thumbnails: int = 6,
    size: int = 48,
    shifts: Shifts | None = None,
) -> dict[Name, ClassExamples]:
    """Find for each class which other classes it is confused with at a threshold, with thumbnails if images are given.

    Parameters
    ----------
    embeddings: all embeddings that were evaluated.
    classes: labels of the classes to find examples for.
    distance: the threshold: pairs at most this far apart are accepted, as in `Evaluation.at`.
    confusions: how many to list at most, ordered by the number of pairs, then by the nearest pair.
    images: the images that were embedded, in the same order, for example from `run_images`.
    thumbnails: how many images of each class to include at most, spread evenly over its items.
    size: width and height of a thumbnail in pixels.
    shifts: what an equalizer adds to the similarities, if they were equalized.

    >>> embeddings = EmbeddingSet(np.array([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]]), ["a", "a", "b", "c"])
    >>> [(found.name, found.pairs, found.share) for found in class_examples(embeddings, ["a"], 0.15)["a"].confusions]
    [('b', 1, 0.5)]
    """
    checks.whole(confusions, "confusions", least=0)
    checks.whole(thumbnails, "thumbnails", least=0)
    checks.whole(size, "size")
    (L2 if shifts is None else shifts.axis).check(distance)
    if images is not None:
        _check_same(images, embeddings, "the images")
    compared = _Compared(embeddings, shifts)
    numbers = {name: compared.number(name) for name in classes}
    with one_blas_thread():  # the matrices are too small for several threads
        found = {name: _confused_with(compared, number, distance, confusions) for name, number in numbers.items()}
    shown_rows = {name: _spread(compared.rows(number), thumbnails) for name, number in numbers.items()}
    pictures: dict[int, str] = {}
    if images is not None:
        pair_rows = {row for confused in found.values() for confusion in confused for row in confusion.rows}
        own_rows = {row for rows in shown_rows.values() for row in rows}
        pictures = _pictures(images, own_rows | pair_rows, size)
    return {
        name: ClassExamples(
            tuple(compared.confusion(number, confusion, pictures) for confusion in found[name]),
            tuple(pictures[row] for row in shown_rows[name]) if images is not None else (),
        )
        for name, number in numbers.items()
    }


def run_images(folder: Path, changes: Sequence[str] = ()) -> ImageSet:
    """Open the images that a finished run was evaluated on, in the order of its embeddings.npz.

    `changes` are applied to the recipe of the run, such as `data.root=FOLDER` if the images have moved.

    >>> run_images(Path("no/such/run"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/run is not a finished run: a folder with recipe.yaml and embeddings.npz is needed
    """
    from isomargin.training.recipe import load_recipe
    from isomargin.training.run_folder import RunFolder
    from isomargin.training.setup import open_data

    run = RunFolder(folder)
    if not (run.recipe.is_file() and run.embeddings.is_file()):
        raise InputError(f"{folder} is not a finished run: a folder with recipe.yaml and embeddings.npz is needed")
    recipe = load_recipe(run.recipe, changes)
    root = recipe.data.get("root")
    where = f"{folder}: the images of {recipe.data.get('name')}" + ("" if root is None else f" at {root}")
    try:
        data = open_data(recipe, check=False)
    except InputError as error:
        raise InputError(f"{where} cannot be opened ({error}): {_MOVED}", error.details) from error
    images = data.test if recipe.evaluation.test else data.unseen
    if images is None:
        raise InputError(f"{folder} was trained on all classes and is not evaluated: give a run that kept some out")
    if images.vectors is not None:
        raise InputError(f"{folder} was trained on vectors ({root}) and has no images: leave out the thumbnails")
    _check_same(images, EmbeddingSet.load(run.embeddings), where)
    return images


_MOVED = "if they have moved, give their folder with data.root=FOLDER"


def _check_same(images: ImageSet, embeddings: EmbeddingSet, where: str) -> None:
    """Refuse images whose number or classes are not those of the embeddings."""
    if images.vectors is not None:
        raise InputError(f"{where} are vectors: images are needed for thumbnails")
    if len(images) != len(embeddings.labels):
        raise InputError(
            f"{where} number {len(images):,}, the embeddings {len(embeddings.labels):,}: the same images in "
            f"the same order are needed; {_MOVED}"
        )
    actual, expected = np.array(images.class_names)[images.labels], embeddings.labels.astype(str)
    if differs := np.flatnonzero(actual != expected).tolist():
        raise InputError(
            f"{where} are not those that were embedded: image {differs[0]} is of {str(actual[differs[0]])!r}, its "
            f"embedding of {str(expected[differs[0]])!r}; the same images in the same order are needed; {_MOVED}"
        )


# ----- confusions


class _Found(NamedTuple):
    """A confusion, by class numbers and rows."""

    other: int
    pairs: int
    nearest: float
    rows: tuple[int, int]  # of the nearest pair, in the order in which the embeddings were given


class _Compared:
    """Embeddings sorted by class, with the mapping back to the given rows."""

    def __init__(self, embeddings: EmbeddingSet, shifts: Shifts | None) -> None:
        from isomargin.measure.pairs.exact import QUANTUM_OF_REPEATED
        from isomargin.measure.pairs.sampled import REPEATED, repeated_share

        self.given = as_matrix(embeddings.vectors)
        self.data: ClassSortedVectors = sort_by_class(self.given, embeddings.labels, shifts=shifts)
        self.order = np.argsort(embeddings.labels, kind="stable")  # (n,) the order of sort_by_class
        self.quantum = QUANTUM_OF_REPEATED if repeated_share(self.data) > REPEATED else QUANTUM
        self.names: list[Name] = self.data.names.tolist()
        self.places = {name: number for number, name in enumerate(self.names)}

    def number(self, name: Name) -> int:
        """Return the number of a class."""
        if name not in self.places:
            close = difflib.get_close_matches(str(name), [str(known) for known in self.names], n=1)
            hint = f"did you mean {close[0]}?" if close else f"the first of {len(self.names):,} is {self.names[0]!r}"
            raise InputError(f"there is no class {name!r} among the embeddings' labels: {hint}")
        return self.places[name]

    def span(self, number: int) -> slice:
        """Return the range of sorted rows of a class."""
        return slice(int(self.data.starts[number]), int(self.data.ends[number]))

    def rows(self, number: int) -> NDArray[np.int64]:
        """(items,) the rows of a class in the given order, ascending."""
        return self.order[self.span(number)]

    def exact(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(rows, d) unit vectors in float64 of sorted rows."""
        return unit_rows(self.given[self.order[rows]], np.arange(len(rows)), np.float64)

    def distances(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """(rows, columns) distances of sorted rows, computed in float64 as the exact count does."""
        similarity = self.data.shift(self.exact(rows) @ self.exact(columns).T, rows, columns)
        return self.data.axis.distances(similarity, self.quantum)

    def confusion(self, number: int, found: _Found, pictures: dict[int, str]) -> Confusion:
        """Turn class numbers and rows into names and thumbnails."""
        own_row, other_row = found.rows
        return Confusion(
            self.names[found.other],
            found.pairs,
            found.pairs / int(self.data.sizes[number] * self.data.sizes[found.other]),
            found.nearest,
            (pictures[own_row], pictures[other_row]) if pictures else None,
        )


def _confused_with(compared: _Compared, number: int, distance: float, most: int) -> list[_Found]:
    """List the classes with the most pairs within the distance of a class: most pairs first, then the nearest."""
    pairs, similarity = _count_within(compared, number, distance)
    # Only classes with an accepted pair: a near class is not a confused one.
    ordered = [other for other in np.lexsort((-similarity, -pairs)).tolist() if pairs[other]][:most]
    found = [_Found(other, int(pairs[other]), *_nearest_pair(compared, number, other)) for other in ordered]
    return sorted(found, key=lambda confusion: (-confusion.pairs, confusion.nearest))


def _count_within(compared: _Compared, number: int, distance: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(classes,) count the pairs of a class with each other class within the distance; find the highest similarity."""
    data, class_rows = compared.data, compared.span(number)
    least = np.float32(similarity_of(distance))
    pairs = np.zeros(len(data.sizes), np.int64)
    highest = np.full(len(data.sizes), -np.inf, np.float32)
    for rows in _pieces(class_rows, max(1, BLOCK // len(data.vectors))):
        similarity = data.similarity(rows, slice(None))  # (rows, n)
        highest = np.maximum(highest, np.maximum.reduceat(similarity.max(axis=0), data.starts))
        within = similarity >= least
        unclear: NDArray[np.bool_] = np.any(np.abs(similarity - least) <= UNCLEAR, axis=0)  # (n,)
        unclear[class_rows] = False
        _decide(compared, rows, np.flatnonzero(unclear), distance, within)
        pairs += np.add.reduceat(within.sum(axis=0, dtype=np.int64), data.starts)
    pairs[number], highest[number] = 0, -np.inf
    return pairs, highest


def _decide(
    compared: _Compared, rows: slice, unclear: NDArray[np.int64], distance: float, within: NDArray[np.bool_]
) -> None:
    """Decide in float64, as the exact count does, which pairs of the unclear columns are within the distance.

    A threshold is often exactly the distance of a pair, or of many pairs if distances repeat.
    """
    if not len(unclear):
        return
    numbers, width = np.arange(rows.start, rows.stop), compared.data.vectors.shape[1]
    for piece in _pieces(slice(0, len(unclear)), max(1, EXACT_BLOCK // max(len(numbers), width))):
        columns = unclear[piece]
        within[:, columns] = compared.distances(numbers, columns) <= distance


def _nearest_pair(compared: _Compared, number: int, other: int) -> tuple[float, tuple[int, int]]:
    """Find the nearest pair of two classes: its distance and its given rows, the row of class `number` first."""
    class_rows, other_rows = compared.span(number), compared.span(other)
    columns = np.arange(other_rows.start, other_rows.stop)
    nearest, pair = np.inf, (class_rows.start, other_rows.start)
    for rows in _pieces(class_rows, max(1, EXACT_BLOCK // len(columns))):
        distances = compared.distances(np.arange(rows.start, rows.stop), columns)
        row, column = divmod(int(distances.argmin()), len(columns))
        if distances[row, column] < nearest:
            nearest, pair = float(distances[row, column]), (rows.start + row, other_rows.start + column)
    return nearest, (int(compared.order[pair[0]]), int(compared.order[pair[1]]))


def _pieces(span: slice, length: int) -> Iterator[slice]:
    """Cut a span into pieces of at most this length."""
    for first in range(span.start, span.stop, length):
        yield slice(first, min(first + length, span.stop))


# ----- images


def _spread(rows: NDArray[np.int64], most: int) -> list[int]:
    """Choose at most `most` rows, spread evenly.

    >>> _spread(np.arange(10, 20), 3)
    [10, 14, 19]
    """
    count = min(most, len(rows))
    chosen: list[int] = rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)].tolist()
    return chosen


def _pictures(images: ImageSet, rows: set[int], size: int) -> dict[int, str]:
    """Make the thumbnails of these rows."""
    ordered = sorted(rows)
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(ordered, pool.map(lambda row: thumbnail(images.read(row), size), ordered), strict=True))
