"""The recipes that come with the package: each can be trained, and those after a publication say what it says."""

from __future__ import annotations

import inspect
import json
from functools import cache

import pytest
import torch

from isomargin.data.registry import REGISTRY as READERS
from isomargin.losses import make_loss
from isomargin.losses.registry import REGISTRY as LOSSES
from isomargin.models import make_model
from isomargin.training.recipe import load_recipe, shipped_recipes

FILES = shipped_recipes()
NAMES = list(FILES)
WITH_TCM = [name for name in NAMES if name.endswith("-tcm")]

# Read off the publications' code: optimiser, learning rate, weight decay, epochs, batch, per class. Proxy Anchor and
# Unicom draw images at random, and have no number per class: 4 is ours.
PUBLISHED = {
    "inat-resnet50-smooth-ap": ("adam", 1e-5, 4e-4, 90, 384, 4),
    "inat-resnet50-recall-at-k": ("adam", 1e-4, 4e-4, 90, 4000, 4),
    "sop-resnet50-recall-at-k": ("adam", 2e-4, 4e-4, 55, 4000, 4),
    "cub-resnet50-recall-at-k": ("adam", 1e-4, 4e-4, 40, 400, 4),
    "cars-resnet50-recall-at-k": ("adam", 1e-4, 4e-4, 170, 392, 4),
    "inat-vit-b16-recall-at-k": ("adamw", 5e-5, 4e-4, 90, 4000, 4),
    "sop-vit-b16-recall-at-k": ("adamw", 5e-5, 4e-4, 55, 4000, 4),
    "cub-vit-b16-recall-at-k": ("adamw", 1e-5, 4e-4, 40, 400, 4),
    "cars-vit-b16-recall-at-k": ("adamw", 1e-5, 4e-4, 50, 392, 4),
    "sop-resnet50-roadmap": ("adam", 1e-5, 1e-4, 100, 128, 4),
    "cub-resnet50-proxy-anchor": ("adamw", 1e-4, 1e-4, 60, 120, 4),
    "cars-resnet50-proxy-anchor": ("adamw", 1e-4, 1e-4, 60, 120, 4),
    "cub-resnet50-proxy-nca-pp": ("adam", 4e-3, 0, 40, 32, 4),
    "cars-resnet50-proxy-nca-pp": ("adam", 4e-3, 0, 40, 32, 4),
    "sop-vit-b16-arcface": ("adamw", 1e-5, 0, 64, 64, 4),
}

# name, at, epochs, factor, warm-up
SCHEDULES = {
    "inat-resnet50-smooth-ap": ("multi_step", (40, 70), None, 0.3, 0),
    "inat-resnet50-recall-at-k": ("multi_step", (40, 70), None, 0.3, 0),
    "sop-resnet50-recall-at-k": ("multi_step", (25, 50), None, 0.3, 0),
    "cub-resnet50-recall-at-k": ("multi_step", (10, 20, 30), None, 0.3, 0),
    "cars-resnet50-recall-at-k": ("multi_step", (80, 140), None, 0.3, 0),
    "inat-vit-b16-recall-at-k": ("multi_step", (10, 40, 70), None, 0.3, 0),
    "sop-vit-b16-recall-at-k": ("multi_step", (25, 50), None, 0.3, 0),
    "cub-vit-b16-recall-at-k": ("multi_step", (10, 20, 30), None, 0.3, 0),
    "cars-vit-b16-recall-at-k": ("multi_step", (20, 30, 40), None, 0.3, 0),
    "sop-resnet50-roadmap": ("multi_step", (30, 70), None, 0.3, 0),
    "cub-resnet50-proxy-anchor": ("every", (), 5, 0.5, 5),
    "cars-resnet50-proxy-anchor": ("every", (), 10, 0.5, 5),
    "cub-resnet50-proxy-nca-pp": ("plateau", (), None, 0.1, 5),
    "cars-resnet50-proxy-nca-pp": ("plateau", (), None, 0.1, 5),
}

PROXY_RATES = {"proxy-anchor": 1e-2, "proxy-nca-pp": 4e2, "arcface": 1e-4}
TRAINING_CLASSES = {"inat": 5_690, "sop": 11_318, "cub": 100, "cars": 98}


@cache
def read(name):
    return load_recipe(FILES[name])


@cache
def built(config):
    with torch.device("meta"):
        return make_model(json.loads(config))


def model_of(recipe):
    return built(json.dumps({**recipe.model, "weights": None}, sort_keys=True))


def loss_of(recipe):
    parts = []
    for part in recipe.loss.parts():
        settings = {"name": part} if isinstance(part, str) else dict(part)
        wanted = inspect.signature(LOSSES[settings["name"]]).parameters
        for setting, value in (("num_classes", 7), ("embedding_size", model_of(recipe).dimensions)):
            assert setting not in settings, f"{setting} is the training loop's to fill in"
            if setting in wanted:
                settings[setting] = value
        parts.append(settings)
    return make_loss(parts)


def test_there_are_recipes_of_all_publications_with_and_without_tcm():
    assert set(PUBLISHED) | {f"{name}-tcm" for name in PUBLISHED} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_reads_under_its_own_name_and_says_how_to_run_it(name):
    assert read(name).name == name
    lines = FILES[name].read_text(encoding="utf-8").splitlines()
    comment = [line for line in lines[:4] if line.startswith("#")]
    assert lines[0].startswith("# ")
    commands = (f"isomargin train {name}", f"isomargin train recipes/{name}.yaml")
    assert any(line.startswith(f"# {command}") for line in comment for command in commands)


@pytest.mark.parametrize("name", NAMES)
def test_the_data_are_known_and_lie_where_the_user_says(name):
    data = dict(read(name).data)
    assert "root" not in data
    assert set(data) - {"name"} <= set(inspect.signature(READERS[data["name"]]).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_can_be_made_and_its_weights_exist(name):
    recipe = read(name)
    model_of(recipe)
    weights = recipe.model.get("weights")
    if weights not in (None, "pretrained", "lite"):
        import timm  # not before make_model has mended torchvision

        full = f"{recipe.model['backbone']}.{weights}"
        assert full in timm.list_pretrained(f"{recipe.model['backbone']}.*")


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_can_be_made_and_gives_a_gradient(name):
    recipe = read(name)
    embeddings = torch.randn(8, model_of(recipe).dimensions, requires_grad=True)
    loss_of(recipe)(embeddings, torch.arange(8) // 2).backward()
    assert torch.isfinite(embeddings.grad).all()
    assert embeddings.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_schedule_is_complete_and_ends_within_the_run(name):
    recipe = read(name)
    schedule = recipe.schedule
    assert (schedule.name == "multi_step") == bool(schedule.at)
    assert (schedule.name == "every") == (schedule.epochs is not None)
    assert all(0 < epoch < recipe.epochs for epoch in (*schedule.at, schedule.epochs or 1))
    assert schedule.warm_up_epochs < recipe.epochs


@pytest.mark.parametrize("name", WITH_TCM)
def test_a_recipe_with_tcm_is_its_base_but_for_the_regularizer(name):
    with_tcm, base = read(name).model_dump(), read(name.removesuffix("-tcm")).model_dump()
    regularizer = with_tcm["loss"].pop("regularizer")
    assert (regularizer if isinstance(regularizer, str) else regularizer["name"]) == "tcm"
    assert base["loss"].pop("regularizer") is None
    with_tcm.pop("name"), base.pop("name")
    assert with_tcm == base


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_has_the_published_numbers(name):
    recipe = read(name)
    optimizer, batch = recipe.optimizer, recipe.batch
    images = batch.classes * batch.images_per_class
    numbers = (optimizer.name, optimizer.learning_rate, optimizer.weight_decay, recipe.epochs, images)
    assert (*numbers, batch.images_per_class) == PUBLISHED[name]
    assert batch.classes <= TRAINING_CLASSES[recipe.data["name"]]
    assert name.startswith(recipe.data["name"])
    assert recipe.evaluation.best_by == "recall@1"


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_published_recipe_has_the_published_schedule(name):
    schedule = read(name).schedule
    numbers = (schedule.name, schedule.at, schedule.epochs, schedule.factor, schedule.warm_up_epochs)
    assert numbers == SCHEDULES[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_takes_tcm_at_the_papers_margins_and_the_base_losss_scale(name):
    loss = loss_of(read(f"{name}-tcm"))
    base, tcm = loss.parts
    assert (tcm.positive_margin, tcm.negative_margin, tcm.positive_weight, tcm.negative_weight) == (0.9, 0.5, 1, 1)
    scale = getattr(base, "alpha", getattr(base, "scale", 4))
    if name.endswith("proxy-nca-pp"):
        scale = 2 / base.temperature
    assert loss.weights[-1] == pytest.approx(scale / 4)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith(tuple(PROXY_RATES))])
def test_proxies_have_the_published_learning_rate(name):
    recipe = read(name)
    (group,) = loss_of(recipe).parameter_groups(recipe.optimizer.learning_rate)
    (expected,) = (rate for loss, rate in PROXY_RATES.items() if name.endswith(loss))
    assert group["lr"] == pytest.approx(expected)
