"""A part of an experiment: its results are put to those of the other parts that are there from earlier calls.

A row of before is kept if it was not run this time and still means the same: the experiment has it, by the same recipe,
and what it is held against is that of before too, or the same recipes with as many seeds.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomargin.core.errors import InputError
from isomargin.training.recipe import Recipe, load_recipe
from lab.experiment import Experiment, Margins
from lab.jobs import Report, settings_of
from lab.margins import search_names
from lab.plan import PlannedRun, base_of, file_name
from lab.results_folder import Outcome
from lab.tables import Table, read_markdown, setting_notes

Key = tuple[str, ...]
"""Setting and choices."""
FILES = ("table.md", "table.csv", "runs.json")
CHANGE = ": change"


@dataclass(frozen=True)
class Before:
    """What an earlier call has left."""

    heads: list[str]
    lines: list[list[str]]
    numbers: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    recipes: dict[str, Recipe]
    """By the names of their files; those that can be read no longer are left out."""
    notes: list[str]


@dataclass(frozen=True)
class Whole:
    """The experiment that a part is of."""

    experiment: Experiment
    runs: Sequence[PlannedRun]
    """Of one seed."""
    margins: Margins | None
    about: Mapping[str, str]
    """By setting, in words."""

    @property
    def known(self) -> dict[Key, PlannedRun]:
        """Its runs by their keys, in order."""
        return {key_of(run): run for run in self.runs}

    def key(self, row: Mapping[str, Any]) -> Key:
        """Give the setting and choices of a row, by the names of columns."""
        axes = self.runs[0].choices
        return (str(row["setting"]), *(str(row.get(axis, "")) for axis in axes))

    def base(self, key: Key) -> Key:
        """Give what a row is held against; itself if there is nothing."""
        choices = dict(zip(self.runs[0].choices, key[1:], strict=True))
        return (key[0], *base_of(choices, self.experiment.against).values())


def key_of(run: PlannedRun) -> Key:
    """Give a run's setting and choices."""
    return (run.setting, *run.choices.values())


def read_before(place: Path) -> Before | None:
    """Read the results of an earlier call; None where there are none."""
    missing = [name for name in FILES if not (place / name).is_file()]
    if len(missing) == len(FILES):
        return None
    try:
        heads, lines, after = read_markdown((place / "table.md").read_text(encoding="utf-8"))
        with (place / "table.csv").open(encoding="utf-8", newline="") as file:
            numbers: list[dict[str, Any]] = list(csv.DictReader(file))
        runs = json.loads((place / "runs.json").read_text(encoding="utf-8"))
        if not all("setting" in each for each in (heads, *numbers, *runs)) or bool(lines) != bool(numbers):
            raise ValueError("there are no settings")
    except (OSError, ValueError) as error:
        raise InputError(
            f"the results in {place}, which those of a part would be put to, cannot be read ({error}): move them away, "
            "or choose other --results"
        ) from error
    notes = [each.strip() for each in after.split("\n\n")]
    kept = [each for each in notes if each and not each.startswith(("The paper has", "|"))]
    return Before(heads, lines, numbers, runs, read_recipes(place / "recipes"), kept)


def read_recipes(folder: Path) -> dict[str, Recipe]:
    """Read the recipes of earlier results, but for those that this version cannot."""
    recipes = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            recipes[path.stem] = load_recipe(path)
        except InputError:
            continue
    return recipes


def join(new: Outcome, before: Before, whole: Whole, run: Sequence[PlannedRun], report: Report) -> Outcome:
    """Put what came of the runs of a part to what is there of others, in order; tell what is not kept."""
    known, done = whole.known, {key_of(each) for each in run}
    left = [key for key in known if key not in done and is_same(key, before, whole)]
    there = {whole.key(row) for row in before.numbers} - done
    kept = there & {key for key in left if holds(key, left, done, new, before, whole)}
    why = "the experiment has other recipes now, or what they are held against is new"
    if not same_columns(before.heads, new.table.heads):
        kept, why = set(), "the table has other columns now"
    if there - kept:
        report(f"note: of the earlier results {len(there - kept)} of {len(there)} rows are not kept: {why}")
    order = {key: number for number, key in enumerate(known)}

    def together(old: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [*(row for row in old if whole.key(row) in kept), *added]
        return sorted(rows, key=lambda row: order[whole.key(row)])

    wider = before.heads if kept and len(before.heads) > len(new.table.heads) else new.table.heads
    lines = together(named(before.heads, before.lines), named(new.table.heads, new.table.lines))
    table = Table(
        list(wider),
        [[row.get(name, "") for name in columns(wider)] for row in lines],
        together(before.numbers, new.table.numbers),
    )
    names = {key: file_name(each.setting, each.choices) for key, each in known.items()}
    dropped = there - kept
    recipes = {names[key]: before.recipes[names[key]] for key in left if key not in dropped} | new.recipes
    return Outcome(table, together(before.runs, new.runs), recipes, join_notes(new, before, whole, table, done))


def is_same(key: Key, before: Before, whole: Whole) -> bool:
    """Tell whether earlier results of a setting and choices are by the recipe, and the search, that there are now."""
    run = whole.known[key]
    then = before.recipes.get(file_name(run.setting, run.choices))
    if then is None or comparable(run.recipe, whole.margins) != comparable(then, whole.margins):
        return False
    if whole.margins is None:
        return True
    points = {row.get("name") for row in before.runs if whole.key(row) == key}
    return not points or points == set(search_names(whole.margins))


def comparable(recipe: Recipe, margins: Margins | None) -> dict[str, Any]:
    """Give a recipe's settings but for its seed and, where margins are searched, what was found."""
    settings = settings_of(recipe)
    settings.pop("seed")
    regularizer = settings["loss"]["regularizer"]
    if margins is not None and isinstance(regularizer, dict):
        found = ("positive_margin", "negative_margin", "weight")
        own = {name: value for name, value in regularizer.items() if name not in found}
        settings["loss"] = {**settings["loss"], "regularizer": own}
    return settings


def holds(key: Key, left: Sequence[Key], done: set[Key], new: Outcome, before: Before, whole: Whole) -> bool:
    """Tell whether an earlier row's differences still are to the row that it is held against."""
    base = whole.base(key)
    if base not in done:
        return base in left or base not in whole.known
    then, now = (Counter(whole.key(row) for row in rows)[base] for rows in (before.runs, new.runs))
    return is_same(base, before, whole) and then == now


def same_columns(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether two tables have the same columns, but for changes, which a part may have none of."""
    first, second = ([name for name in columns(heads) if not name.endswith(CHANGE)] for heads in (one, other))
    return first == second


def columns(heads: Sequence[str]) -> list[str]:
    """Give each head a name of its own: changes are of the column before them.

    >>> columns(["loss", "OPIS", "change", "EER", "change"])
    ['loss', 'OPIS', 'OPIS: change', 'EER', 'EER: change']
    """
    before = ["", *heads]
    return [f"{last}{CHANGE}" if head == "change" else head for last, head in zip(before, heads, strict=False)]


def named(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Give lines by the names of their columns."""
    return [dict(zip(columns(heads), line, strict=True)) for line in lines]


def join_notes(new: Outcome, before: Before, whole: Whole, table: Table, done: set[Key]) -> tuple[str, ...]:
    """Give the notes of a joined table: on its settings, on its changes, and on what is missing in either part."""
    settings = dict.fromkeys(str(row["setting"]) for row in table.numbers)
    about = [] if whole.margins else setting_notes(settings, whole.about)
    heads = tuple(f"{each}: " for each in whole.about)
    own = [each for each in new.notes if not each.startswith(heads)]
    others = tuple(f"{' '.join(key)} is missing" for key in whole.known if key not in done)
    missing = [each for each in before.notes if each.startswith(others)]
    changes = [each for each in before.notes if each.startswith("Changes are against")]
    if any(each.startswith("Changes are against") for each in own) or "change" not in table.heads:
        changes = []
    return (*about, *missing, *own, *changes)
