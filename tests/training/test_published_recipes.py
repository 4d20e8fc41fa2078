"""Recipes after a publication, compared line by line with the table of docs/published-recipes.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from isomargin.training.recipe import load_recipe, shipped_recipes
from lab.experiment import experiment_names, load_experiment, load_settings
from lab.plan import planned_runs

PAGE = Path(__file__).parents[2] / "docs" / "published-recipes.md"
DATA = ("inat", "sop", "cub", "cars")
QUARTER = "-tcm-quarter-scale"
TRAINING_CLASSES = {"inat": 5_690, "sop": 11_318, "cub": 100, "cars": 98, "cub closed": 200, "cars closed": 196}


def published_rows():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    columns, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(columns, row, strict=True)) for row in rows]


ROWS = {row["recipe"].strip("`"): row for row in published_rows()}
PUBLISHED = [name for name in shipped_recipes() if name.split("-")[0] in DATA and "lite" not in name]
PLAIN = [name for name in PUBLISHED if "-tcm" not in name]


def number(value):
    """A number as the table writes it: 1e-5, 0.3, 90.

    >>> number(1e-05), number(0.3), number(90.0), number(100000.0)
    ('1e-5', '0.3', '90', '1e5')
    """
    text = f"{value:g}" if 1e-2 <= abs(value) < 1e4 or value == 0 else f"{value:e}"
    return re.sub(r"\.?0*e([+-])0*(\d+)", lambda match: f"e{match[1].strip('+')}{match[2]}", text)


def of_optimizer(optimizer):
    words = [optimizer.name]
    words += [f"eps {number(optimizer.eps)}"] if optimizer.eps is not None else []
    words += [f"clip value {number(optimizer.clip_value)}"] if optimizer.clip_value is not None else []
    words += [f"clip norm {number(optimizer.clip_norm)}"] if optimizer.clip_norm is not None else []
    words += [f"head ×{number(optimizer.head_factor)}"] if optimizer.head_factor != 1 else []
    return ", ".join(words)


def of_schedule(schedule):
    text = {
        "constant": "constant",
        "multi_step": f"×{number(schedule.factor)} at {', '.join(map(number, schedule.at))}",
        "every": f"×{number(schedule.factor)} every {number(schedule.epochs or 0)}",
        "plateau": f"plateau ×{number(schedule.factor)}, patience {schedule.patience}",
        "one_cycle": f"one cycle, rise {number(schedule.rise)}",
    }[schedule.name]
    return text + (f", warm-up {number(schedule.warm_up_epochs)}" if schedule.warm_up_epochs else "")


def of_backbone(model):
    parts = [f"{model['backbone']} {model['weights']}"]
    parts += [f"{model['image_size']} px"] if "image_size" in model else []
    parts += [f"frozen: {', '.join(model['freeze'])}"] if "freeze" in model else []
    return ", ".join(parts)


def of_head(model):
    pooling = model["pooling"]
    if pooling == "gem":
        pooling += f" {number(model['gem_power'])}" + (" learnt" if model["gem_learnable"] else "")
    parts = [] if pooling == "none" else [pooling]
    parts += ["own"] if pooling == "none" else []
    parts += ["projection"] if model.get("keep_head") else []
    parts += ["LayerNorm"] if model.get("layer_norm") else []
    parts += [f"Linear {model['dimensions']}"] if model["dimensions"] is not None else []
    return ", ".join(parts)


def of_images(augmentation):
    if augmentation.name == "none":
        parts = ["as in the test"]
    else:
        parts = [f"crop {number(augmentation.smallest_area)}"]
        parts += ["flip"] if augmentation.flip == 0.5 else [f"flip {number(augmentation.flip)}"]
    parts += [f"resize {augmentation.resize}"] if augmentation.resize is not None else []
    return ", ".join(parts)


def plain(value):
    if isinstance(value, str):
        return value
    return " ".join(map(number, value)) if isinstance(value, list) else number(value)


def of_loss(base):
    settings = [name if value is True else f"{name} {plain(value)}" for name, value in base.items() if name != "name"]
    return ", ".join([base["name"], *settings])


def described(recipe):
    """The columns of a recipe's row, from its resolved settings; the source is not among its settings."""
    images = recipe.batch.classes * recipe.batch.images_per_class
    return {
        "data": recipe.data["name"] + (" closed" if recipe.data.get("split") == "closed" else ""),
        "backbone": of_backbone(recipe.model),
        "optimiser": of_optimizer(recipe.optimizer),
        "learning rate": number(recipe.optimizer.learning_rate),
        "weight decay": number(recipe.optimizer.weight_decay),
        "epochs": number(recipe.epochs),
        "schedule": of_schedule(recipe.schedule),
        "batch": str(images),
        "per class": str(recipe.batch.images_per_class),
        "head": of_head(recipe.model),
        "BatchNorm": {"statistics": "statistics frozen", "all": "frozen"}.get(
            recipe.model.get("freeze_batch_norm", "none"), "as usual"
        ),
        "images": of_images(recipe.augmentation),
        "loss": of_loss(recipe.loss.base),
        "pairs": ", ".join(recipe.evaluation.pairs),
    }


def test_every_published_recipe_has_a_row_and_every_row_a_recipe_with_and_without_tcm():
    assert sorted(ROWS) == sorted(PLAIN)
    assert len(published_rows()) == len(ROWS)
    assert {f"{name}-tcm" for name in PLAIN} == {name for name in PUBLISHED if name.endswith("-tcm")}
    assert all(row["source"] for row in ROWS.values())


@pytest.mark.parametrize("name", PLAIN)
def test_a_published_recipe_is_what_its_row_says(name):
    recipe = load_recipe(name)
    row = {column: text for column, text in ROWS[name].items() if column not in ("recipe", "source")}
    assert described(recipe) == row
    assert recipe.loss.regularizer is None
    assert recipe.batch.classes <= TRAINING_CLASSES[row["data"]]
    assert recipe.evaluation.best_by == "recall@1"
    assert not {"test_size", "normalise"} & recipe.model.keys()
    assert recipe.augmentation.name in (None, "none")  # image files are cropped unless it is none
    assert recipe.augmentation.views is None
    assert recipe.pretrained_share == 0
    assert (recipe.evaluation.far, recipe.evaluation.negatives_per_positive) == ((1e-2, 1e-1), 10)
    assert (recipe.evaluation.epsilon, recipe.evaluation.utility) == (0.1, "specificity_sensitivity")
    assert recipe.evaluation.held_out == 0
    assert recipe.evaluation.grid >= 10
    assert name.startswith(recipe.data["name"])


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith("-tcm")])
def test_tcm_has_the_papers_margins_and_weight(name):
    papers = {"name": "tcm", "weight": 1, "positive_margin": 0.9, "negative_margin": 0.5}
    assert load_recipe(name).loss.regularizer == papers


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith(QUARTER)])
def test_the_projects_own_weight_is_a_quarter_of_the_scale(name):
    own, papers = load_recipe(name).model_dump(), load_recipe(name.removesuffix("-quarter-scale")).model_dump()
    base = own["loss"]["base"]
    scale = 18 if base["name"] == "proxy_nca++" else base.get("alpha", base.get("scale"))
    assert own["loss"]["regularizer"].pop("weight") == scale / 4
    papers["loss"]["regularizer"].pop("weight")
    assert {**own, "name": ""} == {**papers, "name": ""}


@cache
def paper_runs(name):
    data = {setting.data: Path("somewhere") for setting in load_settings()[0].values() if setting.data}
    return planned_runs(load_experiment(name), "paper", seeds=1, data=data)


def test_every_plan_of_the_papers_scale_gives_tcm_the_weight_1():
    names = [name for name in experiment_names() if "paper" in load_experiment(name).plans and name != "mnist-2d"]
    runs = [run for name in names for run in paper_runs(name) if run.choices.get("training", "").startswith("tcm")]
    assert len(runs) > 50
    for run in runs:
        assert run.recipe.loss.regularizer.get("weight") == 1, run.folder
        assert "share" not in run.recipe.loss.regularizer


@pytest.mark.parametrize("experiment", ["main-results", "pretrained", "splits"])
def test_the_runs_of_the_papers_tables_are_the_recipes_that_come_with_the_package(experiment):
    for run in paper_runs(experiment):
        setting, closed = re.fullmatch(r"(.*?)(-closed)?", run.setting).groups("")
        ending = "-tcm" if run.choices["training"] == "tcm" else ""
        recipe = load_recipe(f"{setting}-{run.choices['loss'].replace('_', '-')}{closed}{ending}").model_dump()
        planned = run.recipe.model_dump()
        planned["data"].pop("root")
        assert {**planned, "name": ""} == {**recipe, "name": ""}, run.folder
