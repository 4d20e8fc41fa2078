"""Features of a frozen network: where they are computed, and which splits of the classes are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import isomargin as im
from lab import features
from lab.experiment import Setting
from lab.features import make_features


@pytest.fixture
def embedded(monkeypatch):
    """Replace the network; give the devices it would have been on."""
    seen = []
    network = SimpleNamespace(to=lambda device: seen.append(device) or network, channels_last=lambda: network)

    def embed(model, images, batch, workers, device):
        seen.append(device)
        return np.eye(len(images), 9, dtype=np.float32)

    monkeypatch.setattr(features, "make_model", lambda settings: network)
    monkeypatch.setattr(features, "embed", embed)
    return seen


def write_images(folder, train, test):
    for part, names in (("train", train), ("test", test)):
        for name in names:
            (folder / part / name).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (4, 4)).save(folder / part / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(("there", "device"), [(True, "cuda"), (False, "cpu")])
def test_they_are_computed_on_a_gpu_where_there_is_one(tmp_path, embedded, monkeypatch, there, device):
    monkeypatch.setattr(features.torch.cuda, "is_available", lambda: there)
    images = write_images(tmp_path / "images", ["owl", "wren"], ["owl", "wren"])
    make_features("birds", images, tmp_path / "made", {}, lambda sentence: None, closed=True)
    assert embedded == [device] * 3  # the network, the images of either part
    assert im.EmbeddingSet.load(tmp_path / "made" / "all.npz").vectors.shape == (8, 9)


def test_parts_with_other_classes_are_refused_where_all_must_be_in_both(tmp_path, embedded):
    images = write_images(tmp_path / "images", ["owl", "wren"], ["owl", "robin"])

    def make(closed):
        make_features("birds", images, tmp_path / "made", {}, lambda sentence: None, closed)

    sentence = "2 of 3 classes are in one part only, the first is 'robin'"
    with pytest.raises(im.InputError, match=sentence):
        make(closed=True)
    assert embedded == []  # before the hours that it takes
    make(closed=False)
    with pytest.raises(im.InputError, match=sentence):
        make(closed=True)  # computed by another setting


def test_closed_is_for_features_with_a_given_split():
    with pytest.raises(ValueError, match="closed is for features with split: given"):
        Setting(recipe="cub-lite0", data="cub", features={}, closed=True)
    assert Setting(recipe="cub-lite0", data="cub", features={}, split="given", closed=True).closed
