"""Which pairs of a batch are positive and which are negative, and the similarities of some rows sorted into the two.

Positive pairs are few and kept as a list. Negative pairs are kept as a matrix that is -inf where a pair is not
negative. Every loss of pairs reads its numbers from such tiles; no loss looks at labels itself. Pairs are listed and
counted on the host, from a copy of the labels, so that no step waits for the device to say how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

INFINITY = float("inf")


@dataclass(frozen=True)
class Tile:
    """The similarities of the rows start..stop to all columns."""

    start: int
    stop: int
    negatives: Tensor
    """(b, m) similarities of negative pairs, -inf where a pair is not negative."""
    positives: Tensor
    """(p,) similarities of positive pairs, by row."""
    places: Tensor
    """(p,) the place of each among the b · m entries of the tile."""
    sizes: np.ndarray
    """(b,) how many positives each row has, on the host."""
    to_itself: Tensor | None
    """(b,) each row's similarity to itself; None where the columns are other embeddings or no loss asks for it."""
    workspace: Tensor
    """(at least b · m,) memory for temporary results; all tiles of a pass share it."""

    def scratch(self, rows: int, columns: int) -> Tensor:
        """Give a scratch tensor (rows, columns) of at most the tile's size: new memory costs more than the work."""
        return self.workspace[: rows * columns].view(rows, columns)

    @cached_property
    def counts(self) -> Tensor:
        """(b,) how many positives each row has."""
        return upload(self.sizes, self.negatives.device)

    @cached_property
    def rows(self) -> Tensor:
        """(p,) the row of each positive, counted from start."""
        return self.places.div(max(self.negatives.shape[1], 1), rounding_mode="floor")

    @cached_property
    def slots(self) -> Tensor:
        """(p,) the number of each among the positives of its row: 0, 1, …"""
        before = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self.rows), device=self.rows.device) - before[self.rows]

    @cached_property
    def most(self) -> int:
        """The largest number of positives of a row."""
        return int(self.sizes.max(initial=0))

    @cached_property
    def is_even(self) -> bool:
        """Whether all rows have the same number of positives."""
        return len(self.positives) == self.most * len(self.sizes)

    @cached_property
    def rows_by_slot(self) -> list[Tensor | None]:
        """For each slot, the rows that have a positive in it; None if all do."""
        if self.is_even:
            return [None] * self.most
        at_least = np.bincount(self.sizes)[:0:-1].cumsum()[::-1]  # how many rows have 1, 2, … positives or more
        parts = torch.split(self.rows[self.slots.argsort(stable=True)], at_least.tolist())
        return [None if len(part) == len(self.sizes) else part for part in parts]

    def pad(self, values: Tensor, filler: float) -> Tensor:
        """Arrange a list (p,) by rows: (b, most), with the filler where a row has fewer positives."""
        if self.is_even:
            return values.view(len(self.sizes), self.most)
        padded = values.new_full((len(self.sizes), self.most), filler)
        padded[self.rows, self.slots] = values
        return padded

    def unpad(self, padded: Tensor) -> Tensor:
        """Turn (b, most) back into a list (p,)."""
        return padded.flatten() if self.is_even else padded[self.rows, self.slots]


@dataclass(frozen=True)
class Pairs:
    """Which of (n, m) pairs are positive and negative: by label, without a row's pair with itself, or as chosen."""

    row_labels: np.ndarray
    """(n,)"""
    column_labels: np.ndarray
    """(m,)"""
    with_itself: bool
    """Whether the columns are the rows: then a row's pair with itself is neither, and every pair occurs twice."""
    device: torch.device
    """Where the similarities are."""
    chosen_positives: Tensor | None
    """(n, m) true where a pair is positive, if pairs were chosen."""
    chosen_negatives: Tensor | None
    """(n, m) true where a pair is negative, if pairs were chosen."""
    virtual: int = 0
    """How many of the rows were mixed from others."""

    @classmethod
    def of(
        cls,
        labels: np.ndarray,
        reference_labels: np.ndarray | None,
        device: torch.device,
        chosen: tuple[Tensor, ...] | None,
    ) -> Pairs:
        """Find them from labels (n,) and (m,), or from the chosen (anchors, positives, anchors, negatives)."""
        columns = labels if reference_labels is None else reference_labels
        masks: list[Tensor | None] = [None, None]
        if chosen is not None:
            for which in range(2):
                mask = torch.zeros(len(labels) * len(columns), dtype=torch.bool, device=device)
                mask.index_fill_(0, chosen[2 * which] * len(columns) + chosen[2 * which + 1], True)
                masks[which] = mask.view(len(labels), len(columns))
        return cls(labels, columns, reference_labels is None, device, masks[0], masks[1])

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return len(self.row_labels), len(self.column_labels)

    @cached_property
    def row_classes(self) -> np.ndarray:
        """(n,) the class of each row, numbered from 0 without gaps."""
        return np.unique(self.row_labels, return_inverse=True)[1]

    @cached_property
    def alike(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(m,) the columns by label; (n,) where those with a row's label begin there; (n,) how many they are."""
        order = self.column_labels.argsort(kind="stable")
        labels = self.column_labels[order]
        first = labels.searchsorted(self.row_labels)
        return order, first, labels.searchsorted(self.row_labels, side="right") - first

    @cached_property
    def positive_counts(self) -> np.ndarray:
        """(n,) how many positives each row has."""
        if self.chosen_positives is not None:
            return np.asarray(self.chosen_positives.sum(dim=1).cpu())
        return self.alike[2] - int(self.with_itself)

    @cached_property
    def negative_counts(self) -> np.ndarray:
        """(n,) how many negatives each row has."""
        if self.chosen_negatives is not None:
            return np.asarray(self.chosen_negatives.sum(dim=1).cpu())
        return self.shape[1] - self.alike[2]

    @cached_property
    def positive_total(self) -> int:
        """How many positive pairs there are, counted from each row."""
        return int(self.positive_counts.sum())

    @cached_property
    def negative_total(self) -> int:
        """How many negative pairs there are, counted from each row."""
        return int(self.negative_counts.sum())

    @property
    def counted_from_both_ends(self) -> bool:
        """Whether every pair occurs twice, once from each of its rows."""
        return self.with_itself and self.chosen_positives is None

    def tile(self, start: int, stop: int, similarities: Tensor, workspace: Tensor, ask_itself: bool) -> Tile:
        """Sort the similarities (b, m) of the rows start..stop; they are overwritten."""
        places = self.places(start, stop)
        entries = similarities.view(-1)
        positives = entries.index_select(0, places)
        to_itself = similarities.diagonal(start).clone() if self.with_itself and ask_itself else None
        if self.chosen_negatives is not None:
            similarities.masked_fill_(~self.chosen_negatives[start:stop], -INFINITY)
        else:
            entries.index_fill_(0, places, -INFINITY)
            if self.with_itself:
                similarities.diagonal(start).fill_(-INFINITY)
        return self.sorted_tile(start, stop, workspace, similarities, positives, places, to_itself)

    def sorted_tile(
        self,
        start: int,
        stop: int,
        workspace: Tensor,
        negatives: Tensor,
        positives: Tensor,
        places: Tensor,
        to_itself: Tensor | None,
    ) -> Tile:
        """Create a tile from similarities that are already sorted."""
        return Tile(start, stop, negatives, positives, places, self.positive_counts[start:stop], to_itself, workspace)

    def places(self, start: int, stop: int) -> Tensor:
        """List the positive pairs of the rows start..stop by their places among the (stop − start) · m entries."""
        if self.chosen_positives is not None:
            return self.chosen_positives[start:stop].flatten().nonzero()[:, 0]
        return upload(self.host_places(start, stop), self.device)

    def host_places(self, start: int, stop: int) -> np.ndarray:
        """List the places on the host, by label."""
        order, first, sizes = self.alike
        first, sizes = first[start:stop], sizes[start:stop]
        rows = np.arange(stop - start).repeat(sizes)
        columns = order[(first - sizes.cumsum() + sizes).repeat(sizes) + np.arange(len(rows))]
        places: np.ndarray = rows * len(self.column_labels) + columns
        return places[columns != rows + start] if self.with_itself else places


def upload(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device."""
    return torch.from_numpy(values).to(device)
