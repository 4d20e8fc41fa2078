"""Embeddings as a data set: how files become parts, and what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from isomargin.core.errors import InputError
from isomargin.data.embedded import read_embeddings
from isomargin.data.images import ImageSet, find_bad_images, without_bad
from isomargin.data.registry import load_data
from isomargin.io.embedding_set import EmbeddingSet

NUMBERS = [10, 9, 2, 9, 100, 10]


def vectors_of(count, width=3):
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def save(path, labels, vectors=None):
    EmbeddingSet(vectors_of(len(labels)) if vectors is None else vectors, labels).save(path)
    return path


def first_numbers(images):
    """Which rows of `vectors_of` these are."""
    return [int(row[0]) // 3 for row in images.vectors]


@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet", "pt", "safetensors"])
def test_a_file_is_divided_by_its_classes_in_the_order_of_numbers(tmp_path, suffix):
    data = load_data("embeddings", save(tmp_path / f"birds.{suffix}", NUMBERS), order=3)
    assert data.train.class_names == ("2", "9", "10")
    assert data.test.class_names == ("100",)
    assert data.train.labels.tolist() == [2, 1, 0, 1, 2]
    assert first_numbers(data.train) == [0, 1, 2, 3, 5]
    assert (data.name, data.closed, data.notes) == ("embeddings", False, ())


def test_text_is_sorted_as_text(tmp_path):
    data = read_embeddings(save(tmp_path / "birds.npz", [str(each) for each in NUMBERS]), order=2)
    assert data.train.class_names == ("10", "100")
    assert data.test.class_names == ("2", "9")


def test_classes_are_drawn_as_from_a_folder_of_images(tmp_path):
    from isomargin.data.folder import read_folder

    names = [f"{number:02}" for number in range(20)]
    for name in names:
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.jpg").touch()
    file = save(tmp_path / "birds.npz", names)
    for settings in ({}, {"seed": 3}, {"train_share": 0.2}, {"train_classes": ["03", "11"]}):
        expected = read_folder(tmp_path / "images", **settings).train.class_names
        assert read_embeddings(file, **settings).train.class_names == expected


def test_training_classes_may_be_named_as_the_numbers_they_are(tmp_path):
    file = save(tmp_path / "birds.npz", NUMBERS)
    for named in (["9", "100"], [9, 100], np.array([9, 100])):
        assert read_embeddings(file, train_classes=named).train.class_names == ("9", "100")


@pytest.mark.parametrize(
    ("test_labels", "closed", "notes"),
    [
        (["owl", "auk"], True, ()),
        (["kea"], False, ()),
        (["owl", "kea"], True, ("1 of 2 test classes are training classes too, the others are not",)),
    ],
)
def test_two_files_are_taken_as_they_are(tmp_path, test_labels, closed, notes):
    save(tmp_path / "train.npy", ["owl", "auk", "owl"])  # with train.labels.npy, which is no file of embeddings
    save(tmp_path / "test.pt", test_labels)
    data = read_embeddings(tmp_path)
    assert data.train.class_names == ("auk", "owl")
    assert data.test.class_names == tuple(sorted(test_labels))
    assert (len(data.train), len(data.test), data.closed, data.notes) == (3, len(test_labels), closed, notes)


@pytest.mark.parametrize(
    "vectors",
    [
        vectors_of(2).astype(np.float64),
        vectors_of(2).astype(np.float16),
        vectors_of(2).astype(">f4"),
        vectors_of(2).astype(np.int8),
        torch.tensor(vectors_of(2)).bfloat16(),
        torch.tensor(vectors_of(2), dtype=torch.float64),
    ],
)
def test_every_precision_becomes_float32(tmp_path, vectors):
    kind = "pt" if isinstance(vectors, torch.Tensor) else "npz"
    data = read_embeddings(save(tmp_path / f"birds.{kind}", [0, 1], vectors), order=1)
    for part, expected in ((data.train, vectors_of(2)[:1]), (data.test, vectors_of(2)[1:])):
        assert type(part.vectors) is np.ndarray
        assert part.vectors.dtype == np.dtype("=f4")
        np.testing.assert_array_equal(part.vectors, expected)


def test_other_keys_are_taken(tmp_path):
    np.savez(tmp_path / "birds.npz", features=vectors_of(2), species=[0, 1])
    data = read_embeddings(tmp_path / "birds.npz", embeddings_key="features", labels_key="species")
    assert len(data.train) == len(data.test) == 1
    with pytest.raises(InputError, match="has no 'embeddings': it has 'features', 'species'"):
        read_embeddings(tmp_path / "birds.npz")


def test_rows_that_are_not_finite_are_named_with_their_file(tmp_path):
    vectors = np.ones((9, 3))
    vectors[2, 1], vectors[4, 0], vectors[7, 2] = np.nan, -np.inf, 1e300
    with pytest.raises(InputError, match=r"birds\.npz: rows 2, 4, 7 of embeddings are NaN, infinite or too large"):
        read_embeddings(save(tmp_path / "birds.npz", range(9), vectors))
    with pytest.raises(InputError, match=r"rows 0, 1, 2, 3, 4 and 4 more"):
        read_embeddings(save(tmp_path / "birds.npz", range(9), np.full((9, 3), np.nan)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": 4}, "order is 4: a whole number from 1 to 3"),
        ({"order": 1, "train_share": 0.5}, "train_share and order are given"),
        ({"train_classes": ["99"]}, "has the class '99', and there is no such class: did you mean '9'"),
        ({"train_classes": 9}, "train_classes is 9: a list of names"),
        ({"train_classes": [None]}, "has the class None, and there is no such class"),
        ({"train_classes": ["2", "9", "10", "100"]}, r"4 of the 4 classes in .*birds\.npz"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        read_embeddings(save(tmp_path / "birds.npz", NUMBERS), **settings)


def test_a_folder_needs_one_file_a_part_that_fit_together(tmp_path):
    def refused(message, **settings):
        with pytest.raises(InputError, match=message):
            read_embeddings(tmp_path, **settings)

    refused("no file of train embeddings: train.npz, train.npy, train.parquet, train.pt or train.safetensors is exp")
    save(tmp_path / "train.npz", [0, 1])
    refused(r"no file of test embeddings: test\.npz")
    save(tmp_path / "test.npz", ["0", "1"])
    refused(r"train\.npz has numbers as labels and .*test\.npz has text")
    save(tmp_path / "test.npz", [2], np.ones((1, 4)))
    refused(r"train\.npz has vectors of 3 dimensions and .*test\.npz of 4")
    save(tmp_path / "test.npz", [2])
    assert not read_embeddings(tmp_path).closed
    refused("order is given, and .* is a folder", order=1)
    shutil.copy(tmp_path / "train.npz", tmp_path / "train.NPZ")
    if len(list(tmp_path.iterdir())) == 3:  # file systems may take upper for lower case
        refused(r"holds train\.NPZ and train\.npz: keep one file for train")


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "birds.csv").write_text("1,2")
    with pytest.raises(InputError, match=r"has the suffix \.csv: \.npz"):
        load_data("embeddings", tmp_path / "birds.csv")


def test_a_set_of_vectors_does_what_a_set_of_images_does_but_has_none():
    rows = ImageSet(np.array([0, 1, 2, 1]), ("a", "b", "c"), vectors=vectors_of(4))
    assert repr(rows) == "ImageSet(4 vectors in 3 classes)"
    assert first_numbers(rows.select([3, 0])) == [3, 0]
    assert rows.select([3, 0]).class_names == ("a", "b")
    assert first_numbers(rows.of_classes([1])) == [1, 3]
    assert rows.select([]).vectors.shape == (0, 3)
    assert find_bad_images(rows) == []
    with pytest.raises(InputError, match=r"row 2 is a vector and not an image: take vectors\[2\]"):
        rows.read(2)


def test_no_vector_is_left_out_as_a_bad_image(tmp_path):
    data = read_embeddings(save(tmp_path / "birds.npz", NUMBERS))
    assert len(without_bad(data).train) == len(data.train)
