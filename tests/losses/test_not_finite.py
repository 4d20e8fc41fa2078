"""NaN and infinite embeddings: no loss hides them, so that training notices that it diverged."""

import inspect
import math

import pytest
import torch

from isomargin.losses import SmoothAPLoss, TCMLoss, loss_names, make_loss
from isomargin.losses.registry import REGISTRY

LABELS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 3])  # the last class has one row and so no positive pair


def make(name):
    sizes = {"num_classes": 4, "embedding_size": 6}
    needed = inspect.signature(REGISTRY[name]).parameters
    return make_loss({"name": name, **{key: value for key, value in sizes.items() if key in needed}})


def embeddings(rows=(), value=math.nan):
    generator = torch.Generator().manual_seed(0)
    points = torch.eye(4, 6)[LABELS] + 0.1 * torch.randn(10, 6, generator=generator)
    points[list(rows), 1] = value
    return points


@pytest.mark.parametrize("rows", [[0], [9], range(10)], ids=["one row", "a class of one row", "all rows"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", loss_names())
def test_every_loss_of_embeddings_that_are_not_finite_is_nan(name, value, rows):
    assert make(name)(embeddings(), LABELS).isfinite()
    assert make(name)(embeddings(rows, value), LABELS).isnan()


@pytest.mark.parametrize("name", [name for name in loss_names() if REGISTRY[name].takes_references])
def test_every_loss_with_references_that_are_not_finite_is_nan(name):
    assert make(name)(embeddings(), LABELS, ref_emb=embeddings([9]), ref_labels=LABELS).isnan()


def test_each_part_of_a_sum_shows_that_the_embeddings_are_not_finite():
    loss = SmoothAPLoss() + 0.5 * TCMLoss()
    assert loss(embeddings(range(10)), LABELS).isnan()
    assert loss.values["smooth_ap"].isnan()
    assert loss.values["tcm"].isnan()
