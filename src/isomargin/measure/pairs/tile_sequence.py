"""The tiles of all pairs in a sequence that is cut into parts.

Rows are cut into superblocks, and superblocks into blocks. A tile is the product of two blocks. The tiles of two
superblocks form a cell; the cells follow each other row by row, and a part is a run of consecutive tiles.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.tiles import Tile, tournament


@dataclass(frozen=True)
class Cell:
    """Some tiles of two superblocks."""

    one: int
    """The superblock of the rows."""
    other: int
    """The superblock of the columns; the same for a cell on the diagonal."""
    first: int
    """The first of the tiles, in the order of the cell."""
    end: int
    """One past the last of the tiles."""


class TileSequence(ABC):
    """What a plan of parts says about tiles."""

    parts: int
    """Number of parts, numbered from 1."""
    columns: int | None = None
    """Number of sampled items that each block of rows is compared with; None if all pairs are."""

    @property
    @abstractmethod
    def block_edges(self) -> NDArray[np.int64]:
        """(superblocks + 1,) the first block of each superblock, and the number of blocks."""

    @property
    def numbers(self) -> range:
        """The numbers of the parts: 1, 2, ..."""
        return range(1, self.parts + 1)

    @property
    def superblocks(self) -> int:
        """Number of superblocks."""
        return len(self.block_edges) - 1

    def touched_by(self, number: int) -> list[int]:
        """List the superblocks of a part."""
        return sorted({superblock for cell in self.cells(number) for superblock in (cell.one, cell.other)})

    @cached_property
    def cell_ends(self) -> NDArray[np.int64]:
        """(cells + 1,) number of tiles before each cell, row by row, and of all tiles."""
        blocks = np.diff(self.block_edges)
        if self.columns is not None:  # a cell on the diagonal has the blocks of a superblock, and there are no others
            return np.concatenate([[0], np.cumsum(blocks)])
        counts = [
            [int(blocks[i]) * (int(blocks[i]) + 1) // 2, *(int(blocks[i]) * blocks[i + 1 :])]
            for i in range(self.superblocks)
        ]
        return np.concatenate([[0], np.cumsum([count for row in counts for count in row])]).astype(np.int64)

    @property
    def tiles(self) -> int:
        """Number of tiles; of blocks, if their negatives are sampled."""
        return int(self.cell_ends[-1])

    @cached_property
    def part_ends(self) -> NDArray[np.int64]:
        """(parts + 1,) number of tiles before each part, and of all tiles.

        Parts are equally long, but one ends where a cell ends if that is less than half a part away: each cell that a
        part has some tiles of costs it the positives of two superblocks again.
        """
        equal = np.array([self.tiles * at // self.parts for at in range(self.parts + 1)], np.int64)
        after = np.minimum(np.searchsorted(self.cell_ends, equal), len(self.cell_ends) - 1)
        before, behind = self.cell_ends[np.maximum(after - 1, 0)], self.cell_ends[after]
        nearest = np.where(equal - before < behind - equal, before, behind)
        return np.where(2 * np.abs(nearest - equal) * self.parts < self.tiles - self.parts, nearest, equal)

    def cells(self, number: int) -> Iterator[Cell]:
        """Yield the tiles of a part, cell by cell."""
        ends = self.cell_ends
        begin, end = self.part_ends[number - 1 : number + 1].tolist()
        index = int(np.searchsorted(ends, begin, side="right")) - 1
        if self.columns is not None:
            while begin < end:
                stop = min(end, int(ends[index + 1]))
                yield Cell(index, index, begin - int(ends[index]), stop - int(ends[index]))
                begin, index = stop, index + 1
            return
        one, place, blocks_in_row = 0, index, self.superblocks
        while place >= blocks_in_row:  # the cells of row i are those with columns i, i + 1, ...
            place -= blocks_in_row
            one, blocks_in_row = one + 1, blocks_in_row - 1
        other = one + place
        while begin < end:
            stop = min(end, int(ends[index + 1]))
            yield Cell(one, other, begin - int(ends[index]), stop - int(ends[index]))
            begin, index, other = stop, index + 1, other + 1
            if other == self.superblocks:
                one += 1
                other = one

    def tiles_of(self, cell: Cell) -> list[Tile]:
        """List the tiles of a cell as pairs of blocks, counted from the first block of its section."""
        rows, columns = (int(np.diff(self.block_edges)[i]) for i in (cell.one, cell.other))
        if cell.one == cell.other:
            return list(islice(tournament(rows), cell.first, cell.end))
        return [
            (tile % rows, rows + (tile % rows + tile // rows) % columns) for tile in range(cell.first, cell.end)
        ]  # neighbours in this order have different rows, and mostly different columns
