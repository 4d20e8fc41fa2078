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

from isomargin.losses._batch import refuse_second_derivative
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
    """(b,) with respect to each row's similarity to itself; None where the columns are other embeddings."""


@dataclass
class Run:
    """One call: the losses, the pairs, and the states that the forward pass keeps for the backward pass."""

    parts: Sequence[PairLoss]
    pairs: Pairs
    weights: Tensor | None
    states: list[Any] = field(default_factory=list)


def pair_losses(
    parts: Sequence[PairLoss], vectors: Tensor, references: Tensor | None, pairs: Pairs, weights: Tensor | None
) -> tuple[Tensor, list[Any]]:
    """Compute losses (parts,), and their states, of unit vectors (n, d) and references (m, d), or the vectors alone."""
    run = Run(parts, pairs, weights)
    values: Tensor = _PairLosses.apply(vectors, references, run)  # type: ignore[no-untyped-call]
    return values, run.states


def tile_height(rows: int, columns: int, device: torch.device) -> int:
    """Choose the number of rows of a tile, so that its entries fit into the cache."""
    entries = TILE_ENTRIES if device.type == "cpu" else TILE_ENTRIES_ON_GPU
    return min(max(entries // max(columns, 1), 1), rows)


def _make_tiles(run: Run, vectors: Tensor, columns: Tensor, whole: Tensor | None) -> Iterator[Tile]:
    """Compute the similarities tile by tile, or cut them from `whole` (n, m), which is sorted in place."""
    rows, width = run.pairs.shape
    height = tile_height(rows, width, vectors.device)
    workspace = vectors.new_empty(height * width)
    for start in range(0, rows, max(height, 1)):
        stop = min(start + height, rows)
        similarities = vectors[start:stop] @ columns.T if whole is None else whole[start:stop]
        yield run.pairs.tile(start, stop, similarities, workspace)


def _tiles_again(run: Run, whole: Tensor, positives: Tensor, to_itself: Tensor | None) -> Iterator[Tile]:
    """Cut the tiles from what the forward pass sorted and kept: (n, m), (p,) and (n,)."""
    rows, width = run.pairs.shape
    height = tile_height(rows, width, whole.device)
    workspace = whole.new_empty(height * width)
    counts = run.pairs.positive_counts.cumsum(0).tolist()
    for start in range(0, rows, max(height, 1)):
        stop = min(start + height, rows)
        listed = positives[counts[start - 1] if start else 0 : counts[stop - 1]]
        itself = None if to_itself is None else to_itself[start:stop]
        yield run.pairs.sorted_tile(start, stop, whole[start:stop], listed, itself, workspace)


class _PairLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, references: Tensor | None, run: Run) -> Tensor:
        columns = vectors if references is None else references
        rows, width = run.pairs.shape
        keep = any(ctx.needs_input_grad) and rows * width + run.pairs.positive_total <= KEPT_ENTRIES
        whole = vectors @ columns.T if keep else None
        run.states = [part.begin(run.pairs, run.weights) for part in run.parts]
        positives, to_itself = [vectors.new_empty(0)], [vectors.new_empty(0)]
        for tile in _make_tiles(run, vectors, columns, whole):
            for part, state in zip(run.parts, run.states, strict=True):
                part.visit(tile, state)
            if keep:
                positives.append(tile.positives)
                to_itself += [] if tile.to_itself is None else [tile.to_itself]
        finished = [part.finish(run.pairs, state) for part, state in zip(run.parts, run.states, strict=True)]
        # Saved this way, and not in the run, they are freed as soon as the backward pass is done.
        ctx.save_for_backward(vectors, references, whole, torch.cat(positives), torch.cat(to_itself))
        ctx.run = run
        return torch.stack([value.to(vectors) for value in finished])

    @staticmethod
    def backward(ctx: Any, scales: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        refuse_second_derivative()
        run: Run = ctx.run
        vectors, references, whole, positives, to_itself = ctx.saved_tensors
        columns = vectors if references is None else references
        for_vectors = torch.zeros_like(vectors) if ctx.needs_input_grad[0] else None
        for_references = torch.zeros_like(references) if ctx.needs_input_grad[1] else None
        for_columns = for_vectors if references is None else for_references
        active = [
            (part, state, scale)
            for part, state, scale in zip(run.parts, run.states, scales.tolist(), strict=True)
            if scale != 0
        ]
        if not active:
            return for_vectors, for_references, None
        with torch.autocast(vectors.device.type, enabled=False):
            if whole is None:
                tiles = _make_tiles(run, vectors, columns, None)
            else:
                tiles = _tiles_again(run, whole, positives, to_itself if run.pairs.with_itself else None)
            rows, width = run.pairs.shape
            buffer = vectors.new_empty(tile_height(rows, width, vectors.device), width)
            for tile in tiles:
                by_similarity = buffer[: tile.stop - tile.start].zero_()
                _add_gradients(active, tile, by_similarity)
                if for_vectors is not None:
                    for_vectors[tile.start : tile.stop].addmm_(by_similarity, columns)
                if for_columns is not None:
                    for_columns.addmm_(by_similarity.T, vectors[tile.start : tile.stop])
        return for_vectors, for_references, None


def _add_gradients(active: list[tuple[PairLoss, Any, float]], tile: Tile, by_similarity: Tensor) -> None:
    """Add the derivatives of all losses, times their scales, with respect to a tile's similarities (b, m)."""
    to_itself = None if tile.to_itself is None else torch.zeros_like(tile.to_itself)
    gradient = Gradient(by_similarity, torch.zeros_like(tile.positives), to_itself)
    for part, state, scale in active:
        part.add_gradient(tile, state, scale, gradient)
    by_similarity[tile.rows, tile.columns] += gradient.positives
    if to_itself is not None:
        by_similarity.diagonal(tile.start).add_(to_itself)
