"""What an experiment leaves behind: a table in three forms, every run's numbers, and the recipes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isomargin.training.recipe import Recipe
from lab.experiment import Experiment
from lab.files import write_json, write_text
from lab.tables import Table, as_csv, as_latex, as_markdown, published_part


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment, whatever its kind."""

    table: Table
    runs: list[dict[str, Any]]
    """All that the table was made from, by name."""
    recipes: dict[str, Recipe] = field(default_factory=dict)
    """By the names of their files, without a suffix."""
    notes: tuple[str, ...] = ()
    """Sentences that stand below the table."""


def write_outcome(outcome: Outcome, experiment: Experiment, folder: Path, keep_figures: bool = False) -> None:
    """Write recipes/*.yaml, runs.json, table.md, table.tex and table.csv; delete what was there of another call.

    With `keep_figures` figures stay, but for the heat maps of searches that are no longer in the table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if outcome.recipes:
        (folder / "recipes").mkdir(exist_ok=True)
    for name, recipe in outcome.recipes.items():
        without_place(recipe).save(folder / "recipes" / f"{name}.yaml")
    table = outcome.table
    write_json(folder / "runs.json", outcome.runs)
    notes = "".join(f"\n{each}\n" for each in outcome.notes)
    write_text(folder / "table.md", as_markdown(table.heads, table.lines) + notes + published_part(experiment))
    write_text(folder / "table.tex", as_latex(table.heads, table.lines))
    write_text(folder / "table.csv", as_csv(table.numbers))
    for old in folder.glob("recipes/*.yaml"):
        if old.stem not in outcome.recipes:
            old.unlink()
    for old in folder.glob("margins_grid-*.png" if keep_figures else "*.png"):
        if not keep_figures or old.stem.removeprefix("margins_grid-") not in outcome.recipes:
            old.unlink()


def without_place(recipe: Recipe) -> Recipe:
    """Give a recipe without where its data were: that is this machine's affair."""
    data = {name: value for name, value in recipe.data.items() if name != "root"}
    return recipe.model_copy(update={"data": data})
