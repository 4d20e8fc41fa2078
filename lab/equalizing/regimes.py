"""Other circumstances than a complete index: new classes, new queries, few items, unequal classes, near-duplicates."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.equalize.rows import mean_of_ranks
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.neighbours import nearest_in_reference, nearest_in_set
from isomargin.measure.scores.within_two import is_within_two
from lab.equalizing.methods import Floats, Setting, Split, local, plain

TARGET = 1e-2
ROWS = 512
FIXED = {"raw": None, "local, 1 to 30": (30, 0), "local, 31 to 130": (100, 30)}
"""Neighbours and skip of the fixed settings."""


def within_two(far: Floats) -> float:
    """Return the share of classes within a factor of two of the target.

    >>> within_two(np.array([0.004, 0.006, 0.02, 0.021]))
    0.5
    """
    return float(is_within_two(far, TARGET).mean())


def new_class_rates(split: Split, setting: Setting, threshold: float) -> Floats:
    """(classes,) FAR of each test class at a threshold, if the class is not in the index and all others are.

    The offsets of its items are computed without them; those of the others are those of the complete index.
    """
    neighbours, skip, weight = setting
    inside, outside = (
        mean_of_ranks(nearest, skip, neighbours) for nearest in (split.nearest, split.nearest_without_class)
    )
    least = similarity_of(threshold) - 2 * weight * inside.mean()
    _, classes = np.unique(split.labels, return_inverse=True)
    accepted = np.zeros(len(classes))
    for first in range(0, len(classes), ROWS):
        rows = slice(first, first + ROWS)
        scores = split.test[rows] @ split.test.T - weight * outside[rows, None] - weight * inside
        accepted[rows] = ((scores >= least) & (classes[rows, None] != classes)).sum(axis=1)
    sizes = np.bincount(classes)
    return np.asarray(np.bincount(classes, weights=accepted) / (sizes * (len(classes) - sizes)))


def query_rates(
    split: Split, setting: tuple[int, int] | None, weight: float = 0.5
) -> tuple[Floats, float, float, float]:
    """Return the rates of queries that are not in the index, which holds every other item of each class.

    Returns: (classes,) FAR of the queries' classes at the pooled threshold for FAR 1%; FRR there; EER; recall@1.
    """
    _, classes = np.unique(split.labels, return_inverse=True)
    rank_in_class = (
        np.argsort(np.argsort(classes, kind="stable"), kind="stable")
        - (np.cumsum(np.bincount(classes)) - np.bincount(classes))[classes]
    )
    is_query = rank_in_class % 2 == 1
    index, queries = split.test[~is_query], split.test[is_query]
    scores = queries @ index.T
    if setting is not None:
        neighbours, skip = setting
        of_index = mean_of_ranks(nearest_in_set(index, skip + neighbours, threads=split.threads), skip, neighbours)
        found = nearest_in_reference(queries, index, skip + neighbours, threads=split.threads)
        scores = scores - weight * of_index - weight * mean_of_ranks(found, skip, neighbours)[:, None]
    same = classes[is_query][:, None] == classes[~is_query]
    negatives, positives = np.sort(scores[~same])[::-1], np.sort(scores[same])[::-1]
    threshold = negatives[int(np.ceil(TARGET * len(negatives))) - 1]
    accepted = ((scores >= threshold) & ~same).sum(axis=1)
    far = np.bincount(classes[is_query], weights=accepted) / np.bincount(classes[is_query], weights=(~same).sum(axis=1))
    frr = 1 - np.searchsorted(-positives, -threshold, side="right") / len(positives)
    rates = np.searchsorted(-negatives, -positives, side="right") / len(negatives)
    rejected = 1 - np.arange(1, len(positives) + 1) / len(positives)
    crossing = int(np.argmax(rates >= rejected))
    return far, float(frr), float(rates[crossing]), float(same[np.arange(len(same)), scores.argmax(axis=1)].mean())


def with_items(split: Split, sizes: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Split:
    """Keep only so many items of each test class; ``sizes`` takes the classes' numbers of items."""
    generator = np.random.default_rng([split.seed, 1])
    _, classes = np.unique(split.labels, return_inverse=True)
    wanted = sizes(np.bincount(classes))
    rows = np.concatenate([
        np.sort(generator.permutation(np.flatnonzero(classes == number))[:size]) for number, size in enumerate(wanted)
    ])  # fmt: skip
    return replace(split, test=split.test[rows], labels=split.labels[rows])


def long_tail(split: Split) -> Split:
    """Give the classes between 2 and 60 items, evenly on a logarithmic scale, in random order."""

    def sizes(available: NDArray[np.int64]) -> NDArray[np.int64]:
        wanted = np.geomspace(2, 60, len(available)).round().astype(np.int64)
        return np.asarray(np.minimum(np.random.default_rng([split.seed, 2]).permutation(wanted), available))

    return with_items(split, sizes)


def with_duplicates(split: Split, copies: int = 150, clusters: int = 20) -> Split:
    """Replace the items of some classes by near-copies of one of them: clusters larger than the neighbours counted.

    A cluster of 150 items at a cosine of about 0.999 takes the place of the class's own items.
    """
    generator = np.random.default_rng([split.seed, 3])
    names = generator.permutation(np.unique(split.labels))[:clusters]
    kept = ~np.isin(split.labels, names)
    vectors, labels = [split.test[kept]], [split.labels[kept]]
    for name in names:
        first = split.test[split.labels == name][0]
        noise = generator.normal(size=(copies, len(first))) * 0.02 / np.sqrt(len(first))
        near = first + noise
        vectors.append((near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32))
        labels.append(np.repeat(name, copies))
    return replace(split, test=np.concatenate(vectors), labels=np.concatenate(labels))


def regimes(split: Split) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield regime, method and scores."""
    for name, setting in FIXED.items():
        far, frr, eer, recall = query_rates(split, setting)
        values = {"recall@1": recall, "eer": eer, "frr": frr, "within two": within_two(far)}
        yield "queries outside the index", name, values
    few = with_items(split, lambda sizes: np.minimum(sizes, 4))
    yield from evaluated("4 items per class", few, {**FIXED, "local, 5 to 30": (26, 4)})
    yield from evaluated("long tail, 2 to 60 items", long_tail(split), {**FIXED, "local, 1 to 100": (100, 0)})
    yield from evaluated("20 classes of 150 near-duplicates", with_duplicates(split), FIXED)
    size = float(np.median(np.unique(split.labels, return_counts=True)[1]))
    ratios = {
        f"local, k = {ratio:g} class sizes": (max(1, round(ratio * size)), 0) for ratio in (0.1, 0.25, 0.5, 1, 2, 4)
    }
    yield from evaluated("k relative to class size", split, {"raw": None, **ratios})


def evaluated(
    regime: str, split: Split, settings: dict[str, tuple[int, int] | None]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the scores of each setting on a split."""
    for name, setting in settings.items():
        if setting is not None and sum(setting) > split.nearest.shape[1]:
            print(f"{regime}: {name} needs more neighbours than there are", file=sys.stderr)
            continue
        evaluation = plain(split) if setting is None else local(split, *setting)
        yield regime, name, scores_of_regime(evaluation)


def scores_of_regime(evaluation: Evaluation) -> dict[str, float]:
    """Return the scores that the table of regimes has."""
    scores = evaluation.scalars()
    wanted = {
        name: scores[name] for name in ("recall@1", "eer", "frr", "opis", "debiased_opis", "far_threshold_spread")
    }
    return {**wanted, "within two": within_two(evaluation.target.class_far)}
