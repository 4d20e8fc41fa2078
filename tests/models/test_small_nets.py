"""The small backbones."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from isomargin.models import SMALL, make_model


@pytest.mark.parametrize("name", list(SMALL))
def test_forward_is_the_mean_of_the_feature_map(name):
    net = SMALL[name]().eval()
    images = torch.rand(3, 1, 28, 28)
    features = net.forward_features(images)
    assert features.shape[:2] == (3, net.num_features)
    torch.testing.assert_close(net(images), features.mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("tiny_conv", 5e4, 6e4),
        ("small_conv", 5e4, 6e4),
        ("small_conv4", 2.4e5, 2.5e5),
        ("small_residual", 5e5, 6e5),
        ("small_resnet", 8e5, 1.2e6),
    ],
)
def test_sizes_are_as_documented(name, least, most):
    assert least < sum(each.numel() for each in SMALL[name]().parameters()) < most


def test_three_convolutions_are_as_documented():
    made = [each for each in SMALL["small_conv"]().modules() if isinstance(each, torch.nn.Conv2d)]
    assert [(each.kernel_size[0], each.stride[0], each.out_channels) for each in made] == [
        (5, 2, 24),
        (3, 1, 48),
        (3, 1, 96),
    ]


@pytest.mark.parametrize("name", list(SMALL))
def test_a_few_steps_tell_classes_apart(name):
    torch.manual_seed(0)
    prototypes = (torch.rand(4, 1, 28, 28) > 0.5).float()
    labels = torch.arange(4).repeat(8)
    images = prototypes[labels] + 0.3 * torch.randn(32, 1, 28, 28)
    model = make_model({"backbone": name, "dimensions": 4})
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(8 * model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_models_of_small_images_and_of_vectors_need_neither_timm_nor_torchvision():
    code = (
        "import sys; from isomargin.models import make_model; make_model({'backbone': 'small_resnet'});"
        "make_model({'backbone': 'mlp', 'features': 3});"
        "assert not {'timm', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
