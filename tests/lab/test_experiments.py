"""Experiments as files: every one can be read, every run of it is a recipe that can be used."""

from pathlib import Path

import pytest

import isomargin as im
from isomargin.lab.experiment import (
    Choice,
    Setting,
    changes_of,
    experiment_names,
    load_experiment,
    load_settings,
    planned_runs,
)
from isomargin.training.setup import make_recipe_loss

DATA = {name: Path("somewhere") for name in ("cub", "patterns")}
ALL = [(name, scale) for name in experiment_names() for scale in load_experiment(name).plans]


@pytest.mark.parametrize(("name", "scale"), ALL)
def test_every_run_of_every_experiment_is_a_recipe_whose_losses_can_be_made(name, scale):
    experiment = load_experiment(name)
    runs = planned_runs(experiment, scale, seeds=1, data=DATA)
    assert runs
    assert len({run.folder for run in runs}) == len(runs)
    for run in runs:
        make_recipe_loss(run.recipe, 10, 8)
    for axis, choice in experiment.against.items():
        assert choice in experiment.plans[scale].axes[axis]


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_can_be_tried_out(name):
    assert "toy" in load_experiment(name).plans


def test_runs_differ_in_what_their_choices_say_and_in_the_seed():
    runs = planned_runs(load_experiment("base-losses"), "toy", seeds=2, data=DATA)
    by_name = {(run.variant, run.seed): run.recipe for run in runs}
    plain, tcm = by_name["smooth_ap+plain", 0], by_name["smooth_ap+tcm", 0]
    assert plain.loss.regularizer is None
    assert tcm.loss.regularizer["name"] == "tcm"
    assert plain.model_dump(exclude={"name", "loss"}) == tcm.model_dump(exclude={"name", "loss"})
    assert by_name["smooth_ap+plain", 1] == plain.model_copy(update={"seed": 1})
    assert plain.data["root"] == "somewhere"


def test_the_last_meaning_of_a_choice_whose_conditions_fit_counts():
    meanings = [Choice(changes=("epochs=1",)), Choice(changes=("epochs=2",), when={"loss": "arcface"})]
    setting = Setting(recipe="glyphs", choices={"training": {"plain": meanings}, "loss": {"arcface": [], "other": []}})
    shared = load_settings()[1]
    assert "arcface" in shared["loss"]
    assert "epochs=2" in changes_of(setting, {"training": "plain", "loss": "arcface"})
    assert "epochs=1" in changes_of(setting, {"training": "plain", "loss": "smooth_ap"})


def test_unknown_names_are_told():
    with pytest.raises(im.InputError, match="did you mean 'base-losses'"):
        load_experiment("base-lose")
    with pytest.raises(im.InputError, match="nothing says what 'magic' of training means"):
        changes_of(Setting(recipe="glyphs"), {"training": "magic"})
    with pytest.raises(im.InputError, match="needs cub: say where it is"):
        planned_runs(load_experiment("base-losses"), "small", data={})
