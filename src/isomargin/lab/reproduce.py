"""``reproduce``: run an experiment, or go on with it, and write what came of it.

FOLDER/SETTING/CHOICES/seed-0/    a run a folder, as `isomargin train` makes it; experiments share them
RESULTS/NAME/                     runs.json  table.md  table.tex  table.csv  recipes/*.yaml
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isomargin.errors import AstrayError
from isomargin.files import atomic_write
from isomargin.lab.experiment import (
    Experiment,
    PlannedRun,
    Scale,
    load_experiment,
    load_settings,
    plan_of,
    planned_runs,
)
from isomargin.lab.features import make_features
from isomargin.lab.results import Row, RunResult, make_rows, scores_of, write_json
from isomargin.lab.tables import as_csv, as_latex, as_markdown
from isomargin.lab.toy import write_toy_data
from isomargin.measure.evaluation import Evaluation
from isomargin.training import loop
from isomargin.training.recipe import Recipe
from isomargin.training.run import open_evaluation

TIMES = "seconds.json"


def reproduce(
    name: str,
    folder: Path,
    results: Path,
    *,
    scale: Scale = "small",
    seeds: int | None = None,
    data: Mapping[str, Path] | None = None,
    settings: Sequence[str] | None = None,
    train: Callable[..., object] = loop.train,
    report: Callable[[str], None] = lambda sentence: None,
) -> list[Row]:
    """Run an experiment and write its tables; what is finished in the folder is not run again.

    Args:
        name: of the experiment.
        folder: of the runs.
        results: where a folder of the experiment's name is written.
        scale: ``small``, ``paper`` or ``toy``.
        seeds: how many; the experiment's own unless given.
        data: where data sets are that do not come with the package, by name.
        settings: of the experiment's settings, only these.
        train: trains one run; to be called like `loop.train`.
        report: is given a sentence at a time on how it goes.
    """
    experiment = load_experiment(name)
    data = write_toy_data(folder / "data") if scale == "toy" else dict(data or {})
    for wanted in settings or plan_of(experiment, scale).settings:
        data |= prepare(wanted, folder, data, report)
    runs = planned_runs(experiment, scale, seeds, data, settings)
    finished: list[RunResult] = []
    evaluations: dict[Path, Evaluation] = {}
    for number, run in enumerate(runs):
        report(f"run {number + 1} of {len(runs)}: {run.folder}")
        try:
            seconds = train_run(run, folder / run.folder, train)
        except AstrayError as error:
            report(f"note: {run.folder} has no scores, {error}")
            continue
        evaluations[run.folder] = open_evaluation(folder / run.folder)
        finished.append(RunResult(run, scores_of(evaluations[run.folder]), seconds))
    rows = make_rows(experiment, finished, evaluations)
    write_results(experiment, finished, rows, results / name)
    return rows


def prepare(name: str, folder: Path, data: Mapping[str, Path], report: Callable[[str], None]) -> dict[str, Path]:
    """Compute the features that a setting is trained on, where it is; give where they are."""
    known, _ = load_settings()
    setting = known.get(name)
    if setting is None or setting.features is None or setting.data is None or setting.data not in data:
        return {}
    made = folder / "features" / name
    make_features(data[setting.data], made, setting.features, report)
    return {name: made / "open.npz"}


def train_run(run: PlannedRun, folder: Path, train: Callable[..., object]) -> float | None:
    """Train a run, go on with it, or find it finished; give its seconds, as far as they are known."""
    times = folder / TIMES
    before = float(json.loads(times.read_text())["seconds"]) if times.is_file() else 0.0
    if (folder / "evaluation.json").is_file():
        return before or None
    folder.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    try:
        train(run.recipe, folder, resume=folder.exists(), quiet=True)
    finally:
        if folder.is_dir():
            write_json(times, {"seconds": before + time.monotonic() - begin})
    return float(json.loads(times.read_text())["seconds"])


def write_results(experiment: Experiment, runs: Sequence[RunResult], rows: Sequence[Row], folder: Path) -> None:
    """Write the tables, a row a run, and the recipes."""
    (folder / "recipes").mkdir(parents=True, exist_ok=True)
    write_json(folder / "runs.json", [run_values(each) for each in runs])
    for path, text in (
        ("table.md", as_markdown(experiment, rows)),
        ("table.tex", as_latex(experiment, rows)),
        ("table.csv", as_csv(rows)),
    ):
        with atomic_write(folder / path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for each in runs:
        if each.run.seed == 0:
            without_place(each.run).save(folder / "recipes" / f"{each.run.setting}-{each.run.variant}.yaml")


def run_values(result: RunResult) -> dict[str, Any]:
    """Give one run as JSON values."""
    run = result.run
    return {"setting": run.setting, **run.choices, "seed": run.seed, "seconds": result.seconds, **result.scores}


def without_place(run: PlannedRun) -> Recipe:
    """Give a run's recipe without where its data were: that is this machine's affair."""
    data = {name: value for name, value in run.recipe.data.items() if name != "root"}
    return run.recipe.model_copy(update={"data": data})
