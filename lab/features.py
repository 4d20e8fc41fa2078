"""Features of a pretrained network, computed once: a head trains on them in seconds, on images in minutes."""

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
    """Embed a data set's training and test images, unless that has been done before.

    Writes `folder`/given/train.npz and test.npz, and `folder`/all.npz with both together, to be split by class. With
    `closed` every class must be in both parts.
    """
    made_with = {"data": name, "model": dict(model)}
    if (folder / "all.npz").is_file():
        check_made(folder, made_with)
        if closed:
            labels = [EmbeddingSet.load(folder / "given" / f"{part}.npz").labels for part in PARTS]
            check_closed([set(part.tolist()) for part in labels], images)
        return
    found = read_parts(name, images, closed)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # as training itself chooses
    torch.manual_seed(0)  # for a network without pretrained weights
    network = make_model({**model, "dimensions": None, "normalise": False}).to(device).channels_last()
    (folder / "given").mkdir(parents=True, exist_ok=True)
    embedded = []
    for part, chosen in zip(PARTS, found, strict=True):
        report(f"features of {len(chosen):,} images for {part}")
        vectors = embed(network, chosen, 128, workers=default_workers(), device=device)
        embedded.append(as_embedding_set(vectors, chosen))
        embedded[-1].save(folder / "given" / f"{part}.npz")
    write_json(folder / SETTINGS, made_with)
    everything = np.concatenate([np.asarray(part.vectors) for part in embedded])
    EmbeddingSet(everything, np.concatenate([part.labels for part in embedded])).save(folder / "all.npz")


def check_made(folder: Path, wanted: dict[str, Any]) -> None:
    """Refuse features of another network: runs on them would be taken for runs on this one."""
    path = folder / SETTINGS
    made = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else wanted
    if made != wanted:
        raise InputError(f"{folder} holds features of {made} and not of {wanted}: move it away to compute them again")


def check_closed(classes: Sequence[Set[str]], images: Path) -> None:
    """Refuse training and test parts that do not have the same classes.

    >>> check_closed([{"owl", "wren"}, {"owl"}], Path("birds"))
    Traceback (most recent call last):
    isomargin.InputError: birds: 1 of 2 classes is in one part only, the first is 'wren': ...
    """
    train, test = classes
    alone = sorted(train ^ test)
    if alone:
        raise InputError(
            f"{images}: {len(alone)} of {len(train | test)} classes {'is' if len(alone) == 1 else 'are'} in one part "
            f"only, the first is {alone[0]!r}: every class needs images in train and in test, as in the data set's own "
            "files"
        )


def read_parts(data_set: str, images: Path, closed: bool = False) -> list[ImageSet]:
    """Read a data set's training and test images: class folders within train and test, or the published layout.

    Data sets that can be split in two ways are split so that every class is in both parts. With `closed`, parts where
    that is not so are refused.
    """
    if all((images / part).is_dir() for part in PARTS):
        folders = [class_folders(images / part) for part in PARTS]
        parts = [images_of_files((name, path) for name in found for path in found[name]) for found in folders]
    else:
        split = {"split": "closed"} if data_set in ("cub", "cars") else {}
        data = load_data(data_set, root=images, **split)
        parts = [data.train, data.test]
    if closed:
        check_closed([set(part.class_names) for part in parts], images)
    return parts
