"""A tiny training run that tests share: 40 classes of small patterns, a small net, a few steps."""

import atexit
import csv
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from data.layouts import picture
from isomargin.training.loop import train
from isomargin.training.recipe import read_recipe


@functools.cache
def patterns():
    """A folder with a file as Omniglot's: 30 training and 10 test classes, 10 images each."""
    folder = Path(tempfile.mkdtemp(prefix="isomargin-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    generator = np.random.default_rng(0)
    shapes = np.kron(generator.random((40, 7, 7)) < 0.4, np.ones((1, 4, 4)))
    labels = np.repeat(np.arange(40), 10)
    images = shapes[labels] * 180 + generator.integers(0, 75, (400, 28, 28))
    images = np.stack([np.roll(each, generator.integers(-2, 3, 2), (0, 1)) for each in images])
    names = np.array([f"pattern/{number:02}" for number in range(40)])
    np.savez(
        folder / "omniglot28.npz",
        images=images.astype(np.uint8),
        label=labels,
        class_name=names,
        background=np.arange(40) < 30,
    )
    return folder


TINY = {
    "name": "tiny",
    "data": {"name": "omniglot", "root": str(patterns())},
    "model": {"backbone": "small_conv", "dimensions": 16},
    "loss": {"base": {"name": "proxy_nca", "learning_rate_factor": 10}, "regularizer": {"name": "tcm", "weight": 2}},
    "batch": {"classes": 8, "images_per_class": 2},
    "optimizer": {"learning_rate": 1e-3},
    "epochs": 21 / 18,
    "evaluation": {"every": 1 / 3, "far": [0.05, 0.2]},
}
"""21 steps, 18 an epoch, evaluated after 6, 12, 18 and 21."""


def tiny(**sections):
    """The tiny recipe with sections replaced, or merged where both are dictionaries."""
    content = dict(TINY)
    for name, value in sections.items():
        both = isinstance(content.get(name), dict) and isinstance(value, dict)
        content[name] = {**content[name], **value} if both else value
    return read_recipe(content)


def photographs(root, classes=10, images=4):
    """A tree of class folders with small image files."""
    for number in range(classes):
        for each in range(images):
            picture(root / f"class {number}" / f"{each}.png", shade=100 * number + each, side=40)
    return root


def run(folder, recipe=None, **options):
    options = {"quiet": True, "workers": 0, **options}
    return train(tiny() if recipe is None else recipe, folder, **options)


def metrics(folder):
    """The rows of metrics.csv, numbers as numbers."""
    with open(Path(folder) / "metrics.csv") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def environment():
    """The environment of a process of its own: one thread, and part of no group of processes."""
    settings = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT"):
        settings.pop(name, None)
    return settings


def command(*arguments, start=("-m", "isomargin")):
    """Start `isomargin` in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *start, *map(str, arguments)], env=environment(), **pipes)
