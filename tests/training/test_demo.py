"""The demo: two runs and a table; here with a tiny recipe in the letters' place."""

import json
import sys

import pytest

import isomargin as im
from isomargin.cli import app as cli
from isomargin.training.demo import RECIPES
from isomargin.training.recipe import load_recipe
from training.runs import tiny


@pytest.fixture
def demo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base = tiny(name="glyphs", loss={"base": "smooth_ap", "regularizer": None}, epochs=0.3)
    consistent = tiny(name="glyphs-tcm", loss={"base": "smooth_ap", "regularizer": "tcm"}, epochs=0.3)
    for recipe in (base, consistent):
        recipe.save(tmp_path / f"{recipe.name}.yaml")
    shipped = {name: tmp_path / f"{name}.yaml" for name in RECIPES}
    monkeypatch.setattr("isomargin.training.recipe.shipped_recipes", lambda: shipped)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["isomargin", "demo", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call


def test_the_demo_trains_both_and_compares(demo, tmp_path):
    code, out, err = demo("--seed", 3)
    assert code == 0, err
    runs = {name: tmp_path / "runs/demo" / name for name in RECIPES}
    evaluations = {name: im.Evaluation.load(folder / "evaluation.json") for name, folder in runs.items()}
    for name, evaluation in evaluations.items():
        assert name in out
        assert f"{evaluation.opis:.3e}" in out
        assert f"{evaluation.recall_at_k[1]:.2%}" in out
        assert load_recipe(runs[name] / "recipe.yaml").seed == 3
    change = evaluations["glyphs-tcm"].opis / evaluations["glyphs"].opis - 1
    assert f"{change:+.0%}" in out
    assert "FAR of the classes" in out
    assert "runs/demo" in err


def test_the_demo_can_be_run_again_and_speaks_json(demo, tmp_path):
    assert demo("--output", "mine")[0] == 0
    code, out, _ = demo("--output", "mine", "--json")
    assert code == 0
    scores = {name: each["scores"] for name, each in json.loads(out).items()}
    assert scores == {
        name: im.Evaluation.load(tmp_path / "mine" / name / "evaluation.json").scores() for name in RECIPES
    }


def test_the_demo_leaves_alone_what_is_not_its_own(demo, tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "file/below"):
        code, out, err = demo("--output", folder)
        assert (code, out) == (2, "")
        assert err.startswith(f"isomargin: {folder} cannot be written")
    (tmp_path / "other/glyphs").mkdir(parents=True)
    (tmp_path / "other/glyphs/notes.txt").write_text("mine")
    code, _, err = demo("--output", "other")
    assert code == 2
    assert "is no run" in err
    assert (tmp_path / "other/glyphs/notes.txt").read_text() == (tmp_path / "file").read_text() == "mine"


def test_the_two_recipes_differ_in_the_regularizer_alone():
    base, consistent = (load_recipe(name) for name in RECIPES)
    assert base.loss.regularizer is None
    assert consistent.loss.regularizer["name"] == "tcm"
    same = {"name": base.name, "loss": base.loss}
    assert consistent.model_copy(update=same) == base


def test_the_demo_writes_a_page_of_both_runs_if_asked(demo, tmp_path):
    code, _, err = demo("--report")
    assert code == 0, err
    page = (tmp_path / "runs/demo/report.html").read_text(encoding="utf-8")
    assert all(f'"name":"{name}"' in page for name in RECIPES)
    assert "report.html" in err
