"""Train one run on several devices, in processes that are started for this run.

The first process of a run starts the others with its own command line. The command line of an experiment would run the
whole experiment again, so each run is trained by a command of its own, `python -m lab.devices TASK`. It reads what to
do from the folder TASK and writes there what has stopped it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from isomargin.core.errors import DivergedError, InputError
from isomargin.training import loop
from isomargin.training.devices import first_process, interruptions
from isomargin.training.recipe import Recipe, load_recipe
from lab.files import write_json

RECIPE, OPTIONS, STOPPED = "recipe.yaml", "options.json", "stopped.json"
ROOT = Path(__file__).parents[1]  # of the repository: the lab is not installed
SECONDS = 0.5  # between checks whether this process was asked to stop


def train_on_devices(recipe: Recipe, folder: Path, *, devices: int, **options: Any) -> None:
    """Train as `loop.train` does, on several devices; errors of the other processes are raised here."""
    with TemporaryDirectory() as name:
        task = Path(name)
        recipe.save(task / RECIPE)
        write_json(task / OPTIONS, {"folder": str(folder), "devices": devices, **options})
        with interruptions() as interrupted:
            code = run(task, interrupted)
        if (task / STOPPED).is_file():
            raise_again(json.loads((task / STOPPED).read_text(encoding="utf-8")))
        if interrupted():
            raise KeyboardInterrupt("stopped")
        if code != 0:
            raise InputError(
                f"the {devices} processes that trained {folder} ended with code {code}: see what they printed, and run "
                "the same command again to continue"
            )


def run(task: Path, interrupted: Callable[[], bool]) -> int:
    """Run a task in its own process and give its exit code; a request to stop is passed on."""
    # In its own session: otherwise Ctrl-C arrives twice, from the terminal and from here, which ends it at once.
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", __spec__.name, str(task)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, start_new_session=True)
    asked_to_stop = False
    try:
        while True:
            try:
                return process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                if interrupted() and not asked_to_stop:
                    asked_to_stop = True
                    process.terminate()
    finally:
        with suppress(ProcessLookupError):  # usually none is left; if one is, it would wait for the first one forever
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def raise_again(stopped: dict[str, Any]) -> None:
    """Raise the error that has stopped a task."""
    if stopped["kind"] == "interrupted":
        raise KeyboardInterrupt(stopped["sentence"])
    kind = DivergedError if stopped["kind"] == "diverged" else InputError
    raise kind(stopped["sentence"], stopped["details"])


def do_task(task: Path) -> int:
    """Do a task; give the exit code."""
    options = json.loads((task / OPTIONS).read_text(encoding="utf-8"))
    try:
        loop.train(load_recipe(task / RECIPE), options.pop("folder"), **options)
    except InputError as error:
        kind = "diverged" if isinstance(error, DivergedError) else "refused"
        if first_process():
            write_json(task / STOPPED, {"kind": kind, "sentence": str(error), "details": list(error.details)})
        return 1
    except KeyboardInterrupt as stop:
        # All stop together. An error code of another process would end the first one while it is saving.
        if first_process():
            write_json(task / STOPPED, {"kind": "interrupted", "sentence": str(stop)})
    return 0


if __name__ == "__main__":
    sys.exit(do_task(Path(sys.argv[1])))
