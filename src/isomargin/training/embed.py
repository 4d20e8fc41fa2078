"""Embeddings of a set of images by a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.data.feeding import unseen_batches
from isomargin.data.folder import class_folders
from isomargin.data.images import ImageSet, images_of_files, joined, without_bad
from isomargin.data.registry import load_data
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.io.formats import check_suffix
from isomargin.models.embedder import Embedder
from isomargin.training.recipe import load_recipe
from isomargin.training.run import open_run


def embed(
    model: Embedder,
    images: ImageSet,
    batch: int = 256,
    resize: int | None = None,
    workers: int = 0,
    device: torch.device | str = "cpu",
    rows: NDArray[np.int64] | None = None,
    report: Callable[[float], None] | None = None,
) -> NDArray[np.float32]:
    """Embed images, (n, dimensions) in their order.

    Parameters
    ----------
    model: in whatever mode; it is in eval mode meanwhile.
    images: the set.
    batch: how many at a time.
    resize: of files, the shorter side before the centre is cut out.
    workers: processes that decode files.
    device: where the model is.
    rows: which images; all if not given.
    report: called with the share that is done.

    >>> from isomargin.models.embedder import make_model
    >>> model = make_model({"backbone": "small_conv", "dimensions": 16})
    >>> embed(model, ImageSet(np.zeros(3, np.int64), ("a",), pixels=np.zeros((3, 28, 28), np.uint8))).shape
    (3, 16)
    """
    which = np.arange(len(images)) if rows is None else rows
    channels, size = len(model.input_statistics.mean), model.input_statistics.size
    embeddings = np.empty((len(which), model.dimensions), np.float32)
    was_training = model.training
    model.eval()
    done = 0
    try:
        with torch.inference_mode():
            for part in unseen_batches(images, which, size, channels, batch, resize, workers, device):
                vectors = model(part)
                embeddings[done : done + len(part)] = vectors.float().cpu().numpy()
                done += len(part)
                if report is not None:
                    report(done / len(which))
    finally:
        model.train(was_training)
    return embeddings


def as_embedding_set(vectors: NDArray[Any], images: ImageSet) -> EmbeddingSet:
    """Put embeddings and the names of their classes together."""
    return EmbeddingSet(vectors, np.array(images.class_names)[images.labels])


def embed_by_run(
    run: Path,
    changes: Sequence[str] = (),
    images: Path | None = None,
    part: str = "test",
    output: Path | None = None,
    batch: int = 256,
    device: str = "cpu",
    workers: int | None = None,
    report: Callable[[float], None] | None = None,
) -> EmbeddingSet:
    """Embed data with a run's model, and write the embeddings to `output` if it is given.

    The data are all images in the class folders of `images`, or else a part of the run's own data: "test", "train" or
    "all", as its recipe with the changes says.
    """
    recipe, model = open_run(run)
    if output is not None:
        check_suffix(output)
    if images is not None:
        if changes:
            raise InputError(f"{changes[0]!r} changes the run's data, and images is given in its place: give one")
        found = class_folders(images)
        if not found:
            raise InputError(f"{images} holds no images: folders with images are needed")
        chosen = images_of_files((name, path) for name in found for path in found[name])
    else:
        checks.one_of(part, "part", ("test", "train", "all"))
        settings = dict(load_recipe(run / "recipe.yaml", changes).data)
        data = load_data(settings.pop("name"), **settings)
        data = without_bad(data) if recipe.skip_bad_images else data
        chosen = {"test": data.test, "train": data.train}.get(part) or joined(data.train, data.test)
    workers = default_workers() if workers is None else workers
    vectors = embed(
        model.to(device).channels_last(), chosen, batch, recipe.augmentation.resize, workers, device, report=report
    )
    made = as_embedding_set(vectors, chosen)
    if output is not None:
        made.save(output)
    return made


def default_workers() -> int:
    """Say how many processes decode files: as many as there are cores, up to 8."""
    return min(os.cpu_count() or 1, 8)
