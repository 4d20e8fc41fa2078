"""`isomargin figure`: every kind of figure from files, and bad input told in one sentence."""

import json

import numpy as np
import pytest
from by_hand import HOSTILE, tuned_run

from isomargin.cli.figure_inputs import read_metrics, read_models, read_search
from isomargin.cli.opening import open_embeddings as read_embeddings
from isomargin.figures import FIGURES
from isomargin.training.run_folder import write_metrics


def write_search(folder, rows):
    from dataclasses import asdict

    folder.mkdir()
    write_metrics(folder / "tune.csv", [asdict(row) for row in rows])
    return folder


def test_the_list_has_every_figure_with_what_it_shows_and_needs(run):
    code, text, _ = run("figure", "--list")
    assert code == 0
    lines = text.splitlines()
    assert lines[::3] == list(FIGURES)
    assert lines[1::3] == [f"  {kind.shows}" for kind in FIGURES.values()]
    assert all(line.startswith("  needs ") for line in lines[2::3])


@pytest.mark.parametrize("name", [name for name, kind in FIGURES.items() if kind.source != "embeddings"])
def test_every_figure_is_drawn_from_files(run, make_run, tmp_path, name):
    runs = [make_run("one"), make_run("two", "b", "tcm")]
    search = write_search(tmp_path / "search", [tuned_run(), tuned_run(0.9, 0.5, 1.0, picked=True)])
    sources = {"search": [search], "nothing": []}.get(FIGURES[name].source, runs)
    code, text, errors = run("figure", name.replace("_", "-"), *sources, "-o", tmp_path / "figure.svg")
    assert (code, text, errors) == (0, "", f"written to {tmp_path / 'figure.svg'}\n")
    assert (tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")


def test_an_evaluation_and_embeddings_do_as_well_as_a_run(run, make_run, tmp_path):
    one, two, three = make_run("one"), make_run("two", "b"), make_run("three", "c")
    mixed = [one, two / "evaluation.json", three / "embeddings.npz"]
    assert run("figure", "distance_distributions", *mixed, "-o", tmp_path / "figure.png")[0] == 0


def test_folders_may_have_any_name(run, make_run, tmp_path):
    folders = [make_run(name) for name in HOSTILE if 0 < len(name) < 99 and name != "\udcff"]
    code, _, errors = run("figure", "recall_over_epochs", *folders, "--column", "opis", "-o", tmp_path / "figure.svg")
    assert (code, errors) == (0, f"written to {tmp_path / 'figure.svg'}\n")


def test_options_reach_the_figure_they_belong_to(run, make_run, tmp_path, monkeypatch):
    from isomargin.figures import registry

    asked = {}

    def record(name):
        kind = FIGURES[name]

        def draw(*sources, **options):
            asked[name] = options
            return kind.draw(*sources, **options)

        draw.__name__ = name
        monkeypatch.setitem(registry.FIGURES, name, registry.FigureKind(draw, kind.source, kind.shows, kind.options))

    for name in FIGURES:
        record(name)
    one, target = make_run("one"), tmp_path / "figure.svg"
    search = write_search(tmp_path / "search", [tuned_run(0.9, 0.5, 1.0)])
    for arguments in (
        ("teaser", one, "--classes", "3, 1", "--far", 0.05),
        ("calibration_ranges", one, "--ranges", "0.01-0.1, 5e-2-2e-1"),
        ("recall_over_epochs", one, "--column", "opis"),
        ("margins_grid", search, "--tolerance", 0.1),
        ("gaussian_curves", "--gaussian", "0.6,0.1,1.3,0.2", "--gaussian", "0.5,0.1,1.2,0.2"),
    ):
        assert run("figure", *arguments, "-o", target)[0] == 0
    assert asked["teaser"] == {"classes": ["3", "1"], "far": 0.05}
    assert asked["calibration_ranges"] == {"ranges": [(0.01, 0.1), (0.05, 0.2)]}
    assert asked["recall_over_epochs"] == {"column": "opis"}
    assert asked["margins_grid"] == {"tolerance": 0.1}
    assert [each.positive_mean for each in asked["gaussian_curves"]["classes"]] == [0.6, 0.5]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "the name of a figure and an output file are needed, as in `isomargin figure NAME RUN... -o FILE`"),
        (("teaser", "RUN"), "the name of a figure and an output file are needed"),
        (("teasers", "RUN", "-o", "OUT.png"), "there is no figure 'teasers': did you mean 'teaser'?"),
        (("teaser", "RUN", "-o", "OUT.gif"), "OUT.gif should end in .svg, .pdf or .png"),
        (("teaser", "RUN", "-o", "no/OUT.png"), "no/OUT.png cannot be written, because there is no folder no"),
        (("teaser", "-o", "OUT.png"), "teaser needs one or more runs, evaluations or files of embeddings: none was"),
        (("teaser", "RUN", "RUN", "-o", "OUT.png"), "was given twice"),
        (("teaser", "EMPTY", "-o", "OUT.png"), "is a folder without an evaluation.json"),
        (("teaser", "RUN", "--classes", "x", "-o", "OUT.png"), "there is no class 'x'"),
        (("teaser", "RUN", "--far", "7", "-o", "OUT.png"), "target_far is 7.0: a number above 0 and below 1 is needed"),
        (("utility_curves", "RUN", "--classes", "1", "-o", "OUT.png"), "--classes is for teaser, not for utility_c"),
        (("gaussian_curves", "--classes", "1", "-o", "OUT.png"), "--classes is for teaser, not for gaussian_curves"),
        (("teaser", "RUN", "--gaussian", "0.6,0.1,1.3,0.1", "-o", "OUT.png"), "--gaussian is for gaussian_curves"),
        (
            ("gaussian_curves", "RUN", "-o", "OUT.png"),
            "gaussian_curves is drawn from formulas and takes no runs: leave",
        ),
        (("gaussian_curves", "--gaussian", "1,2", "-o", "OUT.png"), "gaussian is '1,2': four numbers are needed"),
        (
            ("calibration_ranges", "RUN", "--ranges", "1", "-o", "OUT.png"),
            "ranges is '1': ranges of false accept rates",
        ),
        (("calibration_ranges", "RUN", "--ranges", "0.2-0.1", "-o", "OUT.png"), "0 < lower < upper < 1"),
        (
            ("error_against_opis", "RUN/evaluation.json", "-o", "OUT.png"),
            "this figure needs the recipe and the scores",
        ),
        (("recall_over_epochs", "RUN/evaluation.json", "-o", "OUT.png"), "has no metrics: give the folder of a run"),
        (("recall_over_epochs", "EMPTY", "-o", "OUT.png"), "has no metrics: give the folder of a run"),
        (("recall_over_epochs", "RUN", "--column", "x", "-o", "OUT.png"), "have no column 'x'"),
        (("margins_grid", "RUN", "-o", "OUT.png"), "is not a search: give the folder that `isomargin tune` wrote"),
        (("margins_grid", "RUN", "EMPTY", "-o", "OUT.png"), "margins_grid shows one search, but 2 were given"),
        (("margins_grid", "RUN/metrics.csv", "-o", "OUT.png"), "could not be read"),
    ],
)
def test_bad_input_is_one_sentence(run, make_run, tmp_path, monkeypatch, arguments, sentence):
    make_run("RUN")
    (tmp_path / "EMPTY").mkdir()
    monkeypatch.chdir(tmp_path)
    code, text, errors = run("figure", *arguments)
    assert (code, text) == (2, "")
    assert sentence in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.glob("OUT*"))


def test_runs_are_read_with_what_they_were_trained_by(make_run):
    folders = {
        "plain": make_run("plain", "a"),
        "tcm": make_run("tcm", "b", "{name: TCMLoss, weight: 5}"),
        "small": make_run("small", "c", "[tcm, contrastive]", classes=8),
    }
    plain, tcm, small = read_models(folders)
    for model, folder in zip((plain, tcm, small), folders.values(), strict=True):
        written = json.loads((folder / "evaluation.json").read_text())
        assert f"{model.opis:.6g}" in f"{written['scores']['opis']:.6g}"
        assert model.recall_at_1 == written["scores"]["recall_at_k"]["1"]
    assert [model.regularizer for model in (plain, tcm, small)] == ["", "tcm", "tcm + contrastive"]
    assert [model.batch for model in (plain, tcm, small)] == [64, 64, 32]
    assert {model.base_loss for model in (plain, tcm, small)} == {"smooth_ap"}
    assert plain.twin == tcm.twin != small.twin


def test_a_search_is_read_as_it_was_written(tmp_path):
    rows = [tuned_run(), tuned_run(0.9, 0.5, 1.0, picked=True), tuned_run(0.8, 0.5, 1.0, recall=float("nan"))]
    read = read_search(write_search(tmp_path / "search", rows))
    assert read[:2] == rows[:2]
    assert np.isnan(read[2].recall_at_1)


def test_metrics_and_embeddings_are_read_from_a_folder_or_a_file(make_run, sets):
    folder = make_run("one")
    for path in (folder, folder / "metrics.csv"):
        assert read_metrics(path)["recall@1"].tolist() == [0.5, 0.75]
    for path in (folder, folder / "embeddings.npz"):
        np.testing.assert_array_equal(read_embeddings(path).labels, sets["a"].labels)
