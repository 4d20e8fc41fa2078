"""Threshold consistency in sentence-transformers: an evaluator for its trainer, and the losses in its convention.

A data set has one column of texts and a column ``label`` of class numbers; `BatchSamplers.GROUP_BY_LABEL` makes batches
with positive pairs.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isomargin.integrations._packages import prepare

prepare("sentence_transformers")

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.evaluation import BaseEvaluator
from torch import Tensor

from isomargin.core.errors import InputError
from isomargin.core.labels import labels_of_rows
from isomargin.losses import MetricLoss, WeightedSum
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores.registry import find_score
from isomargin.measure.settings import Settings

__all__ = ["EmbeddingLoss", "ThresholdConsistencyEvaluator"]


class ThresholdConsistencyEvaluator(BaseEvaluator):
    """Evaluates how consistently one threshold works for all classes of labelled texts.

    A call embeds the texts and returns every score of `Evaluation.scalars`, with the name in front. They go into the
    model's card and, if there is a folder, into ``threshold_consistency_evaluation_NAME_results.csv``.

    Args:
        texts: n texts.
        labels: n labels, integers or text.
        name: what the texts are, such as ``"unseen-intents"``.
        primary_metric: the score by which the trainer chooses the best checkpoint; `greater_is_better` follows from it.
        batch_size, show_progress_bar, truncate_dim: as ``model.encode`` takes them.
        write_csv: whether to write the scores to a file.
        threads: number of CPU threads that compare pairs; by default one per core.
        settings: settings of `isomargin.evaluate`, such as ``far``.
    """

    evaluation: Evaluation
    """The result of the last call."""

    def __init__(
        self,
        texts: Sequence[str],
        labels: Any,
        name: str = "",
        primary_metric: str = "opis",
        batch_size: int = 32,
        show_progress_bar: bool = False,
        write_csv: bool = True,
        truncate_dim: int | None = None,
        threads: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        Settings.from_values(**settings)
        self.texts, self.name, self.settings, self.threads = list(texts), name, settings, threads
        self.labels = labels_of_rows(labels, len(self.texts))
        self.encoding = {"batch_size": batch_size, "show_progress_bar": show_progress_bar, "truncate_dim": truncate_dim}
        self.write_csv = write_csv
        self.csv_file = f"threshold_consistency_evaluation{'_' + name if name else ''}_results.csv"
        self.greater_is_better = not find_score(primary_metric).lower_is_better
        self.primary_metric = primary_metric

    def __call__(
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the scores by name; -1 for epoch and steps means after training."""
        embeddings = model.encode(self.texts, convert_to_numpy=True, **self.encoding)
        self.evaluation = evaluate(embeddings, self.labels, threads=self.threads, progress=None, **self.settings)
        scalars = self.evaluation.scalars()
        if output_path is not None and self.write_csv:
            self._append_to_csv(Path(output_path) / self.csv_file, {"epoch": epoch, "steps": steps, **scalars})
        metrics: dict[str, float] = self.prefix_name_to_metrics(scalars, self.name)
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    @staticmethod
    def _append_to_csv(path: Path, row: dict[str, float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row))
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, for the model's card."""
        size = self.encoding["truncate_dim"]
        return {**self.settings, **({} if size is None else {"truncate_dim": size})}


class EmbeddingLoss(torch.nn.Module):
    """A loss of this package, or a sum of losses, called as sentence-transformers calls its own.

    Parts of a sum may be losses of sentence-transformers that take one column of texts with labels, such as
    ``BatchHardTripletLoss``: ``EmbeddingLoss(model, BatchHardTripletLoss(model) + share(ClassAlignmentLoss(), 0.3))``.
    Texts are embedded once for all parts.

    Args:
        model: the model to train.
        loss: a loss of embeddings and labels, such as ``SmoothAPLoss() + TCMLoss(0.9, 0.5)``.
    """

    def __init__(self, model: SentenceTransformer, loss: MetricLoss) -> None:
        super().__init__()
        self.model = model
        if isinstance(loss, WeightedSum):
            parts = [_of_embeddings(part) for part in loss.parts]
            loss = WeightedSum(parts, loss.weights, loss.check_finite, loss.shares)
        self.loss = loss

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the loss of a batch: one column of texts, with the class of each as label."""
        columns = list(sentence_features)
        if len(columns) != 1 or labels is None:
            came = f"{len(columns)} columns of texts {'without' if labels is None else 'with'} labels"
            raise InputError(f"the data set has {came}: one column of texts and a column 'label' of classes are needed")
        return self.loss(self.model(columns[0])["sentence_embedding"], labels.view(-1))  # type: ignore[no-any-return]

    def get_config_dict(self) -> dict[str, Any]:
        """Return the losses, for the model's card."""
        return {"loss": repr(self.loss)}


class _OfEmbeddings(torch.nn.Module):
    """A loss of sentence-transformers as a function of embeddings and labels."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.name, self.compute = type(loss).__name__, loss.compute_loss_from_embeddings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.compute([embeddings], labels)  # type: ignore[no-any-return]


def _of_embeddings(part: torch.nn.Module) -> torch.nn.Module:
    return _OfEmbeddings(part) if hasattr(part, "compute_loss_from_embeddings") else part
