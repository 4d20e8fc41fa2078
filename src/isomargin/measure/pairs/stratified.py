"""Sampled negatives with a known error, for sets with too many pairs to count them all.

Each block of rows is compared with a random sample of all items. The sample is large enough for the FAR of every class
to have at most a stated relative standard error at the target FAR, whatever the correlations between items. Its cost
grows with the number of items instead of its square. The paper's protocol, which states no error, is in ``sampled.py``.
"""

import math

import numpy as np
from numpy.typing import NDArray

from isomargin.core.memory import forget_pages
from isomargin.measure.pairs import kernels
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.pairs.tiles import TILE_ROWS, Pass


def columns_for(target_far: float, relative_error: float) -> int:
    r"""Return how many items each class is compared with, so that its FAR has a relative error of at most this.

    For a random item, let h be the share of a class's items that accept it. The FAR f of the class is the mean of h.
    Because h lies between 0 and 1, its variance is at most f (1 - f). The mean of h over m sampled items therefore has
    a relative standard error of at most :math:`\sqrt{(1 - f) / (f m)}`.

    >>> columns_for(0.01, 0.1)
    9900
    """
    return math.ceil((1 - target_far) / (target_far * relative_error**2) - 1e-6)


def draw_columns(n: int, columns: int, seed: int, block: int) -> NDArray[np.int64]:
    """(columns,) rows that a block is compared with, ascending: one at random from each of as many equal stretches.

    Rows are sorted by class, so that the sample has the classes in proportion to their sizes. Each row is expected
    equally often; a row between two stretches may come twice.

    >>> draw_columns(10, 5, seed=0, block=3)
    array([1, 3, 4, 6, 8])
    """
    places = np.arange(columns) + np.random.default_rng([seed, block]).random(columns)
    return np.minimum((places * (n / columns)).astype(np.int64), n - 1)


def count_sampled(
    the_pass: Pass,
    data: ClassSortedVectors,
    columns: int,
    seed: int,
    first_class: int,
    first_row: int,
    blocks: list[tuple[int, int]],
) -> None:
    """Compare blocks of a pass over one superblock with their samples, and count the pairs for the rows' classes.

    Args:
        the_pass: the pass over the superblock, which has the counters.
        data: all rows.
        columns: number of sampled items for each block.
        seed: seed of the sample.
        first_class: number of the superblock's first class.
        first_row: number of its first row.
        blocks: of each block, its number in the superblock and in the whole set.
    """
    ends, vectors = data.ends, the_pass.data.vectors

    def work(block: tuple[int, int]) -> None:
        local, number = block
        first, end = the_pass.blocks[local]
        rows = slice(first_row + first, first_row + end)
        chosen = draw_columns(len(data.vectors), columns, seed, number)
        classes = np.searchsorted(ends, chosen, side="right") - first_class
        for begin in range(0, columns, TILE_ROWS):
            part = slice(begin, begin + TILE_ROWS)
            product = data.shift(vectors[first:end] @ data.vectors[chosen[part]].T, rows, chosen[part])
            forget_pages(data.vectors)  # the sample touches more of them than it has rows: with each, those around it
            kernels.count_sampled(product, first, the_pass.rows.class_of, classes[part], the_pass.negatives)

    # A block's counters belong to it alone, so that blocks need no locks.
    the_pass.run(work, blocks, until=1.0)
