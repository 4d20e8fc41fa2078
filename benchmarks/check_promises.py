"""Do the promises for unseen classes hold? Checked on random splits of classes into calibration and unseen classes.

    python benchmarks/check_promises.py                   # glyphs: 32 principal components of the pixels; seconds
    python benchmarks/check_promises.py embeddings.npz    # any file of embeddings

For each split, thresholds are chosen from the pairs among the calibration classes. The FAR of each unseen class is then
measured twice: against the items of the calibration classes, and against those of the other unseen classes, as in
deployment. Both deviate slightly from the assumption of the theorem, that calibration and unseen classes are compared
with one fixed set of other classes. That case is tested too: half of the classes are the fixed set, a quarter are
calibration classes and a quarter unseen. Standard errors are over splits of the same classes: they do not say how much
another set of classes would differ.
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
REACH = 2.0  # the largest distance between unit vectors
TARGETS = (0.02, 0.05, 0.1)
METHODS = {"pooled": None, "mean promise": None, "class promise, 5%": 0.05, "class promise, 10%": 0.1}
TOGETHER = 20  # splits that are counted at once, limited by memory


@dataclass(frozen=True)
class Counts:
    """Numbers of pairs by distance."""

    negatives: np.ndarray
    """(classes, classes, bins) pairs between two classes."""
    positives: np.ndarray
    """(classes, bins) pairs within a class."""


def glyph_features() -> tuple[np.ndarray, np.ndarray]:
    """Return 32 principal components of the centred pixels of the test glyphs, and their labels."""
    glyphs = im.load_glyphs("test")
    pixels = glyphs.images.reshape(len(glyphs.images), -1).astype(np.float32)
    pixels -= pixels.mean(axis=0)
    _, directions = np.linalg.eigh(pixels.T @ pixels)
    return pixels @ directions[:, -32:], glyphs.labels


def sampled_classes(vectors: np.ndarray, labels: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw at most `most` classes of two or more items, as unit vectors sorted by class number."""
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    usable = np.flatnonzero(sizes > 1)
    chosen = np.random.default_rng(0).permutation(usable)[:most]
    order = np.concatenate([np.flatnonzero(numbers == number) for number in chosen])
    rows = vectors[order].astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.repeat(np.arange(len(chosen)), sizes[chosen])


def count(rows: np.ndarray, class_of: np.ndarray) -> Counts:
    """Count all pairs once, so that a split only has to add up counts."""
    classes = int(class_of[-1]) + 1
    negatives = np.zeros((classes, classes, BINS), np.uint16 if np.bincount(class_of).max() < 256 else np.uint32)
    positives = np.zeros((classes, BINS), np.int64)
    for i in range(classes):
        members = class_of == i
        distance = np.sqrt(np.maximum(2 - 2 * rows[members] @ rows.T, 0))
        cells = np.minimum((distance * (BINS / REACH)).astype(np.int64), BINS - 1)
        within = cells[:, members]
        positives[i] = np.bincount(within[np.triu_indices(len(within), 1)], minlength=BINS)
        by_class = np.bincount((class_of * BINS + cells).ravel(), minlength=classes * BINS).reshape(classes, BINS)
        by_class[i] = 0
        negatives[i] = by_class
    return Counts(negatives, positives)


def split_classes(counts: Counts, splits: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield per split (classes,) whether a class is for calibration, and (classes, bins) pairs with those classes."""
    generator, classes = np.random.default_rng(seed), len(counts.positives)
    for first in range(0, splits, TOGETHER):
        chosen = np.zeros((min(TOGETHER, splits - first), classes), np.float32)
        for row in chosen:
            row[generator.permutation(classes)[: classes // 2]] = 1
        against = np.stack([chosen @ pairs.astype(np.float32) for pairs in counts.negatives])  # (classes, splits, bins)
        for i, row in enumerate(chosen):
            yield row > 0, against[:, i].astype(np.int64)


def find_distance(distances: BinnedDistances, rate: str, target: float, method: str) -> float:
    """Return the threshold of a method; NaN if there are too few classes for the promise."""
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
    """(classes,) the rate at the edge of a bin."""
    far = counts[:, : round(distance * BINS / REACH)].sum(axis=1) / counts.sum(axis=1)
    return far if rate == "far" else 1 - far


def run_splits(counts: Counts, splits: int, seed: int) -> dict[tuple[str, float, str], list[list[float]]]:
    """Return one row per split, by part, target and method: pairs of mean rate and share of classes over the target."""
    found = defaultdict(list)
    whole = counts.negatives.sum(axis=1, dtype=np.int64)
    generator = np.random.default_rng(seed)
    for calibrated, against in split_classes(counts, splits, seed):
        new = ~calibrated
        half, rest = np.array_split(generator.permutation(np.flatnonzero(new)), 2)
        parts = {  # calibration pairs, in how many classes each is counted, and one or two sets of unseen pairs
            "far": (against[calibrated], 2, (against[new], (whole - against)[new])),
            "far, fixed set": (against[half], 1, (against[rest],)),
            "frr": (counts.positives[calibrated], 1, (counts.positives[new],)),
        }
        for part, (known, appearances, unseen) in parts.items():
            distances = BinnedDistances(known, REACH, appearances)
            for target in TARGETS:
                for method in METHODS:
                    distance = find_distance(distances, part[:3], target, method)
                    if not math.isnan(distance):
                        all_rates = [class_rates(pairs, part[:3], distance) for pairs in unseen]
                        summaries = [(rates.mean(), (rates > target + ROUNDING).mean()) for rates in all_rates]
                        found[part, target, method].append([value for summary in summaries for value in summary])
    return found


def print_table(found: dict[tuple[str, float, str], list[list[float]]], splits: int) -> None:
    """Print the rates of unseen classes next to what was promised."""
    titles = {
        "far": ("with the calibration classes", "among the unseen classes"),
        "far, fixed set": ("with the fixed set of classes",),
        "frr": ("within the unseen classes",),
    }
    for part, groups in titles.items():
        rate = part[:3].upper()
        print(f"\n{f'{rate} of unseen classes':<49}" + "".join(f"{title:>34}" for title in groups))
        print(
            f"{'target':>7}  {'method':<20}{'promised':<20}" + f"{f'mean {rate}':>17}{'over target':>17}" * len(groups)
        )
        for target in TARGETS:
            for method, delta in METHODS.items():
                promised = f"over ≤ {delta:.0%}" if delta else f"mean ≤ {target:.0%}"
                promised = "nothing" if method == "pooled" else promised
                rows = np.array(found.get((part, target, method), []))
                if len(rows) < splits:
                    print(f"{target:>7.0%}  {method:<20}{promised:<20}  too few classes for this promise")
                    continue
                means, errors = rows.mean(axis=0), rows.std(axis=0) / np.sqrt(splits)
                cells = "".join(f"{f'{m:.2%} ± {e:.2%}':>17}" for m, e in zip(means, errors, strict=True))
                print(f"{target:>7.0%}  {method:<20}{promised:<20}{cells}")


def main() -> None:
    """Check the promises on a file of embeddings or on the glyphs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", nargs="?", help="embeddings with labels; by default the glyphs")
    parser.add_argument("--classes", type=int, default=240, help="the most classes to use, drawn at random")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.file:
        loaded = im.EmbeddingSet.load(arguments.file)
        vectors, labels = loaded.vectors, loaded.labels
    else:
        vectors, labels = glyph_features()
    rows, class_of = sampled_classes(np.asarray(vectors), np.asarray(labels), arguments.classes)
    counts = count(rows, class_of)
    classes = len(counts.positives)
    print(
        f"{arguments.file or 'glyphs'}: {len(rows):,} items in {classes} classes; {arguments.splits} splits into "
        f"{classes // 2} calibration classes and {classes - classes // 2} unseen; ± standard error over splits"
    )
    print_table(run_splits(counts, arguments.splits, arguments.seed), arguments.splits)


if __name__ == "__main__":
    main()
