"""The experiment ``shift``: a threshold chosen on some items, used on others that are not like them.

The paper: "TCM can fail when there's a significant distribution shift between the training and test sets"; and of a
threshold-consistent representation: "different test distributions yield similar distance thresholds".

A threshold for a FAR of 1% is chosen on the training classes and used on the test classes; and chosen on the test
classes as they are, and used on the same items with noise or with features missing. The shift happens to the frozen
features, before the head. An equalizer is fitted without labels on the items that are compared: on the shifted ones
where there is a shift, with the threshold kept.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.equalize.equalizer import Equalizer
from isomargin.equalize.rows import unit_vectors
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from lab.equalizing.regimes import within_two
from lab.files import write_csv
from lab.remarks.heads import (
    LOSSES,
    Halves,
    Labels,
    Singles,
    changes,
    means,
    plain_values,
    read_halves,
    scored,
    t_interval,
    train_head,
)

Shift = Callable[[Singles, float, np.random.Generator], Singles]
MEANS = ("opis", "recall@1", "eer", "carried far", "carried frr", "within two")

Runs = dict[tuple[str, str, str, str, int], dict[str, Any]]
"""By data set, shift, embedding, similarity and seed."""


def noise(strength: float) -> Shift:
    """Add Gaussian noise, whose deviation is so many times the features' own deviation over the training items."""

    def add(vectors: Singles, deviation: float, generator: np.random.Generator) -> Singles:
        return unit_vectors(vectors + strength * deviation * generator.normal(size=vectors.shape))

    return add


def missing(share: float) -> Shift:
    """Set a share of the features of every item to zero, others for each item."""

    def drop(vectors: Singles, deviation: float, generator: np.random.Generator) -> Singles:
        return unit_vectors(vectors * (generator.random(vectors.shape) >= share))

    return drop


KNOWN, TEST = "training classes", "test classes"
SHIFTS: dict[str, Shift] = {
    "noise 0.5": noise(0.5),
    "noise 1": noise(1.0),
    "half of the features": missing(0.5),
}
"""What happens to the features of the test classes, whose threshold was chosen before."""
SIMILARITIES = ("cosine", "equalized")


def measure(vectors: Singles, classes: Labels, similarity: str) -> Evaluation:
    """Evaluate cosines, or similarities of an equalizer that is fitted on the same rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        equalizer = None if similarity == "cosine" else Equalizer(threads=1).fit(vectors)
        return evaluate(vectors, classes, equalizer=equalizer, k=(1,), map_at_r=False, threads=1, progress=None)


def feature_sets(halves: Halves, seed: int) -> dict[str, tuple[Singles, Labels]]:
    """Return features and classes: of the training classes, of the test classes, and of these after each shift."""
    generator = np.random.default_rng([seed, 11])
    deviation = float(np.sqrt(halves.training.var(axis=0).mean()))
    shifted = {name: (shift(halves.test, deviation, generator), halves.test_classes) for name, shift in SHIFTS.items()}
    return {
        KNOWN: (halves.training, halves.training_classes),
        TEST: (halves.test, halves.test_classes),
        **shifted,
    }


def run_data(name: str, halves: Halves, seeds: int, folder: Path) -> Runs:
    """Train and evaluate what is missing of one data set."""
    runs: Runs = {}
    for seed in range(seeds):
        sets = feature_sets(halves, seed)
        for number, embedding in enumerate(("raw", *LOSSES)):
            place = folder / name / f"{number}-{seed}.npz"
            if not place.is_file():
                values = run_embedding(halves, sets, embedding, seed)
                place.parent.mkdir(parents=True, exist_ok=True)
                np.savez(place, **values)
                print(f"{name}, seed {seed}, {embedding}", file=sys.stderr, flush=True)
            for key, value in np.load(place).items():
                shift, similarity, score = key.split("|")
                runs.setdefault((name, shift, embedding, similarity, seed), {})[score] = value
    return runs


def run_embedding(halves: Halves, sets: dict[str, tuple[Singles, Labels]], embedding: str, seed: int) -> dict[str, Any]:
    """Evaluate one embedding on all sets; names have the form SHIFT|SIMILARITY|SCORE."""
    head = None
    if embedding != "raw":
        head = train_head(halves.training, halves.training_classes, LOSSES[embedding](), seed)
    weights = halves.weights
    values: dict[str, Any] = {}
    for similarity in SIMILARITIES:
        chosen = {}
        for name, (features, classes) in sets.items():
            evaluation = measure(features if head is None else head.transform(features), classes, similarity)
            if name in (KNOWN, TEST):
                chosen[name] = evaluation.target.distance
            if name == KNOWN:
                continue
            found = {**scored(evaluation, weights), **carried(evaluation, chosen[TEST])}
            values |= {f"{name}|{similarity}|{key}": value for key, value in found.items()}
            if name == TEST:
                found |= carried(evaluation, chosen[KNOWN])
                values |= {f"{KNOWN}|{similarity}|{key}": value for key, value in found.items()}
    return values


def carried(evaluation: Evaluation, threshold: float) -> dict[str, float]:
    """Return the rates at a threshold that was chosen elsewhere."""
    point = evaluation.at(threshold)
    return {
        "threshold": threshold,
        "own threshold": evaluation.target.distance,
        "carried far": point.far,
        "carried frr": point.frr,
        "within two": within_two(point.class_far),
    }


def table(runs: Runs, seeds: int) -> list[dict[str, Any]]:
    """Return one row per data set, shift, embedding and similarity.

    OPIS is compared with that of plain training, and equalized similarities with cosines, under the same shift.
    """
    rows = []
    for key in dict.fromkeys(key[:4] for key in runs):
        name, shift, embedding, similarity = key
        here = [runs[*key, seed] for seed in range(seeds)]
        row = {"data": name, "shift": shift, "embedding": embedding, "similarity": similarity, "seeds": seeds}
        row |= means(here, MEANS)
        if embedding in LOSSES and embedding != "plain":
            row |= changes([runs[name, shift, "plain", similarity, seed] for seed in range(seeds)], here)
        if similarity == "equalized":
            cosine = [runs[name, shift, embedding, "cosine", seed] for seed in range(seeds)]
            row |= {f"equalized {score}": value for score, value in changes(cosine, here).items()}
        if embedding in LOSSES and embedding != "plain" and shift in SHIFTS:
            moved, still = (
                [
                    float(np.log(runs[name, one, embedding, similarity, seed]["opis"]))
                    - float(np.log(runs[name, one, "plain", similarity, seed]["opis"]))
                    for seed in range(seeds)
                ]
                for one in (shift, TEST)
            )
            mean, low, high = t_interval([a - b for a, b in zip(moved, still, strict=True)])
            row |= {"effect change": mean, "effect change low": low, "effect change high": high}
        rows.append(row)
    return rows


def run(data: dict[str, Path], seeds: int, folder: Path, results: Path) -> None:
    """Run the experiment on all data sets, or continue it, and write its tables."""
    runs: Runs = {}
    for name, path in data.items():
        runs |= run_data(name, read_halves(path), seeds, folder / "shift")
    results.mkdir(parents=True, exist_ok=True)
    names = ("data", "shift", "embedding", "similarity", "seed")
    rows = [{**dict(zip(names, key, strict=True)), **plain_values(values)} for key, values in runs.items()]
    write_csv(results / "shift-runs.csv", rows)
    write_csv(results / "shift.csv", table(runs, seeds))
