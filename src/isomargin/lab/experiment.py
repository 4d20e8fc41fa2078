"""Experiments, as YAML: which settings, what varies, how often, what is held against what, and what the paper printed.

    experiments/NAME.yaml     one experiment
    settings.yaml             what experiments share: a recipe with changes, and what each choice means there

A run of an experiment is a setting, one choice of every axis, and a seed. A choice stands for changes of the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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
    needs: str = ""
    """Data, devices and hours, in words."""
    margins: Margins | None = None
    """Of kind `margins`."""
    batches: Annotated[int, Field(ge=1)] = 20
    """Of kind `cost`: how many are timed."""


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
        return variant_of(self.choices)

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
    only: Mapping[str, Sequence[str]] | None = None,
) -> list[PlannedRun]:
    """List the runs of an experiment at a scale, setting by setting, a seed after the other.

    Args:
        experiment: which.
        scale: ``small``, ``paper`` or ``toy``.
        seeds: how many; the experiment's own unless given.
        data: where the data are that do not come with the package, by the name of the data set, or by that of the
            setting where features of them are trained on.
        settings: only these of the experiment's; all unless given.
        only: by axis, only these choices, and those that they are held against; all unless given.
    """
    plan = plan_of(experiment, scale)
    check_choices(plan, only or {})
    known, runs = find_settings(plan, settings, data or {}), []
    for name in known:
        place = location(name, known[name], data or {})
        for chosen in part_of(combinations(plan, name), only or {}, experiment.against):
            changes = [*place, *changes_of(known[name], chosen)]
            for seed in range(seeds or plan.seeds):
                title = " ".join([name, *chosen.values()])
                recipe = load_recipe(known[name].recipe, [*changes, f"seed={seed}", f"name={title}"])
                runs.append(PlannedRun(setting=name, choices=chosen, seed=seed, recipe=recipe))
    if not runs:
        raise InputError("the experiment does not run these choices with each other in these settings: choose others")
    return runs


def combinations(plan: Plan, setting: str) -> list[dict[str, str]]:
    """List the combinations of choices that a plan runs in a setting, by axis.

    >>> axes = {"loss": ("a", "b"), "training": ("plain", "tcm")}
    >>> plan = Plan(settings=("toy",), axes=axes, only=({"loss": "a"}, {"training": ("plain",)}))
    >>> ["+".join(each.values()) for each in combinations(plan, "toy")]
    ['a+plain', 'a+tcm', 'b+plain']
    """
    for part in plan.only:
        for axis in part:
            checks.one_of(axis, "an axis of only", ("setting", *plan.axes))
    every = [dict(zip(plan.axes, choices, strict=True)) for choices in product(*plan.axes.values())]
    here = {"setting": setting}
    return [each for each in every if not plan.only or any(fits({**here, **each}, part) for part in plan.only)]


def check_choices(plan: Plan, only: Mapping[str, Sequence[str]]) -> None:
    """Refuse axes and choices that a plan does not have.

    >>> check_choices(Plan(settings=("toy",), axes={"loss": ("a", "b")}), {"loss": ["c"]})
    Traceback (most recent call last):
    isomargin.errors.InputError: only: loss is 'c': one of 'a', 'b' is needed
    """
    if only and not plan.axes:
        raise InputError("only is for experiments with axes: this one has none")
    for axis, choices in only.items():
        checks.one_of(axis, "an axis of only", tuple(plan.axes))
        for choice in choices:
            checks.one_of(choice, f"only: {axis}", plan.axes[axis])


def part_of(
    every: Sequence[dict[str, str]], only: Mapping[str, Sequence[str]], against: Mapping[str, str]
) -> list[dict[str, str]]:
    """Give the combinations of some choices, and those that these are held against.

    >>> every = [{"training": "plain"}, {"training": "tcm"}, {"training": "both"}]
    >>> part_of(every, {"training": ["both"]}, {"training": "plain"})
    [{'training': 'plain'}, {'training': 'both'}]
    """
    chosen = [each for each in every if fits(each, {axis: tuple(choices) for axis, choices in only.items()})]
    bases = [base_of(each, against) for each in chosen]
    return [each for each in every if each in chosen or each in bases]


def base_of(choices: Mapping[str, str], against: Mapping[str, str]) -> dict[str, str]:
    """Give the choices that others are held against.

    >>> base_of({"loss": "a", "training": "tcm"}, {"training": "plain"})
    {'loss': 'a', 'training': 'plain'}
    """
    return {**choices, **{axis: choice for axis, choice in against.items() if axis in choices}}


def variant_of(choices: Mapping[str, str]) -> str:
    """Name choices as a folder is.

    >>> variant_of({"loss": "a", "training": "tcm"}), variant_of({})
    ('a+tcm', 'run')
    """
    return "+".join(choices.values()) or "run"


def file_name(setting: str, choices: Mapping[str, str]) -> str:
    """Name the files of a setting and choices among the results, without a suffix."""
    return f"{setting}-{variant_of(choices)}"


def fits(choices: Mapping[str, str], wanted: Mapping[str, str | tuple[str, ...]]) -> bool:
    """Tell whether choices are among those wanted of each axis; an axis that is left out fits always.

    >>> fits({"loss": "a", "training": "tcm"}, {"training": ("plain", "tcm")}), fits({"loss": "a"}, {"loss": "b"})
    (True, False)
    """
    return all(choices.get(axis) in ((each,) if isinstance(each, str) else each) for axis, each in wanted.items())


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


def find_settings(plan: Plan, chosen: Sequence[str] | None, data: Mapping[str, Path]) -> dict[str, Setting]:
    """Give a plan's settings by name, or those chosen of them; refuse them if data are missing, and name all of these.

    >>> find_settings(Plan(settings=("cub-heads",), needs="an evening"), None, {})
    Traceback (most recent call last):
    isomargin.errors.InputError: the setting cub-heads needs cub: say where it is with --data cub=FOLDER, ...
    """
    every, _ = load_settings()
    for name in chosen or ():
        checks.one_of(name, "settings", plan.settings)
    for name in plan.settings:
        if name not in every:
            raise InputError(f"there is no setting {name!r} in settings.yaml: {checks.nearest(name, list(every))}")
    found = {name: every[name] for name in chosen or plan.settings}
    without = {name: setting.data for name, setting in found.items() if not has_data(name, setting, data)}
    if without:
        missing = list(dict.fromkeys(each for each in without.values() if each is not None))
        one = len(without) == 1
        needs = f"; all in all this needs {' '.join(plan.needs.split())}" if plan.needs else ""
        raise InputError(
            f"the setting{'' if one else 's'} {', '.join(without)} need{'s' if one else ''} {', '.join(missing)}: say "
            f"where {'it is' if len(missing) == 1 else 'they are'} with "
            f"{' '.join(f'--data {each}=FOLDER' for each in missing)}, or choose other settings with --settings{needs}"
        )
    return found


def has_data(name: str, setting: Setting, data: Mapping[str, Path]) -> bool:
    """Tell whether a setting's data are given, or come with the package."""
    return setting.data is None or setting.data in data or (setting.features is not None and name in data)


def location(name: str, setting: Setting, data: Mapping[str, Path]) -> list[str]:
    """Give the setting's own changes, with the place of its data."""
    if setting.data is None:
        return list(setting.changes)
    key = name if setting.features is not None and name in data else setting.data
    return [*setting.changes, f"data.root={json.dumps(str(data[key]))}"]


def changes_of(setting: Setting, chosen: Mapping[str, str]) -> Sequence[str]:
    """Give the changes that the choices of all axes stand for in a setting."""
    return [change for axis in chosen for change in changes_of_choice(setting, chosen, axis)]


def changes_of_choice(setting: Setting, chosen: Mapping[str, str], axis: str) -> Sequence[str]:
    """Give the changes that the choice of an axis stands for in a setting, beside the choices of the others."""
    _, shared = load_settings()
    choice = chosen[axis]
    meanings = setting.choices.get(axis, {}).get(choice) or shared.get(axis, {}).get(choice)
    if meanings is None:
        raise InputError(f"nothing says what {choice!r} of {axis} means: add it to settings.yaml")
    fitting = [each for each in meanings if all(chosen.get(other) == what for other, what in each.when.items())]
    if not fitting:
        return ()
    parts = [changes_of_choice(setting, {**chosen, axis: each}, axis) for each in fitting[-1].join]
    return [*([joined(parts)] if parts else ()), *fitting[-1].changes]


def joined(parts: Sequence[Sequence[str]]) -> str:
    """Put the regularizers of several choices into one change.

    >>> joined([["loss.regularizer={name: tcm}"], ["loss.regularizer={name: triplet}"]])
    'loss.regularizer=[{name: tcm}, {name: triplet}]'
    >>> joined([["loss.regularizer={name: tcm}"], ["epochs=2"]])
    Traceback (most recent call last):
    isomargin.errors.InputError: settings.yaml: join is for choices that are one regularizer each, not ['epochs=2']
    """
    for part in parts:
        if len(part) != 1 or not part[0].startswith("loss.regularizer="):
            raise InputError(f"settings.yaml: join is for choices that are one regularizer each, not {list(part)}")
    return f"loss.regularizer=[{', '.join(part[0].partition('=')[2] for part in parts)}]"
