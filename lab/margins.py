"""Experiments of kind `margins`: TCM's margins searched on held-out training classes, once a seed, picked by the means.

FOLDER/SETTING/margins/CHOICES/seed-0/    a search a folder, as `isomargin tune` makes it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.core.errors import DivergedError, InputError
from isomargin.training.recipe import Recipe
from isomargin.training.run_folder import RunFolder
from isomargin.training.tune import BASELINE, pick, run_name, tune
from isomargin.training.tuned import Tuned, TunedRun, has_scores
from lab.experiment import Margins
from lab.jobs import (
    Busy,
    Report,
    Task,
    Train,
    astray_before,
    do_all,
    locked,
    tell_place,
    workers,
    write_astray,
)
from lab.plan import PlannedRun, file_name
from lab.results_folder import Outcome
from lab.seed_means import grouped
from lab.tables import Table, shown, signs

SCORES = ("recall_at_1", "opis", "epsilon_opis", "map_at_r")


@dataclass(frozen=True)
class Nothing:
    """In place of what a search has found: all its grid went astray."""


@dataclass(frozen=True)
class Found:
    """What the searches of one recipe have found."""

    setting: str
    choices: dict[str, str]
    searches: dict[int, Tuned]
    """By seed."""
    rows: tuple[TunedRun, ...]
    """The grid in the mean over seeds, the picked one marked, the baseline first."""
    recipe: Recipe
    """With the picked margins."""

    @property
    def name(self) -> str:
        """Of its files."""
        return file_name(self.setting, self.choices)

    @property
    def share(self) -> float | None:
        """By which TCM is weighed, in place of a weight; None where it has one."""
        regularizer = self.recipe.loss.regularizer
        return regularizer.get("share") if isinstance(regularizer, dict) else None

    @property
    def picked(self) -> TunedRun:
        """The point that was picked."""
        return next(row for row in self.rows if row.picked)

    @property
    def baseline(self) -> TunedRun:
        """What was trained without TCM."""
        return next(row for row in self.rows if row.is_baseline)


def search_margins(
    margins: Margins, runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> tuple[list[Found], list[str]]:
    """Search by every recipe of an experiment, or go on with it; a seed is a search of its own.

    Returns: what was found, and sentences on the recipes that nothing was found for.
    """
    tasks: list[Task[Tuned | Nothing]] = [
        Task(str(path), partial(search, run.recipe, folder / path, margins, train, workers=workers(jobs)))
        for run, path in ((run, folder_of(run)) for run in runs)
    ]
    searched = do_all(tasks, jobs, report)
    by_folder = {run.folder: tuned for run, tuned in zip(runs, searched, strict=True)}
    for run in runs:
        tuned = by_folder[run.folder]
        for note in ("all its grid went astray",) if isinstance(tuned, Nothing) else tuned.notes:
            report(f"note: {folder_of(run)}: {note}")
    found, missing = [], []
    for (setting, choices), group in grouped(runs).items():
        searches = {run.seed: by_folder[run.folder] for run in group}
        picked = find(setting, dict(choices), searches, margins.tolerance)
        if picked is None:
            name = " ".join([setting, *(choice for _, choice in choices)])
            missing.append(f"{name} is missing: no point of its grid has scores with every seed, training went astray.")
            report(f"note: {missing[-1]}")
        else:
            found.append(picked)
    return found, missing


def folder_of(run: PlannedRun) -> Path:
    """Give the folder of a search within that of all experiments."""
    return Path(run.setting) / "margins" / run.variant / f"seed-{run.seed}"


def search(
    recipe: Recipe, folder: Path, margins: Margins, train: Train, wait: bool, *, workers: int | None
) -> Tuned | Nothing | Busy:
    """Search with one seed."""
    options: dict[str, Any] = {} if workers is None else {"workers": workers}
    with locked(folder, wait) as free:
        if not free:
            return Busy()
        for begun in folder.glob("*/recipe.yaml"):
            tell_place(recipe, RunFolder(begun.parent))
        astray: set[str] = set()
        try:
            return tune(
                recipe,
                folder,
                margins.positive,
                margins.negative,
                margins.weights,
                held_out=margins.held_out,
                tolerance=margins.tolerance,
                train=partial(train_point, train, astray),
                quiet=True,
                **options,
            )
        except InputError:
            if astray.issuperset(grid_names(margins)):
                return Nothing()
            raise


def train_point(train: Train, astray: set[str], recipe: Recipe, folder: Path, **options: Any) -> None:
    """Train one point of a grid, unless it went astray before; add it to those that did."""
    note = folder.with_name(f"astray-{folder.name}.json")  # a search may empty the folder
    try:
        sentence = astray_before(recipe, note)
        if sentence is not None:
            raise DivergedError(sentence)
        train(recipe, folder, **options)
    except DivergedError as error:
        astray.add(folder.name)
        write_astray(recipe, error, note)
        raise


def grid_names(margins: Margins) -> list[str]:
    """Name the folders of a grid's points.

    >>> grid_names(Margins(positive=(0.9, 0.4), negative=(0.5, 0.3)))
    ['0.9-0.5', '0.9-0.3', '0.4-0.3']
    """
    every = product(margins.weights or (None,), margins.positive, margins.negative)
    return [run_name(positive, negative, weight) for weight, positive, negative in every if positive >= negative]


def search_names(margins: Margins) -> list[str]:
    """Name all that a search trains: the grid, and the baseline first."""
    return [BASELINE, *grid_names(margins)]


def find(
    setting: str, choices: dict[str, str], searches: Mapping[int, Tuned | Nothing], tolerance: float
) -> Found | None:
    """Average the grid over seeds and pick from the means; a point that went astray with any seed is not picked.

    Returns None where that leaves nothing to pick from.
    """
    tuned = {seed: each for seed, each in searches.items() if isinstance(each, Tuned)}
    if len(tuned) < len(searches):
        return None
    rows = [mean_run(same) for same in zip(*(each.rows for each in tuned.values()), strict=True)]
    if not any(has_scores(row) for row in rows):
        return None
    chosen = pick(rows, tolerance)
    rows = [replace(row, picked=row is chosen) for row in rows]
    recipe = next(iter(tuned.values())).recipe
    assert isinstance(recipe.loss.regularizer, dict)
    regularizer = {name: value for name, value in recipe.loss.regularizer.items() if name != "weight"}
    regularizer |= {"positive_margin": chosen.positive_margin, "negative_margin": chosen.negative_margin}
    if "share" not in regularizer:
        regularizer["weight"] = chosen.weight
    loss = recipe.loss.model_copy(update={"regularizer": regularizer})
    return Found(setting, choices, tuned, tuple(rows), recipe.model_copy(update={"loss": loss}))


def mean_run(same: Sequence[TunedRun]) -> TunedRun:
    """Average one point of the grid over seeds.

    >>> one = TunedRun("0.9-0.5", 0.9, 0.5, 1.0, recall_at_1=0.8, opis=3e-3, epsilon_opis=0.1, map_at_r=0.4)
    >>> mean_run([one, replace(one, opis=1e-3)]).opis
    0.002
    """
    if len({row.name for row in same}) > 1:
        raise InputError(f"searches have different points, {' and '.join(row.name for row in same)}: search anew")
    means: dict[str, Any] = {name: float(np.mean([getattr(row, name) for row in same])) for name in SCORES}
    return replace(same[0], picked=False, **means)


def margins_outcome(found: Sequence[Found], notes: Sequence[str] = ()) -> Outcome:
    """Give the table of what was picked, every point of every search, and the recipes with the picked margins."""
    axes = list(dict.fromkeys(axis for each in found for axis in each.choices))
    scores = [
        f"{name} {kind}" for name in ("recall@1 %", "OPIS ×1e-3") for kind in ("without TCM", "with TCM", "change")
    ]
    heads = ["setting", *axes, "seeds", "m⁺", "m⁻", "weight", *scores]
    lines = [[each.setting, *(each.choices.get(axis, "") for axis in axes), *cells_of(each)] for each in found]
    runs = [
        {"setting": each.setting, **each.choices, "seed": seed, **asdict(row), **weight_values(each, row)}
        for each in found
        for seed, tuned in each.searches.items()
        for row in tuned.rows
    ]
    table = Table(heads, lines, [numbers_of(each) for each in found])
    return Outcome(table, runs, {each.name: each.recipe for each in found}, tuple(notes))


def weight_values(found: Found, row: TunedRun) -> dict[str, Any]:
    """Give the weight of TCM at a point; where it is weighed by a share that, and no weight."""
    share = None if row.is_baseline else found.share
    return {"weight": row.weight} if share is None else {"weight": None, "share": share}


def cells_of(found: Found) -> list[str]:
    """Write one search's part of a line."""
    base, picked = found.baseline, found.picked
    recall = 100 * (picked.recall_at_1 - base.recall_at_1)
    return [
        str(len(found.searches)),
        f"{picked.positive_margin:g}",
        f"{picked.negative_margin:g}",
        f"{picked.weight:g}" if found.share is None else f"share {found.share:g}",
        *(shown("recall@1", each.recall_at_1) for each in (base, picked)),
        "–" if math.isnan(recall) else signs(f"{recall:+.2f}"),
        *(shown("opis", each.opis) for each in (base, picked)),
        signs(f"{100 * (picked.opis / base.opis - 1):+.0f}%") if base.opis > 0 else "–",
    ]


def numbers_of(found: Found) -> dict[str, Any]:
    """Give one search's line as numbers."""
    base, picked = found.baseline, found.picked
    return {
        "setting": found.setting,
        **found.choices,
        "seeds": len(found.searches),
        "positive_margin": picked.positive_margin,
        "negative_margin": picked.negative_margin,
        **weight_values(found, picked),
        **{name: getattr(picked, name) for name in SCORES},
        **{f"{name} without TCM": getattr(base, name) for name in SCORES},
    }


def draw_margins(found: Sequence[Found], tolerance: float, place: Path) -> None:
    """Draw each grid, in the mean over seeds, as margins_grid-SETTING-CHOICES.png."""
    from isomargin.figures import margins_grid, save

    for each in found:
        save(margins_grid(list(each.rows), tolerance), place / f"margins_grid-{each.name}.png")
