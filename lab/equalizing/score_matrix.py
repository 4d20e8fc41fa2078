"""Evaluate any matrix of scores as if it were similarities, for methods that are not a product of vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.axis import ScoreAxis
from isomargin.measure.pairs.inputs import ClassSortedVectors, Rows, sort_by_class
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import measure_item_noise


@dataclass(frozen=True)
class ScoreMatrix(ClassSortedVectors):
    """Items sorted by class whose similarities are given."""

    scores: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))
    """(n, n) the similarities, in the order of the sorted rows."""

    def similarity(self, rows: Rows, columns: Rows, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """(rows, columns) the given scores."""
        part = self.scores[rows][:, columns]
        if out is None:
            return part
        out[...] = part
        return out

    def exact_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(rows, n) the given scores in float64."""
        return self.scores[rows].astype(np.float64)

    @property
    def span(self) -> tuple[float, float]:
        """The bounds of the axis."""
        return self.axis.lowest, self.axis.highest


def evaluate_scores(
    vectors: NDArray[np.float32], labels: NDArray[Any], scores: NDArray[np.float32], threads: int | None = None
) -> Evaluation:
    """Evaluate an (n, n) matrix of scores, symmetric, on whatever scale."""
    plain = sort_by_class(vectors, labels)
    order = np.argsort(np.unique(labels, return_inverse=True)[1], kind="stable")
    ordered = np.ascontiguousarray(scores[order][:, order], np.float32)
    axis = ScoreAxis.equalized(float(ordered.min()) - 0.01, float(ordered.max()) + 0.01)
    data = ScoreMatrix(plain.vectors, plain.class_of, plain.sizes, plain.names, (), axis=axis, scores=ordered)
    settings = Settings()
    counts, ranks = count_pairs(data, k=settings.k, threads=threads)
    noise = measure_item_noise(data, counts.negatives, threads)
    return Evaluation(
        settings, data.names, data.sizes, counts, ranks, summarize(counts, settings), "binned", noise, (), {}
    )
