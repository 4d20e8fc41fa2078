"""Cross-validation of class offsets: whole classes are left out of the gallery, and their items are the unknown probes.

The items of the classes that stay are the known probes: each is compared with its own class as if it were not enrolled,
and with all others. A probe is unknown in one fold and known in the others. Classes are left out at random, which makes
unknowns like the enrolled classes, or related classes together, which makes unknowns of another kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from isomargin.core.progress import progress_bar
from isomargin.equalize.class_offsets import ClassParts, Mix, negative_quantiles, positives_without
from isomargin.equalize.enrolled import NOTHING, Enrolled, Places, Positives
from isomargin.equalize.rows import Floats, Singles
from isomargin.measure.statistics.intervals import Interval, percentile_interval

Kind = Literal["random", "related"]

PROBE_ROWS = 256  # probes in one chunk of a product
DRAWS = 1000
DRAWN_AT_ONCE = 50
MOST_IN_TREE = 2000  # classes of a tree, whose cost grows as the square of their number
AROUND = (0.5, 0.7, 1.0, 1.4, 2.0)  # FNIR is averaged over these multiples of a FPIR; at one alone it is unsteady
LARGEST_FPIR = 0.9


@dataclass(frozen=True)
class Trials:
    """The scores of all probes in all folds with all mixes, for one or two ways of leaving classes out."""

    unknown: Singles
    """(kinds, probes, mixes) the best adjusted similarity of each probe while its class is not enrolled."""
    known: Singles
    """(kinds, probes, folds, mixes) the adjusted similarity to the probe's own class, while the classes of a fold are
    not enrolled; minus infinity if another class comes first."""
    fold_of: Places
    """(kinds, probes) the fold in which a probe is unknown."""
    class_of: Places
    """(probes,) the class of each probe."""
    is_known: NDArray[np.bool_]
    """(probes,) whether its class has other items, so that it is a known probe in the other folds."""

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.known.shape[2])

    def level(self, mix: int, fpir: float) -> float:
        """Return the similarity above which no more than a share of the unknown probes lie, all kinds together."""
        scores = np.sort(self.unknown[:, :, mix].ravel())[::-1]
        return float(weighted_level(scores, np.ones((1, len(scores))), fpir)[0])

    def fnir(self, mixes: NDArray[np.int64], weights: Floats, fpir: float) -> Floats:
        """(draws,) FNIR around a FPIR, with one threshold for all folds; the mean over the kinds.

        Args:
            mixes: (probes,) the mix of each probe, known and unknown.
            weights: (draws, classes) how often each class is drawn.
            fpir: the FPIR.
        """
        by_kind = [self._fnir_of_kind(kind, mixes, weights, fpir) for kind in range(len(self.unknown))]
        return np.asarray(np.mean(by_kind, axis=0))

    def _fnir_of_kind(self, kind: int, mixes: NDArray[np.int64], weights: Floats, fpir: float) -> Floats:
        outside = self.unknown[kind, np.arange(len(mixes)), mixes]
        largest_first = np.argsort(-outside, kind="stable")
        probes, folds = np.nonzero((self.fold_of[kind][:, None] != np.arange(self.folds)) & self.is_known[:, None])
        inside = self.known[kind, probes, folds, mixes[probes]]
        ascending = np.argsort(inside, kind="stable")
        rates = np.empty((len(weights), len(AROUND)))
        for first in range(0, len(weights), DRAWN_AT_ONCE):
            drawn = weights[first : first + DRAWN_AT_ONCE]
            unknown_weights = drawn[:, self.class_of[largest_first]]
            below = np.cumsum(drawn[:, self.class_of[probes[ascending]]], axis=1)
            below = np.concatenate([np.zeros((len(drawn), 1)), below], axis=1)  # weight of the first scores
            for number, multiple in enumerate(AROUND):
                level = weighted_level(outside[largest_first], unknown_weights, min(multiple * fpir, LARGEST_FPIR))
                missed = np.searchsorted(inside[ascending], level, side="right")
                share = below[np.arange(len(drawn)), missed] / np.maximum(below[:, -1], 1e-12)
                rates[first : first + DRAWN_AT_ONCE, number] = share
        return np.asarray(rates.mean(axis=1))

    def all_rates(self, kept: NDArray[np.bool_], fpir: float) -> Floats:
        """(mixes,) FNIR with each mix on some of the (classes,)."""
        weights, mixes = kept[None].astype(float), range(self.unknown.shape[2])
        return np.array([self.fnir(np.full(len(self.class_of), mix), weights, fpir)[0] for mix in mixes])

    def gain(
        self, mixes: NDArray[np.int64], classes: int, fpir: float, confidence: float, seed: int
    ) -> tuple[float, float, Interval]:
        """Return FNIR with mix 0, FNIR with the (probes,) mixes, and by how much it falls.

        The interval is a paired bootstrap: classes are drawn with replacement, as known and as unknown ones together.
        """
        present = np.unique(self.class_of)
        drawn = np.random.default_rng([seed, 1]).multinomial(len(present), [1 / len(present)] * len(present), DRAWS)
        weights = np.zeros((DRAWS + 1, classes))
        weights[0, present], weights[1:, present] = 1, drawn
        one = self.fnir(np.zeros(len(self.class_of), np.int64), weights, fpir)
        chosen = self.fnir(mixes, weights, fpir)
        gains = one - chosen
        return float(one[0]), float(chosen[0]), percentile_interval(float(gains[0]), gains[1:], confidence)


def weighted_level(scores: Singles, weights: Floats, fpir: float) -> Floats:
    """(draws,) the score above which no more than a share of the weight lies.

    Args:
        scores: (m,) largest first.
        weights: (draws, m) weight of each score.
        fpir: the share.

    >>> weighted_level(np.array([0.9, 0.7, 0.5, 0.1]), np.array([[1, 1, 1, 1], [2, 0, 1, 1], [0, 1, 1, 2]]), 0.5)
    array([0.5, 0.5, 0.1])
    """
    above = np.cumsum(weights, axis=1) - weights
    allowed = fpir * weights.sum(axis=1, keepdims=True) + 1e-9
    last = (above <= allowed).sum(axis=1) - 1  # `above` never falls
    return np.asarray(scores[last], np.float64)


@dataclass(frozen=True)
class Folds:
    """A gallery while the classes of each fold are left out; what mixes are tried on."""

    gallery: Enrolled
    """The enrolled classes."""
    probes: Places
    """(probes,) rows, in ascending order."""
    groups: Places
    """(kinds, classes) the fold in which each class is left out."""
    positives: Positives
    """The similarities of items to the rest of their own class."""
    parts: list[ClassParts]
    """What offsets are composed of, for each kind and fold, and last for the whole gallery."""

    @classmethod
    def of(
        cls, gallery: Enrolled, probes: Places, negatives: Places, groups: Places, generator: np.random.Generator
    ) -> Folds:
        """Compute what offsets are composed of.

        Args:
            gallery: the enrolled classes.
            probes: (probes,) rows, in ascending order.
            negatives: rows that serve as negatives.
            groups: (kinds, classes) the fold in which each class is left out.
            generator: draws the items of very large classes.
        """
        held_out = [*(kind == fold for kind in groups for fold in range(int(groups.max()) + 1))]
        held_out.append(np.zeros(len(gallery.names), bool))
        positives = gallery.positives(probes, generator)
        found = negative_quantiles(gallery, negatives, np.array(held_out))
        parts = [
            ClassParts(~left_out, gallery.sizes, quantiles, positives.mean)
            for left_out, quantiles in zip(held_out, found, strict=True)
        ]
        return cls(gallery, probes, groups, positives, parts)

    def classes_of(self, fold: int) -> NDArray[np.bool_]:
        """(classes,) those that are left out in a fold of the first kind."""
        return np.asarray(self.groups[0] == fold)

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.groups.max()) + 1

    def run(self, mixes: Sequence[Mix]) -> Trials:
        """Score all probes in all folds with all mixes."""
        gallery, positives, parts = self.gallery, self.positives, self.parts[:-1]
        class_of = gallery.class_of[self.probes]
        offsets = np.array([[part.offsets(mix) for mix in mixes] for part in parts], np.float32)
        best = best_of_others(gallery, self.probes, offsets)
        without = positives_without(positives, gallery.sizes, class_of)
        fewer = gallery.sizes[class_of] - 2  # one item is left out, and counted are those beyond the first
        own = np.empty_like(best)
        for number, part in enumerate(parts):
            for mix, settings in enumerate(mixes):
                own[:, number, mix] = positives.own - part.composed(settings, class_of, without, fewer)
        known = np.where(own >= best, own, NOTHING)  # comparing NaN, of classes of one item, gives False
        by_kind = (len(self.probes), len(self.groups), self.folds, len(mixes))
        fold_of = self.groups[:, class_of]
        best, known = (np.moveaxis(scores.reshape(by_kind), 1, 0) for scores in (best, known))
        unknown = np.take_along_axis(best, fold_of[:, :, None, None], axis=2)[:, :, 0]
        return Trials(unknown, known, fold_of, class_of, gallery.sizes[class_of] > 1)


def best_of_others(gallery: Enrolled, probes: Places, offsets: Singles) -> Singles:
    """(probes, trials, mixes) the best adjusted similarity of each probe to classes other than its own.

    Args:
        gallery: the enrolled classes.
        probes: (probes,) rows.
        offsets: (trials, mixes, classes) what is subtracted; infinite for classes that are not enrolled.
    """
    best = np.full((len(probes), *offsets.shape[:2]), NOTHING)
    with progress_bar("cross-validating") as progress:
        for first in range(0, len(probes), PROBE_ROWS):
            rows = probes[first : first + PROBE_ROWS]
            part = best[first : first + PROBE_ROWS]
            for classes in gallery.chunks():
                similarities = gallery.similarities(gallery.vectors[rows], classes)
                own = gallery.class_of[rows, None] == np.arange(classes.start, classes.stop)
                similarities[own] = NOTHING
                raise_best(similarities, np.ascontiguousarray(offsets[:, :, classes]), part)
            if progress:
                progress(min(1.0, (first + PROBE_ROWS) / len(probes)))
    return best


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def raise_best(similarities: Singles, offsets: Singles, best: Singles) -> None:
    """Raise the best scores (probes, trials, mixes) to those with more classes.

    Args:
        similarities: (probes, classes)
        offsets: (trials, mixes, classes)
        best: (probes, trials, mixes), changed in place.
    """
    for trial in range(offsets.shape[0]):
        for mix in range(offsets.shape[1]):
            subtracted = offsets[trial, mix]
            for probe in range(len(similarities)):
                of_probe = similarities[probe]
                largest = best[probe, trial, mix]
                for number in range(len(of_probe)):
                    largest = max(largest, of_probe[number] - subtracted[number])
                best[probe, trial, mix] = largest


def random_groups(classes: int, folds: int, generator: np.random.Generator) -> Places:
    """(classes,) folds of almost equal size, at random."""
    return np.asarray(generator.permutation(np.arange(classes) % folds))


def related_groups(directions: Floats, folds: int, generator: np.random.Generator) -> Places:
    """(classes,) folds of almost equal size whose classes lie close together.

    Classes are put into the order of the leaves of a tree (average linkage of cosine distances), which is cut into
    equal parts. With very many classes the tree is that of some of them, and each other one follows its nearest.

    Args:
        directions: (classes, d) the mean of each class.
        folds: their number.
        generator: draws the classes of the tree.

    >>> directions = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    >>> one, other, same, same_as_other = related_groups(directions, 2, np.random.default_rng(0))
    >>> bool(one == same != other == same_as_other)
    True
    """
    from scipy.cluster.hierarchy import leaves_list, linkage

    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    units = directions / np.maximum(lengths, 1e-12)
    in_tree = np.arange(len(units))
    if len(units) > MOST_IN_TREE:
        in_tree = np.sort(generator.choice(len(units), MOST_IN_TREE, replace=False))
    distances = np.clip(1 - units[in_tree] @ units[in_tree].T, 0, None)
    leaves = leaves_list(linkage(distances[np.triu_indices(len(in_tree), 1)], "average"))
    place = np.empty(len(in_tree), np.int64)
    place[leaves] = np.arange(len(in_tree))
    nearest = [(chunk @ units[in_tree].T).argmax(axis=1) for chunk in np.array_split(units, 1 + len(units) // 4096)]
    nearest_place = place[np.concatenate(nearest)]
    nearest_place[in_tree] = place
    groups = np.empty(len(units), np.int64)
    groups[np.argsort(nearest_place, kind="stable")] = np.arange(len(units)) * folds // len(units)
    return groups
