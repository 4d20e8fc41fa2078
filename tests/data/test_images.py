"""Sets of images: their parts keep the right labels, and files that cannot be decoded are found."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import make_folder, picture
from PIL import Image

from isomargin.core.errors import InputError
from isomargin.data.folder import read_folder
from isomargin.data.images import (
    DataSplit,
    ImageSet,
    check_listed,
    compare_counts,
    find_bad_images,
    images_of_files,
    without_bad,
)


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA", "LA", "CMYK", "1", "I;16"])
def test_images_of_every_mode_are_read_as_their_colours(tmp_path, mode):
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(ramp).convert("RGB")
    expected = np.asarray(image)
    if mode == "I;16":
        image = Image.fromarray(ramp.astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
        expected = np.asarray(image.convert("RGB"))  # a palette has fewer colours
    path = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    image.save(path)
    read = ImageSet(np.array([0]), ("a",), paths=(path,)).read(0)
    assert read.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(read), expected)


def test_images_of_floating_point_are_named_as_unreadable(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "image.tif")
    ((_, reason),) = find_bad_images(ImageSet(np.array([0]), ("a",), paths=(tmp_path / "image.tif",)))
    assert "floating point" in reason


def grey(classes, names):
    """Images whose pixels tell their class's name, by its place in the alphabet."""
    labels = np.array(classes, np.int64)
    values = np.array([ord(name[0]) for name in names], np.uint8)
    return ImageSet(labels, tuple(names), pixels=np.broadcast_to(values[labels][:, None, None], (len(labels), 2, 3)))


def names_in(images):
    return [images.class_names[label] for label in images.labels]


sets = st.lists(st.integers(0, 5), min_size=1, max_size=30).map(
    lambda classes: grey(np.unique(classes, return_inverse=True)[1], sorted("abcdef"[each] for each in set(classes)))
)


@given(images=sets, data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_selection_keeps_each_image_with_its_class(images, data):
    rows = data.draw(st.lists(st.integers(0, len(images) - 1), max_size=20))
    part = images.select(rows)
    assert len(part) == len(rows)
    assert names_in(part) == [names_in(images)[row] for row in rows]
    assert [chr(value) for value in part.pixels[:, 0, 0]] == names_in(part)
    assert list(part.class_names) == sorted(set(names_in(part)))
    assert sorted(set(part.labels)) == list(range(len(part.class_names)))


@given(images=sets, data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_images_of_some_classes_and_of_the_others_are_all(images, data):
    count = len(images.class_names)
    wanted = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    part, rest = images.of_classes(wanted), images.of_classes([each for each in range(count) if each not in wanted])
    assert set(part.class_names) == {images.class_names[number] for number in wanted}
    assert not set(part.class_names) & set(rest.class_names)
    assert sorted(names_in(part) + names_in(rest)) == sorted(names_in(images))
    assert names_in(part) == [name for name in names_in(images) if name in part.class_names]


@given(seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_a_selection_of_files_keeps_each_path_with_its_class(seed):
    rows = [(number, f"{number}/{each}.jpg") for number in (3, 20, 100) for each in range(3)]
    generator = np.random.default_rng(seed)
    images = images_of_files([rows[index] for index in generator.permutation(9)])
    assert [str(path) for path in images.paths] == [path for _, path in rows]
    part = images.select(generator.integers(0, 9, 5))
    assert [path.parent.name for path in part.paths] == names_in(part)


def test_a_mask_selects_as_rows_do():
    images = grey([0, 1, 2, 1], ["a", "b", "c"])
    assert names_in(images.select(images.labels == 1)) == names_in(images.select([1, 3])) == ["b", "b"]
    assert len(images.select([])) == 0


def test_images_are_read_as_they_are_kept(tmp_path):
    assert grey([0], ["a"]).read(0).mode == "L"
    colour = ImageSet(np.array([0]), ("a",), pixels=np.full((1, 2, 3, 3), 7, np.uint8))
    assert (colour.read(0).mode, colour.read(0).size) == ("RGB", (3, 2))
    for mode, name in (("L", "a.png"), ("P", "b.gif"), ("RGBA", "c.png"), ("CMYK", "d.jpg")):
        images = images_of_files([("a", str(picture(tmp_path / name, mode=mode)))])
        assert (images.read(0).mode, images.read(0).size) == ("RGB", (12, 12))


def test_an_unreadable_file_is_named_on_reading(tmp_path):
    (tmp_path / "a.jpg").write_text("no picture")
    with pytest.raises(InputError, match=r"a\.jpg could not be read"):
        images_of_files([("a", str(tmp_path / "a.jpg"))]).read(0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "none of them were given: exactly one of pixels, paths and vectors"),
        ({"pixels": np.zeros((2, 3, 3), np.uint8), "paths": (Path("a"), Path("b"))}, "pixels and paths were given"),
        ({"vectors": np.zeros((2, 3), np.float32), "paths": (Path("a"), Path("b"))}, "paths and vectors were given"),
        ({"vectors": np.zeros((3, 3), np.float32)}, "2 entries for 3 vectors"),
        ({"vectors": np.zeros((2, 3))}, "float64: .* of float32 is needed"),
        ({"vectors": np.zeros((2, 0), np.float32)}, r"shape \(2, 0\)"),
        ({"vectors": np.zeros(2, np.float32)}, r"shape \(2,\)"),
        ({"paths": (Path("a"),)}, "2 entries for 1 images"),
        ({"pixels": np.zeros((2, 3, 3))}, "float64: .* of uint8 is needed"),
        ({"pixels": np.zeros((2, 3, 3, 4), np.uint8)}, r"shape \(2, 3, 3, 4\)"),
        ({"class_names": ("a", "a")}, "two classes have the name 'a'"),
        ({"class_names": ("a",)}, "values from 0 to 1 for 1 classes"),
        ({"labels": np.array([0.0, 1.0])}, "float64: .* of int64"),
    ],
)
def test_fields_that_do_not_fit_are_refused(fields, message):
    with_pixels = {"pixels": np.zeros((2, 3, 3), np.uint8)} if "class_names" in fields or "labels" in fields else {}
    with pytest.raises(InputError, match=message):
        ImageSet(**({"labels": np.array([0, 1]), "class_names": ("a", "b")} | with_pixels | fields))


@pytest.mark.parametrize("classes", [[2], [-1], ["a"], [True, False], [0.0]])
def test_classes_that_are_not_there_are_refused(classes):
    with pytest.raises(InputError, match=r"there is no class|whole numbers are needed"):
        grey([0, 1], ["a", "b"]).of_classes(classes)


def test_a_split_needs_images_in_both_parts():
    images = grey([0, 1], ["a", "b"])
    with pytest.raises(InputError, match="pets: there are no test images"):
        DataSplit("pets", images, images.select([]), closed=True)


def test_counts_are_told_only_where_they_differ():
    data = DataSplit("pets", grey([0, 1, 1], ["a", "b"]), grey([0], ["c"]), closed=False)
    assert compare_counts("Pets", data, {"train": (3, 2), "test": (1, 1)}).notes == ()
    assert compare_counts("Pets", data, {"train": (3, 3), "test": (2, 1)}).notes == (
        "Pets: 3 training images in 2 classes, published are 3 in 3",
        "Pets: 1 test image in 1 class, published are 2 in 1",
    )


def spoil(root):
    """Spoil one file in each of the ways that downloads do; give their names."""
    jpeg = picture(root / "cat" / "cut.jpg", side=200)
    jpeg.write_bytes(jpeg.read_bytes()[: jpeg.stat().st_size // 2])
    png = picture(root / "dog" / "flipped.png", side=50)
    content = bytearray(png.read_bytes())
    content[len(content) // 2] ^= 255
    png.write_bytes(content)
    (root / "cat" / "page.jpg").write_text("<html>404</html>")
    (root / "dog" / "empty.png").touch()
    return {"cut.jpg", "page.jpg", "flipped.png", "empty.png"}


def test_bad_files_are_found_whatever_the_number_of_workers(tmp_path):
    make_folder(tmp_path, {"cat": 3, "dog": 80})
    bad = spoil(tmp_path)
    images = read_folder(tmp_path, order=1)
    for part in (images.train, images.test):
        found = find_bad_images(part, workers=1)
        assert found == find_bad_images(part, workers=5)
        assert [path for path, _ in found] == [path for path in part.paths if path.name in bad]
        assert len(found) == 2
    reasons = {path.name: reason for part in (images.train, images.test) for path, reason in find_bad_images(part)}
    assert "truncated" in reasons["cut.jpg"]
    assert "0 bytes" in reasons["empty.png"]
    assert reasons["page.jpg"] == "UnidentifiedImageError: not an image of a known format"
    assert all("\n" not in reason for reason in reasons.values())


def test_bad_files_are_left_out_and_told(tmp_path):
    make_folder(tmp_path, {"ant": 1, "cat": 3, "dog": 4})
    bad = spoil(tmp_path)
    (tmp_path / "ant" / "0.png").write_bytes(b"")
    data = without_bad(read_folder(tmp_path, order=2))
    assert data.train.class_names == ("cat",)
    assert (len(data.train), len(data.test)) == (3, 4)
    assert not {path.name for part in (data.train, data.test) for path in part.paths} & bad
    training, testing = data.notes
    assert training.startswith(
        "3 of 6 training images could not be read and were left out, and with them all of 1 class"
    )
    assert str(tmp_path / "ant" / "0.png") in training
    assert testing.startswith("2 of 6 test images could not be read and were left out; the first is")
    assert without_bad(data).notes == data.notes


def test_a_pipe_among_the_images_is_a_bad_file_and_is_not_waited_for(tmp_path, pipe):
    make_folder(tmp_path, {"cat": 2, "dog": 2})
    path = pipe("cat/pipe.jpg")
    images = read_folder(tmp_path, order=1).train
    assert find_bad_images(images) == [(path, "it is not a regular file")]
    with pytest.raises(InputError, match=r"pipe\.jpg is a pipe"):
        images.read(images.paths.index(path))


@pytest.mark.parametrize("workers", [0, True, 2.0])
def test_workers_must_be_a_count(workers):
    with pytest.raises(InputError, match="workers is"):
        find_bad_images(grey([0], ["a"]), workers)


def test_listed_images_must_be_there_once(tmp_path):
    paths = [str(picture(tmp_path / name)) for name in ("a/1.png", "b/1.png")]
    check_listed(paths, "list")
    with pytest.raises(InputError, match=r"^list lists 1 image of 3 that does not exist, the first is .*a/2\.png"):
        check_listed([*paths, f"{tmp_path}/a/2.png"], "list")
    with pytest.raises(InputError, match=r"^list lists 3 images of 4 that do not exist, the first is .*a/3\.png"):
        check_listed([paths[0], f"{tmp_path}/c/2.png", f"{tmp_path}/c/1.png", f"{tmp_path}/a/3.png"], "list")
    with pytest.raises(InputError, match=r"lists .*b/1\.png more than once"):
        check_listed([*paths, paths[1]], "list")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="this user may read everything")
def test_a_folder_that_may_not_be_read_is_told(tmp_path):
    path = picture(tmp_path / "a" / "1.png")
    path.parent.chmod(0)
    try:
        with pytest.raises(InputError, match="cannot be read by this user"):
            check_listed([str(path)], "list")
    finally:
        path.parent.chmod(0o755)


def test_an_image_of_many_pixels_is_no_bad_image(tmp_path):
    Image.new("1", (4000, 3000)).save(tmp_path / "a.png")
    assert find_bad_images(images_of_files([("a", str(tmp_path / "a.png"))])) == []
