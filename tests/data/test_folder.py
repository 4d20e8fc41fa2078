"""Folders of images: what a class is, and how classes are divided."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import make_folder, picture, write

from isomargin.core.errors import InputError
from isomargin.data.folder import IMAGE_SUFFIXES, _training_classes, class_folders, read_folder

PETS = {"birds/owl": 2, "birds/auk": 1, "cat": 3, "dog": 1}


@pytest.fixture
def pets(tmp_path):
    make_folder(tmp_path, PETS)
    return tmp_path


def test_every_folder_with_images_is_a_class_named_by_its_path(pets):
    data = read_folder(pets, order=3)
    assert data.train.class_names == ("birds/auk", "birds/owl", "cat")
    assert data.train.labels.tolist() == [0, 1, 1, 2, 2, 2]
    assert [str(path.relative_to(pets)) for path in data.train.paths[:3]] == [
        "birds/auk/0.png",
        "birds/owl/0.png",
        "birds/owl/1.png",
    ]
    assert data.test.class_names == ("dog",)
    assert (data.name, data.closed, data.notes) == ("folder", False, ())


def test_a_folder_may_hold_images_and_classes(pets):
    picture(pets / "birds" / "1.png")
    assert read_folder(pets, order=1).train.class_names == ("birds",)


def test_images_are_known_by_their_ending_and_hidden_files_left_out(tmp_path):
    for suffix in IMAGE_SUFFIXES:
        picture(tmp_path / "a" / f"1.{suffix}")
    picture(tmp_path / "a" / "2.jpg").rename(tmp_path / "a" / "2.JPG")
    picture(tmp_path / "a" / "._3.jpg")
    picture(tmp_path / ".cache" / "4.jpg")
    write(tmp_path / "a" / "notes.txt", "no image")
    write(tmp_path / "a" / "jpg", "no image")
    assert {name: len(paths) for name, paths in class_folders(tmp_path).items()} == {"a": len(IMAGE_SUFFIXES) + 1}


def test_links_are_followed_but_not_round_and_round(pets):
    (pets / "cat" / "up").symlink_to(pets, target_is_directory=True)
    (pets / "hound").symlink_to(pets / "dog", target_is_directory=True)
    assert sorted(class_folders(pets)) == sorted([*PETS, "hound"])


def test_images_beside_the_class_folders_are_told(pets):
    picture(pets / "cover.jpg")
    data = read_folder(pets, order=1)
    assert data.train.class_names == (".",)
    assert "class '.': 1" in data.notes[0]


@given(count=st.integers(2, 40), share=st.floats(0, 1, exclude_min=True, exclude_max=True), seed=st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_a_drawn_share_is_as_large_as_asked_and_the_same_each_time(count, share, seed):
    names = [f"{number:03}" for number in range(count)]
    training = _training_classes(names, share, seed, None, None)
    assert training == _training_classes(names, share, seed, None, None)
    assert training <= set(names)
    assert 0 < len(training) < count
    assert abs(len(training) - share * count) <= 1


def test_half_of_the_classes_is_drawn_unless_told_otherwise(tmp_path):
    make_folder(tmp_path, {f"{number:02}": 1 for number in range(20)})
    data, again, other = read_folder(tmp_path), read_folder(tmp_path), read_folder(tmp_path, seed=1)
    assert len(data.train.class_names) == len(data.test.class_names) == 10
    assert not set(data.train.class_names) & set(data.test.class_names)
    assert data.train.paths == again.train.paths
    assert data.train.paths != other.train.paths
    assert len(read_folder(tmp_path, train_share=0.8).train.class_names) == 16


def test_training_classes_are_taken_by_name_or_from_a_file(pets):
    listed = write(pets / "classes.txt", "dog", "", "birds/owl")
    for given_as in (["dog", "birds/owl"], listed, str(listed)):
        data = read_folder(pets, train_classes=given_as)
        assert data.train.class_names == ("birds/owl", "dog")
        assert data.test.class_names == ("birds/auk", "cat")


def test_two_folders_are_taken_as_they_are(tmp_path):
    make_folder(tmp_path, {"train/a": 2, "train/b": 1, "test/a": 1, "test/b": 1})
    data = read_folder(tmp_path, split="folders")
    assert data.closed
    assert data.train.class_names == data.test.class_names == ("a", "b")
    assert (len(data.train), len(data.test), data.notes) == (3, 2, ())
    make_folder(tmp_path, {"test/c": 1})
    assert read_folder(tmp_path, split="folders").notes == (
        "2 of 3 test classes are training classes too, the others are not",
    )


def test_two_folders_with_different_classes_are_no_closed_split(tmp_path):
    make_folder(tmp_path, {"train/a": 2, "test/b": 1})
    assert not read_folder(tmp_path, split="folders").closed


def test_folders_for_training_and_testing_are_not_taken_for_classes(tmp_path):
    make_folder(tmp_path, {"train/a": 2, "test/a": 1})
    with pytest.raises(InputError, match=r"holds train/ and test/.*split='folders'"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"split": "class"}, "split is 'class': 'classes' or 'folders' is needed"),
        ({"order": 4}, "order is 4: a whole number from 1 to 3"),
        ({"order": 0}, "order is 0"),
        ({"order": 2.0}, r"order is 2\.0"),
        ({"train_share": 1.0}, r"train_share is 1\.0: a number between 0 and 1"),
        ({"train_share": float("nan")}, "train_share is nan"),
        ({"train_share": "half"}, "train_share is 'half'"),
        ({"seed": -1}, "seed is -1"),
        ({"order": 2, "train_share": 0.5}, "train_share and order are given"),
        ({"split": "folders", "order": 2}, "order is given with split='folders'"),
        ({"split": "folders"}, r"train is missing: a folder of class folders is expected there"),
        ({"train_classes": ["dgo"]}, "train_classes has the class 'dgo', .*: did you mean 'dog'"),
        ({"train_classes": []}, "0 of the 4 classes"),
        ({"train_classes": list(PETS)}, "4 of the 4 classes"),
        ({"train_classes": "no/such.txt"}, r"no/such\.txt does not exist"),
    ],
)
def test_settings_that_do_not_fit_are_refused(pets, choice, message):
    with pytest.raises(InputError, match=message):
        read_folder(pets, **choice)


def test_a_folder_without_images_or_with_one_class_is_refused(tmp_path):
    write(tmp_path / "a" / "b.txt", "text")
    with pytest.raises(InputError, match="holds no images: folders with jpg"):
        read_folder(tmp_path)
    picture(tmp_path / "a" / "b.png")
    with pytest.raises(InputError, match="of the 1 classes"):
        read_folder(tmp_path)


def test_numbers_of_numpy_are_numbers(pets):
    assert len(read_folder(pets, order=np.int64(2)).train.class_names) == 2
