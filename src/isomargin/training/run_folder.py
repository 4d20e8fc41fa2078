"""The names of the files in a run's folder, and the table of its evaluations.

runs/NAME/ recipe.yaml  metrics.csv  checkpoints/  tensorboard/  embeddings.npz  evaluation.json  report.html

Commands that only measure or draw import this module, so it needs neither torch nor a recipe; `run.py` opens the model.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomargin.core.files import atomic_write


@dataclass(frozen=True)
class RunFolder:
    """The files of a run.

    >>> RunFolder(Path("runs/birds")).metrics
    PosixPath('runs/birds/metrics.csv')
    """

    path: Path

    @property
    def recipe(self) -> Path:
        """All settings, including defaults."""
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        """One row per evaluation."""
        return self.path / "metrics.csv"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The model that was chosen so far."""
        return self.checkpoints / "model.ckpt"

    @property
    def tensorboard(self) -> Path:
        """The folder that TensorBoard reads."""
        return self.path / "tensorboard"

    @property
    def embeddings(self) -> Path:
        """The embeddings of the test items, by the chosen model."""
        return self.path / "embeddings.npz"

    @property
    def evaluation(self) -> Path:
        """The evaluation of these embeddings. It is written last, so a run that has it is finished."""
        return self.path / "evaluation.json"

    def evaluation_of(self, pairs: str) -> Path:
        """The evaluation by other pairs, where a recipe asks for two kinds.

        >>> RunFolder(Path("runs/birds")).evaluation_of("sampled").name
        'sampled-evaluation.json'
        """
        return self.path / f"{pairs}-evaluation.json"

    @property
    def stopped(self) -> Path:
        """Why a training in several processes stopped: the sentence of the process that noticed first."""
        return self.path / "stopped.txt"

    @property
    def raw_evaluation(self) -> Path:
        """The evaluation of the vectors that a head was trained on, as they are, on the same classes."""
        return self.path / "raw-evaluation.json"

    @property
    def equalizer(self) -> Path:
        """An equalizer of these embeddings, if one was fitted."""
        return self.path / "equalizer.json"

    @property
    def not_evaluated(self) -> Path:
        """In place of embeddings and evaluation where all classes were trained on: a sentence that says so."""
        return self.path / "not-evaluated.txt"

    @property
    def report(self) -> Path:
        """The HTML report, if one was requested."""
        return self.path / "report.html"

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return self.evaluation.is_file() or self.not_evaluated.is_file()


def write_metrics(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as a CSV table, atomically; without rows nothing is written."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
