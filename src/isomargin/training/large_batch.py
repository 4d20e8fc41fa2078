"""A training step on a batch that does not fit into memory, in two stages.

The batch is embedded in chunks without a graph, and the loss of all its embeddings gives a gradient for each. Then each
chunk is embedded again, with a graph, and its gradient goes back through the model. So the memory is that of a chunk,
and the gradient is that of the whole batch.
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
    forward: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Add the gradient of loss(model(images), labels) to the parameters' `grad`, and return the loss, detached.

    The random state of the first pass of each chunk (dropout) is restored for its second pass, and changes of the first
    pass to buffers (running statistics of BatchNorm) are undone, so that the gradient is that of one pass in the same
    chunks. BatchNorm in training mode takes its statistics from a chunk, not from the batch: freeze it, as recipes do.

    Parameters
    ----------
    model: turns images into embeddings (n, d), which need not be normalised.
    images: (n, …), on any device; chunks are moved to the device of the model.
    labels: (n,)
    loss: called with the embeddings of the whole batch, of all processes.
    chunk: how many images are embedded at a time.
    for_ddp: the model is in DistributedDataParallel, see `isomargin.losses.gather`.
    backward: the backward pass of a tensor with a given gradient; `fabric.backward` with lightning-fabric.
    without_sync: returns a context for all chunks except the last; `model.no_sync` with DistributedDataParallel.
    forward: calls the model, where `model(images)` needs further arguments.

    >>> model = torch.nn.Linear(4, 2)
    >>> from isomargin.losses import TCMLoss
    >>> float(large_batch_backward(model, torch.eye(4), torch.tensor([0, 0, 1, 1]), TCMLoss(), chunk=2)) >= 0
    True
    >>> model.weight.grad.shape
    torch.Size([2, 4])
    """
    checks.whole(chunk, "chunk")
    if len(images) != len(labels):
        raise InputError(f"images has {len(images)} rows, labels {len(labels)}: one label per image is needed")
    embed = model if forward is None else forward
    device = next((parameter.device for parameter in model.parameters()), images.device)
    parts = torch.split(images, chunk) if len(images) else (images,)
    random_states: list[_RandomState] = []
    outputs: list[Tensor] = []
    with torch.no_grad(), _buffers_restored(model):
        for part in parts:
            random_states.append(_RandomState(device))
            outputs.append(embed(part.to(device)))
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
            backward(embed(part.to(device)), gradient=part_gradient)
    after.restore()
    return value.detach()


class _RandomState:
    """The state of torch's random numbers on the CPU and on a device."""

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
    """Restore the buffers of the model afterwards."""
    before: Sequence[tuple[Tensor, Tensor]] = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, kept in before:
            buffer.copy_(kept)
