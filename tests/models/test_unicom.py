"""Unicom's transformer computes what its authors' code computes, from a file of weights with their names."""

import pytest
import torch
from torch.nn.functional import batch_norm, conv2d, layer_norm, linear, relu6

import isomargin as im
from isomargin.models import make_model
from isomargin.models.unicom import UNICOM

WIDTH, HEADS, DEPTH, PATCHES = 24, 3, 2, 4


@pytest.fixture
def small(monkeypatch):
    sizes = {"patch_size": 16, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    monkeypatch.setitem(UNICOM, "unicom_vit_b16", sizes)


def drawn_weights():
    """Random weights with the names and shapes of the authors' module, in half precision like their files."""
    shapes = {"pos_embed": (1, PATCHES, WIDTH), "patch_embed.proj.weight": (WIDTH, 3, 16, 16)}
    shapes |= {"patch_embed.proj.bias": (WIDTH,), "norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    for i in range(DEPTH):
        for name, shape in {
            "norm1.weight": (WIDTH,),
            "norm1.bias": (WIDTH,),
            "attn.qkv.weight": (3 * WIDTH, WIDTH),
            "attn.proj.weight": (WIDTH, WIDTH),
            "attn.proj.bias": (WIDTH,),
            "norm2.weight": (WIDTH,),
            "norm2.bias": (WIDTH,),
            "mlp.fc1.weight": (4 * WIDTH, WIDTH),
            "mlp.fc1.bias": (4 * WIDTH,),
            "mlp.fc2.weight": (WIDTH, 4 * WIDTH),
            "mlp.fc2.bias": (WIDTH,),
        }.items():
            shapes[f"blocks.{i}.{name}"] = shape
    shapes |= {"feature.0.weight": (WIDTH, PATCHES * WIDTH), "feature.2.weight": (WIDTH, WIDTH)}
    for i in (1, 3):
        shapes |= {f"feature.{i}.{name}": (WIDTH,) for name in ("weight", "bias", "running_mean", "running_var")}
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.rand(shape, generator=generator).sub(0.4).half() for name, shape in shapes.items()}
    for i in (1, 3):
        weights[f"feature.{i}.running_var"] += 1
        weights[f"feature.{i}.num_batches_tracked"] = torch.tensor(0)
    return weights


def by_hand(images, w):
    w = {name: value.float() for name, value in w.items()}
    x = conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=16).flatten(2).transpose(1, 2)
    x = x + w["pos_embed"]
    for i in range(DEPTH):
        b = {name.split(".", 2)[2]: value for name, value in w.items() if name.startswith(f"blocks.{i}.")}
        h = layer_norm(x, (WIDTH,), b["norm1.weight"], b["norm1.bias"])
        q, k, v = linear(h, b["attn.qkv.weight"]).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        attention = (q @ k.transpose(-1, -2) / (WIDTH / HEADS) ** 0.5).softmax(-1) @ v
        x = x + linear(attention.transpose(1, 2).flatten(2), b["attn.proj.weight"], b["attn.proj.bias"])
        h = layer_norm(x, (WIDTH,), b["norm2.weight"], b["norm2.bias"])
        h = relu6(linear(h, b["mlp.fc1.weight"], b["mlp.fc1.bias"]))
        x = x + linear(h, b["mlp.fc2.weight"], b["mlp.fc2.bias"])
    x = layer_norm(x, (WIDTH,), w["norm.weight"], w["norm.bias"]).flatten(1)
    for i in (0, 2):
        x, n = linear(x, w[f"feature.{i}.weight"]), f"feature.{i + 1}"
        mean, variance = w[f"{n}.running_mean"], w[f"{n}.running_var"]
        x = batch_norm(x, mean, variance, w[f"{n}.weight"], w[f"{n}.bias"], eps=2e-5)
    return x / x.norm(dim=1, keepdim=True)


def test_it_embeds_as_the_authors_code_does(small, tmp_path):
    weights = drawn_weights()
    torch.save(weights, tmp_path / "unicom.pt")
    config = {"backbone": "unicom_vit_b16", "weights": str(tmp_path / "unicom.pt"), "image_size": 32}
    model = make_model({**config, "dimensions": None}).eval()
    images = torch.randn(3, 3, 32, 32)
    assert model.dimensions == WIDTH
    assert model.input_statistics.mean == (0.48145466, 0.4578275, 0.40821073)
    torch.testing.assert_close(model(images), by_hand(images, weights), atol=1e-5, rtol=1e-4)


def test_clips_own_projection_can_be_kept():
    with torch.device("meta"):
        config = {"backbone": "vit_base_patch16_clip_224", "weights": "openai", "keep_head": True, "dimensions": None}
        model = make_model(config, load_weights=False)
    assert model.dimensions == 512
    kept = make_model({"backbone": "test_vit", "keep_head": True, "image_size": 32, "dimensions": None})
    vectors = kept.eval().backbone.forward_head(kept.backbone.forward_features(torch.zeros(2, 3, 32, 32)))
    torch.testing.assert_close(kept(torch.zeros(2, 3, 32, 32)), torch.nn.functional.normalize(vectors))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"backbone": "unicom_vit_b16", "pooling": "cls"}, "has its own: leave it out"),
        ({"backbone": "unicom_vit_b16", "weights": "openai"}, "None or a path is needed"),
        ({"backbone": "small_conv", "keep_head": True}, "small_conv has no head of its own"),
        ({"backbone": "test_vit", "keep_head": True, "pooling": "cls"}, "keep_head is true and pooling is 'cls'"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(small, config, sentence):
    with pytest.raises(im.InputError, match=sentence):
        make_model({**config, "image_size": None if config["backbone"] == "small_conv" else 32})
