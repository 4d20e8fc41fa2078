"""A batch as the losses see it: checked, at least float32, with normalised rows. No loss is computed here."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isomargin.core.errors import InputError
from isomargin.losses._pairs import Pairs

IndicesTuple = tuple[Tensor, ...]


@dataclass(frozen=True)
class Batch:
    """The input of one call."""

    embeddings: Tensor
    """(n, d), float32 or float64, as the model gave them."""
    labels: Tensor
    """(n,) integers."""
    references: Tensor | None = None
    """(m, d), what the embeddings are compared with; None: each other."""
    reference_labels: Tensor | None = None
    """(m,)"""
    chosen: IndicesTuple | None = None
    """The pairs (anchors, positives, anchors, negatives) or triplets (anchors, positives, negatives); None: all."""
    weights: Tensor | None = None
    """(n,), the weight of each sample's loss; None: all equal."""

    @cached_property
    def vectors(self) -> Tensor:
        """The embeddings at length 1 (n, d); a zero vector stays zero."""
        return normalise(self.embeddings)

    @cached_property
    def reference_vectors(self) -> Tensor | None:
        """The references at length 1 (m, d)."""
        return None if self.references is None else normalise(self.references)

    @cached_property
    def host_labels(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The labels and reference labels as arrays: the host waits for the device once, and for nothing else here."""
        if self.reference_labels is None:
            return self.labels.cpu().numpy(), None
        both = torch.cat([self.labels, self.reference_labels]).cpu().numpy()
        return both[: len(self.labels)], both[len(self.labels) :]

    @cached_property
    def pairs(self) -> Pairs:
        """Which pairs are positive and which negative."""
        chosen = self.chosen
        if chosen is not None and len(chosen) == 3:
            chosen = (chosen[0], chosen[1], chosen[0], chosen[2])
        return Pairs.of(*self.host_labels, self.labels.device, chosen)

    @cached_property
    def zero_or_nan(self) -> Tensor:
        """0 if all embeddings and references are finite, else NaN (a scalar).

        It is added to every loss, so that bad input shows: a comparison with NaN is false, so a loss of hard pairs
        would find none and be 0.
        """
        total = self.vectors.detach().sum()
        if self.reference_vectors is not None:
            total = total + self.reference_vectors.detach().sum()
        return total * 0

    def weighted(self, weights: Tensor) -> Batch:
        """Return the same batch with these weights (n,), multiplied by the weights that it has."""
        return replace(self, weights=weights if self.weights is None else self.weights * weights)


def read_batch(
    embeddings: Any, labels: Any, indices_tuple: Any, ref_emb: Any, ref_labels: Any, check_finite: bool
) -> Batch:
    """Check the input of one call; raise `InputError`, a `ValueError`, where it cannot be used."""
    if isinstance(indices_tuple, Tensor):  # loss(embeddings, labels, ref_emb, ref_labels), without names
        if ref_emb is not None and ref_labels is not None:
            raise InputError("indices_tuple is a tensor: a tuple of index tensors from a miner is needed")
        indices_tuple, ref_emb, ref_labels = None, indices_tuple, ref_emb if ref_labels is None else ref_labels
    check_embeddings(embeddings, "embeddings", check_finite)
    labels = read_labels(labels, embeddings, "labels", "embeddings").long()
    if (ref_emb is None) != (ref_labels is None):
        given, missing = ("ref_emb", "ref_labels") if ref_labels is None else ("ref_labels", "ref_emb")
        raise InputError(f"{given} was given without {missing}: give both, or neither to compare the batch with itself")
    if ref_emb is not None:
        check_embeddings(ref_emb, "ref_emb", check_finite)
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"ref_emb has {ref_emb.shape[1]} dimensions, embeddings has {embeddings.shape[1]}: "
                "the same number is needed"
            )
        ref_labels = read_labels(ref_labels, ref_emb, "ref_labels", "ref_emb")
        ref_emb = ref_emb.to(embeddings.device)
        ref_labels = ref_labels.to(embeddings.device, torch.int64)
    rows, columns = len(labels), len(labels if ref_labels is None else ref_labels)
    dtype = torch.float64 if embeddings.dtype == torch.float64 else torch.float32
    return Batch(
        embeddings=embeddings.to(dtype),
        labels=labels,
        references=None if ref_emb is None else ref_emb.to(dtype),
        reference_labels=ref_labels,
        chosen=None if indices_tuple is None else read_indices(indices_tuple, rows, columns, embeddings.device),
    )


def check_embeddings(embeddings: Any, name: str, check_finite: bool) -> None:
    """Raise unless this is a floating point tensor (n, d), with `check_finite` a finite one."""
    if not isinstance(embeddings, Tensor):
        raise InputError(
            f"{name} is a {type(embeddings).__name__}: a torch tensor is needed, such as torch.as_tensor({name})"
        )
    if embeddings.ndim != 2:
        raise InputError(f"{name} has shape {tuple(embeddings.shape)}: two dimensions are needed, (rows, dimensions)")
    if not embeddings.is_floating_point():
        raise InputError(f"{name} has dtype {embeddings.dtype}: floating point is needed, such as {name}.float()")
    if check_finite:
        bad = (~embeddings.detach().isfinite()).any(dim=1).nonzero().flatten().tolist()
        if bad:
            shown = ", ".join(map(str, bad[:5])) + (", …" if len(bad) > 5 else "")
            plural = "s" if len(bad) > 1 else ""
            raise InputError(
                f"{name} holds NaN or infinity in {len(bad)} row{plural} ({shown}): finite ones are needed"
            )


def read_labels(labels: Any, embeddings: Tensor, name: str, rows_name: str) -> Tensor:
    """Convert labels to an integer tensor (n,) on the device of its embeddings (n, d)."""
    if labels is None:
        raise InputError(f"{name} is None: one label per row of {rows_name} is needed")
    try:
        read = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not a tensor of integers: number the classes first") from error
    if read.ndim != 1:
        raise InputError(f"{name} has shape {tuple(read.shape)}: one dimension is needed, with one label per row")
    if len(read) != len(embeddings):
        raise InputError(
            f"{name} has {len(read)} entries, {rows_name} has {len(embeddings)} rows: one label per row is needed"
        )
    if len(read) and (read.is_floating_point() or read.is_complex()):
        raise InputError(f"{name} has dtype {read.dtype}: integers are needed, such as {name}.long()")
    return read.to(embeddings.device)


def read_indices(indices_tuple: Any, rows: int, columns: int, device: torch.device) -> IndicesTuple:
    """Check a miner's pairs (4 tensors: anchors, positives, anchors, negatives) or triplets (3)."""
    if not isinstance(indices_tuple, Iterable) or len(indices := tuple(indices_tuple)) not in (3, 4):
        raise InputError("indices_tuple must hold 4 index tensors (pairs) or 3 (triplets), as miners return them")
    tensors = tuple(torch.as_tensor(values, device=device) for values in indices)
    for tensor in tensors:
        if tensor.ndim != 1 or (len(tensor) and (tensor.is_floating_point() or tensor.dtype == torch.bool)):
            raise InputError(
                f"indices_tuple holds a tensor of shape {tuple(tensor.shape)} and {tensor.dtype}: "
                "integers in one dimension are needed"
            )
    tensors = tuple(tensor.long() for tensor in tensors)
    for anchors, others in ((tensors[0], tensors[1]), (tensors[-2] if len(tensors) == 4 else tensors[0], tensors[-1])):
        if len(anchors) != len(others):
            raise InputError(
                f"indices_tuple pairs {len(anchors)} anchors with {len(others)} others: the same number is needed"
            )
        if not len(anchors):
            continue
        ends = [anchors.min(), others.min(), anchors.max(), others.max()]
        first, first_other, last, last_other = torch.stack(ends).tolist()
        if min(first, first_other) < 0 or last >= rows or last_other >= columns:
            raise InputError(f"indices_tuple points outside the {rows} rows and {columns} references of this batch")
    return tensors


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Turn autocast off for the device; a context that does nothing where it is off, which is several times as fast."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def refuse_second_derivative() -> None:
    """Raise in a backward pass that is to be differentiated itself: its operations are not recorded."""
    if torch.is_grad_enabled():
        raise RuntimeError("these losses have no second derivative: create_graph=True cannot be used with them")


SMALLEST_NORM = 1e-12


class _Normalise(torch.autograd.Function):
    """x / ‖x‖ without overflow or underflow; a zero vector stays zero and has no gradient."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        smallest = torch.finfo(vectors.dtype).tiny
        largest = vectors.abs().amax(dim=1, keepdim=True) if vectors.shape[1] else vectors.new_zeros(len(vectors), 1)
        largest.clamp_(min=smallest)
        unit = vectors / largest  # the largest entry is 1: squares are safe
        length = torch.linalg.vector_norm(unit, dim=1, keepdim=True)
        unit.div_(length.clamp(min=smallest))
        ctx.save_for_backward(unit, length * largest)
        return unit

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        refuse_second_derivative()
        unit, norms = ctx.saved_tensors
        along = (gradient * unit).sum(dim=1, keepdim=True)
        across = torch.addcmul(gradient, along, unit, value=-1)
        return across.div_(norms.clamp(min=SMALLEST_NORM).masked_fill_(norms == 0, torch.inf))


def normalise(vectors: Tensor) -> Tensor:
    """Scale each row of (n, d) to length 1; zero rows stay zero.

    The gradient is that of a vector at least 1e-12 long, so that it stays finite.

    >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-30, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000],
            [1.0000, 0.0000]])
    """
    result: Tensor = _Normalise.apply(vectors)  # type: ignore[no-untyped-call]
    return result


class _Product(torch.autograd.Function):
    """a bᵀ, in full precision in the backward pass too, where autograd would follow an enclosing autocast."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        with full_precision(a.device):
            return gradient @ b, gradient.mT @ a


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a bᵀ (…, n, m) of a (…, n, d) and b (…, m, d).

    >>> product(torch.eye(2), torch.ones(3, 2)).shape
    torch.Size([2, 3])
    """
    result: Tensor = _Product.apply(a, b)  # type: ignore[no-untyped-call]
    return result
