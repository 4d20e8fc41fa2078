"""Searches of margins with several seeds: the means decide, whatever single seeds would have picked."""

import json
import math

import pytest
from pretended_training import Trainer

import isomargin as im
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.tuned import Tuned, TunedRun
from lab.margins import find, margins_outcome
from lab.run_experiment import run_experiment


class SearchTrainer(Trainer):
    """Training of a search's points."""

    def __call__(self, recipe, folder, check_images, **options):
        assert recipe.evaluation.held_out == 0.4
        assert not recipe.evaluation.test
        super().__call__(recipe, folder, **options)


MARGINS = {"positive": [0.9, 0.7], "negative": [0.5], "weights": [1, 2], "held_out": 0.4}


def search(*opis, recall=(0.8, 0.8, 0.8)):
    recipe = Recipe(
        name="a", data={}, model={}, loss={"base": "smooth_ap", "regularizer": {"name": "tcm", "weight": 9}}
    )
    points = (("baseline", None, None), ("0.9-0.5", 0.9, 0.5), ("0.7-0.5", 0.7, 0.5))
    rows = [
        TunedRun(name, positive, negative, positive and 1.0, at_1, value, 0.1, 0.4, picked=name == "0.9-0.5")
        for (name, positive, negative), at_1, value in zip(points, recall, opis, strict=True)
    ]
    return Tuned(tuple(rows), recipe)


def test_the_point_that_is_best_in_the_mean_is_picked():
    found = find("toy", {}, {0: search(3e-3, 1.9e-3, 2e-3), 1: search(3e-3, 1.9e-3, 1e-3)}, tolerance=0.01)
    assert found.picked.name == "0.7-0.5"
    assert found.picked.opis == pytest.approx(1.5e-3)
    assert found.baseline.opis == pytest.approx(3e-3)
    assert [row.picked for row in found.rows] == [False, False, True]
    assert found.recipe.loss.regularizer == {
        "name": "tcm",
        "positive_margin": 0.7,
        "negative_margin": 0.5,
        "weight": 1.0,
    }


def test_a_point_that_loses_recall_in_the_mean_or_went_astray_once_is_not_picked():
    good, poor = search(3e-3, 2e-3, 1e-3), search(3e-3, 2e-3, 1e-3, recall=(0.8, 0.8, 0.7))
    assert find("toy", {}, {0: good, 1: good}, 0.01).picked.name == "0.7-0.5"
    assert find("toy", {}, {0: good, 1: poor}, 0.01).picked.name == "0.9-0.5"
    astray = search(3e-3, 2e-3, math.nan, recall=(0.8, 0.8, math.nan))
    assert find("toy", {}, {0: good, 1: astray}, 0.01).picked.name == "0.9-0.5"


def test_every_seed_is_a_search_that_is_found_again(add, tmp_path):
    plan = {"settings": ["toy"], "axes": {"loss": ["smooth_ap", "arcface"]}, "seeds": 2, "margins": MARGINS}
    add("margins", kind="margins", plans={"toy": plan})
    trainer = SearchTrainer()
    rows = run_experiment("margins", tmp_path / "runs", tmp_path / "results", scale="toy", train=trainer)
    assert len(trainer.trained) == 2 * 2 * (1 + 4)
    assert tmp_path / "runs" / "toy" / "margins" / "arcface" / "seed-1" / "0.7-0.5-w2" in trainer.trained
    assert run_experiment("margins", tmp_path / "runs", tmp_path / "results", scale="toy", train=trainer) == rows
    assert len(trainer.trained) == 2 * 2 * (1 + 4)

    place = tmp_path / "results" / "margins"
    runs = json.loads((place / "runs.json").read_text())
    assert len(runs) == 20
    assert {(run["loss"], run["seed"]) for run in runs} == {
        (loss, n) for loss in ("smooth_ap", "arcface") for n in (0, 1)
    }
    row = next(row for row in rows if row["loss"] == "arcface")
    own = [run for run in runs if run["loss"] == "arcface"]
    mean = sum(run["opis"] for run in own if run["name"] == "baseline") / 2
    assert row["opis without TCM"] == pytest.approx(mean)
    assert f"{1e3 * mean:.3g}" in (place / "table.md").read_text()
    recipe = load_recipe(place / "recipes" / "toy-arcface.yaml")
    assert recipe.loss.regularizer["positive_margin"] == row["positive_margin"]
    assert recipe.evaluation.test
    assert (place / "margins_grid-toy-arcface.png").stat().st_size > 1000


def add_search(add, **fields):
    margins = {"positive": [0.9], "negative": [0.5, 0.4], "held_out": 0.4}
    axes = {"loss": ["smooth_ap", "arcface"]}
    plan = {"settings": ["toy"], "axes": axes, "seeds": 2, "margins": margins, **fields}
    add("margins", kind="margins", plans={"toy": plan})


def test_a_search_that_went_astray_as_a_whole_is_a_note_and_is_not_trained_again(add, tmp_path):
    add_search(add)
    notes = []

    def run(trainer):
        notes.clear()
        options = {"scale": "toy", "train": trainer, "report": notes.append}
        return run_experiment("margins", tmp_path / "runs", tmp_path / "results", **options)

    def astray(recipe):
        return recipe.loss.base["name"] == "arcface" and bool(recipe.loss.regularizer) and recipe.seed == 1

    rows = run(SearchTrainer(astray))
    assert [row["loss"] for row in rows] == ["smooth_ap"]
    sentence = "toy arcface is missing: no point of its grid has scores with every seed, training went astray."
    assert notes[-1] == f"note: {sentence}"
    assert sentence in (tmp_path / "results" / "margins" / "table.md").read_text()
    again = SearchTrainer()
    assert run(again) == rows
    assert again.trained == []
    assert notes[-1] == f"note: {sentence}"


def test_other_faults_of_a_search_are_not_taken_for_one_that_went_astray(add, tmp_path):
    add_search(add, seeds=1)

    def run(trainer):
        return run_experiment("margins", tmp_path / "runs", tmp_path / "results", scale="toy", train=trainer)

    assert run(SearchTrainer(lambda recipe: bool(recipe.loss.regularizer))) == []
    baseline = tmp_path / "runs" / "toy" / "margins" / "arcface" / "seed-0" / "baseline" / "recipe.yaml"
    load_recipe(baseline, ["optimizer.learning_rate=0.5"]).save(baseline)
    with pytest.raises(im.InputError, match="begun with another optimizer"):
        run(SearchTrainer())


def test_points_that_went_astray_with_one_seed_each_leave_nothing_to_pick():
    first = search(3e-3, math.nan, 1e-3, recall=(0.8, math.nan, 0.8))
    second = search(3e-3, 1e-3, math.nan, recall=(0.8, 0.8, math.nan))
    assert find("toy", {}, {0: first, 1: second}, 0.01) is None


def test_a_search_is_found_again_after_its_data_have_moved(add, tmp_path):
    add_search(add, seeds=1)
    rows = run_experiment("margins", tmp_path / "runs", tmp_path / "results", scale="toy", train=SearchTrainer())
    (tmp_path / "runs").rename(tmp_path / "moved")  # the toy's data lie there
    again = SearchTrainer()
    assert run_experiment("margins", tmp_path / "moved", tmp_path / "results", scale="toy", train=again) == rows
    assert again.trained == []


def test_a_share_is_shown_in_the_weights_place(add, tmp_path):
    recipe = search(3e-3, 2e-3, 1e-3).recipe
    loss = recipe.loss.model_copy(update={"regularizer": {"name": "tcm", "weight": 1, "share": 0.3}})
    tuned = Tuned(search(3e-3, 2e-3, 1e-3).rows, recipe.model_copy(update={"loss": loss}))
    weighted, shared = (find("toy", {}, {0: each}, 0.01) for each in (search(3e-3, 2e-3, 1e-3), tuned))
    assert shared.recipe.loss.regularizer == {
        "name": "tcm",
        "share": 0.3,
        "positive_margin": 0.7,
        "negative_margin": 0.5,
    }
    outcome = margins_outcome([weighted, shared])
    column = outcome.table.heads.index("weight")
    assert [line[column] for line in outcome.table.lines] == ["1", "share 0.3"]
    assert [(row["weight"], row.get("share")) for row in outcome.table.numbers] == [(1.0, None), (None, 0.3)]
    points = [(run["name"], run["weight"], run.get("share")) for run in outcome.runs]
    assert points[:2] == [("baseline", None, None), ("0.9-0.5", 1.0, None)]
    assert points[3:5] == [("baseline", None, None), ("0.9-0.5", None, 0.3)]
