"""Recipes of every kind that come with the package plan and train, on a miniature of their data in its public layout.

What is a single recipe's own (settings that exist, a model and a loss that can be made) is in test_recipe_files.py.
"""

import math
import sys

import numpy as np
import pytest

import isomargin as im
from data.layouts import CLASSES, DRAWERS, IMAGES, TRAINABLE
from isomargin.cli import app as cli
from isomargin.models.small_networks import SMALL
from isomargin.training.recipe import load_recipe, shipped_recipes
from isomargin.training.setup import make_recipe_loss, make_sampler, open_data
from training.runs import metrics, run

RECIPES = shipped_recipes()
OF_EACH_DATA = (
    "cars-resnet50-proxy-anchor",
    "cub-vit-b16-recall-at-k-tcm",
    "glyphs",
    "inat-resnet50-smooth-ap",
    "omniglot-tcm",
    "photographs",
    "sop-resnet50-roadmap",
)
OF_EACH_KIND = (
    "cars-resnet50-proxy-anchor-tcm",
    "cars-vit-b16-recall-at-k-tcm",
    "cub-resnet50-proxy-nca-pp-tcm",
    "demo",
    "glyphs-tcm",
    "inat-resnet50-smooth-ap-tcm",
    "omniglot-tcm",
    "photographs-tcm",
    "sop-resnet50-recall-at-k-tcm",
    "sop-resnet50-roadmap-tcm",
    "cars-vit-s16-dino-proxy-anchor-closed-tcm",
    "sop-vit-b14-dinov2-arcface",
    "sop-vit-b16-clip-arcface-tcm",
    "sop-vit-b16-smooth-ap",
    "sop-vit-b16-unicom-arcface",
)
STAND_INS = {  # timm's for tests, with parts of the same names
    "resnet50": "test_resnet",
    "tf_efficientnet_lite0": "test_efficientnet",
    "unicom_vit_b16": "test_vit",
    "vit_base_patch14_dinov2": "test_vit",
    "vit_base_patch16_224": "test_vit",
    "vit_base_patch16_clip_224": "test_vit",
    "vit_small_patch16_224": "test_vit",
}


@pytest.fixture(scope="module")
def on_miniature(tmp_path_factory):
    """Give the changes of a recipe that make its data a miniature, which is made once."""
    made = {}

    def changes(name):
        data = load_recipe(RECIPES[name]).data["name"]
        if data == "glyphs":
            return ["data.draws=1"]
        if data not in made:
            made[data] = tmp_path_factory.mktemp(data)
            TRAINABLE[data](made[data])
        return [f"data.root={made[data]}"]

    return changes


def data_of(name):
    return load_recipe(RECIPES[name]).data["name"]


def kind(name):
    recipe = load_recipe(RECIPES[name])
    return recipe.model["backbone"], recipe.loss.base["name"], recipe.schedule.name


def test_the_recipes_tried_are_of_all_data_and_of_all_kinds():
    assert {data_of(name) for name in OF_EACH_DATA} == {data_of(name) for name in RECIPES}
    assert {kind(name) for name in OF_EACH_KIND} == {kind(name) for name in RECIPES}


@pytest.mark.parametrize("name", OF_EACH_DATA)
def test_a_dry_run_names_the_datas_sizes_and_the_steps(name, on_miniature, tmp_path, monkeypatch, capsys):
    changes = on_miniature(name)
    recipe = load_recipe(RECIPES[name], changes)
    data = open_data(recipe, check=False)
    counts = np.bincount(data.train.labels)
    classes, images = min(recipe.batch.classes, len(counts)), min(recipe.batch.images_per_class, counts.min())
    if classes < recipe.batch.classes:
        changes.append(f"batch.classes={classes}")
    if images < recipe.batch.images_per_class:
        changes.append(f"batch.images_per_class={images}")

    monkeypatch.setattr("isomargin.models.embedder.make_pretrained", lambda *_, **__: pytest.fail("a download"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["isomargin", "train", name, *changes, "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert f"name: {name}\n" in printed.out
    lines = dict(line.split(maxsplit=1) for line in printed.out.splitlines()[-5:])
    for part, of_part in (("training:", data.train), ("evaluation:", data.unseen), ("test:", data.test)):
        assert lines[part] == f"{len(of_part):,} items in {len(of_part.class_names):,} classes"
    if recipe.data["name"] in TRAINABLE:
        each = DRAWERS if recipe.data["name"] == "omniglot" else IMAGES
        assert lines["test:"] == f"{CLASSES * each} items in {CLASSES} classes"
    groups = counts // images if recipe.batch.small_classes == "drop" else -(-counts // images)
    batches = groups.sum() // classes
    steps = round(recipe.epochs * batches)
    assert lines["steps:"] == f"{steps:,} of {classes * images:,} items, {batches:,} per epoch"
    assert not list(tmp_path.iterdir())


def shortened(name, changes):
    """The recipe with all that makes it large made small, and two steps; a warm-up, if it has one, is of one."""
    recipe = load_recipe(RECIPES[name], changes)
    changes = [*changes, "batch.classes=2", "batch.images_per_class=2", "evaluation.every=1e6"]
    backbone = recipe.model["backbone"]
    if backbone not in SMALL:  # 2 x 2 patches or positions
        changes += [f"model.backbone={STAND_INS[backbone]}", "model.weights=null", "model.image_size=32"]
        changes += ["pretrained_share=0"]  # of weights that the stand-in does not have
    if "test_size" in recipe.model:
        changes += ["model.test_size=48", "model.freeze=[conv_stem, bn1, blocks.0]"]
    if recipe.batch.chunk is not None:
        changes.append("batch.chunk=2")
    data = open_data(recipe, check=False)
    batches = len(make_sampler(load_recipe(RECIPES[name], changes), data.train))
    if recipe.schedule.warm_up_epochs:
        changes.append(f"schedule.warm_up_epochs={1 / batches}")
    return load_recipe(RECIPES[name], [*changes, f"epochs={2 / batches}"])


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_a_recipe_trains_two_steps(name, on_miniature, tmp_path, monkeypatch):
    monkeypatch.setattr("isomargin.measure.evaluate.SMALL", 0)  # the letters' pairs in bins: in a tenth of the time
    folder = tmp_path / "run"
    recipe = shortened(name, on_miniature(name))
    evaluation = run(folder, recipe)
    (row,) = metrics(folder)
    assert row["step"] == 2
    assert math.isfinite(row["loss"])
    assert "tcm" in row or not name.endswith("-tcm")
    if recipe.loss.regularizer is not None:
        loss = make_recipe_loss(recipe, classes=CLASSES, dimensions=4)
        parts = [weight * row[part] for weight, part in zip(loss.weights, loss.names, strict=True)]
        assert row["loss"] == pytest.approx(sum(parts), rel=1e-4)
    assert im.Evaluation.load(folder / "evaluation.json").scores() == evaluation.scores()
    vectors = im.EmbeddingSet.load(folder / "embeddings.npz").vectors
    assert np.isfinite(vectors).all()
    assert vectors.std(axis=0).max() > 0
