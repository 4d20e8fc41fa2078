"""Prepare a gallery and its probes for counting in parts: both sorted by class, as unit vectors, in a folder.

What comes out is bit for bit what ``gallery_inputs.read_gallery`` makes of the same rows in memory: templates by class,
known probes by class, then unknown ones.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import reading
from isomargin.core.json_values import digest
from isomargin.core.memory import forget_pages, map_new_array, read_size
from isomargin.io.shards import Shards, open_shards
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.gallery_inputs import (
    GalleryData,
    Template,
    check_dimensions,
    check_enrolled,
    find_known,
    means_by_class,
    notes_on_lengths,
    notes_on_probes,
    notes_on_single_items,
    told_apart,
)
from isomargin.measure.pairs.inputs import LengthCounts
from isomargin.measure.pairs.prepare import (
    BLOCK_VALUES,
    MEMORY,
    VECTORS,
    WORKING,
    check_new,
    created,
    data_digest,
    places_by_class,
    room_for_buckets,
    sort_rows,
)

FORMAT = "isomargin prepared gallery"
VERSION = 1
DESCRIPTION, CLASSES, SUMS = "gallery.json", "classes.npz", "sums.npy"
BY_CLASS = ("names", "enrolled", "known_sizes", "unknown_names", "unknown_sizes")  # the arrays of CLASSES
ITEMS, ROWS, PROBES = "items", "gallery", "probes"  # folders of vectors; items are removed once templates are formed


@dataclass(frozen=True)
class PreparedGallery:
    """A folder of templates and probes, both sorted by class."""

    folder: Path
    """The folder."""
    template: Template
    """What a probe is compared with."""
    names: NDArray[Any]
    """(classes,) the enrolled labels, sorted."""
    enrolled: NDArray[np.int64]
    """(classes,) number of enrolled items."""
    rows: NDArray[np.float32]
    """(rows, d) memory-mapped unit vectors: one template per class, or all enrolled items."""
    probes: NDArray[np.float32]
    """(n, d) memory-mapped unit vectors: known probes by class, then unknown ones by class."""
    known_sizes: NDArray[np.int64]
    """(classes,) number of known probes."""
    unknown_names: NDArray[Any]
    """(unknown labels,) the other labels of probes, sorted."""
    unknown_sizes: NDArray[np.int64]
    """(unknown labels,) number of probes of each."""
    sums: Floats | None
    """(classes, d) memory-mapped sums of the enrolled unit vectors, where means are taken without the probe."""
    leave_one_out: bool
    """Whether the probes are the enrolled items."""
    notes: tuple[str, ...]
    """What the user should know about this input."""
    digest: str
    """SHA-256 of vectors, labels and kind of templates."""
    sources: str
    """SHA-256 of names, sizes and times of the files that were read."""

    def __repr__(self) -> str:
        (n, width), classes = self.probes.shape, len(self.names)
        return f"<PreparedGallery: {n:,} probes of {width} dimensions, {classes:,} enrolled classes>"

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Send the folder to another process, not the vectors: it opens the folder itself."""
        return PreparedGallery.open, (self.folder.resolve(),)

    @property
    def mapped(self) -> dict[str, str]:
        """The file of each field that maps one."""
        found = {"rows": f"{ROWS}/{VECTORS}", "probes": f"{PROBES}/{VECTORS}"}
        return found if self.sums is None else {**found, "sums": SUMS}

    def data(self) -> GalleryData:
        """Return gallery and probes, as the pass takes them; the vectors stay on disk."""
        classes, none = len(self.names), np.empty(0, np.int64)
        row_class, own_row = np.arange(classes), None
        if self.template != "mean":
            row_class = np.repeat(row_class, self.enrolled)
        if self.leave_one_out:
            own_row = np.flatnonzero(np.repeat(self.enrolled > 1, self.enrolled))
        names, sizes = self.unknown_names, self.unknown_sizes
        if len(names) == 1:  # each probe is taken to be of a class of its own
            names, sizes = np.broadcast_to(names, int(sizes[0])), np.ones(int(sizes[0]), np.int64)
        probe_class = np.repeat(np.arange(classes + len(names)), np.concatenate([self.known_sizes, sizes]))
        return GalleryData(
            self.template, self.names, self.enrolled, self.rows, row_class, self.probes, probe_class, names,
            own_row, self.sums, none, none, self.notes,
        )  # fmt: skip

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "PreparedGallery":
        """Open a folder that `prepare_gallery` wrote."""
        path = Path(folder)
        if not is_prepared_gallery(path):
            raise InputError(
                f"{path} is not a folder of a prepared gallery: write one with isomargin prepare --gallery"
            )
        with reading(path / DESCRIPTION):
            found = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
            if found.get("format") != FORMAT or found.get("version") != VERSION:
                raise InputError(f"{path} was prepared by another version of isomargin: prepare it again")
            left_out, template, notes = bool(found["leave_one_out"]), found["template"], tuple(found["notes"])
            digests = {name: found[name] for name in ("digest", "sources")}
        with reading(path / CLASSES), np.load(path / CLASSES, allow_pickle=False) as arrays:
            classes = {name: arrays[name] for name in BY_CLASS}
        rows, probes = (map_vectors(path / name / VECTORS) for name in (ROWS, PROBES))
        sums = map_vectors(path / SUMS) if left_out and template == "mean" else None
        given = len(classes["names"]) if template == "mean" else classes["enrolled"].sum()
        probe_sizes = classes["known_sizes"].sum() + classes["unknown_sizes"].sum()
        if (len(rows), len(probes)) != (given, probe_sizes) or rows.shape[1] != probes.shape[1]:
            raise InputError(f"the files in {path} do not fit together: prepare it again")
        return cls(
            path, template, rows=rows, probes=probes, sums=sums, leave_one_out=left_out, notes=notes,
            **digests, **classes,
        )  # fmt: skip


def map_vectors(path: Path) -> NDArray[Any]:
    """Map a file of vectors into memory."""
    with reading(path):
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def is_prepared_gallery(folder: Path) -> bool:
    """Whether a folder has a prepared gallery."""
    with reading(folder):
        return (folder / DESCRIPTION).is_file()


def prepare_gallery(
    gallery: Any,
    probes: Any,
    folder: str | os.PathLike[str],
    *,
    template: Template = "mean",
    leave_one_out: bool = False,
    memory: str | int = MEMORY,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
) -> PreparedGallery:
    """Sort a gallery and its probes by class into a new folder, form the templates, and return them.

    Needs as much disk space as the vectors take in float32, twice that for those that are larger than a third of
    ``memory``.

    Args:
        gallery: the enrolled items: a folder or pattern of `.parquet`, `.npy` or `.safetensors` files, one such file,
            or a list of them. The labels of `X.npy` are in `X.labels.npy` or `X.labels.txt`.
        probes: the probes, in the same forms; None if one is left out.
        folder: the folder to create.
        template: what a probe is compared with, as in `isomargin.evaluate_gallery`.
        leave_one_out: take the enrolled items as probes, each compared with its own class without itself.
        memory: memory to use, such as ``"4GB"``.
        embeddings_key: name of the column or tensor that holds the embeddings.
        labels_key: name of the column or tensor that holds the labels.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(4), ["owl", "wren", "owl", "tit"]).save(f"{name}/gallery.npy")
    ...     im.EmbeddingSet(np.eye(4), ["owl", "crow", "owl", "tit"]).save(f"{name}/probes.npy")
    ...     prepared = im.prepare_gallery(f"{name}/gallery.npy", f"{name}/probes.npy", f"{name}/prepared")
    >>> prepared.names, prepared.known_sizes
    (array(['owl', 'tit', 'wren'], dtype='<U4'), array([2, 1, 0]))
    """
    checks.one_of(template, "template", get_args(Template))
    check_sources(probes, leave_one_out)
    target = Path(folder)
    sources = open_sources(gallery, probes, embeddings_key, labels_key)
    check_new(target)
    rows = max(shards.rows for shards in sources)
    bucket_bytes = room_for_buckets(rows, read_size(memory))
    with created(target) as temporary:
        write_gallery(sources, temporary, template, bucket_bytes, read_size(memory))
    return PreparedGallery.open(target)


def check_sources(probes: Any, leave_one_out: bool) -> None:
    """Refuse probes beside leave one out, and neither of the two."""
    if leave_one_out and probes is not None:
        raise InputError("leave_one_out takes the enrolled items as probes: leave out probes")
    if not leave_one_out and probes is None:
        raise InputError("probes are needed, or leave_one_out=True to take the enrolled items")


def open_sources(gallery: Any, probes: Any, embeddings_key: str, labels_key: str) -> tuple[Shards, ...]:
    """Open the files of the gallery and those of the probes, if there are any, and compare their dimensions."""
    named = {"gallery": gallery} if probes is None else {"gallery": gallery, "probes": probes}
    found = []
    for name, source in named.items():
        with told_apart(name):
            found.append(open_shards(source, embeddings_key, labels_key))
    check_dimensions(found[0].width, found[-1].width)
    return tuple(found)


def fingerprint_of(sources: tuple[Shards, ...], template: str) -> str:
    """Return a digest by which changed files and another kind of template are recognised."""
    return digest({"files": [shards.fingerprint() for shards in sources], "template": template})


def write_gallery(sources: tuple[Shards, ...], folder: Path, template: str, bucket_bytes: int, budget: int) -> None:
    """Write templates and probes, sorted by class, and what is known about them into a folder."""
    for name in (ITEMS, ROWS, PROBES):
        (folder / name).mkdir()
    gallery, left_out, lengths = sources[0], len(sources) == 1, LengthCounts()
    with told_apart("gallery"):
        names, codes = gallery.read_labels()
        check_enrolled(names)
        enrolled = np.bincount(codes, minlength=len(names)).astype(np.int64)
        check_template_memory(template, enrolled, gallery.width, budget)
    probes = labels_left_out(names, enrolled) if left_out else match_labels(names, sources[1])
    with told_apart("gallery"):
        items = sort_rows(gallery, places_by_class(codes), folder / ITEMS, bucket_bytes, lengths)
        del codes
        if template == "mean":
            write_templates(items, enrolled, names, folder, left_out, bucket_bytes)
    if left_out:
        write_probes_left_out(items, enrolled, folder)
        notes = [f"gallery: {note}" for note in lengths.note()] + notes_on_single_items(enrolled)
    else:
        probe_lengths = LengthCounts()
        with told_apart("probes"):
            sort_rows(sources[1], places_by_class(probes.codes), folder / PROBES, bucket_bytes, probe_lengths)
        notes = notes_on_lengths(lengths, probe_lengths) + probes.notes()
    if template == "mean":
        shutil.rmtree(folder / ITEMS)
    else:
        (folder / ROWS).rmdir()
        (folder / ITEMS).rename(folder / ROWS)
    described = {"template": template, "leave_one_out": left_out}
    by_class = names, enrolled, probes.known_sizes, probes.unknown_names, probes.unknown_sizes
    np.savez(folder / CLASSES, **dict(zip(BY_CLASS, by_class, strict=True)))  # type: ignore[arg-type]
    vectors = [map_vectors(folder / name / VECTORS) for name in (ROWS, PROBES)]
    sizes = np.concatenate([probes.known_sizes, probes.unknown_sizes])
    digests = data_digest(vectors[0], enrolled, names), data_digest(vectors[1], sizes, probes.unknown_names)
    description = {
        "format": FORMAT, "version": VERSION, **described, "notes": notes,
        "digest": digest({**described, "gallery": digests[0], "probes": digests[1]}),
        "sources": fingerprint_of(sources, template),
    }  # fmt: skip
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")


class ProbeLabels(NamedTuple):
    """Which enrolled classes probes belong to, and what the other ones are."""

    known_sizes: NDArray[np.int64]  # (classes,) number of known probes
    unknown_names: NDArray[Any]  # (unknown labels,)
    unknown_sizes: NDArray[np.int64]  # (unknown labels,) number of probes
    codes: NDArray[np.int64]  # (n,) enrolled class, or classes + the place of the label among the unknown ones

    def notes(self) -> list[str]:
        """Return what the user should know about the labels."""
        return notes_on_probes(self.known_sizes, np.repeat(self.unknown_names, np.minimum(self.unknown_sizes, 2)))


def labels_left_out(names: NDArray[Any], enrolled: NDArray[np.int64]) -> ProbeLabels:
    """Return the labels of enrolled items as probes; those that are alone in their classes are none."""
    notes_on_single_items(enrolled)  # refuses a gallery of nothing else
    none = np.empty(0, np.int64)
    return ProbeLabels(np.where(enrolled > 1, enrolled, 0), names[:0], none, none)


def match_labels(names: NDArray[Any], probes: Shards) -> ProbeLabels:
    """Compare the labels of probes with the enrolled ones."""
    with told_apart("probes"):
        labels, codes = probes.read_labels()
        place, known = find_known(names, labels)
    unknown = int((~known).sum())
    place[~known] = len(names) + np.arange(unknown)
    codes = place[codes]
    sizes = np.bincount(codes, minlength=len(names) + unknown).astype(np.int64)
    return ProbeLabels(sizes[: len(names)], labels[~known], sizes[len(names) :], codes)


def check_template_memory(template: str, enrolled: NDArray[np.int64], width: int, budget: int) -> None:
    """Refuse a class whose mean needs more memory: its items are added up as a whole."""
    most = int(enrolled.max())
    needed = WORKING + 16 * most * width
    if template == "mean" and needed > budget:
        raise InputError(
            f"memory is {budget / 1e9:.3g} GB: the mean of a class of {most:,} items needs at least "
            f"{needed / 1e9:.3g} GB"
        )


def class_ranges(sizes: NDArray[np.int64], rows: int) -> Iterator[tuple[slice, slice]]:
    """Yield runs of classes of at most so many rows, or of one class, and their rows."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    first = 0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(ends, ends[first] + rows, side="right")) - 1)
        yield slice(first, end), slice(int(ends[first]), int(ends[end]))
        first = end


def write_templates(
    items: NDArray[np.float32],
    enrolled: NDArray[np.int64],
    names: NDArray[Any],
    folder: Path,
    left_out: bool,
    memory: int,
) -> None:
    """Write the mean of each class, and the sums of classes if probes are to be taken out of them."""
    shape = len(names), items.shape[1]
    rows = map_new_array(folder / ROWS / VECTORS, np.float32, shape)
    sums = map_new_array(folder / SUMS, np.float64, shape) if left_out else None
    for classes, its_items in class_ranges(enrolled, max(1, memory // (16 * shape[1]))):
        class_of = np.repeat(np.arange(classes.stop - classes.start), enrolled[classes])
        means, found = means_by_class(items[its_items], class_of, names[classes])
        rows[classes] = means
        if sums is not None:
            sums[classes] = found
            forget_pages(sums)
        forget_pages(rows)
        forget_pages(items)
    for written in (rows, sums):
        if written is not None:
            written.flush()


def write_probes_left_out(items: NDArray[np.float32], enrolled: NDArray[np.int64], folder: Path) -> None:
    """Write the items of classes of two or more as probes."""
    kept = np.flatnonzero(np.repeat(enrolled > 1, enrolled))
    shape = len(kept), items.shape[1]
    probes = map_new_array(folder / PROBES / VECTORS, np.float32, shape)
    step = max(1, BLOCK_VALUES // shape[1])
    for first in range(0, len(kept), step):
        probes[first : first + step] = items[kept[first : first + step]]
        forget_pages(probes)
        forget_pages(items)
    probes.flush()
