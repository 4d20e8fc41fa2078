"""Which pairs of a batch are positive and which are negative, and the similarities of some rows sorted into the two.

Positive pairs are few and kept as a list. Negative pairs are kept as a matrix that is -inf where a pair is not
negative. Every loss of pairs reads its numbers from such tiles; no loss looks at labels itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    rows: Tensor
    """(p,) the row of each, counted from start."""
    columns: Tensor
    """(p,) the column of each."""
    counts: Tensor
    """(b,) how many positives each row has."""
    to_itself: Tensor | None
    """(b,) each row's similarity to itself; None where the columns are other embeddings."""
    has_negatives: bool
    """Whether any pair is negative."""
    workspace: Tensor
    """(at least b · m,) memory for temporary results; all tiles of a pass share it."""

    def scratch(self, rows: int, columns: int) -> Tensor:
        """Give a scratch tensor (rows, columns) of at most the tile's size: new memory costs more than the work."""
        return self.workspace[: rows * columns].view(rows, columns)

    @cached_property
    def slots(self) -> Tensor:
        """(p,) the number of each among the positives of its row: 0, 1, …"""
        before = self.counts.cumsum(0) - self.counts
        return torch.arange(len(self.rows), device=self.rows.device) - before[self.rows]

    @cached_property
    def most(self) -> int:
        """The largest number of positives of a row."""
        return int(self.counts.max()) if len(self.counts) else 0

    def pad(self, values: Tensor, filler: float) -> Tensor:
        """Arrange a list (p,) by rows: (b, most), with the filler where a row has fewer positives."""
        padded = values.new_full((len(self.counts), self.most), filler)
        padded[self.rows, self.slots] = values
        return padded

    def unpad(self, padded: Tensor) -> Tensor:
        """Turn (b, most) back into a list (p,)."""
        return padded[self.rows, self.slots]


@dataclass(frozen=True)
class Pairs:
    """Which of (n, m) pairs are positive and negative: by label, without a row's pair with itself, or as chosen."""

    row_classes: Tensor
    """(n,) the class of each row, numbered from 0."""
    column_classes: Tensor
    """(m,) the same for the columns."""
    classes: int
    """The number of classes in both together."""
    with_itself: bool
    """Whether the columns are the rows: then a row's pair with itself is neither, and every pair occurs twice."""
    chosen_positives: Tensor | None
    """(n, m) true where a pair is positive, if pairs were chosen."""
    chosen_negatives: Tensor | None
    """(n, m) true where a pair is negative, if pairs were chosen."""

    @classmethod
    def of(cls, labels: Tensor, reference_labels: Tensor | None, chosen: tuple[Tensor, ...] | None) -> Pairs:
        """Find them from labels (n,) and (m,), or from the chosen (anchors, positives, anchors, negatives)."""
        columns = labels if reference_labels is None else reference_labels
        both = labels if reference_labels is None else torch.cat([labels, columns])
        names, classes = torch.unique(both, return_inverse=True)
        masks: list[Tensor | None] = [None, None]
        if chosen is not None:
            for which in range(2):
                mask = torch.zeros(len(labels), len(columns), dtype=torch.bool, device=labels.device)
                mask[chosen[2 * which], chosen[2 * which + 1]] = True
                masks[which] = mask
        return cls(
            row_classes=classes[: len(labels)],
            column_classes=classes[-len(columns) :] if len(columns) else classes[:0],
            classes=len(names),
            with_itself=reference_labels is None,
            chosen_positives=masks[0],
            chosen_negatives=masks[1],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return len(self.row_classes), len(self.column_classes)

    @cached_property
    def class_sizes(self) -> Tensor:
        """(classes,) how many columns each class has."""
        return torch.bincount(self.column_classes, minlength=self.classes)

    @cached_property
    def class_starts(self) -> Tensor:
        """(classes,) where each class starts in `columns_by_class`."""
        return self.class_sizes.cumsum(0) - self.class_sizes

    @cached_property
    def columns_by_class(self) -> Tensor:
        """(m,) the columns, sorted by class."""
        return torch.argsort(self.column_classes, stable=True)

    @cached_property
    def positive_counts(self) -> Tensor:
        """(n,) how many positives each row has."""
        if self.chosen_positives is not None:
            return self.chosen_positives.sum(dim=1)
        return self.class_sizes[self.row_classes] - int(self.with_itself)

    @cached_property
    def negative_counts(self) -> Tensor:
        """(n,) how many negatives each row has."""
        if self.chosen_negatives is not None:
            return self.chosen_negatives.sum(dim=1)
        return self.shape[1] - self.class_sizes[self.row_classes]

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

    def tile(self, start: int, stop: int, similarities: Tensor, workspace: Tensor) -> Tile:
        """Sort the similarities (b, m) of the rows start..stop; they are overwritten."""
        rows, columns = self.positives(start, stop)
        flat = rows * similarities.shape[1] + columns
        entries = similarities.view(-1)
        positives = entries.index_select(0, flat)
        to_itself = similarities.diagonal(start).clone() if self.with_itself else None
        if self.chosen_negatives is not None:
            similarities.masked_fill_(~self.chosen_negatives[start:stop], -INFINITY)
        else:
            entries.index_fill_(0, flat, -INFINITY)
            if self.with_itself:
                similarities.diagonal(start).fill_(-INFINITY)
        return self.sorted_tile(start, stop, similarities, positives, to_itself, workspace)

    def sorted_tile(
        self, start: int, stop: int, negatives: Tensor, positives: Tensor, to_itself: Tensor | None, workspace: Tensor
    ) -> Tile:
        """Create a tile from similarities that are already sorted."""
        rows, columns = self.positives(start, stop)
        counts = self.positive_counts[start:stop]
        has_negatives = bool(self.negative_counts[start:stop].any())
        return Tile(start, stop, negatives, positives, rows, columns, counts, to_itself, has_negatives, workspace)

    def positives(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """List rows (counted from start) and columns of the positive pairs of the rows start..stop."""
        if self.chosen_positives is not None:
            rows, columns = self.chosen_positives[start:stop].nonzero(as_tuple=True)
            return rows, columns
        classes = self.row_classes[start:stop]
        sizes = self.class_sizes[classes]
        rows = torch.repeat_interleave(torch.arange(stop - start, device=classes.device), sizes)
        before = sizes.cumsum(0) - sizes
        within = torch.arange(len(rows), device=rows.device) - before[rows]
        columns = self.columns_by_class[self.class_starts[classes][rows] + within]
        if not self.with_itself:
            return rows, columns
        others = columns != rows + start
        return rows[others], columns[others]
