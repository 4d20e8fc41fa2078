"""`isomargin embed` gives all items in their order, with the labels and ids that they came with."""

import numpy as np
import pytest
import torch

import isomargin as im
from data.layouts import picture
from isomargin.core.errors import InputError
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.training.embed import embed_by_run
from isomargin.training.recipe import read_recipe
from training.runs import run as train_run

HEAD = {
    "name": "head",
    "model": {"backbone": "vectors", "dimensions": 4},
    "loss": {"base": "smooth_ap"},
    "batch": {"classes": 4, "images_per_class": 2},
    "epochs": 0.5,
    "evaluation": {"far": [0.05, 0.2]},
}


def features(rows=120, classes=20, seed=0):
    """Vectors with integer labels in no order, and ids."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(rows) % classes * 7 - 3)
    vectors = generator.normal(size=(rows, 6)) + labels[:, None] % 5
    return EmbeddingSet(vectors.astype(np.float32), labels, [f"item {row}" for row in generator.permutation(rows)])


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A run of a head on a file of features."""
    folder = tmp_path_factory.mktemp("head")
    features().save(folder / "features.npz")
    recipe = read_recipe({**HEAD, "data": {"name": "embeddings", "root": str(folder / "features.npz")}})
    train_run(folder / "run", recipe)
    return folder / "run"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run of a small network on class folders."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(8):
        for each in range(3):
            picture(folder / "photos" / f"{number}" / f"{each}.png", shade=100 * number + each, side=32)
    content = {**HEAD, "data": {"name": "folder", "root": str(folder / "photos")}}
    content |= {"model": {"backbone": "tiny_conv", "dimensions": 4}, "batch": {"classes": 2, "images_per_class": 2}}
    train_run(folder / "run", read_recipe({**content, "evaluation": {"far": [0.1, 0.5]}}))
    return folder / "run"


def expected(run, vectors):
    with torch.inference_mode():
        return im.open_run(run)[1](torch.from_numpy(vectors)).numpy()


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".pt", ".safetensors"])
def test_a_file_of_features_is_embedded_row_by_row_with_its_labels_and_ids(run, head, tmp_path, suffix):
    code, _, err = run("embed", head, "--output", tmp_path / f"out{suffix}")
    assert code == 0, err
    embedded, source = EmbeddingSet.load(tmp_path / f"out{suffix}"), features()
    assert embedded.labels.dtype.kind == "i"
    np.testing.assert_array_equal(embedded.labels, source.labels)
    np.testing.assert_array_equal(embedded.ids, source.ids)
    np.testing.assert_allclose(np.asarray(embedded.vectors), expected(head, source.vectors), atol=1e-6)


def test_the_parts_are_disjoint_and_make_up_all(head):
    parts = [embed_by_run(head, part=part, workers=0) for part in ("train", "test")]
    assert sorted(np.concatenate([part.ids for part in parts])) == sorted(features().ids)
    assert set(parts[0].labels).isdisjoint(parts[1].labels)


def test_the_embeddings_that_a_run_ends_in_have_the_labels_and_ids_of_the_source(head):
    kept, source = EmbeddingSet.load(head / "embeddings.npz"), features()
    by_id = dict(zip(source.ids.tolist(), source.labels.tolist(), strict=True))
    assert [by_id[name] for name in kept.ids.tolist()] == kept.labels.tolist()
    assert kept.labels.dtype.kind == "i"


@pytest.mark.parametrize("classes", [1, 5])
def test_another_file_of_features_is_embedded_without_being_divided(head, tmp_path, classes):
    other = features(rows=30, classes=classes, seed=1)
    other.save(tmp_path / "other.npz")
    for embedded in (
        embed_by_run(head, images=tmp_path / "other.npz", workers=0),
        embed_by_run(head, changes=[f"data.root={tmp_path / 'other.npz'}"], workers=0),
    ):
        np.testing.assert_array_equal(embedded.labels, other.labels)
        np.testing.assert_array_equal(embedded.ids, other.ids)


def test_class_folders_are_embedded_in_order_with_paths_as_ids(run, photos, tmp_path):
    names = [f"{number}/{each}.png" for number in range(8) for each in range(3)]
    for more in ([], ["--images", photos.parent / "photos"]):
        code, _, err = run("embed", photos, *more, "--output", tmp_path / "out.npz", "--workers", 0)
        assert code == 0, err
        embedded = EmbeddingSet.load(tmp_path / "out.npz")
        assert embedded.ids.tolist() == names
        assert embedded.labels.tolist() == [name[0] for name in names]


def test_ids_that_a_format_cannot_hold_are_a_note(run, photos, tmp_path):
    code, _, err = run("embed", photos, "--output", tmp_path / "out.npy", "--workers", 0)
    assert code == 0
    assert "out.npy has no place for the items' ids" in err


def test_features_do_not_fit_a_model_of_images(photos, tmp_path):
    features().save(tmp_path / "features.npz")
    with pytest.raises(InputError, match="images has shape"):
        embed_by_run(photos, images=tmp_path / "features.npz", workers=0)
