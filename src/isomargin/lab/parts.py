"""A part of an experiment: its results are put to those of the other parts that are there from earlier calls.

Rows of before are kept if the experiment still has them, by the same recipe, and were not run this time.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomargin.lab.experiment import PlannedRun
from isomargin.lab.jobs import Report, settings_of
from isomargin.lab.outcome import Outcome
from isomargin.lab.tables import Table, read_markdown
from isomargin.training.recipe import Recipe, load_recipe

Key = tuple[str, ...]
"""Setting and choices."""


@dataclass(frozen=True)
class Before:
    """What an earlier call has left."""

    heads: list[str]
    lines: list[list[str]]
    numbers: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    recipes: dict[str, Recipe]
    notes: list[str]


def read_before(place: Path) -> Before | None:
    """Read the results of an earlier call; None where there are none, or not all of their files."""
    files = [place / name for name in ("table.md", "table.csv", "runs.json")]
    if not all(file.is_file() for file in files):
        return None
    heads, lines, after = read_markdown(files[0].read_text(encoding="utf-8"))
    with files[1].open(encoding="utf-8", newline="") as file:
        numbers: list[dict[str, Any]] = list(csv.DictReader(file))
    notes = [each for each in after.split("\n\n") if each and not each.startswith(("The paper has", "|"))]
    return Before(
        heads,
        lines,
        numbers,
        json.loads(files[2].read_text(encoding="utf-8")),
        {file.stem: load_recipe(file) for file in sorted(place.glob("recipes/*.yaml"))},
        [each.strip() for each in notes],
    )


def join(
    new: Outcome,
    before: Before,
    planned: Sequence[PlannedRun],
    run: Sequence[PlannedRun],
    searched: bool,
    report: Report,
) -> Outcome:
    """Put what was run to what is there of other parts, in the experiment's order.

    Args:
        new: what came of the part that was run.
        before: what is there.
        planned: the runs of the whole experiment, of one seed at least.
        run: those of the part.
        searched: margins were, so that recipes have those that were found.
        report: is given a sentence on what is not kept, if so.
    """
    order = {key_of(each): number for number, each in reversed(list(enumerate(planned)))}
    known = {key_of(each): each for each in planned}
    done = {key_of(each) for each in run}
    names = columns(before.heads) if len(before.heads) > len(new.table.heads) else columns(new.table.heads)
    axes = list(planned[0].choices)

    def key(row: Mapping[str, Any]) -> Key:
        return (str(row["setting"]), *(str(row.get(axis, "")) for axis in axes))

    there = {key(row) for row in before.numbers} - done
    files = {each: file_of(run) for each, run in known.items()}
    kept = {each for each in there & set(known) if same_recipe(known[each], before.recipes.get(files[each]), searched)}
    if not set(columns(before.heads)) | set(columns(new.table.heads)) <= set(names):
        kept = set()  # the experiment has other columns now
    if there - kept:
        report(
            f"note: of the earlier results {len(there - kept)} of {len(there)} rows are not kept: "
            "the experiment has other recipes now"
        )

    def together(old: Sequence[dict[str, Any]], added: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [*(row for row in old if key(row) in kept), *added]
        return sorted(rows, key=lambda row: order[key(row)])

    lines = together(named(before.heads, before.lines), named(new.table.heads, new.table.lines))
    recipes = {files[each]: before.recipes[files[each]] for each in kept} | new.recipes
    table = Table(
        [head_of(name) for name in names],
        [[row.get(name, "") for name in names] for row in lines],
        together(before.numbers, new.table.numbers),
    )
    return Outcome(table, together(before.runs, new.runs), recipes, join_notes(new.notes, before.notes, kept))


def key_of(run: PlannedRun) -> Key:
    """Give a run's setting and choices."""
    return (run.setting, *run.choices.values())


def file_of(run: PlannedRun) -> str:
    """Name the file of a run's recipe among the results."""
    return f"{run.setting}-{run.variant}"


def same_recipe(run: PlannedRun, before: Recipe | None, searched: bool) -> bool:
    """Tell whether an earlier call had the recipe that a run has now, but for margins that were searched."""
    if before is None:
        return False
    one, other = (settings_of(each) for each in (run.recipe, before))
    for each in (one, other):
        each.pop("seed")
    if searched:
        for each in (one, other):
            each["loss"] = {**each["loss"], "regularizer": None}
    return one == other


def columns(heads: Sequence[str]) -> list[str]:
    """Give each head a name of its own: changes are of the column before them.

    >>> columns(["loss", "OPIS", "change", "EER", "change"])
    ['loss', 'OPIS', 'OPIS: change', 'EER', 'EER: change']
    """
    return [
        f"{heads[number - 1]}: change" if head == "change" and number else head for number, head in enumerate(heads)
    ]


def head_of(name: str) -> str:
    """Give the head of a column by its name."""
    return "change" if name.endswith(": change") else name


def named(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Give lines by the names of their columns."""
    return [dict(zip(columns(heads), line, strict=True)) for line in lines]


def join_notes(new: Sequence[str], before: Sequence[str], kept: set[Key]) -> tuple[str, ...]:
    """Put the sentences on kept settings to the new ones, and what changes are against if only the old have it."""
    settings = {key[0] for key in kept}
    own = [each for each in before if each.split(":")[0] in settings and each not in new]
    rest = [each for each in before if each.startswith("Changes are against")]
    return (*own, *new, *(() if any(each.startswith("Changes are against") for each in new) else rest))
