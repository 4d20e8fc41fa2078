"""One linear layer on frozen unit vectors, trained with Smooth-AP and TCM from their principal components on.

`adapt.py` chooses the settings and judges the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

from isomargin.core.errors import InputError
from isomargin.data.sampler import ClassBatchSampler
from isomargin.losses.smooth_ap import SmoothAPLoss
from isomargin.losses.tcm import TCMLoss

CLASSES_PER_BATCH = 50
ITEMS_PER_CLASS = 4
LEAST_VARIANCE = 1e-10  # below this, unit vectors in float32 are all the same

Singles = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LabelledVectors:
    """Unit vectors with the classes that they belong to."""

    vectors: Singles
    """(n, d)"""
    classes: NDArray[np.int64]
    """(n,) number of each row's class; not every number needs to occur."""
    names: NDArray[Any]
    """(classes,) the label of each class."""

    @property
    def labels(self) -> NDArray[Any]:
        """(n,) label of each row."""
        return np.asarray(self.names[self.classes])

    def at(self, rows: NDArray[Any]) -> LabelledVectors:
        """Return these rows."""
        return LabelledVectors(self.vectors[rows], self.classes[rows], self.names)

    def of_classes(self, chosen: NDArray[np.int64]) -> LabelledVectors:
        """Return the rows of these classes."""
        return self.at(np.flatnonzero(np.isin(self.classes, chosen)))


@dataclass(frozen=True)
class LayerSettings:
    """How a layer is trained."""

    dimensions: int
    """Dimensions of the output."""
    learning_rate: float
    """Of Adam."""
    positive_margin: float
    """Of TCM."""
    negative_margin: float
    """Of TCM."""
    steps: int
    """Number of batches."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of a linear layer."""

    matrix: Singles
    """(d_in, d_out)"""
    bias: Singles
    """(d_out,)"""

    def cut(self, dimensions: int) -> Layer:
        """Return the layer with the first dimensions of the output only."""
        return Layer(self.matrix[:, :dimensions], self.bias[:dimensions])


def principal_components(vectors: Singles, most: int) -> Layer:
    """Return the layer that centres vectors and projects them to their principal components, the largest first.

    There are at most as many as the vectors have dimensions, and fewer than there are vectors.

    >>> layer = principal_components(np.array([[0, 1], [0, 3], [0, 5]], np.float32), 1)
    >>> abs(layer.matrix).round(4).tolist(), abs(layer.bias).round(4).tolist()
    ([[0.0], [1.0]], [3.0])
    """
    width = vectors.shape[1]
    mean = vectors.mean(axis=0, dtype=np.float64)
    centred = vectors - mean.astype(np.float32)
    covariance = (centred.T @ centred).astype(np.float64) / len(vectors)  # (d, d)
    if np.trace(covariance) < LEAST_VARIANCE:
        raise InputError("all embeddings point in the same direction: an adapter needs embeddings that differ")
    number = min(most, width, len(vectors) - 1)
    _, components = eigh(covariance, subset_by_index=[width - number, width - 1])
    matrix = np.ascontiguousarray(components[:, ::-1])  # (d, number)
    return Layer(matrix.astype(np.float32), (-mean @ matrix).astype(np.float32))


def train_layer(
    data: LabelledVectors,
    start: Layer,
    settings: LayerSettings,
    looks: Sequence[int],
    seed: int,
    loss: torch.nn.Module | None = None,
) -> Iterator[tuple[LayerSettings, Layer]]:
    """Train a layer, and yield it after each of these numbers of steps with the settings that lead to it.

    Without a loss it is Smooth-AP with TCM. Everything random is a function of the seed.
    """
    vectors, classes = torch.from_numpy(data.vectors), torch.from_numpy(data.classes)
    layer = start.cut(settings.dimensions)
    matrix, bias = (torch.tensor(weights, requires_grad=True) for weights in (layer.matrix, layer.bias))
    if loss is None:
        loss = SmoothAPLoss() + TCMLoss(settings.positive_margin, settings.negative_margin)
    optimizer = torch.optim.Adam([matrix, bias], lr=settings.learning_rate)
    for step, rows in enumerate(batches(data.classes, seed), start=1):
        optimizer.zero_grad()
        loss(vectors[rows] @ matrix + bias, classes[rows]).backward()
        optimizer.step()
        if step in looks:
            yield replace(settings, steps=step), Layer(as_array(matrix), as_array(bias))
        if step >= max(looks):
            return


def batches(classes: NDArray[np.int64], seed: int) -> Iterator[list[int]]:
    """Yield batches without end, each of a few items of several classes."""
    size = min(CLASSES_PER_BATCH, len(np.unique(classes)))
    sampler = ClassBatchSampler(classes, size, ITEMS_PER_CLASS, seed=seed)
    for epoch in count():
        sampler.set_epoch(epoch)
        yield from sampler


def as_array(weights: Tensor) -> Singles:
    """Return a copy of weights, which training goes on to change."""
    copy: Singles = weights.detach().numpy().copy()
    return copy
