"""Open a run: its recipe and its model."""

from __future__ import annotations

import os
from pathlib import Path

from isomargin.core.errors import InputError
from isomargin.models.embedder import Embedder, make_model
from isomargin.training.checkpoint import load_model
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run_folder import RunFolder


def open_run(folder: str | os.PathLike[str]) -> tuple[Recipe, Embedder]:
    """Read a run's recipe and the model that it chose, in eval mode.

    >>> open_run("no/such/run")
    Traceback (most recent call last):
    isomargin.InputError: no/such/run is not a run: a folder with a recipe.yaml is needed
    """
    run = RunFolder(Path(folder))
    if not run.recipe.is_file():
        raise InputError(f"{folder} is not a run: a folder with a recipe.yaml is needed")
    recipe = load_recipe(run.recipe)
    if not run.model.is_file():
        raise InputError(f"{folder} has no model yet: continue its training with `isomargin train {folder} --resume`")
    model = make_model(recipe.model, load_weights=False)
    load_model(run.model, model)
    return recipe, model.eval()
