"""Run an experiment, or go on with it, and write what came of it.

FOLDER/SETTING/CHOICES/seed-0/            a run a folder, as `isomargin train` makes it; experiments share them
FOLDER/SETTING/margins/CHOICES/seed-0/    a search a folder, as `isomargin tune` makes it
RESULTS/NAME/                             runs.json  table.md  table.tex  table.csv  recipes/*.yaml  *.png  ranges.*
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.training import loop
from isomargin.training.run_folder import RunFolder
from lab.calibration_ranges import make_range_tables, write_ranges
from lab.devices import train_on_devices
from lab.experiment import Experiment, Plan, Scale, load_experiment, load_settings, plan_of
from lab.features import make_features
from lab.figures import draw_figures
from lab.jobs import Report, Train, locked, train_all
from lab.margins import draw_margins, margins_outcome, search_margins
from lab.merging import Whole, join, read_before
from lab.plan import PlannedRun, check_choices, file_name, find_settings, planned_runs
from lab.results_folder import Outcome, write_outcome
from lab.seed_means import make_rows, run_values
from lab.tables import make_table, notes_of
from lab.toy_data import write_toy_data

Draw = Callable[[Path], None]
"""Draws the figures of an outcome into the folder of its results."""
KEPT = 12  # evaluations in memory: those of a benchmark have 50 MB each


def run_experiment(
    name: str,
    folder: Path,
    results: Path,
    *,
    scale: Scale = "small",
    seeds: int | None = None,
    data: Mapping[str, Path] | None = None,
    settings: Sequence[str] | None = None,
    only: Mapping[str, Sequence[str]] | None = None,
    jobs: int = 1,
    devices: int = 1,
    train: Train = loop.train,
    report: Report = lambda sentence: None,
) -> list[dict[str, Any]]:
    """Run an experiment and write its tables and figures; what is finished in the folder is not run again.

    Args:
        name: of the experiment.
        folder: of the runs.
        results: where a folder of the experiment's name is written.
        scale: ``small``, ``paper`` or ``toy``.
        seeds: how many; the experiment's own unless given.
        data: where data sets are that do not come with the package, by name.
        settings: of the experiment's settings, only these.
        only: by axis, only these choices, and those that they are held against. What is in `results` of other settings
            and choices, by the same recipes, stays there.
        jobs: how many runs are trained at the same time, in processes of their own; 1 is in this one.
        devices: how many train each run together, each in a process of its own; features are made by one.
        train: trains one run; to be called like `loop.train`.
        report: is given a sentence at a time on how it goes.

    Returns: the rows of what was run, as in table.csv.
    """
    if checks.whole(jobs, "jobs") > 1 and checks.whole(devices, "devices") > 1:
        raise InputError(f"jobs is {jobs} and devices is {devices}: runs at the same time would share them, give one")
    if devices > 1:
        train = partial(train_on_devices if train is loop.train else train, devices=devices)
    folder = folder.resolve()  # features lie in it, and a run keeps where its data are
    experiment = load_experiment(name)
    plan = plan_of(experiment, scale)
    data = write_toy_data(folder / "data") if scale == "toy" else dict(data or {})
    # What is missing or wrong is told before anything is computed.
    find_settings(plan, settings, data)
    check_choices(plan, only or {})
    together = experiment.kind == "cost" or bool(experiment.ranges)  # times, or ranks, which are of one call
    if only and together:
        raise InputError(f"{name} compares times or ranks of one call: all its choices are needed, leave out only")
    place, joins = results / name, bool(settings or only) and not together
    if joins:
        read_before(place)
    if scale == "paper" and plan.needs:
        report(f"{name} at the paper's scale needs {plan.needs}")
    for wanted in settings or plan.settings:
        data |= prepare(wanted, folder, data, report)
    runs = planned_runs(experiment, scale, seeds, data, settings, only)
    if experiment.kind == "margins":
        outcome, draw = run_margins(plan, runs, folder, train, jobs, report)
    elif experiment.kind == "cost":
        from lab.cost import cost_outcome, measure_cost

        if devices > 1:
            report("note: times are measured on one device")
        outcome, draw = cost_outcome(experiment, measure_cost(plan, runs, report)), draw_nothing
    else:
        outcome, draw = run_trainings(experiment, runs, folder, train, jobs, report, all_choices=not only)
    before = read_before(place) if joins else None  # now: other parts may have come to it meanwhile
    if before is None:
        write_outcome(outcome, experiment, place)
    else:
        joined = join(outcome, before, whole_of(experiment, scale), runs, report)
        write_outcome(joined, experiment, place, keep_figures=True)
    draw(place)
    return outcome.table.numbers


def prepare(name: str, folder: Path, data: Mapping[str, Path], report: Report) -> dict[str, Path]:
    """Compute the features that a setting is trained on, where it is; give where they are."""
    known, _ = load_settings()
    setting = known.get(name)
    if setting is None or setting.features is None or setting.data is None or setting.data not in data:
        return {}
    same = (each for each, its in known.items() if (its.data, its.features) == (setting.data, setting.features))
    made = folder / "features" / next(same)
    with locked(made, wait=True):
        make_features(setting.data, data[setting.data], made, setting.features, report, setting.closed)
    return {name: made / ("given" if setting.split == "given" else "all.npz")}


def whole_of(experiment: Experiment, scale: Scale) -> Whole:
    """Give all that an experiment has, whatever data are there."""
    known = load_settings()[0]
    anywhere = {setting.data: Path() for setting in known.values() if setting.data is not None}
    about = {name: setting.about for name, setting in known.items()}
    return Whole(experiment, planned_runs(experiment, scale, 1, anywhere), plan_of(experiment, scale).margins, about)


def draw_nothing(place: Path) -> None:
    """Draw no figure."""


def run_trainings(
    experiment: Experiment,
    runs: Sequence[PlannedRun],
    folder: Path,
    train: Train,
    jobs: int,
    report: Report,
    all_choices: bool,
) -> tuple[Outcome, Draw]:
    """Train what is missing and compare; give what came of it, and what draws its figures, which are of all choices."""
    seconds = train_all(runs, folder, train, jobs, report)
    finished = [run for run in runs if run.folder in seconds]

    @lru_cache(maxsize=KEPT)
    def load(run: Path) -> Evaluation:
        return Evaluation.load(RunFolder(folder / run).evaluation)

    rows = make_rows(experiment, finished, load, seconds)
    outcome = Outcome(
        make_table(experiment, rows),
        [run_values(result) for row in rows for result in row.results],
        {file_name(run.setting, run.choices): run.recipe for run in runs if run.seed == 0},
        notes_of(rows, {name: setting.about for name, setting in load_settings()[0].items()}),
    )

    def draw(place: Path) -> None:
        if experiment.ranges:
            write_ranges(make_range_tables(experiment, finished, load, report), place)
        if all_choices:
            draw_figures(experiment, runs, finished, folder, place, report)
        elif experiment.figures:
            report("note: figures are of all choices and not drawn of a part: those of before stay")

    return outcome, draw


def run_margins(
    plan: Plan, runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> tuple[Outcome, Draw]:
    """Search and pick; give what came of it, and what draws the heat maps."""
    assert plan.margins is not None
    found, missing = search_margins(plan.margins, runs, folder, train, jobs, report)
    return margins_outcome(found, missing), partial(draw_margins, found, plan.margins.tolerance)
