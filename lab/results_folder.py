"""The folder with an experiment's results, written and read.

RESULTS/NAME/runs.csv            one row per run, with every score
RESULTS/NAME/table.csv           one row per group of seeds: means, ranges, and changes with their intervals
RESULTS/NAME/differences.npz     the draws behind the intervals and p values of table.csv, see `lab.stored_draws`
RESULTS/NAME/evaluations/        compact evaluations of the runs, where an experiment keeps them, see `lab.kept`
RESULTS/NAME/ranges.csv          OPIS by calibration range, where an experiment has several
RESULTS/NAME/recipes.yaml        every recipe
RESULTS/NAME/*.png               figures

Tables to read are made from the CSV files by `lab.tables`; nothing is read back from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from isomargin.core.errors import InputError
from isomargin.training.recipe import Recipe, read_recipe
from isomargin.training.yaml_text import YamlLoader
from lab.files import read_csv, write_csv, write_text
from lab.stored_draws import StoredDraws, read_draws, write_draws

TABLE, RUNS, RECIPES, RANGES = "table.csv", "runs.csv", "recipes.yaml", "ranges.csv"
HEADER = """\
# Recipes by setting and choices. Runs with other seeds differ in `seed` alone. The first recipe of a setting is written
# in full; `<<: *SETTING` takes from it every section that is not listed.
"""


@dataclass(frozen=True)
class Results:
    """What an experiment has found, whatever its kind."""

    rows: list[dict[str, Any]]
    """Of table.csv."""
    runs: list[dict[str, Any]]
    """Of runs.csv."""
    recipes: dict[str, Recipe] = field(default_factory=dict)
    """By `lab.plan.result_name`."""
    draws: list[StoredDraws] = field(default_factory=list)
    """Behind the intervals and p values of the rows."""


def write_results(results: Results, folder: Path, keep_figures: bool = False) -> None:
    """Write table.csv, runs.csv and recipes.yaml, and delete the figures of an earlier call.

    With `keep_figures`, only the heat maps of searches that the experiment no longer has are deleted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / RECIPES, recipes_text(results.recipes))
    write_csv(folder / RUNS, results.runs)
    write_csv(folder / TABLE, results.rows)
    write_draws(results.draws, folder)
    for old in folder.glob("margins_grid-*.png" if keep_figures else "*.png"):
        if not keep_figures or old.stem.removeprefix("margins_grid-") not in results.recipes:
            old.unlink()


def read_results(folder: Path) -> Results | None:
    """Read the results of an earlier call; None where there are none.

    Recipes that this version cannot read are left out.
    """
    missing = [name for name in (TABLE, RUNS, RECIPES) if not (folder / name).is_file()]
    if len(missing) == 3:
        return None
    try:
        rows, runs = (read_csv(folder / name) for name in (TABLE, RUNS))
        if not all("setting" in row for row in (*rows, *runs)):
            raise ValueError("it has no column `setting`")
        return Results([*rows], [*runs], read_recipes(folder / RECIPES), read_draws(folder) or [])
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the earlier results in {folder}, which new ones would be merged into, cannot be read ({reason}): move "
            "them away, or choose other --results"
        ) from error


def read_recipes(path: Path) -> dict[str, Recipe]:
    """Read recipes by name, except for those that this version cannot read."""
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=YamlLoader) or {}
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds no recipes by name")
    recipes = {}
    for name, settings in content.items():
        try:
            recipes[name] = read_recipe(settings, name)
        except InputError:
            continue
    return recipes


def recipes_text(recipes: Mapping[str, Recipe]) -> str:
    """Write recipes as YAML: the first of a setting in full, of the others the sections that differ from it."""
    text, first = [HEADER], dict[str, set[str]]()
    for name, recipe in recipes.items():
        setting = recipe.name.split()[0]
        sections = sections_of(without_place(recipe))
        if setting in first:
            text.append(f"{name}:\n  <<: *{setting}\n")
            sections = [section for section in sections if section not in first[setting]]
        else:
            text.append(f"{name}: &{setting}\n")
            first[setting] = set(sections)
        text += [re.sub(r"(?m)^(?=.)", "  ", section) for section in sections]
    return "".join(text)


def sections_of(recipe: Recipe) -> list[str]:
    """Give the YAML of each of a recipe's sections; all recipes have the same ones."""
    return re.split(r"(?m)^(?=\w)", recipe.to_yaml())[1:]


def without_place(recipe: Recipe) -> Recipe:
    """Give a recipe without the folder of its data, which differs between machines."""
    data = {name: value for name, value in recipe.data.items() if name != "root"}
    return recipe.model_copy(update={"data": data})
