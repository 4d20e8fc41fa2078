"""Several runs at a time: each has its share of the cores, none is trained twice."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from errno import EBADF, ENOLCK
from functools import partial
from pathlib import Path

import pytest
from pretended_training import note_process

import isomargin as im
from isomargin.core import checks
from isomargin.core.files import locked
from lab.jobs import Busy, Task, do_all, threads
from lab.plan import planned_runs
from lab.training_runs import train_all


def test_each_process_has_its_share_of_the_cores_and_leaves_this_one_as_it_was(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    results = do_all([Task(name, partial(os.getenv, name)) for name in names], 2, lambda sentence: None)
    assert results == ["3", "3", "3"]
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_every_process_has_at_least_one_thread(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert [threads(jobs) for jobs in (1, 2, 5)] == [2, 1, 1]


PARENT = """
import os, time
from lab.jobs import processes

if __name__ == "__main__":
    with processes(1, 1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600).result()
"""


def alive(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look whether a process is there")
def test_processes_end_with_their_parent(tmp_path):
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, tmp_path / "parent.py"]
    path = os.pathsep.join(filter(None, sys.path))  # where the lab is
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while alive(worker) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(worker)


def test_an_error_in_another_process_is_raised_here():
    refused = partial(checks.above_zero, -1)  # functions that a new process imports quickly
    tasks = [Task("fine", partial(os.getenv, "A")), Task("refused", refused), Task("fine too", partial(os.getenv, "B"))]
    with pytest.raises(im.InputError, match="is -1"):
        do_all(tasks, 2, lambda sentence: None)


def test_what_another_process_is_doing_comes_last_and_is_waited_for():
    asked = []

    def do(number, wait):
        asked.append((number, wait))
        return Busy() if number == 0 and not wait else f"result {number}"

    said = []
    results = do_all([Task(f"task {n}", partial(do, n)) for n in range(3)], 1, said.append)
    assert results == ["result 0", "result 1", "result 2"]
    assert asked == [(0, False), (1, False), (2, False), (0, True)]
    assert said[0] == "run 1 of 3: task 0"


def test_a_locked_folder_can_be_waited_for(tmp_path):
    order, begun = [], threading.Event()

    def second():
        with locked(tmp_path / "run", wait=False) as free:
            order.append(f"free {free}")
        begun.set()
        with locked(tmp_path / "run", wait=True) as free:
            order.append(f"then {free}")

    with locked(tmp_path / "run", wait=False) as free:
        assert free
        thread = threading.Thread(target=second)
        thread.start()
        begun.wait()
        order.append("released")
    thread.join()
    assert order == ["free False", "released", "then True"]


@pytest.mark.parametrize("number", [EBADF, ENOLCK])
@pytest.mark.parametrize("wait", [False, True])
def test_where_a_folder_cannot_be_locked_work_continues_without(tmp_path, monkeypatch, number, wait):
    def refuse(opened, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "run", wait) as free:
        assert free
    with pytest.raises(OSError, match="its own"), locked(tmp_path / "run", wait):
        raise OSError("its own")


def test_a_killed_process_is_reported_with_how_to_continue():
    tasks = [Task("killed", os._exit), Task("killed too", os._exit)]
    with pytest.raises(im.InputError, match="was killed, perhaps for lack of memory: run the same command again"):
        do_all(tasks, 2, lambda sentence: None)


def test_runs_are_trained_in_other_processes_with_their_share_of_workers(add, tmp_path):
    experiment = add("losses")
    runs = planned_runs(experiment, "toy", 1, {"patterns": Path("somewhere")})[:3]
    said = []
    seconds = train_all(runs, tmp_path, note_process, 2, said.append)
    assert list(seconds) == [run.folder for run in runs]
    assert all(each > 0 for each in seconds.values())
    noted = [(tmp_path / run.folder / "process.txt").read_text().split() for run in runs]
    assert str(os.getpid()) not in {process for process, _ in noted}
    assert {workers for _, workers in noted} == {str(threads(2))}
    assert sorted(said) == [f"run {number + 1} of 3: {run.folder}" for number, run in enumerate(runs)]
    assert train_all(runs, tmp_path, None, 2, said.append) == seconds
