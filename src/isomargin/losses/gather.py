"""One batch from the batches of all processes, so that a loss sees every pair across them.

Every process then computes the same loss of the global batch. Only its own rows carry a gradient, so no further
communication is needed. Processes exchange what they hold before they send it, so that bad input in one process raises
in all of them and leaves none waiting.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._batch import check_embeddings, read_labels

_NOTE_BYTES = 512
_FACTS = ("embeddings' number of dimensions", "embeddings' dtype", "labels' dtype", "embeddings' kind of device")
_REFUSED = "refused"


def gather(embeddings: Tensor, labels: Tensor, for_ddp: bool = False) -> tuple[Tensor, Tensor]:
    """Return the embeddings (N, d) and labels (N,) of all processes, in the order of their ranks.

    Process r gives nᵣ rows, N = Σ nᵣ; nᵣ may differ and may be 0. With L the loss of the N rows, row i of process r
    receives

        w · ∂L/∂xᵢ    with w = 1, or the number of processes if `for_ddp`

    So `loss(*gather(embeddings, labels))` has, on every process, the value and the gradient that one process would have
    with the whole batch. L must be the same on every process: the same settings, the same parameters, and the same seed
    for a loss that draws random numbers; otherwise the gradients of different processes belong to different losses.
    Every process must call this equally often, also one without rows.

    Without a process group of at least two processes the arguments are returned unchanged. Otherwise labels are
    returned on the device of the embeddings.

    Parameters
    ----------
    embeddings: (nᵣ, d), the same d, dtype and kind of device on every process.
    labels: (nᵣ,) integers, the same dtype on every process.
    for_ddp: True if the embeddings come from a model in DistributedDataParallel, or from anything else that averages
        gradients of parameters over processes. Each process has the gradient of its own rows, so the sum is needed, and
        w undoes the division. The parameters of the loss itself have the whole gradient on every process and need no w,
        averaged or not.

    >>> embeddings, labels = torch.eye(3), torch.tensor([0, 0, 1])
    >>> all_embeddings, all_labels = gather(embeddings, labels)  # a single process: nothing to gather
    >>> all_embeddings is embeddings, all_labels is labels
    (True, True)
    """
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return embeddings, labels
    device_kinds = [backend.split(":")[0] for backend in distributed.get_backend_config().split(",")]
    problem: Exception | None = None
    try:
        checks.truth(for_ddp, "for_ddp")
        check_embeddings(embeddings, "embeddings", check_finite=False)
        labels = read_labels(labels, embeddings, "labels", "embeddings")
        if embeddings.device.type not in device_kinds:
            raise InputError(
                f"embeddings is on {embeddings.device}, which the process group cannot send from: "
                f"one of {', '.join(device_kinds)} is needed"
            )
        facts = (embeddings.shape[1], embeddings.dtype, labels.dtype, embeddings.device.type)
        note = " ".join(map(str, (len(embeddings), *facts)))
    except Exception as error:  # of any type: the other processes wait for a note
        problem, note = error, f"{_REFUSED} {error}"
    notes = _exchange(note, _note_device(embeddings, device_kinds))
    if problem is not None:
        raise problem
    counts = _read_notes(notes)

    rank = distributed.get_rank()
    embedding_parts, label_parts = _gather_rows(embeddings.detach(), counts), _gather_rows(labels, counts)
    own_rows = embeddings.view_as(embeddings)
    if for_ddp and own_rows.requires_grad:
        own_rows.register_hook(lambda gradient: gradient * len(counts))  # type: ignore[no-untyped-call]
    embedding_parts[rank] = own_rows  # the only part that carries a gradient
    return torch.cat(embedding_parts), torch.cat(label_parts)


def _note_device(embeddings: Any, device_kinds: list[str]) -> torch.device:
    """Choose the device to send notes from, of the same kind on every process whatever the embeddings are."""
    if "cpu" in device_kinds:
        return torch.device("cpu")
    if isinstance(embeddings, Tensor) and embeddings.device.type == device_kinds[0]:
        return embeddings.device
    return torch.device(device_kinds[0])


def _exchange(note: str, device: torch.device) -> list[str]:
    """Send a short text to all processes and return the texts of all, in the order of their ranks."""
    sent = torch.tensor(list(note.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES)), dtype=torch.uint8, device=device)
    received = [torch.empty_like(sent) for _ in range(distributed.get_world_size())]
    distributed.all_gather(received, sent)
    # A sentence can be cut within a character.
    return [text.tobytes().decode(errors="ignore").rstrip() for text in torch.stack(received).cpu().numpy()]


def _read_notes(notes: list[str]) -> list[int]:
    """Return how many rows each process has; raise the same error on all processes if they do not fit together."""
    for rank, note in enumerate(notes):
        if note.startswith(_REFUSED):
            raise InputError(f"the input of process {rank} cannot be gathered: {note.removeprefix(_REFUSED).strip()}")
    first, *others = (note.split() for note in notes)
    for rank, other in enumerate(others, start=1):
        for name, expected, found in zip(_FACTS, first[1:], other[1:], strict=True):
            if expected != found:
                raise InputError(
                    f"{name} is {expected} on process 0 and {found} on process {rank}: "
                    "the same is needed on all processes"
                )
    return [int(count) for count, *_ in (first, *others)]


def _gather_rows(rows: Tensor, counts: list[int]) -> list[Tensor]:
    """Return every process's rows: (n₀, …), (n₁, …), …

    They are sent as bytes, because backends differ in the number types that they support.
    """
    most = max(counts)
    padded = rows.new_zeros((most, *rows.shape[1:]))
    if not padded.numel():
        return [padded[:count] for count in counts]
    padded[: len(rows)] = rows
    received = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather([part.view(torch.uint8) for part in received], padded.view(torch.uint8))
    return [part[:count] for part, count in zip(received, counts, strict=True)]
