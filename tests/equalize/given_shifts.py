"""Similarities with shifts of any size, as an equalizer gives them and by their definition."""

from dataclasses import dataclass

import numpy as np

from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import Shifts


@dataclass(frozen=True)
class Given:
    """An equalizer with shifts of any size."""

    values: np.ndarray

    def shifts(self, embeddings, ids=None, new_classes=None):
        largest = 1 + 2 * float(np.abs(self.values).max())
        return Shifts(self.values, ScoreAxis.equalized(-largest, largest))

    def record(self, new_classes=False):
        return {
            **{"method": "local", "neighbours": 1, "skip": 0, "weight": 1.0, "offset": 0.0},
            **{"own_class": "left_out" if new_classes else "in_reference", "digest": "0" * 64},
        }


def similarities(rows, values):
    """(n, n) cosines plus the shifts of both rows, exactly symmetric."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    matrix = unit @ unit.T + (values[:, None] + values)
    return np.triu(matrix) + np.triu(matrix, 1).T


def signed_distances(rows, values):
    """(n, n) distances: the root of 2 - 2s with its sign."""
    squared = 2 - 2 * similarities(rows, values)
    return np.where(squared < 0, -1.0, 1.0) * np.sqrt(np.abs(squared))
