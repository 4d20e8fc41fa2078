"""Experiments of kind `margins`: TCM's margins, searched on held-out training classes.

Every seed is a search of its own; the margins are picked by the means over seeds.

FOLDER/SETTING/margins/CHOICES/seed-0/    one folder per search, as `isomargin tune` writes it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.core.errors import DivergedError, InputError
from isomargin.core.files import locked
from isomargin.training.recipe import Recipe
from isomargin.training.run_folder import RunFolder
from isomargin.training.tune import BASELINE, pick, run_name, tune
from isomargin.training.tuned import Tuned, TunedRun, has_scores
from lab.experiment import Margins
from lab.jobs import Busy, Report, Task, do_all, workers
from lab.plan import PlannedRun, result_name
from lab.results_folder import Results
from lab.seed_means import grouped
from lab.training_runs import Train, diverged_before, update_data_folder, write_diverged

SCORES = ("recall_at_1", "opis", "epsilon_opis", "map_at_r")


@dataclass(frozen=True)
class Nothing:
    """In place of what a search with one seed has found: training diverged at every point of its grid."""


@dataclass(frozen=True)
class Failed:
    """Searches of one recipe that have picked nothing: no point of the grid has scores with every seed."""

    setting: str
    choices: dict[str, str]
    seeds: int
    recipe: Recipe
    """As it was searched with."""

    @property
    def name(self) -> str:
        """Its name among the results."""
        return result_name(self.setting, self.choices)


@dataclass(frozen=True)
class Found:
    """What the searches of one recipe have found."""

    setting: str
    choices: dict[str, str]
    searches: dict[int, Tuned]
    """By seed."""
    rows: tuple[TunedRun, ...]
    """The baseline, then the grid, averaged over seeds; the picked point is marked."""
    recipe: Recipe
    """With the picked margins."""

    @property
    def name(self) -> str:
        """Its name among the results."""
        return result_name(self.setting, self.choices)

    @property
    def seeds(self) -> int:
        """How many searches there are."""
        return len(self.searches)

    @property
    def share(self) -> float | None:
        """The share that TCM is weighed by; None where it has a weight."""
        regularizer = self.recipe.loss.regularizer
        return regularizer.get("share") if isinstance(regularizer, dict) else None

    @property
    def picked(self) -> TunedRun:
        """The point that was picked."""
        return next(row for row in self.rows if row.picked)

    @property
    def baseline(self) -> TunedRun:
        """The run without TCM."""
        return next(row for row in self.rows if row.is_baseline)


def search_margins(
    margins: Margins, runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> list[Found | Failed]:
    """Search with every recipe of an experiment and every seed, or continue where an earlier call has stopped."""
    tasks: list[Task[Tuned | Nothing]] = [
        Task(str(path), partial(search, run.recipe, folder / path, margins, train, workers=workers(jobs)))
        for run, path in ((run, folder_of(run)) for run in runs)
    ]
    searched = do_all(tasks, jobs, report)
    by_folder = {run.folder: tuned for run, tuned in zip(runs, searched, strict=True)}
    for run in runs:
        tuned = by_folder[run.folder]
        for note in ("training diverged at every point",) if isinstance(tuned, Nothing) else tuned.notes:
            report(f"note: {folder_of(run)}: {note}")
    results: list[Found | Failed] = []
    for (setting, choices), group in grouped(runs).items():
        searches = {run.seed: by_folder[run.folder] for run in group}
        failed = Failed(setting, dict(choices), len(group), group[0].recipe)
        results.append(find(setting, dict(choices), searches, margins.tolerance) or failed)
        if results[-1] is failed:
            report(f"note: {failed.name} has no margins: no point of its grid has scores with every seed")
    return results


def folder_of(run: PlannedRun) -> Path:
    """Give the folder of a search within the folder of all experiments."""
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
            update_data_folder(recipe, RunFolder(begun.parent))
        diverged: set[str] = set()
        try:
            return tune(
                recipe,
                folder,
                margins.positive,
                margins.negative,
                margins.weights,
                held_out=margins.held_out,
                tolerance=margins.tolerance,
                train=partial(train_point, train, diverged),
                lock=False,
                quiet=True,
                **options,
            )
        except InputError:
            if diverged.issuperset(grid_names(margins)):
                return Nothing()
            raise


def train_point(train: Train, diverged: set[str], recipe: Recipe, folder: Path, **options: Any) -> None:
    """Train one point of a grid, unless it diverged before; add its name to those that did."""
    note = folder.with_name(f"diverged-{folder.name}.json")  # not in the folder, which a search may empty
    try:
        sentence = diverged_before(recipe, note)
        if sentence is not None:
            raise DivergedError(sentence)
        train(recipe, folder, **options)
    except DivergedError as error:
        diverged.add(folder.name)
        write_diverged(recipe, error, note)
        raise


def grid_names(margins: Margins) -> list[str]:
    """List the folder names of a grid's points.

    >>> grid_names(Margins(positive=(0.9, 0.4), negative=(0.5, 0.3)))
    ['0.9-0.5', '0.9-0.3', '0.4-0.3']
    """
    every = product(margins.weights or (None,), margins.positive, margins.negative)
    return [run_name(positive, negative, weight) for weight, positive, negative in every if positive >= negative]


def search_names(margins: Margins) -> list[str]:
    """List the names of all that a search trains: the baseline, then the grid."""
    return [BASELINE, *grid_names(margins)]


def find(
    setting: str, choices: dict[str, str], searches: Mapping[int, Tuned | Nothing], tolerance: float
) -> Found | None:
    """Average the grid over seeds and pick by the means, except for points that diverged with any seed.

    Returns None where that leaves nothing to pick from.
    """
    tuned = {seed: found for seed, found in searches.items() if isinstance(found, Tuned)}
    if len(tuned) < len(searches):
        return None
    rows = [mean_run(same) for same in zip(*(found.rows for found in tuned.values()), strict=True)]
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
        raise InputError(
            f"searches have different points, {' and '.join(row.name for row in same)}: delete their folders to search "
            "again"
        )
    means: dict[str, Any] = {name: float(np.mean([getattr(row, name) for row in same])) for name in SCORES}
    return replace(same[0], picked=False, **means)


def margins_results(searches: Sequence[Found | Failed]) -> Results:
    """Give what was picked, every point of every search, and the recipes with the picked margins."""
    runs = [
        {"setting": found.setting, **found.choices, "seed": seed, **asdict(row), **weight_values(found, row)}
        for found in searches
        if isinstance(found, Found)
        for seed, tuned in found.searches.items()
        for row in tuned.rows
    ]
    return Results(
        [table_row(search) for search in searches], runs, {search.name: search.recipe for search in searches}
    )


def weight_values(found: Found, row: TunedRun) -> dict[str, Any]:
    """Give the weight of TCM at a point, or its share where it is weighed by a share."""
    share = None if row.is_baseline else found.share
    return {"weight": row.weight} if share is None else {"weight": None, "share": share}


def table_row(search: Found | Failed) -> dict[str, Any]:
    """Give a search's row of table.csv; one that failed has no margins and no scores."""
    begin = {"setting": search.setting, **search.choices, "seeds": search.seeds}
    if isinstance(search, Failed):
        return {**begin, "positive_margin": None, "negative_margin": None, "weight": None}
    base, picked = search.baseline, search.picked
    return {
        **begin,
        "positive_margin": picked.positive_margin,
        "negative_margin": picked.negative_margin,
        **weight_values(search, picked),
        **{name: getattr(picked, name) for name in SCORES},
        **{f"{name} without TCM": getattr(base, name) for name in SCORES},
    }


def draw_margins(searches: Sequence[Found | Failed], tolerance: float, folder: Path) -> None:
    """Draw each grid, averaged over seeds, as margins_grid-SETTING-CHOICES.png; delete that of a search that failed."""
    from isomargin.figures import margins_grid, save

    for search in searches:
        path = folder / f"margins_grid-{search.name}.png"
        if isinstance(search, Failed):
            path.unlink(missing_ok=True)
        else:
            save(margins_grid(list(search.rows), tolerance), path)
