"""Searches of margins with several seeds: the means decide, whatever a single seed would have picked."""

import math

import pytest
from pretended_training import Trainer

import isomargin as im
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.tuned import Tuned, TunedRun
from lab.files import read_csv, write_csv
from lab.margins import find, margins_results
from lab.results_folder import read_recipes
from lab.run_experiment import run_experiment
from lab.tables import make_table, tables_text

pytestmark = pytest.mark.usefixtures("unsaved_figures")


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


def test_a_point_that_loses_recall_in_the_mean_or_diverged_once_is_not_picked():
    good, poor = search(3e-3, 2e-3, 1e-3), search(3e-3, 2e-3, 1e-3, recall=(0.8, 0.8, 0.7))
    assert find("toy", {}, {0: good, 1: good}, 0.01).picked.name == "0.7-0.5"
    assert find("toy", {}, {0: good, 1: poor}, 0.01).picked.name == "0.9-0.5"
    diverged = search(3e-3, 2e-3, math.nan, recall=(0.8, 0.8, math.nan))
    assert find("toy", {}, {0: good, 1: diverged}, 0.01).picked.name == "0.9-0.5"


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
    runs = read_csv(place / "runs.csv")
    assert len(runs) == 20
    assert {(run["loss"], run["seed"]) for run in runs} == {
        (loss, seed) for loss in ("smooth_ap", "arcface") for seed in ("0", "1")
    }
    row = next(row for row in rows if row["loss"] == "arcface")
    baselines = [run for run in runs if (run["loss"], run["name"]) == ("arcface", "baseline")]
    mean = sum(float(run["opis"]) for run in baselines) / 2
    assert row["opis without TCM"] == pytest.approx(mean)
    assert f"| {1e3 * mean:.3g} |" in tables_text("margins", tmp_path / "results")
    recipe = read_recipes(place / "recipes.yaml")["toy-arcface"]
    assert recipe.loss.regularizer["positive_margin"] == row["positive_margin"]
    assert recipe.evaluation.test
    assert (place / "margins_grid-toy-arcface.png").is_file()


def add_search(add, **fields):
    margins = {"positive": [0.9], "negative": [0.5, 0.4], "held_out": 0.4}
    axes = {"loss": ["smooth_ap", "arcface"]}
    plan = {"settings": ["toy"], "axes": axes, "seeds": 2, "margins": margins, **fields}
    return add("margins", kind="margins", plans={"toy": plan})


def test_a_search_that_diverged_at_every_point_has_a_row_without_margins_and_is_not_trained_again(add, tmp_path):
    add_search(add)
    notes = []

    def run(trainer):
        notes.clear()
        options = {"scale": "toy", "train": trainer, "report": notes.append}
        return run_experiment("margins", tmp_path / "runs", tmp_path / "results", **options)

    def diverges(recipe):
        return recipe.loss.base["name"] == "arcface" and bool(recipe.loss.regularizer) and recipe.seed == 1

    rows = run(SearchTrainer(diverges))
    assert [(row["loss"], row["positive_margin"]) for row in rows] == [("smooth_ap", 0.9), ("arcface", None)]
    assert notes[-1] == "note: toy-arcface has no margins: no point of its grid has scores with every seed"
    text = tables_text("margins", tmp_path / "results")
    assert "| toy | arcface | 2 | – | – | – | – | – | – | – | – | – |" in text
    assert text.endswith("toy arcface has no margins: no point of its grid has scores with every seed.\n")
    assert [path.stem for path in (tmp_path / "results").glob("*/*.png")] == ["margins_grid-toy-smooth_ap"]
    again = SearchTrainer()
    assert run(again) == rows
    assert again.trained == []


def test_other_faults_of_a_search_are_not_taken_for_divergence(add, tmp_path):
    add_search(add, seeds=1)

    def run(trainer):
        return run_experiment("margins", tmp_path / "runs", tmp_path / "results", scale="toy", train=trainer)

    rows = run(SearchTrainer(lambda recipe: bool(recipe.loss.regularizer)))
    assert [row["positive_margin"] for row in rows] == [None, None]
    baseline = tmp_path / "runs" / "toy" / "margins" / "arcface" / "seed-0" / "baseline" / "recipe.yaml"
    load_recipe(baseline, ["optimizer.learning_rate=0.5"]).save(baseline)
    with pytest.raises(im.InputError, match="started with another optimizer"):
        run(SearchTrainer())


def test_points_that_diverged_with_one_seed_each_leave_nothing_to_pick():
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
    results = margins_results([weighted, shared])
    assert [(row["weight"], row.get("share")) for row in results.rows] == [(1.0, None), (None, 0.3)]
    write_csv(tmp_path / "table.csv", results.rows)
    table = make_table(add_search(add), read_csv(tmp_path / "table.csv"))
    column = table.heads.index("weight")
    assert [line[column] for line in table.lines] == ["1", "share 0.3"]
    points = [(run["name"], run["weight"], run.get("share")) for run in results.runs]
    assert points[:2] == [("baseline", None, None), ("0.9-0.5", 1.0, None)]
    assert points[3:5] == [("baseline", None, None), ("0.9-0.5", None, 0.3)]
