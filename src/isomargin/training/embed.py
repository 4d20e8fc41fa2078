"""Embeddings of images, or of vectors, by a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.data.feeding import unseen_batches
from isomargin.data.images import ImageSet, find_bad_images
from isomargin.data.registry import load_all, load_data
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.io.formats import check_suffix
from isomargin.models.embedder import Embedder
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run import open_run

_LARGE = 96  # pixels from which a CPU embeds fewer images at once: the maps of many do not fit into its caches
_AT_ONCE = 32


def embed(
    model: Embedder,
    images: ImageSet,
    batch: int = 256,
    resize: int | None = None,
    workers: int = 0,
    device: torch.device | str = "cpu",
    rows: NDArray[np.int64] | None = None,
    report: Callable[[float], None] | None = None,
    stages: NDArray[np.float16] | None = None,
) -> NDArray[np.float32]:
    """Embed items: (n, dimensions), in their order.

    Parameters
    ----------
    model: in any mode; it is in eval mode during the call.
    images: the items.
    batch: how many to embed at a time.
    resize: of files, the shorter side before the centre is cropped.
    workers: processes that decode files.
    device: the device of the model.
    rows: which items; all if not given.
    report: called with the share that is done.
    stages: (n, channels, height, width), what the model's frozen stages return for the items, if that is known.

    >>> from isomargin.models.embedder import make_model
    >>> model = make_model({"backbone": "small_conv", "dimensions": 16})
    >>> embed(model, ImageSet(np.zeros(3, np.int64), ("a",), pixels=np.zeros((3, 28, 28), np.uint8))).shape
    (3, 16)
    """
    which = np.arange(len(images)) if rows is None else rows
    channels, size = len(model.input_statistics.mean), model.test_size
    embeddings = np.empty((len(which), model.dimensions), np.float32)
    was_training = model.training
    model.eval()
    done = 0
    try:
        with torch.inference_mode():
            kept = stages is not None
            for part in (
                unseen_batches(images, which, size, channels, batch, resize, workers, device)
                if stages is None
                else _batches_of_maps(stages, which, batch, device)
            ):
                for piece in torch.split(part, _AT_ONCE if part.device.type == "cpu" and size >= _LARGE else batch):
                    vectors = model(piece, from_stages=True) if kept else model(piece)
                    embeddings[done : done + len(piece)] = vectors.float().cpu().numpy()
                    done += len(piece)
                if report is not None:
                    report(done / len(which))
    finally:
        model.train(was_training)
    return embeddings


def _batches_of_maps(
    stages: NDArray[np.float16], rows: NDArray[np.int64], batch: int, device: torch.device | str
) -> Iterator[torch.Tensor]:
    for start in range(0, len(rows), batch):
        maps = torch.from_numpy(np.asarray(stages[rows[start : start + batch]])).to(device)
        yield maps.float().contiguous(memory_format=torch.channels_last)


def as_embedding_set(vectors: NDArray[Any], images: ImageSet, root: Path | None = None) -> EmbeddingSet:
    """Combine embeddings with the labels and ids of their items; the ids of files are their paths from `root`."""
    names = np.array(images.class_names) if images.class_labels is None else images.class_labels
    ids = images.ids
    if ids is None and images.paths is not None and root is not None:
        ids = np.array([Path(os.path.relpath(path, root)).as_posix() for path in images.paths])
    return EmbeddingSet(vectors, names[images.labels], ids)


def embed_by_run(
    run: Path,
    changes: Sequence[str] = (),
    images: Path | None = None,
    part: str = "all",
    output: Path | None = None,
    batch: int = 256,
    device: str = "cpu",
    workers: int | None = None,
    report: Callable[[float], None] | None = None,
) -> EmbeddingSet:
    """Embed items with a run's model, and write the embeddings to `output` if it is given.

    The items are those of `images`, a tree of class folders or a file of embeddings. Without `images` they are the data
    of the run's recipe, with the changes: "all" of it, or its "train" or "test" part. The order is that of `load_all`,
    and labels are those of the source.
    """
    recipe, model = open_run(run)
    if output is not None:
        check_suffix(output)
    if images is not None and changes:
        raise InputError(f"{changes[0]!r} changes the run's data, and images replaces them: give one of the two")
    if images is not None:
        recipe = recipe.model_copy(update={"data": _data_at(images)})
    else:
        recipe = load_recipe(run / "recipe.yaml", changes)
    chosen = _items(recipe, checks.one_of(part, "part", ("test", "train", "all")))
    workers = default_workers() if workers is None else workers
    vectors = embed(
        model.to(device).channels_last(), chosen, batch, recipe.augmentation.resize, workers, device, report=report
    )
    embeddings = as_embedding_set(vectors, chosen, data_root(recipe))
    if output is not None:
        embeddings.save(output)
    return embeddings


def data_root(recipe: Recipe) -> Path | None:
    """Return the path of a recipe's data; None where they are generated, not read."""
    root = recipe.data.get("root")
    return None if root is None else Path(str(root)).expanduser()


def _data_at(path: Path) -> dict[str, Any]:
    """Return the settings of the data at a path: class folders, or a file of embeddings."""
    return {"name": "embeddings" if path.is_file() else "folder", "root": str(path)}


def _items(recipe: Recipe, part: str) -> ImageSet:
    """Read a part or all of a recipe's data; without files that cannot be decoded, if the recipe says so."""
    settings = dict(recipe.data)
    name = settings.pop("name")
    if recipe.all_classes and part == "test":
        raise InputError("the run was trained on all classes: it has no test part, take --part all")
    if part == "all" or recipe.all_classes:
        images = load_all(name, **settings)
    else:
        data = load_data(name, **settings)
        images = data.train if part == "train" else data.test
    return images.select(_readable(images)) if recipe.skip_bad_images else images


def _readable(images: ImageSet) -> NDArray[np.int64]:
    """List the rows whose files can be decoded."""
    bad = {path for path, _ in find_bad_images(images)}
    return np.array([row for row in range(len(images)) if images.paths is None or images.paths[row] not in bad])


def default_workers() -> int:
    """Return how many processes decode files: the number of cores, up to 8."""
    return min(os.cpu_count() or 1, 8)
