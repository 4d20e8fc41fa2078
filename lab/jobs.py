"""Train the runs of an experiment: one after another in this process, or several at a time in processes of their own.

A run's folder is locked while it is trained, so that two experiments at the same time do not train it twice: a run that
another process is training is left for the end, and then waited for.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar

from isomargin.core.errors import DivergedError, InputError
from isomargin.core.files import locked
from isomargin.training.checkpoint import find_checkpoints
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run_folder import RunFolder
from lab.files import without_nan, write_json
from lab.plan import PlannedRun

TIMES = "seconds.json"
DIVERGED = "diverged.json"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Train = Callable[..., object]
Report = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Busy:
    """In place of a result: another process is doing this task."""


@dataclass(frozen=True)
class Task(Generic[Result]):
    """Something to do, which may turn out to be done already."""

    name: str
    do: Callable[[bool], Result | Busy]
    """Its argument says whether to wait for another process that is doing the task. With several jobs it is pickled."""


@dataclass(frozen=True)
class Trained:
    """How the training of a run ended."""

    seconds: float | None
    """That it took; None where that is not known."""
    diverged: str = ""
    """Why it has no scores; empty where it has."""


def train_all(
    runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> dict[Path, float | None]:
    """Train the runs that are missing; give the seconds of those that have scores, by `PlannedRun.folder`."""
    task = partial(task_of, folder=folder, train=train)
    done = [run for run in runs if is_done(run, folder / run.folder)]
    done_folders = {run.folder for run in done}
    missing = [run for run in runs if run.folder not in done_folders]
    if done:
        report(f"{len(done)} of {len(runs)} runs are already done")
    trained = do_all([task(run) for run in done], 1, lambda sentence: None)
    trained += do_all([task(run, workers=workers(jobs)) for run in missing], jobs, report)
    by_folder = dict(zip([run.folder for run in (*done, *missing)], trained, strict=True))
    seconds = {}
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
    """Give the task of training a run."""
    return Task(str(run.folder), partial(train_run, run, folder / run.folder, train, workers=workers))


def train_run(run: PlannedRun, folder: Path, train: Train, wait: bool, *, workers: int | None) -> Trained | Busy:
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
        options = {} if workers is None else {"workers": workers}
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
    same = content["settings"] == json.loads(json.dumps(without_nan(settings_of(recipe))))
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


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe's settings except for its name, the folder of its data, and what follows from the data."""
    settings = recipe.model_dump(exclude={"name"})
    settings["data"].pop("root", None)
    settings["model"].pop("features", None)
    return settings


# Several at a time


def do_all(tasks: Sequence[Task[Result]], jobs: int, report: Report) -> list[Result]:
    """Do tasks, `jobs` at a time, and give their results in order; those that other processes are doing come last."""
    results: dict[int, Result] = {}
    left = list(range(len(tasks)))
    for wait in (False, True):
        busy = []
        for number, result in do_some(tasks, left, wait, jobs, report):
            if isinstance(result, Busy):
                busy.append(number)
            else:
                results[number] = result
        left = busy
    return [results[number] for number in range(len(tasks))]


def do_some(
    tasks: Sequence[Task[Result]], numbers: Sequence[int], wait: bool, jobs: int, report: Report
) -> Iterator[tuple[int, Result | Busy]]:
    """Do some of the tasks, in this process or in others; yield each number with its result once it is done."""

    def tell(number: int) -> None:
        report(f"run {number + 1} of {len(tasks)}: {tasks[number].name}")

    if jobs == 1 or len(numbers) < 2:
        for number in numbers:
            tell(number)
            yield number, tasks[number].do(wait)
        return
    try:
        with processes(min(jobs, len(numbers)), threads(jobs)) as pool:
            begun: dict[Future[Result | Busy], int] = {
                pool.submit(tasks[number].do, wait): number for number in sorted(numbers)
            }
            for future in as_completed(begun):
                tell(begun[future])
                yield begun[future], future.result()
    except BrokenProcessPool as error:
        raise InputError(
            "a training process was killed, perhaps for lack of memory: run the same command again to continue, with "
            "fewer --jobs to use less memory"
        ) from error


@contextmanager
def processes(number: int, threads_each: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of processes with this many threads each; after an error, tasks that have not begun are dropped."""
    # Libraries read these when they are imported, which in a new process happens before anything can be called there.
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads_each)))
    pool = ProcessPoolExecutor(number, mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def end_with_parent() -> None:
    """End this process when its parent is gone: a parent that is killed cannot say so, and training would continue."""
    parent = parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        Thread(target=wait, daemon=True).start()


def threads(jobs: int) -> int:
    """Give how many threads each of several processes gets: its share of the cores, at least one."""
    return max(1, (os.cpu_count() or 1) // jobs)


def workers(jobs: int) -> int | None:
    """Give how many processes decode images per run when there are several; None leaves a single run to `train`."""
    return None if jobs == 1 else threads(jobs)
