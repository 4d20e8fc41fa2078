"""Count the false accepts of classes that are not in the index, while all other classes are.

An item of such a class is shifted by one amount when it is compared, the items of the index by another, so the scores
of a pair are not symmetric and the pass over the upper triangle does not apply.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.kernels import FAST

Singles = NDArray[np.float32]


def accepted_outside(
    cosines: Singles, class_of: NDArray[np.int64], outside: Floats, inside: Floats, distances: Floats
) -> NDArray[np.int64]:
    """(classes, distances) negative pairs of each class within each distance, if the class is not in the index.

    Args:
        cosines: (n, n) cosines of all rows.
        class_of: (n,) class of each row, ascending from 0.
        outside: (n,) shift of each row if its own class is not in the index.
        inside: (n,) shift of each row as an item of the index.
        distances: evenly spaced equalized distances, ascending; or one.

    >>> cosines = np.array([[1, 0.5, 0.0], [0.5, 1, 0.5], [0.0, 0.5, 1]], np.float32)
    >>> accepted_outside(cosines, np.arange(3), np.array([0.5, 0.0, 0.0]), np.zeros(3), np.array([0.0, 1.0]))
    array([[1, 2],
           [0, 2],
           [0, 1]])
    """
    step = distances[1] - distances[0] if len(distances) > 1 else 1.0
    counts = np.zeros((int(class_of[-1]) + 1, len(distances)), np.int64)
    count_outside(cosines, class_of, outside.astype(np.float32), inside.astype(np.float32), distances[0], step, counts)
    return np.asarray(np.cumsum(counts, axis=1))


@njit(nogil=True, fastmath=FAST, cache=True)
def count_outside(
    cosines: Singles,
    class_of: NDArray[np.int64],
    outside: Singles,
    inside: Singles,
    first: float,
    step: float,
    counts: NDArray[np.int64],
) -> None:
    """Count each negative pair at the first distance that accepts it, for the class of its row."""
    for row in range(cosines.shape[0]):
        row_class: Any = class_of[row]
        for column in range(cosines.shape[1]):
            if class_of[column] == row_class:
                continue
            squared = np.float32(2) - np.float32(2) * (cosines[row, column] + outside[row] + inside[column])
            distance = np.copysign(np.sqrt(np.abs(squared)), squared)
            place = max(np.ceil((distance - first) / step), 0.0)
            if place < counts.shape[1]:
                counts[row_class, int(place)] += 1
