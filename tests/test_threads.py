"""Tasks shared by threads: each is done once, errors reach the caller, and progress comes from the caller's thread."""

import gc
import threading
import time
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isomargin.core.threads import share_tasks


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200), st.integers(1, 8))
def test_every_task_is_done_once_by_any_number_of_threads(tasks, threads):
    done = []
    share_tasks(done.append, range(tasks), threads)
    assert sorted(done) == list(range(tasks))


def test_as_many_threads_work_at_the_same_time_as_asked_for():
    together = threading.Barrier(3, timeout=20)  # breaks unless three tasks are begun before one ends
    share_tasks(lambda task: together.wait(), range(3), threads=3)


@pytest.mark.parametrize("failing", ["the caller's thread", "another thread"])
def test_after_an_error_no_task_is_begun_and_the_error_is_raised(failing):
    both, begun = threading.Barrier(2, timeout=20), []

    def work(task):
        begun.append(task)
        both.wait()  # each thread has one task
        here = threading.current_thread() is threading.main_thread()
        if here == (failing == "the caller's thread"):
            raise ValueError("task failed")
        time.sleep(0.2)  # the other thread has failed before this one asks for its next task

    with pytest.raises(ValueError, match="task failed"):
        share_tasks(work, range(100), threads=2)
    assert sorted(begun) == [0, 1]


def test_an_error_keeps_nothing_alive():
    class Large:
        pass

    seen = []

    def work(task):
        large = Large()
        seen.append(weakref.ref(large))
        raise ValueError("task failed")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="task failed"):
            share_tasks(work, range(1))
        assert seen[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_rises_and_is_reported_by_the_calling_thread(threads):
    seen = []
    share_tasks(
        lambda task: time.sleep(0.001),
        range(50),
        threads,
        lambda share: seen.append((share, threading.current_thread() is threading.main_thread())),
    )
    shares = [share for share, _ in seen]
    assert shares == sorted(set(shares))
    assert 0 < shares[0] <= shares[-1] <= 1
    assert all(called_here for _, called_here in seen)
