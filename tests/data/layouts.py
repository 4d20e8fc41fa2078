"""Miniature trees in the public layouts of the data sets, with tiny real images."""

import gzip
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def picture(path, shade=100, side=12, mode="RGB"):
    """Write a small image with some detail, so that a file cut in half lacks data."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(shade).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path)
    return path


def write(path, *lines):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def shuffled(rows, seed):
    return [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]


def make_sop(root, seed=0):
    """Training classes 2 and 10 with two images each, test classes 9 and 11 with one."""
    parts = {"train": [(2, "chair"), (10, "lamp"), (2, "chair"), (10, "lamp")], "test": [(11, "sofa"), (9, "lamp")]}
    image = 0
    for part, rows in parts.items():
        lines = []
        for number, kind in rows:
            image += 1
            name = f"{kind}_final/{number}_{image}.JPG"
            picture(root / "Stanford_Online_Products" / name.replace(".JPG", ".jpg")).rename(
                root / "Stanford_Online_Products" / name
            )
            lines.append(f"{image} {number} 1 {name}")
        header = "image_id class_id super_class_id path"
        write(root / "Stanford_Online_Products" / f"Ebay_{part}.txt", header, *shuffled(lines, seed))


CUB_CLASSES = {1: "001.Black_footed_Albatross", 100: "100.Brown_Pelican", 101: "101.White_Pelican", 9: "009.Blackbird"}


def make_cub(root, seed=0):
    """Classes 1, 9, 100 and 101 with two images each, of which the first is flagged for training."""
    base = root / "CUB_200_2011"
    rows = [(number, f"{name}/{each}.jpg", each) for number, name in CUB_CLASSES.items() for each in (1, 2)]
    for _, path, _ in rows:
        picture(base / "images" / path)
    rows = list(enumerate(shuffled(rows, seed), 1))
    write(base / "images.txt", *shuffled([f"{image} {path}" for image, (_, path, _) in rows], seed + 1))
    write(base / "image_class_labels.txt", *shuffled([f"{image} {number}" for image, (number, _, _) in rows], seed + 2))
    flags = [f"{image} {int(each == 1)}" for image, (_, _, each) in rows]
    write(base / "train_test_split.txt", *shuffled(flags, seed + 3))


CAR_NAMES = [f"Maker Model {number}" for number in range(1, 197)]
CAR_NAMES[172] = "Ram C/V Cargo Van Minivan 2012"
CARS = [
    (2, "train"),
    (173, "test"),
    (98, "train"),
    (2, "test"),
    (99, "test"),
    (173, "train"),
    (99, "train"),
    (98, "test"),
]
"""The class and the official part of each image."""


def annotations(rows, fields):
    table = np.empty((1, len(rows)), [(field, object) for field in fields])
    for index, row in enumerate(rows):
        table[0, index] = row
    return table


def cell(names):
    return np.array(names, object)[None]


def make_old_cars(root, seed=0):
    rows = []
    for image, (number, part) in enumerate(CARS, 1):
        picture(root / "car_ims" / f"{image:06}.jpg")
        rows.append((f"car_ims/{image:06}.jpg", 1, 1, 9, 9, number, int(part == "test")))
    fields = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"]
    table = annotations(shuffled(rows, seed), fields)
    savemat(root / "cars_annos.mat", {"annotations": table, "class_names": cell(CAR_NAMES)})


def make_new_cars(root, seed=0, labels="."):
    (root / "devkit").mkdir(parents=True)
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    files = {"train": "devkit/cars_train_annos.mat", "test": f"{labels}/cars_test_annos_withlabels.mat"}
    for part, file in files.items():
        rows = []
        for image, number in enumerate((number for number, of in CARS if of == part), 1):
            picture(root / f"cars_{part}" / f"{image:05}.jpg")
            rows.append((1, 1, 9, 9, number, f"{image:05}.jpg"))
        savemat(root / file, {"annotations": annotations(shuffled(rows, seed), fields)})
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": cell(CAR_NAMES)})


def make_kaggle_cars(root, seed=0, folder="car_data/car_data"):
    write(root / "names.csv", *CAR_NAMES)
    for part in ("train", "test"):
        lines = []
        for image, number in enumerate((number for number, of in CARS if of == part), 1):
            picture(root / folder / part / CAR_NAMES[number - 1].replace("/", "-") / f"{image:05}.jpg")
            lines.append(f"{image:05}.jpg,1,1,9,9,{number}")
        write(root / f"anno_{part}.csv", *shuffled(lines, seed))


def make_inat(root, seed=0):
    parts = {"train": ["Plantae/7477", "Aves/2", "Plantae/7477", "Aves/30"], "test": ["Plantae/1", "Aves/4"]}
    for part, categories in parts.items():
        lines = [f"train_val2018/{category}/{part}{index}.jpg" for index, category in enumerate(categories)]
        for line in lines:
            picture(root / line)
        write(root / "Inat_dataset_splits" / f"Inaturalist_{part}_set1.txt", *shuffled(lines, seed))


def make_omniglot(root):
    """Two characters of one alphabet for training, one for testing, two drawings each: a black bar on white."""
    alphabets = {
        "images_background": ["Greek/character01", "Greek/character02"],
        "images_evaluation": ["Tengwar/character01"],
    }
    for part, characters in alphabets.items():
        for character in characters:
            for drawer in (1, 2):
                drawing = np.full((105, 105), 255, np.uint8)
                drawing[:, 45:60] = 0
                path = root / part / character / f"0001_{drawer:02}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(drawing).convert("1").save(path)


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4, "big") for length in array.shape)
    return header + array.astype(np.uint8).tobytes()


MNIST = {"train": [7, 0, 7, 4, 1], "t10k": [1, 9, 0]}


def make_mnist(root, mark="-", packed=False):
    """Every image has its place in the pixels: 100 for the training images, 200 for the test images, plus its row."""
    root.mkdir(parents=True, exist_ok=True)
    for (part, digits), start in zip(MNIST.items(), (100, 200), strict=True):
        images = np.broadcast_to((start + np.arange(len(digits)))[:, None, None], (len(digits), 28, 28))
        for kind, array, dimensions in (("images", images, 3), ("labels", np.array(digits), 1)):
            name = f"{part}-{kind}{mark}idx{dimensions}-ubyte"
            content = idx(array)
            if packed:
                (root / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (root / name).write_bytes(content)


def make_folder(root, counts, suffix="png"):
    for name, count in counts.items():
        for index in range(count):
            picture(root / name / f"{index}.{suffix}")
