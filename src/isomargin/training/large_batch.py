"""A training step on a batch that does not fit into memory, in two stages.

The batch is embedded in chunks without a graph; the loss of all its embeddings gives a gradient at each; each chunk
is then embedded again, with a graph, and its gradient taken back through the model. So memory is that of a chunk, and
the gradient that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses.gather import gather


def large_batch_backward(
    model: torch.nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    chunk: int,
    for_ddp: bool = False,
    backward: Callable[..., Any] = torch.Tensor.backward,
    without_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Tensor:
    """Add the gradient of loss(model(images), labels) to the parameters' `grad`, and return the loss, detached.

    The random state of each chunk's first pass (dropout) is restored for its second, and what the first pass did to
    buffers (running statistics of BatchNorm) is undone, so that the gradient is that of one pass in the same chunks.
    BatchNorm in training mode takes its statistics from a chunk, not from the batch: freeze it, as recipes do.

    Parameters
    ----------
    model: takes images and gives embeddings (n, d), which need not be normalised.
    images: (n, …), on the device or off it; chunks are moved to where the model's parameters are.
    labels: (n,)
    loss: called with the embeddings of the whole batch, of all processes.
    chunk: how many images are embedded at a time.
    for_ddp: the model is in DistributedDataParallel, see `isomargin.losses.gather`.
    backward: how to go back from a tensor with a given gradient; `fabric.backward` with lightning-fabric.
    without_sync: makes a context for all chunks but the last, `model.no_sync` with DistributedDataParallel.

    >>> model = torch.nn.Linear(4, 2)
    >>> from isomargin.losses import TCMLoss
    >>> float(large_batch_backward(model, torch.eye(4), torch.tensor([0, 0, 1, 1]), TCMLoss(), chunk=2)) >= 0
    True
    >>> model.weight.grad.shape
    torch.Size([2, 4])
    """
    checks.whole(chunk, "chunk")
    if len(images) != len(labels):
        raise InputError(f"images has {len(images)} rows, labels {len(labels)}: one label an image is needed")
    device = next((each.device for each in model.parameters()), images.device)
    parts = torch.split(images, chunk) if len(images) else (images,)
    random_states: list[_RandomState] = []
    outputs: list[Tensor] = []
    with torch.no_grad(), _buffers_restored(model):
        for part in parts:
            random_states.append(_RandomState(device))
            outputs.append(model(part.to(device)))
    embeddings = torch.cat(outputs).requires_grad_()
    del outputs
    value = loss(*gather(embeddings, labels.to(device), for_ddp=for_ddp))
    backward(value)
    gradient = embeddings.grad if embeddings.grad is not None else torch.zeros_like(embeddings)
    after = _RandomState(device)
    for number, (part, state, part_gradient) in enumerate(
        zip(parts, random_states, torch.split(gradient, chunk) if len(images) else (gradient,), strict=True)
    ):
        with nullcontext() if number == len(parts) - 1 else without_sync():
            state.restore()
            backward(model(part.to(device)), gradient=part_gradient)
    after.restore()
    return value.detach()


class _RandomState:
    """The state of torch's random numbers, on the CPU and on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@contextmanager
def _buffers_restored(model: torch.nn.Module) -> Iterator[None]:
    """Put the model's buffers back afterwards."""
    before: Sequence[tuple[Tensor, Tensor]] = [(each, each.clone()) for each in model.buffers()]
    try:
        yield
    finally:
        for buffer, kept in before:
            buffer.copy_(kept)
