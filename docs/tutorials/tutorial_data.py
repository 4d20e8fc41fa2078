"""The requests of the tutorials: CLINC150 if you have its files, made vectors of the same shape if you have not."""

import gzip
import os
from pathlib import Path

import numpy as np

PLACES = [os.environ.get("ISOMARGIN_DATA", "."), "."]
"""Folders in which the files are looked for."""


def load_requests():
    """CLINC150 embedded by WordLlama: vectors (23850, 256), intents (23850,) or "oos" for out of scope, and parts."""
    found = find("clinc150-wordllama256.npz")
    if found is not None:
        return found["embeddings"].astype(np.float32), found["labels"], found["part"]
    vectors, intents = make_vectors(classes=150, items=150, width=256, name="intent")
    parts = np.tile(np.repeat(["train", "val", "test"], [100, 20, 30]), 150)
    others, _ = make_vectors(classes=50, items=27, width=256, name="oos", seed=1)
    oos_parts = np.repeat(["oos_train", "oos_val", "oos_test"], [100, 100, 1150])
    return np.vstack([vectors, others]), np.append(intents, ["oos"] * 1350), np.append(parts, oos_parts)


def load_texts():
    """The requests of `load_requests` as text, in the same order."""
    for place in PLACES:
        if (Path(place) / "clinc150.tsv.gz").is_file():
            with gzip.open(Path(place) / "clinc150.tsv.gz", "rt", encoding="utf-8") as lines:
                return [line.rstrip("\n").split("\t")[2] for line in lines]
    return [f"request {number}" for number in range(23850)]


def find(name):
    """The arrays of a file, or None."""
    for place in PLACES:
        if (Path(place) / name).is_file():
            return np.load(Path(place) / name)
    print(f"{name} was not found, so these are made vectors: your numbers will differ from those on the page.")
    return None


def make_vectors(classes, items, width, name, seed=0):
    """Classes of unequal width in regions of unequal density, as real ones are."""
    generator = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(classes), items)
    regions = 1.5 * generator.normal(size=(10, width))
    crowding = np.linspace(0.5, 1.5, 10)[np.arange(classes) % 10, None]
    centres = regions[np.arange(classes) % 10] + crowding * generator.normal(size=(classes, width))
    spread = np.linspace(0.8, 1.6, classes)[generator.permutation(classes)][numbers, None]
    vectors = centres[numbers] + spread * generator.normal(size=(len(numbers), width))
    return vectors.astype(np.float32), np.array([f"{name}-{number:03}" for number in numbers])
