"""The recipes that come with the package: each can be trained. Those after a publication: test_published_recipes.py."""

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
    if weights not in (None, "pretrained", "lite") and not weights.endswith(".pt"):
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
