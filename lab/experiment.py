"""Experiments, as YAML: which settings, what varies, how often, what is held against what, and what the paper printed.

    experiments/NAME.yaml     one experiment
    settings.yaml             what experiments share: a recipe with changes, and what each choice means there

A choice stands for changes of the recipe; `lab.plan` makes runs of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.training.yaml_text import YamlLoader

FOLDER = Path(__file__).parent
Scale = Literal["small", "paper", "toy"]
SCALES: tuple[Scale, ...] = ("small", "paper", "toy")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(_Part):
    """What a choice changes in a recipe."""

    changes: tuple[str, ...] = ()
    """As on the command line of `isomargin train`."""
    when: dict[str, str] = {}
    """Only where other axes have these choices; the last that fits counts."""
    join: tuple[str, ...] = ()
    """Other choices of the same axis, each a regularizer: all of these together, before the changes."""


class Setting(_Part):
    """Data, a model and how it is trained: what the choices of an experiment are laid over."""

    recipe: str
    """Name of a recipe that comes with the package."""
    changes: tuple[str, ...] = ()
    data: str | None = None
    """Which data set must be given on the command line; None where it comes with the package."""
    features: dict[str, Any] | None = None
    """Settings of the network whose features are trained on in place of the images; computed once, also for several
    settings that have the same."""
    split: Literal["by_class", "given"] = "by_class"
    """Of features: all images together, to be divided by class; or as the images' folders train and test have them."""
    closed: bool = False
    """Of features whose split is given: all classes must be in both parts."""
    about: str = ""
    """In a few words, for the tables."""
    choices: dict[str, dict[str, list[Choice]]] = {}
    """By axis and choice, what it means here, in place of what it means everywhere."""

    @model_validator(mode="after")
    def _closed_where_a_split_is_given(self) -> Self:
        if self.closed and (self.features is None or self.split != "given"):
            raise ValueError("closed is of features whose split is given: say so in the recipe's data otherwise")
        return self


class Margins(_Part):
    """The grid of an experiment of kind `margins`; arguments of `isomargin.training.tune.tune`."""

    positive: tuple[float, ...]
    negative: tuple[float, ...]
    weights: tuple[float, ...] | None = None
    """The recipe's own unless given."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """Share of the training classes that the runs are compared on."""
    tolerance: Annotated[float, Field(ge=0)] = 0.01
    """How much recall@1 may be lost for a lower OPIS."""


class Plan(_Part):
    """What is run at one scale."""

    settings: tuple[str, ...]
    axes: dict[str, tuple[str, ...]] = {}
    """By axis, the choices that are tried, all with all."""
    only: tuple[dict[str, str | tuple[str, ...]], ...] = ()
    """Of all combinations, those that fit at least one of these: by axis a choice or several, any where left out."""
    seeds: Annotated[int, Field(ge=1)] = 3
    """Of kind `cost`: how often all is measured."""
    seeds_of: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By setting, where another number is run; of settings that take long."""
    needs: str = ""
    """Data, devices and hours, in words."""
    margins: Margins | None = None
    """Of kind `margins`."""
    batches: Annotated[int, Field(ge=1)] = 20
    """Of kind `cost`: how many are timed."""

    @model_validator(mode="after")
    def _seeds_of_its_settings(self) -> Self:
        for setting in self.seeds_of:
            if setting not in self.settings:
                raise ValueError(f"seeds_of has {setting!r}, which is not among the settings")
        return self


class ExperimentFigure(_Part):
    """A figure that is drawn of an experiment's runs, once a setting."""

    figure: str
    """Its name in `isomargin.figures.registry`."""
    runs: dict[str, tuple[str, ...]] = {}
    """By axis, the choices whose runs are drawn; all where left out."""
    options: dict[str, Any] = {}
    """Arguments of the figure's function."""
    paper: str = ""
    """Which figure of the paper."""


Rate = Annotated[float, Field(gt=0, lt=1)]


class Experiment(_Part):
    """One experiment of the paper, or of ours."""

    title: str
    paper: str = ""
    """Which table or figure of the paper."""
    kind: Literal["training", "margins", "cost"] = "training"
    """What is done: runs are trained and tested; margins are searched on held-out classes; a step's parts are timed."""
    plans: dict[Scale, Plan]
    against: dict[str, str] = {}
    """The axis and choice that the other choices of that axis are held against."""
    columns: tuple[str, ...] = ("recall@1", "opis", "debiased_opis", "epsilon_opis", "far_threshold_spread")
    rows: Literal["groups", "seeds"] = "groups"
    """What a row of the table is: the mean over seeds; or one seed, with mean and deviation below."""
    ranges: tuple[tuple[Rate, Rate], ...] = ()
    """Ranges of false accept rates that OPIS is given for besides the recipe's own."""
    figures: tuple[ExperimentFigure, ...] = ()
    published: tuple[dict[str, str | float | None], ...] = ()
    """The paper's rows, as far as it prints them: they stand below the table, and nothing is computed from them."""

    @model_validator(mode="after")
    def _margins_where_they_are_searched(self) -> Self:
        for scale, plan in self.plans.items():
            if (plan.margins is not None) != (self.kind == "margins"):
                has = "has no margins" if plan.margins is None else "has margins"
                raise ValueError(f"the kind is {self.kind} and the plan {scale} {has}: these go with kind margins")
        return self


def experiment_names() -> list[str]:
    """List the experiments.

    >>> "base-losses" in experiment_names()
    True
    """
    return sorted(path.stem for path in (FOLDER / "experiments").glob("*.yaml"))


def load_experiment(name: str) -> Experiment:
    """Read an experiment by its name.

    >>> load_experiment("base-loss")
    Traceback (most recent call last):
    isomargin.InputError: there is no experiment 'base-loss': ...
    """
    if name not in experiment_names():
        raise InputError(f"there is no experiment {name!r}: {checks.nearest(name, experiment_names())}")
    path = FOLDER / "experiments" / f"{name}.yaml"
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=YamlLoader)
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


@cache
def load_settings() -> tuple[dict[str, Setting], dict[str, dict[str, list[Choice]]]]:
    """Read the settings that experiments share, and what choices mean everywhere."""
    content = yaml.load((FOLDER / "settings.yaml").read_text(encoding="utf-8"), Loader=YamlLoader)
    shared = {
        axis: {name: as_choices(each) for name, each in choices.items()} for axis, choices in content["choices"].items()
    }
    settings = {}
    for name, values in content["settings"].items():
        own = values.pop("choices", {})
        own = {axis: {each: as_choices(value) for each, value in choices.items()} for axis, choices in own.items()}
        settings[name] = Setting(**values, choices=own)
    return settings, shared


def as_choices(value: Any) -> list[Choice]:
    """Read what a choice means: nothing, changes, or several of them with conditions.

    >>> as_choices(["epochs=2"])[0].changes, as_choices(None)[0].changes
    (('epochs=2',), ())
    """
    parts = value or []
    plain = tuple(each for each in parts if isinstance(each, str))
    return [Choice(changes=plain), *(Choice(**each) for each in parts if not isinstance(each, str))]


def as_scale(text: str) -> Scale:
    """Read a scale.

    >>> as_scale("smal")
    Traceback (most recent call last):
    isomargin.InputError: scale is 'smal': ...
    """
    for scale in SCALES:
        if text == scale:
            return scale
    raise InputError(f"scale is {text!r}: one of {', '.join(SCALES)} is needed")


def plan_of(experiment: Experiment, scale: Scale) -> Plan:
    """Give what an experiment does at a scale."""
    if scale not in experiment.plans:
        raise InputError(f"this experiment has no scale {scale!r}: there is {', '.join(experiment.plans)}")
    return experiment.plans[scale]
