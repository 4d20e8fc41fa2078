"""Models between the pretrained and the trained weights, which do better on unseen classes than either.

The weights are averaged one by one, as Wortsman et al. (2022), "Robust fine-tuning of zero-shot models", do. Training
itself goes on from its own weights; only what is evaluated and kept is averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from isomargin.core.errors import InputError
from isomargin.models.embedder import Embedder, make_model
from isomargin.training.recipe import Recipe


def pretrained_weights(recipe: Recipe) -> dict[str, Tensor]:
    """Return the weights and statistics with which a recipe's backbone starts; none where they have no share."""
    if recipe.pretrained_share == 0:
        return {}
    if recipe.model.get("weights") is None:
        raise InputError(
            f"pretrained_share is {recipe.pretrained_share}, but the model starts with random weights: set "
            "model.weights, or leave pretrained_share out"
        )
    return make_model(recipe.model).backbone.state_dict()


@contextmanager
def averaged(model: Embedder, pretrained: Mapping[str, Tensor], share: float) -> Iterator[None]:
    """Give the backbone the average of its weights and the pretrained ones within the block; `share` is of the latter.

    Without pretrained weights nothing changes. The head, which starts at random, is not averaged.

    >>> model = make_model({"backbone": "small_conv"})
    >>> zeros = {name: torch.zeros_like(values) for name, values in model.backbone.state_dict().items()}
    >>> weights = next(model.backbone.parameters())
    >>> before = float(weights.abs().sum())
    >>> with averaged(model, zeros, 0.75):
    ...     within = float(weights.abs().sum())
    >>> round(within / before, 4), float(weights.abs().sum()) == before
    (0.25, True)
    """
    state = model.backbone.state_dict() if pretrained else {}
    trained = {name: values.clone() for name, values in state.items() if values.is_floating_point()}
    with torch.no_grad():
        for name in trained:
            state[name].lerp_(pretrained[name].to(state[name]), share)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, values in trained.items():
                state[name].copy_(values)
