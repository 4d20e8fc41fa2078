"""Every recipe that comes with the package plans and trains, on a miniature of its data in their public layout."""

import math
import shutil
import sys

import pytest

import isomargin as im
from data.layouts import CLASSES, IMAGES, TRAINABLE
from isomargin import cli
from isomargin.models.small import SMALL
from isomargin.training.recipe import load_recipe, shipped_recipes
from isomargin.training.setup import make_recipe_loss, make_sampler, open_data
from training.runs import metrics, run

RECIPES = shipped_recipes()


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Give the changes of a recipe that make its data a miniature, which is made once."""
    made = {}

    def changes(name):
        if name == "glyphs":
            return ["data.draws=1"]
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            TRAINABLE[name](made[name])
        return [f"data.root={made[name]}"]

    return changes


@pytest.fixture
def folder(tmp_path):
    """The folder of a run, deleted behind the test: the checkpoints of a ViT are more than a gigabyte."""
    yield tmp_path / "run"
    shutil.rmtree(tmp_path / "run", ignore_errors=True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_dry_run_names_the_datas_sizes_and_the_steps(name, tree, tmp_path, monkeypatch, capsys):
    changes = tree(load_recipe(RECIPES[name]).data["name"])
    recipe = load_recipe(RECIPES[name], changes)
    data = open_data(recipe, check=False)
    classes = min(recipe.batch.classes, len(data.train.class_names))
    if classes < recipe.batch.classes:
        changes.append(f"batch.classes={classes}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["isomargin", "train", name, *changes, "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert f"name: {name}\n" in printed.out
    lines = dict(line.split(maxsplit=1) for line in printed.out.splitlines()[-5:])
    if data.train.paths is not None:
        assert (len(data.train), len(data.train.class_names)) == (CLASSES * IMAGES, CLASSES)
        assert (len(data.test), len(data.test.class_names)) == (CLASSES * IMAGES, CLASSES)
    for part, images in (("training:", data.train), ("evaluation:", data.unseen), ("test:", data.test)):
        assert lines[part] == f"{len(images):,} images in {len(images.class_names):,} classes"
    batches = len(make_sampler(load_recipe(RECIPES[name], changes), data.train))
    images = classes * recipe.batch.images_per_class
    assert lines["steps:"] == f"{round(recipe.epochs * batches):,} of {images:,} images, {batches:,} an epoch"
    assert not list(tmp_path.iterdir())


def shortened(name, changes):
    """The recipe with all that makes it large made small, and two steps; half a warm-up if it has one."""
    recipe = load_recipe(RECIPES[name], changes)
    if recipe.model["backbone"] not in SMALL:
        changes = [*changes, f"model.image_size={32 if recipe.model['backbone'].startswith('vit') else 64}"]
        if recipe.model.get("weights") != "lite":  # which are installed
            changes.append("model.weights=null")
    changes = [*changes, "batch.classes=2", "batch.images_per_class=2", "evaluation.every=1e6"]
    if recipe.batch.chunk is not None:
        changes.append("batch.chunk=2")
    batches = len(make_sampler(load_recipe(RECIPES[name], changes), open_data(recipe, check=False).train))
    if recipe.schedule.warm_up_epochs:
        changes.append(f"schedule.warm_up_epochs={1 / batches}")
    return load_recipe(RECIPES[name], [*changes, f"epochs={2 / batches}"])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_two_steps(name, tree, folder):
    recipe = shortened(name, tree(load_recipe(RECIPES[name]).data["name"]))
    evaluation = run(folder, recipe)
    (row,) = metrics(folder)
    assert row["step"] == 2
    assert math.isfinite(row["loss"])
    loss = make_recipe_loss(recipe, classes=CLASSES, dimensions=4)
    if recipe.loss.regularizer is not None:
        assert row["loss"] == pytest.approx(
            sum(weight * row[part] for weight, part in zip(loss.weights, loss.names, strict=True)), rel=1e-5
        )
    assert ("tcm" in row) == name.endswith("-tcm")
    assert im.Evaluation.load(folder / "evaluation.json").scores() == evaluation.scores()
    assert 0 <= evaluation.opis < 1
    kept = im.EmbeddingSet.load(folder / "embeddings.npz").vectors
    assert kept.std(axis=0).max() > 0
