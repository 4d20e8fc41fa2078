"""``Equalizer``: corrects similarities for how crowded the surroundings of each item are.

Cosines are high where many items lie close together and low where they do not, so one threshold accepts too much in
some classes and too little in others. The equalizer subtracts from each pair's cosine what the two items' neighbours
lead to expect. It needs no labels and leaves the embeddings as they are.
"""

import os
import warnings
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import array_digest, digest
from isomargin.core.labels import as_labels, labels_of_rows
from isomargin.core.progress import progress_bar
from isomargin.equalize import saving
from isomargin.equalize.large_sets import places_in_reference, search_in_blocks
from isomargin.equalize.rows import (
    Floats,
    Singles,
    are_same,
    check_distinct,
    comparable,
    fitting_ranks,
    joined,
    mean_of_ranks,
    row_ids,
    unit_vectors,
)
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import Shifts
from isomargin.measure.pairs.neighbours import NOTHING, grow, nearest_in_reference, nearest_in_set

Method = Literal["local", "cohort"]

SAME = 1 - 1e-6  # a row whose nearest neighbour is this similar is probably in the reference itself
MANY_COPIES = 0.01  # more such rows than this share are worth a warning
LARGEST_COSINE = 1.1  # engines round, and some compress vectors; what stands for a missing result is far beyond


class Found(NamedTuple):
    """The offsets of rows, and where the rows are."""

    offsets: Floats
    """(n,) r of each row."""
    own_class: str
    """Whether the rows are ``"in_reference"``, ``"outside"`` of it, ``"mixed"``, some of both, or in it without its
    being known which is which, so that they count as their ``"own_neighbours"``."""
    note: str | None
    """What the user should know."""


class Equalizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    r"""Equalizes the similarities of pairs by the neighbourhoods of their items.

    .. math:: s'(x, y) = s(x, y) - w\,(r(x) + r(y)) + c

    s is the cosine, r(x) the mean cosine of x to its neighbours ranked skip + 1 to skip + k in a reference set, and the
    constant :math:`c = 2 w \bar r`, with the mean :math:`\bar r` over the reference, keeps similarities on the scale of
    cosines.

    - ``method="local"``: the reference is the index that is searched. Use it for search, identification and
      de-duplication. Rows of the reference are not their own neighbours.
    - ``method="cohort"``: the reference is other data of the same kind, as for 1:1 verification, where there is no
      index. Use ``skip=0``: no class has items in the reference.

    ``skip`` should be about the number of items that a class has in the index. Then a class that is not in the index
    yet is treated much like one that is, though not alike: docs/equalize-promises.md measures the difference. With
    ``skip=0`` and about 30 neighbours classes differ least in utility (OPIS), but only while every class is in the
    index. ``EqualizerCV`` chooses by cross-validation where there are labels.

    The form is that of CSLS (Conneau et al., 2018) and of the symmetric score normalisation of speaker verification
    (S-norm); docs/equalize.md compares them.

    Args:
        neighbours: number of neighbours, k.
        skip: number of nearest neighbours that are left out.
        weight: the weight w.
        method: ``"local"`` or ``"cohort"``.
        threads: number of CPU threads; by default one per core.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(600) % 30
    >>> spread = np.linspace(0.2, 0.6, 30)[labels][:, None]  # some classes are wider than others
    >>> embeddings = generator.normal(size=(30, 16))[labels] + spread * 3 * generator.normal(size=(600, 16))
    >>> equalizer = im.Equalizer(neighbours=50, skip=20).fit(embeddings)
    >>> raw, equalized = im.evaluate(embeddings, labels), im.evaluate(embeddings, labels, equalizer=equalizer)
    >>> equalized.opis < raw.opis
    True
    """

    neighbours_: int
    """Number of neighbours in use: fewer than asked for if the reference is small."""
    skip_: int
    """Number of skipped neighbours in use."""
    weight_: float
    """The weight w."""
    offset_: float
    """The constant c. It is set by `fit` and kept by `partial_fit`."""
    vectors_: Singles
    """(n, d) unit vectors of the reference."""
    nearest_: Singles
    """(n, m) each reference row's largest similarities to the other rows, largest first."""
    offsets_: Floats
    """(n,) r of each row of the reference."""
    ids_: NDArray[Any] | None
    """(n,) names of the reference's rows, if given."""
    digest_: str
    """Names this fit: settings, constant and reference. `partial_fit` keeps it."""
    n_features_in_: int
    """Number of dimensions."""

    def __init__(
        self,
        neighbours: int = 100,
        skip: int = 30,
        weight: float = 0.5,
        method: Method = "local",
        threads: int | None = None,
    ) -> None:
        self.neighbours = neighbours
        self.skip = skip
        self.weight = weight
        self.method = method
        self.threads = threads

    def fit(self, reference: Any, y: Any = None, ids: Any = None) -> Self:
        """Find the neighbours of every row of the reference.

        Args:
            reference: (n, d) embeddings, at least two rows: the index (local) or other data (cohort). No labels needed.
            y: ignored; scikit-learn's pipelines pass it.
            ids: n names of the rows. Rows that are given to `offsets` with the same id are not their own neighbours.
        """
        self.check_settings()
        vectors = unit_vectors(reference)
        if len(vectors) < 2:
            raise InputError("reference has 1 row: at least two rows are needed, so that each has a neighbour")
        names = row_ids(ids, len(vectors))
        check_distinct(names)
        with progress_bar("finding neighbours") as progress:
            nearest = nearest_in_set(vectors, self.skip + self.neighbours, threads=self.threads, progress=progress)
        return self._set(vectors, nearest, names)

    def with_neighbours(self, vectors: Singles, nearest: Singles, ids: NDArray[Any] | None) -> Self:
        """Fit on unit vectors whose (n, m) similarities to their nearest others are known, largest first."""
        self.check_settings()
        needed = self.skip + self.neighbours
        return self._set(vectors, nearest if nearest.shape[1] <= needed else nearest[:, :needed].copy(), ids)

    def check_settings(self) -> None:
        """Refuse settings that cannot be used."""
        checks.whole(self.neighbours, "neighbours")
        checks.whole(self.skip, "skip", 0)
        check_weight(self.weight)
        checks.one_of(self.method, "method", get_args(Method))
        if self.threads is not None:
            checks.whole(self.threads, "threads")

    def _set(self, vectors: Singles, nearest: Singles, ids: NDArray[Any] | None) -> Self:
        """Set everything that `fit` finds."""
        self.weight_ = float(self.weight)
        self.n_features_in_ = vectors.shape[1]
        self._fit_settings = self.settings()
        self._set_rows(vectors, nearest, ids)
        self.offset_ = 2 * self.weight_ * float(self.offsets_.mean())
        self.digest_ = digest({**self.settings(), "offset": self.offset_, "reference": array_digest(vectors)})
        return self

    def _set_rows(self, vectors: Singles, nearest: Singles, ids: NDArray[Any] | None) -> None:
        """Set what depends on the reference's rows, and warn if there are fewer than the settings need."""
        self.vectors_, self.nearest_, self.ids_ = vectors, nearest, ids
        self.skip_, self.neighbours_ = fitting_ranks(self.skip, self.neighbours, len(vectors) - 1)
        if (self.skip_, self.neighbours_) != (self.skip, self.neighbours):
            warnings.warn(
                f"the reference has {len(vectors):,} rows, too few to skip {self.skip} neighbours and average "
                f"{self.neighbours}: {self.skip_} are skipped and {self.neighbours_} averaged; "
                "where classes have few items, skip=0 is better",
                UserWarning,
                stacklevel=4,
            )
        self.offsets_ = mean_of_ranks(nearest, self.skip_, self.neighbours_)

    def partial_fit(self, new_rows: Any, y: Any = None, ids: Any = None) -> Self:
        """Add rows to the reference; the neighbours of all rows are then those that `fit` would find.

        The constant ``offset_`` and the ``digest_`` stay. Neighbours come closer as an index grows, so at the same
        threshold FAR falls and FRR rises: choose the threshold again after the index has grown by a quarter or more.
        Without labels, `fit` again and keep the number, which the new constant brings closer to its old rates.
        """
        if not hasattr(self, "vectors_"):
            return self.fit(new_rows, ids=ids)
        self.check_settings()
        if self.settings() != self._fit_settings:
            raise InputError(
                "the settings were changed after fit, which kept only the neighbours that it needed: call fit again"
            )
        vectors = self._unit_vectors(new_rows)
        new_ids = row_ids(ids, len(vectors))
        if (new_ids is None) != (self.ids_ is None):
            raise InputError(
                "the reference and the new rows need ids both or not at all: give ids, or fit without them"
            )
        together = None if self.ids_ is None or new_ids is None else joined(self.ids_, new_ids)
        check_distinct(together)
        ranks = fitting_ranks(self.skip, self.neighbours, len(self.vectors_) + len(vectors) - 1)
        if ranks != (self.skip_, self.neighbours_):
            raise InputError(
                f"the reference had {len(self.vectors_):,} rows, too few for the settings, and has enough for other "
                "neighbours now: call fit with all rows, which sets the constant for them"
            )
        known, added = grow(self.vectors_, self.nearest_, vectors, self.skip + self.neighbours, self.threads)
        self._set_rows(np.concatenate([self.vectors_, vectors]), np.concatenate([known, added]), together)
        return self

    def offsets(self, embeddings: Any, ids: Any = None) -> Floats:
        """(n,) r of each row: the mean cosine to its neighbours in the reference.

        If the rows are those of the reference, in the same order, no row is its own neighbour. Otherwise a row is left
        out of its neighbours only if both have the same id.
        """
        found = self._find(embeddings, ids)
        if found.note is not None:
            warnings.warn(found.note, UserWarning, stacklevel=2)
        return found.offsets

    def _find(self, embeddings: Any, ids: Any) -> "Found":
        """Find the neighbours of rows, and whether the rows are in the reference themselves."""
        check_is_fitted(self)
        vectors = self._unit_vectors(embeddings)
        if self._is_reference(vectors):
            return Found(self.offsets_.copy(), "in_reference", None)
        length, excluded = self.skip_ + self.neighbours_, self._rows_of(row_ids(ids, len(vectors)), len(vectors))
        with progress_bar("finding neighbours") as progress:
            nearest = nearest_in_reference(vectors, self.vectors_, length, excluded, self.threads, progress)
        named = excluded >= 0
        found = named.copy()
        found[named] = are_same(vectors[named], self.vectors_[excluded[named]])
        copies = (nearest[:, 0] >= SAME) & ~named
        offsets, many = mean_of_ranks(nearest, self.skip_, self.neighbours_), MANY_COPIES * len(vectors)
        if copies.sum() > many:
            text = (
                f"{int(copies.sum()):,} of {len(vectors):,} rows have an exact copy in the reference, probably "
                "themselves, which counts as a neighbour: fit and evaluate the same rows in the same order, or give "
                "ids to both"
            )
            return Found(offsets, "own_neighbours", text)
        note = None
        if (named & ~found).sum() > many:
            note = (
                f"{int((named & ~found).sum()):,} of {len(vectors):,} rows have the id of a row of the reference with "
                "another embedding, which is left out of their neighbours: ids should name the same item in both"
            )
        inside = float(found.mean())
        own_class = "outside" if inside <= MANY_COPIES else "in_reference" if inside >= 1 - MANY_COPIES else "mixed"
        return Found(offsets, own_class, note)

    def offsets_without_class(self, labels: Any) -> Floats:
        """(n,) r of each row of the reference as if its class were not in the reference yet.

        Args:
            labels: (n,) labels of the reference's rows.
        """
        check_is_fitted(self)
        _, classes = np.unique(as_labels(labels), return_inverse=True)
        if len(classes) != len(self.vectors_):
            raise InputError(
                f"labels has {len(classes):,} entries, the reference has {len(self.vectors_):,} rows: to measure "
                "classes as new, evaluate the rows that the equalizer was fitted on"
            )
        nearest = nearest_in_set(self.vectors_, self.skip_ + self.neighbours_, classes, self.threads)
        if nearest[:, -1].min() == NOTHING:
            raise InputError(
                f"a class has too many rows of the reference to find {nearest.shape[1]} neighbours of other classes: "
                "use fewer neighbours, or a larger reference"
            )
        return mean_of_ranks(nearest, self.skip_, self.neighbours_)

    def _is_reference(self, vectors: Singles) -> bool:
        """Whether these are the rows of the reference, in the same order."""
        return vectors.shape == self.vectors_.shape and bool(are_same(vectors, self.vectors_).all())

    def _places(self, embeddings: Any, ids: Any) -> NDArray[np.int64]:
        """(n,) the place of each row in the reference; anything but all rows of the reference is refused."""
        check_is_fitted(self)
        vectors = self._unit_vectors(embeddings)
        if self._is_reference(vectors):
            return np.arange(len(vectors))
        places = self._rows_of(row_ids(ids, len(vectors)), len(vectors))
        everything = np.array_equal(np.sort(places), np.arange(len(self.vectors_)))
        if not everything or not are_same(vectors, self.vectors_[places]).all():
            raise InputError(
                "the rows are not those of the equalizer's reference: to measure classes as new, evaluate the rows "
                "that it was fitted on, in the same order or with ids"
            )
        return places

    def _rows_of(self, ids: NDArray[Any] | None, rows: int) -> NDArray[np.int64]:
        """(n,) the row of the reference with each id, or -1; -1 without ids."""
        if ids is None:
            return np.full(rows, -1)
        if self.ids_ is None:
            raise InputError("ids were given, but the equalizer was fitted without ids: give them to fit as well")
        known, wanted = comparable(self.ids_, ids)
        order = np.argsort(known)
        place = np.clip(np.searchsorted(known[order], wanted), 0, len(order) - 1)
        return np.where(known[order[place]] == wanted, order[place], -1)

    def _unit_vectors(self, embeddings: Any) -> Singles:
        vectors = unit_vectors(embeddings)
        self._check_width(vectors)
        return vectors

    def _check_width(self, vectors: Singles) -> None:
        if vectors.shape[1] != self.n_features_in_:
            raise InputError(
                f"embeddings has {vectors.shape[1]} dimensions, the reference of the equalizer has "
                f"{self.n_features_in_}: embeddings of the same model are needed"
            )

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn should know: vectors come out in float32 whatever goes in."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    # ----- for measuring

    @property
    def axis(self) -> ScoreAxis:
        """The axis of equalized distances: similarities differ from cosines by at most 2w + abs(c)."""
        return ScoreAxis.equalized(-1 - 2 * self.weight_ + self.offset_, 1 + 2 * self.weight_ + self.offset_)

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> Shifts:
        """Return what is added to the cosine of a pair, one half by each of its rows: c/2 - w r(x).

        With labels as ``new_classes``, rows of the same class are not neighbours of each other.
        """
        if new_classes is None:
            return self._shifts(self._find(embeddings, ids))
        places = self._places(embeddings, ids)
        labels = labels_of_rows(new_classes, len(places))
        of_reference = np.empty_like(labels)
        of_reference[places] = labels
        return self._shifts(Found(self.offsets_without_class(of_reference)[places], "left_out", None))

    def shifts_of_rows(self, vectors: Singles) -> Shifts:
        """Return the shifts of unit vectors that may be larger than memory, such as those of a prepared set.

        They are read in blocks. Rows of the reference are recognised in any order, but only if all of it is given.
        """
        check_is_fitted(self)
        self._check_width(vectors)
        places = places_in_reference(vectors, self.vectors_)
        if places is not None:
            return self._shifts(Found(self.offsets_[places], "in_reference", None))
        offsets, largest = search_in_blocks(vectors, self.vectors_, self.skip_, self.neighbours_, self.threads)
        copies = int((largest >= SAME).sum())
        if copies <= MANY_COPIES * len(vectors):
            return self._shifts(Found(offsets, "outside", None))
        text = (
            f"{copies:,} of {len(vectors):,} rows have an exact copy in the reference, probably themselves, which "
            "counts as a neighbour: fit the equalizer on the set that is evaluated"
        )
        return self._shifts(Found(offsets, "own_neighbours", text))

    def _shifts(self, found: Found) -> Shifts:
        """Return what is added to the cosines of pairs of these rows."""
        note = found.note
        if found.own_class == "outside" and self.method == "local" and note is None:
            note = (
                "no row is in the reference of the equalizer: all are measured like classes that have not joined the "
                "index, which raises FARs; fit the equalizer on these rows if they are the index"
            )
        values = self.offset_ / 2 - self.weight_ * found.offsets
        return Shifts(values, self.axis, found.own_class, () if note is None else (note,))

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return the settings in use, the constant and the digest as JSON values, for evaluations and cards.

        ``own_class`` is what the method is meant for; evaluations say where their rows were found.
        """
        check_is_fitted(self)
        used = {"neighbours": self.neighbours_, "skip": self.skip_}
        own_class = "left_out" if new_classes else "outside" if self.method == "cohort" else "in_reference"
        return {**self._fit_settings, **used, "offset": self.offset_, "own_class": own_class, "digest": self.digest_}

    def settings(self) -> dict[str, Any]:
        """Return the settings that a fit depends on, as JSON values."""
        return {
            "method": self.method,
            "neighbours": int(self.neighbours),
            "skip": int(self.skip),
            "weight": float(self.weight),
        }

    # ----- for serving

    def transform(self, embeddings: Any, ids: Any = None) -> Singles:
        """(n, d + 1) the vectors to put into an index that compares by inner product: [y, -w r(y)].

        An index that compares by cosine would scale them to length one again and undo the correction. Rows are
        recognised as rows of the reference as in `offsets`: for a part of the reference, give ids, or take
        `transform_reference`.
        """
        offsets = self.offsets(embeddings, ids)
        return augmented(self._unit_vectors(embeddings), -self.weight_ * offsets)

    def transform_reference(self) -> Singles:
        """(n, d + 1) the vectors of `transform` for all rows of the reference, in the order in which they were given.

        After `partial_fit` the offsets of earlier rows have changed too: write all of them to the index again.
        """
        check_is_fitted(self)
        return augmented(self.vectors_, -self.weight_ * self.offsets_)

    def transform_queries(self, embeddings: Any) -> Singles:
        """(n, d + 1) the vectors to search that index with: [x, 1]. The inner product is s(x, y) - w r(y)."""
        check_is_fitted(self)
        return augmented(self._unit_vectors(embeddings), 1.0)

    def transform_neighbour_queries(self, embeddings: Any) -> Singles:
        """(n, d + 1) the vectors to search that index with for the plain cosines that r(x) needs: [x, 0]."""
        check_is_fitted(self)
        return augmented(self._unit_vectors(embeddings), 0.0)

    def offsets_from_search(self, similarities: Any) -> Floats:
        """(n,) r(x) from the (n, m) cosines that a search with `transform_neighbour_queries` found, largest first.

        m must be at least ``skip_ + neighbours_``. Leave the query itself out of its list if it is in the index.
        """
        check_is_fitted(self)
        found = np.asarray(similarities, np.float32)
        needed = self.skip_ + self.neighbours_
        if found.ndim != 2 or found.shape[1] < needed:
            raise InputError(
                f"similarities has shape {found.shape}: one row per query with at least {needed} cosines is needed"
            )
        used = found[:, :needed]
        if not (np.abs(used) <= LARGEST_COSINE).all() or (used[:, 0] < used[:, -1]).any():
            raise InputError(
                "similarities has a row that is not a list of cosines, largest first: search with "
                "transform_neighbour_queries, and turn distances into inner products"
            )
        return mean_of_ranks(found, self.skip_, self.neighbours_)

    def inner_product_thresholds(self, similarity: float, offsets: Any) -> Floats:
        """(n,) the least inner product that accepts a pair of each query: t - c + w r(x).

        Args:
            similarity: the threshold t as an equalized similarity, ``card.threshold["equalized_similarity"]``.
            offsets: (n,) r of each query.
        """
        check_is_fitted(self)
        return np.asarray(similarity - self.offset_ + self.weight_ * np.asarray(offsets, np.float64))

    # ----- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the settings to a .json file and the reference to a .safetensors file beside it, atomically."""
        saving.write({Path(path): self.content()})

    def content(self) -> saving.Content:
        """Return what `save` writes, for files that hold more than an equalizer."""
        check_is_fitted(self)
        ids = None if self.ids_ is None else self.ids_.tolist()
        values = {**self._fit_settings, "offset": self.offset_, "digest": self.digest_, "ids": ids}
        return saving.Content("equalizer", values, {"vectors": self.vectors_, "nearest": self.nearest_})

    @classmethod
    def load(cls, path: str | os.PathLike[str], mapped: bool = False) -> Self:
        """Read an equalizer that `save` wrote; files that were changed since are refused.

        With ``mapped``, the reference stays in its file, which is mapped into memory: it may be larger than memory.
        """
        values, arrays = saving.read(Path(path), "equalizer", mapped)
        ids = None if values["ids"] is None else as_labels(values["ids"])
        equalizer = cls(values["neighbours"], values["skip"], values["weight"], values["method"])
        equalizer.check_settings()
        equalizer._fit_settings = equalizer.settings()
        equalizer.weight_, equalizer.n_features_in_ = float(equalizer.weight), arrays["vectors"].shape[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `fit` has given it
            equalizer._set_rows(arrays["vectors"], arrays["nearest"], ids)
        equalizer.offset_, equalizer.digest_ = values["offset"], values["digest"]
        return equalizer


def check_weight(weight: Any) -> None:
    """Refuse a weight that is not above 0 and at most 1."""
    if not 0 < checks.number(weight, "weight") <= 1:
        raise InputError(f"weight is {weight}: a number above 0 and at most 1 is needed")


def augmented(vectors: Singles, last: Any) -> Singles:
    """(n, d + 1) vectors with one more entry each."""
    with_room = np.empty((len(vectors), vectors.shape[1] + 1), np.float32)
    with_room[:, :-1], with_room[:, -1] = vectors, last
    return with_room
