"""Features of a pretrained network, computed once: training heads on them takes seconds where images take minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.data.folder import class_folders
from isomargin.data.images import images_of_files
from isomargin.embeddings import EmbeddingSet
from isomargin.errors import InputError
from isomargin.models.embedder import make_model
from isomargin.training.embed import as_embedding_set, default_workers, embed

PARTS = ("train", "test")


def make_features(images: Path, folder: Path, model: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """Embed the class folders in `images`/train and `images`/test, unless that has been done.

    Writes `folder`/closed/train.npz and test.npz, and `folder`/open.npz with both together, to be divided by class.
    """
    if (folder / "open.npz").is_file():
        return
    for part in PARTS:
        if not (images / part).is_dir():
            raise InputError(f"{images} has no folder {part}: class folders within train and test are needed")
    network = make_model({**model, "dimensions": None, "normalise": False}).channels_last()
    (folder / "closed").mkdir(parents=True, exist_ok=True)
    parts = []
    for part in PARTS:
        found = class_folders(images / part)
        chosen = images_of_files((name, path) for name in found for path in found[name])
        report(f"features of {len(chosen):,} images in {images / part}")
        parts.append(as_embedding_set(embed(network, chosen, 128, workers=default_workers()), chosen))
        parts[-1].save(folder / "closed" / f"{part}.npz")
    vectors = np.concatenate([np.asarray(each.vectors) for each in parts])
    EmbeddingSet(vectors, np.concatenate([each.labels for each in parts])).save(folder / "open.npz")
