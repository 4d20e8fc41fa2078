"""Processes and devices: start them, agree between them, and stop them in an orderly way."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.models.embedder import Embedder
from isomargin.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def launch(recipe: Recipe, devices: int, accelerator: str) -> Fabric:
    """Start the processes, or join those that torchrun or Ray Train started."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.lightning import LightningEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    from isomargin.training.strategies import KeptDoublePrecision, StartedEnvironment

    checks.one_of(accelerator, "accelerator", ("auto", "cpu", "cuda"))
    checks.whole(devices, "devices")
    if accelerator == "auto":
        accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    _refuse_bare_srun()
    environment: Any = LightningEnvironment()  # not what fabric finds in the variables of Slurm
    processes = devices
    if started_elsewhere():
        devices, processes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        environment = StartedEnvironment()
    double = recipe.precision == "64-true"
    strategy: Any = "auto"
    if processes > 1:
        # In its warm-up the backbone has no gradients that the others could wait for.
        strategy = DDPStrategy(find_unused_parameters=recipe.schedule.warm_up_epochs > 0)
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it logs every process
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=-(-processes // devices),
        strategy=strategy,
        precision=None if double else recipe.precision,
        plugins=[environment, KeptDoublePrecision()] if double else [environment],
    )
    fabric.launch()
    return fabric


def started_elsewhere() -> bool:
    """Return whether torchrun or Ray Train started this process, and the others with it, on one node or several."""
    return "LOCAL_WORLD_SIZE" in os.environ


def _refuse_bare_srun() -> None:
    """Refuse tasks of srun, each of which would train alone, in the same folder."""
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and not started_elsewhere():
        raise InputError(
            f"srun started this command {tasks} times, each on its own: start torchrun with srun, once per node, as "
            "docs/training.md shows"
        )


def keep_freed_memory() -> None:
    """Let the C library keep the memory of freed tensors, instead of returning it and requesting zeroed pages again.

    On the CPU a step frees and allocates the same sizes again and again, which takes a tenth to a fifth of its time.
    Only glibc has this setting; elsewhere nothing happens.
    """
    library: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(library, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3
        for setting in (trim_threshold, mmap_threshold):
            library.mallopt(setting, 1 << 30)


def first_process() -> bool:
    """Return whether this is the process that writes and prints, before and after the others are started."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def leave_out_idle(embedder: Embedder) -> None:
    """Stop training layers that embeddings do not depend on: processes would wait forever for their gradients."""
    _backward_once(embedder, embedder, torch.Tensor.backward)
    for parameter in embedder.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.requires_grad_(False)
        parameter.grad = None


def settle_order(fabric: Fabric, model: Any, embedder: Embedder) -> None:
    """Fix the order in which processes add up gradients: DDP chooses it in its first backward pass, and then keeps it.

    Sums of more than two numbers depend on their order, so that a resumed run, whose first step is another one, would
    differ by rounding from one that was not stopped.
    """
    if fabric.world_size > 1:
        _backward_once(embedder, model, fabric.backward)
        for parameter in embedder.parameters():
            parameter.grad = None


def _backward_once(embedder: Embedder, model: Any, backward: Callable[[torch.Tensor], Any]) -> None:
    """Give all parameters that embeddings depend on a gradient; the statistics of BatchNorm are left as they are."""
    images = embedder.input_statistics
    channels = len(images.mean)
    shape = (2, channels, images.size, images.size) if channels else (2, images.size)
    training = embedder.training
    embedder.eval()
    backward(model(torch.rand(shape, device=next(embedder.parameters()).device)).sum())
    embedder.train(training)


def any_process(fabric: Fabric, wanted: bool) -> bool:
    """Return whether `wanted` is true in any process."""
    if fabric.world_size == 1:
        return wanted
    total: Any = fabric.all_reduce(torch.tensor(float(wanted), device=fabric.device), reduce_op="sum")
    return bool(total > 0)


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether Ctrl-C or a request to end was received; a second one ends the process."""
    received = False
    before: dict[int, Any] = {}

    def note(_: int, frame: Any) -> None:
        nonlocal received
        received = True
        for number, old in before.items():
            signal.signal(number, old)

    if threading.current_thread() is threading.main_thread():  # only it receives signals
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received
    finally:
        for number, old in before.items():
            signal.signal(number, old)
