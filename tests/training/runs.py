"""A tiny training run that tests share: glyphs, a small net, a few steps."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from isomargin.training.loop import train
from isomargin.training.recipe import read_recipe

TINY = {
    "name": "tiny",
    "data": {"name": "glyphs", "draws": 1},
    "model": {"backbone": "small_conv", "dimensions": 16},
    "loss": {"base": {"name": "proxy_nca", "learning_rate_factor": 10}, "regularizer": {"name": "tcm", "weight": 2}},
    "batch": {"classes": 8, "images_per_class": 2},
    "optimizer": {"learning_rate": 1e-3},
    "epochs": 0.1,
    "evaluation": {"every": 0.03},
}
"""21 steps, evaluated after 6, 12, 18 and 21."""


def tiny(**sections):
    """The tiny recipe with sections replaced, or merged where both are dictionaries."""
    content = dict(TINY)
    for name, value in sections.items():
        both = isinstance(content.get(name), dict) and isinstance(value, dict)
        content[name] = {**content[name], **value} if both else value
    return read_recipe(content)


def run(folder, recipe=None, **options):
    options = {"quiet": True, "workers": 0, **options}
    return train(tiny() if recipe is None else recipe, folder, **options)


def metrics(folder):
    """The rows of metrics.csv, numbers as numbers."""
    with open(Path(folder) / "metrics.csv") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def command(*arguments, module=("-m", "isomargin"), **environment):
    """Start `isomargin` in a process of its own."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
        settings.pop(name, None)
    return subprocess.Popen(
        [sys.executable, *module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=settings,
    )
