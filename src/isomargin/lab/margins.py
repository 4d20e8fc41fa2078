"""Experiments of kind `margins`: TCM's margins searched on held-out training classes, once a seed, picked by the means.

FOLDER/SETTING/margins/CHOICES/seed-0/    a search a folder, as `isomargin tune` makes it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.errors import InputError
from isomargin.lab.experiment import Margins, PlannedRun
from isomargin.lab.jobs import Busy, Report, Task, Train, do_all, locked, workers
from isomargin.lab.outcome import Outcome
from isomargin.lab.results import grouped
from isomargin.lab.tables import Table, shown, signs
from isomargin.training.recipe import Recipe
from isomargin.training.tune import pick, tune
from isomargin.training.tuned import Tuned, TunedRun

SCORES = ("recall_at_1", "opis", "epsilon_opis", "map_at_r")


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
        return "-".join([self.setting, "+".join(self.choices.values())]) if self.choices else self.setting

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
) -> list[Found]:
    """Search by every recipe of an experiment, or go on with it; a seed is a search of its own."""
    tasks = [
        Task(str(path), partial(search, run.recipe, folder / path, margins, train, workers=workers(jobs)))
        for run, path in ((run, folder_of(run)) for run in runs)
    ]
    searched = do_all(tasks, jobs, report)
    by_folder = {run.folder: tuned for run, tuned in zip(runs, searched, strict=True)}
    for run in runs:
        for note in by_folder[run.folder].notes:
            report(f"note: {folder_of(run)}: {note}")
    return [
        find(setting, dict(choices), {run.seed: by_folder[run.folder] for run in group}, margins.tolerance)
        for (setting, choices), group in grouped(runs).items()
    ]


def folder_of(run: PlannedRun) -> Path:
    """Give the folder of a search within that of all experiments."""
    return Path(run.setting) / "margins" / run.variant / f"seed-{run.seed}"


def search(
    recipe: Recipe, folder: Path, margins: Margins, train: Train, wait: bool, *, workers: int | None
) -> Tuned | Busy:
    """Search with one seed."""
    options: dict[str, Any] = {} if workers is None else {"workers": workers}
    with locked(folder, wait) as free:
        if not free:
            return Busy()
        return tune(
            recipe,
            folder,
            margins.positive,
            margins.negative,
            margins.weights,
            held_out=margins.held_out,
            tolerance=margins.tolerance,
            train=train,
            quiet=True,
            **options,
        )


def find(setting: str, choices: dict[str, str], searches: dict[int, Tuned], tolerance: float) -> Found:
    """Average the grid over seeds and pick from the means; a point that went astray with any seed is not picked."""
    rows = [mean_run(same) for same in zip(*(each.rows for each in searches.values()), strict=True)]
    chosen = pick(rows, tolerance)
    rows = [replace(row, picked=row is chosen) for row in rows]
    recipe = next(iter(searches.values())).recipe
    regularizer = recipe.loss.regularizer
    assert isinstance(regularizer, dict)
    picked = {name: getattr(chosen, name) for name in ("positive_margin", "negative_margin", "weight")}
    loss = recipe.loss.model_copy(update={"regularizer": {**regularizer, **picked}})
    return Found(setting, choices, searches, tuple(rows), recipe.model_copy(update={"loss": loss}))


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


def margins_outcome(found: Sequence[Found]) -> Outcome:
    """Give the table of what was picked, every point of every search, and the recipes with the picked margins."""
    axes = list(dict.fromkeys(axis for each in found for axis in each.choices))
    scores = [
        f"{name} {kind}" for name in ("recall@1 %", "OPIS ×1e-3") for kind in ("without TCM", "with TCM", "change")
    ]
    heads = ["setting", *axes, "seeds", "m⁺", "m⁻", "weight", *scores]
    lines = [[each.setting, *(each.choices.get(axis, "") for axis in axes), *cells_of(each)] for each in found]
    runs = [
        {"setting": each.setting, **each.choices, "seed": seed, **asdict(row)}
        for each in found
        for seed, tuned in each.searches.items()
        for row in tuned.rows
    ]
    return Outcome(
        Table(heads, lines, [numbers_of(each) for each in found]), runs, {each.name: each.recipe for each in found}
    )


def cells_of(found: Found) -> list[str]:
    """Write one search's part of a line."""
    base, picked = found.baseline, found.picked
    settings = (picked.positive_margin, picked.negative_margin, picked.weight)
    recall = 100 * (picked.recall_at_1 - base.recall_at_1)
    return [
        str(len(found.searches)),
        *(f"{each:g}" for each in settings if each is not None),
        *(shown("recall@1", each.recall_at_1) for each in (base, picked)),
        signs(f"{recall:+.2f}"),
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
        "weight": picked.weight,
        **{name: getattr(picked, name) for name in SCORES},
        **{f"{name} without TCM": getattr(base, name) for name in SCORES},
    }


def draw_margins(found: Sequence[Found], tolerance: float, place: Path) -> None:
    """Draw each grid, in the mean over seeds, as margins_grid-SETTING-CHOICES.png."""
    from isomargin.figures import margins_grid, save

    for each in found:
        save(margins_grid(list(each.rows), tolerance), place / f"margins_grid-{each.name}.png")
