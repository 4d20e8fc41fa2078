"""The demo: three runs, a table and a report; here with tiny recipes in the letters' place."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest

import isomargin as im
from isomargin.cli import app as cli
from isomargin.cli.demo import change, finding
from isomargin.measure.comparison import Difference
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import Interval
from isomargin.training.demo import MODELS
from isomargin.training.recipe import load_recipe
from training.runs import tiny

REGULARIZERS = {"base": None, "tcm": "tcm", "alignment": {"name": "class_alignment", "share": 0.3}}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Call the command in a folder of its own, with tiny recipes; give its exit code, output and messages."""
    folder = tmp_path_factory.mktemp("demo")
    shipped = {}
    for name, model in MODELS.items():
        recipe = tiny(name=model.recipe, loss={"base": "smooth_ap", "regularizer": REGULARIZERS[name]}, epochs=0.3)
        shipped[recipe.name] = folder / f"{recipe.name}.yaml"
        recipe.save(shipped[recipe.name])

    def call(*arguments):
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(folder)
            patch.setattr("isomargin.training.recipe.shipped_recipes", lambda: shipped)
            patch.setattr(sys, "argv", ["isomargin", "demo", *map(str, arguments)])
            with pytest.raises(SystemExit) as stop:
                cli.main()
        return stop.value.code or 0, out.getvalue(), err.getvalue()

    call.folder = folder
    return call


@pytest.fixture(scope="module")
def result(demo):
    """What one demo printed, and the evaluations of its runs."""
    code, out, err = demo("--seed", 3)
    assert code == 0, err
    return out, err, evaluations(demo.folder / "runs/demo")


def evaluations(folder):
    return {name: im.Evaluation.load(folder / name / "evaluation.json") for name in MODELS}


def test_the_demo_trains_all_three_with_one_seed_and_prints_their_scores(demo, result):
    out, _, measured = result
    for name, evaluation in measured.items():
        assert load_recipe(demo.folder / "runs/demo" / name).seed == 3
        assert f"{evaluation.opis:.4g}" in out
        assert f"{evaluation.recall_at_k[1]:.2%}" in out
        assert MODELS[name].title in out


def test_the_changes_from_the_base_are_those_of_compare_with_their_intervals(result):
    out, _, measured = result
    compared = im.compare(measured)
    assert list(compared.others) == ["tcm", "alignment"]
    for rows in compared.others.values():
        opis, recall = ({row.score: row for row in rows}[score] for score in ("opis", "recall@1"))
        assert f"{opis.change.value:+.0%} ({opis.change.low:+.0%} to {opis.change.high:+.0%})" in out
        points = [100 * value for value in (recall.difference.value, recall.difference.low, recall.difference.high)]
        assert "{:+.2f} ({:+.2f} to {:+.2f})".format(*points) in out


def test_the_rates_of_single_letters_are_quantiles_over_them(result):
    out, _, measured = result
    for evaluation in measured.values():
        low, high = np.quantile(evaluation.target.class_frr, (0.05, 0.95))
        assert f"{low:.1%} to {high:.1%}" in out


def test_the_demo_says_what_to_do_next_in_three_commands(result):
    commands = [line.split("#")[0].split() for line in result[0].splitlines() if line.startswith("  isomargin ")]
    assert [words[1] for words in commands] == ["evaluate", "equalize", "threshold"]


def test_the_demo_equalizes_each_model_and_shows_its_scores_before_and_after(demo, result):
    out, _, measured = result
    for name, evaluation in measured.items():
        embeddings = im.EmbeddingSet.load(demo.folder / "runs/demo" / name / "embeddings.npz")
        equalizer = im.Equalizer.load(demo.folder / "runs/demo" / name / "equalizer.json")
        after = im.evaluate(
            embeddings.vectors, embeddings.labels, far=(0.05, 0.2), target_far=0.05, equalizer=equalizer
        )
        assert f"{evaluation.opis:.4g} → {after.opis:.4g}" in out


def test_the_time_left_is_told_before_the_second_and_the_third_model(result):
    lines = [line for line in result[1].splitlines() if line.startswith("model ")]
    assert [line.endswith(" left") for line in lines] == [False, True, True]


def test_the_demo_writes_a_report_of_the_three(demo, result):
    page = (demo.folder / "runs/demo/report.html").read_text(encoding="utf-8")
    assert all(f'"name":"{model.title}"' in page for model in MODELS.values())
    assert "report.html" in result[1]


def test_json_of_another_demo_in_the_same_folder_holds_its_scores_and_comparison(demo):
    for seed in (0, 1):
        code, out, err = demo("--output", "mine", "--json", "--no-report", "--seed", seed)
        assert code == 0, err
    measured = evaluations(demo.folder / "mine")
    printed = json.loads(out)
    assert load_recipe(demo.folder / "mine/tcm").seed == 1
    assert {name: model["scores"] for name, model in printed["models"].items()} == {
        name: evaluation.scores() for name, evaluation in measured.items()
    }
    assert printed["comparison"] == json.loads(json.dumps(im.compare(measured).as_values()))
    assert not (demo.folder / "mine/report.html").exists()


def test_the_demo_leaves_alone_what_is_not_its_own(demo):
    (demo.folder / "file").write_text("mine")
    for folder in ("file", "file/below"):
        code, out, err = demo("--output", folder)
        assert (code, out) == (2, "")
        assert err.startswith(f"isomargin: {folder} cannot be written")
    (demo.folder / "other/alignment").mkdir(parents=True)
    (demo.folder / "other/alignment/notes.txt").write_text("mine")
    code, _, err = demo("--output", "other")
    assert code == 2
    assert "is not a run" in err
    assert (demo.folder / "other/alignment/notes.txt").read_text() == (demo.folder / "file").read_text() == "mine"
    assert not (demo.folder / "other/base").exists()  # it is told before anything is trained


def test_the_three_recipes_differ_in_the_regularizer_alone():
    base, *others = (load_recipe(model.recipe) for model in MODELS.values())
    assert base.loss.regularizer is None
    assert [recipe.loss.regularizer["name"] for recipe in others] == ["tcm", "class_alignment"]
    for recipe in others:
        assert recipe.loss.base == base.loss.base
        assert recipe.model_copy(update={"name": base.name, "loss": base.loss}) == base


def difference(score, first, other, low, high):
    relative = Interval(other / first - 1, low, high, 0.95) if score == "opis" else None
    absolute = Interval(other - first, low, high, 0.95)
    return Difference(score, first, other, absolute, relative, 0.5)


def test_a_change_that_may_be_chance_is_called_that():
    recall = difference("recall@1", 0.98, 0.981, -0.002, 0.004)
    misses = difference("frr", 0.05, 0.043, -0.01, -0.004)
    lower = difference("opis", 0.002, 0.0015, -0.4, -0.1)
    unclear = difference("opis", 0.002, 0.0019, -0.2, 0.1)
    opis_line, misses_line, recall_line = finding("A", (lower, recall, misses), Settings()).splitlines()
    assert opis_line.endswith("  OPIS is 25% lower: statistically significant")
    assert misses_line.endswith("  FRR at FAR 1% is 0.70 points lower: statistically significant")
    assert recall_line.endswith("  recall@1 is 0.10 points higher: NOT statistically significant")
    assert "OPIS is 5% lower: NOT statistically significant" in finding("A", (unclear, recall, misses), Settings())
    assert change(unclear) == "-5% (-20% to +10%)"
