"""Experiments as YAML: settings, what varies, how many seeds, what is compared with what, and what the paper printed.

    experiments/NAME.yaml     one experiment
    settings.yaml             what experiments share: recipes with changes, and what each choice changes in them

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
    """Only where other axes have these choices; the last choice that fits is used."""
    join: tuple[str, ...] = ()
    """Other choices of the same axis, each one regularizer: these are combined first, then come the changes."""
    tuned: str = ""
    """The regularizer of this name that `tuning` has chosen for the loss in the setting's `tuned_in`."""


class Setting(_Part):
    """Data, a model and how it is trained; the choices of an experiment change it."""

    recipe: str
    """The name of a recipe that comes with the package."""
    changes: tuple[str, ...] = ()
    data: str | None = None
    """The data set that must be given on the command line; None where it comes with the package."""
    features: dict[str, Any] | None = None
    """Settings of the network whose features are trained on instead of the images. They are computed once and shared
    by the settings that have the same network."""
    split: Literal["by_class", "given"] = "by_class"
    """For features: all images together, to be split by class, or as the image folders train and test split them."""
    closed: bool = False
    """For features whose split is given: every class must be in both parts."""
    tuned_in: str | None = None
    """The setting on whose held-out classes the choices with `tuned` were searched."""
    about: str = ""
    """A short description, for the notes of tables."""
    choices: dict[str, dict[str, list[Choice]]] = {}
    """By axis and choice, what the choice changes here, instead of what it changes elsewhere."""

    @model_validator(mode="after")
    def _closed_where_a_split_is_given(self) -> Self:
        if self.closed and (self.features is None or self.split != "given"):
            raise ValueError("closed is for features with split: given; otherwise set it in the recipe's data")
        return self


class Margins(_Part):
    """The grid of an experiment of kind `margins`; arguments of `isomargin.training.tune.tune`."""

    positive: tuple[float, ...]
    negative: tuple[float, ...]
    weights: tuple[float, ...] | None = None
    """The recipe's weight unless given."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """The share of the training classes that are held out, on which the runs are compared."""
    tolerance: Annotated[float, Field(ge=0)] = 0.01
    """How much recall@1 may fall for a lower OPIS."""


class Tuning(_Part):
    """What an experiment of kind `tuning` tries; see `lab.tuning`."""

    positive: tuple[float, ...]
    """The ladder of positive margins, ascending: the search goes from one value to the next."""
    negative: tuple[float, ...]
    start_positive: tuple[float, ...]
    """The margins that it begins with, all pairs of them."""
    start_negative: tuple[float, ...]
    shares: tuple[float, ...] = (0.1, 0.3, 1.0)
    """Of TCM and of the class alignment alike."""
    share: float = 0.3
    """That the margins are searched with."""
    tolerance: Annotated[float, Field(ge=0)] = 0.005
    """How far recall@1 may be below plain training's."""

    @model_validator(mode="after")
    def _start_on_the_ladders(self) -> Self:
        for values, ladder in ((self.start_positive, self.positive), (self.start_negative, self.negative)):
            if list(ladder) != sorted(set(ladder)) or not set(values) <= set(ladder):
                raise ValueError(f"ladders are ascending and hold where the search begins: {ladder}, {values}")
        if self.share not in self.shares:
            raise ValueError(f"the margins are searched with share {self.share}, which is not among {self.shares}")
        return self

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """By setting of a regularizer, the first and the last value that are tried."""
        tried = {"positive_margin": self.positive, "negative_margin": self.negative, "share": self.shares}
        return {name: (values[0], values[-1]) for name, values in tried.items()}


class Plan(_Part):
    """The runs of an experiment at one scale."""

    settings: tuple[str, ...]
    axes: dict[str, tuple[str, ...]] = {}
    """By axis, its choices; all combinations are run."""
    only: tuple[dict[str, str | tuple[str, ...]], ...] = ()
    """Run only combinations that fit at least one of these: by axis one choice or several; an axis left out fits."""
    seeds: Annotated[int, Field(ge=1)] = 3
    """For kind `cost`: how often everything is measured."""
    seeds_of: dict[str, Annotated[int, Field(ge=1)]] = {}
    """By setting, another number of seeds, for settings that take long."""
    needs: str = ""
    """Data, devices and hours, in words."""
    raw: bool = False
    """Whether the features that heads are trained on, and those of pretrained networks, have a row of their own."""
    equalized: bool = False
    """Whether every run is also measured with the default equalizer, in rows `TRAINING + local`."""
    margins: Margins | None = None
    """For kind `margins`."""
    tuning: Tuning | None = None
    """For kind `tuning`."""
    batches: Annotated[int, Field(ge=1)] = 20
    """For kind `cost`: how many batches are timed."""

    @model_validator(mode="after")
    def _seeds_of_its_settings(self) -> Self:
        for setting in self.seeds_of:
            if setting not in self.settings:
                raise ValueError(f"seeds_of has {setting!r}, which is not among the settings")
        return self


class ExperimentFigure(_Part):
    """A figure of an experiment's runs, drawn once per setting."""

    figure: str
    """Its name in `isomargin.figures.registry`."""
    runs: dict[str, tuple[str, ...]] = {}
    """By axis, the choices whose runs are drawn; an axis left out has all."""
    options: dict[str, Any] = {}
    """Arguments of the figure's function."""
    paper: str = ""
    """The figure of the paper that it corresponds to."""


Rate = Annotated[float, Field(gt=0, lt=1)]


class Experiment(_Part):
    """One experiment, of the paper or of this project."""

    title: str
    paper: str = ""
    """The table or figure of the paper that it corresponds to."""
    kind: Literal["training", "margins", "tuning", "cost"] = "training"
    """Train and test runs, search margins or tune on held-out classes, or time the parts of an epoch."""
    plans: dict[Scale, Plan]
    against: dict[str, str] = {}
    """The axis and the choice that the other choices of that axis are compared with."""
    columns: tuple[str, ...] = ("recall@1", "opis", "debiased_opis", "epsilon_opis", "far_threshold_spread")
    rows: Literal["groups", "seeds"] = "groups"
    """What a row of the table is: the mean over seeds, or one seed, with mean and standard deviation below."""
    ranges: tuple[tuple[Rate, Rate], ...] = ()
    """Ranges of false accept rates that OPIS is computed for, besides the recipe's own."""
    keep: Literal["evaluations"] | None = None
    """`evaluations`: results hold what is needed to compare every run again without its folder; see `lab.kept`."""
    figures: tuple[ExperimentFigure, ...] = ()
    published: tuple[dict[str, str | float | None], ...] = ()
    """The rows that the paper prints. They are shown below the table, and nothing is computed from them."""

    @model_validator(mode="after")
    def _margins_where_they_are_searched(self) -> Self:
        for scale, plan in self.plans.items():
            if (plan.margins is not None) != (self.kind == "margins"):
                has = "has no margins" if plan.margins is None else "has margins"
                raise ValueError(f"the kind is {self.kind} and the plan {scale} {has}: only kind margins has them")
            if (plan.tuning is not None) != (self.kind == "tuning"):
                raise ValueError(
                    f"the kind is {self.kind} and the plan {scale}: only kind tuning has tuning, and needs it"
                )
        return self


def experiment_names() -> list[str]:
    """List the names of all experiments.

    >>> "base-losses" in experiment_names()
    True
    """
    return sorted(path.stem for path in (FOLDER / "experiments").glob("*.yaml"))


def load_experiment(name: str) -> Experiment:
    """Read an experiment by name.

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
    """Read the settings that experiments share, and what choices change in all of them."""
    content = yaml.load((FOLDER / "settings.yaml").read_text(encoding="utf-8"), Loader=YamlLoader)
    shared = {
        axis: {name: as_choices(value) for name, value in choices.items()}
        for axis, choices in content["choices"].items()
    }
    settings = {}
    for name, values in content["settings"].items():
        choices = {
            axis: {choice: as_choices(value) for choice, value in by_choice.items()}
            for axis, by_choice in values.pop("choices", {}).items()
        }
        settings[name] = Setting(**values, choices=choices)
    return settings, shared


def as_choices(value: Any) -> list[Choice]:
    """Read what a choice changes: nothing, a list of changes, or several lists with conditions.

    >>> as_choices(["epochs=2"])[0].changes, as_choices(None)[0].changes
    (('epochs=2',), ())
    """
    parts = value or []
    plain = tuple(part for part in parts if isinstance(part, str))
    return [Choice(changes=plain), *(Choice(**part) for part in parts if not isinstance(part, str))]


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
    """Give the plan of an experiment at a scale."""
    if scale not in experiment.plans:
        raise InputError(f"this experiment has no scale {scale!r}: choose {' or '.join(experiment.plans)}")
    return experiment.plans[scale]
