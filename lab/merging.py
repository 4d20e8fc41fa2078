"""Merge the results of a part of an experiment into those of the other parts, which earlier calls have left.

An earlier row is kept if it was not run this time and still means the same: the experiment still has it, with the same
recipe, and what it is compared with has not changed either, or was run again with the same recipe and as many seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isomargin.training.recipe import Recipe
from lab.choices import is_raw, without_local
from lab.derived import bases
from lab.experiment import Experiment, Margins
from lab.jobs import Report
from lab.margins import search_names
from lab.plan import PlannedRun, result_name
from lab.results_folder import Results
from lab.training_runs import settings_of

Key = tuple[str, ...]
"""Setting and choices."""


@dataclass(frozen=True)
class Whole:
    """The whole experiment, of which a part was run."""

    experiment: Experiment
    runs: Sequence[PlannedRun]
    """With one seed."""
    margins: Margins | None

    @property
    def known(self) -> dict[Key, PlannedRun]:
        """Its runs by their keys, in order."""
        return {key_of(run): run for run in self.runs}

    def key(self, row: Mapping[str, Any]) -> Key:
        """Give the setting and choices of a row."""
        axes = self.runs[0].choices
        return (str(row["setting"]), *(str(row.get(axis, "")) for axis in axes))

    def bases(self, key: Key) -> list[Key]:
        """Give what a row is compared with."""
        choices = dict(zip(self.runs[0].choices, key[1:], strict=True))
        return [(key[0], *base.values()) for base in bases(choices, self.experiment.against).values()]


def key_of(run: PlannedRun) -> Key:
    """Give a run's setting and choices."""
    return (run.setting, *run.choices.values())


def merge(new: Results, before: Results, whole: Whole, runs: Sequence[PlannedRun], report: Report) -> Results:
    """Merge new results into earlier ones, in the experiment's order; report how many earlier rows are not kept.

    `runs` are all that the new results are of, with and without scores.
    """
    known, done = whole.known, {key_of(run) for run in runs}
    unchanged = [key for key in known if key not in done and is_same(key, before, whole)]
    earlier = {whole.key(row) for row in before.rows} - done
    kept = earlier & {key for key in unchanged if is_comparison_same(key, unchanged, done, new, before, whole)}
    dropped = earlier - kept
    if dropped:
        report(
            f"note: of the earlier results {len(dropped)} of {len(earlier)} rows are not kept: their recipes have "
            "changed, or what they are compared with has"
        )
    order = {key: number for number, key in enumerate(known)}

    def together(old: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [*(row for row in old if whole.key(row) in kept), *added]
        return sorted(rows, key=lambda row: order[whole.key(row)])

    recipes = {name_of(key, whole): before.recipes[name_of(key, whole)] for key in unchanged if key not in dropped}
    recipes |= new.recipes
    in_order = dict.fromkeys(name_of(key, whole) for key in known)
    return Results(
        together(before.rows, new.rows),
        together(before.runs, new.runs),
        {name: recipes[name] for name in in_order if name in recipes},
        [*(draws for draws in before.draws if draws.key in kept), *new.draws],
    )


def name_of(key: Key, whole: Whole) -> str:
    """Give the name that a row has among the recipes."""
    run = whole.known[key]
    return result_name(run.setting, without_local(run.choices))


def is_same(key: Key, before: Results, whole: Whole) -> bool:
    """Tell whether earlier results of a setting and choices come from the recipe, and the search, of today."""
    then = before.recipes.get(name_of(key, whole))
    if then is None or comparable(whole.known[key].recipe, whole.margins) != comparable(then, whole.margins):
        return False
    if whole.margins is None:
        return True
    points = {row.get("name") for row in before.runs if whole.key(row) == key}
    return not points or points == set(search_names(whole.margins))


def comparable(recipe: Recipe, margins: Margins | None) -> dict[str, Any]:
    """Give a recipe's settings except for its seed and, where margins are searched, what was found."""
    settings = settings_of(recipe)
    settings.pop("seed")
    regularizer = settings["loss"]["regularizer"]
    if margins is not None and isinstance(regularizer, dict):
        found = ("positive_margin", "negative_margin", "weight")
        fixed = {name: value for name, value in regularizer.items() if name not in found}
        settings["loss"] = {**settings["loss"], "regularizer": fixed}
    return settings


def is_comparison_same(
    key: Key, unchanged: Sequence[Key], done: set[Key], new: Results, before: Results, whole: Whole
) -> bool:
    """Tell whether an earlier row's changes still refer to the rows that it is compared with."""
    for base in whole.bases(key):
        if base not in whole.known:
            continue
        then, now = (Counter(whole.key(row) for row in rows)[base] for rows in (before.runs, new.runs))
        if then == 0 and is_raw(dict(zip(whole.runs[0].choices, base[1:], strict=True))):
            continue  # rows of earlier calls without raw features are not compared with them
        if base not in done:
            if base not in unchanged:
                return False
            continue
        if not is_same(base, before, whole) or then != now:
            return False
    return True
