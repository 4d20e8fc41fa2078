"""The plan of a gallery in parts: which probes and which classes each part compares, and how much memory that takes.

The classes of the gallery are cut into sections, and so are the blocks of probes. A cell is a section of probes against
a section of the gallery; a part is a run of consecutive cells.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import digest
from isomargin.core.memory import forget_pages, read_size
from isomargin.measure.pairs.gallery_inputs import OWN_PROBES, GalleryData, copy_classes
from isomargin.measure.pairs.gallery_pass import own_bins
from isomargin.measure.pairs.gallery_prepare import PreparedGallery
from isomargin.measure.pairs.gallery_tiles import Block, GalleryLayout, make_layout
from isomargin.measure.pairs.part_plan import cut_classes
from isomargin.measure.pairs.prepare import MEMORY, WORKING

VERSION = 1
PROBE_BYTES = 120  # of labels and best classes of a probe, in a cell and in the counts of a part
ROW_BYTES = 24  # of labels of a row of the gallery
LEAST_ROOM = 16 << 20  # bytes for sections and counts: with less, there would be very many sections


@dataclass(frozen=True)
class GalleryPlan:
    """How the comparisons of a prepared gallery are divided into parts that can be counted anywhere.

    `isomargin.plan_gallery` makes one. It is the same wherever it is made from the same folder with the same arguments.
    Counts are by section: those of the gallery have the numbers 0, 1, ..., those of the probes follow.
    """

    FORMAT: ClassVar[str] = "isomargin gallery part"
    equalizer: ClassVar[None] = None  # parts count plain similarities
    prepared: PreparedGallery
    """The gallery and its probes."""
    parts: int
    """Number of parts, numbered from 1."""
    class_edges: NDArray[np.int64]
    """(gallery sections + 1,) the first class of each section of the gallery, and the number of classes."""
    block_edges: NDArray[np.int64]
    """(probe sections + 1,) the first block of each section of the probes, and the number of blocks."""
    layout: GalleryLayout
    """Blocks and bins. No block of the gallery belongs to two sections."""
    memory: int
    """Bytes that the process of a part may use."""

    def __repr__(self) -> str:
        gallery, probes = self.gallery_sections, self.probe_sections
        return f"<GalleryPlan: {self.parts:,} parts of {probes:,} sections of probes and {gallery:,} of the gallery>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the plan to another process without the vectors, which it maps itself."""
        return GalleryPlan, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def numbers(self) -> range:
        """The numbers of the parts: 1, 2, ..."""
        return range(1, self.parts + 1)

    @property
    def gallery_sections(self) -> int:
        """Number of sections of the gallery."""
        return len(self.class_edges) - 1

    @property
    def probe_sections(self) -> int:
        """Number of sections of the probes."""
        return len(self.block_edges) - 1

    @property
    def superblocks(self) -> int:
        """Number of all sections."""
        return self.gallery_sections + self.probe_sections

    @cached_property
    def data(self) -> GalleryData:
        """Gallery and probes; the vectors stay on disk."""
        return self.prepared.data()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the counts depend on: data, sections, bins, number of parts."""
        return digest({
            "version": VERSION,
            "data": self.prepared.digest,
            "parts": self.parts,
            "classes": self.class_edges.tolist(),
            "sections": self.block_edges.tolist(),
            "probes": self.layout.probe_edges.tolist(),
            "rows": [block.first_row for block in self.layout.blocks],
            "bins": [self.layout.bins, self.layout.probe_bins, own_bins(self.data)],
        })  # fmt: skip

    @cached_property
    def class_counter(self) -> type:
        """The type in which no counter of a class overflows."""
        data = self.data
        rows = int((data.ends - data.starts).max()) if data.template == "each" else 1
        return np.uint32 if rows * len(data.probes) < 2**32 else np.int64

    @cached_property
    def probe_counter(self) -> type:
        """The type in which no counter of a class of probes overflows."""
        data = self.data
        return np.uint32 if int(np.bincount(data.probe_class).max()) * data.columns < 2**32 else np.int64

    # ----- cells and sections

    def cells(self, number: int) -> list[tuple[int, int]]:
        """List the cells of a part: a section of the gallery, and the number of a section of probes."""
        cells = self.gallery_sections * self.probe_sections
        first, end = (cells * at // self.parts for at in (number - 1, number))
        return [(at // self.probe_sections, at % self.probe_sections) for at in range(first, end)]

    def touched_by(self, number: int) -> list[int]:
        """List the sections that a part leaves counts of."""
        cells = self.cells(number)
        return sorted({one for one, _ in cells} | {self.gallery_sections + other for _, other in cells})

    def classes_of(self, section: int) -> slice:
        """Return the classes of a section of the gallery."""
        return slice(int(self.class_edges[section]), int(self.class_edges[section + 1]))

    def probes_of(self, section: int) -> slice:
        """Return the probes of a section, the first of which is 0."""
        first, end = self.layout.probe_edges[self.block_edges[section : section + 2]].tolist()
        return slice(first, end)

    def gallery_section(self, section: int) -> tuple[GalleryData, tuple[Block, ...]]:
        """Return the rows of a section of the gallery, read into memory, and its blocks."""
        classes = self.classes_of(section)
        data, first_row = copy_classes(self.data, classes), int(self.data.starts[classes.start])
        forget_pages(self.data.rows)
        blocks = [
            Block(a - first_row, b - first_row, c - classes.start, d - classes.start)
            for a, b, c, d in self.layout.blocks
            if classes.start <= c < classes.stop
        ]
        return data, tuple(blocks)

    def with_probes(self, section: int, gallery: GalleryData, number: int) -> GalleryData:
        """Return a section of the gallery with a section of probes, read into memory."""
        probes, first_class = self.probes_of(number), self.classes_of(section).start
        its_class = self.data.probe_class[probes] - first_class
        found = replace(gallery, probes=np.array(self.data.probes[probes]), probe_class=its_class)
        forget_pages(self.data.probes)
        return found

    def probe_blocks(self, number: int) -> NDArray[np.int64]:
        """(blocks + 1,) where the blocks of a section of probes start, from its first probe on."""
        edges = self.layout.probe_edges[self.block_edges[number] : self.block_edges[number + 1] + 1]
        return np.asarray(edges - edges[0])

    # ----- memory

    def counts_bytes(self, number: int) -> int:
        """Return the bytes of the counts that a part leaves."""
        found = 0
        for section in self.touched_by(number):
            if section < self.gallery_sections:
                found += int(np.diff(self.class_edges)[section]) * self.layout.bins * 4
            else:
                probes = self.probes_of(section - self.gallery_sections)
                found += probe_bytes(self.data, probes, self.layout.probe_bins)
        return found

    def needed(self) -> int:
        """Return the bytes that the process of a part needs."""
        data, width, layout = self.data, self.data.rows.shape[1], self.layout
        rows = [data.ends[end - 1] - data.starts[first] for first, end in pairwise(self.class_edges.tolist())]
        gallery = [
            int(count) * (4 * width + ROW_BYTES) + int(classes) * layout.bins * 4
            for count, classes in zip(rows, np.diff(self.class_edges), strict=True)
        ]
        probes = [self.probes_of(section) for section in range(self.probe_sections)]
        cell = max(gallery) + max(
            4 * width * (part.stop - part.start) + probe_bytes(data, part, layout.probe_bins) for part in probes
        )
        left = max(self.counts_bytes(number) for number in self.numbers)
        return int(WORKING + indices_bytes(data) + own_bytes(data) + cell + left)


def probe_bytes(data: GalleryData, probes: slice, probe_bins: int) -> int:
    """Return the bytes of what is counted for a run of probes."""
    classes = 1 + int(np.count_nonzero(np.diff(data.probe_class[probes])))
    own = 0
    if data.template == "each":
        known = data.probe_class[probes.start : min(probes.stop, data.known)]
        items = int((data.ends - data.starts)[known].sum())
        own = 8 * items if not own_bins(data) else 8 * own_bins(data) * len(np.unique(known))
    return int((probes.stop - probes.start) * PROBE_BYTES + 4 * classes * probe_bins + own)


def indices_bytes(data: GalleryData) -> int:
    """Return the bytes of the labels of all probes and rows."""
    left_out = 0 if data.own_row is None else 8 * len(data.own_row)
    return 8 * (len(data.probes) + len(data.rows)) + 32 * data.classes + left_out


def own_bytes(data: GalleryData) -> int:
    """Return the bytes of the comparisons of probes with the items of their own class."""
    if data.template == "mean":
        return 0
    most = int((data.ends - data.starts)[data.known_sizes > 0].max())
    return int(most * (12 * data.rows.shape[1] + 16 * OWN_PROBES))


def plan_gallery(prepared: Any, parts: int = 1, *, memory: str | int = MEMORY) -> GalleryPlan:
    """Divide the comparisons of a prepared gallery into parts, each of which needs at most ``memory``.

    Args:
        prepared: what `isomargin.prepare_gallery` returned, or its folder.
        parts: number of parts.
        memory: memory of the process that counts a part, such as ``"4GB"``. With one part, that process also holds the
            counts of all classes and probes.

    >>> from tempfile import TemporaryDirectory
    >>> import isomargin as im
    >>> with TemporaryDirectory() as name:
    ...     im.EmbeddingSet(np.eye(8), np.arange(8)).save(f"{name}/gallery.npy")
    ...     im.EmbeddingSet(np.eye(8)[np.arange(2000) % 8], np.arange(2000) % 9).save(f"{name}/probes.npy")
    ...     prepared = im.prepare_gallery(f"{name}/gallery.npy", f"{name}/probes.npy", f"{name}/prepared")
    ...     im.plan_gallery(prepared, parts=3)
    <GalleryPlan: 3 parts of 3 sections of probes and 1 of the gallery>
    """
    if not isinstance(prepared, PreparedGallery):
        prepared = PreparedGallery.open(prepared)
    checks.whole(parts, "parts")
    data, budget = prepared.data(), read_size(memory)
    n, width = data.probes.shape
    whole = make_layout(data, parts, [0, data.classes])
    blocks = len(whole.probe_edges) - 1
    room = budget - WORKING - indices_bytes(data) - own_bytes(data)
    if parts == 1:
        room -= data.classes * whole.bins * 4 + probe_bytes(data, slice(0, n), whole.probe_bins)
    if room < LEAST_ROOM:
        raise InputError(too_little(budget, budget - room + LEAST_ROOM, parts))
    class_edges = gallery_sections(data, whole.bins, room // 2, wanted=-(-parts // blocks))
    layout = make_layout(data, parts, class_edges.tolist())
    least = -(-(n * (4 * width) + 2 * probe_bytes(data, slice(0, n), whole.probe_bins)) // max(room // 4, 1))
    block_edges = probe_sections(blocks, len(class_edges) - 1, parts, least)
    plan = GalleryPlan(prepared, parts, class_edges, block_edges, layout, budget)
    if parts > (cells := plan.gallery_sections * plan.probe_sections):
        raise InputError(
            f"parts is {parts:,}: these {n:,} probes and {data.classes:,} classes have {cells:,} blocks, so use at "
            "most as many parts"
        )
    if (needed := plan.needed()) > budget:
        raise InputError(too_little(budget, needed, parts))
    return plan


def too_little(memory: int, needed: int, parts: int) -> str:
    """Say that a plan needs more memory."""
    reason = ", because one process holds the counts of all classes and probes" if parts == 1 else ""
    return (
        f"memory is {memory / 1e9:.3g} GB: this plan needs at least {needed / 1e9:.3g} GB{reason}: use more memory, or "
        "more parts"
    )


def gallery_sections(data: GalleryData, bins: int, limit: int, wanted: int) -> NDArray[np.int64]:
    """(sections + 1,) the first class of each section: at least as many as wanted, none above the limit if possible."""
    sizes = data.ends - data.starts
    per_class = sizes * (4 * data.rows.shape[1] + ROW_BYTES) + bins * 8  # counters, and those of the part before
    limit = max(limit, int(per_class.max()))
    number = min(max(wanted, math.ceil(int(per_class.sum()) / limit)), data.classes)
    if number == 1:
        return np.array([0, data.classes])
    share = max(math.ceil(int(per_class.sum()) / number), int(per_class.max()))
    return cut_classes(sizes, per_class, min(limit, share), 1)


def probe_sections(blocks: int, gallery_sections: int, parts: int, least: int) -> NDArray[np.int64]:
    """(sections + 1,) the first block of each section of probes; if possible, parts have equally many cells.

    >>> probe_sections(100, 1, 4, 1), probe_sections(100, 3, 4, 2)
    (array([  0,  25,  50,  75, 100]), array([  0,  25,  50,  75, 100]))
    """
    together = parts // math.gcd(parts, gallery_sections)
    number = -(-max(least, -(-parts // gallery_sections)) // together) * together
    number = min(number, blocks)
    return np.arange(number + 1) * blocks // number
