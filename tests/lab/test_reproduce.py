"""From an experiment to its tables: what is trained, what is not trained again, and the numbers that come out."""

import csv
import json
import shutil

import numpy as np
import pytest

import isomargin as im
from isomargin.lab.experiment import load_experiment, planned_runs
from isomargin.lab.reproduce import reproduce
from isomargin.lab.results import scores_of
from isomargin.measure.seeds import compare_seeds
from isomargin.training.recipe import load_recipe


def drawn(seed, spread):
    generator, labels = np.random.default_rng(seed), np.repeat(np.arange(24), 8)
    widths = np.linspace(1 - spread, 1 + spread, 24)[labels, None]
    centres = np.random.default_rng(99).normal(size=(24, 16))[labels]
    return centres + 0.6 * widths * generator.normal(size=(192, 16)), labels


class Trainer:
    """In place of training: embeddings that depend on the recipe alone."""

    def __init__(self):
        self.trained = []

    def __call__(self, recipe, folder, resume=False, quiet=False):
        self.trained.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        evaluation = im.evaluate(*drawn(recipe.seed, 0.1 if recipe.loss.regularizer else 0.5))
        evaluation.save(folder / "evaluation.json")
        return evaluation


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    trainer, folder = Trainer(), tmp_path_factory.mktemp("lab")
    rows = reproduce("base-losses", folder / "runs", folder / "results", scale="toy", seeds=3, train=trainer)
    return rows, trainer, folder


def test_every_run_is_trained_once_and_found_again(made, tmp_path):
    _, trainer, before = made
    assert len(trainer.trained) == len(set(trainer.trained)) == 2 * 5 * 3
    again = Trainer()
    reproduce("base-losses", before / "runs", tmp_path, scale="toy", seeds=3, train=again)
    assert again.trained == []
    shutil.rmtree(before / "runs" / "toy" / "smooth_ap+tcm" / "seed-2")
    reproduce("base-losses", before / "runs", tmp_path, scale="toy", seeds=3, train=again)
    assert len(again.trained) == 1


def test_rows_are_means_over_seeds_and_differences_those_of_compare_seeds(made):
    rows, _, _ = made
    row = next(each for each in rows if each.choices == {"loss": "smooth_ap", "training": "tcm"})
    plain, tcm = ([im.evaluate(*drawn(seed, spread)) for seed in range(3)] for spread in (0.5, 0.1))
    assert row.means["opis"] == pytest.approx(np.mean([each.opis for each in tcm]))
    assert row.lowest["recall@1"] == min(scores_of(each)["recall@1"] for each in tcm)
    expected = next(each for each in compare_seeds(plain, tcm) if each.score == "opis")
    assert row.differences["opis"] == expected
    assert row.against == "smooth_ap+plain"
    assert next(each for each in rows if each.choices["training"] == "plain").differences == {}


def test_tables_hold_the_rows_in_every_form(made):
    rows, _, folder = made
    place = folder / "results" / "base-losses"
    table = (place / "table.md").read_text().splitlines()
    assert len(table) == len(rows) + 2
    assert all(line.count("|") == table[0].count("|") for line in table)
    row = next(each for each in rows if each.choices == {"loss": "smooth_ap", "training": "tcm"})
    line = next(each for each in table if "| smooth_ap | tcm |" in each)
    assert f"{1e3 * row.means['opis']:.3g}" in line
    assert f"−{abs(100 * row.differences['opis'].change.value):.0f}%" in line
    latex = (place / "table.tex").read_text()
    assert r"smooth\_ap" in latex
    assert latex.count(r"\\") == len(rows) + 1
    with (place / "table.csv").open() as file:
        read = {(each["loss"], each["training"]): each for each in csv.DictReader(file)}
    assert float(read["smooth_ap", "tcm"]["opis"]) == row.means["opis"]


def test_every_run_has_its_scores_and_its_recipe_without_where_the_data_were(made):
    _, _, folder = made
    place = folder / "results" / "base-losses"
    runs = json.loads((place / "runs.json").read_text())
    assert len(runs) == 30
    assert {"setting", "loss", "training", "seed", "seconds", "opis", "recall@1"} <= set(runs[0])
    recipe = load_recipe(place / "recipes" / "toy-smooth_ap+tcm.yaml")
    assert "root" not in recipe.data
    assert str(folder) not in (place / "recipes" / "toy-smooth_ap+tcm.yaml").read_text()
    (planned,) = (
        run
        for run in planned_runs(load_experiment("base-losses"), "toy", 1, {"patterns": folder})
        if run.variant == "smooth_ap+tcm"
    )
    assert recipe.loss == planned.recipe.loss


def test_the_toy_is_trained_for_real(tmp_path, run):
    code, out, err = run(
        *("reproduce", "base-losses", "--scale", "toy", "--seeds", 1),
        *("--output", tmp_path / "runs", "--results", tmp_path / "results"),
    )
    assert code == 0, err
    assert out == (tmp_path / "results" / "base-losses" / "table.md").read_text()
    assert (tmp_path / "runs" / "toy" / "smooth_ap+alignment" / "seed-0" / "embeddings.npz").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the name of an experiment is needed"),
        (["nothing"], "there is no experiment 'nothing'"),
        (["base-losses"], "needs cub"),
        (["base-losses", "--scale", "huge"], "scale is 'huge'"),
        (["base-losses", "--data", "cub"], "NAME=FOLDER is needed"),
        (["base-losses", "--data", "cub=/no/such/folder"], "does not exist"),
        (["base-losses", "--scale", "toy", "--settings", "moon"], "settings"),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("reproduce", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
