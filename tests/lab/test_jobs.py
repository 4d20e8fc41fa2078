"""Several at a time: each with its share of the cores, none twice, what others are at last."""

import os
import threading
from functools import partial

import pytest

import isomargin as im
from isomargin import checks
from isomargin.lab.jobs import Busy, Task, do_all, locked, threads


def test_each_process_has_its_share_of_the_cores_and_leaves_this_one_as_it_was(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    results = do_all([Task(name, partial(os.getenv, name)) for name in names], 2, lambda sentence: None)
    assert results == ["3", "3", "3"]
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_there_is_a_thread_for_each_process_at_least(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert [threads(jobs) for jobs in (1, 2, 5)] == [2, 1, 1]


def test_an_error_in_another_process_is_told_here():
    refused = partial(checks.above_zero, -1)  # functions that a new process imports quickly
    tasks = [Task("fine", partial(os.getenv, "A")), Task("refused", refused), Task("fine too", partial(os.getenv, "B"))]
    with pytest.raises(im.InputError, match="is -1"):
        do_all(tasks, 2, lambda sentence: None)


def test_what_another_is_at_comes_last_and_is_waited_for():
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
