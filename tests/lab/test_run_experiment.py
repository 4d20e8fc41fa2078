"""From an experiment to its tables: what is trained, what is not trained again, and the numbers in the results."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_training import Trainer, evaluated

import isomargin as im
from isomargin.measure.scores.registry import SCORES
from isomargin.measure.seed_comparison import compare_seeds
from isomargin.training.locking import claim
from isomargin.training.recipe import load_recipe
from isomargin.training.run_folder import RunFolder
from lab import comparisons
from lab import run_experiment as module
from lab.files import read_csv
from lab.plan import planned_runs
from lab.results_folder import read_recipes
from lab.run_experiment import run_experiment
from lab.table_text import as_latex
from lab.tables import tables_text


@pytest.fixture(scope="module")
def made(add_for_all, tmp_path_factory):
    experiment = add_for_all("losses", against={"training": "plain"})
    trainer, folder = Trainer(), tmp_path_factory.mktemp("made")
    rows = run_experiment("losses", folder / "runs", folder / "results", scale="toy", seeds=3, train=trainer)
    place = folder / "results" / "losses"
    return SimpleNamespace(experiment=experiment, rows=rows, trainer=trainer, folder=folder, place=place)


def row_of(rows, **wanted):
    (row,) = (row for row in rows if all(row.get(name) == value for name, value in wanted.items()))
    return row


def test_every_run_is_trained_once_and_found_again(made, tmp_path):
    assert len(made.trainer.trained) == len(set(made.trainer.trained)) == 2 * 2 * 3
    again = Trainer()
    run_experiment("losses", made.folder / "runs", tmp_path / "other", scale="toy", seeds=3, train=again)
    assert again.trained == []
    shutil.rmtree(made.folder / "runs" / "toy" / "smooth_ap+tcm" / "seed-2")
    run_experiment("losses", made.folder / "runs", tmp_path / "other", scale="toy", seeds=3, train=again)
    assert len(again.trained) == 1


def test_rows_are_means_over_seeds_and_differences_those_of_compare_seeds(made):
    row = row_of(made.rows, loss="smooth_ap", training="tcm")
    plain, tcm = ([evaluated(seed, spread) for seed in range(3)] for spread in (0.5, 0.1))
    assert row["opis"] == pytest.approx(np.mean([evaluation.opis for evaluation in tcm]))
    assert row["opis deviation"] == pytest.approx(np.std([evaluation.opis for evaluation in tcm], ddof=1))
    assert row["recall@1 lowest"] == min(evaluation.recall_at_k[1] for evaluation in tcm)
    expected = next(
        difference for difference in compare_seeds(plain, tcm, draws=comparisons.DRAWS) if difference.score == "opis"
    )
    assert (row["opis change"], row["opis p"]) == (expected.change.value, expected.p_value)
    assert row["against"] == "smooth_ap+plain"
    assert "opis change" not in row_of(made.rows, loss="smooth_ap", training="plain")


def test_tables_hold_the_rows_in_every_form(made):
    *table, empty, note = tables_text("losses", made.folder / "results").splitlines()
    assert len(table) == len(made.rows) + 2
    assert empty == ""
    assert note.startswith("Changes compare with plain; ")
    assert all(line.count("|") == table[0].count("|") for line in table)
    row = row_of(made.rows, loss="smooth_ap", training="tcm")
    line = next(line for line in table if "| smooth_ap | tcm |" in line)
    assert f"{1e3 * row['opis']:.3g}" in line
    assert f"−{abs(100 * row['opis change']):.0f}%" in line
    latex = tables_text("losses", made.folder / "results", "latex")
    assert r"smooth\_ap" in latex
    assert latex.count(r"\\") == len(made.rows) + 1
    stored = row_of(read_csv(made.place / "table.csv"), loss="smooth_ap", training="tcm")
    assert float(stored["opis"]) == row["opis"]


def test_every_run_has_its_scores_and_its_recipe_without_the_folder_of_the_data(made):
    runs = read_csv(made.place / "runs.csv")
    assert len(runs) == 12
    run = row_of(runs, loss="arcface", training="plain", seed="2")
    assert float(run["opis"]) == evaluated(2, 0.7).opis
    assert float(run["recall@1"]) == evaluated(2, 0.7).recall_at_k[1]
    assert float(run["seconds"]) > 0
    usual = {name for name, score in SCORES.items() if not score.on_request and "all_pairs" in score.comparisons}
    assert usual <= set(run)
    assert {column for column in usual if not run[column]} == {"frr_within_two"}  # classes are too small for it
    planned = {run.variant: run.recipe for run in planned_runs(made.experiment, "toy", 1, {"patterns": made.folder})}
    stored = read_recipes(made.place / "recipes.yaml")
    assert list(stored) == [f"toy-{variant}" for variant in planned]
    for variant, recipe in planned.items():
        data = {name: value for name, value in recipe.data.items() if name != "root"}
        assert stored[f"toy-{variant}"] == recipe.model_copy(update={"data": data})
    text = (made.place / "recipes.yaml").read_text()
    assert str(made.folder) not in text
    assert text.count("optimizer:") == 1  # in the first recipe, which the others refer to


def test_rows_of_single_seeds_are_above_their_mean_and_deviation(add, tmp_path):
    add("seeds", rows="seeds", columns=["opis"], against={"training": "plain"})
    run_experiment("seeds", tmp_path / "runs", tmp_path / "results", scale="toy", seeds=3, train=Trainer())
    table = tables_text("seeds", tmp_path / "results").split("\n\n")[0]
    heads, _, *lines = table.splitlines()
    assert heads == "| setting | loss | training | seed | OPIS ×1e-3 | change |"
    assert len(lines) == 4 * (3 + 1)
    values = [1e3 * evaluated(seed, 0.1).opis for seed in range(3)]
    group = [line for line in lines if "| smooth_ap | tcm |" in line]
    assert group[:3] == [f"| toy | smooth_ap | tcm | {seed} | {values[seed]:.3g} |  |" for seed in range(3)]
    assert f"| mean ± deviation | {np.mean(values):.3g} ± {np.std(values, ddof=1):.3g} | −" in group[3]
    assert r"$\pm$" in tables_text("seeds", tmp_path / "results", "latex")


def test_the_papers_rows_are_below_the_markdown_table_only(add, tmp_path):
    published = [{"loss": "ProxyNCA", "OPIS": 0.38e-3}, {"loss": "a|b", "recall@1": 63.1, "change": -1.5, "more": None}]
    add("losses", published=published, paper="Table 9: losses")
    run_experiment("losses", tmp_path / "runs", tmp_path / "results", scale="toy", seeds=1, train=Trainer())
    assert tables_text("losses", tmp_path / "results").split("\n\n", 1)[1] == (
        "The paper reports: Table 9: losses\n\n"
        "| loss | OPIS | recall@1 | change | more |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| ProxyNCA | 3.8e-4 |  |  |  |\n"
        "| a\\|b |  | 63.1 | −1.5 |  |\n"
    )
    assert "ProxyNCA" not in tables_text("losses", tmp_path / "results", "latex")


def test_seeds_that_diverged_are_left_out_on_both_sides(add, tmp_path):
    add("losses", against={"training": "plain"})
    trainer = Trainer(diverges=lambda recipe: recipe.seed == 0 and bool(recipe.loss.regularizer))
    notes = []
    rows = run_experiment(
        "losses", tmp_path / "runs", tmp_path / "results", scale="toy", seeds=3, train=trainer, report=notes.append
    )
    row = row_of(rows, loss="smooth_ap", training="tcm")
    assert row["seeds"] == 2
    plain, tcm = ([evaluated(seed, spread) for seed in (1, 2)] for spread in (0.5, 0.1))
    expected = next(
        difference for difference in compare_seeds(plain, tcm, draws=comparisons.DRAWS) if difference.score == "opis"
    )
    assert row["opis change"] == expected.change.value
    assert "note: toy/smooth_ap+tcm/seed-0 has no scores, the loss is nan by step 3" in notes


def test_a_finished_run_with_another_recipe_is_refused(made):
    path = made.folder / "runs" / "toy" / "smooth_ap+tcm" / "seed-1" / "recipe.yaml"
    before = load_recipe(path)
    load_recipe(path, ["optimizer.learning_rate=0.5"]).save(path)
    with pytest.raises(im.InputError, match="seed-1 was trained with another optimizer"):
        run_experiment("losses", made.folder / "runs", made.folder / "results", scale="toy", seeds=3, train=Trainer())
    before.save(path)


def test_a_run_that_was_stopped_before_anything_was_saved_begins_again(made):
    folder = made.folder / "runs" / "toy" / "smooth_ap+tcm" / "seed-1"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "seconds.json").write_text('{"seconds": 5}')
    trainer = Trainer()
    run_experiment("losses", made.folder / "runs", made.folder / "results", scale="toy", seeds=3, train=trainer)
    assert trainer.trained == [folder]
    assert json.loads((folder / "seconds.json").read_text())["seconds"] < 5


def test_settings_with_the_same_features_share_them(monkeypatch, tmp_path):
    from lab.experiment import Setting

    one = {"backbone": "tf_efficientnet_lite0"}
    settings = {
        "heads": Setting(recipe="cub-lite0", data="cub", features=one),
        "closed": Setting(recipe="cub-lite0", data="cub", features=one, split="given", closed=True),
        "other": Setting(recipe="cub-lite0", data="cub", features={"backbone": "tf_efficientnet_lite1"}),
    }
    made = []
    monkeypatch.setattr(module, "load_settings", lambda: (settings, {}))
    monkeypatch.setattr(module, "make_features", lambda *given: made.append((given[2].name, given[5])))
    places = {name: module.prepare(name, tmp_path, {"cub": tmp_path}, print)[name] for name in settings}
    assert made == [("heads", False), ("heads", True), ("other", False)]
    assert places["heads"] == tmp_path / "features" / "heads" / "all.npz"
    assert places["closed"] == tmp_path / "features" / "heads" / "given"


def seconds_of(place):
    return {(run["loss"], run["training"]): run["seconds"] for run in read_csv(place / "runs.csv")}


def test_what_diverged_is_trained_again_with_other_settings_only(add, tmp_path, monkeypatch):
    add("losses", against={"training": "plain"})

    def run(trainer):
        notes = []
        options = {"scale": "toy", "seeds": 1, "train": trainer, "report": notes.append}
        run_experiment("losses", tmp_path / "runs", tmp_path / "results", **options)
        return "\n".join(notes)

    run(Trainer(diverges=lambda recipe: bool(recipe.loss.regularizer)))
    again = Trainer()
    notes = run(again)
    assert again.trained == []
    assert "4 of 4 runs are already done" in notes
    assert notes.count("has no scores, the loss is nan by step 3 (known from diverged.json in its folder") == 2
    path = tmp_path / "runs" / "toy" / "arcface+tcm" / "seed-0"
    content = json.loads((path / "diverged.json").read_text())
    content["settings"]["epochs"] = 99.0
    (path / "diverged.json").write_text(json.dumps(content))
    assert "arcface+tcm/seed-0 has no scores" not in run(again)
    assert again.trained == [path]
    assert not (path / "diverged.json").exists()


def test_seconds_of_a_run_that_continued_after_a_kill_are_unknown(add, tmp_path):
    add("losses")
    options = {"scale": "toy", "seeds": 1, "train": Trainer()}
    run_experiment("losses", tmp_path / "runs", tmp_path / "results", **options)
    for name, before in (("smooth_ap+tcm", None), ("arcface+tcm", 1000.0)):
        folder = tmp_path / "runs" / "toy" / name / "seed-0"
        (folder / "evaluation.json").unlink()
        (folder / "seconds.json").unlink()
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "step-000000003.ckpt").touch()
        if before:  # it was stopped properly
            (folder / "seconds.json").write_text(json.dumps({"seconds": before}))
    seen = []

    class Watching(Trainer):
        def __call__(self, recipe, folder, **rest):
            seen.append((folder / "seconds.json").exists())
            super().__call__(recipe, folder, **rest)

    for train in (Watching(), Trainer()):  # unknown as well when the run is found finished
        run_experiment("losses", tmp_path / "runs", tmp_path / "results", **{**options, "train": train})
        seconds = seconds_of(tmp_path / "results" / "losses")
        assert seconds["smooth_ap", "tcm"] == ""
        assert 1000 < float(seconds["arcface", "tcm"]) < 1100
        assert 0 < float(seconds["smooth_ap", "plain"]) < 100
    assert seen == [False, False]  # after a second kill the time would be too short


def test_an_unfinished_run_continues_after_its_data_have_moved(add, tmp_path):
    class Claiming(Trainer):
        def __call__(self, recipe, folder, resume, **rest):
            claim(RunFolder(folder), recipe, resume)
            super().__call__(recipe, folder, **rest)

    add("losses")
    first, second = Claiming(), Claiming()
    run_experiment("losses", tmp_path / "runs", tmp_path / "results", scale="toy", seeds=1, train=first)
    (tmp_path / "runs").rename(tmp_path / "moved")  # the toy's data lie there
    folder = tmp_path / "moved" / "toy" / "smooth_ap+tcm" / "seed-0"
    (folder / "evaluation.json").unlink()
    run_experiment("losses", tmp_path / "moved", tmp_path / "results", scale="toy", seeds=1, train=second)
    assert second.trained == [folder]
    assert load_recipe(folder).data["root"] == str(tmp_path / "moved" / "data" / "patterns")
    (folder / "evaluation.json").unlink()
    load_recipe(folder, ["optimizer.learning_rate=0.5"]).save(folder / "recipe.yaml")
    with pytest.raises(im.InputError, match="started with another optimizer"):
        run_experiment("losses", tmp_path / "moved", tmp_path / "results", scale="toy", seeds=1, train=second)


def test_latex_has_only_characters_that_it_can_set():
    text = as_latex(["m⁺", "m⁻", "OPIS ×1e-3"], [["1–2", "−3 ± 1", "R² 5′ a^b~c\\d {50%}"]])
    assert text.isascii()
    assert "m$^+$ & m$^-$ & OPIS $\\times$1e-3" in text
    assert "1--2 & $-$3 $\\pm$ 1 & R$^2$ 5$'$ a\\^{}b\\~{}c\\textbackslash{}d \\{50\\%\\}" in text
