"""How much of what a grid of two margins shows is due to either of them.

A grid holds one value per pair of a positive margin (rows) and a negative margin (columns). Its variance is the sum of
three parts: that of the row means, that of the column means, and the rest, in which the margins act together and the
noise of the runs hides.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Shares(NamedTuple):
    """Shares of a grid's variance; they add up to one."""

    positive: float
    negative: float
    rest: float


def shares(grid: Floats) -> Shares:
    """Return the shares of the variance of a (positive, negative) grid; NaN if the grid is constant.

    >>> shares(np.array([[0.0, 3.0], [1.0, 4.0]]))
    Shares(positive=0.1, negative=0.9, rest=0.0)
    """
    total = float(grid.var())
    if total == 0:
        return Shares(np.nan, np.nan, np.nan)
    positive, negative = (float(grid.mean(axis=axis).var()) / total for axis in (1, 0))
    return Shares(positive, negative, max(0.0, 1 - positive - negative))


def mean_step(grid: Floats, axis: int) -> float:
    """Return the mean absolute change of the margin's mean from one of its values to the next; axis 0 is positive.

    Unlike a share it does not grow with the number of values, so margins with grids of different lengths can be
    compared where the steps are equally wide.

    >>> mean_step(np.array([[0.0, 3.0], [1.0, 4.0]]), axis=1)
    3.0
    """
    return float(np.abs(np.diff(grid.mean(axis=1 - axis))).mean())


def permutation_p(grid: Floats, axis: int) -> float:
    """Return the exact p value of one margin's effect: its values are permuted within every value of the other margin.

    It is the share of all permutations whose variance of the margin's means is at least the observed one.

    >>> permutation_p(np.array([[0.0, 3.0], [1.0, 4.0]]), axis=1)
    0.5
    """
    blocks = grid if axis == 1 else grid.T  # (values of the other margin, values of this one)
    orders = [list(order) for order in permutations(range(blocks.shape[1]))]
    sums = np.zeros((1, blocks.shape[1]))  # of every combination of orders so far
    for block in blocks:
        sums = (sums[:, None, :] + np.stack([block[order] for order in orders])).reshape(-1, blocks.shape[1])
    found = sums.var(axis=1)
    observed = blocks.sum(axis=0).var()
    return float((found >= observed * (1 - 1e-9)).mean())


def noise_share(by_seed: Floats) -> float:
    """Return the share of the variance of the mean grid that is noise between seeds; NaN with one seed.

    Args:
        by_seed: (seeds, positive, negative). What shifts the whole grid of a seed alike is not part of the noise.
    """
    seeds, cells = len(by_seed), by_seed[0].size
    if seeds < 2:
        return float("nan")
    centred = by_seed - by_seed.mean(axis=(1, 2), keepdims=True)
    squares = np.square(centred - centred.mean(axis=0)).sum()
    noise = squares / ((seeds - 1) * (cells - 1)) / seeds  # variance of one cell of the mean grid
    total = by_seed.mean(axis=0).var(ddof=1)
    return float(noise / total)


def sign_flip_p(differences: Floats) -> float:
    """Return the two-sided exact p value of a mean difference whose signs are arbitrary if nothing differs.

    >>> sign_flip_p(np.array([1.0, 2.0, 3.0]))
    0.25
    """
    signs = np.array(list(product((-1.0, 1.0), repeat=len(differences))))
    means = np.abs(signs @ differences)
    return float((means >= abs(differences.sum()) * (1 - 1e-9)).mean())


def bootstrap_mean(values: Floats, draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Return the 95% percentile interval of a mean whose values are resampled."""
    chosen = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def as_grid(cells: dict[tuple[float, float], float]) -> Floats:
    """Return the values by (positive, negative) margin as a grid; every pair of margins must be there.

    >>> as_grid({(0.9, 0.5): 4.0, (0.6, 0.3): 1.0, (0.6, 0.5): 2.0, (0.9, 0.3): 3.0}).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    margins: list[Any] = [sorted({pair[side] for pair in cells}) for side in (0, 1)]
    return np.array([[cells[one, other] for other in margins[1]] for one in margins[0]])
