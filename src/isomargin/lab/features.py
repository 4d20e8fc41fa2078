"""Features of a pretrained network, computed once: training heads on them takes seconds where images take minutes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isomargin.data.folder import class_folders
from isomargin.data.images import ImageSet, images_of_files
from isomargin.data.registry import load_data
from isomargin.embeddings import EmbeddingSet
from isomargin.models.embedder import make_model
from isomargin.training.embed import as_embedding_set, default_workers, embed

PARTS = ("train", "test")


def make_features(
    name: str, images: Path, folder: Path, model: Mapping[str, Any], report: Callable[[str], None]
) -> None:
    """Embed a data set's training and test images, unless that has been done.

    Writes `folder`/given/train.npz and test.npz, and `folder`/all.npz with both together, to be divided by class.
    """
    if (folder / "all.npz").is_file():
        return
    found = read_parts(name, images)
    torch.manual_seed(0)  # of a network without pretrained weights
    network = make_model({**model, "dimensions": None, "normalise": False}).channels_last()
    (folder / "given").mkdir(parents=True, exist_ok=True)
    parts = []
    for part, chosen in zip(PARTS, found, strict=True):
        report(f"features of {len(chosen):,} images for {part}")
        parts.append(as_embedding_set(embed(network, chosen, 128, workers=default_workers()), chosen))
        parts[-1].save(folder / "given" / f"{part}.npz")
    vectors = np.concatenate([np.asarray(each.vectors) for each in parts])
    EmbeddingSet(vectors, np.concatenate([each.labels for each in parts])).save(folder / "all.npz")


def read_parts(name: str, images: Path) -> list[ImageSet]:
    """Give a data set's training and test images: class folders within train and test, or as it is published.

    Of sets that can be divided in two ways it is the closed one: all classes are in both parts.
    """
    if all((images / part).is_dir() for part in PARTS):
        folders = [class_folders(images / part) for part in PARTS]
        return [images_of_files((each, path) for each in found for path in found[each]) for found in folders]
    divided = {"split": "closed"} if name in ("cub", "cars") else {}
    data = load_data(name, root=images, **divided)
    return [data.train, data.test]
