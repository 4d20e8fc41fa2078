"""Parts of an experiment, run one after the other: what is in the table at the end, and what is not kept."""

import json
from pathlib import Path

import pytest
import yaml
from pretended_training import Trainer

import isomargin as im
from isomargin.lab.experiment import planned_runs
from isomargin.lab.reproduce import reproduce


def run(folder, **part):
    """Run an experiment or a part of it with runs of its own; give how many runs were trained, and what was told."""
    trainer, told = Trainer(), []
    part = {"scale": "toy", "seeds": 2, **part}
    number = len(list(folder.glob("runs-*")))
    reproduce("losses", folder / f"runs-{number}", folder / "results", train=trainer, report=told.append, **part)
    return len(trainer.trained), [each for each in told if each.startswith("note")]


def texts(folder):
    place = folder / "results" / "losses"
    recipes = {path.name: path.read_text() for path in place.glob("recipes/*.yaml")}
    # Seconds are of the machine.
    runs = [{**each, "seconds": None} for each in json.loads((place / "runs.json").read_text())]
    lines = (place / "table.csv").read_text().splitlines()
    at = lines[0].split(",").index("seconds")
    rows = [[cell for number, cell in enumerate(line.split(",")) if number != at] for line in lines]
    return (place / "table.md").read_text(), (place / "table.tex").read_text(), rows, runs, recipes


@pytest.mark.parametrize("rows", ["groups", "seeds"])
def test_parts_one_after_the_other_give_the_tables_of_the_whole(add, tmp_path, rows):
    published = [{"loss": "ArcFace", "recall@1": 63.6}]
    add("losses", against={"training": "plain"}, rows=rows, paper="Table 2", published=published)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(whole) == (8, [])
    assert run(parts, only={"loss": ["arcface"]}) == (4, [])
    assert texts(parts) != texts(whole)
    assert run(parts, only={"loss": ["smooth_ap"]}) == (4, [])
    assert texts(parts) == texts(whole)
    assert run(parts, only={"loss": ["arcface"], "training": ["tcm"]}) == (4, [])  # plain too, which it is held against
    assert texts(parts) == texts(whole)


def test_a_part_without_differences_keeps_those_of_the_others(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    before = texts(tmp_path)
    assert run(tmp_path, only={"training": ["plain"]}) == (4, [])
    assert texts(tmp_path) == before


def test_settings_whose_data_are_elsewhere_keep_their_rows(add, tmp_path):
    plan = {"settings": ["toy", "birds"], "axes": {"training": ["plain", "tcm"]}, "seeds": 2}
    add("losses", against={"training": "plain"}, plans={"small": plan})
    data = {"patterns": tmp_path, "cub": tmp_path}
    run(tmp_path, scale="small", data=data)
    before = texts(tmp_path)
    del data["cub"]
    with pytest.raises(im.InputError, match="the setting birds needs cub"):
        run(tmp_path, scale="small", data=data)
    assert run(tmp_path, scale="small", data=data, settings=["toy"]) == (4, [])
    assert texts(tmp_path) == before


def test_rows_by_other_recipes_are_not_kept(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    path = tmp_path / "results" / "losses" / "recipes" / "toy-smooth_ap+tcm.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "epochs": 99.0}))
    _, told = run(tmp_path, only={"loss": ["arcface"]})
    assert told == ["note: of the earlier results 1 of 2 rows are not kept: the experiment has other recipes now"]
    table = (tmp_path / "results" / "losses" / "table.md").read_text()
    assert "smooth_ap | plain" in table
    assert "smooth_ap | tcm" not in table


def test_rows_that_the_experiment_no_longer_has_are_not_kept(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    axes = {"loss": ["arcface"], "training": ["plain", "tcm"]}
    add("losses", against={"training": "plain"}, plans={"toy": {"settings": ["toy"], "axes": axes, "seeds": 2}})
    _, told = run(tmp_path, settings=["toy"])
    assert told == ["note: of the earlier results 2 of 2 rows are not kept: the experiment has other recipes now"]
    assert "smooth_ap" not in (tmp_path / "results" / "losses" / "table.md").read_text()


def test_searches_keep_those_of_other_recipes_whatever_was_picked(add, tmp_path):
    margins = {"positive": [0.9], "negative": [0.3, 0.5], "held_out": 0.4}
    axes = {"loss": ["smooth_ap", "arcface"], "training": ["tcm"]}
    plan = {"settings": ["toy"], "axes": axes, "seeds": 1, "margins": margins}
    add("losses", kind="margins", plans={"toy": plan})
    run(tmp_path, seeds=1)
    table = (tmp_path / "results" / "losses" / "table.md").read_text()
    assert run(tmp_path, seeds=1, only={"loss": ["arcface"]}) == (3, [])
    assert (tmp_path / "results" / "losses" / "table.md").read_text() == table
    assert len(list((tmp_path / "results" / "losses").glob("*.png"))) == 2


def test_the_whole_keeps_nothing(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    axes = {"loss": ["arcface"], "training": ["plain", "tcm"]}
    add("losses", against={"training": "plain"}, plans={"toy": {"settings": ["toy"], "axes": axes, "seeds": 2}})
    assert run(tmp_path) == (4, [])
    assert "smooth_ap" not in (tmp_path / "results" / "losses" / "table.md").read_text()


def test_figures_of_a_part_are_not_drawn_and_those_there_stay(add, tmp_path):
    figures = [{"figure": "calibration_ranges"}]
    add("losses", against={"training": "plain"}, figures=figures)
    run(tmp_path)
    picture = tmp_path / "results" / "losses" / "calibration_ranges-toy.png"
    before = picture.read_bytes()
    _, told = run(tmp_path, only={"loss": ["arcface"]})
    assert told == ["note: figures are drawn of all choices, not of a part: those that are there stay as they are"]
    assert picture.read_bytes() == before


@pytest.mark.parametrize(
    ("only", "sentence"),
    [({"lose": ["arcface"]}, "an axis of only is 'lose'"), ({"loss": ["arc"]}, "only: loss is 'arc': one of")],
)
def test_what_the_experiment_has_not_is_refused(add, only, sentence):
    experiment = add("losses")
    with pytest.raises(im.InputError, match=sentence):
        planned_runs(experiment, "toy", data={"patterns": Path("somewhere")}, only=only)
