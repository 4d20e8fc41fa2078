"""The experiment ``label-noise``: heads trained with wrong labels, tested with right ones.

The paper: "TCM can fail when [...] strong label noise is present."
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.measure.evaluate import evaluate
from lab.files import write_csv
from lab.remarks.heads import (
    LOSSES,
    SCORES,
    Halves,
    Labels,
    changes,
    means,
    plain_values,
    read_halves,
    scored,
    t_interval,
    train_head,
)

NOISE = (0.0, 0.1, 0.2, 0.4)

Runs = dict[tuple[str, float, str, int], dict[str, Any]]
"""By data set, noise, training and seed."""


def flipped(classes: Labels, noise: float, seed: int) -> Labels:
    """Give a share of the rows another class, drawn evenly from all others.

    >>> found = flipped(np.repeat(np.arange(5), 20), 0.2, seed=0)
    >>> int((found != np.repeat(np.arange(5), 20)).sum())
    20
    """
    generator = np.random.default_rng([seed, 7])
    rows = generator.permutation(len(classes))[: round(noise * len(classes))]
    number, found = int(classes.max()) + 1, classes.copy()
    found[rows] = (found[rows] + generator.integers(1, number, size=len(rows))) % number
    return found


def run_data(name: str, halves: Halves, seeds: int, folder: Path) -> Runs:
    """Train and evaluate what is missing of one data set."""
    runs: Runs = {}
    weights = halves.weights
    for noise in NOISE:
        for seed in range(seeds):
            labels = flipped(halves.training_classes, noise, seed)
            for number, (training, loss) in enumerate(LOSSES.items()):
                place = folder / name / f"{round(100 * noise)}-{number}-{seed}.npz"
                if not place.is_file():
                    head = train_head(halves.training, labels, loss(), seed)
                    vectors = head.transform(halves.test)
                    found = evaluate(vectors, halves.test_classes, k=(1,), map_at_r=False, threads=1, progress=None)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    np.savez(place, **scored(found, weights))
                    print(f"{name}, noise {noise}, seed {seed}, {training}: {found.opis:.4g}", file=sys.stderr)
                runs[name, noise, training, seed] = dict(np.load(place))
    return runs


def table(runs: Runs, seeds: int) -> list[dict[str, Any]]:
    """Return one row per data set, noise and training, compared with plain training at the same noise."""
    rows = []
    for name, noise, training in dict.fromkeys(key[:3] for key in runs):
        here, plain = ([runs[name, noise, one, seed] for seed in range(seeds)] for one in (training, "plain"))
        row = {"data": name, "noise": noise, "training": training, "seeds": seeds, **means(here, SCORES)}
        if training != "plain":
            row |= changes(plain, here)
        if noise > 0:
            clean = [runs[name, 0.0, training, seed] for seed in range(seeds)]
            row |= {f"from clean {score}": value for score, value in changes(clean, here).items()}
        if noise > 0 and training != "plain":
            gains = [log_ratio(runs, name, noise, training, seed) for seed in range(seeds)]
            before = [log_ratio(runs, name, 0.0, training, seed) for seed in range(seeds)]
            mean, low, high = t_interval([a - b for a, b in zip(gains, before, strict=True)])
            row |= {"effect change": mean, "effect change low": low, "effect change high": high}
        rows.append(row)
    return rows


def log_ratio(runs: Runs, name: str, noise: float, training: str, seed: int) -> float:
    """Return the log of OPIS divided by that of plain training with the same labels and seed."""
    return float(np.log(runs[name, noise, training, seed]["opis"] / runs[name, noise, "plain", seed]["opis"]))


def run(data: dict[str, Path], seeds: int, folder: Path, results: Path) -> None:
    """Run the experiment on all data sets, or continue it, and write its tables."""
    runs: Runs = {}
    for name, path in data.items():
        runs |= run_data(name, read_halves(path), seeds, folder / "label-noise")
    results.mkdir(parents=True, exist_ok=True)
    rows = [
        {"data": name, "noise": noise, "training": training, "seed": seed, **plain_values(values)}
        for (name, noise, training, seed), values in runs.items()
    ]
    write_csv(results / "label-noise-runs.csv", rows)
    write_csv(results / "label-noise.csv", table(runs, seeds))
