"""The benchmarks of photographs: Stanford Online Products, CUB-200-2011, Cars-196, iNaturalist-2018.

Every reader takes the files as they are unpacked from their archives, checks that the images exist without opening
them, and notes where their number is not the published one. Nothing is downloaded.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.data.images import (
    ClassId,
    DataSplit,
    check_choice,
    check_listed,
    check_there,
    compare_counts,
    images_of_files,
)

__all__ = ["read_cars", "read_cub", "read_inat", "read_sop"]

ClassSplit = Literal["open", "closed"]
"""Whether the test classes differ from the training classes, or are the same."""

_SOP = {"train": (59_551, 11_318), "test": (60_502, 11_316)}
_CUB: dict[ClassSplit, dict[str, tuple[int, int]]] = {
    "open": {"train": (5_864, 100), "test": (5_924, 100)},
    "closed": {"train": (5_994, 200), "test": (5_794, 200)},
}
_CARS: dict[ClassSplit, dict[str, tuple[int, int]]] = {
    "open": {"train": (8_054, 98), "test": (8_131, 98)},
    "closed": {"train": (8_144, 196), "test": (8_041, 196)},
}
_INAT = {"train": (325_846, 5_690), "test": (136_093, 2_452)}

_LAST_CUB_TRAINING_CLASS = 100
_LAST_CARS_TRAINING_CLASS = 98


def read_sop(root: Path) -> DataSplit:
    """Read Stanford Online Products; `root` is the folder `Stanford_Online_Products` or the folder that holds it.

    The lists `Ebay_train.txt` and `Ebay_test.txt` have a header, then `image_id class_id super_class_id path`.
    Classes are named by their id.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for part, number in (("train", 1), ("test", 2)):
    ...         text = f"image_id class_id super_class_id path{chr(10)}{number} {number} 1 {number}.JPG"
    ...         _ = Path(folder, f"Ebay_{part}.txt").write_text(text)
    ...         Path(folder, f"{number}.JPG").touch()
    ...     data = read_sop(Path(folder))
    >>> data.train.class_names, data.test.class_names
    (('1',), ('2',))
    >>> data.notes[0]
    'Stanford Online Products: 1 training image in 1 class, published are 59,551 in 11,318'
    """
    base = _home(root, "Stanford_Online_Products")
    parts = {}
    for part, word in (("train", "training"), ("test", "test")):
        file = _file(base / f"Ebay_{part}.txt", f"the list of SOP's {word} images", root, "Stanford_Online_Products")
        with reading(file):
            parts[part] = [
                (int(words[1]), f"{base}/{words[3]}")
                for words in _lines(file, "image_id", "class_id", "super_class_id", "path")
            ]
        check_listed([path for _, path in parts[part]], str(file))
    return _split("sop", "Stanford Online Products", parts["train"], parts["test"], _SOP)


def read_cub(root: Path, split: ClassSplit = "open") -> DataSplit:
    """Read CUB-200-2011; `root` is the folder `CUB_200_2011` or the folder that holds it.

    "open" trains on classes 1 to 100 and tests on 101 to 200; "closed" follows `train_test_split.txt`.

    >>> read_cub(Path("."))
    Traceback (most recent call last):
    isomargin.InputError: images.txt is missing: the list of CUB's images is expected there (...)
    """
    check_choice("split", split, get_args(ClassSplit))
    inner = "CUB_200_2011"
    base = _home(root, inner)
    listed = _file(base / "images.txt", "the list of CUB's images", root, inner)
    labelled = _file(base / "image_class_labels.txt", "the list of the images' classes", root, inner)
    paths, classes = dict(_lines(listed, "image_id", "path")), _numbers(labelled, "class_id")
    _check_same_ids(paths, listed, classes, labelled)
    if split == "closed":
        flagged = _file(base / "train_test_split.txt", "the list of which images are for training", root, inner)
        flags = _numbers(flagged, "is_training_image")
        _check_same_ids(paths, listed, flags, flagged)
        training = {image for image, flag in flags.items() if flag == 1}
    else:
        training = {image for image, number in classes.items() if number <= _LAST_CUB_TRAINING_CLASS}
    check_there(base / "images", "the folder with CUB's images")
    rows = {image: (classes[image], f"{base}/images/{path}") for image, path in paths.items()}
    check_listed([path for _, path in rows.values()], str(listed))
    return _split(
        "cub",
        f"CUB-200-2011, {split}",
        [row for image, row in rows.items() if image in training],
        [row for image, row in rows.items() if image not in training],
        _CUB[split],
        closed=split == "closed",
        names={classes[image]: path.rpartition("/")[0] for image, path in paths.items()},
    )


def read_cars(root: Path, split: ClassSplit = "open") -> DataSplit:
    """Read Cars-196 in any of three layouts; `root` is the folder with these files or holds it as `stanford_cars`.

    The old one has `cars_annos.mat` and `car_ims/`; the new one `devkit/`, `cars_train/`, `cars_test/` and
    `cars_test_annos_withlabels.mat`, which may be in `devkit/` too; the one from Kaggle `anno_train.csv`,
    `anno_test.csv`, `names.csv` and one folder per class in `car_data/car_data/{train,test}/`. "open" trains on classes
    1 to 98 and tests on 99 to 196; "closed" takes the official training and test images.

    >>> read_cars(Path("."))
    Traceback (most recent call last):
    isomargin.InputError: . holds Cars-196 in none of its layouts: cars_annos.mat + car_ims, or ...
    """
    check_choice("split", split, get_args(ClassSplit))
    base = _home(root, "stanford_cars")
    layout = _cars_layout(base)
    images, names, source = {"old": _old_cars, "new": _new_cars, "kaggle": _kaggle_cars}[layout](base)
    unnamed = sorted({number for number, _, _ in images if not 1 <= number <= len(names)})
    if unnamed:
        raise InputError(
            f"{source} has the class {unnamed[0]}, and {len(names)} classes have a name: check that both files belong "
            "together"
        )
    check_listed([path for _, path, _ in images], source)
    parts: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
    for number, path, for_training in images:
        parts[for_training if split == "closed" else number <= _LAST_CARS_TRAINING_CLASS].append((number, path))
    return _split(
        "cars",
        f"Cars-196, {split}",
        parts[True],
        parts[False],
        _CARS[split],
        closed=split == "closed",
        names=dict(enumerate(names, 1)),
    )


def read_inat(root: Path) -> DataSplit:
    """Read iNaturalist-2018 with the split for retrieval, `Inat_dataset_splits/Inaturalist_{train,test}_set1.txt`.

    These lists have one path per line. Its last two folders are the class, and the file is in `train_val2018/`. The
    lists may also be in `root` itself.

    >>> read_inat(Path("."))
    Traceback (most recent call last):
    isomargin.InputError: Inat_dataset_splits/Inaturalist_train_set1.txt is missing: the list of ...
    """
    parts: dict[str, list[tuple[str, str]]] = {}
    for part, word in (("train", "training"), ("test", "test")):
        name = f"Inaturalist_{part}_set1.txt"
        file = root / name if (root / name).exists() else root / "Inat_dataset_splits" / name
        check_file(check_there(file, f"the list of iNaturalist's {word} images, with one path per line,"))
        check_there(root / "train_val2018", "the folder with iNaturalist's images")
        parts[part] = []
        for number, line in enumerate(_text(file).splitlines(), 1):
            folders = line.strip().split("/")[-3:]
            if len(folders) == 3:
                parts[part].append((f"{folders[0]}/{folders[1]}", f"{root}/train_val2018/{'/'.join(folders)}"))
            elif line.strip():
                raise InputError(
                    f"{file}, line {number}, is {line.strip()[:80]!r}: "
                    "a path train_val2018/<super category>/<category>/<image> is needed"
                )
        check_listed([path for _, path in parts[part]], str(file))
    return _split("inat", "iNaturalist-2018", parts["train"], parts["test"], _INAT)


# The layouts of Cars-196: each returns (class, path, whether for training) of the images, the names, and the lists

_CarsImages = tuple[list[tuple[int, str, bool]], list[str], str]

_CARS_LAYOUTS = {
    "old": {"cars_annos.mat": "the list of images with their classes", "car_ims": "the folder with the images"},
    "new": {
        "devkit/cars_train_annos.mat": "the list of the training images with their classes",
        "devkit/cars_meta.mat": "the list of the classes' names",
        "cars_test_annos_withlabels.mat": "the list of the test images with their classes (devkit/cars_test_annos.mat "
        "has no classes)",
        "cars_train": "the folder with the training images",
        "cars_test": "the folder with the test images",
    },
    "kaggle": {
        "anno_train.csv": "the list of the training images with their classes",
        "anno_test.csv": "the list of the test images with their classes",
        "names.csv": "the list of the classes' names",
        "car_data": "the folder with the images",
    },
}


def _cars_layout(base: Path) -> str:
    """Find the layout that lacks the fewest of its files; an error names the first missing file."""

    def missing(layout: str) -> list[str]:
        return [name for name in _CARS_LAYOUTS[layout] if not _cars_file(base, name).exists()]

    layout = min(_CARS_LAYOUTS, key=lambda layout: len(missing(layout)) / len(_CARS_LAYOUTS[layout]))
    if len(missing(layout)) == len(_CARS_LAYOUTS[layout]):
        ways = ", or ".join(" + ".join(files) for files in _CARS_LAYOUTS.values())
        raise InputError(f"{base} holds Cars-196 in none of its layouts: {ways} is expected there")
    for name in missing(layout):
        check_there(_cars_file(base, name), _CARS_LAYOUTS[layout][name])
    return layout


def _cars_file(base: Path, name: str) -> Path:
    """Return where a file is: the classes of the test images may be beside the devkit or in it."""
    inside = base / "devkit" / name
    return inside if name == "cars_test_annos_withlabels.mat" and inside.exists() else base / name


def _old_cars(base: Path) -> _CarsImages:
    file = base / "cars_annos.mat"
    rows = _annotations(file, "relative_im_path", "class", "test")
    return [(number, f"{base}/{path}", not test) for path, number, test in rows], _class_names(file), str(file)


def _new_cars(base: Path) -> _CarsImages:
    files = {
        "cars_train": base / "devkit" / "cars_train_annos.mat",
        "cars_test": _cars_file(base, "cars_test_annos_withlabels.mat"),
    }
    images = [
        (number, f"{base}/{folder}/{name}", folder == "cars_train")
        for folder, file in files.items()
        for name, number in _annotations(file, "fname", "class")
    ]
    return images, _class_names(base / "devkit" / "cars_meta.mat"), " or ".join(map(str, files.values()))


def _kaggle_cars(base: Path) -> _CarsImages:
    # A name with a comma may or may not be in quotes.
    names = [",".join(row).strip() for row in csv.reader(_text(base / "names.csv").splitlines()) if row]
    pictures = base / "car_data" / "car_data"
    pictures = pictures if pictures.exists() else base / "car_data"
    images = []
    for part in ("train", "test"):
        file = base / f"anno_{part}.csv"
        with reading(file):
            for row in csv.reader(_text(file).splitlines()):
                if not row:
                    continue
                name, number = row[0], int(row[5])
                # The folder of Ram C/V Cargo Van has no slash.
                folder = names[number - 1].replace("/", "-") if 1 <= number <= len(names) else ""
                images.append((number, f"{pictures}/{part}/{folder}/{name}", part == "train"))
    return images, names, f"{base / 'anno_train.csv'} or {base / 'anno_test.csv'}"


def _annotations(file: Path, *fields: str) -> list[tuple[Any, ...]]:
    """Read fields of the annotations of a .mat file: one row per image, text and whole numbers."""
    table = np.atleast_1d(_mat(file, "annotations"))
    missing = [field for field in fields if field not in (table.dtype.names or ())]
    if missing:
        raise InputError(
            f"{file} has annotations without {missing[0]!r}: the fields {', '.join(fields)} are expected, "
            f"there are {', '.join(table.dtype.names or ('none',))}"
        )
    with reading(file):
        columns = [[value if isinstance(value, str) else int(value) for value in table[field]] for field in fields]
    return list(zip(*columns, strict=True))


def _class_names(file: Path) -> list[str]:
    return [str(name) for name in np.atleast_1d(_mat(file, "class_names"))]


def _mat(file: Path, name: str) -> Any:
    from scipy.io import loadmat

    check_file(file)
    with reading(file):
        contents = loadmat(str(file), squeeze_me=True)
        if name not in contents:
            raise InputError(f"{file} has no variable {name!r}: the file of Cars-196 with this name is expected")
        return contents[name]


# Lists of words


def _home(root: Path, inner: str) -> Path:
    """Return the folder in `root` that an archive unpacks to, or `root` where it is that folder itself."""
    return root / inner if (root / inner).is_dir() else root


def _file(file: Path, what: str, root: Path, inner: str) -> Path:
    if not file.exists():
        raise InputError(f"{file} is missing: {what} is expected there ({root} must be the folder {inner} or hold it)")
    check_file(file)
    return file


def _text(file: Path) -> str:
    check_file(file)
    with reading(file):
        return file.read_text(encoding="utf-8-sig")


def _lines(file: Path, *columns: str) -> Iterator[list[str]]:
    """Return the words of each line; the last may contain spaces. A first line with names of columns is left out."""
    for number, line in enumerate(_text(file).splitlines(), 1):
        words = line.strip().split(maxsplit=len(columns) - 1)
        if not words or (number == 1 and words[0] == columns[0]):
            continue
        if len(words) < len(columns):
            raise InputError(f"{file}, line {number}, is {line.strip()[:80]!r}: {' '.join(columns)} is needed")
        yield words


def _numbers(file: Path, column: str) -> dict[str, int]:
    with reading(file):
        return {image: int(number) for image, number in _lines(file, "image_id", column)}


def _check_same_ids(paths: dict[str, str], listed: Path, values: dict[str, int], file: Path) -> None:
    if missing := paths.keys() - values.keys():
        first = min(missing, key=lambda image: (len(image), image))
        raise InputError(
            f"{file} lacks {len(missing):,} of the {len(paths):,} images of {listed}, the first is {first} "
            f"({paths[first]}): unpack it again"
        )


def _split(
    name: str,
    title: str,
    train: list[tuple[ClassId, str]],
    test: list[tuple[ClassId, str]],
    published: Mapping[str, tuple[int, int]],
    *,
    closed: bool = False,
    names: Mapping[ClassId, str] | None = None,
) -> DataSplit:
    data = DataSplit(name, images_of_files(train, names), images_of_files(test, names), closed)
    return compare_counts(title, data, published)
