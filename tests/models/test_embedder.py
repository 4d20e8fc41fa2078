"""Backbone, pooling and head together."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch

from isomargin.core.errors import InputError
from isomargin.models import InputStatistics, make_model
from isomargin.models.pooling import POOLINGS, GeneralizedMeanPooling

CONVOLUTIONAL = {"backbone": "test_resnet", "dimensions": 16}
TRANSFORMER = {"backbone": "test_vit", "image_size": 64, "dimensions": 16}


def images(config, count=3):
    if config["backbone"].startswith("small"):
        return torch.rand(count, 1, 28, 28)
    return torch.rand(count, 3, 64, 64)


def test_timm_can_be_imported_after_the_shim_called_twice():
    code = (
        "from isomargin.models import import_torchvision as shim; assert shim() is shim();"
        "import timm, torchvision; from torchvision.transforms import v2; timm.create_model('test_resnet')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("config", [{"backbone": "small_conv", "dimensions": 16}, CONVOLUTIONAL, TRANSFORMER])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_gives_unit_vectors_and_gradients(config, pooling):
    if pooling == "cls" and config is not TRANSFORMER:
        with pytest.raises(InputError, match="no class token: take 'avg'"):
            make_model(config | {"pooling": pooling})
        return
    model = make_model(config | {"pooling": pooling, "layer_norm": True})
    embeddings = model(images(config))
    assert embeddings.shape == (3, 16)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(3))
    (embeddings @ torch.rand(16)).sum().backward()
    assert all(each.grad is not None and torch.isfinite(each.grad).all() for each in model.parameters())
    assert any(each.grad.abs().sum() > 0 for each in model.backbone.parameters())


@pytest.mark.parametrize(
    ("backbone", "pooling"),
    [("test_resnet", "avg"), ("test_efficientnet", "avg"), ("test_convnext", "avg"), ("test_vit", "cls")],
)
def test_pooling_as_timm_does_gives_what_timm_gives(backbone, pooling):
    torch.manual_seed(0)
    config = {"backbone": backbone, "dimensions": None, "normalise": False, "image_size": 64}
    model = make_model(config | {"pooling": pooling}).eval()
    batch = torch.rand(2, 3, 64, 64)
    torch.testing.assert_close(model(batch), model.backbone(batch))


def test_features_with_channels_last_are_pooled_over_positions():
    class Backbone(torch.nn.Module):
        num_features, output_fmt = 5, "NHWC"

        def forward_features(self, batch):
            return batch.permute(0, 2, 3, 1)

    from isomargin.models import Embedder

    model = Embedder(Backbone(), InputStatistics((0.0,) * 5, (1.0,) * 5, 4), dimensions=None, normalise=False)
    batch = torch.rand(2, 5, 4, 4)
    torch.testing.assert_close(model(batch), batch.mean((2, 3)))


def test_transformer_pooling_leaves_prefix_tokens_out():
    model = make_model(TRANSFORMER | {"pooling": "max", "dimensions": None, "normalise": False}).eval()
    batch = images(TRANSFORMER)
    tokens = model.backbone.forward_features(batch)
    assert tokens.shape[1] == 1 + (64 // 16) ** 2
    torch.testing.assert_close(model(batch), tokens[:, 1:].max(1).values)


def test_gem_is_the_generalized_mean():
    features = torch.randn(2, 3, 5, dtype=torch.float64)
    pooled = GeneralizedMeanPooling(3.0).double()(features)
    for row in range(2):
        for channel in range(3):
            values = [max(float(each), 1e-6) for each in features[row, channel]]
            expected = (sum(each**3 for each in values) / 5) ** (1 / 3)
            assert float(pooled[row, channel]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("learnable", [False, True])
def test_the_power_of_gem_trains_only_if_asked(learnable):
    model = make_model({"backbone": "small_conv", "pooling": "gem", "gem_power": 2.0, "gem_learnable": learnable})
    assert model.pooling.power.item() == 2
    assert ("pooling.power" in dict(model.named_parameters())) is learnable
    model(torch.rand(2, 1, 28, 28))[:, 0].sum().backward()
    assert (model.pooling.power.grad is not None) is learnable


def test_settings_of_the_head():
    model = make_model({"backbone": "small_conv", "dimensions": None, "normalise": False})
    assert model.dimensions == 96
    assert not list(model.linear.parameters())
    assert not torch.allclose(model(torch.rand(2, 1, 28, 28)).norm(dim=1), torch.ones(2))
    assert isinstance(make_model({"backbone": "small_conv", "layer_norm": True}).norm, torch.nn.LayerNorm)


def test_half_precision_ends_in_full():
    model = make_model({"backbone": "small_conv", "dimensions": 8})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = model(torch.rand(2, 1, 28, 28))
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("backbone", ["small_conv", "test_resnet"])
@pytest.mark.parametrize("freeze", ["none", "statistics", "all"])
def test_frozen_batch_norm_keeps_its_statistics_and_if_asked_its_weights(backbone, freeze):
    config = {"backbone": backbone, "dimensions": 8, "freeze_batch_norm": freeze}
    model = make_model(config)
    model.eval()
    model.train()
    before = copy.deepcopy(model.state_dict())
    trainable = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.SGD(trainable, lr=1.0)
    for _ in range(2):
        model(images(config))[:, 0].sum().backward()
        optimiser.step()
    norms = [name for name, each in model.named_modules() if isinstance(each, torch.nn.BatchNorm2d)]
    assert norms

    def changed(last):
        return any(not torch.equal(before[f"{name}.{last}"], model.state_dict()[f"{name}.{last}"]) for name in norms)

    assert changed("running_mean") is changed("running_var") is (freeze == "none")
    assert changed("weight") is changed("bias") is (freeze != "all")


@pytest.mark.parametrize("freeze", ["none", "all"])
def test_parameter_groups_are_disjoint_and_complete(freeze):
    config = {"backbone": "test_resnet", "pooling": "gem", "gem_learnable": True, "layer_norm": True}
    model = make_model(config | {"freeze_batch_norm": freeze})
    groups = model.parameter_groups(1e-3, head_factor=10, weight_decay=0.1)
    grouped = [id(each) for group in groups for each in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(each) for each in model.parameters() if each.requires_grad}
    of_backbone = {id(each) for each in model.backbone.parameters()}
    for group in groups:
        inside = group["name"] == "backbone"
        assert {id(each) in of_backbone for each in group["params"]} == {inside}
        assert group["lr"] == pytest.approx(1e-3 if inside else 1e-2)
        assert group["weight_decay"] == 0.1
    torch.optim.AdamW(groups)


def test_a_backbone_thaws_but_for_what_was_frozen_by_choice():
    model = make_model({"backbone": "test_resnet", "freeze_batch_norm": "all"})
    model.backbone.conv1[0].weight.requires_grad_(False)
    before = [each.requires_grad for each in model.parameters()]
    groups = [len(group["params"]) for group in model.parameter_groups(1e-3)]
    model.freeze_backbone(True)
    model.freeze_backbone(True)
    assert not any(each.requires_grad for each in model.backbone.parameters())
    assert all(each.requires_grad for each in model.linear.parameters())
    assert [len(group["params"]) for group in model.parameter_groups(1e-3)] == groups
    model.freeze_backbone(False)
    assert [each.requires_grad for each in model.parameters()] == before
    assert sum(before) < len(before)


@pytest.mark.parametrize("config", [CONVOLUTIONAL | {"pooling": "gem"}, TRANSFORMER | {"pooling": "cls"}])
def test_state_dict_round_trip(config):
    first, second = make_model(config).eval(), make_model(config).eval()
    batch = images(config)
    assert not torch.allclose(first(batch), second(batch))
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(first(batch), second(batch), rtol=0, atol=0)


def test_input_statistics():
    assert make_model({"backbone": "small_conv"}).input_statistics == InputStatistics((0.0,), (1.0,), 28)
    assert make_model({"backbone": "resnet18"}).input_statistics == InputStatistics(
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224
    )
    assert make_model(TRANSFORMER).input_statistics == InputStatistics((0.5,) * 3, (0.5,) * 3, 64)


def test_the_tag_in_a_name_decides_the_statistics():
    tiny = "vit_tiny_patch16_224"
    statistics = make_model({"backbone": f"{tiny}.augreg_in21k", "image_size": 64}).input_statistics
    assert statistics == InputStatistics((0.5,) * 3, (0.5,) * 3, 64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("small_conv", "a dictionary with a backbone is needed"),
        ({}, "the model has no backbone"),
        ({"backbone": "small_con"}, "no backbone 'small_con': did you mean 'small_conv'"),
        ({"backbone": "resnet5O"}, "no backbone 'resnet5O': did you mean 'resnet50'"),
        ({"backbone": "???"}, r"no backbone '\?\?\?': timm.list_models\(\) lists"),
        ({"backbone": 50}, "no backbone 50"),
        ({"backbone": "vit_base_patch16_224.augreg_in21"}, "no weights 'augreg_in21' of .* mean 'augreg_in21k'"),
        ({"backbone": "vit_base_patch16_224", "weights": "augreg_in21"}, "did you mean 'augreg_in21k'"),
        ({"backbone": "small_conv", "pooling": "average"}, "no pooling 'average': did you mean 'avg'"),
        ({"backbone": "small_conv", "pooling": None}, "no pooling None"),
        ({"backbone": "small_conv", "dimension": 3}, "no setting 'dimension': did you mean 'dimensions'"),
        ({"backbone": "small_conv", "dimensions": 0}, "dimensions is 0"),
        ({"backbone": "small_conv", "dimensions": "512"}, "dimensions is '512'"),
        ({"backbone": "small_conv", "layer_norm": "yes"}, "layer_norm is 'yes': True or False"),
        ({"backbone": "small_conv", "gem_power": 0}, "gem_power is 0"),
        ({"backbone": "small_conv", "freeze_batch_norm": True}, "no freeze_batch_norm True"),
        ({"backbone": "small_conv", "freeze_batch_norm": "statistic"}, "did you mean 'statistics'"),
        ({"backbone": "small_conv", "weights": "pretrained"}, "small_conv has none to download"),
        ({"backbone": "small_conv", "weights": 3}, "weights is 3"),
        ({"backbone": "test_vit", "image_size": 60}, "a multiple of its patches' 16 pixels"),
        ({"backbone": "test_vit", "image_size": "big"}, "image_size is 'big'"),
    ],
)
def test_bad_configs_are_refused_with_what_was_meant(config, message):
    with pytest.raises(InputError, match=message):
        make_model(config)


def test_images_of_another_shape_are_refused():
    model = make_model({"backbone": "small_conv"})
    for bad in (torch.rand(2, 3, 28, 28), torch.rand(28, 28)):
        with pytest.raises(InputError, match=r"\(n, 1, height, width\) is needed"):
            model(bad)
