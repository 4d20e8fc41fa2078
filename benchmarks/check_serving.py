"""What do shortcuts in serving equalized similarities cost?

    python benchmarks/check_serving.py clinc150.npz --without oos --classes 75 --items 60
    python benchmarks/check_serving.py cub200.npz --last 100

One search instead of two: r(x) of a query is computed from the results of the search for matches (sorted by cosine
minus w r(y), each result's w r(y) added again) instead of from a search of its own by cosine. Every item is a query,
left out of its own results. Printed is the share of pairs that are decided differently, relative to the accepted pairs.

An index that grows: the equalizer is fitted and its threshold chosen on a part of the items, either random items or
whole classes. The others arrive in steps of 5% of all, each with the offset that the index gives it at that time. At
the end all pairs are compared with the first threshold, with four kinds of offsets:

- stored: each item has the offset of its insertion
- stored, fresh queries: the same, but that of the query is found in the index as it is at the end, as in serving
- refreshed: `partial_fit` after each step, with the constant c of the first fit
- refreshed, new c: the same, with the constant c of all items

"Chosen again" is at the threshold that has a FAR of 1% at the end. Growth is repeated with other items first, and all
numbers are means.
"""

import argparse
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

import isomargin as im
from isomargin.measure.pairs.inputs import Shifts

TARGET = 0.01
SETTINGS = ((100, 30), (30, 0))  # neighbours and skip
LENGTHS = (1, 2, 4)  # length of the list of results, in multiples of skip + neighbours
SHARES = (0.1, 0.2, 0.5, 0.8)
STEP = 0.05


@dataclass(frozen=True)
class Items:
    """Embeddings with labels."""

    embeddings: np.ndarray
    """(n, d)"""
    labels: np.ndarray
    """(n,)"""

    def take(self, rows: Any) -> "Items":
        """Return some of the items."""
        return Items(self.embeddings[rows], self.labels[rows])

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class StoredOffsets:
    """An equalizer whose offsets are given instead of found."""

    equalizer: im.Equalizer
    offsets: np.ndarray

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> Shifts:
        """Return what is added to cosines."""
        return Shifts(self.equalizer.offset_ / 2 - self.equalizer.weight_ * self.offsets, self.equalizer.axis)

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return the settings of the equalizer."""
        return self.equalizer.record(new_classes)


def selected(arguments: argparse.Namespace) -> Items:
    """Load the file and take the classes and items that were asked for."""
    loaded, generator = im.EmbeddingSet.load(arguments.file), np.random.default_rng(0)
    labels = np.asarray(loaded.labels)
    names = np.setdiff1d(np.unique(labels), [arguments.without])
    if arguments.last:
        names = names[-arguments.last :]
    if arguments.classes:
        names = generator.permutation(names)[: arguments.classes]
    rows = np.concatenate([generator.permutation(np.flatnonzero(labels == name))[: arguments.items] for name in names])
    return Items(np.asarray(loaded.vectors)[rows].astype(np.float32), labels[rows])


def first_threshold(items: Items, equalizer: im.Equalizer) -> float:
    """Return the equalized similarity that is the threshold at a FAR of 1%."""
    evaluation = im.evaluate(items.embeddings, items.labels, equalizer=equalizer)
    choice = im.choose_threshold(evaluation, far=TARGET, draws=100)
    return im.make_card(choice, evaluation).threshold["equalized_similarity"]


def rates(accepted: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Return FAR, FRR and the share of classes whose FAR is within a factor of two of the target.

    ``accepted`` (n, n) says which items each query accepts; the diagonal does not count.
    """
    _, classes = np.unique(labels, return_inverse=True)
    sizes = np.bincount(classes)
    members = np.eye(len(sizes), dtype=np.float32)[classes]  # (n, classes)
    counts = members.T @ (accepted.astype(np.float32) @ members)  # (classes, classes) accepted pairs
    positives = np.diag(counts) - np.bincount(classes, accepted.diagonal())
    negatives = counts.sum(axis=1) - np.diag(counts)
    possible = sizes * (len(labels) - sizes)
    class_far = negatives / possible
    within = (class_far >= TARGET / 2) & (class_far <= TARGET * 2)
    frr = 1 - positives.sum() / (sizes * (sizes - 1)).sum()
    return float(negatives.sum() / possible.sum()), float(frr), float(within.mean())


# ----- one search


def offsets_of_one_search(similarity: np.ndarray, equalizer: im.Equalizer, length: int) -> np.ndarray:
    """(n,) r of each query from the first ``length`` results of the search for matches."""
    products = similarity - equalizer.weight_ * equalizer.offsets_
    found = np.argpartition(-products, length, axis=1)[:, :length]
    return equalizer.offsets_from_search(-np.sort(-np.take_along_axis(similarity, found, axis=1), axis=1))


def accepted(similarity: np.ndarray, equalizer: im.Equalizer, offsets: np.ndarray, threshold: float) -> np.ndarray:
    """(n, n) whether each query, with its offset, accepts each item."""
    least = equalizer.inner_product_thresholds(threshold, offsets)
    return similarity - equalizer.weight_ * equalizer.offsets_ >= least[:, None]


def print_one_search(items: Items) -> None:
    print(f"\n{'neighbours':>10}{'skip':>6}{'results':>9}{'decided differently':>21}{'FAR':>8}{'FRR':>8}")
    for neighbours, skip in SETTINGS:
        equalizer = im.Equalizer(neighbours, skip).fit(items.embeddings)
        threshold = first_threshold(items, equalizer)
        similarity = equalizer.vectors_ @ equalizer.vectors_.T
        np.fill_diagonal(similarity, -2)  # a query is not among its own results

        exact = accepted(similarity, equalizer, equalizer.offsets_, threshold)
        far, frr, _ = rates(exact, items.labels)
        print(f"{neighbours:>10}{skip:>6}{'two':>9}{'':>21}{far:>8.2%}{frr:>8.1%}")
        for multiple in LENGTHS:
            length = multiple * (neighbours + skip)
            offsets = offsets_of_one_search(similarity, equalizer, length)
            approximate = accepted(similarity, equalizer, offsets, threshold)
            changed = (approximate != exact).sum() / exact.sum()
            far, frr, _ = rates(approximate, items.labels)
            print(f"{neighbours:>10}{skip:>6}{length:>9}{changed:>21.2%}{far:>8.2%}{frr:>8.1%}")


# ----- an index that grows


def arrival(labels: np.ndarray, whole_classes: bool, seed: int) -> np.ndarray:
    """(n,) the order in which items arrive: at random, or class after class."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    if not whole_classes:
        return order
    _, classes = np.unique(labels[order], return_inverse=True)
    return order[np.argsort(generator.permutation(classes.max() + 1)[classes], kind="stable")]


def grown(items: Items, share: float, neighbours: int, skip: int) -> dict[str, tuple[float, ...]]:
    """Return rates at the first threshold and at one chosen again, and OPIS, by kind of offsets, after growth."""
    first, step = round(share * len(items)), round(STEP * len(items))
    start = items.take(slice(first))
    equalizer = im.Equalizer(neighbours, skip).fit(start.embeddings)
    threshold, constant = first_threshold(start, equalizer), equalizer.offset_
    stored = [equalizer.offsets_]
    for begin in range(first, len(items), step):
        batch = items.embeddings[begin : begin + step]
        stored.append(equalizer.offsets(batch))
        equalizer.partial_fit(batch)
    old, fresh, weight = np.concatenate(stored), equalizer.offsets_, equalizer.weight_
    similarity = equalizer.vectors_ @ equalizer.vectors_.T
    kinds = {"stored": (old, old), "stored, fresh queries": (fresh, old), "refreshed": (fresh, fresh)}
    results: dict[str, tuple[float, ...]] = {}
    for kind, (of_queries, of_items) in kinds.items():
        equalized = similarity - (weight * (of_queries[:, None] + of_items) - constant).astype(np.float32)
        _, *again = rates(equalized >= threshold_at_target(equalized, items.labels), items.labels)
        if of_queries is of_items:  # OPIS is defined for pairs that are the same from both ends
            offsets = StoredOffsets(equalizer, of_items)
            again.append(im.evaluate(items.embeddings, items.labels, equalizer=offsets).opis)
        results[kind] = (*rates(equalized >= threshold, items.labels), *again)
    change = 2 * weight * float(fresh.mean()) - constant  # of c; it is the same for all pairs
    results["refreshed, new c"] = (*rates(equalized >= threshold - change, items.labels), *again)
    return results


def threshold_at_target(equalized: np.ndarray, labels: np.ndarray) -> float:
    """Return the similarity that the target's share of negative pairs reaches."""
    negatives = equalized[labels[:, None] != labels]
    place = len(negatives) - round(TARGET * len(negatives))
    return float(np.partition(negatives, place)[place])


def print_growth(items: Items, repeats: int, neighbours: int, skip: int) -> None:
    print(f"\n{neighbours} neighbours, {skip} skipped; within 2: share of classes with a FAR from 0.5% to 2%")
    print(f"{'':44}{'first threshold':>22}{'chosen again':>20}")
    print(
        f"{'first':>5}  {'arriving':<10}{'offsets':<23}{'FAR':>8}{'FRR':>8}{'within 2':>10}{'FRR':>8}{'within 2':>10}"
        f"{'OPIS':>9}"
    )
    for whole_classes in (False, True):
        for share in SHARES:
            orders = [arrival(items.labels, whole_classes, seed) for seed in range(repeats)]
            found = [grown(items.take(order), share, neighbours, skip) for order in orders]
            for kind in found[0]:
                values = np.mean([results[kind] for results in found], axis=0)
                shown = "{:>8.2%}{:>8.1%}{:>10.0%}{:>8.1%}{:>10.0%}".format(*values)
                opis = f"{values[5]:>9.4f}" if len(values) > 5 else ""
                arriving = "classes" if whole_classes else "items"
                print(f"{share:>5.0%}  {arriving:<10}{kind:<23}{shown}{opis}", flush=True)


def main() -> None:
    """Measure both on a file of embeddings."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", help="embeddings with labels")
    parser.add_argument("--without", help="a label that is left out")
    parser.add_argument("--classes", type=int, help="number of classes, drawn at random; by default all")
    parser.add_argument("--last", type=int, help="take so many classes from the end of the sorted labels")
    parser.add_argument("--items", type=int, help="the most items of a class, drawn at random; by default all")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    items = selected(arguments)
    print(f"{arguments.file}: {len(items):,} items in {len(np.unique(items.labels))} classes")
    warnings.simplefilter("ignore", UserWarning)  # about the first few items, and about items that occur twice
    print_one_search(items)
    for neighbours, skip in SETTINGS:
        print_growth(items, arguments.repeats, neighbours, skip)


if __name__ == "__main__":
    main()
