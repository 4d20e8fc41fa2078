"""The demo: a base loss, and the same with TCM, trained on rendered letters and evaluated on letters never seen.

The two recipes, `glyphs` and `glyphs-tcm`, differ in the regularizer alone; seed and steps are the same.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from isomargin.core.errors import InputError

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

RECIPES = ("glyphs", "glyphs-tcm")


def run_demo(folder: Path, seed: int = 0, changes: tuple[str, ...] = ()) -> dict[str, "Evaluation"]:
    """Train both recipes, each to a run in `folder`, and give their evaluations by name.

    Runs of an earlier demo in the folder are replaced. `changes` are of the recipes.
    """
    from isomargin.training.loop import train
    from isomargin.training.recipe import load_recipe

    evaluations = {}
    for name in RECIPES:
        recipe = load_recipe(name, [f"seed={seed}", *changes])
        if (folder / name).exists():
            if not (folder / name / "recipe.yaml").is_file():
                raise InputError(f"{folder / name} is there and is no run: choose another --output")
            shutil.rmtree(folder / name)
        evaluations[name] = train(recipe, folder / name)
    return evaluations
