"""Linear heads on frozen features, and scores that are kept with those of resampled classes.

A head has 128 dimensions, starts as the principal components of the training items and is trained with Smooth-AP for
240 batches of 50 classes with 4 items each. All settings were fixed before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.equalize.adapter import Adapter
from isomargin.equalize.rows import unit_vectors
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.losses.class_alignment import ClassAlignmentLoss
from isomargin.losses.composition import share
from isomargin.losses.smooth_ap import SmoothAPLoss
from isomargin.losses.tcm import TCMLoss
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.seed_comparison import SeedScores
from isomargin.measure.statistics.resampling import Weights
from isomargin.training.linear_layer import LabelledVectors, LayerSettings, principal_components, train_layer

Singles = NDArray[np.float32]
Labels = NDArray[np.int64]

DRAWS = 1000
MOST_ITEMS = 60  # of a class
DIMENSIONS, LEARNING_RATE, STEPS = 128, 3e-4, 240
SCORES = ("opis", "debiased_opis", "recall@1", "eer", "frr")
RELATIVE = ("opis", "debiased_opis")
LOSSES: Mapping[str, Callable[[], Any]] = {
    "plain": SmoothAPLoss,
    "TCM, weight 1": lambda: SmoothAPLoss() + TCMLoss(0.9, 0.5),
    "TCM, share 0.3": lambda: SmoothAPLoss() + share(TCMLoss(0.6, 0.6), 0.3),
    "alignment, share 0.3": lambda: SmoothAPLoss() + share(ClassAlignmentLoss(), 0.3),
}
"""The paper's weight has the paper's margins; the share has those that a search on held-out classes of CUB picked."""


@dataclass(frozen=True)
class Halves:
    """Unit vectors of the first half of the classes, for training, and of the second, for testing."""

    training: Singles
    training_classes: Labels
    test: Singles
    test_classes: Labels
    """From 0 on."""

    @property
    def weights(self) -> Weights:
        """(draws, test classes) how often each test class is drawn; the same for all runs."""
        count, generator = int(self.test_classes.max()) + 1, np.random.default_rng(12345)
        drawn = [np.bincount(generator.integers(count, size=count), minlength=count) for _ in range(DRAWS)]
        return np.stack(drawn).astype(np.uint16)


def read_halves(path: Path) -> Halves:
    """Read a file of embeddings: the first half of the classes by name is for training; at most 60 items of a class."""
    found = EmbeddingSet.load(path)
    names = np.array([name for name in np.unique(found.labels) if name != "oos"])
    if len(names) < 8:
        raise InputError(f"{path} has {len(names)} classes: at least 8 are needed, half of them to test with")
    rows = np.concatenate([np.flatnonzero(found.labels == name)[:MOST_ITEMS] for name in names])
    vectors, classes = unit_vectors(np.asarray(found.vectors)[rows]), np.searchsorted(names, found.labels[rows])
    middle = len(names) // 2
    first = classes < middle
    return Halves(vectors[first], classes[first], vectors[~first], classes[~first] - middle)


def train_head(vectors: Singles, classes: Labels, loss: Any, seed: int) -> Adapter:
    """Train a head with the fixed settings."""
    data = LabelledVectors(vectors, classes.astype(np.int64), np.arange(classes.max() + 1))
    start = principal_components(vectors, DIMENSIONS)
    settings = LayerSettings(start.matrix.shape[1], LEARNING_RATE, 0.0, 0.0, STEPS)  # margins are those of the loss
    ((_, layer),) = train_layer(data, start, settings, [STEPS], seed, loss)
    return Adapter(layer.matrix, layer.bias)


def scored(evaluation: Evaluation, weights: Weights) -> dict[str, Any]:
    """Return scores by name, and under ``drawn NAME`` (draws,) those of resampled classes."""
    scores = SeedScores(evaluation, weights)
    found = {name: float(scores.values[name]) for name in SCORES}
    return {**found, **{f"drawn {name}": scores.drawn[name] for name in SCORES if name in scores.drawn}}


def plain_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are single numbers."""
    return {name: float(value) for name, value in values.items() if not name.startswith("drawn ")}


def changes(first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compare runs with the same seeds: changes of the means with 95% intervals over classes and seeds.

    A draw resamples the classes, the same for all runs, and the seeds, the same for both sides. OPIS is compared by the
    relative change, other scores by the difference.
    """
    found: dict[str, float] = {}
    chosen = np.random.default_rng(1).integers(len(first), size=(DRAWS, len(first)))
    for name in SCORES:
        if f"drawn {name}" not in first[0]:
            continue
        before, after = (np.mean([float(run[name]) for run in runs]) for runs in (first, other))
        drawn_before, drawn_after = (
            np.stack([run[f"drawn {name}"] for run in runs])[chosen.T, np.arange(DRAWS)].mean(axis=0)
            for runs in (first, other)
        )
        relative = name in RELATIVE
        change = after / before - 1 if relative else after - before
        drawn = drawn_after / drawn_before - 1 if relative else drawn_after - drawn_before
        low, high = np.quantile(drawn, (0.025, 0.975))
        found |= {f"{name} change": float(change), f"{name} change low": float(low), f"{name} change high": float(high)}
    return found


def means(runs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Return means and standard deviations over seeds."""
    values = {name: np.array([float(run[name]) for run in runs]) for name in names}
    found = {name: float(seeds.mean()) for name, seeds in values.items()}
    return found | {f"{name} deviation": float(seeds.std(ddof=1)) for name, seeds in values.items()}


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of values of several seeds and its 95% interval by Student's t."""
    from scipy.stats import t

    found = np.asarray(values, float)
    width = float(t.ppf(0.975, len(found) - 1)) * found.std(ddof=1) / np.sqrt(len(found))
    return float(found.mean()), float(found.mean() - width), float(found.mean() + width)
