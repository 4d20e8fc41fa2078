"""One training per folder: a lock against other processes, and a check of what is already there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isomargin.core.errors import InputError
from isomargin.core.files import locked
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run_folder import RunFolder


@contextmanager
def sole_training(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder; raise where one already does."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: choose another --output for the run's folder")
    with locked(folder, wait=False) as free:
        if not free:
            raise InputError(f"another process trains in {folder}: wait until it ends, or choose another --output")
        yield


def claim(run: RunFolder, recipe: Recipe, resume: bool) -> None:
    """Check that the folder is free for a new run or, with `resume`, that its run has the same recipe."""
    if not resume or not run.recipe.is_file():
        left = [] if not run.path.is_dir() else [*run.path.glob(".tmp-*"), *run.path.glob(run.stopped.name)]
        if run.path.exists() and (not run.path.is_dir() or set(run.path.iterdir()) - set(left)):
            raise InputError(
                f"{run.path} already exists: continue it with `isomargin train {run.path} --resume`, or choose another "
                "--output"
            )
        for path in left:  # by processes that ended before the recipe was written: there is nothing to lose
            path.unlink(missing_ok=True)
        run.path.mkdir(parents=True, exist_ok=True)
        return
    for half_written in (*run.path.glob(".tmp-*"), *run.checkpoints.glob(".tmp-*")):
        half_written.unlink(missing_ok=True)  # left by a process that was killed
    run.stopped.unlink(missing_ok=True)
    before, now = load_recipe(run.recipe).model_dump(), recipe.model_dump()
    before["model"].pop("features", None)
    now["model"].pop("features", None)
    different = [name for name in now if before[name] != now[name]]
    if different:
        raise InputError(
            f"{run.path} was started with another {different[0]} ({before[different[0]]} and not {now[different[0]]}): "
            "continue with the recipe that it was started with, or start a new run"
        )
