"""Omniglot, MNIST and the rendered letters: exact pixels, classes and parts, from every file they come in."""

from pathlib import Path

import numpy as np
import pytest
from layouts import MNIST, idx, make_mnist, make_omniglot, picture

from isomargin.core.errors import InputError
from isomargin.data.glyphs import load_glyphs
from isomargin.data.omniglot_mnist import read_glyphs, read_mnist, read_omniglot

OMNIGLOT = Path(__file__).parents[3] / "shared" / "data" / "omniglot28.npz"


def classes(images):
    return [images.class_names[label] for label in images.labels]


def test_omniglot_folders(tmp_path):
    make_omniglot(tmp_path)
    data = read_omniglot(tmp_path)
    assert classes(data.train) == ["Greek/character01"] * 2 + ["Greek/character02"] * 2
    assert classes(data.test) == ["Tengwar/character01"] * 2
    assert (data.name, data.closed) == ("omniglot", False)
    assert data.notes == (
        "Omniglot: 4 training images in 2 classes, published are 19,280 in 964",
        "Omniglot: 2 test images in 1 class, published are 13,180 in 659",
    )


def test_omniglot_drawings_become_small_and_white_on_black(tmp_path):
    make_omniglot(tmp_path / "omniglot-py")
    pixels = read_omniglot(tmp_path).train.pixels
    assert (pixels.shape, pixels.dtype) == ((4, 28, 28), np.uint8)
    # The bar is 15 of 105 pixels wide, from the 45th on: 4 of 28, from the 12th on.
    assert (pixels[:, :, 12:16] == 255).all()
    assert (pixels[:, :, :12] == 0).all()
    assert (pixels[:, :, 16:] == 0).all()


def packed(path, **other):
    """Three classes, out of order, one of them for testing; every image's pixels are its row."""
    arrays = {
        "images": np.broadcast_to(np.arange(6, dtype=np.uint8)[:, None, None], (6, 28, 28)),
        "label": np.array([2, 0, 1, 0, 2, 1], np.int16),
        "drawer": np.array([1, 1, 1, 2, 2, 2], np.uint8),
        "class_name": np.array(["Tengwar/character01", "Angelic/character01", "Greek/character01"]),
        "background": np.array([True, False, True]),
    }
    arrays = {name: value for name, value in (arrays | other).items() if value is not None}
    np.savez(path, **arrays)
    return path


def test_omniglot_in_one_file(tmp_path):
    file = packed(tmp_path / "omniglot28.npz")
    for root in (file, tmp_path):
        data = read_omniglot(root)
        assert data.train.class_names == ("Greek/character01", "Tengwar/character01")
        assert data.train.labels.tolist() == [0, 0, 1, 1]
        assert data.train.pixels[:, 5, 5].tolist() == [0, 4, 1, 3]
        assert classes(data.test) == ["Angelic/character01"] * 2
        assert data.test.pixels[:, 5, 5].tolist() == [2, 5]


def test_omniglot_turned_has_four_times_the_training_classes_and_the_same_test_classes(tmp_path):
    make_omniglot(tmp_path)
    plain, turned = read_omniglot(tmp_path), read_omniglot(tmp_path, rotations=True)
    assert len(turned.train.class_names) == 4 * len(plain.train.class_names)
    np.testing.assert_array_equal(turned.test.pixels, plain.test.pixels)
    count = len(plain.train)
    for turn in range(4):
        part = turned.train.pixels[turn * count : (turn + 1) * count]
        np.testing.assert_array_equal(part, [np.rot90(image, turn) for image in plain.train.pixels])
        names = [turned.train.class_names[label] for label in turned.train.labels[turn * count : (turn + 1) * count]]
        suffix = f" {90 * turn}°" if turn else ""
        assert names == [plain.train.class_names[label] + suffix for label in plain.train.labels]
    with pytest.raises(InputError, match="rotations is 'yes'"):
        read_omniglot(tmp_path, rotations="yes")


@pytest.mark.skipif(not OMNIGLOT.exists(), reason=f"Omniglot is not at {OMNIGLOT.name} in shared/data")
def test_the_whole_of_omniglot():
    data = read_omniglot(OMNIGLOT)
    assert data.notes == ()
    for images, count in ((data.train, 964), (data.test, 659)):
        assert len(images.class_names) == count
        assert list(images.class_names) == sorted(images.class_names)
        assert set(np.bincount(images.labels)) == {20}
    with np.load(OMNIGLOT) as arrays:
        row = int(np.flatnonzero(arrays["class_name"][arrays["label"]] == data.test.class_names[7])[3])
        assert (data.test.pixels[7 * 20 + 3] == arrays["images"][row]).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"background": None}, "has no array 'background'"),
        ({"images": np.zeros((6, 14, 28), np.uint8)}, r"images of shape \(6, 14, 28\)"),
        ({"images": np.zeros((6, 28, 28))}, "float64"),
        ({"label": np.zeros(5, np.int16)}, r"labels of shape \(5,\)"),
        ({"label": np.full(6, 3)}, "labels up to 3, 3 names"),
        ({"background": np.array([True, False])}, "2 marks"),
        ({"background": np.array([True, True, True])}, "there are no test images"),
    ],
)
def test_a_file_that_is_not_omniglot_is_told(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        read_omniglot(packed(tmp_path / "omniglot28.npz", **arrays))


def test_a_damaged_file_is_told(tmp_path):
    file = packed(tmp_path / "omniglot28.npz")
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(InputError, match=r"omniglot28\.npz could not be read"):
        read_omniglot(tmp_path)


def test_omniglot_folders_that_do_not_fit_are_told(tmp_path):
    with pytest.raises(InputError, match=r"images_background is missing: .*omniglot28\.npz"):
        read_omniglot(tmp_path)
    make_omniglot(tmp_path)
    (tmp_path / "images_evaluation").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="images_evaluation is missing"):
        read_omniglot(tmp_path)
    (tmp_path / "images_evaluation").mkdir()
    with pytest.raises(InputError, match="has no images: folders alphabet/character"):
        read_omniglot(tmp_path)
    picture(tmp_path / "images_background" / "Greek" / "1.png")
    with pytest.raises(InputError, match="has images in 'Greek'"):
        read_omniglot(tmp_path)


def test_a_damaged_drawing_is_named(tmp_path):
    make_omniglot(tmp_path)
    (tmp_path / "images_background" / "Greek" / "character02" / "0001_02.png").write_text("no image")
    with pytest.raises(InputError, match=r"character02/0001_02\.png could not be read"):
        read_omniglot(tmp_path)


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("inside", [".", "MNIST/raw"])
def test_mnist(tmp_path, mark, zipped, inside):
    make_mnist(tmp_path / inside, mark, zipped)
    data = read_mnist(tmp_path)
    assert classes(data.train) == ["0", "1", "4", "7", "7"]
    assert data.train.pixels[:, 3, 3].tolist() == [101, 104, 103, 100, 102]
    assert classes(data.test) == ["0", "1", "9"]
    assert data.test.pixels[:, 3, 3].tolist() == [202, 200, 201]
    assert data.closed
    assert data.notes[0] == "MNIST, closed: 5 training images in 4 classes, published are 60,000 in 10"


def test_mnist_open_takes_both_files_together(tmp_path):
    make_mnist(tmp_path)
    data = read_mnist(tmp_path, split="open")
    assert classes(data.train) == ["0", "0", "1", "1", "4"]
    assert data.train.pixels[:, 3, 3].tolist() == [101, 202, 104, 200, 103]
    assert classes(data.test) == ["7", "7", "9"]
    assert not data.closed
    assert data.notes[1] == "MNIST, open: 3 test images in 2 classes, published are 34,265 in 5"


def test_mnist_files_that_do_not_fit_are_told(tmp_path):
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte is missing: MNIST's file of images"):
        read_mnist(tmp_path)
    with pytest.raises(InputError, match="split is 'half'"):
        read_mnist(tmp_path, split="half")
    make_mnist(tmp_path)
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    content = labels.read_bytes()
    labels.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"2 bytes for the shape \(3,\): it is cut short"):
        read_mnist(tmp_path)
    labels.write_bytes(idx(np.zeros((3, 1))))
    with pytest.raises(InputError, match="begins with 00 00 08 02: 00 00 08 01"):
        read_mnist(tmp_path)
    labels.write_bytes(idx(np.array(MNIST["t10k"] + [1])))
    with pytest.raises(InputError, match="3 test images and 4 labels"):
        read_mnist(tmp_path)
    labels.rename(tmp_path / "t10k-labels-idx1-ubyte.gz")
    with pytest.raises(InputError, match=r"ubyte\.gz could not be read"):
        read_mnist(tmp_path)


def test_glyphs_are_the_rendered_letters():
    data = read_glyphs(draws=1, seed=3)
    for images, split in ((data.train, "train"), (data.test, "test")):
        letters = load_glyphs(split, draws=1, seed=3)
        assert (images.pixels == letters.images).all()
        assert (images.labels == letters.labels).all()
        assert images.class_names == letters.class_names
    assert not data.closed
