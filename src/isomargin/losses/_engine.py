"""One pass over the similarities of all pairs for any number of losses, and one pass back.

The similarities come in tiles of rows. In the forward pass each loss reads each tile and keeps a few numbers per row.
In the backward pass each loss adds its gradient to the same tile, and one product carries the sum to the embeddings. So
a regularizer needs no product of its own, and nothing of size pairs times positives is ever kept. The similarities are
kept between the passes where they are small, and computed again otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isomargin.losses._batch import full_precision, refuse_second_derivative
from isomargin.losses._pairs import Pairs, Tile

if TYPE_CHECKING:
    from isomargin.losses._base import PairLoss

TILE_ENTRIES = 2**21  # 8 MB of float32: elementwise work stays in the cache
TILE_ENTRIES_ON_GPU = 2**24  # no more: float32 counts them exactly
KEPT_ENTRIES = 2**25  # 128 MB


@dataclass
class Gradient:
    """The derivative with respect to a tile's similarities; losses add to it."""

    negatives: Tensor
    """(b, m); must stay 0 where a pair is not negative."""
    positives: Tensor
    """(p,)"""
    to_itself: Tensor | None
    """(b,) with respect to each row's similarity to itself; None where the tile has none."""


@dataclass
class Run:
    """One call: the losses, the pairs, and the states that the forward pass keeps for the backward pass."""

    parts: Sequence[PairLoss]
    pairs: Pairs
    weights: Tensor | None
    states: list[Any] = field(default_factory=list)


def pair_losses(
    parts: Sequence[PairLoss], vectors: Tensor, references: Tensor | None, pairs: Pairs, weights: Tensor | None
) -> tuple[tuple[Tensor, ...], list[Any]]:
    """Compute a scalar for each loss, and their states, of vectors (n, d) and references (m, d), or vectors alone."""
    run = Run(parts, pairs, weights)
    values: tuple[Tensor, ...] = _PairLosses.apply(vectors, references, run)  # type: ignore[no-untyped-call]
    return values, run.states


def tile_height(rows: int, columns: int, device: torch.device) -> int:
    """Choose the number of rows of a tile, so that its entries fit into the cache."""
    entries = TILE_ENTRIES if device.type == "cpu" else TILE_ENTRIES_ON_GPU
    return min(max(entries // max(columns, 1), 1), rows)


def _make_tiles(
    run: Run, vectors: Tensor, columns: Tensor, whole: Tensor | None, kept: Sequence[Any] = ()
) -> Iterator[Tile]:
    """Compute the similarities tile by tile, or cut them from `whole` (n, m), which is sorted in place.

    In the backward pass `whole` is already sorted, and `kept` has three tensors of each tile.
    """
    rows, width = run.pairs.shape
    height = tile_height(rows, width, vectors.device)
    ask_itself = any(part.compares_with_itself for part in run.parts)
    workspace = vectors.new_empty(height * width)
    for number, start in enumerate(range(0, rows, max(height, 1))):
        stop = min(start + height, rows)
        similarities = vectors[start:stop] @ columns.T if whole is None else whole[start:stop]
        if kept:
            yield run.pairs.sorted_tile(start, stop, workspace, similarities, *kept[3 * number : 3 * number + 3])
        else:
            yield run.pairs.tile(start, stop, similarities, workspace, ask_itself)


class _PairLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, references: Tensor | None, run: Run) -> tuple[Tensor, ...]:
        columns = vectors if references is None else references
        rows, width = run.pairs.shape
        # Of each positive pair, its similarity and its place are kept, which is an integer of twice the size.
        keep = any(ctx.needs_input_grad) and rows * width + 3 * run.pairs.positive_total <= KEPT_ENTRIES
        whole = vectors @ columns.T if keep else None
        run.states = [part.begin(run.pairs, run.weights) for part in run.parts]
        kept: list[Tensor | None] = []
        for tile in _make_tiles(run, vectors, columns, whole):
            for part, state in zip(run.parts, run.states, strict=True):
                part.visit(tile, state)
            if keep:
                kept += [tile.positives, tile.places, tile.to_itself]
        finished = [part.finish(run.pairs, state) for part, state in zip(run.parts, run.states, strict=True)]
        # Saved this way, and not in the run, they are freed as soon as the backward pass is done.
        ctx.save_for_backward(vectors, references, whole, *kept)
        ctx.run = run
        return tuple(value if isinstance(value, Tensor) else vectors.new_full((), value) for value in finished)

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        refuse_second_derivative()
        run: Run = ctx.run
        vectors, references, whole, *kept = ctx.saved_tensors
        columns = vectors if references is None else references
        active = [
            (part, state, scale)
            for part, state, scale in zip(run.parts, run.states, torch.stack(scales).tolist(), strict=True)
            if scale != 0
        ]
        rows, width = run.pairs.shape
        height = tile_height(rows, width, vectors.device)
        with full_precision(vectors.device):
            if active and references is None and height == rows > 0:  # one product for both ends of the pairs
                (tile,) = _make_tiles(run, vectors, columns, whole, kept)
                by_similarity = _add_gradients(active, tile, vectors.new_zeros(rows, width))
                return (by_similarity + by_similarity.T) @ vectors, None, None
            for_vectors = torch.zeros_like(vectors) if ctx.needs_input_grad[0] else None
            for_references = torch.zeros_like(references) if ctx.needs_input_grad[1] else None
            for_columns = for_vectors if references is None else for_references
            buffer = vectors.new_empty(height, width)
            for tile in _make_tiles(run, vectors, columns, whole, kept) if active else ():
                by_similarity = _add_gradients(active, tile, buffer[: tile.stop - tile.start].zero_())
                if for_vectors is not None:
                    for_vectors[tile.start : tile.stop].addmm_(by_similarity, columns)
                if for_columns is not None:
                    for_columns.addmm_(by_similarity.T, vectors[tile.start : tile.stop])
        return for_vectors, for_references, None


def _add_gradients(active: list[tuple[PairLoss, Any, float]], tile: Tile, by_similarity: Tensor) -> Tensor:
    """Add the derivatives of all losses, times their scales, with respect to a tile's similarities, to (b, m) zeros."""
    to_itself = None if tile.to_itself is None else torch.zeros_like(tile.to_itself)
    gradient = Gradient(by_similarity, torch.zeros_like(tile.positives), to_itself)
    for part, state, scale in active:
        part.add_gradient(tile, state, scale, gradient)
    by_similarity.view(-1).index_add_(0, tile.places, gradient.positives)
    if to_itself is not None:
        by_similarity.diagonal(tile.start).add_(to_itself)
    return by_similarity
