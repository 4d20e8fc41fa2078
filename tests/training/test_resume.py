"""A run that was stopped, by whatever, and gone on with ends in the same numbers as one that was not."""

import itertools
import random
import re
import shutil
import signal

import numpy as np
import pytest
import torch

import isomargin as im
from isomargin.core.errors import InputError
from isomargin.training import loop, setup
from isomargin.training.checkpoint import find_checkpoints
from isomargin.training.run_folder import write_metrics
from processes import forked, in_one_worker
from training.in_processes import train_until_killed
from training.runs import metrics, patterns, run, tiny

pytestmark = in_one_worker

# Everything that has a memory: BatchNorm's statistics, Adam's moments, a plateau, the penalty's queue of embeddings,
# the random numbers of a loss.
RECIPE = tiny(
    loss={
        "base": {"name": "recall_at_k", "simix": True},
        "regularizer": [{"name": "tcm"}, {"name": "threshold_penalty", "base": {"name": "arcface"}, "weight": 0.1}],
    },
    batch={"classes": 6, "images_per_class": 4},
    schedule={"name": "plateau", "patience": 0, "factor": 0.7},
    evaluation={"best_by": "opis"},
    epochs=21 / 15,
)
"""21 steps, 15 an epoch, evaluated after 5, 10, 15, 20 and 21."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run(folder, RECIPE)
    return folder


def same(one, other):
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    vectors = [im.EmbeddingSet.load(each / "embeddings.npz").vectors for each in (one, other)]
    np.testing.assert_array_equal(*vectors)
    scores = [im.Evaluation.load(each / "evaluation.json").scores() for each in (one, other)]
    assert scores[0] == scores[1]


def test_killed_at_random_moments_it_ends_in_the_same_numbers(undisturbed, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    RECIPE.save(folder / "recipe.yaml")
    reached = [0]
    for _ in range(3):
        moment = random.randrange(1, 6), random.uniform(0, 0.05)  # steps, and seconds into what follows them
        process = forked().Process(target=train_until_killed, args=(folder, *moment))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        reached.append(find_checkpoints(folder / "checkpoints")[-1][0])
        assert reached[-1] > reached[-2]
    run(folder, RECIPE, resume=True)
    same(undisturbed, folder)


def test_interrupted_it_says_how_to_go_on_and_does(undisturbed, tmp_path, typed, monkeypatch):
    folder = tmp_path / "run"
    RECIPE.save(tmp_path / "recipe.yaml")
    feed = loop.training_batches

    def interrupted(*arguments, **options):
        for step, batch in enumerate(feed(*arguments, **options), 1):
            if step == 7:
                signal.raise_signal(signal.SIGINT)
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(loop, "training_batches", interrupted)
        code, out, err = typed("train", tmp_path / "recipe.yaml", "--output", folder, "--workers", 0)
    assert (code, out) == (130, "")
    assert "stopped after step 7 of 21, which is saved" in err
    assert find_checkpoints(folder / "checkpoints")[-1][0] == 7
    assert f"isomargin train {folder} --resume" in err
    code, _, err = typed("train", folder, "--resume", "--workers", 0)
    assert code == 0, err
    same(undisturbed, folder)


def test_a_damaged_checkpoint_is_told_and_the_one_before_used(undisturbed, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    stop_after(monkeypatch, 13)
    with pytest.raises(KeyboardInterrupt, match="after step 13"):
        run(folder, RECIPE, checkpoint_seconds=0.0)
    monkeypatch.undo()
    newest = find_checkpoints(folder / "checkpoints")[-1][1]
    newest.write_bytes(newest.read_bytes()[:-100])
    run(folder, RECIPE, resume=True, quiet=False)
    assert re.search(r"note: .*step-000000013.* is damaged .* the one of step 12 is used", capsys.readouterr().err)
    same(undisturbed, folder)


def test_a_full_disk_is_told_and_leaves_the_last_checkpoint(undisturbed, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    stop_after(monkeypatch, 12)
    with pytest.raises(KeyboardInterrupt):
        run(folder, RECIPE)
    monkeypatch.undo()

    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("isomargin.training.checkpoint.atomic_write", full)
        with pytest.raises(InputError, match=r"the disk is full.*step-000000012"):
            run(folder, RECIPE, resume=True)
    run(folder, RECIPE, resume=True)
    same(undisturbed, folder)


def test_going_on_with_other_settings_is_refused(undisturbed):
    with pytest.raises(InputError, match="another seed"):
        run(undisturbed, RECIPE.model_copy(update={"seed": 3}), resume=True)
    assert metrics(undisturbed)


def test_dropout_goes_on_where_it_was(tmp_path, monkeypatch):
    """A head that drops at random draws the same numbers at a step, however often the run was stopped before it."""
    make = setup.make_recipe_model

    def with_dropout(*arguments, **options):
        model = make(*arguments, **options)
        model.norm = torch.nn.Dropout(0.3)
        return model

    monkeypatch.setattr(setup, "make_recipe_model", with_dropout)
    run(tmp_path / "whole")
    for steps in (5, 11):
        with monkeypatch.context() as patch:
            stop_after(patch, steps)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path / "parts", resume=True)
    run(tmp_path / "parts", resume=True)
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_kill_between_the_last_checkpoint_and_the_metrics_loses_no_row(undisturbed, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def killed(path, rows):
        if len(rows) == len(metrics(undisturbed)):
            raise SystemExit(9)
        write_metrics(path, rows)

    with monkeypatch.context() as patch:
        patch.setattr("isomargin.training.state.write_metrics", killed)
        with pytest.raises(SystemExit):
            run(folder, RECIPE)
    run(folder, RECIPE, resume=True)
    same(undisturbed, folder)


def test_what_a_killed_write_left_is_taken_away(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    (tmp_path / "run/checkpoints/.tmp-0123456789abcdef.ckpt").write_bytes(b"half")
    run(tmp_path / "run", RECIPE, resume=True)
    assert not list((tmp_path / "run/checkpoints").glob(".tmp-*"))


def test_other_data_than_the_run_was_begun_with_are_refused(tmp_path, monkeypatch):
    recipe = tiny(data={"root": str(tmp_path)})
    shutil.copy(patterns() / "omniglot28.npz", tmp_path)
    stop_after(monkeypatch, 10)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", recipe)
    monkeypatch.undo()
    with np.load(tmp_path / "omniglot28.npz") as file:
        content = dict(file)
    content["images"], content["label"] = content["images"][1:], content["label"][1:]
    np.savez(tmp_path / "omniglot28.npz", **content)
    with pytest.raises(InputError, match="not those that"):
        run(tmp_path / "run", recipe, resume=True)


def stop_after(monkeypatch, steps):
    """Have the run interrupted after so many steps of this process."""
    asked = itertools.count(1)  # twice a step: whether to stop, and whether to save
    monkeypatch.setattr(
        "isomargin.training.loop.any_process", lambda fabric, wanted: next(asked) > 2 * (steps - 1) or wanted
    )
