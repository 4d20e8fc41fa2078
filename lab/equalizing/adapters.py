"""Linear adapters learned on the first half of the classes: Smooth-AP alone, with TCM and with class alignment.

All three are tuned alike: learning rate and number of steps, then two settings of the regularizer, by the FRR at FAR 1%
of a quarter of the first half, which has no part in training. The layer with the best settings is then trained on the
whole first half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from isomargin.equalize.adapter import Adapter
from isomargin.losses.class_alignment import ClassAlignmentLoss
from isomargin.losses.composition import share
from isomargin.losses.smooth_ap import SmoothAPLoss
from isomargin.losses.tcm import TCMLoss
from isomargin.measure.evaluation import Evaluation
from isomargin.training.adapt import frr_at_target, rows_for_looks
from isomargin.training.linear_layer import LabelledVectors, LayerSettings, principal_components, train_layer
from lab.equalizing.methods import Split, local, plain

DIMENSIONS = 256
LEARNING_RATES = (1e-4, 3e-4, 1e-3)
STEPS = (60, 120, 240, 480)
SELECTION = 4  # one class in so many

Loss = Callable[[], Any]
LOSSES: Mapping[str, tuple[Loss, ...]] = {
    "adapter": (SmoothAPLoss,),
    "adapter with TCM": (
        lambda: SmoothAPLoss() + TCMLoss(0.6, 0.4),
        lambda: SmoothAPLoss() + TCMLoss(0.9, 0.5),
    ),
    "adapter with alignment": (
        lambda: SmoothAPLoss() + share(ClassAlignmentLoss(), 0.3),
        lambda: SmoothAPLoss() + share(ClassAlignmentLoss(), 0.1),
    ),
}
"""By name of the adapter: the base loss, with the regularizer's settings to choose from."""


@dataclass(frozen=True)
class Look:
    """One setting, and the FRR of the selection classes."""

    frr: float
    settings: LayerSettings
    loss: Loss


def fit_adapter(split: Split, name: str) -> Adapter:
    """Choose the settings of an adapter within the first half, and train it on all of that half."""
    names, classes = np.unique(split.known_labels, return_inverse=True)
    data = LabelledVectors(split.known, classes.astype(np.int64), names)
    chosen = np.random.default_rng([split.seed, 4]).permutation(len(names))[: len(names) // SELECTION]
    trained = data.of_classes(np.setdiff1d(np.arange(len(names)), chosen))
    selected = rows_for_looks(data.of_classes(chosen))
    size = min(DIMENSIONS, split.known.shape[1])
    start = principal_components(trained.vectors, size)
    looks: list[Look] = []

    def try_settings(rate: float, loss: Loss) -> None:
        settings = LayerSettings(size, rate, 0.0, 0.0, max(STEPS))  # the margins are those of the given loss
        for reached, layer in train_layer(trained, start, settings, STEPS, split.seed, loss()):
            vectors = Adapter(layer.matrix, layer.bias).transform(selected.vectors)
            looks.append(Look(frr_at_target(vectors, selected.classes), reached, loss))

    first, *others = LOSSES[name]
    for rate in LEARNING_RATES:
        try_settings(rate, first)
    for loss in others:
        try_settings(min(looks, key=lambda look: look.frr).settings.learning_rate, loss)
    best = min(looks, key=lambda look: look.frr)
    start = principal_components(data.vectors, size)
    ((_, layer),) = train_layer(data, start, best.settings, [best.settings.steps], split.seed, best.loss())
    return Adapter(layer.matrix, layer.bias)


@lru_cache(maxsize=1)
def adapted(split: Split, name: str) -> Split:
    """Return the split with adapted embeddings; the last one is kept, for the method with an equalizer."""
    adapter = fit_adapter(split, name)
    return split.embedded(adapter.transform(split.known), adapter.transform(split.test))


def methods_of(name: str) -> dict[str, Callable[[Split], Evaluation]]:
    """Return the methods of one adapter: alone, and with the default equalizer."""
    return {
        name: lambda split: plain(adapted(split, name)),
        f"{name} + local, 31 to 130": lambda split: local(adapted(split, name), 100, 30),
    }


ADAPTERS = {method: function for name in LOSSES for method, function in methods_of(name).items()}
"""The methods that learn a layer, by name."""
