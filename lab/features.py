"""Features of a pretrained network, computed once: training heads on them takes seconds where images take minutes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isomargin.core.errors import InputError
from isomargin.data.folder import class_folders
from isomargin.data.images import ImageSet, images_of_files
from isomargin.data.registry import load_data
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.models.embedder import make_model
from isomargin.training.embed import as_embedding_set, default_workers, embed
from lab.files import write_json

PARTS = ("train", "test")
SETTINGS = "features.json"


def make_features(
    name: str,
    images: Path,
    folder: Path,
    model: Mapping[str, Any],
    report: Callable[[str], None],
    closed: bool = False,
) -> None:
    """Embed a data set's training and test images, unless that has been done.

    Writes `folder`/given/train.npz and test.npz, and `folder`/all.npz with both together, to be divided by class. With
    `closed` all classes must be in both parts.
    """
    made_with = {"data": name, "model": dict(model)}
    if (folder / "all.npz").is_file():
        check_made(folder, made_with)
        if closed:
            labels = [EmbeddingSet.load(folder / "given" / f"{part}.npz").labels for part in PARTS]
            check_closed([set(each.tolist()) for each in labels], images)
        return
    found = read_parts(name, images, closed)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # as training itself chooses
    torch.manual_seed(0)  # of a network without pretrained weights
    network = make_model({**model, "dimensions": None, "normalise": False}).to(device).channels_last()
    (folder / "given").mkdir(parents=True, exist_ok=True)
    parts = []
    for part, chosen in zip(PARTS, found, strict=True):
        report(f"features of {len(chosen):,} images for {part}")
        vectors = embed(network, chosen, 128, workers=default_workers(), device=device)
        parts.append(as_embedding_set(vectors, chosen))
        parts[-1].save(folder / "given" / f"{part}.npz")
    write_json(folder / SETTINGS, made_with)
    everything = np.concatenate([np.asarray(each.vectors) for each in parts])
    EmbeddingSet(everything, np.concatenate([each.labels for each in parts])).save(folder / "all.npz")


def check_made(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse features that were made with another network: runs on them would pass for those of this one."""
    path = folder / SETTINGS
    made = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else wanted
    if made != wanted:
        raise InputError(f"{folder} holds features of {made} and not of {wanted}: move it away to make them anew")


def check_closed(classes: Sequence[Set[str]], images: Path) -> None:
    """Refuse parts that do not have the same classes, where all are to be trained on and tested with.

    >>> check_closed([{"owl", "wren"}, {"owl"}], Path("birds"))
    Traceback (most recent call last):
    isomargin.InputError: birds: 1 of 2 classes is in one part alone, the first is 'wren': ...
    """
    train, test = classes
    alone = sorted(train ^ test)
    if alone:
        raise InputError(
            f"{images}: {len(alone)} of {len(train | test)} classes {'is' if len(alone) == 1 else 'are'} in one part "
            f"alone, the first is {alone[0]!r}: images of every class are needed in train and in test, as in the "
            "data set's own files"
        )


def read_parts(name: str, images: Path, closed: bool = False) -> list[ImageSet]:
    """Give a data set's training and test images: class folders within train and test, or as it is published.

    Of sets that can be divided in two ways it is the closed one: all classes are in both parts. With `closed` parts
    without that are refused.
    """
    if all((images / part).is_dir() for part in PARTS):
        folders = [class_folders(images / part) for part in PARTS]
        parts = [images_of_files((each, path) for each in found for path in found[each]) for found in folders]
    else:
        divided = {"split": "closed"} if name in ("cub", "cars") else {}
        data = load_data(name, root=images, **divided)
        parts = [data.train, data.test]
    if closed:
        check_closed([set(part.class_names) for part in parts], images)
    return parts
