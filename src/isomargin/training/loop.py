"""The training loop: a recipe in, a run's folder out.

    isomargin train recipes/glyphs.yaml                                     one process
    isomargin train recipes/cub-lite0.yaml data.root=FOLDER --devices 2     two, on this machine
    torchrun --nproc-per-node 2 -m isomargin train recipes/cub-lite0.yaml data.root=FOLDER
    isomargin train runs/cub-lite0 --resume                                 continue after a stop

Everything random is a function of the recipe's seed and the step. So a checkpoint holds only the parameters, the state
of the optimiser and the scores, and a run that was killed and resumed ends with the same numbers.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.data.augment import RandomCrop
from isomargin.data.feeding import Augmentation, training_batches
from isomargin.data.sampler import ClassBatchSampler
from isomargin.losses import MetricLoss
from isomargin.losses.gather import gather
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores.registry import find_score
from isomargin.models.embedder import Embedder
from isomargin.training import setup
from isomargin.training.agreement import check_same, one_sentence, together
from isomargin.training.checkpoint import find_checkpoints, load_model, write_checkpoint
from isomargin.training.devices import (
    any_process,
    first_process,
    interruptions,
    keep_freed_memory,
    launch,
    leave_out_idle,
    settle_order,
    started_elsewhere,
)
from isomargin.training.display import Display, NoDisplay
from isomargin.training.embed import default_workers
from isomargin.training.frozen_stages import FrozenStages, batches_of_views
from isomargin.training.large_batch import large_batch_backward
from isomargin.training.locking import claim, sole_training
from isomargin.training.pretrained_share import averaged, pretrained_weights
from isomargin.training.recipe import Recipe
from isomargin.training.run_folder import RunFolder, write_metrics
from isomargin.training.schedule import Plateau
from isomargin.training.scoring import evaluation_steps, finish, score
from isomargin.training.state import Log, State, on_cpu, restore, save

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    devices: int = 1,
    accelerator: str = "auto",
    workers: int | None = None,
    check_images: bool = True,
    quiet: bool = False,
    lock: bool = True,
    checkpoint_seconds: float = 300.0,
    cache: str | os.PathLike[str] | None = None,
    compare_frozen: bool = True,
) -> Evaluation | None:
    """Train by a recipe and evaluate; return the evaluation at the end of the run.

    With the recipe's `all_classes` there is no evaluation, and None is returned.

    Parameters
    ----------
    recipe: all settings that make a difference to the result.
    folder: of the run; see `RunFolder` for what is written there.
    resume: continue from the last good checkpoint in the folder, which must be of the same recipe; start if there is
        none.
    devices: processes on this machine; they are started here, unless torchrun or Ray Train started them.
    accelerator: "auto", "cpu" or "cuda".
    workers: processes per device that decode image files; the number of cores, up to 8, if not given.
    check_images: whether to decode every file before training; files that cannot be decoded are an error.
    quiet: print nothing.
    lock: whether to refuse a folder that another process trains in; False where the caller holds its lock.
    checkpoint_seconds: the longest time between checkpoints; there is always one at each evaluation.
    cache: folder for the outputs of frozen stages (`augmentation.views`), which other runs with the same stages and
        images use too; without it they are in the run's folder, and are deleted when the run is finished.
    compare_frozen: whether to evaluate the features from before training too, which takes another pass over the test
        images.

    >>> from tempfile import TemporaryDirectory
    >>> from isomargin.io.embedding_set import EmbeddingSet
    >>> from isomargin.training.recipe import read_recipe
    >>> generator, labels = np.random.default_rng(0), np.repeat(np.arange(20), 10)
    >>> vectors = generator.normal(size=(20, 8))[labels] + generator.normal(size=(200, 8))
    >>> head = {"name": "head", "model": {"backbone": "vectors", "dimensions": 4}, "batch": {"classes": 5}}
    >>> with TemporaryDirectory() as folder:
    ...     EmbeddingSet(vectors, labels).save(f"{folder}/features.npz")
    ...     data = {"name": "embeddings", "root": f"{folder}/features.npz"}
    ...     recipe = read_recipe({**head, "data": data, "loss": {"base": "smooth_ap"}, "epochs": 1})
    ...     evaluation = train(recipe, f"{folder}/run", quiet=True)
    >>> evaluation.class_count
    10
    """
    run, first = RunFolder(Path(folder)), first_process()
    workers = default_workers() if workers is None else checks.whole(workers, "workers", least=0)
    begin = partial(launch, recipe, devices, accelerator)
    joined = begin() if started_elsewhere() else None  # others are started after the checks, by the first process
    with ExitStack() as held:
        with together(joined):
            if first and lock:
                held.enter_context(sole_training(run.path))
            if first:
                claim(run, recipe, resume)
        with one_sentence(run):
            if run.finished if joined is None else joined.broadcast(run.finished):
                return Evaluation.load(run.evaluation) if run.evaluation.is_file() else None
            place = None if cache is None else Path(cache)
            return _train(
                recipe,
                run,
                first,
                joined,
                begin,
                workers,
                check_images,
                quiet,
                checkpoint_seconds,
                place,
                compare_frozen,
            )


def _train(
    recipe: Recipe,
    run: RunFolder,
    first: bool,
    joined: Fabric | None,
    begin: Callable[[], Fabric],
    workers: int,
    check_images: bool,
    quiet: bool,
    checkpoint_seconds: float,
    cache: Path | None,
    compare_frozen: bool,
) -> Evaluation | None:
    """Train in a folder that was claimed, from its last checkpoint if it has one."""
    resume = bool(find_checkpoints(run.checkpoints))  # a run that was killed before its first starts again
    data = None
    with together(joined):  # without others yet: errors come before they start
        if first or not recipe.skip_bad_images:
            data = setup.open_data(recipe, check_images and first and not resume)
    fabric = begin() if joined is None else joined
    resume, bad = fabric.broadcast((resume, () if data is None else data.bad))
    with together(fabric):
        if data is None:  # the first process has looked for bad images
            data = setup.open_data(recipe, False, bad)
    check_same(fabric, {"the settings": recipe.model_dump_json(), "the items or classes": data.digest})
    if fabric.device.type == "cpu":
        keep_freed_memory()

    embedder = setup.make_recipe_model(recipe, data.train, load_weights=not resume)
    pretrained = pretrained_weights(recipe)
    recipe = setup.with_features(recipe, data.train)
    loss = setup.make_recipe_loss(recipe, len(data.train.class_names), embedder.dimensions).to(fabric.device)
    if recipe.precision == "64-true":
        loss.double()  # as fabric converts the model
    sampler = setup.make_sampler(recipe, data.train, fabric.global_rank, fabric.world_size)
    augmentation = setup.make_augmentation(recipe, data.train)
    setup.check_warm_up(recipe, embedder)
    setup.check_views(recipe, embedder, augmentation)
    leave_out_idle(embedder)
    model = fabric.setup_module(embedder)
    settle_order(fabric, model, embedder)
    optimizer: Any = fabric.setup_optimizers(setup.make_optimizer(recipe, embedder, loss))
    base_rates = [group["lr"] for group in optimizer.param_groups]
    schedule = setup.make_schedule(recipe)
    batches, steps = len(sampler), setup.count_steps(recipe, len(sampler))
    due = evaluation_steps(recipe, batches, steps)
    warm_up = round(recipe.schedule.warm_up_epochs * batches)

    state, notes = State(), [*data.notes, *setup.check_positive_pairs(recipe, loss), *_choice_note(recipe)]
    if resume:
        notes += restore(fabric, run, state, embedder, loss, optimizer, schedule, data.digest)
    if first:
        recipe.save(run.recipe)
        write_metrics(run.metrics, state.history)  # the run may have been killed between the checkpoint and this
    frozen = _frozen_stages(fabric, recipe, run, embedder, workers, cache)
    feed = _feed(fabric, recipe, data, sampler, range(state.step, steps), embedder, augmentation, workers, frozen)
    log = Log(run, state, first)
    display = Display(recipe.name, steps, state.step, batches) if first and not quiet else NoDisplay()
    for note in notes:
        display.say(f"note: {note}")

    batch_loss = _in_batch_order(loss, sampler, fabric.device)
    embedder.freeze_backbone(state.step < warm_up)
    unseen = data.unseen
    evaluate_now = (
        partial(score, fabric, embedder, unseen, recipe, workers, frozen) if unseen is not None else dict[str, float]
    )
    keep = partial(save, fabric, run, state, embedder, loss, optimizer, schedule, data.digest)
    saved = time.monotonic()
    with interruptions() as interrupted:
        try:
            for batch, labels in feed:  # (n, channels, size, size), (n,): the share of this process
                multiple = schedule(state.step / batches)
                for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
                    group["lr"] = rate * multiple
                if state.step == warm_up:
                    embedder.freeze_backbone(False)
                seed_step(recipe.seed, state.step, fabric.global_rank)

                optimizer.zero_grad()
                value = _backward(fabric, model, batch, labels, batch_loss, recipe, from_stages=frozen is not None)
                _share_gradients(fabric, loss)
                clip(fabric, model, optimizer, recipe)
                optimizer.step()

                state.step += 1
                state.add(loss.values)
                display.step(state.step, value)
                if state.step in due:
                    row = {"step": state.step, "epoch": state.step / batches, "learning_rate": base_rates[0] * multiple}
                    with averaged(embedder, pretrained, recipe.pretrained_share):
                        row |= state.means() | evaluate_now()
                        _take_note(fabric, run, state, embedder, schedule, recipe, row)
                    log.write(row)
                    display.evaluated(row)
                stop = any_process(fabric, interrupted())
                overdue = any_process(fabric, time.monotonic() - saved > checkpoint_seconds)
                if state.step in due or overdue or stop:
                    keep()
                    saved = time.monotonic()
                if stop and state.step < steps:
                    raise KeyboardInterrupt(f"stopped after step {state.step} of {steps}, which is saved")
        finally:
            display.close()
            log.close()
    if state.chosen != state.step or pretrained:
        fabric.barrier()  # the first process writes the model
        load_model(run.model, embedder)
    evaluation = finish(fabric, run, embedder, data, recipe, workers, frozen, compare_frozen)
    if frozen is not None and cache is None and first:
        shutil.rmtree(frozen.folder)
    return evaluation


def _frozen_stages(
    fabric: Fabric, recipe: Recipe, run: RunFolder, embedder: Embedder, workers: int, cache: Path | None
) -> FrozenStages | None:
    """Return where the outputs of frozen stages are kept, if the recipe says that they are."""
    if recipe.augmentation.views is None:
        return None
    folder = run.path / "frozen-stages" if cache is None else cache
    return FrozenStages(embedder, folder, workers, recipe.augmentation.resize, fabric.device)


def _feed(
    fabric: Fabric,
    recipe: Recipe,
    data: setup.RecipeData,
    sampler: ClassBatchSampler,
    steps: range,
    embedder: Embedder,
    augmentation: Augmentation,
    workers: int,
    frozen: FrozenStages | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return batches of images, normalised or uint8, or of what the frozen stages make of them, computed here."""
    views = recipe.augmentation.views
    if frozen is not None and views is not None and isinstance(augmentation, RandomCrop):
        maps = frozen.of_views(data.train, augmentation, views)
        return batches_of_views(maps, data.train.labels, sampler, steps, fabric.device)
    images = embedder.input_statistics
    feed = training_batches(
        data.train,
        sampler,
        steps,
        images.size,
        len(images.mean),
        augmentation,
        recipe.augmentation.resize,
        workers,
        fabric.device,
    )
    # uint8 is normalised by the model, chunk by chunk
    return ((embedder.normalised(batch) if batch.is_floating_point() else batch, labels) for batch, labels in feed)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Set torch's random state for a step of a process."""
    number = int(np.random.SeedSequence([seed, step, rank + 1, 1]).generate_state(1, np.uint32)[0])
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes 100 times as long where there is no GPU
    if torch.cuda.is_available():
        torch.cuda.manual_seed(number)


def _backward(
    fabric: Fabric,
    model: Any,
    batch: Tensor,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    recipe: Recipe,
    from_stages: bool,
) -> Tensor:
    """Compute the gradient of the loss of the batches of all processes; return the loss."""
    distributed = fabric.world_size > 1
    embed_batch: Any = partial(model, from_stages=True) if from_stages else model
    if recipe.batch.chunk is not None:
        without_sync = partial(fabric.no_backward_sync, model)
        return large_batch_backward(
            model, batch, labels, loss, recipe.batch.chunk, distributed, fabric.backward, without_sync, embed_batch
        )
    value = loss(*gather(embed_batch(batch), labels, for_ddp=distributed))
    fabric.backward(value)
    return value.detach()


def _in_batch_order(
    loss: MetricLoss, sampler: ClassBatchSampler, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of gathered rows, put into the order that they have in one process.

    SiMix draws a number for each pair in turn, and a queue keeps rows in turn: in another order they would be other
    losses. All others would differ in rounding.
    """
    if sampler.world_size == 1:
        return loss
    order = torch.from_numpy(sampler.batch_order).to(device)

    def ordered(embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = loss(embeddings[order], labels[order])
        return value

    return ordered


def _share_gradients(fabric: Fabric, loss: MetricLoss) -> None:
    """Average the gradients of the loss's parameters, which are the same in all processes except for rounding."""
    if fabric.world_size > 1:
        for parameter in loss.parameters():
            if parameter.grad is not None:
                parameter.grad = fabric.all_reduce(parameter.grad, reduce_op="mean")


def clip(fabric: Fabric, model: Any, optimizer: Any, recipe: Recipe) -> None:
    """Clip gradients as the recipe says."""
    settings = recipe.optimizer
    if settings.clip_value is not None:
        fabric.clip_gradients(model, optimizer, clip_val=settings.clip_value)
    if settings.clip_norm is not None:
        fabric.clip_gradients(model, optimizer, max_norm=settings.clip_norm, error_if_nonfinite=False)


def _take_note(
    fabric: Fabric, run: RunFolder, state: State, embedder: Embedder, schedule: Any, recipe: Recipe, row: dict[str, Any]
) -> None:
    """Keep the row of an evaluation, and the model if it is the best so far."""
    state.history.append(row)
    state.sums, state.summed = {}, 0
    named = recipe.evaluation.best_by
    score = row["step"] if named == "last" else -row[named] if find_score(named).lower_is_better else row[named]
    if isinstance(schedule, Plateau):
        schedule.see(row["recall@1"] if named == "last" else score)
    if score > state.best or not state.chosen:
        state.best, state.chosen = -math.inf if math.isnan(score) else score, state.step
        if fabric.global_rank == 0:
            write_checkpoint(run.model, {"model": on_cpu(embedder.state_dict()), "row": row})


def _choice_note(recipe: Recipe) -> list[str]:
    settings = recipe.evaluation
    if settings.best_by == "last" or settings.held_out > 0 or not settings.test:
        return []
    return [
        f"the model is chosen by its {settings.best_by} on the test classes, as in the literature, which flatters the "
        "result; evaluation.held_out=0.1 chooses it on held-out training classes"
    ]
