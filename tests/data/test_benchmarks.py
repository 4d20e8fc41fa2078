"""The benchmarks' layouts in miniature: exact classes, paths and parts, and what is said of trees that do not fit."""

import os

import numpy as np
import pytest
from layouts import (
    CAR_NAMES,
    CARS,
    CUB_CLASSES,
    make_cub,
    make_inat,
    make_kaggle_cars,
    make_new_cars,
    make_old_cars,
    make_sop,
    write,
)
from scipy.io import savemat

from isomargin.core.errors import InputError
from isomargin.data.benchmarks import read_cars, read_cub, read_inat, read_sop

CAR_LAYOUTS = {"old": make_old_cars, "new": make_new_cars, "kaggle": make_kaggle_cars}


def content(data, root):
    """Everything a reader found: for each part its classes, labels and paths."""
    return [
        (part.class_names, part.labels.tolist(), [path.relative_to(root).as_posix() for path in part.paths])
        for part in (data.train, data.test)
    ]


def classes(images):
    return [images.class_names[label] for label in images.labels]


def test_sop(tmp_path):
    make_sop(tmp_path)
    data = read_sop(tmp_path)
    inside = "Stanford_Online_Products"
    assert content(data, tmp_path / inside) == [
        (
            ("2", "10"),
            [0, 0, 1, 1],
            [
                f"{kind}_final/{name}.JPG"
                for kind, name in zip(("chair", "chair", "lamp", "lamp"), ("2_1", "2_3", "10_2", "10_4"), strict=True)
            ],
        ),
        (("9", "11"), [0, 1], ["lamp_final/9_6.JPG", "sofa_final/11_5.JPG"]),
    ]
    assert (data.name, data.closed) == ("sop", False)
    assert data.train.read(0).size == (12, 12)
    assert data.notes == (
        "Stanford Online Products: 4 training images in 2 classes, published are 59,551 in 11,318",
        "Stanford Online Products: 2 test images in 2 classes, published are 60,502 in 11,316",
    )
    assert content(read_sop(tmp_path / inside), tmp_path) == content(data, tmp_path)


def test_cub_open(tmp_path):
    make_cub(tmp_path)
    data = read_cub(tmp_path)
    names = [CUB_CLASSES[number] for number in (1, 9, 100)]
    assert content(data, tmp_path / "CUB_200_2011" / "images") == [
        (tuple(names), [0, 0, 1, 1, 2, 2], [f"{name}/{each}.jpg" for name in names for each in (1, 2)]),
        (("101.White_Pelican",), [0, 0], ["101.White_Pelican/1.jpg", "101.White_Pelican/2.jpg"]),
    ]
    assert not data.closed
    assert data.notes[0] == "CUB-200-2011, open: 6 training images in 3 classes, published are 5,864 in 100"
    (tmp_path / "CUB_200_2011" / "train_test_split.txt").unlink()
    assert content(read_cub(tmp_path / "CUB_200_2011"), tmp_path) == content(data, tmp_path)


def test_cub_closed(tmp_path):
    make_cub(tmp_path)
    data = read_cub(tmp_path, split="closed")
    names = tuple(CUB_CLASSES[number] for number in (1, 9, 100, 101))
    assert content(data, tmp_path / "CUB_200_2011" / "images") == [
        (names, [0, 1, 2, 3], [f"{name}/{each}.jpg" for name in names]) for each in (1, 2)
    ]
    assert data.closed
    assert data.notes[1] == "CUB-200-2011, closed: 4 test images in 4 classes, published are 5,794 in 200"


@pytest.mark.parametrize("layout", CAR_LAYOUTS)
@pytest.mark.parametrize("split", ["open", "closed"])
def test_cars(tmp_path, layout, split):
    CAR_LAYOUTS[layout](tmp_path)
    data = read_cars(tmp_path, split)
    expected = {"train": [], "test": []}
    for image, (number, official) in enumerate(CARS):
        part = official if split == "closed" else "train" if number <= 98 else "test"
        within = [each for each, (_, of) in enumerate(CARS) if of == official].index(image) + 1
        path = {
            "old": f"car_ims/{image + 1:06}.jpg",
            "new": f"cars_{official}/{within:05}.jpg",
            "kaggle": f"car_data/car_data/{official}/{CAR_NAMES[number - 1].replace('/', '-')}/{within:05}.jpg",
        }[layout]
        expected[part].append((number, path))
    for part, images in (("train", data.train), ("test", data.test)):
        rows = sorted(expected[part])
        assert classes(images) == [CAR_NAMES[number - 1] for number, _ in rows]
        assert [path.relative_to(tmp_path).as_posix() for path in images.paths] == [path for _, path in rows]
    assert data.closed == (split == "closed")
    shown = "8,054 in 98" if split == "open" else "8,144 in 196"
    assert data.notes[0].startswith(f"Cars-196, {split}: 4 training images in ")
    assert data.notes[0].endswith(f"published are {shown}")


def test_cars_in_places_they_are_also_found_in(tmp_path):
    make_new_cars(tmp_path / "a" / "stanford_cars", labels="devkit")
    make_kaggle_cars(tmp_path / "b", folder="car_data")
    assert len(read_cars(tmp_path / "a").train) == len(read_cars(tmp_path / "b").train) == 4


def test_inat(tmp_path):
    make_inat(tmp_path)
    data = read_inat(tmp_path)
    assert content(data, tmp_path / "train_val2018") == [
        (
            ("Aves/2", "Aves/30", "Plantae/7477"),
            [0, 1, 2, 2],
            ["Aves/2/train1.jpg", "Aves/30/train3.jpg", "Plantae/7477/train0.jpg", "Plantae/7477/train2.jpg"],
        ),
        (("Aves/4", "Plantae/1"), [0, 1], ["Aves/4/test1.jpg", "Plantae/1/test0.jpg"]),
    ]
    assert data.notes[1] == "iNaturalist-2018: 2 test images in 2 classes, published are 136,093 in 2,452"


def test_inat_lists_may_lie_in_the_root_and_name_any_place(tmp_path):
    make_inat(tmp_path)
    expected = content(read_inat(tmp_path), tmp_path)
    for file in (tmp_path / "Inat_dataset_splits").iterdir():
        lines = file.read_text().splitlines()
        write(tmp_path / file.name, *[f"/home/someone/{line}\r" for line in lines], "")
        file.unlink()
    assert content(read_inat(tmp_path), tmp_path) == expected


@pytest.mark.parametrize(
    ("make", "read", "settings"),
    [
        (make_sop, read_sop, {}),
        (make_cub, read_cub, {"split": "open"}),
        (make_cub, read_cub, {"split": "closed"}),
        (make_old_cars, read_cars, {"split": "closed"}),
        (make_new_cars, read_cars, {"split": "open"}),
        (make_kaggle_cars, read_cars, {"split": "open"}),
        (make_inat, read_inat, {}),
    ],
)
def test_the_order_of_the_lists_does_not_matter(tmp_path, make, read, settings):
    found = []
    for seed in (1, 2):
        root = tmp_path / str(seed)
        root.mkdir()
        make(root, seed=seed)
        found.append(content(read(root, **settings), root))
    assert found[0] == found[1]


# Trees that do not fit


@pytest.mark.parametrize(
    ("make", "read", "gone", "message"),
    [
        (make_sop, read_sop, "Stanford_Online_Products/Ebay_test.txt", "the list of SOP's test images"),
        (make_cub, read_cub, "CUB_200_2011/images.txt", "the list of CUB's images"),
        (make_cub, read_cub, "CUB_200_2011/image_class_labels.txt", "the list of the images' classes"),
        (make_cub, read_cub, "CUB_200_2011/images", "the folder with CUB's images"),
        (make_old_cars, read_cars, "cars_annos.mat", "the list of images with their classes"),
        (make_old_cars, read_cars, "car_ims", "the folder with the images"),
        (make_new_cars, read_cars, "cars_test_annos_withlabels.mat", "the list of the test images with their classes"),
        (make_new_cars, read_cars, "devkit/cars_meta.mat", "the list of the classes' names"),
        (make_new_cars, read_cars, "cars_train", "the folder with the training images"),
        (make_kaggle_cars, read_cars, "names.csv", "the list of the classes' names"),
        (make_kaggle_cars, read_cars, "anno_test.csv", "the list of the test images"),
        (
            make_inat,
            read_inat,
            "Inat_dataset_splits/Inaturalist_test_set1.txt",
            "the list of iNaturalist's test images",
        ),
        (make_inat, read_inat, "train_val2018", "the folder with iNaturalist's images"),
    ],
)
def test_what_is_missing_is_told_with_what_was_expected(tmp_path, make, read, gone, message):
    make(tmp_path)
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    with pytest.raises(InputError) as error:
        read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / gone} is missing: {message}")


def test_the_flags_are_needed_for_the_closed_split(tmp_path):
    make_cub(tmp_path)
    (tmp_path / "CUB_200_2011" / "train_test_split.txt").unlink()
    with pytest.raises(InputError, match=r"train_test_split\.txt is missing"):
        read_cub(tmp_path, split="closed")


def test_an_empty_folder_is_told_where_the_data_should_be(tmp_path):
    with pytest.raises(InputError, match="must be the folder Stanford_Online_Products or hold it"):
        read_sop(tmp_path)
    with pytest.raises(InputError, match=r"none of its layouts: cars_annos\.mat \+ car_ims, or devkit.*names\.csv"):
        read_cars(tmp_path)


@pytest.mark.parametrize(
    ("make", "read", "image"),
    [
        (make_sop, read_sop, "Stanford_Online_Products/lamp_final/10_2.JPG"),
        (make_cub, read_cub, "CUB_200_2011/images/001.Black_footed_Albatross/1.jpg"),
        (make_old_cars, read_cars, "car_ims/000002.jpg"),
        (make_new_cars, read_cars, "cars_test/00002.jpg"),
        (make_kaggle_cars, read_cars, "car_data/car_data/test/Ram C-V Cargo Van Minivan 2012/00001.jpg"),
        (make_inat, read_inat, "train_val2018/Aves/4/test1.jpg"),
    ],
)
def test_a_missing_image_is_named_and_missing_images_are_counted(tmp_path, make, read, image):
    make(tmp_path)
    (tmp_path / image).unlink()
    with pytest.raises(InputError, match=r"lists 1 image of \d that does not exist") as error:
        read(tmp_path)
    assert f"the first is {tmp_path / image}:" in str(error.value)


@pytest.mark.parametrize(
    ("make", "read", "file", "line", "message"),
    [
        (make_sop, read_sop, "Stanford_Online_Products/Ebay_train.txt", "7 8 9", "is '7 8 9': image_id class_id"),
        (make_sop, read_sop, "Stanford_Online_Products/Ebay_train.txt", "7 x 9 a.jpg", "could not be read .*'x'"),
        (make_cub, read_cub, "CUB_200_2011/image_class_labels.txt", "99", "is '99': image_id class_id is needed"),
        (make_kaggle_cars, read_cars, "anno_train.csv", "1.jpg,1,1,9,9,197", "has the class 197, and 196 classes"),
        (make_kaggle_cars, read_cars, "anno_train.csv", "1.jpg,1,1", "could not be read"),
        (make_inat, read_inat, "Inat_dataset_splits/Inaturalist_train_set1.txt", "a.jpg", r"line 5, is 'a\.jpg'"),
    ],
)
def test_a_line_that_does_not_fit_is_told(tmp_path, make, read, file, line, message):
    make(tmp_path)
    with (tmp_path / file).open("a") as opened:
        opened.write(line + "\n")
    with pytest.raises(InputError, match=message) as error:
        read(tmp_path)
    assert str(error.value).startswith(str(tmp_path / file))


def test_images_without_a_class_or_a_flag_are_told(tmp_path):
    make_cub(tmp_path)
    base = tmp_path / "CUB_200_2011"
    with (base / "images.txt").open("a") as opened:
        opened.write("99 009.Blackbird/3.jpg\n")
    with pytest.raises(InputError, match=r"image_class_labels\.txt lacks 1 of the 9 images .*, the first is 99 \(009"):
        read_cub(tmp_path)
    with (base / "image_class_labels.txt").open("a") as opened:
        opened.write("99 9\n")
    with pytest.raises(InputError, match=r"train_test_split\.txt lacks 1 of the 9 images"):
        read_cub(tmp_path, split="closed")


def test_an_empty_list_is_told(tmp_path):
    make_sop(tmp_path)
    (tmp_path / "Stanford_Online_Products" / "Ebay_train.txt").write_text("")
    with pytest.raises(InputError, match="is empty"):
        read_sop(tmp_path)


def test_a_list_with_nothing_but_its_header_is_told(tmp_path):
    make_sop(tmp_path)
    write(tmp_path / "Stanford_Online_Products" / "Ebay_train.txt", "image_id class_id super_class_id path")
    with pytest.raises(InputError, match="sop: there are no training images"):
        read_sop(tmp_path)


def test_a_list_without_a_header_loses_no_image(tmp_path):
    make_sop(tmp_path)
    expected = content(read_sop(tmp_path), tmp_path)
    file = tmp_path / "Stanford_Online_Products" / "Ebay_train.txt"
    write(file, *file.read_text().splitlines()[1:])
    assert content(read_sop(tmp_path), tmp_path) == expected


def test_parts_that_share_a_class_are_refused(tmp_path):
    make_sop(tmp_path)
    file = tmp_path / "Stanford_Online_Products" / "Ebay_test.txt"
    file.write_text(file.read_text().replace(" 11 1 ", " 10 1 "))
    with pytest.raises(InputError, match="share 1 class, the first is '10'"):
        read_sop(tmp_path)


def test_annotations_of_another_kind_are_told(tmp_path):
    make_old_cars(tmp_path)
    savemat(tmp_path / "cars_annos.mat", {"annotations": np.zeros(3), "class_names": np.zeros(3)})
    with pytest.raises(InputError, match="annotations without 'relative_im_path'"):
        read_cars(tmp_path)
    savemat(tmp_path / "cars_annos.mat", {"other": np.zeros(3)})
    with pytest.raises(InputError, match="has no variable 'annotations'"):
        read_cars(tmp_path)
    (tmp_path / "cars_annos.mat").write_text("no mat file")
    with pytest.raises(InputError, match=r"cars_annos\.mat could not be read"):
        read_cars(tmp_path)


@pytest.mark.parametrize("read", [read_cub, read_cars])
def test_a_split_by_another_name_is_refused(tmp_path, read):
    with pytest.raises(InputError, match="split is 'half': 'open' or 'closed' is needed"):
        read(tmp_path, split="half")


def test_every_folder_is_looked_into_once_and_no_image_on_its_own(tmp_path, monkeypatch):
    make_sop(tmp_path)
    listed, asked = [], []
    list_folder, exists = os.listdir, os.path.exists
    monkeypatch.setattr(os, "listdir", lambda folder: listed.append(folder) or list_folder(folder))
    monkeypatch.setattr(os.path, "exists", lambda path: asked.append(str(path)) or exists(path))
    read_sop(tmp_path)
    base = f"{tmp_path}/Stanford_Online_Products"
    assert sorted(listed) == sorted(f"{base}/{kind}_final" for kind in ("chair", "lamp", "lamp", "sofa"))
    assert not [path for path in asked if path.endswith(".JPG")]
