"""Which equalizer of the probes suits class thresholds? Chosen on galleries alone, without any probe.

    python benchmarks/probe_equalizers.py --clinc clinc150-wordllama256.npz --cub cub-lite0-160.npz
    python benchmarks/probe_equalizers.py --gallery gallery.npz     # yours: a file with `embeddings` and `labels`

Ten items of each class are enrolled, of CLINC's training part and of 150 classes of CUB, others in each of the draws,
which are not those of `class_thresholds.py`. An equalizer subtracts from all scores of a probe a weight times its mean
similarity to some of the nearest templates. Whole classes are left out of the gallery in turn, at random or related
ones together, and their items are the unknown probes; the others, each compared with its class as if it were not
enrolled, are the known ones.

Printed is by how much FNIR is lower than with class thresholds alone, relative, in per cent, as the mean over the draws
and over FPIRs around 5%: one row per range of nearest templates, one column per weight.
"""

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np

import isomargin as im
from class_thresholds import FPIR, clinc, cub, units
from isomargin.equalize.class_offsets import QUANTILE
from isomargin.equalize.class_trials import AROUND, random_groups, related_groups

FIRST_DRAW = 100
FOLDS = 5
RANGES = ((2, 10), (1, 10), (1, 30), (1, 50), (1, 75), (1, 100), (1, 125), (4, 20), (4, 40), (4, 70), (4, 100))
"""Places of the nearest templates, from 0: the first that counts and the one after the last."""
WEIGHTS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)


class Scored(NamedTuple):
    """Probes of one kind in all folds."""

    own: Any
    """(n,) similarity minus offset of the own class; minus infinity if it is not enrolled."""
    best_other: Any
    """(n,) the largest of the other classes."""
    shifts: Any
    """(ranges, n) mean similarity to the nearest templates of each range."""


def nearest_means(similarity: Any) -> Any:
    """(ranges, n) the mean similarity of each probe to the nearest templates."""
    descending = -np.sort(-similarity, axis=1)
    return np.array([descending[:, first:end].mean(axis=1) for first, end in RANGES])


def score(similarity: Any, class_of: Any, mix: Any, groups: Any) -> tuple[Scored, Scored]:
    """Score all items as unknown probes (while their class is left out) and as known ones (in the other folds).

    Args:
        similarity: (items, classes), an item's own class without it.
        class_of: (items,)
        mix: the weights of the offsets.
        groups: (classes,) the fold in which each class is left out.
    """
    classes, items = similarity.shape[1], np.arange(len(similarity))
    own = similarity[items, class_of]
    positives = np.bincount(class_of, own) / np.bincount(class_of)
    parts: dict[bool, list[Scored]] = {True: [], False: []}
    for fold in range(FOLDS):
        kept = np.flatnonzero(groups != fold)
        is_known = groups[class_of] != fold
        negatives = np.where(class_of[:, None] == np.arange(classes), np.nan, similarity)[is_known][:, kept]
        quantiles = np.nanquantile(negatives, QUANTILE, axis=0)
        offsets = mix.negative_weight * (quantiles - quantiles.mean())
        offsets += mix.positive_weight * (positives[kept] - positives[kept].mean())
        adjusted, shifts = similarity[:, kept] - offsets, nearest_means(similarity[:, kept])
        mine = class_of[:, None] == kept
        of_own = np.where(mine, adjusted, -np.inf).max(axis=1)
        adjusted[mine] = -np.inf
        for known, found in parts.items():
            rows = is_known == known
            found.append(Scored(of_own[rows], adjusted[rows].max(axis=1), shifts[:, rows]))
    unknown, known_ones = (
        Scored(*(np.concatenate(values, axis=-1) for values in zip(*parts[known], strict=True)))
        for known in (False, True)
    )
    return unknown, known_ones


def fnir(unknown: Scored, known: Scored, place: int, weight: float) -> float:
    """Return FNIR around the FPIR with one equalizer."""
    outside = np.sort(unknown.best_other - weight * unknown.shifts[place])[::-1]
    inside = np.where(known.own >= known.best_other, known.own - weight * known.shifts[place], -np.inf)
    return float(np.mean([(inside <= outside[int(each * FPIR * len(outside) + 1e-9)]).mean() for each in AROUND]))


def measure(gallery: Any, labels: Any) -> Any:
    """(ranges, weights) FNIR with each equalizer, the mean over the two ways of leaving classes out.

    Classes of one item are left out, because nothing is like their item but itself.
    """
    _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    gallery, labels = gallery[sizes[class_of] > 1], labels[sizes[class_of] > 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it refuses
        fitted = im.ClassThresholds().fit(gallery, labels)
    class_of, vectors = np.searchsorted(fitted.classes_, labels), gallery.astype(np.float64)
    sums = np.zeros((len(fitted.classes_), vectors.shape[1]))
    np.add.at(sums, class_of, vectors)
    similarity = vectors @ fitted.templates_.T.astype(np.float64)
    others = sums[class_of] - vectors
    own = np.einsum("ij,ij->i", vectors, others) / np.linalg.norm(others, axis=1)
    similarity[np.arange(len(own)), class_of] = own
    generator = np.random.default_rng(0)
    found = np.zeros((len(RANGES), len(WEIGHTS)))
    for groups in (random_groups(len(sums), FOLDS, generator), related_groups(sums, FOLDS, generator)):
        scored = score(similarity, class_of, fitted.mix_, groups)
        found += [[fnir(*scored, place, weight) / 2 for weight in WEIGHTS] for place in range(len(RANGES))]
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = {"clinc": clinc, "cub": cub}
    for name in sources:
        parser.add_argument(f"--{name}", metavar="FILE")
    parser.add_argument("--gallery", metavar="FILE")
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    if options.gallery is not None:
        data = np.load(options.gallery)
        rates = measure(units(data["embeddings"]), data["labels"])
        print_table("gallery", 100 * (1 - rates / rates[0, 0]))
    for name, source in sources.items():
        if getattr(options, name) is not None:
            galleries = source(getattr(options, name), options.draws, FIRST_DRAW)
            tables = [measure(draw.gallery, draw.labels) for draw in galleries]
            print_table(name, np.mean([100 * (1 - rates / rates[0, 0]) for rates in tables], axis=0))


def print_table(name: str, lower: Any) -> None:
    """Print one row per range of nearest templates."""
    print(f"\n{name}\n| nearest templates | " + " | ".join(f"{weight:g}" for weight in WEIGHTS) + " |")
    print("|---" * (1 + len(WEIGHTS)) + "|")
    for (first, end), row in zip(RANGES, lower, strict=True):
        print(f"| {first + 1} to {end} | " + " | ".join(f"{value:.2f}" for value in row) + " |")


if __name__ == "__main__":
    main()
