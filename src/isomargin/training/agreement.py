"""Agreement between the processes of a training: they start from the same files, and they stop together.

An error of one process would leave the others waiting for it. So processes exchange errors before the first step. Later
a process notices that the connection to another is lost. Whatever happens, one process alone says why.
"""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as distributed

from isomargin.core.errors import InputError, LostProcessError, StoppedElsewhereError
from isomargin.training.checkpoint import find_checkpoints
from isomargin.training.run_folder import RunFolder

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_ELSEWHERE = "another process of this training has stopped: its message, also in the run's stopped.txt, says why"
_TRANSPORTS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")  # in messages of torch


@contextmanager
def together(fabric: Fabric | None) -> Iterator[None]:
    """Raise an error of one process in all of them. Nothing is exchanged before there are several, without a fabric.

    The first process that has an error raises it, the others `StoppedElsewhereError`.
    """
    problem: Exception | None = None
    try:
        yield
    except Exception as error:  # of any type: the other processes wait for this one
        problem = error
    if fabric is not None and fabric.world_size > 1:
        troubled = _gathered(fabric, problem is not None)
        if any(troubled) and troubled.index(True) != fabric.global_rank:
            raise StoppedElsewhereError(_ELSEWHERE) from problem
    if problem is not None:
        raise problem


def check_same(fabric: Fabric, facts: Mapping[str, str]) -> None:
    """Refuse processes that differ in one of these facts, such as checksums of their files, by what they are about."""
    if fabric.world_size == 1:
        return
    (first_node, expected), *others = _gathered(fabric, (socket.gethostname(), dict(facts)))
    for rank, (node, found) in enumerate(others, start=1):
        for name in expected:
            if found[name] == expected[name]:
                continue
            with together(fabric):  # all have found it, and one says so
                raise InputError(
                    f"{name} of process {rank} on {node} differ from those of process 0 on {first_node}: give the same "
                    "command on all nodes, with data and a run's folder that all of them share"
                )


@contextmanager
def one_sentence(run: RunFolder) -> Iterator[None]:
    """Let one process alone raise why a training in several stopped; the others raise `StoppedElsewhereError`.

    A lost connection is turned into `LostProcessError`. The sentence is kept in the run's folder until it is resumed.
    """
    try:
        yield
    except (InputError, RuntimeError) as error:
        processes = distributed.get_world_size() if distributed.is_initialized() else 1
        if processes == 1 or isinstance(error, StoppedElsewhereError):
            raise
        reason = error if isinstance(error, InputError) else lost_process(error, run, processes)
        if reason is None:
            raise
        if not _noticed_first(run, str(reason)):
            raise StoppedElsewhereError(_ELSEWHERE) from error
        raise reason from error


def lost_process(error: RuntimeError, run: RunFolder, processes: int) -> LostProcessError | None:
    """Return the sentence for an error of torch that means that another process has ended; None for other errors."""
    words = str(error).lower()
    if not isinstance(error, distributed.DistError) and not any(name in words for name in _TRANSPORTS):
        return None
    saved = find_checkpoints(run.checkpoints)
    goes_on = f"goes on after step {saved[-1][0]}" if saved else "starts again, because nothing was saved yet"
    return LostProcessError(
        f"one of the {processes} processes has ended, or its connection was lost: "
        f"`isomargin train {shlex.quote(str(run.path))} --resume`, started as before, {goes_on}"
    )


def _noticed_first(run: RunFolder, sentence: str) -> bool:
    """Leave the sentence in the run's folder, unless another process already has left one."""
    try:
        with run.stopped.open("x", encoding="utf-8") as file:
            file.write(f"{sentence}\n")
    except FileExistsError:
        return False
    except OSError:  # such as a full disk: better said twice than not at all
        pass
    return True


def _gathered(fabric: Fabric, value: Any) -> list[Any]:
    """Return a value of each process, in the order of their ranks."""
    values: list[Any] = [None] * fabric.world_size
    distributed.all_gather_object(values, value)
    return values
