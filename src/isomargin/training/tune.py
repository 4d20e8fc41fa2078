"""The paper's search for the margins: train with each pair of a grid, compare on held-out training classes, pick one.

    folder/ baseline/  0.9-0.5/  0.9-0.4/  …  tune.csv  tuned.yaml

Every pair is a separate run, so that a search that was stopped continues where it was. The test classes are not used:
`tuned.yaml`, the recipe with the picked margins, is for training and testing afterwards.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import DivergedError, InputError
from isomargin.losses.registry import make_loss
from isomargin.measure.evaluation import Evaluation
from isomargin.training import loop, setup
from isomargin.training.checkpoint import find_checkpoints
from isomargin.training.locking import claim, sole_training
from isomargin.training.recipe import Recipe
from isomargin.training.run_folder import RunFolder, write_metrics
from isomargin.training.tuned import Tuned, TunedRun, has_scores, recall_floor

BASELINE = "baseline"


@dataclass(frozen=True)
class _Point:
    """A point of the grid; without a regularizer it is the baseline."""

    name: str
    regularizer: dict[str, Any] | None


def tune(
    recipe: Recipe,
    folder: Path,
    positive_margins: Sequence[float],
    negative_margins: Sequence[float],
    weights: Sequence[float] | None = None,
    held_out: float = 0.1,
    tolerance: float = 0.01,
    baseline: bool = True,
    train: Callable[..., object] = loop.train,
    report: Callable[[str], None] | None = None,
    lock: bool = True,
    **options: Any,
) -> Tuned:
    """Train with every pair of margins, pick one on held-out training classes, and write the recipe with it.

    Parameters
    ----------
    recipe: with TCM, whose other settings are kept, or without a regularizer.
    folder: of the search; runs that are finished there are not trained again.
    positive_margins, negative_margins: the grid; pairs with m⁺ < m⁻ are left out.
    weights: of TCM, to search too; that of the recipe, or 1, if not given.
    held_out: share of the training classes that the runs are compared on.
    tolerance: how much recall@1 may be lost for a lower OPIS; see `pick`.
    baseline: whether to train without TCM too, for comparison.
    train: trains one run; called like `loop.train`.
    report: called with one sentence at a time on the progress.
    lock: whether to refuse a folder that another process searches in; False where the caller holds its lock.
    options: passed to `train`; images are checked for the first run only.
    """
    report = report or (lambda sentence: None)
    checks.at_least_zero(tolerance, "tolerance")
    _refuse_run(folder)
    if recipe.all_classes:
        raise InputError("all_classes is true, and margins are searched on held-out classes: set it to false")
    points, notes = _grid(recipe, positive_margins, negative_margins, weights)
    searched, lowered = _for_search(recipe, checks.share(held_out, "held_out"))
    notes += lowered
    for note in notes:
        report(f"note: {note}")
    if baseline:
        points.insert(0, _Point(BASELINE, None))
    with sole_training(folder) if lock else nullcontext():
        rows = _train_points(points, searched, folder, train, report, options)
    chosen = pick(rows, tolerance)
    rows = [replace(row, picked=row is chosen) for row in rows]
    regularizer = next(point.regularizer for point in points if point.name == chosen.name)
    tuned = Tuned(tuple(rows), _with_regularizer(recipe, regularizer), (*notes, *_comparison(rows)))
    write_metrics(folder / "tune.csv", [asdict(row) for row in rows])
    tuned.recipe.save(folder / "tuned.yaml")
    return tuned


def pick(rows: Sequence[TunedRun], tolerance: float = 0.01) -> TunedRun:
    """Pick the run with the lowest OPIS among those that lose at most `tolerance` of the best recall@1.

    Of runs with equal OPIS the one with the larger recall@1 is picked, then the first. The baseline and runs without
    scores are ignored.

    >>> rows = [
    ...     TunedRun("0.9-0.5", 0.9, 0.5, 1.0, recall_at_1=0.80, opis=3e-3, epsilon_opis=0.1, map_at_r=0.4),
    ...     TunedRun("0.9-0.3", 0.9, 0.3, 1.0, recall_at_1=0.79, opis=2e-3, epsilon_opis=0.1, map_at_r=0.4),
    ...     TunedRun("0.9-0.1", 0.9, 0.1, 1.0, recall_at_1=0.70, opis=1e-3, epsilon_opis=0.1, map_at_r=0.3),
    ... ]
    >>> pick(rows, tolerance=0.01).name, pick(rows, tolerance=0.0).name
    ('0.9-0.3', '0.9-0.5')
    """
    floor = recall_floor(rows, tolerance)
    eligible = [row for row in rows if has_scores(row) and row.recall_at_1 >= floor]
    if not eligible:
        raise InputError("no run of the grid has scores: there is nothing to pick from")
    return min(eligible, key=lambda row: (row.opis, -row.recall_at_1))


# The grid


def run_name(positive_margin: float, negative_margin: float, weight: float | None = None) -> str:
    """Return the name of a run's folder.

    >>> run_name(0.9, 0.5), run_name(0.9, 0.5, 5)
    ('0.9-0.5', '0.9-0.5-w5')
    """
    margins = f"{positive_margin:.12g}-{negative_margin:.12g}"
    return margins if weight is None else f"{margins}-w{weight:.12g}"


def _grid(
    recipe: Recipe,
    positive_margins: Sequence[float],
    negative_margins: Sequence[float],
    weights: Sequence[float] | None,
) -> tuple[list[_Point], list[str]]:
    """Return the points of the grid, and notes on pairs that are left out."""
    settings = _own_settings(recipe)
    # A value that is given twice is trained once.
    positives = list(dict.fromkeys(checks.cosine(margin, "positive_margin") for margin in positive_margins))
    negatives = list(dict.fromkeys(checks.cosine(margin, "negative_margin") for margin in negative_margins))
    if weights is not None and len(weights) == 0:
        raise InputError("weights is empty: give at least one, or leave it out to keep the recipe's")
    given = [settings.get("weight", 1)] if weights is None else weights
    used = dict.fromkeys(checks.above_zero(weight, "weight") for weight in given)
    pairs = [(positive, negative) for positive, negative in product(positives, negatives) if positive >= negative]
    if not pairs:
        raise InputError(
            f"positive_margins {_listed(positives)} and negative_margins {_listed(negatives)} make no pair: a positive "
            "margin that is not below a negative one is needed"
        )
    points = []
    for weight, (positive, negative) in product(used, pairs):
        regularizer = {**settings, "weight": weight, "positive_margin": positive, "negative_margin": negative}
        make_loss(regularizer)  # refuse a bad setting before anything is trained
        points.append(_Point(run_name(positive, negative, None if weights is None else weight), regularizer))
    left_out = len(positives) * len(negatives) - len(pairs)
    are = "1 pair is" if left_out == 1 else f"{left_out} pairs are"
    notes = [f"{are} left out, with a positive margin below the negative one"] if left_out else []
    return points, notes


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values) or "(none)"


def _own_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of TCM in the recipe, if it has it; refuse other regularizers."""
    regularizer = recipe.loss.regularizer
    if isinstance(regularizer, list):
        raise InputError(
            f"the recipe has a list of {len(regularizer)} regularizers: margins are searched for TCM only, so "
            "loss.regularizer must be tcm or none"
        )
    settings = {"name": regularizer} if isinstance(regularizer, str) else dict(regularizer or {"name": "tcm"})
    if str(settings.get("name")).lower().removesuffix("loss") != "tcm":
        raise InputError(
            f"the recipe's regularizer is {settings.get('name')!r}: margins are searched for TCM, so loss.regularizer "
            "must be tcm or none"
        )
    return {**settings, "name": "tcm"}


def _with_regularizer(recipe: Recipe, regularizer: dict[str, Any] | None) -> Recipe:
    return recipe.model_copy(update={"loss": recipe.loss.model_copy(update={"regularizer": regularizer})})


def _for_search(recipe: Recipe, held_out: float) -> tuple[Recipe, list[str]]:
    """Hold classes out, leave the test classes unused, and reduce the batches to the classes left, with a note."""
    evaluation = recipe.evaluation.model_copy(update={"held_out": held_out, "test": False})
    recipe = recipe.model_copy(update={"evaluation": evaluation})
    counts = np.unique(setup.open_data(recipe, check=False).train.labels, return_counts=True)[1]
    least = recipe.batch.images_per_class if recipe.batch.small_classes == "drop" else 1
    classes = int((counts >= least).sum())
    if not 0 < classes < recipe.batch.classes:  # without any, training raises the error
        return recipe, []
    note = (
        f"batch.classes is {recipe.batch.classes}, and {classes} classes are left to train on: the search trains with "
        "batches of that many"
    )
    return recipe.model_copy(update={"batch": recipe.batch.model_copy(update={"classes": classes})}), [note]


# The runs


def _refuse_run(folder: Path) -> None:
    """Refuse the folder of a run."""
    if RunFolder(folder).recipe.exists():
        raise InputError(f"{folder} is the folder of a run: choose another for the search")


def _train_points(
    points: Sequence[_Point],
    recipe: Recipe,
    folder: Path,
    train: Callable[..., object],
    report: Callable[[str], None],
    options: dict[str, Any],
) -> list[TunedRun]:
    """Train the points of the grid, one after another, and return their scores."""
    rows = []
    options = {"check_images": True, "compare_frozen": False, **options}
    if recipe.augmentation.views is not None:
        options = {"cache": folder / "frozen-stages", **options}
    for number, point in enumerate(points):
        report(f"run {number + 1} of {len(points)}: {point.name}")
        trained = _with_regularizer(recipe, point.regularizer)
        trained = trained.model_copy(update={"name": f"{recipe.name} {point.name}"})
        try:
            _run(trained, folder / point.name, train, options)
            rows.append(_scores(point, Evaluation.load(RunFolder(folder / point.name).evaluation)))
        except DivergedError as error:
            report(f"note: {point.name} has no scores, {error}")
            rows.append(_scores(point, None))
        options = {**options, "check_images": False}  # the images are the same for all runs
    return rows


def _run(recipe: Recipe, path: Path, train: Callable[..., object], options: dict[str, Any]) -> None:
    """Train one run, or the rest of it."""
    run = RunFolder(path)
    resume = False
    if run.recipe.is_file():
        claim(run, recipe, resume=True)  # a finished run of another recipe is not a result of this search
        if run.finished:
            return
        resume = bool(find_checkpoints(run.checkpoints))
        if not resume:
            shutil.rmtree(path)  # it was stopped before its first checkpoint
    train(recipe, path, resume=resume, **options)


def _scores(point: _Point, evaluation: Evaluation | None) -> TunedRun:
    """Return the scores of a run; NaN for one that diverged."""
    settings = point.regularizer or {}
    return TunedRun(
        point.name,
        settings.get("positive_margin"),
        settings.get("negative_margin"),
        settings.get("weight"),
        math.nan if evaluation is None else evaluation.recall_at_k[1],
        math.nan if evaluation is None else evaluation.opis,
        math.nan if evaluation is None else evaluation.epsilon_opis,
        math.nan if evaluation is None else evaluation.map_at_r,
    )


def _comparison(rows: Sequence[TunedRun]) -> list[str]:
    """Return a note if the picked run is not better than the baseline."""
    picked = next(row for row in rows if row.picked)
    return [
        f"TCM did not lower OPIS on the held-out classes: it is {picked.opis:.3e} with the picked margins and "
        f"{row.opis:.3e} without TCM"
        for row in rows
        if row.is_baseline and picked.opis >= row.opis
    ]
