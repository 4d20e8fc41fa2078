"""Read the inputs of figures other than evaluations and embeddings: trained models, metrics and searches of margins."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomargin.core.errors import InputError
from isomargin.core.files import check_file, reading
from isomargin.figures._evaluations import check_alike
from isomargin.figures.error_against_opis import TrainedModel

if TYPE_CHECKING:
    import pandas

    from isomargin.training.recipe import Recipe
    from isomargin.training.tuned import TunedRun


def read_models(runs: Mapping[str, Path]) -> list[TrainedModel]:
    """Read how each model was trained and how it scores, from the folders of finished runs."""
    from isomargin.measure.evaluation import Evaluation
    from isomargin.training.recipe import load_recipe
    from isomargin.training.run_folder import RunFolder

    evaluations, recipes = {}, {}
    for name, path in runs.items():
        run = RunFolder(path)
        if not (run.recipe.is_file() and run.evaluation.is_file()):
            raise InputError(
                f"{path} is not the folder of a finished run, and this figure needs the recipe and the scores: give a "
                "folder with recipe.yaml and evaluation.json"
            )
        evaluations[name], recipes[name] = Evaluation.load(run.evaluation), load_recipe(run.recipe)
        if 1 not in evaluations[name].recall_at_k:
            raise InputError(f"{path} was evaluated without recall@1, which this figure shows: add 1 to its k")
    check_alike(evaluations)
    return [
        _model(name, recipes[name], evaluations[name].recall_at_k[1], evaluations[name].opis) for name in evaluations
    ]


def _model(name: str, recipe: Recipe, recall_at_1: float, opis: float) -> TrainedModel:
    """Return what the figure shows of a run."""
    base, *regularizers = [_loss_name(part) for part in recipe.loss.parts()]
    same = recipe.model_dump(mode="json", exclude={"name": True, "evaluation": True, "loss": {"regularizer"}})
    return TrainedModel(
        name=name,
        recall_at_1=recall_at_1,
        opis=opis,
        base_loss=base,
        batch=recipe.batch.classes * recipe.batch.images_per_class,
        regularizer=" + ".join(regularizers),
        twin=json.dumps(same, sort_keys=True),
    )


def _loss_name(loss: str | dict[str, Any]) -> str:
    """Return the name of a loss in the registry.

    >>> _loss_name("TCMLoss"), _loss_name({"name": "smooth_ap", "weight": 2})
    ('tcm', 'smooth_ap')
    """
    name = str(loss if isinstance(loss, str) else loss.get("name"))
    return "tcm" if name.lower().removesuffix("loss") == "tcm" else name


def read_metrics(path: Path) -> pandas.DataFrame:
    """Read metrics.csv, given itself or the folder of its run."""
    import pandas

    from isomargin.training.run_folder import RunFolder

    table = RunFolder(path).metrics if path.is_dir() else path
    if table.suffix != ".csv" or not table.is_file():
        raise InputError(f"{path} has no metrics: give the folder of a run, which has a metrics.csv, or such a file")
    check_file(table)
    with reading(table):
        return pandas.read_csv(table)


def read_search(path: Path) -> list[TunedRun]:
    """Read the runs of a search from its tune.csv, given itself or its folder."""
    table = path / "tune.csv" if path.is_dir() else path
    if table.suffix != ".csv" or not table.is_file():
        raise InputError(f"{path} is not a search: give the folder that `isomargin tune` wrote, with its tune.csv")
    check_file(table)
    with reading(table):
        return [_tuned_run(row) for row in csv.DictReader(io.StringIO(table.read_text(encoding="utf-8")))]


def _tuned_run(row: Mapping[str, str]) -> TunedRun:
    """Read one run of a search; the baseline has no margins, so those cells are empty."""
    from isomargin.training.tuned import TunedRun

    numbers: dict[str, float | None] = {}
    for field in fields(TunedRun):
        if field.name not in ("name", "picked"):
            cell = row[field.name]
            numbers[field.name] = float(cell) if cell else None
    scores = ("recall_at_1", "opis", "epsilon_opis", "map_at_r")
    known: dict[str, Any] = {**numbers, **{name: math.nan for name in scores if numbers[name] is None}}
    return TunedRun(name=row["name"], picked=row["picked"] == "True", **known)
