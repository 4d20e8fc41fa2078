"""One pass over the similarities of all pairs for any number of losses, and one pass back.

The similarities come in tiles of rows. Forward, each loss reads each tile and keeps a few numbers a row; backward, each
adds its gradient to the same tile, and one product carries their sum to the embeddings. So a regularizer costs no
product of its own, and nothing of size pairs times positives is ever kept. Similarities themselves are kept between the
passes where they are small, else taken again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isomargin.losses._pairs import Pairs, Tile

TILE_ENTRIES = 2**21  # 8 MB of float32: elementwise work stays in the cache
TILE_ENTRIES_ON_GPU = 2**24  # no more: float32 counts them exactly
KEPT_ENTRIES = 2**25  # 128 MB


class Part(Protocol):
    """What a loss of pairs does in the two passes."""

    def begin(self, pairs: Pairs, weights: Tensor | None) -> Any:
        """Make what the forward pass collects in."""

    def visit(self, tile: Tile, state: Any) -> None:
        """Read one tile."""

    def finish(self, pairs: Pairs, state: Any) -> Tensor:
        """Return the loss, from what was collected."""

    def add_gradient(self, tile: Tile, state: Any, scale: float, gradient: Gradient) -> None:
        """Add scale times the derivative of the loss by the tile's similarities."""


@dataclass
class Gradient:
    """The derivative by a tile's similarities, which losses add to."""

    negatives: Tensor
    """(b, m); must stay 0 where a pair is not negative."""
    positives: Tensor
    """(p,)"""


@dataclass
class Run:
    """One call: the losses, the pairs, and what the forward pass leaves for the backward one."""

    parts: Sequence[Part]
    pairs: Pairs
    weights: Tensor | None
    states: list[Any] = field(default_factory=list)
    tiles: list[Tile] | None = None


def pair_losses(
    parts: Sequence[Part], vectors: Tensor, references: Tensor | None, pairs: Pairs, weights: Tensor | None
) -> tuple[Tensor, list[Any]]:
    """Compute the losses (parts,) of unit vectors (n, d) against references (m, d), or each other; and their states."""
    run = Run(parts, pairs, weights)
    values: Tensor = _PairLosses.apply(vectors, references, run)  # type: ignore[no-untyped-call]
    return values, run.states


def tile_height(rows: int, columns: int, device: torch.device) -> int:
    """Choose how many rows a tile has: about as many as the cache holds entries."""
    entries = TILE_ENTRIES if device.type == "cpu" else TILE_ENTRIES_ON_GPU
    return min(max(entries // max(columns, 1), 1), rows)


def _make_tiles(run: Run, vectors: Tensor, columns: Tensor, whole: Tensor | None) -> Iterator[Tile]:
    rows, width = run.pairs.shape
    height = tile_height(rows, width, vectors.device)
    workspace = vectors.new_empty(height * width)
    for start in range(0, rows, max(height, 1)):
        stop = min(start + height, rows)
        similarities = vectors[start:stop] @ columns.T if whole is None else whole[start:stop]
        yield run.pairs.tile(start, stop, similarities, workspace)


class _PairLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, references: Tensor | None, run: Run) -> Tensor:
        columns = vectors if references is None else references
        rows, width = run.pairs.shape
        entries = rows * width + 5 * (run.pairs.positive_total + rows)  # a listed positive weighs as much as five
        keep = any(ctx.needs_input_grad) and entries <= KEPT_ENTRIES
        run.states = [part.begin(run.pairs, run.weights) for part in run.parts]
        tiles = []
        for tile in _make_tiles(run, vectors, columns, vectors @ columns.T if keep else None):
            for part, state in zip(run.parts, run.states, strict=True):
                part.visit(tile, state)
            if keep:
                tiles.append(tile)
        run.tiles = tiles if keep else None
        finished = [part.finish(run.pairs, state) for part, state in zip(run.parts, run.states, strict=True)]
        ctx.save_for_backward(vectors, references)
        ctx.run = run
        return torch.stack([value.to(vectors) for value in finished])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scales: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        run: Run = ctx.run
        vectors, references = ctx.saved_tensors
        columns = vectors if references is None else references
        for_vectors = torch.zeros_like(vectors) if ctx.needs_input_grad[0] else None
        for_references = torch.zeros_like(references) if ctx.needs_input_grad[1] else None
        for_columns = for_vectors if references is None else for_references
        active = [
            (part, state, scale)
            for part, state, scale in zip(run.parts, run.states, scales.tolist(), strict=True)
            if scale != 0
        ]
        with torch.autocast(vectors.device.type, enabled=False):
            rows, width = run.pairs.shape
            by_similarities = vectors.new_empty(tile_height(rows, width, vectors.device), width)
            for tile in (run.tiles or _make_tiles(run, vectors, columns, None)) if active else ():
                by_similarity = by_similarities[: tile.stop - tile.start].zero_()
                gradient = Gradient(by_similarity, torch.zeros_like(tile.positives))
                for part, state, scale in active:
                    part.add_gradient(tile, state, scale, gradient)
                by_similarity[tile.rows, tile.columns] = gradient.positives
                if for_vectors is not None:
                    for_vectors[tile.start : tile.stop].addmm_(by_similarity, columns)
                if for_columns is not None:
                    for_columns.addmm_(by_similarity.T, vectors[tile.start : tile.stop])
        return for_vectors, for_references, None
