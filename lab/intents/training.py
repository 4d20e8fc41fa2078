"""One training run with SentenceTransformerTrainer, and the settings that are tried.

Twelve settings of plain training come first: learning rate, number of epochs and temperature. From the best of them
start six settings of TCM, six of class alignment, and up to six more of plain training. One rule chooses for all: of
the settings whose recall@1 on held-out training intents is at most half a point below the best of the twelve, the one
with the lowest OPIS.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.losses.class_alignment import ClassAlignmentLoss
from isomargin.losses.composition import share
from isomargin.losses.smooth_ap import SmoothAPLoss
from isomargin.losses.tcm import TCMLoss
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from lab.intents.texts import Texts

BATCH = 200
TOLERANCE = 0.005 + 1e-12  # of recall@1
RATES, EPOCHS = (3e-3, 1e-2, 3e-2), (3, 6)


@dataclass(frozen=True)
class Settings:
    """The settings of one run. ``first`` and ``second`` are margins, or the temperature of the alignment."""

    method: str = "plain"
    rate: float = RATES[0]
    epochs: int = EPOCHS[0]
    temperature: float = 0.01
    share: float = 0.0
    first: float = 0.0
    second: float = 0.0

    @property
    def stem(self) -> str:
        """The name of a run's file."""
        numbers = (self.rate, self.epochs, self.temperature, self.share, self.first, self.second)
        return "-".join([self.method, *(f"{number:g}" for number in numbers)])

    def loss(self) -> Any:
        """Return the loss."""
        base = SmoothAPLoss(temperature=self.temperature)
        if self.method == "TCM":
            return base + share(TCMLoss(self.first, self.second), self.share)
        if self.method == "alignment":
            return base + share(ClassAlignmentLoss(temperature=self.first), self.share)
        return base


RATES_AND_EPOCHS = tuple(Settings(rate=rate, epochs=epochs) for rate in RATES for epochs in EPOCHS)
"""What is tried first."""


def temperatures(best: Settings) -> list[Settings]:
    """Return what is tried next: other temperatures of Smooth-AP, at two learning rates."""
    return [
        replace(best, temperature=temperature, rate=rate)
        for temperature in (0.005, 0.02, 0.05)
        for rate in (best.rate, best.rate / 2)
    ]


MORE: Mapping[str, Callable[[Settings], list[Settings]]] = {
    "plain": lambda best: [
        replace(best, temperature=factor * best.temperature, rate=rate, epochs=epochs)
        for factor, rate, epochs in (
            (1, best.rate, best.epochs + 3),
            (1, best.rate / 2, best.epochs),
            (1, best.rate / 2, best.epochs + 3),
            (2, best.rate, best.epochs),
            (2, best.rate / 2, best.epochs),
            (2, best.rate, best.epochs + 3),
        )
    ],
    "TCM": lambda best: [
        replace(best, method="TCM", first=positive, second=negative, share=part)
        for positive, negative in ((0.9, 0.5), (0.7, 0.4), (0.6, 0.2))
        for part in (0.3, 1.0)
    ],
    "alignment": lambda best: [
        replace(best, method="alignment", first=temperature, share=part)
        for temperature in (0.1, 0.3)
        for part in (0.1, 0.3, 1.0)
    ],
}
"""By method: further settings, given the best of the first twelve."""


def train(model: Any, texts: Texts, settings: Settings, seed: int) -> None:
    """Fine-tune a model; the seed decides the batches."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.base.sampler import BatchSamplers

    from isomargin.integrations.sentence_transformers import EmbeddingLoss

    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=settings.epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=settings.rate,
            batch_sampler=BatchSamplers.GROUP_BY_LABEL,
            seed=seed,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"text": texts.texts, "label": texts.classes.tolist()})
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=data, loss=EmbeddingLoss(model, settings.loss())
        ).train()


def embed(model: Any, texts: Texts) -> NDArray[np.float32]:
    """(n, d) embeddings in float32."""
    return np.asarray(model.encode(texts.texts, batch_size=256, show_progress_bar=False), np.float32)


def measure(vectors: Any, texts: Texts, equalizer: Any = None) -> Evaluation:
    """Evaluate embeddings."""
    return evaluate(vectors, texts.classes, k=(1,), map_at_r=False, threads=1, progress=None, equalizer=equalizer)


def choose(found: Mapping[Any, Evaluation], best_recall: float) -> Any:
    """Return the settings with the lowest OPIS among those that keep recall@1.

    If none does, those with the highest recall@1.
    """
    fit = [key for key, evaluation in found.items() if evaluation.recall_at_k[1] >= best_recall - TOLERANCE]
    if not fit:
        return max(found, key=lambda key: found[key].recall_at_k[1])
    return min(fit, key=lambda key: found[key].opis)
