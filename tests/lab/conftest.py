"""Experiments for the tests, on the toy patterns, in place of the real ones."""

import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import yaml

from isomargin import figures
from lab import cli, comparisons, experiment

SETTINGS = {
    "settings": {
        "toy": {
            "recipe": "omniglot",
            "data": "patterns",
            "changes": [
                "data={name: omniglot}",
                "model={backbone: small_conv, dimensions: 8}",
                "batch={classes: 6, images_per_class: 2}",
                "epochs=0.25",
                "evaluation.far=[0.05, 0.2]",
            ],
        },
        "birds": {"recipe": "cub-lite0", "data": "cub", "about": "photographs of birds"},
        "cars": {"recipe": "cars-resnet50-recall-at-k", "data": "cars"},
    },
    "choices": {
        "loss": {"smooth_ap": ["loss.base={name: smooth_ap}"], "arcface": ["loss.base={name: arcface}"]},
        "training": {"plain": [], "tcm": ["loss.regularizer={name: tcm}"], "both": ["loss.regularizer={name: tcm}"]},
    },
}
AXES = {"loss": ["smooth_ap", "arcface"], "training": ["plain", "tcm"]}


@contextmanager
def experiments_in(folder):
    """Replace the experiments; `add(name, **fields)` adds one, with a plan `toy` unless plans are given.

    `add.settings(name=fields)` adds or replaces settings.
    """
    (folder / "experiments").mkdir(parents=True)
    (folder / "settings.yaml").write_text(yaml.safe_dump(SETTINGS))

    def add(name, **fields):
        plans = {"toy": {"settings": ["toy"], "axes": AXES, "seeds": 2}}
        content = {"title": name, "plans": plans, **fields}
        (folder / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return experiment.load_experiment(name)

    def settings(**added):
        content = {**SETTINGS, "settings": {**SETTINGS["settings"], **added}}
        (folder / "settings.yaml").write_text(yaml.safe_dump(content))
        experiment.load_settings.cache_clear()

    add.settings = settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "FOLDER", folder)
        experiment.load_settings.cache_clear()
        yield add
    experiment.load_settings.cache_clear()


@pytest.fixture
def unsaved_figures(monkeypatch):
    """Write a number in place of every figure: saving takes half a second, and figures have tests of their own."""
    numbers = count()

    def save(figure, path):
        Path(path).write_text(f"figure {next(numbers)}")

    for module in (figures, figures.style):
        monkeypatch.setattr(module, "save", save)


@pytest.fixture(scope="session", autouse=True)
def few_draws():
    """Resample classes 200 times in place of 5,000: the tests compare with as many draws, or look at other things."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparisons, "DRAWS", 200)
        yield


@pytest.fixture
def run_lab(monkeypatch, capsys):
    """Run `python -m lab` in this process; give its exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["lab", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return call


@pytest.fixture
def add(tmp_path):
    with experiments_in(tmp_path / "lab") as add_experiment:
        yield add_experiment


@pytest.fixture(scope="module")
def add_for_all(tmp_path_factory):
    """The same for all tests of a module."""
    with experiments_in(tmp_path_factory.mktemp("shared") / "lab") as add_experiment:
        yield add_experiment
