"""A run is a folder; here are the names of what is in it, and how its model is opened again.

runs/NAME/ recipe.yaml  metrics.csv  checkpoints/  tensorboard/  embeddings.npz  evaluation.json  report.html
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.measure.evaluation import Evaluation
from isomargin.models.embedder import Embedder, make_model
from isomargin.training.checkpoint import read_checkpoint
from isomargin.training.recipe import Recipe, load_recipe


@dataclass(frozen=True)
class RunFolder:
    """The files of a run.

    >>> RunFolder(Path("runs/birds")).metrics
    PosixPath('runs/birds/metrics.csv')
    """

    path: Path

    @property
    def recipe(self) -> Path:
        """All settings, defaults too."""
        return self.path / "recipe.yaml"

    @property
    def metrics(self) -> Path:
        """A row an evaluation."""
        return self.path / "metrics.csv"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints to go on from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The model that was chosen, so far."""
        return self.checkpoints / "model.ckpt"

    @property
    def tensorboard(self) -> Path:
        """The folder that TensorBoard reads."""
        return self.path / "tensorboard"

    @property
    def embeddings(self) -> Path:
        """Of the test images, by the chosen model."""
        return self.path / "embeddings.npz"

    @property
    def evaluation(self) -> Path:
        """Of these embeddings; it is written last, so that a run that has it is finished."""
        return self.path / "evaluation.json"

    @property
    def report(self) -> Path:
        """The page to look at, where one was asked for."""
        return self.path / "report.html"

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.evaluation.is_file()


def open_run(folder: str | os.PathLike[str]) -> tuple[Recipe, Embedder]:
    """Read a run's recipe and the model that it chose, in eval mode.

    >>> open_run("no/such/run")
    Traceback (most recent call last):
    isomargin.InputError: no/such/run is no run: a folder with a recipe.yaml is needed
    """
    run = RunFolder(Path(folder))
    if not run.recipe.is_file():
        raise InputError(f"{folder} is no run: a folder with a recipe.yaml is needed")
    recipe = load_recipe(run.recipe)
    if not run.model.is_file():
        raise InputError(f"{folder} has no model yet: let it train on, with `isomargin train {folder} --resume`")
    model = make_model(recipe.model, load_weights=False)
    model.load_state_dict(read_checkpoint(run.model)["model"])
    return recipe, model.eval()


def open_evaluation(folder: Path) -> Evaluation:
    """Read the evaluation of a finished run."""
    return Evaluation.load(RunFolder(folder).evaluation)


def write_metrics(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a table of rows by their names, whole or not at all; without rows nothing is written."""
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
