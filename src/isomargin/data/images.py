"""What every reader of a data set returns: items with their classes, in memory or as files, for training and testing.

The items are images, or vectors to train a head on, such as the features of a frozen network.

This module also handles what all data sets have in common: image files that cannot be decoded, listed images that are
not on the disk, and numbers of images that differ from the published ones. The other modules know the layouts.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading

__all__ = [
    "DataSplit",
    "ImageSet",
    "check_choice",
    "check_listed",
    "check_there",
    "compare_counts",
    "find_bad_images",
    "images_of_files",
    "joined",
    "without_bad",
]

ClassId = TypeVar("ClassId", int, str)

_PATHS_A_TASK = 64  # a task of some images keeps the queue short, whatever the number of images


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Items with their classes. It has exactly one of pixels, paths and vectors.

    >>> images = ImageSet(np.array([0, 0, 1]), ("cat", "dog"), pixels=np.zeros((3, 28, 28), np.uint8))
    >>> len(images), images.read(2).size
    (3, (28, 28))
    >>> images.select([2]).class_names, images.of_classes([0]).labels
    (('dog',), array([0, 0]))
    """

    labels: NDArray[np.int64]
    """(n,), the class of each item as an index into `class_names`."""
    class_names: tuple[str, ...]
    """(classes,), all different, in the order of the sorted class ids."""
    pixels: NDArray[np.uint8] | None = None
    """(n, h, w) grey or (n, h, w, 3) red, green, blue."""
    paths: tuple[Path, ...] | None = None
    """(n,), image files."""
    vectors: NDArray[np.float32] | None = None
    """(n, d), in place of images."""
    ids: NDArray[Any] | None = None
    """(n,) integers or text that name the rows, where the source has such names other than paths of files."""
    class_labels: NDArray[Any] | None = None
    """(classes,) the labels of the classes in the source, where these are numbers and not the names."""

    def __post_init__(self) -> None:
        kinds = {"pixels": self.pixels, "paths": self.paths, "vectors": self.vectors}
        given = {name: rows for name, rows in kinds.items() if rows is not None}
        if len(given) != 1:
            present = " and ".join(given) or "none of them"
            raise InputError(f"{present} were given: exactly one of pixels, paths and vectors is needed")
        if self.labels.ndim != 1 or self.labels.dtype != np.int64:
            raise InputError(
                f"labels has shape {self.labels.shape} and {self.labels.dtype}: (images,) of int64 is needed"
            )
        if self.pixels is not None:
            shape, kind = self.pixels.shape, self.pixels.dtype
            if kind != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] == 3)):
                raise InputError(f"pixels has shape {shape} and {kind}: (n, h, w) or (n, h, w, 3) of uint8 is needed")
        if self.vectors is not None:
            shape = self.vectors.shape
            if self.vectors.dtype != np.float32 or len(shape) != 2 or not shape[1]:
                raise InputError(
                    f"vectors has shape {shape} and {self.vectors.dtype}: (n, d) of float32 is needed, d above 0"
                )
        (rows,) = given.values()
        if len(rows) != len(self.labels):
            raise InputError(
                f"labels has {len(self.labels)} entries for {len(rows)} {self._noun}s: one label each is needed"
            )
        if self.ids is not None and len(self.ids) != len(self.labels):
            raise InputError(f"ids has {len(self.ids)} entries for {len(self.labels)} rows: one each is needed")
        if self.class_labels is not None and len(self.class_labels) != len(self.class_names):
            raise InputError(
                f"class_labels has {len(self.class_labels)} entries for {len(self.class_names)} classes: one each is "
                "needed"
            )
        if len(set(self.class_names)) != len(self.class_names):
            twice = next(name for name in self.class_names if self.class_names.count(name) > 1)
            raise InputError(f"two classes have the name {twice!r}: every class needs its own name")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise InputError(
                f"labels has values from {self.labels.min()} to {self.labels.max()} for {len(self.class_names)} "
                "classes: indices into class_names are needed"
            )

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageSet({_counted(len(self), self._noun)} in {_counted(len(self.class_names), 'class')})"

    @property
    def _noun(self) -> str:
        return "image" if self.vectors is None else "vector"

    def select(self, rows: ArrayLike) -> ImageSet:
        """Return the items of these rows (indices or a mask), with the classes that occur in them, numbered from 0."""
        which = np.asarray(rows)
        which = np.arange(len(self))[which if which.size else which.astype(np.int64)]  # (rows,)
        kept, labels = np.unique(self.labels[which], return_inverse=True)
        return ImageSet(
            labels=labels.astype(np.int64),
            class_names=tuple(self.class_names[number] for number in kept),
            pixels=None if self.pixels is None else self.pixels[which],
            paths=None if self.paths is None else tuple(self.paths[row] for row in which),
            vectors=None if self.vectors is None else self.vectors[which],
            ids=None if self.ids is None else self.ids[which],
            class_labels=None if self.class_labels is None else self.class_labels[kept],
        )

    def of_classes(self, classes: ArrayLike) -> ImageSet:
        """Return the items of these classes (indices into `class_names`), in their order."""
        numbers = np.asarray(classes)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise InputError(f"classes has {numbers.dtype}: whole numbers are needed, indices into class_names")
        unknown = [number for number in numbers.ravel().tolist() if number not in range(len(self.class_names))]
        if unknown:
            raise InputError(
                f"there is no class {unknown[0]!r}: numbers from 0 to {len(self.class_names) - 1} are needed"
            )
        return self.select(np.isin(self.labels, numbers))

    def read(self, row: int) -> Image.Image:
        """Read one image: RGB for a file, for pixels as they are (mode "L" or "RGB")."""
        if self.pixels is not None:
            return Image.fromarray(self.pixels[row])
        if self.paths is None:
            raise InputError(f"row {row} is a vector and not an image: take vectors[{row}]")
        path = self.paths[row]
        check_file(path)
        with reading(path), Image.open(path) as image:
            return as_rgb(image)


@dataclass(frozen=True, eq=False)
class DataSplit:
    """A data set in two parts, one for training and one for testing.

    >>> part = ImageSet(np.array([0]), ("cat",), pixels=np.zeros((1, 28, 28), np.uint8))
    >>> DataSplit("pets", part, part, closed=False)
    Traceback (most recent call last):
    isomargin.InputError: pets: training and test images share 1 class, the first is 'cat': classes must be ...
    """

    name: str
    """Its name in `load_data`."""
    train: ImageSet
    """The training items."""
    test: ImageSet
    """The test items; the labels of each part are indices into its own `class_names`."""
    closed: bool
    """Whether training and test items share classes."""
    notes: tuple[str, ...] = ()
    """Sentences to show with the results: numbers that differ from the published ones, images that were left out."""

    def __post_init__(self) -> None:
        for part, images in (("training", self.train), ("test", self.test)):
            if not len(images):
                raise InputError(f"{self.name}: there are no {part} images, and at least one is needed")
        shared = sorted(set(self.train.class_names) & set(self.test.class_names))
        if shared and not self.closed:
            raise InputError(
                f"{self.name}: training and test images share {_counted(len(shared), 'class')}, the first is "
                f"{shared[0]!r}: classes must be either for training or for testing"
            )


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB; grey images of more than 8 bits are scaled, where Pillow would clip.

    >>> as_rgb(Image.fromarray(np.array([[0, 65535]], np.uint16))).getpixel((1, 0))
    (255, 255, 255)
    """
    if image.mode == "F":
        raise InputError("it has pixels of floating point, whose range is not known: save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        image = Image.fromarray((grey // 257 if grey.max(initial=0) > 255 else grey).astype(np.uint8))
    return image.convert("RGB")


def joined(first: ImageSet, second: ImageSet) -> ImageSet:
    """Concatenate two sets of the same kind; classes of the same name become one, in sorted order.

    >>> parts = [ImageSet(np.array([0]), (name,), pixels=np.zeros((1, 28, 28), np.uint8)) for name in "ba"]
    >>> joined(*parts).class_names, joined(*parts).labels
    (('a', 'b'), array([1, 0]))
    """
    names = sorted({*first.class_names, *second.class_names})
    number = {name: index for index, name in enumerate(names)}
    labels = [number[part.class_names[label]] for part in (first, second) for label in part.labels]
    kept: dict[str, Any] = {}
    if first.paths is not None and second.paths is not None:
        kept["paths"] = (*first.paths, *second.paths)
    elif first.pixels is not None and second.pixels is not None:
        kept["pixels"] = np.concatenate([first.pixels, second.pixels])
    elif first.vectors is not None and second.vectors is not None:
        kept["vectors"] = np.concatenate([first.vectors, second.vectors])
    if first.ids is not None and second.ids is not None:
        kept["ids"] = np.concatenate([first.ids, second.ids])
    if first.class_labels is not None and second.class_labels is not None:
        by_name = {
            name: label
            for part in (first, second)
            for name, label in zip(part.class_names, part.class_labels, strict=True)  # type: ignore[arg-type]
        }
        kept["class_labels"] = np.array([by_name[name] for name in names])
    return ImageSet(np.array(labels, np.int64), tuple(names), **kept)


def find_bad_images(
    images: ImageSet, workers: int = 8, report: Callable[[float], None] | None = None
) -> list[tuple[Path, str]]:
    """Decode every file and list those that cannot be decoded, with the reason, in the order of the images.

    Files are read to the end, with `workers` threads: a good header does not mean that the data are complete. `report`
    is called with the share that is done. Images in memory and vectors are never bad.

    >>> find_bad_images(ImageSet(np.array([0]), ("cat",), paths=(Path("no/such/image.jpg"),)))
    [(PosixPath('no/such/image.jpg'), 'FileNotFoundError: No such file or directory')]
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers is {workers!r}: a whole number of at least 1 is needed")
    paths = images.paths or ()
    tasks = [paths[start : start + _PATHS_A_TASK] for start in range(0, len(paths), _PATHS_A_TASK)]
    bad: list[tuple[Path, str]] = []
    with ThreadPoolExecutor(workers) as pool:
        for number, found in enumerate(pool.map(lambda task: [(path, _why_bad(path)) for path in task], tasks), 1):
            bad += [(path, reason) for path, reason in found if reason is not None]
            if report is not None:
                report(number / len(tasks))
    return bad


def _why_bad(path: Path) -> str | None:
    try:
        if path.exists() and not path.is_file():
            return "it is not a regular file"
        content = path.read_bytes()
        if not content:
            return "it is empty (0 bytes)"
        with Image.open(BytesIO(content)) as image:
            image.verify()  # the checksums of a PNG; the image cannot be used afterwards
        with Image.open(BytesIO(content)) as image:
            as_rgb(image)
    except OSError as error:
        # Pillow's message for a file that is not an image ends with the address of the bytes in memory.
        text = "not an image of a known format" if "cannot identify" in str(error) else error.strerror or str(error)
        return f"{type(error).__name__}: {text}"
    except Exception as error:  # decoders of damaged files fail in many ways
        return f"{type(error).__name__}: {error}"
    return None


def without_bad(
    data: DataSplit,
    workers: int = 8,
    report: Callable[[float], None] | None = None,
    bad: Sequence[tuple[Path, str]] | None = None,
) -> DataSplit:
    """Leave out the files that `find_bad_images` finds in either part; `notes` say how many.

    If another process has found them already, `bad` lists them, and no file is read.

    >>> from isomargin.data.registry import load_data
    >>> data = load_data("glyphs", draws=1)
    >>> without_bad(data).notes
    ()
    """
    notes = list(data.notes)
    reasons = None if bad is None else dict(bad)
    parts = {}
    for part, images in (("train", data.train), ("test", data.test)):
        if reasons is None:
            found = find_bad_images(images, workers, report)
        else:
            found = [(path, reasons[path]) for path in images.paths or () if path in reasons]
        parts[part] = images
        if not found:
            continue
        left_out = {path for path, _ in found}
        assert images.paths is not None
        kept = parts[part] = images.select([row for row, path in enumerate(images.paths) if path not in left_out])
        lost = len(images.class_names) - len(kept.class_names)
        notes.append(
            f"{len(found):,} of {_counted(len(images), f'{_WORDS[part]} image')} could not be read and "
            f"{'was' if len(found) == 1 else 'were'} left out"
            + (f", and with them all of {_counted(lost, 'class')}" if lost else "")
            + f"; the first is {found[0][0]} ({found[0][1]})"
        )
    return replace(data, train=parts["train"], test=parts["test"], notes=tuple(notes))


def images_of_files(rows: Iterable[tuple[ClassId, str]], names: Mapping[ClassId, str] | None = None) -> ImageSet:
    """Make a set from pairs of class id and path, ordered by class and path.

    `names` gives the names of the classes where these are not the ids.

    >>> images = images_of_files([(10, "b.jpg"), (9, "c.jpg"), (9, "a.jpg")], {9: "nine", 10: "ten"})
    >>> images.class_names, images.labels.tolist(), [path.name for path in images.paths]
    (('nine', 'ten'), [0, 0, 1], ['a.jpg', 'c.jpg', 'b.jpg'])
    """
    ordered = sorted(rows)
    number = {class_id: index for index, class_id in enumerate(dict.fromkeys(class_id for class_id, _ in ordered))}
    return ImageSet(
        labels=np.array([number[class_id] for class_id, _ in ordered], np.int64),
        class_names=tuple(str(class_id) if names is None else names[class_id] for class_id in number),
        paths=tuple(Path(path) for _, path in ordered),
    )


def check_listed(paths: Sequence[str], source: str) -> None:
    """Raise `InputError` unless every listed image is on the disk, and listed once.

    Every folder is listed once, which is much faster than checking each of some hundred thousand files.

    >>> check_listed(["no/such/b.jpg", "no/such/a.jpg"], "train.txt")
    Traceback (most recent call last):
    isomargin.InputError: train.txt lists 2 images of 2 that do not exist, the first is no/such/a.jpg: ...
    """
    files: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        files[folder].append(name)
    # Names that are not in the listing are checked: file systems may ignore case, or store accents differently.
    missing = [
        path
        for folder, names in files.items()
        for path in [os.path.join(folder, name) for name in set(names) - _names_in(folder)]
        if not os.path.exists(path)
    ]
    if missing:
        raise InputError(
            f"{source} lists {_counted(len(missing), 'image')} of {len(paths):,} that "
            f"{'does' if len(missing) == 1 else 'do'} not exist, the first is {min(missing)}: unpack the images again"
        )
    if len(set(paths)) < len(paths):
        ordered = sorted(paths)
        twice = next(path for path, following in pairwise(ordered) if path == following)
        raise InputError(f"{source} lists {twice} more than once: each image must be listed once")


def _names_in(folder: str) -> set[str]:
    try:
        with reading(Path(folder)):
            return set(os.listdir(folder or "."))
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return set()
        raise


def compare_counts(title: str, data: DataSplit, published: Mapping[str, tuple[int, int]]) -> DataSplit:
    """Add a note for each part whose numbers are not the published ones, `{"train": (images, classes)}`.

    >>> part = ImageSet(np.array([0]), ("cat",), pixels=np.zeros((1, 28, 28), np.uint8))
    >>> data = DataSplit("pets", part, part, closed=True)
    >>> compare_counts("Pets", data, {"train": (5864, 100), "test": (1, 1)}).notes
    ('Pets: 1 training image in 1 class, published are 5,864 in 100',)
    """
    notes = [
        f"{title}: {_counted(len(images), f'{_WORDS[part]} image')} in {_counted(len(images.class_names), 'class')}, "
        f"published are {published[part][0]:,} in {published[part][1]:,}"
        for part, images in (("train", data.train), ("test", data.test))
        if (len(images), len(images.class_names)) != published[part]
    ]
    return replace(data, notes=(*data.notes, *notes))


_WORDS = {"train": "training", "test": "test"}


def _counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 class`, `1,200 classes`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("ss") else "s")


def check_choice(setting: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `InputError` unless a setting has one of its values.

    >>> check_choice("split", "opened", ("open", "closed"))
    Traceback (most recent call last):
    isomargin.InputError: split is 'opened': 'open' or 'closed' is needed
    """
    if value not in choices:
        raise InputError(f"{setting} is {value!r}: {' or '.join(repr(choice) for choice in choices)} is needed")


def check_there(path: Path, what: str) -> Path:
    """Return the path; raise `InputError` where there is neither a file nor a folder.

    >>> check_there(Path("data/Ebay_train.txt"), "the list of training images")
    Traceback (most recent call last):
    isomargin.InputError: data/Ebay_train.txt is missing: the list of training images is expected there
    """
    if not path.exists():
        raise InputError(f"{path} is missing: {what} is expected there")
    return path
