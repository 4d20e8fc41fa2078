"""Runs on several devices are trained by other processes, whose errors are raised here."""

import signal
import subprocess

import pytest
from pretended_training import Trainer

import isomargin as im
from isomargin.core.errors import DivergedError
from isomargin.core.files import locked
from isomargin.training.recipe import load_recipe
from lab import devices
from lab.devices import train_on_devices
from lab.files import read_csv
from lab.plan import planned_runs
from lab.run_experiment import run_experiment
from lab.toy_data import write_toy_data


@pytest.fixture
def recipe(add, tmp_path):
    plan = {"settings": ["toy"], "axes": {"loss": ["smooth_ap"], "training": ["plain"]}, "seeds": 1}
    experiment = add("losses", plans={"toy": plan})
    (run,) = planned_runs(experiment, "toy", data=write_toy_data(tmp_path / "data"))
    return run.recipe


def test_two_processes_train_a_run_that_this_one_has_locked(recipe, tmp_path):
    with locked(tmp_path / "run", wait=False):
        train_on_devices(recipe, tmp_path / "run", devices=2, resume=True, quiet=True, workers=0, lock=False)
    assert load_recipe(tmp_path / "run") == recipe
    assert 0 < im.Evaluation.load(tmp_path / "run" / "evaluation.json").opis < 1


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (DivergedError("the loss is nan"), 1),
        (im.InputError("2 images cannot be read", ["a.png", "b.png"]), 1),
        (KeyboardInterrupt("stopped after step 3"), 0),
        (None, 0),
    ],
    ids=str,
)
def test_what_stops_the_processes_is_raised_here(recipe, tmp_path, monkeypatch, raised, code):
    trained, codes = [], []

    def train(recipe, folder, **options):
        trained.append((recipe, folder, options))
        if raised is not None:
            raise raised

    monkeypatch.setattr(devices.loop, "train", train)
    monkeypatch.setattr(devices, "run", lambda task, interrupted: codes.append(devices.do_task(task)) or codes[0])
    if raised is None:
        train_on_devices(recipe, tmp_path / "run", devices=2, resume=True)
    else:
        with pytest.raises(type(raised)) as caught:
            train_on_devices(recipe, tmp_path / "run", devices=2, resume=True)
        assert type(caught.value) is type(raised)
        assert str(caught.value) == str(raised)
        assert getattr(caught.value, "details", None) == getattr(raised, "details", None)
    assert trained == [(recipe, str(tmp_path / "run"), {"devices": 2, "resume": True})]
    assert codes == [code]


def test_processes_that_end_without_an_error_message_are_reported(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "run", lambda task, interrupted: -9)
    with pytest.raises(im.InputError, match="ended with code -9"):
        train_on_devices(recipe, tmp_path / "run", devices=2)


def test_a_request_to_stop_is_passed_on(tmp_path, monkeypatch):
    start = subprocess.Popen
    monkeypatch.setattr(devices, "SECONDS", 0.01)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: start(["sleep", "60"], **options))
    assert devices.run(tmp_path, lambda: True) == -signal.SIGTERM


def test_every_run_of_an_experiment_is_trained_on_them(recipe, tmp_path):
    asked = []

    class Several(Trainer):
        def __call__(self, recipe, folder, devices, **options):
            asked.append(devices)
            super().__call__(recipe, folder, **options)

    run_experiment("losses", tmp_path / "runs", tmp_path / "results", scale="toy", seeds=2, devices=3, train=Several())
    assert asked == [3, 3]
    assert len(read_csv(tmp_path / "results" / "losses" / "runs.csv")) == 2
