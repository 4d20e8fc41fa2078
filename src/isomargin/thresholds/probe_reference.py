r"""What the card of a gallery keeps about its probes, so that later probes without labels can be compared with them.

The gallery stays as it is. Each probe therefore has numbers of its own: whether any class is accepted, the share of the
templates that the threshold accepts, and the shares within the edges of bins. Every statistic is a mean of these
numbers over probes,

.. math:: E = k\,E_{known} + u\,E_{unknown}, \quad k + u = 1,

with the shares k of known and u of unknown probes. How far it may stray by chance follows from the covariance over
probes, and over probe classes (the jackknife, for known and unknown classes apart).
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.json_values import digest, pack_array, unpack_array
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.gallery_shifts import GalleryShifts
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.gallery_inputs import GalleryData, Template, read_gallery, told_apart
from isomargin.measure.pairs.inputs import UNIT_TOLERANCE, as_matrix
from isomargin.thresholds.reference import (
    MOST_ITEMS,
    UNIT_SHARE,
    Moments,
    bin_edges,
    chosen_units,
    leave_out_means,
    pack_symmetric,
    traces,
    unpack_symmetric,
)
from isomargin.thresholds.same_shifts import check_same_shifts

KIND = "probe_template"
SINGLE = 1 << 24  # more similarities than this are computed in float32
BLOCK = 1 << 23  # similarities that are held at a time
STEP = 2.0**-12  # templates are the same if they agree to this
ARRAYS = ("distances", "known_means", "unknown_means")
MATRICES = ("total", "over_known", "over_unknown")


@dataclass(frozen=True, eq=False)
class ProbeReference:
    """The means over probes of their own numbers, and how far these may stray by chance.

    The numbers are whether any class is accepted, the share of accepted templates, and the shares within the edges.
    """

    distances: Floats
    """(1 + edges,) the threshold, then the inner edges of the bins, ascending."""
    known_means: Floats
    """(2 + edges,) means over the known probes."""
    unknown_means: Floats
    """(2 + edges,) means over the unknown probes; zeros if there are none."""
    known: int
    """Number of known probes."""
    unknown: int
    """Number of unknown probes."""
    known_classes: int
    """Number of classes of the known probes."""
    unknown_classes: int
    """Number of classes of the unknown probes."""
    total: Floats
    """(2 + edges, same) covariance over probes."""
    over_known: Floats
    """(2 + edges, same) covariance of the means over sets of as many other known classes, as weighted in the whole."""
    over_unknown: Floats
    """(2 + edges, same) the same over unknown classes."""
    gallery: str
    """Digest of the templates."""
    enrolled: int
    """Number of enrolled classes."""
    dimensions: int
    """Number of dimensions."""
    unit_lengths: bool
    """Whether the vectors of the probes had length one."""
    log_length: Moments
    """Of the logarithm of the probes' lengths; ``within`` is all of the variance, as the mix is drawn at random too."""
    centre: Moments
    """Of the probes' unit vectors, in the same way."""

    @property
    def items(self) -> int:
        """Number of probes."""
        return self.known + self.unknown

    @property
    def classes(self) -> int:
        """Number of classes of the probes."""
        return self.known_classes + self.unknown_classes

    @property
    def whole(self) -> bool:
        """Whether the whole distribution can be tested: always."""
        return True

    @property
    def means(self) -> Floats:
        """(2 + edges,) means over all probes."""
        return np.asarray((self.known * self.known_means + self.unknown * self.unknown_means) / self.items)

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        packed = {name: pack_array(getattr(self, name)) for name in ARRAYS}
        packed |= {name: pack_symmetric(getattr(self, name)) for name in MATRICES}
        packed |= {name: getattr(self, name).as_values() for name in ("log_length", "centre")}
        counts = {"items": self.items, "classes": self.classes}
        return {"comparison": KIND, **counts, **{name: packed.get(name, value) for name, value in vars(self).items()}}

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "ProbeReference":
        """Convert from JSON values."""
        try:
            found: dict[str, Any] = {name: values[name] for name in cls.__dataclass_fields__}
            found |= {name: unpack_array(values[name]) for name in ARRAYS}
            found |= {name: unpack_symmetric(values[name]) for name in MATRICES}
            found |= {name: Moments.from_values(values[name]) for name in ("log_length", "centre")}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the card's reference is damaged: make the card again") from error
        return cls(**found)


def make_probe_reference(
    evaluation: Evaluation,
    distance: float,
    probes: EmbeddingSet | None,
    gallery: EmbeddingSet | None,
    shifts: GalleryShifts,
) -> ProbeReference | None:
    """Collect what a later check of a gallery's card needs.

    None without the embeddings of probes and gallery, if probes were the enrolled items themselves (a later probe is
    compared with whole templates), or if known probes are of a single class.
    """
    found = evaluation.gallery
    if probes is None or gallery is None or found.leave_one_out or (evaluation.sizes > 0).sum() < 2:
        return None
    check_same_shifts(evaluation.equalizer, shifts.record(), "the evaluation")
    matrix = as_matrix(probes.vectors)
    rows = random_rows(len(matrix), 0)
    data, lengths = read_probes(matrix, rows, probes.labels[rows], gallery, found.template, shifts)
    if (
        data.classes != evaluation.class_count
        or (data.enrolled != found.enrolled).any()
        or len(matrix) != len(found.probe_class)
    ):
        raise InputError("embeddings and gallery are not those of the evaluation: give the sets that were evaluated")
    distances = np.concatenate([[distance], bin_edges(evaluation)])
    values, logs = probe_values(data, distances, found.margin), np.log(lengths)[:, None]
    strata = [part for part in (slice(0, data.known), slice(data.known, len(rows))) if part.stop > part.start]
    over = [class_deviations(values, data.probe_class, part) for part in strata]
    over_known, over_unknown = [each.T @ each for each in [*over, np.zeros((1, values.shape[1]))][:2]]
    classes = [len(np.unique(data.probe_class[part])) for part in strata]
    centred = data.probes - data.probes.mean(axis=0, dtype=np.float64)
    of_items = traces(centred / np.sqrt(len(rows)))
    vectors_over = np.concatenate([class_deviations(data.probes, data.probe_class, part) for part in strata])
    logs_over = np.concatenate([class_deviations(logs, data.probe_class, part) for part in strata])
    return ProbeReference(
        distances=distances,
        known_means=values[: data.known].mean(axis=0),
        unknown_means=values[data.known :].mean(axis=0) if data.known < len(rows) else np.zeros(values.shape[1]),
        known=data.known,
        unknown=len(rows) - data.known,
        known_classes=classes[0],
        unknown_classes=sum(classes[1:]),
        total=np.cov(values.T, bias=True),
        over_known=over_known,
        over_unknown=over_unknown,
        gallery=gallery_digest(data),
        enrolled=data.classes,
        dimensions=int(matrix.shape[1]),
        unit_lengths=bool((np.abs(lengths - 1) <= UNIT_TOLERANCE).mean() >= UNIT_SHARE),
        log_length=Moments(logs.mean(axis=0), logs.var(axis=0), logs.var(axis=0), np.square(logs_over).sum(axis=0)),
        centre=Moments(data.probes.mean(axis=0, dtype=np.float64), of_items, of_items, traces(vectors_over)),
    )


def random_rows(n: int, seed: int) -> NDArray[np.int64]:
    """(at most MOST_ITEMS,) random rows, ascending."""
    return np.sort(np.random.default_rng(seed).permutation(n)[:MOST_ITEMS])


def read_probes(
    matrix: Any,
    rows: NDArray[np.int64],
    labels: Any,
    gallery: EmbeddingSet,
    template: Template,
    shifts: GalleryShifts,
    ids: Any = None,
) -> tuple[GalleryData, Floats]:
    """Return some probes and a gallery, with what shifts their similarities, and the lengths of the probes in order.

    Without labels, all probes are taken for those of the first enrolled class, which changes no similarity.
    """
    with told_apart("probes"):
        _, lengths = chosen_units(matrix, rows)
    chosen = matrix[rows]
    its_labels = np.repeat(np.asarray(gallery.labels)[:1], len(rows)) if labels is None else labels
    dtype = np.float32 if len(rows) * len(gallery.labels) > SINGLE else np.float64
    data = read_gallery(gallery.vectors, gallery.labels, chosen, its_labels, template, False, dtype)
    data = shifts.apply(data, gallery.vectors, chosen, None, None if ids is None else np.asarray(ids)[rows])
    return data, lengths[data.probe_order]


def probe_values(data: GalleryData, distances: Floats, margin: float) -> Floats:
    """(n, 2 + edges) per probe: whether any class is accepted, then the share of templates within each distance.

    The shares are over all templates for the threshold, and over at most 4,096 random ones, always the same, for the
    edges.
    """
    similarities, step = similarity_of(distances), max(1, BLOCK // len(data.rows))
    found = np.empty((len(data.probes), 1 + len(distances)))
    columns = np.sort(np.random.default_rng(0).permutation(data.columns)[:MOST_ITEMS])
    for first in range(0, len(data.probes), step):
        part = slice(first, first + step)
        similarity = data.similarity(slice(None), part)
        best = similarity if data.template == "mean" else np.maximum.reduceat(similarity, data.starts, axis=0)
        compared = similarity if data.template == "each" else best
        found[part, 0] = is_accepted(best, similarities[0], margin)
        found[part, 1] = (compared >= similarities[0]).mean(axis=0)
        shown = compared if len(columns) == len(compared) else compared[columns]
        for i, least in enumerate(similarities[1:].tolist()):
            found[part, 2 + i] = np.count_nonzero(shown >= least, axis=0) / len(shown)
    return found


def is_accepted(best: NDArray[Any], least: float, margin: float) -> NDArray[np.bool_]:
    """(n,) whether the first class of each probe is accepted, from (classes, n) similarities."""
    if margin <= 0:
        return np.asarray(best.max(axis=0) >= least)
    second, first = np.partition(best, -2, axis=0)[-2:]
    return np.asarray((first >= least) & (first - second >= margin))


def class_deviations(values: NDArray[Any], class_of: NDArray[np.int64], part: slice) -> Floats:
    """(classes, m) deviations of the mean over all probes if one class of a part is left out.

    They are scaled so that their squares sum to the variance over classes. A part of one class has none.
    """
    _, sizes = np.unique(class_of[part], return_counts=True)
    if len(sizes) < 2:
        return np.zeros((1, values.shape[1]))
    return np.asarray(leave_out_means(values[part], sizes.astype(float)) * (sizes.sum() / len(values)))


def gallery_digest(data: GalleryData) -> str:
    """Compute a digest of the templates and their classes, in any order; it survives rounding errors."""
    rounded = np.round(data.rows.astype(np.float64) / STEP).astype(np.int16)
    names = [str(name).encode() for name in data.names.tolist()]
    rows = (
        hashlib.sha256(names[its_class] + b"\0" + row.tobytes()).hexdigest()
        for its_class, row in zip(data.row_class.tolist(), rounded, strict=True)
    )
    return digest({"template": data.template, "rows": sorted(rows)})
