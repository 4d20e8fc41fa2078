"""Run an experiment, or continue it, and write its results.

FOLDER/SETTING/CHOICES/seed-0/            one folder per run, as `isomargin train` writes it; experiments share runs
FOLDER/SETTING/margins/CHOICES/seed-0/    one folder per search, as `isomargin tune` writes it
RESULTS/NAME/                             the results, see `lab.results_folder`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import locked
from isomargin.training import loop
from isomargin.training.run_folder import RunFolder
from lab.calibration_ranges import range_rows, score_ranges
from lab.choices import AXIS, RAW, is_derived, is_local, is_raw
from lab.derived import with_derived
from lab.devices import train_on_devices
from lab.experiment import Experiment, Plan, Scale, load_experiment, load_settings, plan_of
from lab.features import make_features
from lab.figures import draw_figures
from lab.files import write_csv
from lab.jobs import Report
from lab.kept import Measured
from lab.loading import Loader
from lab.margins import draw_margins, margins_results, search_margins, search_names
from lab.merging import Whole, merge
from lab.plan import PlannedRun, check_choices, find_settings, planned_runs, result_name
from lab.results_folder import RANGES, Results, read_results, write_results
from lab.seed_means import make_rows, run_values, stored_draws, table_rows
from lab.toy_data import write_toy_data
from lab.training_runs import Train, train_all
from lab.tuning import fewest_and_most, run_tuning, tuning_results, with_earlier, write_chosen

Finish = Callable[[Path], None]
"""Writes what results have besides tables, such as figures, into their folder."""


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
    """Run an experiment and write its results; runs that are finished in the folder are not trained again.

    Args:
        name: of the experiment.
        folder: of the runs.
        results: a folder with the experiment's name is written here.
        scale: ``small``, ``paper`` or ``toy``.
        seeds: how many; the experiment's own number unless given.
        data: the folders of data sets that do not come with the package, by name.
        settings: only these of the experiment's settings.
        only: by axis, only these choices, and those that they are compared with; `raw` alone trains nothing. Rows of
            other settings and choices that are in `results` already stay there if their recipes are still the same.
        jobs: how many runs are trained at the same time, in processes of their own; 1 trains in this process.
        devices: how many train each run together, each in its own process. Features are computed on one.
        train: trains one run; called as `loop.train` is.
        report: called with one sentence at a time on the progress.

    Returns: the rows of table.csv for what was run.
    """
    if checks.whole(jobs, "jobs") > 1 and checks.whole(devices, "devices") > 1:
        raise InputError(f"jobs is {jobs} and devices is {devices}: runs at the same time would share them, give one")
    if devices > 1:
        train = partial(train_on_devices if train is loop.train else train, devices=devices)
    folder, place = folder.resolve(), results / name  # a run stores the folder of its data, and features are in it
    experiment = load_experiment(name)
    plan = plan_of(experiment, scale)
    data = write_toy_data(folder / "data") if scale == "toy" else dict(data or {})
    is_part = bool(settings or only) and not is_of_one_call(experiment)
    check(name, experiment, plan, settings, only or {}, data)
    if is_part:
        read_results(place)  # refused now if it cannot be read
    if scale == "paper" and plan.needs:
        report(f"{name} at the paper's scale needs {plan.needs}")
    for setting in settings or plan.settings:
        data |= prepare(setting, folder, data, report)
    runs = with_derived(plan, planned_runs(experiment, scale, seeds, data, settings, only), data)
    if tuple((only or {}).get(AXIS, ())) == (RAW,):
        runs = [run for run in runs if is_raw(run.choices)]
    if experiment.kind == "margins":
        new, finish = run_margins(plan, runs, folder, train, jobs, report)
    elif experiment.kind == "tuning":
        new, finish = tune_all(plan, runs, folder, train, jobs, report)
    elif experiment.kind == "cost":
        new, finish = run_cost(experiment, plan, runs, devices, report)
    else:
        new, finish = run_trainings(experiment, runs, folder, place, train, jobs, report, all_choices=not only)
    before = read_results(place) if is_part else None  # again: other parts may have been written in the meantime
    if before is None:
        write_results(new, place)
    elif experiment.kind == "tuning":
        write_results(with_earlier(new, before), place)
    else:
        write_results(merge(new, before, whole_of(experiment, scale), runs, report), place, keep_figures=True)
    finish(place)
    return new.rows


def is_of_one_call(experiment: Experiment) -> bool:
    """Tell whether results can only be compared within one call, as times and ranks are."""
    return experiment.kind == "cost" or bool(experiment.ranges)


def check(
    name: str,
    experiment: Experiment,
    plan: Plan,
    settings: Sequence[str] | None,
    only: Mapping[str, Sequence[str]],
    data: Mapping[str, Path],
) -> None:
    """Refuse what is missing or wrong before anything is computed."""
    find_settings(plan, settings, data)
    check_choices(plan, only)
    if only and is_of_one_call(experiment):
        raise InputError(f"{name} compares times or ranks of one call, so it needs all its choices: leave out --only")


def prepare(name: str, folder: Path, data: Mapping[str, Path], report: Report) -> dict[str, Path]:
    """Compute the features that a setting is trained on, if any; give where they are."""
    known, _ = load_settings()
    setting = known.get(name)
    if setting is None or setting.features is None or setting.data is None or setting.data not in data:
        return {}
    same = (
        other
        for other, settings in known.items()
        if (settings.data, settings.features) == (setting.data, setting.features)
    )
    features = folder / "features" / next(same)
    with locked(features, wait=True):
        make_features(setting.data, data[setting.data], features, setting.features, report, setting.closed)
    return {name: features / ("given" if setting.split == "given" else "all.npz")}


def whole_of(experiment: Experiment, scale: Scale) -> Whole:
    """Give the whole experiment, whatever data are available."""
    known, _ = load_settings()
    anywhere = {setting.data: Path() for setting in known.values() if setting.data is not None}
    plan = plan_of(experiment, scale)
    return Whole(experiment, with_derived(plan, planned_runs(experiment, scale, 1, anywhere), anywhere), plan.margins)


def run_trainings(
    experiment: Experiment,
    runs: Sequence[PlannedRun],
    folder: Path,
    place: Path,
    train: Train,
    jobs: int,
    report: Report,
    all_choices: bool,
) -> tuple[Results, Finish]:
    """Train the runs that are missing and compare all; figures are drawn only if the runs are of all choices."""
    loader = Loader(folder, place, keep=experiment.keep is not None)
    kept = {run.folder for run in runs if loader.is_kept(run)}
    seconds = train_all([run for run in runs if not is_local(run.choices)], folder, train, jobs, report, kept)
    finished = [run for run in runs if run.folder in seconds and loader.is_there(run)]
    for run in runs:
        if is_local(run.choices) and run.folder in seconds and run not in finished:
            report(f"note: {run.folder} is not equalized: its folder is missing, and no equalized evaluation was kept")

    def load(run: PlannedRun) -> Measured:
        found = loader.load(run)
        return replace(found, seconds=seconds[run.folder]) if seconds[run.folder] is not None else found

    rows = make_rows(experiment, finished, load)
    results = Results(
        table_rows(experiment, rows),
        [run_values(result) for row in rows for result in row.results],
        {
            result_name(run.setting, run.choices): run.recipe
            for run in runs
            if run.seed == 0 and not is_local(run.choices)
        },
        stored_draws(rows),
    )
    trained = [run for run in runs if not is_derived(run.choices)]
    here = [run for run in finished if not is_derived(run.choices) and RunFolder(folder / run.folder).finished]

    def finish(place: Path) -> None:
        if experiment.ranges:
            write_csv(place / RANGES, range_rows(score_ranges(experiment, here, loader.load, report)))
        if all_choices:
            draw_figures(experiment, trained, here, folder, place, report)
        elif experiment.figures:
            report("note: figures show all choices, so a part of them draws none: the earlier ones stay")

    return results, finish


def run_margins(
    plan: Plan, runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> tuple[Results, Finish]:
    """Search margins and pick; the heat maps are drawn later."""
    assert plan.margins is not None
    searches = search_margins(plan.margins, runs, folder, train, jobs, report)
    return margins_results(searches), partial(draw_margins, searches, plan.margins.tolerance)


def tune_all(
    plan: Plan, runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> tuple[Results, Finish]:
    """Tune TCM and the class alignment; what was chosen is written beside the table."""
    cases = run_tuning(plan, runs, folder, train, jobs, report)
    return tuning_results(cases), partial(write_chosen, cases)


def count_runs(name: str, scale: Scale, seeds: int | None = None) -> list[str]:
    """Say how many runs an experiment has in each setting; of a search, how many at least and at most."""
    experiment = load_experiment(name)
    plan = plan_of(experiment, scale)
    known, _ = load_settings()
    anywhere = {setting.data: Path() for setting in known.values() if setting.data is not None}
    planned = planned_runs(experiment, scale, seeds, anywhere)
    lines = []
    for setting in plan.settings:
        number = sum(run.setting == setting for run in planned)
        if plan.tuning is not None:
            fewest, most = fewest_and_most(plan.tuning)
            lines.append(f"{setting}: {number * fewest} to {number * most} runs")
        elif plan.margins is not None:
            lines.append(f"{setting}: {number * len(search_names(plan.margins))} runs")
        else:
            lines.append(f"{setting}: {number} runs")
    return lines


def run_cost(
    experiment: Experiment, plan: Plan, runs: Sequence[PlannedRun], devices: int, report: Report
) -> tuple[Results, Finish]:
    """Time all choices; there are no figures."""
    from lab.cost import cost_results, measure_cost

    if devices > 1:
        report("note: times are measured on one device")
    return cost_results(experiment, measure_cost(plan, runs, report)), lambda place: None
