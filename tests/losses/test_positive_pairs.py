"""Which losses learn nothing from a batch without positive pairs."""

import inspect

import pytest
import torch

from isomargin.losses import ArcFaceLoss, SmoothAPLoss, TCMLoss, ThresholdPenaltyLoss, loss_names, make_loss
from isomargin.losses.registry import REGISTRY


@pytest.mark.parametrize("name", loss_names())
def test_a_loss_needs_positive_pairs_if_separate_embeddings_of_different_classes_get_no_gradient(name):
    sizes = {"num_classes": 6, "embedding_size": 6}
    needed = inspect.signature(REGISTRY[name]).parameters
    loss = make_loss({"name": name, **{key: value for key, value in sizes.items() if key in needed}})
    embeddings = torch.eye(6).requires_grad_()
    loss(embeddings, torch.arange(6)).backward()
    assert loss.needs_positive_pairs == (not embeddings.grad.any())


def test_a_sum_needs_positive_pairs_if_all_its_parts_do():
    assert (SmoothAPLoss() + TCMLoss()).needs_positive_pairs
    assert not (ArcFaceLoss(6, 6) + TCMLoss()).needs_positive_pairs


def test_settings_decide_whether_a_loss_needs_positive_pairs():
    assert not TCMLoss(positive_weight=0).needs_positive_pairs
    assert ThresholdPenaltyLoss(SmoothAPLoss()).needs_positive_pairs
    assert not ThresholdPenaltyLoss(ArcFaceLoss(6, 6)).needs_positive_pairs
