"""Data sets of small grey images in memory: Omniglot, MNIST and the rendered letters of `glyphs`.

Images are 28 x 28, white on black. Omniglot and MNIST are read from unpacked files; nothing is downloaded.
"""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.data.benchmarks import ClassSplit
from isomargin.data.folder import class_folders
from isomargin.data.glyphs import load_glyphs
from isomargin.data.images import DataSplit, ImageSet, check_choice, check_there, compare_counts

__all__ = ["read_glyphs", "read_mnist", "read_omniglot"]

_SIDE = 28

_OMNIGLOT = {"train": (19_280, 964), "test": (13_180, 659)}
_MNIST: dict[ClassSplit, dict[str, tuple[int, int]]] = {
    "closed": {"train": (60_000, 10), "test": (10_000, 10)},
    "open": {"train": (35_735, 5), "test": (34_265, 5)},
}


def read_omniglot(root: Path, rotations: bool = False) -> DataSplit:
    """Read Omniglot: the background alphabets (964 characters) for training, the evaluation ones (659) for testing.

    `root` is the folder with `images_background/` and `images_evaluation/`, whose drawings (105 x 105, black on white)
    are resized to 28 x 28; or a file `omniglot28.npz`, or the folder with it: `images` uint8 (n, 28, 28), `label` (n,)
    with indices into `class_name` (classes,), and `background` bool (classes,). The file is preferred to the folders.
    Classes are named alphabet/character.

    With `rotations` the training drawings rotated by 90, 180 and 270 degrees are further classes, as is common.

    >>> read_omniglot(Path("."))
    Traceback (most recent call last):
    isomargin.InputError: images_background is missing: the folder with Omniglot's training alphabets (or a ...
    """
    packed = root if root.is_file() else root / "omniglot28.npz"
    if packed.is_file():
        data = _packed_omniglot(packed)
    else:
        base = root / "omniglot-py" if (root / "omniglot-py").is_dir() else root
        data = DataSplit(
            "omniglot",
            _drawings(base / "images_background", "training"),
            _drawings(base / "images_evaluation", "test"),
            closed=False,
        )
    data = compare_counts("Omniglot", data, _OMNIGLOT)
    return replace(data, train=_with_rotations(data.train)) if checks.truth(rotations, "rotations") else data


def read_mnist(root: Path, split: ClassSplit = "closed") -> DataSplit:
    """Read MNIST from its four idx files, with or without `.gz`, in `root` or `root/MNIST/raw`.

    "closed" keeps the official training and test images; "open" merges them, trains on the digits 0 to 4 and tests on 5
    to 9.

    >>> read_mnist(Path("."))
    Traceback (most recent call last):
    isomargin.InputError: train-images-idx3-ubyte is missing: ...
    """
    check_choice("split", split, get_args(ClassSplit))
    parts = [(_idx(root, f"{part}-images", 3), _idx(root, f"{part}-labels", 1)) for part in ("train", "t10k")]
    for (images, digits), part in zip(parts, ("training", "test"), strict=True):
        if len(images) != len(digits):
            raise InputError(
                f"MNIST has {len(images)} {part} images and {len(digits)} labels: one label each is needed"
            )
    if split == "open":
        images, digits = (np.concatenate(both) for both in zip(*parts, strict=True))
        parts = [(images[which], digits[which]) for which in (digits < 5, digits >= 5)]
    train, test = (
        _by_class(images, digits.astype(np.int64), [str(digit) for digit in range(256)]) for images, digits in parts
    )
    return compare_counts(f"MNIST, {split}", DataSplit("mnist", train, test, closed=split == "closed"), _MNIST[split])


def read_glyphs(draws: int = 4, seed: int = 0) -> DataSplit:
    """Render the letters of `load_glyphs`: one half for training, the other for testing.

    >>> data = read_glyphs(draws=1)
    >>> data.train.pixels.shape[1:], data.closed
    ((28, 28), False)
    """
    train, test = (load_glyphs("train", draws=draws, seed=seed), load_glyphs("test", draws=draws, seed=seed))
    return DataSplit(
        "glyphs",
        ImageSet(train.labels, train.class_names, pixels=train.images),
        ImageSet(test.labels, test.class_names, pixels=test.images),
        closed=False,
    )


def _by_class(pixels: NDArray[np.uint8], classes: NDArray[np.int64], names: list[str]) -> ImageSet:
    """Order images by class; `classes` (n,) are indices into `names`, which are sorted."""
    everything = ImageSet(classes, tuple(names), pixels=pixels)
    return everything.select(np.argsort(classes, kind="stable"))


# Omniglot


def _with_rotations(images: ImageSet) -> ImageSet:
    """Add the images rotated by 90, 180 and 270 degrees, as further classes."""
    assert images.pixels is not None
    turned = [f"{name} {90 * turn}°" for turn in range(1, 4) for name in images.class_names]
    pixels = [np.rot90(images.pixels, turn, axes=(1, 2)) for turn in range(4)]
    labels = [images.labels + turn * len(images.class_names) for turn in range(4)]
    return ImageSet(np.concatenate(labels), (*images.class_names, *turned), pixels=np.concatenate(pixels))


def _packed_omniglot(file: Path) -> DataSplit:
    check_file(file)
    with reading(file):
        with np.load(file, allow_pickle=False) as arrays:
            missing = {"images", "label", "class_name", "background"} - set(arrays.files)
            if missing:
                raise InputError(
                    f"{file} has no array {min(missing)!r}: images, label, class_name and background are expected"
                )
            images, labels, names = arrays["images"], arrays["label"].astype(np.int64), arrays["class_name"]
            background = arrays["background"].astype(bool)
        if images.dtype != np.uint8 or images.shape[1:] != (_SIDE, _SIDE) or labels.shape != images.shape[:1]:
            raise InputError(
                f"{file} has images of shape {images.shape} and {images.dtype} with labels of shape {labels.shape}: "
                f"(n, {_SIDE}, {_SIDE}) of uint8 with (n,) are expected"
            )
        if names.shape != background.shape or (len(labels) and not 0 <= labels.min() <= labels.max() < len(names)):
            raise InputError(
                f"{file} has labels up to {labels.max(initial=0)}, {len(names)} names and {len(background)} marks of "
                "the background: a name and a mark for each class are expected"
            )
    order = np.argsort(names)  # (classes,)
    place = np.argsort(order)  # of each class in the sorted order
    sorted_names = [str(name) for name in names[order]]
    train, test = (
        _by_class(images[which], place[labels[which]], sorted_names)
        for which in (background[labels], ~background[labels])
    )
    return DataSplit("omniglot", train, test, closed=False)


def _drawings(folder: Path, part: str) -> ImageSet:
    check_there(folder, f"the folder with Omniglot's {part} alphabets (or a file omniglot28.npz beside it)")
    found = class_folders(folder)
    wrong = next((name for name in found if name.count("/") != 1), None)
    if not found or wrong is not None:
        content = "no images" if wrong is None else f"images in {wrong!r}"
        raise InputError(f"{folder} has {content}: folders alphabet/character with drawings are expected")
    names = sorted(found)
    paths = [path for name in names for path in found[name]]
    with ThreadPoolExecutor(4) as pool:
        pixels = np.array(list(pool.map(_small_white_on_black, paths)), np.uint8)
    labels = np.repeat(np.arange(len(names), dtype=np.int64), [len(found[name]) for name in names])
    return ImageSet(labels, tuple(names), pixels=pixels)


def _small_white_on_black(path: str) -> NDArray[np.uint8]:
    check_file(Path(path))
    with reading(Path(path)), Image.open(path) as image:
        # Averaging areas keeps the ink of a thin stroke, without ringing beside it.
        small = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return 255 - np.asarray(small)


# MNIST


def _idx(root: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes: two zeros, the type (8), the number of dimensions, their lengths, the bytes."""
    spellings = [f"{name}{mark}idx{dimensions}-ubyte{end}" for end in ("", ".gz") for mark in ("-", ".")]
    places = [folder / spelling for folder in (root, root / "MNIST" / "raw") for spelling in spellings]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise InputError(
            f"{places[0]} is missing: MNIST's file of {name.partition('-')[2]} is expected there "
            f"or in {root / 'MNIST' / 'raw'}, with or without .gz"
        )
    check_file(file)
    with reading(file):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise InputError(
                f"{file} begins with {content[:4].hex(' ')}: 00 00 08 0{dimensions} of an idx file is expected"
            )
        start = 4 + 4 * dimensions
        shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
        if len(content) - start != np.prod(shape, dtype=np.int64):
            raise InputError(
                f"{file} has {len(content) - start:,} bytes for the shape {tuple(shape)}: it is cut short, copy it "
                "again"
            )
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
