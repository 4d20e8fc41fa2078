"""A lab of the tests' own: experiments on the toy's patterns."""

import sys
from contextlib import contextmanager

import pytest
import yaml

from lab import cli, experiment

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
def lab(folder):
    """Put experiments into a lab of their own: `add(name, **fields)`; the plan `toy` is there unless given."""
    (folder / "experiments").mkdir(parents=True)
    (folder / "settings.yaml").write_text(yaml.safe_dump(SETTINGS))

    def add(name, **fields):
        plans = {"toy": {"settings": ["toy"], "axes": AXES, "seeds": 2}}
        content = {"title": name, "plans": plans, **fields}
        (folder / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return experiment.load_experiment(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "FOLDER", folder)
        experiment.load_settings.cache_clear()
        yield add
    experiment.load_settings.cache_clear()


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
    with lab(tmp_path / "lab") as put:
        yield put


@pytest.fixture(scope="module")
def add_for_all(tmp_path_factory):
    """Do so for all tests of a module."""
    with lab(tmp_path_factory.mktemp("shared") / "lab") as put:
        yield put
