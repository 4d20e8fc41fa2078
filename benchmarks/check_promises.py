"""Do promises for unseen classes hold? Repeated random splits of a set's classes into calibration and unseen ones.

    python benchmarks/check_promises.py                   # glyphs: pixels, 32 principal components; seconds
    python benchmarks/check_promises.py embeddings.npz    # any file of embeddings

For each split, thresholds come from the pairs among the calibration classes alone. The FAR of each unseen class is then
taken twice: against the images of the calibration classes and against those of the other unseen classes, as a deployed
model meets them. Both differ a little from what the theorem asks for, one fixed set of strangers for calibration and
unseen classes alike, so that is tried too: half of the classes are strangers, a quarter calibration, a quarter unseen.
Standard errors are over splits of these classes:
they say how well the splits were averaged, not how much another set of classes would differ.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import isomargin as im
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.rates import ROUNDING
from isomargin.thresholds.conformal import promised_distance

BINS = 2000
REACH = 2.0  # the farthest that unit vectors can be apart
TARGETS = (0.02, 0.05, 0.1)
METHODS = {"pooled": None, "mean promise": None, "class promise, 5%": 0.05, "class promise, 10%": 0.1}
TOGETHER = 20  # splits counted at once: as many as fit memory easily


@dataclass(frozen=True)
class Counts:
    """Pairs of a set by distance."""

    negatives: np.ndarray
    """(classes, classes, bins) pairs between two classes."""
    positives: np.ndarray
    """(classes, bins) pairs within a class."""


def glyph_features() -> tuple[np.ndarray, np.ndarray]:
    """Pixels of the glyphs not meant for training, centred, their 32 principal components."""
    glyphs = im.load_glyphs("test")
    pixels = glyphs.images.reshape(len(glyphs.images), -1).astype(np.float32)
    pixels -= pixels.mean(axis=0)
    _, directions = np.linalg.eigh(pixels.T @ pixels)
    return pixels @ directions[:, -32:], glyphs.labels


def some_classes(vectors: np.ndarray, labels: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many classes, at random, of two or more images, as unit vectors sorted by class number."""
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    usable = np.flatnonzero(sizes > 1)
    chosen = np.random.default_rng(0).permutation(usable)[:most]
    order = np.concatenate([np.flatnonzero(numbers == each) for each in chosen])
    rows = vectors[order].astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.repeat(np.arange(len(chosen)), sizes[chosen])


def count(rows: np.ndarray, class_of: np.ndarray) -> Counts:
    """Count all pairs once; splits then only add up."""
    classes = int(class_of[-1]) + 1
    negatives = np.zeros((classes, classes, BINS), np.uint16 if np.bincount(class_of).max() < 256 else np.uint32)
    positives = np.zeros((classes, BINS), np.int64)
    for i in range(classes):
        own = class_of == i
        distance = np.sqrt(np.maximum(2 - 2 * rows[own] @ rows.T, 0))
        cells = np.minimum((distance * (BINS / REACH)).astype(np.int64), BINS - 1)
        within = cells[:, own]
        positives[i] = np.bincount(within[np.triu_indices(len(within), 1)], minlength=BINS)
        both = np.bincount((class_of * BINS + cells).ravel(), minlength=classes * BINS).reshape(classes, BINS)
        both[i] = 0
        negatives[i] = both
    return Counts(negatives, positives)


def split_classes(counts: Counts, splits: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give, split by split, (classes,) whether calibrated on, and (classes, bins) pairs with calibration classes."""
    generator, classes = np.random.default_rng(seed), len(counts.positives)
    for first in range(0, splits, TOGETHER):
        chosen = np.zeros((min(TOGETHER, splits - first), classes), np.float32)
        for row in chosen:
            row[generator.permutation(classes)[: classes // 2]] = 1
        against = np.stack([chosen @ each.astype(np.float32) for each in counts.negatives])  # (classes, splits, bins)
        for i, row in enumerate(chosen):
            yield row > 0, against[:, i].astype(np.int64)


def find_distance(distances: BinnedDistances, rate: str, target: float, method: str) -> float:
    """The threshold of a method; NaN where so few classes cannot promise it."""
    if method == "pooled":
        wrong = math.floor(target * distances.pooled_total + ROUNDING)
        if rate == "far":
            return distances.pooled_distance_admitting(wrong)
        return float(distances.edges[np.searchsorted(distances.pooled_cumulative, distances.pooled_total - wrong)])
    try:
        return promised_distance(distances, rate, target, METHODS[method])
    except im.InputError:
        return math.nan


def class_rates(counts: np.ndarray, rate: str, distance: float) -> np.ndarray:
    """(classes,) rate at a bin's edge."""
    far = counts[:, : round(distance * BINS / REACH)].sum(axis=1) / counts.sum(axis=1)
    return far if rate == "far" else 1 - far


def run_splits(counts: Counts, splits: int, seed: int) -> dict[tuple[str, float, str], list[list[float]]]:
    """For each part of the table, target and method, a row a split: mean rate and share over the target, repeated."""
    found = defaultdict(list)
    whole = counts.negatives.sum(axis=1, dtype=np.int64)
    generator = np.random.default_rng(seed)
    for calibrated, against in split_classes(counts, splits, seed):
        new = ~calibrated
        one, other = np.array_split(generator.permutation(np.flatnonzero(new)), 2)
        parts = {  # calibration pairs, in how many classes each appears, and one or two sets of unseen pairs
            "far": (against[calibrated], 2, (against[new], (whole - against)[new])),
            "far, fixed strangers": (against[one], 1, (against[other],)),
            "frr": (counts.positives[calibrated], 1, (counts.positives[new],)),
        }
        for part, (known, appearances, unseen) in parts.items():
            distances = BinnedDistances(known, REACH, appearances)
            for target in TARGETS:
                for method in METHODS:
                    distance = find_distance(distances, part[:3], target, method)
                    if not math.isnan(distance):
                        rates = [class_rates(each, part[:3], distance) for each in unseen]
                        figures = [(each.mean(), (each > target + ROUNDING).mean()) for each in rates]
                        found[part, target, method].append([value for pair in figures for value in pair])
    return found


def print_table(found: dict[tuple[str, float, str], list[list[float]]], splits: int) -> None:
    """Print what became of the unseen classes, beside what was promised of them."""
    titles = {
        "far": ("against the calibration classes", "among the unseen classes"),
        "far, fixed strangers": ("against the fixed strangers",),
        "frr": ("within the unseen classes",),
    }
    for part, groups in titles.items():
        rate = part[:3].upper()
        print(f"\n{f'{rate} of unseen classes':<49}" + "".join(f"{each:>34}" for each in groups))
        print(
            f"{'target':>7}  {'method':<20}{'promised':<20}" + f"{f'mean {rate}':>17}{'over target':>17}" * len(groups)
        )
        for target in TARGETS:
            for method, delta in METHODS.items():
                promised = f"over ≤ {delta:.0%}" if delta else f"mean ≤ {target:.0%}"
                promised = "nothing" if method == "pooled" else promised
                rows = np.array(found.get((part, target, method), []))
                if len(rows) < splits:
                    print(f"{target:>7.0%}  {method:<20}{promised:<20}  too few classes to promise it")
                    continue
                means, errors = rows.mean(axis=0), rows.std(axis=0) / np.sqrt(splits)
                cells = "".join(f"{f'{m:.2%} ± {e:.2%}':>17}" for m, e in zip(means, errors, strict=True))
                print(f"{target:>7.0%}  {method:<20}{promised:<20}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", nargs="?", help="embeddings with labels; glyphs if left out")
    parser.add_argument("--classes", type=int, default=240, help="most classes used, drawn at random")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.file:
        loaded = im.EmbeddingSet.load(asked.file)
        vectors, labels = loaded.vectors, loaded.labels
    else:
        vectors, labels = glyph_features()
    rows, class_of = some_classes(np.asarray(vectors), np.asarray(labels), asked.classes)
    counts = count(rows, class_of)
    classes = len(counts.positives)
    print(
        f"{asked.file or 'glyphs'}: {len(rows):,} images in {classes} classes; {asked.splits} splits into "
        f"{classes // 2} calibration classes and {classes - classes // 2} unseen; ± standard error over splits"
    )
    print_table(run_splits(counts, asked.splits, asked.seed), asked.splits)


if __name__ == "__main__":
    main()
