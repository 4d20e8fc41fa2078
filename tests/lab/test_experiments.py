"""Experiments as files: every one can be read, and every run of it has a recipe that can be used."""

import inspect
import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import isomargin as im
from isomargin.figures.registry import find_figure
from isomargin.measure.scores.registry import find_score
from isomargin.training.recipe import load_recipe
from isomargin.training.setup import make_recipe_loss
from lab.experiment import Choice, Experiment, Plan, Setting, experiment_names, load_experiment, load_settings
from lab.plan import changes_of, combinations, find_settings, planned_runs

DATA = {setting.data: Path("somewhere") for setting in load_settings()[0].values() if setting.data}
ALL = [(name, scale) for name in experiment_names() for scale in load_experiment(name).plans]


def test_the_package_imports_nothing_of_lab_which_is_not_installed():
    importing = re.compile(r"^\s*(from|import) lab\b", re.M)
    package = Path(im.__file__).parent
    assert [path for path in package.rglob("*.py") if importing.search(path.read_text(encoding="utf-8"))] == []


@cache
def runs_of(name, scale):
    return planned_runs(load_experiment(name), scale, seeds=1, data=DATA)


@pytest.mark.parametrize(("name", "scale"), ALL)
def test_every_run_of_every_experiment_has_a_recipe_whose_losses_can_be_made(name, scale):
    experiment = load_experiment(name)
    runs = runs_of(name, scale)
    assert runs
    assert len({run.folder for run in runs}) == len(runs)
    for run in runs:
        make_recipe_loss(run.recipe, 10, 8)
    for axis, choice in experiment.against.items():
        assert choice in experiment.plans[scale].axes[axis]


def test_experiments_that_share_a_run_share_its_recipe():
    recipes = {}
    for name, scale in ALL:
        if load_experiment(name).kind == "training":
            for run in runs_of(name, scale):
                assert recipes.setdefault(run.folder, run.recipe) == run.recipe, (name, scale, run.folder)


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_can_be_tried_out_and_says_what_more_of_it_needs(name):
    plans = load_experiment(name).plans
    assert "toy" in plans
    assert all(plan.needs for scale, plan in plans.items() if scale != "toy")


@pytest.mark.parametrize("name", experiment_names())
def test_columns_and_figures_of_every_experiment_are_known(name):
    experiment = load_experiment(name)
    for column in experiment.columns:
        find_score(column)
    for wanted in experiment.figures:
        kind = find_figure(wanted.figure)
        assert kind.source != "search", "experiments of kind margins draw it by themselves"
        assert set(wanted.options) <= set(inspect.signature(kind.draw).parameters)
        for axis, choices in wanted.runs.items():
            offered = {choice for plan in experiment.plans.values() for choice in plan.axes.get(axis, ())}
            assert set(choices) <= offered


def test_runs_differ_in_what_their_choices_say_and_in_the_seed():
    runs = planned_runs(load_experiment("base-losses"), "toy", seeds=2, data=DATA)
    by_name = {(run.variant, run.seed): run.recipe for run in runs}
    plain, tcm = by_name["smooth_ap+plain", 0], by_name["smooth_ap+tcm", 0]
    assert plain.loss.regularizer is None
    assert tcm.loss.regularizer["name"] == "tcm"
    assert plain.model_dump(exclude={"name", "loss"}) == tcm.model_dump(exclude={"name", "loss"})
    assert by_name["smooth_ap+plain", 1] == plain.model_copy(update={"seed": 1})
    assert plain.data["root"] == "somewhere"


def test_a_setting_that_takes_long_may_have_fewer_seeds_unless_a_number_is_asked_for(add):
    plan = {"settings": ["toy", "birds"], "axes": {"training": ["plain"]}, "seeds": 3, "seeds_of": {"birds": 1}}
    experiment = add("losses", plans={"toy": plan})
    data = {"patterns": Path("somewhere"), "cub": Path("elsewhere")}
    seeds = [(run.setting, run.seed) for run in planned_runs(experiment, "toy", data=data)]
    assert seeds == [("toy", 0), ("toy", 1), ("toy", 2), ("birds", 0)]
    asked = [(run.setting, run.seed) for run in planned_runs(experiment, "toy", seeds=2, data=data)]
    assert asked == [("toy", 0), ("toy", 1), ("birds", 0), ("birds", 1)]
    with pytest.raises(im.InputError, match="seeds_of has 'bird', which is not among the settings"):
        add("losses", plans={"toy": {**plan, "seeds_of": {"bird": 1}}})


def test_only_leaves_out_the_combinations_that_fit_none_of_its_parts():
    axes = {"loss": ("a", "b", "c"), "training": ("plain", "tcm"), "batch": ("small", "large")}
    only = ({"loss": "a", "training": ["plain", "tcm"]}, {"loss": ["b", "c"], "batch": "large", "training": "tcm"})
    kept = {tuple(chosen.values()) for chosen in combinations(Plan(settings=("toy",), axes=axes, only=only), "toy")}
    expected = {
        (loss, training, batch)
        for loss, training, batch in product("abc", ("plain", "tcm"), ("small", "large"))
        if loss == "a" or (training == "tcm" and batch == "large")
    }
    assert kept == expected
    by_setting = Plan(settings=("one", "two"), axes=axes, only=({"setting": "one", "loss": "a"}, {"setting": "two"}))
    assert [len(combinations(by_setting, setting)) for setting in ("one", "two")] == [4, 12]
    with pytest.raises(im.InputError, match="'lose'"):
        combinations(Plan(settings=("toy",), axes=axes, only=({"lose": "a"},)), "toy")


def test_the_last_meaning_of_a_choice_whose_conditions_fit_is_used():
    meanings = [Choice(changes=("epochs=1",)), Choice(changes=("epochs=2",), when={"loss": "arcface"})]
    setting = Setting(recipe="glyphs", choices={"training": {"plain": meanings}, "loss": {"arcface": [], "other": []}})
    shared = load_settings()[1]
    assert "arcface" in shared["loss"]
    assert "epochs=2" in changes_of(setting, {"training": "plain", "loss": "arcface"})
    assert "epochs=1" in changes_of(setting, {"training": "plain", "loss": "smooth_ap"})


def test_margins_belong_to_experiments_that_search_them():
    margins = {"positive": [0.9], "negative": [0.5]}
    with pytest.raises(ValueError, match="only kind margins has them"):
        Experiment.model_validate({"title": "a", "plans": {"toy": {"settings": ["toy"], "margins": margins}}})
    with pytest.raises(ValueError, match="has no margins"):
        Experiment.model_validate({"title": "a", "kind": "margins", "plans": {"toy": {"settings": ["toy"]}}})


def test_unknown_names_are_refused(add):
    add("losses")
    with pytest.raises(im.InputError, match="did you mean 'losses'"):
        load_experiment("loses")
    with pytest.raises(im.InputError, match="does not define 'magic' of training"):
        changes_of(Setting(recipe="glyphs"), {"training": "magic"})
    with pytest.raises(im.InputError, match=r"no setting 'toys' in settings\.yaml: did you mean 'toy'"):
        find_settings(Plan(settings=("toys",)), None, {})


def test_all_missing_data_are_named_at_once_with_what_else_is_needed(add):
    plan = Plan(settings=("birds", "toy", "cars"), needs="eight GPUs\n for a week")
    with pytest.raises(im.InputError) as raised:
        find_settings(plan, None, {"patterns": Path("somewhere")})
    sentence = str(raised.value)
    assert "birds, cars need cub, cars" in sentence
    assert "--data cub=FOLDER --data cars=FOLDER" in sentence
    assert sentence.endswith("eight GPUs for a week")
    assert list(find_settings(plan, ["toy"], {"patterns": Path("somewhere")})) == ["toy"]


SMALL = [name for name in load_settings()[0] if "-heads" in name and name != "cub-heads-epochs"]  # that has one weight


@pytest.mark.parametrize("setting", [*SMALL, "omniglot", "glyphs"])
@pytest.mark.parametrize("loss", ["proxy_nca", "arcface", "smooth_ap", "recall_at_k", "proxy_anchor", "soft_triple"])
def test_both_is_the_alignment_and_the_same_tcm(setting, loss):
    chosen = load_settings()[0][setting]

    def regularizer(training):
        changes = [*chosen.changes, *changes_of(chosen, {"loss": loss, "training": training})]
        return load_recipe(chosen.recipe, changes).loss.regularizer

    assert regularizer("both") == [regularizer("alignment"), regularizer("tcm")]
