"""The search for margins: every pair is a run, the pick is the paper's, and the test classes are never looked at."""

import csv
import math
from dataclasses import replace

import pytest
from rich.console import Console

from isomargin.core.errors import DivergedError, InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.training import loop, setup
from isomargin.training.recipe import load_recipe, read_recipe
from isomargin.training.run_folder import RunFolder
from isomargin.training.tune import pick, tune
from isomargin.training.tuned import Tuned, TunedRun, tune_table

RECIPE = {
    "name": "small",
    "data": {"name": "glyphs", "draws": 1},
    "model": {"backbone": "small_conv", "dimensions": 16},
    "loss": {"base": "smooth_ap", "regularizer": {"name": "tcm", "weight": 2, "positive_weight": 0.5}},
    "batch": {"classes": 8, "images_per_class": 2},
    "epochs": 0.02,
}
OPTIONS = {"accelerator": "cpu", "workers": 0, "quiet": True}


def small(**changes):
    return read_recipe({**RECIPE, **changes})


def no_training(recipe, folder, **options):
    raise AssertionError(f"{folder} was trained")


def row(name, recall=0.8, opis=1e-3, **more):
    margins = {"positive_margin": 0.9, "negative_margin": 0.5, "weight": 1.0}
    scores = {"recall_at_1": recall, "opis": opis, "epsilon_opis": 0.1, "map_at_r": 0.5}
    return TunedRun(name, **{**margins, **scores, **more})


BASELINE = row("baseline", 0.99, 1e-9, positive_margin=None, negative_margin=None, weight=None)


class Recorder:
    """Stands in for training: keeps what it was asked for and copies the files of a finished run."""

    def __init__(self, finished):
        self.finished, self.calls = finished, []

    def __call__(self, recipe, folder, **options):
        self.calls.append((recipe, folder.name, options))
        folder.mkdir(parents=True)
        recipe.save(RunFolder(folder).recipe)
        RunFolder(folder).evaluation.write_bytes(self.finished.evaluation.read_bytes())


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A search with real training, of two pairs and the baseline."""
    folder = tmp_path_factory.mktemp("searches") / "tune"
    sentences = []
    tuned = tune(small(), folder, [0.9, 0.8], [0.5], report=sentences.append, **OPTIONS)
    return folder, tuned, sentences


@pytest.fixture
def recorder(searched):
    return Recorder(RunFolder(searched[0] / "baseline"))


def test_every_pair_is_a_run_and_the_files_are_written(searched):
    folder, tuned, sentences = searched
    names = ["baseline", "0.9-0.5", "0.8-0.5"]
    assert [each.name for each in tuned.rows] == names
    assert all(RunFolder(folder / name).finished for name in names)
    assert sentences == [f"run {number} of 3: {name}" for number, name in enumerate(names, 1)]
    with (folder / "tune.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [each["name"] for each in rows] == names
    assert [each["picked"] for each in rows].count("True") == 1
    assert [float(each["opis"]) for each in rows] == [each.opis for each in tuned.rows]
    assert not list(folder.glob(".tmp*"))


def test_the_runs_have_their_margins_and_keep_the_other_settings(searched):
    folder, _, _ = searched
    own, margins = RECIPE["loss"]["regularizer"], {"positive_margin": 0.8, "negative_margin": 0.5}
    assert load_recipe(folder / "0.8-0.5" / "recipe.yaml").loss.regularizer == {**own, **margins}
    assert load_recipe(folder / "baseline" / "recipe.yaml").loss.regularizer is None


def test_the_written_recipe_is_the_original_with_the_picked_margins(searched):
    folder, tuned, _ = searched
    written = load_recipe(folder / "tuned.yaml")
    assert written == tuned.recipe
    picked = tuned.picked
    assert not picked.is_baseline
    regularizer = written.loss.regularizer
    assert (regularizer["positive_margin"], regularizer["negative_margin"]) == (picked.positive_margin, 0.5)
    assert written.model_copy(update={"loss": small().loss}) == small()
    assert written.evaluation.test
    assert written.evaluation.held_out == 0


def test_scores_are_those_of_the_held_out_classes_alone(searched):
    folder, tuned, _ = searched
    held = small(evaluation={"held_out": 0.1})
    unseen = setup.open_data(held).unseen
    for each in tuned.rows:
        evaluation = Evaluation.load(RunFolder(folder / each.name).evaluation)
        assert (evaluation.class_count, evaluation.images) == (len(unseen.class_names), len(unseen))
        assert (each.opis, each.recall_at_1) == (evaluation.opis, evaluation.recall_at_k[1])


def test_what_is_finished_is_not_trained_again(searched):
    folder, tuned, _ = searched
    assert tune(small(), folder, [0.9, 0.8], [0.5], train=no_training) == tuned


def test_runs_of_another_recipe_are_refused(searched):
    folder, _, _ = searched
    with pytest.raises(InputError, match="another seed"):
        tune(small(seed=1), folder, [0.9], [0.5], train=no_training)
    with pytest.raises(InputError, match="another evaluation"):
        tune(small(), folder, [0.9], [0.5], held_out=0.2, train=no_training)


def test_a_run_that_was_interrupted_is_resumed_and_ends_in_the_same_numbers(searched, tmp_path, monkeypatch):
    _, tuned, _ = searched
    asked = []

    def stop_after_second(fabric, wanted):
        asked.append(wanted)  # twice a step
        return len(asked) > 2

    with monkeypatch.context() as patch:
        patch.setattr(loop, "any_process", stop_after_second)
        with pytest.raises(KeyboardInterrupt):
            tune(small(), tmp_path, [0.8], [0.5], baseline=False, **OPTIONS)
    assert len(asked) == 4
    assert not RunFolder(tmp_path / "0.8-0.5").finished
    resumed = []

    def train(*arguments, **options):
        resumed.append(options["resume"])
        return loop.train(*arguments, **options)

    again = tune(small(), tmp_path, [0.8], [0.5], baseline=False, train=train, **OPTIONS)
    assert resumed == [True]
    assert replace(again.rows[0], picked=False) == replace(tuned.rows[2], picked=False)


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_anew(recorder, tmp_path):
    def stopped(recipe, folder, **options):
        folder.mkdir(parents=True)
        recipe.save(RunFolder(folder).recipe)
        (folder / "remains").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(small(), tmp_path, [0.9], [0.5], baseline=False, train=stopped)
    tune(small(), tmp_path, [0.9], [0.5], baseline=False, train=recorder)
    assert [options["resume"] for _, _, options in recorder.calls] == [False]
    assert not (tmp_path / "0.9-0.5" / "remains").exists()


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "0.9-0.5").mkdir()
    (tmp_path / "0.9-0.5" / "thesis.tex").touch()
    with pytest.raises(InputError, match="already exists"):
        tune(small(), tmp_path, [0.9], [0.5], baseline=False, **OPTIONS)
    assert (tmp_path / "0.9-0.5" / "thesis.tex").exists()


def test_the_folder_of_a_run_is_refused(searched):
    with pytest.raises(InputError, match="is the folder of a run"):
        tune(small(), searched[0] / "baseline", [0.9], [0.5], train=no_training)


def test_pairs_with_the_positive_margin_below_are_left_out(recorder, tmp_path):
    sentences = []
    margins = [0.5, 0.9, 0.5]
    tuned = tune(small(), tmp_path, margins, [0.7, 0.5], baseline=False, train=recorder, report=sentences.append)
    assert [each.name for each in tuned.rows] == ["0.5-0.5", "0.9-0.7", "0.9-0.5"]
    assert "1 pair is left out" in sentences[0]
    assert sentences[0].removeprefix("note: ") in tuned.notes


def test_weights_are_searched_too_and_images_checked_once(recorder, tmp_path):
    tuned = tune(small(), tmp_path, [0.9], [0.5], weights=[1, 5], train=recorder, precision="bf16-mixed")
    assert [name for _, name, _ in recorder.calls] == ["baseline", "0.9-0.5-w1", "0.9-0.5-w5"]
    assert [each.weight for each in tuned.rows] == [None, 1.0, 5.0]
    assert [recipe.loss.regularizer["weight"] for recipe, _, _ in recorder.calls[1:]] == [1, 5]
    assert [options["check_images"] for _, _, options in recorder.calls] == [True, False, False]
    assert {options["precision"] for _, _, options in recorder.calls} == {"bf16-mixed"}


def test_images_are_not_checked_where_the_caller_says_so(recorder, tmp_path):
    tune(small(), tmp_path, [0.9], [0.5], train=recorder, check_images=False)
    assert [options["check_images"] for _, _, options in recorder.calls] == [False, False]


@pytest.mark.parametrize("regularizer", [None, "tcm", "TCMLoss"])
def test_a_recipe_without_settings_of_tcm_is_completed(recorder, tmp_path, regularizer):
    loss = {"base": "smooth_ap", "regularizer": regularizer}
    tuned = tune(small(loss=loss), tmp_path, [0.9], [0.5], baseline=False, train=recorder)
    expected = {"name": "tcm", "weight": 1.0, "positive_margin": 0.9, "negative_margin": 0.5}
    assert tuned.recipe.loss.regularizer == expected


def test_batches_are_lowered_to_the_classes_that_are_left(recorder, tmp_path):
    recipe = small(batch={"classes": 190, "images_per_class": 2}, evaluation={"best_by": "opis"})
    sentences = []
    tuned = tune(recipe, tmp_path, [0.9], [0.5], train=recorder, report=sentences.append)
    left = len(setup.open_data(small(evaluation={"held_out": 0.1})).train.class_names)
    assert {run.batch.classes for run, _, _ in recorder.calls} == {left}
    assert {run.evaluation.best_by for run, _, _ in recorder.calls} == {"opis"}
    assert "batch.classes is 190" in sentences[0]
    assert tuned.recipe.batch.classes == 190


@pytest.mark.parametrize(
    ("changes", "arguments", "sentence"),
    [
        ({}, {"positive_margins": [0.4]}, "make no pair"),
        ({}, {"positive_margins": []}, r"\(none\)"),
        ({}, {"positive_margins": [1.4]}, "positive_margin is 1.4"),
        ({}, {"weights": []}, "weights is empty"),
        ({}, {"weights": [-1]}, "weight is -1"),
        ({}, {"held_out": 0}, "held_out is 0"),
        ({}, {"tolerance": -0.1}, "tolerance is -0.1"),
        ({"loss": {"base": "smooth_ap", "regularizer": ["tcm"]}}, {}, "a list of 1"),
        ({"loss": {"base": "smooth_ap", "regularizer": "calibration"}}, {}, "regularizer is 'calibration'"),
        ({"loss": {"base": "smooth_ap", "regularizer": {"name": "tcm", "wieght": 1}}}, {}, "no setting 'wieght'"),
    ],
)
def test_what_cannot_be_searched_is_told_before_training(tmp_path, changes, arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        tune(
            small(**changes),
            tmp_path,
            **{"positive_margins": [0.9], "negative_margins": [0.5], **arguments},
            train=no_training,
        )


def test_the_lowest_opis_within_the_tolerance_is_picked():
    rows = [row("best", 0.80, 3e-3), row("within", 0.79, 2e-3), row("beyond", 0.789, 1e-3)]
    assert pick(rows, 0.01).name == "within"
    assert pick(rows, 0.0).name == "best"
    assert pick(rows, 1.0).name == "beyond"


def test_of_equal_opis_the_larger_recall_is_picked_then_the_first():
    assert pick([row("a", 0.79), row("b", 0.80), row("c", 0.80)], 0.01).name == "b"


def test_the_baseline_is_neither_picked_nor_the_measure():
    assert pick([BASELINE, row("a", 0.5)], 0.01).name == "a"


@pytest.mark.parametrize("scores", [{"recall": float("nan")}, {"opis": float("nan")}])
def test_a_run_without_scores_is_never_picked(scores):
    missing = row("missing", **{"recall": 0.99, "opis": 1e-9, **scores})
    assert pick([missing, row("a")], 0.01).name == "a"
    with pytest.raises(InputError, match="nothing to pick"):
        pick([BASELINE, missing], 0.01)


def test_a_search_that_did_not_lower_opis_says_so(recorder, tmp_path):
    # All runs have the same files here, and so the same OPIS.
    tuned = tune(small(), tmp_path / "with", [0.9], [0.5], train=recorder)
    assert tuned.notes[-1].startswith("TCM did not lower OPIS on the held-out classes")
    assert tune(small(), tmp_path / "without", [0.9], [0.5], train=recorder, baseline=False).notes == ()


def test_the_table_has_every_run_and_the_notes():
    tuned = Tuned((BASELINE, row("0.9-0.5", picked=True), row("0.9-0.4")), small(), ("mind this",))
    console = Console(width=88)
    with console.capture() as captured:
        console.print(tune_table(tuned))
    lines = captured.get().splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["baseline", "0.9-0.5", "0.9-0.4"]
    assert [line.rstrip().endswith("← picked") for line in lines[2:5]] == [False, True, False]
    assert lines[-1].strip() == "note: mind this"


def test_a_run_that_goes_astray_has_no_scores_and_the_search_goes_on(tmp_path):
    def train(recipe, folder, **options):
        if recipe.loss.regularizer and recipe.loss.regularizer["negative_margin"] == 0.3:
            raise DivergedError("the loss is nan")
        return loop.train(recipe, folder, **options)

    said = []
    tuned = tune(small(), tmp_path, [0.9], [0.5, 0.3], baseline=False, train=train, report=said.append, **OPTIONS)
    assert tuned.picked.name == "0.9-0.5"
    assert [math.isnan(row.opis) for row in tuned.rows] == [False, True]
    assert any("0.9-0.3 has no scores, the loss is nan" in line for line in said)
