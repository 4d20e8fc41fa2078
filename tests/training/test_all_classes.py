"""A final model, trained on all classes: it has no scores, and says so wherever one asks for them."""

import numpy as np
import pytest
import torch

import isomargin as im
from isomargin.core.errors import InputError
from isomargin.training.checkpoint import find_checkpoints, read_checkpoint
from isomargin.training.recipe import load_recipe
from isomargin.training.run_folder import RunFolder
from isomargin.training.setup import open_data
from isomargin.training.tune import tune
from training import runs

TOLD = "all classes are trained on, so there are no unseen classes and nothing is evaluated"


@pytest.fixture(scope="module")
def final(tmp_path_factory):
    """A finished run on all classes."""
    folder = tmp_path_factory.mktemp("final") / "run"
    assert runs.run(folder, runs.tiny(all_classes=True, epochs=0.5)) is None
    return folder


def test_every_class_is_trained_on():
    data, split = open_data(runs.tiny(all_classes=True)), im.load_data(**runs.TINY["data"])
    assert set(data.train.class_names) == {*split.train.class_names, *split.test.class_names}
    assert len(data.train) == len(split.train) + len(split.test)
    assert (data.unseen, data.test) == (None, None)


def test_the_run_has_a_model_and_losses_but_no_scores(final):
    run = RunFolder(final)
    assert run.finished
    assert TOLD in run.not_evaluated.read_text()
    assert not run.evaluation.exists()
    assert not run.embeddings.exists()
    rows = runs.metrics(final)
    assert [row["step"] for row in rows] == [8, 12]
    assert {"epoch", "loss", "tcm"} <= set(rows[0])
    assert "recall@1" not in rows[0]
    assert im.open_run(final)[1](torch.zeros(1, 1, 28, 28, dtype=torch.uint8)).shape == (1, 16)


def test_proxies_are_made_for_every_class(final):
    _, path = find_checkpoints(final / "checkpoints")[-1]
    assert len(read_checkpoint(path)["loss"]["parts.0.proxies"]) == 40


def test_the_command_says_that_nothing_is_evaluated(run, tmp_path):
    runs.tiny(epochs=0.3).save(tmp_path / "tiny.yaml")
    arguments = ("train", tmp_path / "tiny.yaml", "--all-classes", "--workers", 0)
    code, out, err = run(*arguments, "--dry-run")
    assert code == 0, err
    assert "test:       none, because all classes are used for training" in out
    code, out, err = run(*arguments, "--output", tmp_path / "run")
    assert (code, out) == (0, "")
    assert f"note: {TOLD}" in err
    assert load_recipe(tmp_path / "run").all_classes
    code, out, err = run("train", tmp_path / "run", "--resume")  # it is finished
    assert (code, out) == (0, "")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["evaluate"], "was trained on all classes and is not evaluated: give a run with classes held out"),
        (["threshold"], "was trained on all classes and is not evaluated"),
        (["report"], "was trained on all classes and is not evaluated"),
        (["embed", "--part", "test"], "the run was trained on all classes: it has no test part, take --part all"),
    ],
)
def test_commands_that_need_unseen_classes_say_why_there_are_none(run, final, command, told):
    code, _, err = run(command[0], final, *command[1:])
    assert code == 2
    assert told in err


def test_a_final_model_embeds_everything(run, final, tmp_path):
    assert run("embed", final, "--output", tmp_path / "out.npz", "--workers", 0)[0] == 0
    assert len(np.unique(im.EmbeddingSet.load(tmp_path / "out.npz").labels)) == 40


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"evaluation": {"held_out": 0.1}}, "evaluation.held_out keeps classes out"),
        ({"evaluation": {"best_by": "recall@1"}}, "set evaluation.best_by=last"),
        ({"schedule": {"name": "plateau"}}, "the schedule 'plateau' needs scores"),
    ],
)
def test_settings_that_need_scores_are_refused(changes, told):
    with pytest.raises(InputError, match="all_classes is true") as raised:
        runs.tiny(all_classes=True, **changes)
    assert told in str(raised.value)


def test_margins_are_not_searched_on_all_classes(tmp_path):
    with pytest.raises(InputError, match="margins are searched on held-out classes"):
        tune(runs.tiny(all_classes=True), tmp_path, [0.9], [0.5])


def test_a_report_of_nothing_is_refused_before_training(run, tmp_path):
    runs.tiny().save(tmp_path / "tiny.yaml")
    code, _, err = run("train", tmp_path / "tiny.yaml", "--all-classes", "--report", "--output", tmp_path / "run")
    assert code == 2
    assert "leave --report and --json out" in err
    assert not (tmp_path / "run").exists()
