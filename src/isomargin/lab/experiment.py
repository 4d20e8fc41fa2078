"""Experiments, as YAML: which settings, what varies, how often, what is held against what, and what the paper printed.

    experiments/NAME.yaml     one experiment
    settings.yaml             what experiments share: a recipe with changes, and what each choice means there

A run of an experiment is a setting, one choice of every axis, and a seed. A choice stands for changes of the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isomargin import checks
from isomargin.errors import InputError
from isomargin.training.recipe import Recipe, YamlLoader, load_recipe

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


class Setting(_Part):
    """Data, a model and how it is trained: what the choices of an experiment are laid over."""

    recipe: str
    """Name of a recipe that comes with the package."""
    changes: tuple[str, ...] = ()
    data: str | None = None
    """Which data set must be given on the command line; None where it comes with the package."""
    features: dict[str, Any] | None = None
    """Settings of the network whose features are trained on in place of the images; computed once."""
    about: str = ""
    """In a few words, for the tables."""
    choices: dict[str, dict[str, list[Choice]]] = {}
    """By axis and choice, what it means here, in place of what it means everywhere."""


class Plan(_Part):
    """What is run at one scale."""

    settings: tuple[str, ...]
    axes: dict[str, tuple[str, ...]] = {}
    """By axis, the choices that are tried, all with all."""
    seeds: Annotated[int, Field(ge=1)] = 3
    needs: str = ""
    """Data, devices and hours, in words."""


class Experiment(_Part):
    """One experiment of the paper, or of ours."""

    title: str
    paper: str = ""
    """Which table or figure of the paper."""
    plans: dict[str, Plan]
    against: dict[str, str] = {}
    """The axis and choice that the other choices of that axis are held against."""
    columns: tuple[str, ...] = ("recall@1", "opis", "debiased_opis", "epsilon_opis", "far_threshold_spread")
    published: tuple[dict[str, str | float | None], ...] = ()
    """The paper's rows, as far as it prints them: for whoever reads the file; nothing is computed from them."""


class PlannedRun(_Part):
    """One run of an experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    setting: str
    choices: dict[str, str]
    """By axis."""
    seed: int
    recipe: Recipe

    @property
    def variant(self) -> str:
        """Its choices as the name of a folder.

        >>> run = PlannedRun.model_construct(setting="a", choices={"loss": "smooth_ap", "regularizer": "tcm"}, seed=0)
        >>> run.variant
        'smooth_ap+tcm'
        """
        return "+".join(self.choices.values()) or "run"

    @property
    def folder(self) -> Path:
        """Of the run, within that of all experiments: runs that several experiments share are trained once."""
        return Path(self.setting) / self.variant / f"seed-{self.seed}"


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
    isomargin.errors.InputError: there is no experiment 'base-loss': ...
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


def planned_runs(
    experiment: Experiment,
    scale: Scale,
    seeds: int | None = None,
    data: Mapping[str, Path] | None = None,
    settings: Sequence[str] | None = None,
) -> list[PlannedRun]:
    """List the runs of an experiment at a scale, setting by setting, a seed after the other.

    Args:
        experiment: which.
        scale: ``small``, ``paper`` or ``toy``.
        seeds: how many; the experiment's own unless given.
        data: where the data are that do not come with the package, by the name of the data set, or by that of the
            setting where features of them are trained on.
        settings: only these of the experiment's; all unless given.
    """
    plan = plan_of(experiment, scale)
    for name in settings or ():
        checks.one_of(name, "settings", plan.settings)
    known, _ = load_settings()
    runs = []
    for name in settings or plan.settings:
        place = location(name, known[name], data or {})
        for choices in product(*plan.axes.values()):
            chosen = dict(zip(plan.axes, choices, strict=True))
            changes = [*place, *changes_of(known[name], chosen)]
            for seed in range(seeds or plan.seeds):
                title = " ".join([name, *chosen.values()])
                recipe = load_recipe(known[name].recipe, [*changes, f"seed={seed}", f"name={title}"])
                runs.append(PlannedRun(setting=name, choices=chosen, seed=seed, recipe=recipe))
    return runs


def as_scale(text: str) -> Scale:
    """Read a scale.

    >>> as_scale("smal")
    Traceback (most recent call last):
    isomargin.errors.InputError: scale is 'smal': ...
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


def location(name: str, setting: Setting, data: Mapping[str, Path]) -> list[str]:
    """Give the setting's own changes, with the place of its data."""
    if setting.data is None:
        return list(setting.changes)
    if setting.features is not None and name in data:
        return [*setting.changes, f"data.root={data[name]}"]
    if setting.data not in data:
        raise InputError(
            f"the setting {name} needs {setting.data}: say where it is with --data {setting.data}=FOLDER, or choose "
            "other settings with --settings"
        )
    return [*setting.changes, f"data.root={data[setting.data]}"]


def changes_of(setting: Setting, chosen: Mapping[str, str]) -> Sequence[str]:
    """Give the changes that the choices of all axes stand for in a setting."""
    _, shared = load_settings()
    changes: list[str] = []
    for axis, choice in chosen.items():
        meanings = setting.choices.get(axis, {}).get(choice) or shared.get(axis, {}).get(choice)
        if meanings is None:
            raise InputError(f"nothing says what {choice!r} of {axis} means: add it to settings.yaml")
        fitting = [each for each in meanings if all(chosen.get(other) == what for other, what in each.when.items())]
        changes.extend(fitting[-1].changes if fitting else ())
    return changes
