"""Check a gallery and its probes, and turn them into unit vectors: templates by class, probes with known ones first.

A gallery is what a system has enrolled. Its rows are what a probe is compared with: one template per class, or every
enrolled item. Probes whose label is not in the gallery are unknown.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.labels import labels_of_rows
from isomargin.measure.pairs.axis import L2, ScoreAxis
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import CHUNK, LengthCounts, as_matrix, unit_rows

Template = Literal["mean", "max", "each"]
TEMPLATES = {
    "mean": "the mean of a class's enrolled unit vectors, scaled to length one",
    "max": "the best of a class's enrolled items",
    "each": "every enrolled item by itself",
}
"""What a probe is compared with, in words."""
CANCELLED = 1e-6  # a mean of unit vectors that is shorter than this has no direction
OWN_PROBES = 512  # probes of a class that are compared with its items at a time
SHOWN = 3  # classes that an error names


@dataclass(frozen=True)
class GalleryData:
    """Templates or enrolled items, and the probes that are compared with them."""

    template: Template
    """How a class's enrolled items are compared with a probe."""
    names: NDArray[Any]
    """(classes,) the enrolled labels, sorted."""
    enrolled: NDArray[np.int64]
    """(classes,) number of enrolled items."""
    rows: NDArray[Any]
    """(rows, d) unit vectors, by class: one template per class, or all enrolled items."""
    row_class: NDArray[np.int64]
    """(rows,) class of each row, ascending."""
    probes: NDArray[Any]
    """(n, d) unit vectors of the probes, by class; known probes come before unknown ones."""
    probe_class: NDArray[np.int64]
    """(n,) class of each probe, ascending: an enrolled class, or ``classes`` + its place in ``unknown_names``."""
    unknown_names: NDArray[Any]
    """(unknown classes,) the labels of unknown probes, sorted. If all have one label, such as "unknown", each of them
    is taken to be of a class of its own."""
    own_row: NDArray[np.int64] | None
    """(known,) the enrolled item that each probe is itself, if probes are the gallery (leave one out)."""
    sums: Floats | None
    """(classes, d) sums of the enrolled unit vectors, if means are taken without the probe (leave one out)."""
    item_order: NDArray[np.int64]
    """(enrolled items,) the place of each item, sorted by class, among the items as they were given."""
    probe_order: NDArray[np.int64]
    """(n,) the place of each probe among the probes (the items, if one is left out) as they were given."""
    notes: tuple[str, ...]
    """What the user should know about this input."""
    row_shifts: Floats | None = None
    """(rows,) what is added to the similarities of each row; None if nothing is."""
    probe_shifts: Floats | None = None
    """(n,) what is added to the similarities of each probe."""
    axis: ScoreAxis = L2
    """The axis on which comparisons are counted."""

    @property
    def classes(self) -> int:
        """Number of enrolled classes."""
        return len(self.names)

    @cached_property
    def known(self) -> int:
        """Number of known probes."""
        return int(np.searchsorted(self.probe_class, self.classes))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(classes,) first row of each class."""
        return np.searchsorted(self.row_class, np.arange(self.classes)).astype(np.int64)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(classes,) one past the last row of each class."""
        return np.searchsorted(self.row_class, np.arange(self.classes), side="right").astype(np.int64)

    @cached_property
    def known_sizes(self) -> NDArray[np.int64]:
        """(classes,) number of known probes of each class."""
        return np.bincount(self.probe_class[: self.known], minlength=self.classes).astype(np.int64)

    @property
    def columns(self) -> int:
        """Number of scores of one probe: one per class, or one per row if every item stands by itself."""
        return len(self.rows) if self.template == "each" else self.classes

    @property
    def comparisons(self) -> int:
        """Number of scores of all probes."""
        return len(self.probes) * self.columns

    @property
    def negatives(self) -> int:
        """Number of scores of probes against other classes."""
        width = self.ends - self.starts if self.template == "each" else np.ones(self.classes, np.int64)
        return self.comparisons - int((self.known_sizes * width).sum())

    def similarity(self, rows: slice, probes: slice, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """(rows, probes) similarities, with the shifts."""
        product = np.matmul(self.rows[rows], self.probes[probes].T, out=out)
        if self.row_shifts is not None and self.probe_shifts is not None:
            product += self.row_shifts[rows, None].astype(product.dtype)
            product += self.probe_shifts[probes].astype(product.dtype)
        return product

    def with_shifts(self, probes: Floats, rows: Floats, axis: ScoreAxis) -> "GalleryData":
        """Return the same with similarities shifted by probe and by row."""
        return replace(self, probe_shifts=probes, row_shifts=rows, axis=axis)


def copy_classes(data: GalleryData, classes: slice) -> GalleryData:
    """Return some classes, copied into memory and numbered from the first of them, without probes.

    It is for a pass alone, which compares probes with other classes than their own.
    """
    rows = slice(int(data.starts[classes.start]), int(data.ends[classes.stop - 1]))
    return replace(
        data,
        names=data.names[classes],
        enrolled=data.enrolled[classes],
        rows=np.array(data.rows[rows]),
        row_class=data.row_class[rows] - classes.start,
        probes=data.probes[:0],
        probe_class=data.probe_class[:0],
        unknown_names=data.unknown_names[:0],
        own_row=None,
        sums=None,
    )


def own_scores(data: GalleryData, first: int = 0, end: int | None = None) -> Iterator[tuple[slice, Floats]]:
    """Yield the known probes from ``first`` to ``end`` and their similarities to their own classes in float64.

    The similarities are (probes, m): to the class's template, or to each of its items if every item stands by itself;
    then the probes are of one class. Where one is left out, a probe is not compared with itself: that similarity
    is NaN. Products are those of pieces that start with the class, so that they do not depend on ``first`` and ``end``.
    """
    end = data.known if end is None else min(end, data.known)
    if data.template == "mean":
        step = max(1, CHUNK // data.rows.shape[1])
        for begin in range(first, end, step):
            part = slice(begin, min(begin + step, end))
            yield part, own_templates(data, part)[:, None]
        return
    for its_class in np.unique(data.probe_class[first:end]):
        begin, stop = np.searchsorted(data.probe_class, [its_class, its_class + 1]).tolist()
        for piece in range(begin + (max(first, begin) - begin) // OWN_PROBES * OWN_PROBES, min(stop, end), OWN_PROBES):
            scores = own_items(data, its_class, slice(piece, min(piece + OWN_PROBES, stop)))
            wanted = slice(max(piece, first), min(piece + OWN_PROBES, stop, end))
            yield wanted, scores[wanted.start - piece : wanted.stop - piece]


def own_items(data: GalleryData, its_class: int, probes: slice) -> Floats:
    """(probes, m) similarities of known probes of one class to the best of its items, or to each of them."""
    rows = slice(data.starts[its_class], data.ends[its_class])
    scores = data.probes[probes].astype(np.float64) @ data.rows[rows].astype(np.float64).T
    if data.row_shifts is not None and data.probe_shifts is not None:
        scores += data.probe_shifts[probes, None] + data.row_shifts[rows]
    if data.own_row is not None:
        scores[np.arange(len(scores)), data.own_row[probes] - data.starts[its_class]] = np.nan
    return np.nanmax(scores, axis=1, keepdims=True) if data.template == "max" else np.asarray(scores)


def own_templates(data: GalleryData, part: slice) -> Floats:
    """(probes,) similarities of known probes to the mean templates of their classes, without themselves if asked."""
    probes, its_class = data.probes[part].astype(np.float64), data.probe_class[part]
    templates = data.rows[its_class].astype(np.float64)
    if data.sums is not None:
        templates = data.sums[its_class] - probes
        templates /= np.linalg.norm(templates, axis=1, keepdims=True)
    scores = np.asarray(np.einsum("ij,ij->i", probes, templates))
    if data.row_shifts is not None and data.probe_shifts is not None:
        scores += data.probe_shifts[part] + data.row_shifts[its_class]
    return scores


def make_templates(gallery: Any, labels: Any) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the mean template of each class and the classes: unit vectors (classes, d), and labels (classes,).

    A template is the mean of the class's unit vectors, scaled to length one. An equalizer for a gallery is fitted on
    these vectors.

    >>> vectors, names = make_templates([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]], ["cat", "dog", "dog"])
    >>> vectors.tolist(), names.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], ['cat', 'dog'])
    """
    array = as_matrix(gallery)
    names, class_of = np.unique(labels_of_rows(labels, len(array)), return_inverse=True)
    order = np.argsort(class_of, kind="stable")
    vectors = unit_rows(array, order, np.float32)
    templates, _ = means_by_class(vectors, class_of[order], names)
    return templates.astype(np.float32), names


def means_by_class(vectors: NDArray[Any], class_of: NDArray[np.int64], names: NDArray[Any]) -> tuple[Floats, Floats]:
    """(classes, d) unit means of the vectors of each class, which are contiguous, and (classes, d) their sums."""
    starts = np.searchsorted(class_of, np.arange(len(names)))
    sums = np.empty((len(names), vectors.shape[1]))
    step = max(1, CHUNK // max(1, int(np.bincount(class_of).max()) * vectors.shape[1]))
    for first in range(0, len(names), step):
        last = min(first + step, len(names))
        stop = starts[last] if last < len(names) else len(vectors)
        part = vectors[starts[first] : stop].astype(np.float64)
        sums[first:last] = np.add.reduceat(part, starts[first:last] - starts[first], axis=0)
    lengths = np.linalg.norm(sums, axis=1)
    short = np.flatnonzero(lengths < CANCELLED)
    if short.size:
        raise InputError(
            f"the enrolled items of {named(names[short])} cancel out, so their mean has no direction: "
            'use template="max", or remove items'
        )
    return sums / lengths[:, None], sums


def read_gallery(
    gallery: Any,
    gallery_labels: Any,
    probes: Any,
    probe_labels: Any,
    template: Template,
    leave_one_out: bool,
    dtype: type = np.float32,
) -> GalleryData:
    """Check a gallery and its probes, and sort both by class."""
    checks.one_of(template, "template", get_args(Template))
    with told_apart("gallery"):
        enrolled_array = as_matrix(gallery)
        labels = labels_of_rows(gallery_labels, len(enrolled_array))
        names, class_of_item = np.unique(labels, return_inverse=True)
        order = np.argsort(class_of_item, kind="stable")
        lengths = np.empty(len(enrolled_array))
        items, item_class = unit_rows(enrolled_array, order, dtype, lengths), class_of_item[order]
        gallery_lengths = LengthCounts.of(lengths)
    check_enrolled(names)
    enrolled = np.bincount(class_of_item).astype(np.int64)
    sums = None
    rows, row_class = items, item_class
    if template == "mean":
        means, sums = means_by_class(items, item_class, names)
        rows, row_class = means.astype(dtype), np.arange(len(names))
    if leave_one_out:
        kept = enrolled[item_class] > 1
        notes = [f"gallery: {note}" for note in gallery_lengths.note()] + notes_on_single_items(enrolled)
        return GalleryData(
            template, names, enrolled, rows, row_class, items[kept], item_class[kept], names[:0],
            np.flatnonzero(kept), sums, order, order[kept], tuple(notes),
        )  # fmt: skip
    without_probes = GalleryData(
        template, names, enrolled, rows, row_class, items[:0], item_class[:0], names[:0],
        None, None, order, order[:0], (),
    )  # fmt: skip
    with told_apart("probes"):
        return sort_probes(without_probes, as_matrix(probes), probe_labels, dtype, gallery_lengths)


@contextmanager
def told_apart(which: str) -> Iterator[None]:
    """Say in errors whether the embeddings of the gallery or those of the probes cannot be used."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{which}: {error}") from error


def check_enrolled(names: NDArray[Any]) -> None:
    """Refuse a gallery of a single class."""
    if len(names) < 2:
        raise InputError(f"the gallery has one class, {names.tolist()[0]!r}: at least two enrolled classes are needed")


def check_dimensions(gallery: int, probes: int) -> None:
    """Refuse probes of other dimensions than the gallery."""
    if gallery != probes:
        raise InputError(
            f"the gallery has {gallery} dimensions and the probes have {probes}: "
            "embeddings of the same model are needed"
        )


def notes_on_single_items(enrolled: NDArray[np.int64]) -> list[str]:
    """Say which items cannot be left out; refuse a gallery of which none can."""
    singles = int((enrolled == 1).sum())
    if singles == len(enrolled):
        raise InputError(
            "every enrolled class has a single item, so none has a template without it: leave_one_out needs "
            "classes of two items or more"
        )
    if not singles:
        return []
    return [
        f"{singles:,} of {len(enrolled):,} classes have a single enrolled item and no template without it: "
        "that item is no probe, and the class only serves as a negative for others"
    ]


def find_known(names: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the enrolled class of each label, and whether there is one; labels of which none is enrolled are refused.

    >>> find_known(np.array(["cat", "owl"]), np.array(["owl", "tit"]))[1].tolist()
    [True, False]
    """
    if (labels.dtype.kind == "U") != (names.dtype.kind == "U"):
        kinds = ["text" if kind == "U" else "numbers" for kind in (names.dtype.kind, labels.dtype.kind)]
        raise InputError(
            f"the labels of the gallery are {kinds[0]} and those of the probes {kinds[1]}: use the same type for both"
        )
    place = np.clip(np.searchsorted(names, labels), 0, len(names) - 1)
    known = names[place] == labels
    if not known.any():
        raise InputError(
            f"no probe has the label of an enrolled class (probes: {named(np.unique(labels))}; gallery: "
            f"{named(names)}): error rates of enrolled classes need known probes"
        )
    return place, known


def sort_probes(
    data: GalleryData, probes: Any, probe_labels: Any, dtype: type, gallery_lengths: LengthCounts
) -> GalleryData:
    """Add probes to a gallery: known ones by class, then unknown ones by class."""
    check_dimensions(data.rows.shape[1], probes.shape[1])
    labels = labels_of_rows(probe_labels, len(probes))
    place, known = find_known(data.names, labels)
    unknown_names, unknown_place = np.unique(labels[~known], return_inverse=True)
    if len(unknown_names) == 1:
        unknown_names, unknown_place = labels[~known], np.arange(int((~known).sum()))
    class_of = np.empty(len(labels), np.int64)
    class_of[known], class_of[~known] = place[known], data.classes + unknown_place
    order = np.argsort(class_of, kind="stable")
    lengths = np.empty(len(probes))
    vectors = unit_rows(probes, order, dtype, lengths)
    notes = notes_on_lengths(gallery_lengths, LengthCounts.of(lengths))
    notes += notes_on_probes(np.bincount(place[known], minlength=data.classes), unknown_names)
    return replace(
        data,
        probes=vectors,
        probe_class=class_of[order],
        probe_order=order,
        unknown_names=unknown_names,
        notes=(*data.notes, *notes),
    )


def notes_on_probes(known_sizes: NDArray[np.int64], unknown_names: NDArray[Any]) -> list[str]:
    """Say what the numbers of known probes by class, and the labels of unknown ones, mean for the scores."""
    notes = []
    if without := int((known_sizes == 0).sum()):
        notes.append(
            f"{without:,} of {len(known_sizes):,} enrolled classes have no known probe: they only serve as negatives"
        )
    if len(unknown_names) > 1 and (unknown_names == unknown_names[0]).all():
        notes.append(
            f"all unknown probes have the label {unknown_names.tolist()[0]!r}: intervals and promises take each as a "
            "class of its own"
        )
    if not len(unknown_names):
        notes.append("no probe is unknown: FPIR, and the scores at a FPIR, are absent")
    return notes


def notes_on_lengths(gallery: LengthCounts, probes: LengthCounts) -> list[str]:
    """Say whether enrolled items and probes were normalised: in one note if both were.

    >>> notes_on_lengths(LengthCounts.of(np.array([1.0, 2.0])), LengthCounts.of(np.array([3.0])))[0][:78]
    'gallery and probes: 2 of 3 embeddings do not have length one (lengths from 1 t'
    """
    if gallery.note() and probes.note():
        return [f"gallery and probes: {note}" for note in (gallery + probes).note()]
    both = {"gallery": gallery, "probes": probes}
    return [f"{name}: {note}" for name, lengths in both.items() for note in lengths.note()]


def named(names: NDArray[Any]) -> str:
    """Name the first few classes.

    >>> named(np.array(["a", "b", "c", "d", "e"]))
    "'a', 'b', 'c' and 2 more"
    """
    shown = ", ".join(repr(name) for name in names[:SHOWN].tolist())
    return shown + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
