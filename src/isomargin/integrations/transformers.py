"""``compute_metrics`` for the Trainer of transformers: the scores of the embeddings that a model returns."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.measure.evaluate import evaluate
from isomargin.measure.settings import Settings

__all__ = ["make_compute_metrics"]


def make_compute_metrics(
    output: int = 0, threads: int | None = None, **settings: Any
) -> Callable[[Any], dict[str, float]]:
    """Return a function that is given to ``Trainer(compute_metrics=...)``; it returns ``Evaluation.scalars()``.

    The model returns embeddings, and the data set's labels are the classes. The Trainer puts ``eval_`` before the
    names, so that ``metric_for_best_model="eval_opis"`` needs ``greater_is_better=False``.

    Args:
        output: which of the model's outputs, without the loss, holds the embeddings (n, d).
        threads: number of CPU threads; by default one per core.
        settings: settings of `isomargin.evaluate`, such as ``far``.

    >>> from types import SimpleNamespace
    >>> rows = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> scores = make_compute_metrics()(SimpleNamespace(predictions=rows, label_ids=np.arange(60) % 6))
    >>> round(scores["opis"], 4), scores["items"]
    (0.0234, 60.0)
    """
    Settings.from_values(**settings)

    def compute_metrics(prediction: Any) -> dict[str, float]:
        predictions = prediction.predictions
        if isinstance(predictions, Mapping):
            predictions = tuple(predictions.values())
        if isinstance(predictions, tuple | list):
            if not -len(predictions) <= output < len(predictions):
                raise InputError(
                    f"output is {output}, but the model returns {len(predictions)} outputs beside the loss: give the "
                    "number of the one that holds the embeddings, from 0 on"
                )
            predictions = predictions[output]
        labels = prediction.label_ids
        if isinstance(labels, tuple | list):
            raise InputError(f"the data set has {len(labels)} columns of labels: one is needed, the class of each item")
        embeddings = np.asarray(predictions)
        return evaluate(embeddings, labels, threads=threads, progress=None, **settings).scalars()

    return compute_metrics
