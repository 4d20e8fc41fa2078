"""One process at a time trains in a folder, and a process that is dead keeps no one out."""

import os
import signal
import subprocess
import sys
import time

import pytest

from isomargin.core.errors import InputError
from isomargin.core.files import locked
from isomargin.training.tune import tune
from training import runs

FORK = """
import os, signal, sys, time
from pathlib import Path
from isomargin.core.files import locked
with locked(Path(sys.argv[1]), wait=False) as free:
    if os.fork() == 0:
        print(free, os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
"""


def test_a_second_training_in_a_folder_is_refused_and_the_first_is_left_alone(run, tmp_path):
    runs.tiny(epochs=200).save(tmp_path / "long.yaml")
    process = runs.command("train", tmp_path / "long.yaml", "--output", tmp_path / "run", "--workers", 0)
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "run/metrics.csv").is_file() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        for more in ([], ["--resume"]):
            code, out, err = run("train", tmp_path / "long.yaml", "--output", tmp_path / "run", *more)
            assert (code, out) == (2, "")
            assert err == (
                f"isomargin: another process trains in {tmp_path / 'run'}: wait until it ends, or choose another "
                "--output\n"
            )
        assert process.poll() is None, process.communicate()
    finally:
        process.kill()
        process.communicate()
    # It was killed, and keeps no one out: refused is only that the recipe has changed.
    code, _, err = run("train", tmp_path / "run", "--resume", "epochs=0.1")
    assert code == 2
    assert "was started with another epochs" in err


def test_a_folder_that_the_caller_has_locked_is_trained_in_if_told_so(tmp_path):
    with locked(tmp_path / "run", wait=False):
        with pytest.raises(InputError, match="another process trains in"):
            runs.run(tmp_path / "run", runs.tiny(epochs=0.1))
        runs.run(tmp_path / "run", runs.tiny(epochs=0.1), lock=False)
    assert (tmp_path / "run/evaluation.json").is_file()


def test_a_second_search_in_a_folder_is_refused(tmp_path):
    with locked(tmp_path, wait=False), pytest.raises(InputError, match="another process trains in"):
        tune(runs.tiny(), tmp_path, [0.9], [0.5], held_out=0.3, baseline=False)


def test_a_forked_process_does_not_keep_the_lock_of_one_that_was_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", FORK, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    free, child = process.stdout.readline().split()
    try:
        assert free == "True"
        with locked(tmp_path / "run", wait=False) as now:
            assert not now
        process.kill()
        process.wait()
        with locked(tmp_path / "run", wait=False) as now:
            assert now
    finally:
        os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.communicate()
