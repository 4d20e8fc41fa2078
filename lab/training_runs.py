"""Train the runs of an experiment that are missing: one after another, or several at a time.

A run's folder is locked while it is trained, so that two experiments at the same time do not train it twice: a run that
another process is training is left for the end, and then waited for.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isomargin.core.errors import DivergedError, InputError
from isomargin.core.files import locked
from isomargin.training.checkpoint import find_checkpoints
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run_folder import RunFolder
from lab.choices import is_raw
from lab.derived import evaluate_raw
from lab.files import without_nan, write_json
from lab.jobs import Busy, Report, Task, do_all, workers
from lab.plan import PlannedRun

TIMES = "seconds.json"
DIVERGED = "diverged.json"
FROZEN_STAGES = "frozen-stages"
"""The folder, beside the runs, of what frozen stages return, which runs share."""

Train = Callable[..., object]


@dataclass(frozen=True)
class Trained:
    """How the training of a run ended."""

    seconds: float | None
    """That it took; None where that is not known."""
    diverged: str = ""
    """Why it has no scores; empty where it has."""


def train_all(
    runs: Sequence[PlannedRun],
    folder: Path,
    train: Train,
    jobs: int,
    report: Report,
    kept: Collection[Path] = (),
) -> dict[Path, float | None]:
    """Train the runs that are missing; give the seconds of those that have scores, by `PlannedRun.folder`.

    `kept` are the folders of runs whose evaluations are kept elsewhere: they are not trained where they are missing.
    """
    task = partial(task_of, folder=folder, train=train)
    elsewhere = [run.folder for run in runs if run.folder in kept and not is_done(run, folder / run.folder)]
    if elsewhere:
        report(f"{len(elsewhere)} of {len(runs)} runs are known from the evaluations that are kept with the results")
    runs = [run for run in runs if run.folder not in elsewhere]
    done = [run for run in runs if is_done(run, folder / run.folder)]
    done_folders = {run.folder for run in done}
    missing = [run for run in runs if run.folder not in done_folders]
    if done:
        report(f"{len(done)} of {len(runs)} runs are already done")
    trained = do_all([task(run) for run in done], 1, lambda sentence: None)
    trained += do_all([task(run, workers=workers(jobs)) for run in missing], jobs, report)
    by_folder = dict(zip([run.folder for run in (*done, *missing)], trained, strict=True))
    seconds: dict[Path, float | None] = dict.fromkeys(elsewhere)
    for run in runs:
        result = by_folder[run.folder]
        if result.diverged:
            report(f"note: {run.folder} has no scores, {result.diverged}")
        else:
            seconds[run.folder] = result.seconds
    return seconds


def is_done(run: PlannedRun, folder: Path) -> bool:
    """Tell whether a run is finished, or known to diverge."""
    return RunFolder(folder).finished or diverged_before(run.recipe, folder / DIVERGED) is not None


def task_of(run: PlannedRun, folder: Path, train: Train, workers: int | None = None) -> Task[Trained]:
    """Give the task of training a run; raw features have a row of their own, so runs are not compared with them."""
    do = evaluate_raw if is_raw(run.choices) else train
    options: dict[str, Any] = {"compare_frozen": False} | ({} if workers is None else {"workers": workers})
    if run.recipe.augmentation.views is not None:
        options["cache"] = str(folder / FROZEN_STAGES)
    return Task(str(run.folder), partial(train_run, run, folder / run.folder, do, options=options))


def train_run(run: PlannedRun, folder: Path, train: Train, wait: bool, *, options: dict[str, Any]) -> Trained | Busy:
    """Train a run or continue it, unless it is finished or known to diverge."""
    with locked(folder, wait) as free:
        if not free:
            return Busy()
        path, note = RunFolder(folder), folder / DIVERGED
        if path.finished:
            check_recipe(run.recipe, path)
            return Trained(seconds_of(path))
        sentence = diverged_before(run.recipe, note)
        if sentence is not None:
            return Trained(None, f"{sentence} (known from {DIVERGED} in its folder: delete that to train it again)")
        if note.is_file() or not path.recipe.is_file():
            empty(folder)  # it diverged with other settings, or was stopped before anything was saved
        update_data_folder(run.recipe, path)
        return continue_run(run.recipe, path, partial(train, quiet=True, **options))


def continue_run(recipe: Recipe, run: RunFolder, train: Train) -> Trained:
    """Train what is missing of a run; save how long that took in total, or that it diverged."""
    resumed = bool(find_checkpoints(run.checkpoints))
    before = seconds_of(run) if resumed else 0.0
    (run.path / TIMES).unlink(missing_ok=True)  # if killed, a time that is too short would stay
    taken: float | None = None
    begin = time.monotonic()
    try:
        train(recipe, run.path, resume=True, lock=False)  # the caller holds the lock
    except DivergedError as error:
        write_diverged(recipe, error, run.path / DIVERGED)
        return Trained(None, str(error))
    finally:
        if before is not None and (run.recipe.is_file() or run.finished):
            taken = before + time.monotonic() - begin
            write_json(run.path / TIMES, {"seconds": taken})
    return Trained(taken)


def seconds_of(run: RunFolder) -> float | None:
    """Give how long a run has been trained so far; None where that is not fully known."""
    path = run.path / TIMES
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.is_file() else None


def diverged_before(recipe: Recipe, note: Path) -> str | None:
    """Give why training with a recipe has no scores, if a note says that it diverged before with the same settings."""
    if not note.is_file():
        return None
    content = json.loads(note.read_text(encoding="utf-8"))
    same = content["settings"] == json_settings(recipe)
    return str(content["sentence"]) if same else None


def write_diverged(recipe: Recipe, error: DivergedError, note: Path) -> None:
    """Save why training with a recipe has no scores: with the same settings it would diverge again."""
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, {"sentence": str(error), "settings": settings_of(recipe)})


def update_data_folder(recipe: Recipe, run: RunFolder) -> None:
    """Set the data folder in the recipe of an unfinished run, if the data have moved since the run began.

    Training continues only with the recipe that it began with, which includes the folder. Whether the data are the same
    is checked by their classes and files, which are in the checkpoint.
    """
    if not run.recipe.is_file():
        return
    before = load_recipe(run.recipe)
    known, now = ({name: value for name, value in one.data.items() if name != "root"} for one in (before, recipe))
    if known == now and before.data != recipe.data:
        before.model_copy(update={"data": recipe.data}).save(run.recipe)


def empty(folder: Path) -> None:
    """Delete the contents of a folder, but not the folder itself, which is locked."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_recipe(recipe: Recipe, run: RunFolder) -> None:
    """Refuse a finished run with another recipe: the experiment may have changed since it was trained."""
    if not run.recipe.is_file():
        return
    before, now = (settings_of(one) for one in (load_recipe(run.recipe), recipe))
    different = [name for name in now if before[name] != now[name]]
    if different:
        name = different[0]
        raise InputError(
            f"{run.path} was trained with another {name} ({before[name]} and not {now[name]}): move it away to train "
            "it again, or choose another --output"
        )


def json_settings(recipe: Recipe) -> dict[str, Any]:
    """Give the same settings as they are read back from JSON."""
    return dict(json.loads(json.dumps(without_nan(settings_of(recipe)))))


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe's settings except for its name, the folder of its data, and what follows from the data."""
    settings = recipe.model_dump(exclude={"name"})
    settings["data"].pop("root", None)
    settings["model"].pop("features", None)
    return settings
