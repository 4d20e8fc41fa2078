"""Miniature trees in the public layouts of the data sets, with tiny real images."""

import gzip
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def picture(path, shade=100, side=12, mode="RGB", grain=None):
    """Write a small image with some detail, so that a file cut in half lacks data.

    `shade` seeds the detail. With a `grain` it is the detail of a class, in blocks that a resized image still shows,
    and half of the image is its own.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(shade).integers(0, 255, (side, side, 3), dtype=np.uint8)
    if grain is not None:
        blocks = np.kron(noise[: side // 8, : side // 8], np.ones((8, 8, 1), np.uint8))
        noise = blocks // 2 + np.random.default_rng([shade, grain]).integers(0, 128, blocks.shape, dtype=np.uint8)
    # As its path ends so the format is called, but for .JPG in capitals.
    Image.fromarray(noise).convert(mode).save(path, Image.registered_extensions()[path.suffix.lower()])
    return path


def plain(path, number, image):
    """The same picture for every class and image."""
    return picture(path)


def write(path, *lines):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def shuffled(rows, seed):
    return [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]


SOP = {"train": [(2, "chair"), (10, "lamp"), (2, "chair"), (10, "lamp")], "test": [(11, "sofa"), (9, "lamp")]}
"""Training classes 2 and 10 with two images each, test classes 9 and 11 with one."""


def make_sop(root, seed=0, parts=SOP, pictures=plain):
    image = 0
    for part, rows in parts.items():
        lines = []
        for number, kind in rows:
            image += 1
            name = f"{kind}_final/{number}_{image}.JPG"
            pictures(root / "Stanford_Online_Products" / name, number, image)
            lines.append(f"{image} {number} 1 {name}")
        header = "image_id class_id super_class_id path"
        write(root / "Stanford_Online_Products" / f"Ebay_{part}.txt", header, *shuffled(lines, seed))


CUB_CLASSES = {1: "001.Black_footed_Albatross", 100: "100.Brown_Pelican", 101: "101.White_Pelican", 9: "009.Blackbird"}


def make_cub(root, seed=0, classes=CUB_CLASSES, images=2, pictures=plain):
    """Some images of each class, of which the first is flagged for training."""
    base = root / "CUB_200_2011"
    rows = [(number, f"{name}/{each}.jpg", each) for number, name in classes.items() for each in range(1, images + 1)]
    for number, path, each in rows:
        pictures(base / "images" / path, number, each)
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


def make_new_cars(root, seed=0, labels=".", cars=CARS, pictures=plain):
    (root / "devkit").mkdir(parents=True)
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    files = {"train": "devkit/cars_train_annos.mat", "test": f"{labels}/cars_test_annos_withlabels.mat"}
    for part, file in files.items():
        rows = []
        for image, number in enumerate((number for number, of in cars if of == part), 1):
            pictures(root / f"cars_{part}" / f"{image:05}.jpg", number, image)
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


INAT = {"train": ["Plantae/7477", "Aves/2", "Plantae/7477", "Aves/30"], "test": ["Plantae/1", "Aves/4"]}


def make_inat(root, seed=0, parts=INAT, pictures=plain):
    for part, categories in parts.items():
        lines = [f"train_val2018/{category}/{part}{index}.jpg" for index, category in enumerate(categories)]
        for index, (line, category) in enumerate(zip(lines, categories, strict=True)):
            pictures(root / line, int(category.partition("/")[2]), index)
        write(root / "Inat_dataset_splits" / f"Inaturalist_{part}_set1.txt", *shuffled(lines, seed))


OMNIGLOT = {
    "images_background": ["Greek/character01", "Greek/character02"],
    "images_evaluation": ["Tengwar/character01"],
}
"""Two characters of one alphabet for training, one for testing."""


def bar(character, drawer):
    """A black bar on white, whoever draws whichever character."""
    drawing = np.full((105, 105), 255, np.uint8)
    drawing[:, 45:60] = 0
    return drawing


def make_omniglot(root, alphabets=OMNIGLOT, drawers=2, draw=bar):
    for part, characters in alphabets.items():
        for character in characters:
            for drawer in range(1, drawers + 1):
                drawing = draw(character, drawer)
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


# --- trees that can be trained and evaluated on: small, but with pictures that tell the classes apart -----------------

CLASSES, IMAGES = 5, 4
"""Of the training part and of the test part: 160 pairs of different classes, where an evaluation needs 100."""

DRAWERS = 20
"""Of every character of Omniglot, as published: two held-out classes are enough for an evaluation."""

SIDE = 40
SOP_KINDS = ("bicycle", "cabinet", "chair", "lamp", "sofa")


def by_class(path, number, image):
    """A picture of the class's own, each image a little different."""
    return picture(path, number, SIDE, grain=image)


def each_image(classes):
    """Every class as often as it has images, in turn."""
    return [each for _ in range(IMAGES) for each in classes]


def shape(character, drawer):
    """Six bold strokes that are the character's own, each drawer a little beside the others."""
    generator = np.random.default_rng(list(character.encode()))
    drawing = np.full((105, 105), 255, np.uint8)
    for top, left, down in generator.integers([10, 10, 0], [70, 70, 2], (6, 3)):
        height, width = (35, 7) if down else (7, 35)
        drawing[top : top + height, left : left + width] = 0
    return np.roll(drawing, np.random.default_rng(drawer).integers(-4, 5, 2), (0, 1))


def trainable_sop(root):
    parts = {"train": range(1, CLASSES + 1), "test": range(11319, 11319 + CLASSES)}
    kinds = {part: list(zip(classes, SOP_KINDS, strict=True)) for part, classes in parts.items()}
    make_sop(root, parts={part: each_image(rows) for part, rows in kinds.items()}, pictures=by_class)


def trainable_cub(root):
    numbers = [*range(1, CLASSES + 1), *range(200, 200 - CLASSES, -1)]
    make_cub(root, classes={number: f"{number:03}.Bird" for number in numbers}, images=IMAGES, pictures=by_class)


def trainable_cars(root):
    """In the newest layout, both of whose folders have images of all classes."""
    numbers = [*range(1, CLASSES + 1), *range(196, 196 - CLASSES, -1)]
    parts = ["train", "test"] * (IMAGES // 2)
    make_new_cars(root, cars=[(number, part) for part in parts for number in numbers], pictures=by_class)


def trainable_inat(root):
    parts = {"train": range(2000, 2000 + CLASSES), "test": range(5000, 5000 + CLASSES)}
    categories = {part: [f"Aves/{number}" for number in numbers] for part, numbers in parts.items()}
    make_inat(root, parts={part: each_image(names) for part, names in categories.items()}, pictures=by_class)


def trainable_omniglot(root):
    alphabets = {"images_background": "Greek", "images_evaluation": "Tengwar"}
    characters = [f"character{number:02}" for number in range(1, CLASSES + 1)]
    parts = {part: [f"{name}/{each}" for each in characters] for part, name in alphabets.items()}
    make_omniglot(root, parts, DRAWERS, shape)


def trainable_folder(root):
    for number in range(2 * CLASSES):
        for image in range(IMAGES):
            by_class(root / f"class{number:02}" / f"{image}.png", number, image)


TRAINABLE = {
    "folder": trainable_folder,
    "sop": trainable_sop,
    "cub": trainable_cub,
    "cars": trainable_cars,
    "inat": trainable_inat,
    "omniglot": trainable_omniglot,
}
"""By the name of the data set: all that recipes need a tree for."""
