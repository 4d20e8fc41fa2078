"""Evaluations during a run and at its end."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from isomargin.core.errors import DivergedError, InputError
from isomargin.core.files import atomic_write
from isomargin.data.images import ImageSet
from isomargin.losses.gather import gather
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores.registry import find_score
from isomargin.measure.settings import Pairs
from isomargin.models.embedder import Embedder, make_model
from isomargin.training.embed import as_embedding_set, data_root, embed
from isomargin.training.frozen_stages import FrozenStages
from isomargin.training.recipe import Recipe
from isomargin.training.run_folder import RunFolder
from isomargin.training.setup import NOT_EVALUATED, RecipeData

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SCORES = ("map_at_r", "opis", "epsilon_opis", "mean_utility", "eer")  # and recall@k; all are in the registry


def evaluation_steps(recipe: Recipe, batches: int, steps: int) -> frozenset[int]:
    """List the steps after which the model is evaluated, including the last.

    >>> recipe = Recipe(name="a", data={}, model={}, loss={"base": "tcm"}, evaluation={"every": 0.5})
    >>> sorted(evaluation_steps(recipe, batches=10, steps=17))
    [5, 10, 15, 17]
    """
    every = max(1, round(recipe.evaluation.every * batches))
    return frozenset({*range(every, steps + 1, every), steps})


def score(
    fabric: Fabric,
    embedder: Embedder,
    images: ImageSet,
    recipe: Recipe,
    workers: int,
    frozen: FrozenStages | None = None,
) -> dict[str, float]:
    """Evaluate the model and return the scores for a row of metrics.csv, the same in all processes."""
    vectors = embed_together(fabric, embedder, images, recipe, workers, frozen)
    scores: dict[str, float] = {}
    if fabric.global_rank == 0:
        evaluation = _evaluate(vectors, images.labels, recipe, recipe.evaluation.pairs[0])
        scores = {f"recall@{k}": value for k, value in evaluation.recall_at_k.items()}
        scores |= {name: find_score(name).read(evaluation) for name in SCORES}
        scores |= {"target_distance": evaluation.target.distance, "target_frr": evaluation.target.frr}
    return fabric.broadcast(scores)


def _evaluate(vectors: NDArray[np.float32], labels: NDArray[Any], recipe: Recipe, pairs: Pairs) -> Evaluation:
    """Evaluate with the settings of the recipe; warnings are in the notes of the evaluation."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return evaluate(vectors, labels, **recipe.evaluation.settings(pairs), progress=None)
    except InputError as error:  # the labels and the rates were checked before training
        raise DivergedError(
            f"the model cannot be evaluated ({error}): its embeddings have collapsed, lower optimizer.learning_rate or "
            "the regularizer's weight"
        ) from error


def embed_together(
    fabric: Fabric,
    embedder: Embedder,
    images: ImageSet,
    recipe: Recipe,
    workers: int,
    frozen: FrozenStages | None = None,
) -> NDArray[np.float32]:
    """Embed items, each process a part of them; return (n, dimensions) in all processes."""
    rows = np.arange(fabric.global_rank, len(images), fabric.world_size)
    if fabric.world_size > 1:  # each process has its BatchNorm statistics; those of the first are used
        for buffer in embedder.buffers():
            torch.distributed.broadcast(buffer, src=0)
    with fabric.autocast():
        vectors = embed(
            embedder,
            images,
            recipe.evaluation.batch,
            recipe.augmentation.resize,
            workers,
            fabric.device,
            rows=rows,
            stages=None if frozen is None else frozen.of_tests(images),
        )
    if fabric.world_size == 1:
        return vectors
    gathered, places = gather(torch.from_numpy(vectors).to(fabric.device), torch.from_numpy(rows).to(fabric.device))
    everything = np.empty((len(images), embedder.dimensions), np.float32)
    everything[places.cpu().numpy()] = gathered.cpu().numpy()
    return everything


def finish(
    fabric: Fabric,
    run: RunFolder,
    embedder: Embedder,
    data: RecipeData,
    recipe: Recipe,
    workers: int,
    frozen: FrozenStages | None = None,
    compare_frozen: bool = True,
) -> Evaluation | None:
    """Evaluate the chosen model, on the test items unless the recipe says otherwise, and write the last files.

    Where all classes were trained on there is nothing to evaluate, and the last file says so.
    """
    images = data.test if recipe.evaluation.test else data.unseen
    if images is None:
        if fabric.global_rank == 0:
            with atomic_write(run.not_evaluated) as temporary:
                temporary.write_text(f"{NOT_EVALUATED}\n", encoding="utf-8")
        fabric.barrier()
        return None
    vectors = embed_together(fabric, embedder, images, recipe, workers, frozen)
    raw = raw_features(fabric, images, recipe, workers, frozen) if compare_frozen else None
    if fabric.global_rank == 0:
        embeddings = as_embedding_set(vectors, images, data_root(recipe))
        main, *others = recipe.evaluation.pairs
        evaluation = _evaluate(vectors, embeddings.labels, recipe, main)
        embeddings.save(run.embeddings)
        for pairs in others:
            _evaluate(vectors, embeddings.labels, recipe, pairs).save(run.evaluation_of(pairs))
        if raw is not None:
            with suppress(DivergedError):  # vectors without a direction can be trained on, but not be compared
                _evaluate(raw, embeddings.labels, recipe, main).save(run.raw_evaluation)
        evaluation.save(run.evaluation)
    fabric.barrier()
    return Evaluation.load(run.evaluation)


def raw_features(
    fabric: Fabric, images: ImageSet, recipe: Recipe, workers: int, frozen: FrozenStages | None
) -> NDArray[np.float32] | None:
    """Return what training should beat: the vectors that a head is trained on, or a pretrained network's features.

    These are the pooled features of the backbone with its weights from before training; None without such weights.
    """
    if images.vectors is not None:
        return np.asarray(images.vectors)
    if recipe.model.get("weights") is None:
        return None
    try:
        untrained = make_model({**recipe.model, "layer_norm": False, "dimensions": None})
    except InputError:  # the weights are no longer where they were: a finished training must not fail for that
        return None
    return embed_together(fabric, untrained.to(fabric.device).channels_last(), images, recipe, workers, frozen)
