r"""What a card keeps about the set it was measured on, so that a later set without labels can be compared with it.

The statistic is the share of random pairs of items within a few distances: the threshold, and the edges of bins that
hold equally many pairs. Two items of a random sample belong to the same class now and then, so this share mixes false
accepts with true ones; the reference keeps the two parts apart,

.. math:: U(t) = M(t) + P(t), \quad M = \sum_{c \ne d} \pi_c \pi_d \theta_{cd}(t), \quad
    P = \sum_c \pi_c^2 \theta_{cc}(t),

with the share :math:`\pi_c` of class c and the accept rate :math:`\theta_{cd}` between classes c and d. U is a
U-statistic. How far it may stray by chance follows from how much items differ (their covariance, in all and within
classes) and from how much it depends on which classes were drawn (the jackknife over classes).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.json_values import pack_array, unpack_array
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.distances import Floats, ListedDistances
from isomargin.measure.pairs.inputs import (
    UNIT_TOLERANCE,
    ClassSortedVectors,
    Shifts,
    as_float64,
    as_matrix,
    refuse_rows,
    sort_by_class,
    unit_rows,
)
from isomargin.measure.scores.curves import share

BINS = 32  # bins of equally many random pairs
MOST_ITEMS = 4096  # items whose accept rates are compared with each other, and items that each is compared with
ROWS = 512  # items whose similarities to the others are held at a time
UNIT_SHARE = 0.99  # lengths count as one if this share of them is one


@dataclass(frozen=True, eq=False)
class Moments:
    """A mean over items, and what its variance is made of."""

    mean: Floats
    """(m,) the mean."""
    items: Floats
    """The variance of one item: (m,), or for a vector its trace and the trace of its square."""
    within: Floats
    """The part of it within classes, in the same form."""
    classes: Floats
    """The variance of the mean over sets of as many classes, in the same form."""

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {name: pack_array(np.asarray(value, np.float64)) for name, value in vars(self).items()}

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Moments":
        """Convert from JSON values."""
        return cls(**{name: unpack_array(values[name]) for name in ("mean", "items", "within", "classes")})


@dataclass(frozen=True, eq=False)
class Reference:
    """The distribution of the distances of random pairs, and how far it may stray by chance."""

    distances: Floats
    """(1 + edges,) the threshold, then the inner edges of the bins, ascending."""
    negatives: Floats
    """(1 + edges,) M, the share of random pairs that are negative and within each distance."""
    positives: Floats
    """(1 + edges,) P, the share of random pairs that are positive and within each distance."""
    positive_share: float
    """Share of random pairs that are positive."""
    classes: int
    """Number of classes."""
    items: int
    """Number of items."""
    between: Floats
    """(2 (1 + edges), same) covariance of M and P over sets of as many classes, each with as many items."""
    item_total: Floats
    """(1 + edges, same) covariance over items of the share of the others within each distance; (1, 1), for the
    threshold alone, if the embeddings were not at hand."""
    item_within: Floats
    """The part of it within classes, in the same form."""
    dimensions: int | None = None
    """Number of dimensions; None, as everything below, if the embeddings were not at hand."""
    unit_lengths: bool | None = None
    """Whether the vectors had length one."""
    log_length: Moments | None = None
    """Of the logarithm of the vectors' lengths."""
    centre: Moments | None = None
    """Of the unit vectors: where they lie."""

    @property
    def whole(self) -> bool:
        """Whether the whole distribution can be tested, and not the accept rate alone."""
        return len(self.item_total) == len(self.distances)

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "comparison": "random_pairs",
            "distances": pack_array(self.distances),
            "negatives": pack_array(self.negatives),
            "positives": pack_array(self.positives),
            "positive_share": self.positive_share,
            "classes": self.classes,
            "items": self.items,
            "between": pack_symmetric(self.between),
            "item_total": pack_symmetric(self.item_total),
            "item_within": pack_symmetric(self.item_within),
            "dimensions": self.dimensions,
            "unit_lengths": self.unit_lengths,
            "log_length": None if self.log_length is None else self.log_length.as_values(),
            "centre": None if self.centre is None else self.centre.as_values(),
        }

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Reference":
        """Convert from JSON values."""
        if values.get("comparison") != "random_pairs":
            raise InputError("the card's reference is of a kind that this isomargin does not know: upgrade isomargin")
        try:
            arrays = ("distances", "negatives", "positives")
            matrices = ("between", "item_total", "item_within")
            moments = ("log_length", "centre")
            found: dict[str, Any] = {name: values[name] for name in cls.__dataclass_fields__}
            found |= {name: unpack_array(values[name]) for name in arrays}
            found |= {name: unpack_symmetric(values[name]) for name in matrices}
            found |= {name: Moments.from_values(values[name]) for name in moments if values[name] is not None}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("the card's reference is damaged: make the card again") from error
        return cls(**found)


def make_reference(
    evaluation: Evaluation, distance: float, embeddings: EmbeddingSet | None = None, shifts: Shifts | None = None
) -> Reference | None:
    """Collect what a later check needs; None if not all pairs of items were compared.

    It is also None if classes are too small to tell how items vary.

    Args:
        evaluation: the evaluation of the set.
        distance: the threshold.
        embeddings: the evaluated embeddings; without them only the accept rate can be checked later.
        shifts: what an equalizer added to the similarities of the embeddings.
    """
    if evaluation.comparison != "all_pairs" or evaluation.settings.pairs != "all" or evaluation.class_count < 2:
        return None
    distances = np.concatenate([[distance], bin_edges(evaluation)])
    negatives, positives = parts_by_class(evaluation, distances)
    sizes, items = evaluation.sizes.astype(float), evaluation.items
    found: dict[str, Any] = {
        "distances": distances,
        "negatives": negatives.sum(axis=0) / items**2,
        "positives": positives.sum(axis=0) / items**2,
        "positive_share": float(np.square(sizes).sum() / items**2),
        "classes": evaluation.class_count,
        "items": items,
        "between": jackknife(sizes, negatives, positives),
    }
    if embeddings is None:
        noise = accept_noise(evaluation, distance)
        return None if noise is None else Reference(**found, item_total=noise[0], item_within=noise[1])
    data, raw_lengths = sorted_embeddings(evaluation, embeddings, shifts)
    total, within = item_covariances(data, distances)
    return Reference(
        **found,
        item_total=total,
        item_within=within,
        dimensions=int(data.vectors.shape[1]),
        unit_lengths=bool((np.abs(raw_lengths - 1) <= UNIT_TOLERANCE).mean() >= UNIT_SHARE),
        log_length=length_moments(np.log(raw_lengths), data.class_of, sizes),
        centre=centre_moments(data.vectors, data.class_of, sizes),
    )


# ----- from counts


def bin_edges(evaluation: Evaluation) -> Floats:
    """(at most BINS - 1,) distances that cut the random pairs into bins of equally many.

    Edges lie midway between the distances of two pairs, so that rounding moves no pair across them.
    """
    positives, negatives = evaluation.counts.positives, evaluation.counts.negatives
    shares = np.arange(1, BINS) / BINS
    if isinstance(negatives, ListedDistances) and isinstance(positives, ListedDistances):
        distances = np.sort(np.concatenate([negatives.pooled, positives.pooled])).astype(float)
        below = distances[(shares * len(distances)).astype(np.int64)]
        next_larger = np.searchsorted(distances, below + 1e-9, side="right")
        kept = next_larger < len(distances)
        return np.unique((below[kept] + distances[next_larger[kept]]) / 2)
    grid = np.linspace(negatives.start, getattr(negatives, "reach", evaluation.axis.highest), 4097)
    within = negatives.pooled_within(grid) + positives.pooled_within(grid)
    return np.unique(np.interp(shares * within[-1], within, grid))


def parts_by_class(evaluation: Evaluation, distances: Floats) -> tuple[Floats, Floats]:
    """(classes, m) what each class adds to N² M and to N² P; a negative pair is divided between its two classes.

    A random sample has the pairs of a class in proportion to the square of its size, which for a small class is more
    than the pairs of different items in the measured set.
    """
    counts, sizes = evaluation.counts, evaluation.sizes.astype(float)
    accepted, pairs = counts.positives.within(distances), counts.positives.totals[:, None].astype(float)
    typical = accepted.sum(axis=0) / pairs.sum()  # for classes of one item, whose positive pairs are unknown
    rates = np.where(pairs > 0, share(accepted, pairs), typical)
    return np.asarray(counts.negatives.within(distances)), np.square(sizes)[:, None] * rates


def jackknife(sizes: Floats, negatives: Floats, positives: Floats) -> Floats:
    """(2m, 2m) covariance of M and P over sets of classes, from leaving out one class at a time.

    It includes the noise of the items of each class. The part of the variance that is due to single pairs of classes is
    counted twice, as the jackknife does for every U-statistic: the result errs on the safe side.
    """
    rest = np.square(sizes.sum() - sizes)[:, None]
    without_negatives = (negatives.sum(axis=0) - 2 * negatives) / rest  # the pairs of a class are in two classes
    without_positives = (positives.sum(axis=0) - positives) / rest
    left_out = np.concatenate([without_negatives, without_positives], axis=1)
    deviations = left_out - left_out.mean(axis=0)
    return np.asarray((len(sizes) - 1) / len(sizes) * deviations.T @ deviations)


def accept_noise(evaluation: Evaluation, distance: float) -> tuple[Floats, Floats] | None:
    """Return the variance over items of the accept rate at the threshold, and its part within classes, as (1, 1).

    They follow from the item noise of the class rates: the variance of a class's FAR over other items is that of one
    item divided by their number; that of its sensitivity, a U-statistic, is four times that.
    """
    noise = evaluation.item_noise
    if noise is None or not len(noise.classes):
        return None
    large, at, point = noise.classes, np.array([distance]), evaluation.at(distance)
    sizes = evaluation.sizes[large].astype(float)
    own = sizes / evaluation.items
    of_far, of_frr = noise.of_rates(distance, evaluation)
    of_both = noise.between_levels(noise.covariance, at)[:, 0]
    one_item = sizes * ((1 - own) ** 2 * of_far + own**2 * of_frr / 4 + own * (1 - own) * of_both)
    within = max(float(np.average(one_item, weights=sizes)), 0.0)
    accepted = (1 - own) * point.class_far[large] + own * (1 - point.class_frr[large])
    mean = np.average(accepted, weights=sizes)
    between = float(np.average(np.square(accepted - mean), weights=sizes))
    return np.array([[within + between]]), np.array([[within]])


# ----- from embeddings


def sorted_embeddings(
    evaluation: Evaluation, embeddings: EmbeddingSet, shifts: Shifts | None
) -> tuple[ClassSortedVectors, Floats]:
    """Return the embeddings as they were evaluated, in float32 if there are many, and their lengths in that order."""
    dtype = np.float32 if len(embeddings.vectors) > MOST_ITEMS else np.float64
    data = sort_by_class(embeddings.vectors, embeddings.labels, dtype, shifts)
    if len(data.names) != evaluation.class_count or (data.sizes != evaluation.sizes).any():
        raise InputError("embeddings are not those of the evaluation: give the set that was evaluated")
    if (evaluation.equalizer is None) != (shifts is None):
        raise InputError("the evaluation is equalized: give the shifts of its equalizer with the embeddings")
    order = np.argsort(np.unique(embeddings.labels, return_inverse=True)[1], kind="stable")
    return data, lengths_of(as_matrix(embeddings.vectors))[order]


def chosen_units(matrix: Any, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(rows, d) some rows as unit vectors, and (rows,) their lengths; unusable rows are refused by their numbers."""
    values = as_float64(matrix[rows])
    finite = np.isfinite(values).all(axis=1)
    refuse_rows(rows[~finite], "are NaN or infinite", "remove or recompute them")
    refuse_rows(rows[(values == 0).all(axis=1)], "are zero vectors, which have no direction", "remove them")
    lengths = np.empty(len(rows))
    return unit_rows(values, np.arange(len(rows)), float, lengths), lengths


def lengths_of(matrix: Any) -> Floats:
    """(n,) the lengths of the rows."""
    starts = range(0, len(matrix), MOST_ITEMS)
    return np.concatenate([np.linalg.norm(as_float64(matrix[i : i + MOST_ITEMS]), axis=1) for i in starts])


def item_covariances(data: ClassSortedVectors, distances: Floats, seed: int = 0) -> tuple[Floats, Floats]:
    """(m, m) covariance over items of the share of the others within each distance, and its part within classes."""
    generator = np.random.default_rng(seed)
    rows = chosen_rows(data, generator)
    others = np.sort(generator.permutation(len(data.class_of))[:MOST_ITEMS])
    rates, class_of = shares_within(data, rows, others, distances), data.class_of[rows]
    drawn = np.bincount(class_of, minlength=len(data.sizes))
    weights = (data.sizes / np.maximum(drawn, 1))[class_of].astype(float)  # each class counts by its size
    return total_and_within(rates, class_of, weights)


def chosen_rows(data: ClassSortedVectors, generator: np.random.Generator) -> NDArray[np.int64]:
    """(rows,) all rows, or at most MOST_ITEMS of them: the same number of every class, or two of some classes."""
    n, classes = len(data.class_of), len(data.sizes)
    if n <= MOST_ITEMS:
        return np.arange(n)
    each = max(2, MOST_ITEMS // classes)
    taken = generator.permutation(classes)[: MOST_ITEMS // 2]
    parts = [data.starts[c] + generator.permutation(int(data.sizes[c]))[:each] for c in taken.tolist()]
    return np.sort(np.concatenate(parts))


def shares_within(
    data: ClassSortedVectors, rows: NDArray[np.int64], others: NDArray[np.int64], distances: Floats
) -> Floats:
    """(rows, m) the share of the other items within each distance of each row."""
    similarities = similarity_of(distances)
    found = np.empty((len(rows), len(distances)))
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        similarity = data.similarity(part, others)
        same = part[:, None] == others
        similarity[same] = -np.inf
        compared = len(others) - same.sum(axis=1)
        for i, least in enumerate(similarities):
            found[first : first + ROWS, i] = (similarity >= least).sum(axis=1) / compared
    return found


def total_and_within(values: Floats, class_of: NDArray[np.int64], weights: Floats) -> tuple[Floats, Floats]:
    """(m, m) covariance of rows (n, m), and its mean within classes of two or more rows (if none, all of it)."""
    shares = weights / weights.sum()
    centred = values - shares @ values
    total = (centred * shares[:, None]).T @ centred
    members = np.bincount(class_of)
    sums = np.stack([np.bincount(class_of, values[:, i]) for i in range(values.shape[1])], axis=1)
    inside = values - (sums / np.maximum(members, 1)[:, None])[class_of]
    several = members[class_of] > 1
    if not several.any():
        return total, total
    scale = shares * several * (members / np.maximum(members - 1, 1))[class_of]
    return total, (inside * scale[:, None]).T @ inside / shares[several].sum()


def length_moments(logs: Floats, class_of: NDArray[np.int64], sizes: Floats) -> Moments:
    """Return the mean logarithm of the lengths, with its variances."""
    total, within = total_and_within(logs[:, None], class_of, np.ones(len(logs)))
    left_out = leave_out_means(logs[:, None], sizes)
    return Moments(logs.mean(keepdims=True), total[0], within[0], (left_out**2).sum(axis=0))


def centre_moments(vectors: NDArray[Any], class_of: NDArray[np.int64], sizes: Floats) -> Moments:
    """Return the mean unit vector; of its covariances only the trace, and the trace of the square, are kept."""
    mean = vectors.mean(axis=0, dtype=np.float64)
    rows = np.sort(np.random.default_rng(0).permutation(len(vectors))[:MOST_ITEMS])
    chosen, own = vectors[rows].astype(np.float64), class_of[rows]
    total = traces((chosen - mean) / np.sqrt(len(rows)))
    several = sizes[own] > 1
    within = total
    if several.any():
        inside = chosen - (class_sums(vectors, sizes) / sizes[:, None])[own]
        within = traces(
            (inside * np.sqrt(sizes / np.maximum(sizes - 1, 1))[own, None])[several] / np.sqrt(several.sum())
        )
    return Moments(mean, total, within, traces(leave_out_means(vectors, sizes)))


def class_sums(values: NDArray[Any], sizes: Floats) -> Floats:
    """(classes, m) sums of rows that are sorted by class."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    return np.asarray(np.add.reduceat(values, starts, axis=0, dtype=np.float64))


def leave_out_means(values: NDArray[Any], sizes: Floats) -> Floats:
    """(classes, m) deviations of the mean with one class left out, scaled so that their squares sum to its variance."""
    sums = class_sums(values, sizes)
    left_out = (sums.sum(axis=0) - sums) / (sizes.sum() - sizes)[:, None]
    return np.asarray((left_out - left_out.mean(axis=0)) * np.sqrt((len(sizes) - 1) / len(sizes)))


def traces(rows: Floats) -> Floats:
    """(2,) trace of C = rowsᵀ rows, and trace of C²."""
    small = rows.T @ rows if rows.shape[1] <= len(rows) else rows @ rows.T
    return np.array([np.trace(small), np.square(small).sum()])


# ----- JSON values


def pack_symmetric(matrix: Floats) -> dict[str, Any]:
    """Convert a symmetric matrix to JSON values: its upper triangle, in float32."""
    return {"size": len(matrix), "upper": pack_array(matrix[np.triu_indices(len(matrix))].astype(np.float32))}


def unpack_symmetric(values: dict[str, Any]) -> Floats:
    """Convert JSON values back to a symmetric matrix."""
    size = int(values["size"])
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = unpack_array(values["upper"])
    return np.asarray(matrix + np.triu(matrix, 1).T)
