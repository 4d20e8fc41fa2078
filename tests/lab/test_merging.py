"""Parts of an experiment, run one after the other: which rows are in the table at the end, and which are not kept."""

from pathlib import Path

import pytest
import yaml
from pretended_training import Trainer

import isomargin as im
from lab.files import read_csv
from lab.plan import planned_runs
from lab.results_folder import read_recipes
from lab.run_experiment import run_experiment
from lab.tables import tables_text

pytestmark = pytest.mark.usefixtures("unsaved_figures")

MARGINS = {"positive": [0.9], "negative": [0.3, 0.5], "held_out": 0.4}
THREE = {"settings": ["toy"], "axes": {"loss": ["smooth_ap"], "training": ["plain", "tcm", "both"]}, "seeds": 2}


def run(folder, diverges=lambda recipe: False, **part):
    """Run an experiment or a part of it in a new folder of runs; give how many runs were trained, and the notes."""
    trainer, told = Trainer(diverges), []
    part = {"scale": "toy", "seeds": 2, **part}
    number = len(list(folder.glob("runs-*")))
    run_experiment("losses", folder / f"runs-{number}", folder / "results", train=trainer, report=told.append, **part)
    return len(trainer.trained), [each for each in told if each.startswith("note")]


def rows_of(folder):
    """Give the choices and the number of seeds of the rows in the table."""
    rows = read_csv(folder / "results" / "losses" / "table.csv")
    return [(f"{row['loss']}+{row['training']}", row["seeds"]) for row in rows]


def texts(folder):
    """Give the results in every form, except for seconds, which depend on the machine."""
    place = folder / "results" / "losses"
    rows, runs = (
        [list({**row, "seconds": ""}.items()) for row in read_csv(place / name)] for name in ("table.csv", "runs.csv")
    )
    return tables_text("losses", folder / "results"), rows, runs, (place / "recipes.yaml").read_text()


def change_recipes(folder, **changes):
    """Change recipes of stored results, each by a function of its settings."""
    path = folder / "results" / "losses" / "recipes.yaml"
    recipes = yaml.safe_load(path.read_text())
    for name, change in changes.items():
        recipes[f"toy-smooth_ap+{name}"] = change(recipes[f"toy-smooth_ap+{name}"])
    path.write_text(yaml.safe_dump(recipes, sort_keys=False))


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
    assert run(parts, only={"loss": ["arcface"], "training": ["tcm"]}) == (
        4,
        [],
    )  # plain too, which it is compared with
    assert texts(parts) == texts(whole)


def test_a_part_that_ends_while_another_is_run_is_not_lost(add, tmp_path):
    add("losses", against={"training": "plain"})
    others = [lambda: run(tmp_path, only={"loss": ["smooth_ap"]})]

    def first_run_the_other(recipe):
        if others:
            others.pop()()
        return False

    run(tmp_path, only={"loss": ["arcface"], "training": ["plain"]})  # so that there is a table before both
    run(tmp_path, diverges=first_run_the_other, only={"loss": ["arcface"]})
    expected = ["smooth_ap+plain", "smooth_ap+tcm", "arcface+plain", "arcface+tcm"]
    assert [line[0] for line in rows_of(tmp_path)] == expected


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


def test_rows_with_other_recipes_are_not_kept(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    change_recipes(tmp_path, tcm=lambda settings: {**settings, "epochs": 99.0})
    _, (told,) = run(tmp_path, only={"loss": ["arcface"]})
    assert told.startswith("note: of the earlier results 1 of 2 rows are not kept: their recipes have changed")
    expected = ["smooth_ap+plain", "arcface+plain", "arcface+tcm"]
    assert [line[0] for line in rows_of(tmp_path)] == expected
    recipes = read_recipes(tmp_path / "results" / "losses" / "recipes.yaml")
    assert list(recipes) == [f"toy-{name}" for name in expected]


def test_rows_compared_with_another_recipe_are_not_kept(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    change_recipes(tmp_path, plain=lambda settings: {"name": "a", "unknown": 1})  # as of another version
    _, (told,) = run(tmp_path, only={"loss": ["arcface"]})
    assert "2 of 2 rows are not kept" in told
    assert [line[0] for line in rows_of(tmp_path)] == ["arcface+plain", "arcface+tcm"]


def test_rows_compared_with_other_seeds_than_before_are_not_kept(add, tmp_path):
    add("losses", against={"training": "plain"}, plans={"toy": THREE})
    run(tmp_path)
    assert run(tmp_path, only={"training": ["both"]}) == (4, [])
    assert len(rows_of(tmp_path)) == 3
    _, (told,) = run(tmp_path, only={"training": ["both"]}, seeds=1)
    assert "1 of 1 rows are not kept" in told
    assert rows_of(tmp_path) == [("smooth_ap+plain", "1"), ("smooth_ap+both", "1")]


def test_rows_stay_when_the_table_shows_other_columns(add, tmp_path):
    add("losses", against={"training": "plain"}, columns=["recall@1", "opis", "eer"])
    run(tmp_path)
    add("losses", against={"training": "plain"}, columns=["recall@1", "map_at_r"])
    assert run(tmp_path, only={"loss": ["arcface"]}) == (4, [])
    head, _, *lines = tables_text("losses", tmp_path / "results").partition("\n\n")[0].splitlines()
    assert head == "| setting | loss | training | seeds | recall@1 % | change | MAP@R % | change |"
    assert len(lines) == 4


def test_rows_that_the_experiment_no_longer_has_are_not_kept(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    axes = {"loss": ["arcface"], "training": ["plain", "tcm"]}
    add("losses", against={"training": "plain"}, plans={"toy": {"settings": ["toy"], "axes": axes, "seeds": 2}})
    _, (told,) = run(tmp_path, settings=["toy"])
    assert "2 of 2 rows are not kept" in told
    assert "smooth_ap" not in tables_text("losses", tmp_path / "results")


def test_searches_keep_those_of_other_recipes_whatever_was_picked(add, tmp_path):
    axes = {"loss": ["smooth_ap", "arcface"], "training": ["tcm"]}
    plan = {"settings": ["toy"], "axes": axes, "seeds": 1, "margins": dict(MARGINS)}
    add("losses", kind="margins", plans={"toy": plan})
    run(tmp_path, seeds=1)
    table = tables_text("losses", tmp_path / "results")
    assert run(tmp_path, seeds=1, only={"loss": ["arcface"]}) == (3, [])
    assert tables_text("losses", tmp_path / "results") == table
    assert len(list((tmp_path / "results" / "losses").glob("*.png"))) == 2
    plan["margins"]["negative"] = [0.2, 0.3]
    add("losses", kind="margins", plans={"toy": plan})
    _, (told,) = run(tmp_path, seeds=1, only={"loss": ["arcface"]})
    assert "1 of 1 rows are not kept" in told
    assert [path.stem for path in (tmp_path / "results" / "losses").glob("*.png")] == ["margins_grid-toy-arcface+tcm"]


def test_what_diverged_in_another_part_is_still_said(add, tmp_path):
    plan = {"settings": ["toy"], "axes": {"loss": ["smooth_ap", "arcface"], "training": ["tcm"]}, "seeds": 1}
    add("losses", kind="margins", plans={"toy": {**plan, "margins": MARGINS}})
    run(tmp_path, diverges=lambda recipe: recipe.loss.base["name"] == "smooth_ap", seeds=1)
    assert "toy smooth_ap tcm has no margins" in tables_text("losses", tmp_path / "results")
    run(tmp_path, seeds=1, only={"loss": ["arcface"]})
    assert "toy smooth_ap tcm has no margins" in tables_text("losses", tmp_path / "results")
    run(tmp_path, seeds=1, only={"loss": ["smooth_ap"]})
    assert "has no margins" not in tables_text("losses", tmp_path / "results")


@pytest.mark.parametrize("name", ["table.csv", "runs.csv", "recipes.yaml"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("a\n1\n")])
def test_results_that_cannot_be_read_are_refused_before_anything_is_trained(add, tmp_path, name, damage):
    add("losses")
    run(tmp_path)
    damage(tmp_path / "results" / "losses" / name)
    trainer = Trainer()
    with pytest.raises(im.InputError, match=r"cannot be read .*: move them away"):
        run_experiment("losses", tmp_path, tmp_path / "results", scale="toy", only={"loss": ["arcface"]}, train=trainer)
    assert trainer.trained == []


@pytest.mark.parametrize("fields", [{"kind": "cost"}, {"ranges": [[0.01, 0.1]]}])
def test_times_and_ranks_need_all_choices(add, tmp_path, fields):
    add("losses", **fields)
    with pytest.raises(im.InputError, match="it needs all its choices"):
        run(tmp_path, only={"loss": ["arcface"]})


def test_a_part_without_runs_is_refused(add, tmp_path):
    axes = {"loss": ["smooth_ap", "arcface"], "training": ["plain", "tcm"]}
    plan = {"settings": ["toy"], "axes": axes, "only": [{"loss": "arcface"}, {"training": "plain"}]}
    add("losses", plans={"toy": plan})
    with pytest.raises(im.InputError, match="does not combine these choices"):
        run(tmp_path, only={"loss": ["smooth_ap"], "training": ["tcm"]})


def test_running_the_whole_experiment_keeps_nothing(add, tmp_path):
    add("losses", against={"training": "plain"})
    run(tmp_path)
    axes = {"loss": ["arcface"], "training": ["plain", "tcm"]}
    add("losses", against={"training": "plain"}, plans={"toy": {"settings": ["toy"], "axes": axes, "seeds": 2}})
    assert run(tmp_path) == (4, [])
    assert "smooth_ap" not in tables_text("losses", tmp_path / "results")


def test_a_part_draws_no_figures_and_the_earlier_ones_stay(add, tmp_path):
    figures = [{"figure": "calibration_ranges"}]
    add("losses", against={"training": "plain"}, figures=figures)
    run(tmp_path)
    picture = tmp_path / "results" / "losses" / "calibration_ranges-toy.png"
    before = picture.read_bytes()
    _, told = run(tmp_path, only={"loss": ["arcface"]})
    assert told == ["note: figures show all choices, so a part of them draws none: the earlier ones stay"]
    assert picture.read_bytes() == before


@pytest.mark.parametrize(
    ("only", "sentence"),
    [({"lose": ["arcface"]}, "an axis of only is 'lose'"), ({"loss": ["arc"]}, "only: loss is 'arc': one of")],
)
def test_unknown_axes_and_choices_are_refused(add, only, sentence):
    experiment = add("losses")
    with pytest.raises(im.InputError, match=sentence):
        planned_runs(experiment, "toy", data={"patterns": Path("somewhere")}, only=only)
