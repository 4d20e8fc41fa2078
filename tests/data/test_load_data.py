"""Data sets by name: each is found by it, and names and settings that there are not are told."""

import numpy as np
import pytest
from layouts import (
    make_cub,
    make_folder,
    make_inat,
    make_mnist,
    make_old_cars,
    make_omniglot,
    make_sop,
)

from isomargin.core.errors import InputError
from isomargin.data.registry import data_names, load_data


def make_embeddings(root):
    for part, labels in (("train", [1, 1, 2]), ("test", [3])):
        np.savez(root / f"{part}.npz", embeddings=np.eye(4)[: len(labels)], labels=labels)


TREES = {
    "sop": make_sop,
    "cub": make_cub,
    "cars": make_old_cars,
    "inat": make_inat,
    "omniglot": make_omniglot,
    "mnist": make_mnist,
    "folder": lambda root: make_folder(root, {"cat": 1, "dog": 2}),
    "embeddings": make_embeddings,
}


@pytest.mark.parametrize("name", data_names())
def test_every_name_reads_its_data(tmp_path, name):
    if name == "glyphs":
        data = load_data(name, draws=1)
    else:
        TREES[name](tmp_path)
        data = load_data(name.upper(), str(tmp_path))
    assert data.name == name
    for images in (data.train, data.test):
        assert (images.vectors.shape[1] if name == "embeddings" else images.read(0).size[0]) > 0
        assert sorted(set(images.labels)) == list(range(len(images.class_names)))


def test_settings_reach_the_reader(tmp_path):
    make_cub(tmp_path)
    assert load_data("cub", tmp_path, split="closed").closed


@pytest.mark.parametrize("name", [name for name in data_names() if name != "glyphs"])
def test_a_root_is_needed_and_must_be_there(name):
    with pytest.raises(InputError, match=f"{name} was given no root"):
        load_data(name)
    with pytest.raises(InputError, match=f"no/such/folder does not exist: .* files of {name}"):
        load_data(name, "no/such/folder")


@pytest.mark.parametrize(
    ("name", "root", "settings", "message"),
    [
        ("cubs", ".", {}, "there is no data set 'cubs': did you mean 'cub'"),
        ("imagenet", ".", {}, "there is no data set 'imagenet': known are sop, cub"),
        (3, ".", {}, "there is no data set 3"),
        ("folder", ".", {"train_shares": 0.5}, "folder has no setting 'train_shares': did you mean 'train_share'"),
        ("sop", ".", {"split": "open"}, "sop has no setting 'split': known are root"),
        ("glyphs", ".", {}, r"glyphs was given the root '\.': it is generated, not read"),
        ("glyphs", None, {"draws": 0}, "draws is 0"),
    ],
)
def test_what_there_is_not_is_told(name, root, settings, message):
    with pytest.raises(InputError, match=message):
        load_data(name, root, **settings)
