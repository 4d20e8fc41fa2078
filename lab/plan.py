"""The runs of an experiment: each has a setting, one choice per axis, and a seed.

All combinations are planned, or the part of them that is asked for. The recipe of a run is the setting's, with the
changes that its choices stand for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.training.recipe import Recipe, load_recipe
from lab.choices import AXIS, RAW, is_raw, without_local
from lab.experiment import Experiment, Plan, Scale, Setting, load_settings, plan_of
from lab.tuned_choices import tuned_change


class PlannedRun(BaseModel):
    """One run of an experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    setting: str
    choices: dict[str, str]
    """By axis."""
    seed: int
    recipe: Recipe

    @property
    def variant(self) -> str:
        """Its choices, as the name of a folder.

        >>> run = PlannedRun.model_construct(setting="a", choices={"loss": "smooth_ap", "regularizer": "tcm"}, seed=0)
        >>> run.variant
        'smooth_ap+tcm'
        """
        return variant_of(self.choices)

    @property
    def folder(self) -> Path:
        """Its folder within the folder of all experiments: a run that several experiments share is trained once.

        An equalized run is in the folder of the run itself.
        """
        trained = without_local(self.choices)
        return Path(self.setting) / (RAW if is_raw(trained) else variant_of(trained)) / f"seed-{self.seed}"


def planned_runs(
    experiment: Experiment,
    scale: Scale,
    seeds: int | None = None,
    data: Mapping[str, Path] | None = None,
    settings: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
) -> list[PlannedRun]:
    """List the runs of an experiment at a scale, setting by setting.

    Args:
        experiment: the experiment.
        scale: ``small``, ``paper`` or ``toy``.
        seeds: how many, in all settings; the experiment's own number unless given.
        data: the folders of data sets that do not come with the package, by data set; by setting where a setting
            trains on features of the data.
        settings: only these of the experiment's settings; all unless given.
        only: by axis, only these choices, and those that they are compared with; all unless given. Raw features, which
            are no run, select nothing.
    """
    plan = plan_of(experiment, scale)
    check_choices(plan, only or {})
    only = without_raw(only or {})
    known, runs = find_settings(plan, settings, data or {}), []
    for name in known:
        place = location(name, known[name], data or {})
        for chosen in part_of(combinations(plan, name), only, experiment.against):
            changes = [*place, *changes_of(known[name], chosen)]
            for seed in range(seeds or plan.seeds_of.get(name, plan.seeds)):
                title = " ".join([name, *chosen.values()])
                recipe = load_recipe(known[name].recipe, [*changes, f"seed={seed}", f"name={title}"])
                runs.append(PlannedRun(setting=name, choices=chosen, seed=seed, recipe=recipe))
    if not runs:
        raise InputError("the experiment does not combine these choices in these settings: choose others")
    return runs


def combinations(plan: Plan, setting: str) -> list[dict[str, str]]:
    """List the combinations of choices that a plan runs in a setting.

    >>> axes = {"loss": ("a", "b"), "training": ("plain", "tcm")}
    >>> plan = Plan(settings=("toy",), axes=axes, only=({"loss": "a"}, {"training": ("plain",)}))
    >>> ["+".join(chosen.values()) for chosen in combinations(plan, "toy")]
    ['a+plain', 'a+tcm', 'b+plain']
    """
    for part in plan.only:
        for axis in part:
            checks.one_of(axis, "an axis of only", ("setting", *plan.axes))
    every = [dict(zip(plan.axes, choices, strict=True)) for choices in product(*plan.axes.values())]
    here = {"setting": setting}
    return [chosen for chosen in every if not plan.only or any(fits({**here, **chosen}, part) for part in plan.only)]


def check_choices(plan: Plan, only: Mapping[str, Sequence[str]]) -> None:
    """Refuse axes and choices that a plan does not have; raw features are a training, where there are any.

    >>> check_choices(Plan(settings=("toy",), axes={"loss": ("a", "b")}), {"loss": ["c"]})
    Traceback (most recent call last):
    isomargin.InputError: only: loss is 'c': one of 'a', 'b' is needed
    """
    if only and not plan.axes:
        raise InputError("--only is for experiments with axes, and this one has none: leave it out")
    for axis, choices in only.items():
        checks.one_of(axis, "an axis of only", tuple(plan.axes))
        known = (*plan.axes[axis], *((RAW,) if plan.raw and axis == AXIS else ()))
        for choice in choices:
            checks.one_of(choice, f"only: {axis}", known)


def without_raw(only: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Leave raw features out of the choices to run; where they are the only training, all trainings are meant.

    >>> without_raw({"loss": ["a"], "training": ["raw"]}), without_raw({"training": ["raw", "tcm"]})
    ({'loss': ['a']}, {'training': ['tcm']})
    """
    left = {axis: [choice for choice in choices if (axis, choice) != (AXIS, RAW)] for axis, choices in only.items()}
    return {axis: choices for axis, choices in left.items() if choices}


def part_of(
    every: Sequence[dict[str, str]], only: Mapping[str, Sequence[str]], against: Mapping[str, str]
) -> list[dict[str, str]]:
    """Select the combinations of some choices, and those that they are compared with.

    >>> every = [{"training": "plain"}, {"training": "tcm"}, {"training": "both"}]
    >>> part_of(every, {"training": ["both"]}, {"training": "plain"})
    [{'training': 'plain'}, {'training': 'both'}]
    """
    wanted = {axis: tuple(choices) for axis, choices in only.items()}
    selected = [chosen for chosen in every if fits(chosen, wanted)]
    bases = [base_of(chosen, against) for chosen in selected]
    return [chosen for chosen in every if chosen in selected or chosen in bases]


def base_of(choices: Mapping[str, str], against: Mapping[str, str]) -> dict[str, str]:
    """Give the choices that others are compared with.

    >>> base_of({"loss": "a", "training": "tcm"}, {"training": "plain"})
    {'loss': 'a', 'training': 'plain'}
    """
    return {**choices, **{axis: choice for axis, choice in against.items() if axis in choices}}


def variant_of(choices: Mapping[str, str]) -> str:
    """Give the folder name of choices.

    >>> variant_of({"loss": "a", "training": "tcm"}), variant_of({})
    ('a+tcm', 'run')
    """
    return "+".join(choices.values()) or "run"


def result_name(setting: str, choices: Mapping[str, str]) -> str:
    """Name a setting and its choices among an experiment's results.

    >>> result_name("cub-heads", {"loss": "arcface", "training": "tcm"})
    'cub-heads-arcface+tcm'
    """
    return f"{setting}-{variant_of(choices)}"


def fits(choices: Mapping[str, str], wanted: Mapping[str, str | tuple[str, ...]]) -> bool:
    """Tell whether choices are among those wanted; an axis that is left out always fits.

    >>> fits({"loss": "a", "training": "tcm"}, {"training": ("plain", "tcm")}), fits({"loss": "a"}, {"loss": "b"})
    (True, False)
    """
    return all(
        choices.get(axis) in ((allowed,) if isinstance(allowed, str) else allowed) for axis, allowed in wanted.items()
    )


def find_settings(plan: Plan, chosen: Sequence[str] | None, data: Mapping[str, Path]) -> dict[str, Setting]:
    """Give a plan's settings by name, or the chosen ones; if data are missing, name all that are needed.

    >>> find_settings(Plan(settings=("cub-heads",), needs="an evening"), None, {})
    Traceback (most recent call last):
    isomargin.InputError: the setting cub-heads needs cub: give its folder with --data cub=FOLDER, ...
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
        missing = list(dict.fromkeys(name for name in without.values() if name is not None))
        one = len(without) == 1
        needs = f"; in total this needs {' '.join(plan.needs.split())}" if plan.needs else ""
        raise InputError(
            f"the setting{'' if one else 's'} {', '.join(without)} need{'s' if one else ''} {', '.join(missing)}: give "
            f"{'its folder' if len(missing) == 1 else 'their folders'} with "
            f"{' '.join(f'--data {name}=FOLDER' for name in missing)}, or choose other settings with --settings{needs}"
        )
    return found


def has_data(name: str, setting: Setting, data: Mapping[str, Path]) -> bool:
    """Tell whether a setting's data are given or come with the package."""
    return setting.data is None or setting.data in data or (setting.features is not None and name in data)


def location(name: str, setting: Setting, data: Mapping[str, Path]) -> list[str]:
    """Give the setting's own changes, with the folder of its data."""
    if setting.data is None:
        return list(setting.changes)
    key = name if setting.features is not None and name in data else setting.data
    return [*setting.changes, f"data.root={json.dumps(str(data[key]))}"]


def changes_of(setting: Setting, chosen: Mapping[str, str]) -> Sequence[str]:
    """Give the changes of the recipe that the choices of all axes stand for in a setting."""
    return [change for axis in chosen for change in changes_of_choice(setting, chosen, axis)]


def changes_of_choice(setting: Setting, chosen: Mapping[str, str], axis: str) -> Sequence[str]:
    """Give the changes that the choice of one axis stands for in a setting, given the choices of the others."""
    _, shared = load_settings()
    choice = chosen[axis]
    meanings = setting.choices.get(axis, {}).get(choice) or shared.get(axis, {}).get(choice)
    if meanings is None:
        raise InputError(f"settings.yaml does not define {choice!r} of {axis}: add it")
    fitting = [
        meaning for meaning in meanings if all(chosen.get(other) == what for other, what in meaning.when.items())
    ]
    if not fitting:
        return ()
    if fitting[-1].tuned:
        return [tuned_change(setting.tuned_in, chosen.get("loss"), fitting[-1].tuned), *fitting[-1].changes]
    parts = [changes_of_choice(setting, {**chosen, axis: part}, axis) for part in fitting[-1].join]
    return [*([joined(parts)] if parts else ()), *fitting[-1].changes]


def joined(parts: Sequence[Sequence[str]]) -> str:
    """Join the regularizers of several choices in one change.

    >>> joined([["loss.regularizer={name: tcm}"], ["loss.regularizer={name: triplet}"]])
    'loss.regularizer=[{name: tcm}, {name: triplet}]'
    >>> joined([["loss.regularizer={name: tcm}"], ["epochs=2"]])
    Traceback (most recent call last):
    isomargin.InputError: settings.yaml: join is for choices that are one regularizer each, not ['epochs=2']
    """
    for part in parts:
        if len(part) != 1 or not part[0].startswith("loss.regularizer="):
            raise InputError(f"settings.yaml: join is for choices that are one regularizer each, not {list(part)}")
    return f"loss.regularizer=[{', '.join(part[0].partition('=')[2] for part in parts)}]"
