"""Processes for tests: forked from a server that has imported what takes long, since importing is most of their time.

Tests that start some are in the group "processes", so that there is one server and not one in each of pytest's workers.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.multiprocessing as multiprocessing

SECONDS = 120  # for processes to do everything; one that waits for ever fails the test

in_one_worker = pytest.mark.xdist_group("processes")


def forked() -> Any:
    """The context that makes such processes."""
    context = multiprocessing.get_context("forkserver")
    # DistributedDataParallel needs torch._dynamo.
    context.set_forkserver_preload(["isomargin.training.loop", "lightning_fabric", "torch._dynamo"])
    return context


def run_together(work: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Run `work(rank, *arguments)` in each of so many processes, until all have ended."""
    forked()
    processes = multiprocessing.start_processes(work, arguments, nprocs=count, join=False, start_method="forkserver")
    deadline = time.monotonic() + SECONDS
    try:
        while not processes.join(timeout=1):
            assert time.monotonic() < deadline, f"the processes were not done after {SECONDS} s"
    finally:
        for process in processes.processes:
            if process.is_alive():
                process.kill()
