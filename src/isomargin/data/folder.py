"""Any folder of images as a data set: every folder that holds images is a class.

The classes are divided into training and test classes at random, by name or by their order; or the two parts are two
folders. The layouts of the benchmarks are in `benchmarks`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.data.images import DataSplit, ImageSet, check_choice, check_there, images_of_files

__all__ = [
    "IMAGE_SUFFIXES",
    "TrainClasses",
    "class_folders",
    "divide_classes",
    "join_parts",
    "read_all_folders",
    "read_folder",
    "way_to_divide",
]

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "bmp", "webp", "gif", "tif", "tiff")
"""Files with these suffixes, in upper or lower case, are images."""

FolderSplit = Literal["classes", "folders"]

TrainClasses = Sequence[str] | str | os.PathLike[str]
"""Names of classes, or the path of a text file with one name per line."""


def read_folder(
    root: Path,
    split: FolderSplit = "classes",
    train_share: float | None = None,
    seed: int = 0,
    train_classes: TrainClasses | None = None,
    order: int | None = None,
) -> DataSplit:
    """Read a tree of class folders and divide it into training and test classes.

    Every folder that directly holds images is a class, named by its path from `root`; hidden files and folders are
    left out. With `split="classes"` no class is in both parts, and one of these settings chooses the training classes:

    train_share: the share of the classes, drawn at random with `seed`; half of them if nothing else is given.
    train_classes: their names, or the path of a text file with one name per line.
    order: how many, the first in sorted order.

    With `split="folders"` the parts are `root/train` and `root/test`, whose classes may be the same.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog", "owl"):
    ...         Path(folder, name).mkdir()
    ...         Path(folder, name, "1.jpg").touch()
    ...     data = read_folder(Path(folder), order=2)
    >>> data.train.class_names, data.test.class_names
    (('cat', 'dog'), ('owl',))
    """
    check_choice("split", split, get_args(FolderSplit))
    way = way_to_divide(train_share, train_classes, order)
    if split == "folders":
        if way is not None:
            raise InputError(
                f"{way} is given with split='folders', where the folders decide what is for training: leave it out"
            )
        return _two_folders(root)
    found = _some_class_folders(root)
    if {name.partition("/")[0] for name in found} == {"train", "test"} and train_classes is None:
        raise InputError(
            f"{root} holds train/ and test/, which may share classes: give split='folders', or give the root of one"
        )
    names = sorted(found)
    training = divide_classes(names, str(root), train_share, seed, train_classes, order)
    return DataSplit(
        "folder",
        _images(found, [name for name in names if name in training]),
        _images(found, [name for name in names if name not in training]),
        closed=False,
        notes=_stray(root, found),
    )


def read_all_folders(root: Path) -> ImageSet:
    """Read a tree of class folders as one set, sorted by the names of the folders and of the files in each.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("cat", "dog"):
    ...         Path(folder, name).mkdir()
    ...         Path(folder, name, "1.jpg").touch()
    ...     read_all_folders(Path(folder))
    ImageSet(2 images in 2 classes)
    """
    found = _some_class_folders(root)
    return _images(found, list(found))


def _some_class_folders(root: Path) -> dict[str, list[str]]:
    found = class_folders(root)
    if not found:
        raise InputError(f"{root} holds no images: folders with {', '.join(IMAGE_SUFFIXES)} files are expected")
    return found


def class_folders(root: Path) -> dict[str, list[str]]:
    """List the images of each class folder of a tree: their sorted paths, by the path of the folder from root.

    A class folder is one that directly holds images. Links are followed, but never back into a folder above. The path
    of the root is `.`.

    >>> class_folders(Path("no/such/folder"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/folder does not exist: a folder of class folders is needed
    """
    if not root.is_dir():
        wrong = "is a file" if root.exists() else "does not exist"
        raise InputError(f"{root} {wrong}: a folder of class folders is needed")
    found = {}
    waiting: list[tuple[str, str, frozenset[str]]] = [(str(root), ".", frozenset())]
    while waiting:
        folder, name, above = waiting.pop()
        real = os.path.realpath(folder)
        if real in above:
            continue
        images = []
        with reading(Path(folder)), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    inner = entry.name if name == "." else f"{name}/{entry.name}"
                    waiting.append((entry.path, inner, above | {real}))
                elif os.path.splitext(entry.name)[1].lower().removeprefix(".") in IMAGE_SUFFIXES:
                    images.append(entry.path)
        if images:
            found[name] = sorted(images)
    return found


def _two_folders(root: Path) -> DataSplit:
    parts = {}
    for part in ("train", "test"):
        check_there(root / part, "a folder of class folders")
        found = class_folders(root / part)
        if not found:
            raise InputError(f"{root / part} holds no images: class folders with images are expected")
        parts[part] = _images(found, list(found)), _stray(root / part, found)
    (train, train_notes), (test, test_notes) = parts["train"], parts["test"]
    return join_parts("folder", train, test, train_notes + test_notes)


def _images(found: dict[str, list[str]], names: list[str]) -> ImageSet:
    return images_of_files((name, path) for name in names for path in found[name])


def _stray(root: Path, found: dict[str, list[str]]) -> tuple[str, ...]:
    if "." not in found or len(found) == 1:
        return ()
    return (f"images directly in {root}, outside of class folders, are put into a class '.': {len(found['.'])}",)


def way_to_divide(train_share: float | None, train_classes: TrainClasses | None, order: int | None) -> str | None:
    """Return the name of the setting that chooses the training classes, if one is given.

    >>> way_to_divide(None, ["cat"], 2)
    Traceback (most recent call last):
    isomargin.InputError: train_classes and order are given: one of them chooses the training classes, give one
    """
    ways = {"train_share": train_share, "train_classes": train_classes, "order": order}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} are given: one of them chooses the training classes, give one")
    return given[0] if given else None


def divide_classes(
    names: list[str],
    source: str,
    train_share: float | None = None,
    seed: int = 0,
    train_classes: TrainClasses | None = None,
    order: int | None = None,
) -> set[str]:
    """Choose the training classes by the settings of `read_folder`; `names` are sorted.

    >>> sorted(divide_classes(["ant", "cat", "dog"], "pets", order=2))
    ['ant', 'cat']
    >>> divide_classes(["ant"], "pets")
    Traceback (most recent call last):
    isomargin.InputError: 0 of the 1 classes in pets are for training: at least one is needed for training, ...
    """
    training = _training_classes(names, train_share, seed, train_classes, order)
    if not 0 < len(training) < len(names):
        raise InputError(
            f"{len(training)} of the {len(names)} classes in {source} are for training: "
            "at least one is needed for training, and one for testing"
        )
    return training


def join_parts(name: str, train: ImageSet, test: ImageSet, notes: tuple[str, ...] = ()) -> DataSplit:
    """Make a data set of two given parts; it is closed if they share classes, with a note if they share only some.

    >>> cat, both = (ImageSet(np.arange(n), ("cat", "dog")[:n], vectors=np.eye(n, 2, dtype="f")) for n in (1, 2))
    >>> join_parts("pets", cat, both).notes
    ('1 of 2 test classes are training classes too, the others are not',)
    """
    shared = set(train.class_names) & set(test.class_names)
    if shared and set(train.class_names) != set(test.class_names):
        notes += (
            f"{len(shared)} of {len(test.class_names)} test classes are training classes too, the others are not",
        )
    return DataSplit(name, train, test, closed=bool(shared), notes=notes)


def _training_classes(
    names: list[str], train_share: float | None, seed: int, train_classes: TrainClasses | None, order: int | None
) -> set[str]:
    if train_classes is not None:
        return _named_classes(names, train_classes)
    if order is not None:
        if not _whole(order) or not 0 < order < len(names):
            raise InputError(
                f"order is {order!r}: a whole number from 1 to {len(names) - 1} is needed, one class fewer "
                "than there are"
            )
        return set(names[:order])
    share = 0.5 if train_share is None else train_share
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < 1:
        raise InputError(
            f"train_share is {train_share!r}: a number between 0 and 1 is needed; to train on all classes set "
            "all_classes=true in the recipe"
        )
    if not _whole(seed) or seed < 0:
        raise InputError(f"seed is {seed!r}: a whole number of at least 0 is needed")
    count = min(max(round(share * len(names)), 1), len(names) - 1)
    return {names[index] for index in np.random.default_rng(seed).permutation(len(names))[:count]}


def _named_classes(names: list[str], wanted: TrainClasses) -> set[str]:
    source = "train_classes"
    if isinstance(wanted, str | os.PathLike):
        file = Path(wanted)
        check_file(file)
        with reading(file):
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        source, wanted = str(file), [line.strip() for line in lines if line.strip()]
    if not isinstance(wanted, Iterable):
        raise InputError(f"train_classes is {wanted!r}: a list of names, or the path of a file of them, is needed")
    # YAML reads a name such as 7 as a number.
    plain = [str(name) if _whole(name) else name for name in wanted]
    known = set(names)
    for name in plain:
        if not isinstance(name, str) or name not in known:
            # Not `checks.nearest`: names may differ in case only, and there may be thousands, too many to list.
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names[:5])} and others"
            raise InputError(f"{source} has the class {name!r}, and there is no such class: {hint}")
    return set(plain)


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
