"""Doing the many runs of an experiment: one after another here, or several at the same time in processes of their own.

A run's folder is locked while it is trained, so that two experiments at the same time train no run twice: what another
process is at is left for the end, and then waited for.
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
from isomargin.training.checkpoint import find_checkpoints
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run_folder import RunFolder
from lab.files import without_nan, write_json
from lab.plan import PlannedRun

TIMES = "seconds.json"
ASTRAY = "astray.json"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

Train = Callable[..., object]
Report = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Busy:
    """In place of a result: another process is at this task."""


@dataclass(frozen=True)
class Task(Generic[Result]):
    """Something to do, which may be found done."""

    name: str
    do: Callable[[bool], Result | Busy]
    """Is told whether to wait for another process that is at it; goes to another process if there are several."""


@dataclass(frozen=True)
class Trained:
    """What became of training a run."""

    seconds: float | None
    """It took, as far as is known."""
    astray: str = ""
    """Why it has no scores, if so."""


def train_all(
    runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> dict[Path, float | None]:
    """Train what is missing of some runs; give the seconds of those that have scores, by `PlannedRun.folder`."""
    task = partial(task_of, folder=folder, train=train)
    there = [run for run in runs if is_there(run, folder / run.folder)]
    done = {run.folder for run in there}
    missing = [run for run in runs if run.folder not in done]
    if there:
        report(f"{len(there)} of {len(runs)} runs are there already")
    trained = do_all([task(run) for run in there], 1, lambda sentence: None)
    trained += do_all([task(run, workers=workers(jobs)) for run in missing], jobs, report)
    by_folder = dict(zip([run.folder for run in (*there, *missing)], trained, strict=True))
    seconds = {}
    for run in runs:
        became = by_folder[run.folder]
        if became.astray:
            report(f"note: {run.folder} has no scores, {became.astray}")
        else:
            seconds[run.folder] = became.seconds
    return seconds


def is_there(run: PlannedRun, folder: Path) -> bool:
    """Tell whether a run is finished, or known to lead nowhere."""
    return RunFolder(folder).finished or astray_before(run.recipe, folder / ASTRAY) is not None


def task_of(run: PlannedRun, folder: Path, train: Train, workers: int | None = None) -> Task[Trained]:
    """Give the task of training a run."""
    return Task(str(run.folder), partial(train_run, run, folder / run.folder, train, workers=workers))


def train_run(run: PlannedRun, folder: Path, train: Train, wait: bool, *, workers: int | None) -> Trained | Busy:
    """Train a run, go on with it, or find it finished or astray."""
    with locked(folder, wait) as free:
        if not free:
            return Busy()
        path, note = RunFolder(folder), folder / ASTRAY
        if path.finished:
            check_recipe(run.recipe, path)
            return Trained(seconds_of(path))
        sentence = astray_before(run.recipe, note)
        if sentence is not None:
            return Trained(None, f"{sentence} (known from {ASTRAY} in its folder: delete that to train it again)")
        if note.is_file() or not path.recipe.is_file():
            empty(folder)  # it led nowhere with other settings, or was stopped before anything was kept
        tell_place(run.recipe, path)
        options = {} if workers is None else {"workers": workers}
        return go_on(run.recipe, path, partial(train, quiet=True, **options))


def go_on(recipe: Recipe, run: RunFolder, train: Train) -> Trained:
    """Train what is missing of a run; keep how long that took, all in all, or that it led nowhere."""
    resumed = bool(find_checkpoints(run.checkpoints))
    before = seconds_of(run) if resumed else 0.0
    (run.path / TIMES).unlink(missing_ok=True)  # a kill would leave a time that is too short
    taken: float | None = None
    begin = time.monotonic()
    try:
        train(recipe, run.path, resume=True)
    except DivergedError as error:
        write_astray(recipe, error, run.path / ASTRAY)
        return Trained(None, str(error))
    finally:
        if before is not None and (run.recipe.is_file() or run.finished):
            taken = before + time.monotonic() - begin
            write_json(run.path / TIMES, {"seconds": taken})
    return Trained(taken)


def seconds_of(run: RunFolder) -> float | None:
    """Give how long a run has been trained so far; None where a part of it is not known."""
    path = run.path / TIMES
    return float(json.loads(path.read_text(encoding="utf-8"))["seconds"]) if path.is_file() else None


def astray_before(recipe: Recipe, note: Path) -> str | None:
    """Give why training by a recipe has no scores, if it was tried before and a note of it is there."""
    if not note.is_file():
        return None
    content = json.loads(note.read_text(encoding="utf-8"))
    same = content["settings"] == json.loads(json.dumps(without_nan(settings_of(recipe))))
    return str(content["sentence"]) if same else None


def write_astray(recipe: Recipe, error: DivergedError, note: Path) -> None:
    """Keep why training by a recipe has no scores: with the same settings it would go astray again."""
    note.parent.mkdir(parents=True, exist_ok=True)
    write_json(note, {"sentence": str(error), "settings": settings_of(recipe)})


def tell_place(recipe: Recipe, run: RunFolder) -> None:
    """Have the recipe in a run's folder say where its data are now, if they have moved since it was begun.

    Training goes on with the recipe that it was begun with alone, places too. Whether the data are the same it tells
    by their classes and files, which its checkpoint knows.
    """
    if not run.recipe.is_file():
        return
    before = load_recipe(run.recipe)
    known, now = ({name: each for name, each in one.data.items() if name != "root"} for one in (before, recipe))
    if known == now and before.data != recipe.data:
        before.model_copy(update={"data": recipe.data}).save(run.recipe)


def empty(folder: Path) -> None:
    """Delete what is in a folder, but not the folder, which is locked."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_recipe(recipe: Recipe, run: RunFolder) -> None:
    """Refuse a finished run of another recipe: what an experiment says may have changed since it was trained."""
    if not run.recipe.is_file():
        return
    before, now = (settings_of(each) for each in (load_recipe(run.recipe), recipe))
    different = [name for name in now if before[name] != now[name]]
    if different:
        name = different[0]
        raise InputError(
            f"{run.path} was trained with another {name} ({before[name]} and not {now[name]}): move it away to train "
            "it anew, or choose another --output"
        )


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Give a recipe's settings but for its name, where its data are, and what follows from them."""
    settings = recipe.model_dump(exclude={"name"})
    settings["data"].pop("root", None)
    settings["model"].pop("features", None)
    return settings


@contextmanager
def locked(folder: Path, wait: bool) -> Iterator[bool]:
    """Make a folder and keep other processes from locking it; give whether that was possible at once, or wait for it.

    The lock goes with the process that has it. Where there are no such locks, as on some file systems of networks,
    nothing keeps anyone.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name, locked(Path(name), False) as first, locked(Path(name), False) as second:
    ...     first, second
    (True, False)
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield True
        return
    opened = os.open(folder, os.O_RDONLY)
    free, held = True, False
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            free = False
        except OSError:
            pass  # NFS locks no folder (EBADF), others nothing at all (ENOSYS, ENOLCK)
        try:
            yield free
        finally:
            if held:
                fcntl.flock(opened, fcntl.LOCK_UN)  # processes that were forked meanwhile would keep it
    finally:
        os.close(opened)


# Several at a time


def do_all(tasks: Sequence[Task[Result]], jobs: int, report: Report) -> list[Result]:
    """Do tasks, `jobs` at a time, and give their results in order; those that others are at come last."""
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
    """Do some of the tasks, in this process or in others; give each number with its result as it comes."""

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
            "a process that trained was killed, perhaps for want of memory: run the same command again, it goes on; "
            "with fewer --jobs it needs less"
        ) from error


@contextmanager
def processes(number: int, threads_each: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes with so many threads each; on an error what has not begun is dropped."""
    # Libraries read these when they are imported, which in a new process is before anything could be called there.
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
    """End this process when the one that began it is gone: killed, that tells it nothing, and it would train on."""
    parent = parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            os._exit(1)

        Thread(target=wait, daemon=True).start()


def threads(jobs: int) -> int:
    """Give how many threads each of several processes has: its share of the cores, at least one."""
    return max(1, (os.cpu_count() or 1) // jobs)


def workers(jobs: int) -> int | None:
    """Give how many processes decode images for each of several runs: those of `train` itself for a single one."""
    return None if jobs == 1 else threads(jobs)
