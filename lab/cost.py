"""Experiments of kind `cost`: how long the parts of an epoch take, the paper's t_loss, t_backbone and t_epoch.

All choices of a setting are timed in this process, in turn at every batch and on the same batches: whatever slows the
machine down for a while slows all of them. A step is the training loop's, split at the embeddings. Nothing is
evaluated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from isomargin.data.feeding import training_batches
from isomargin.training import setup
from isomargin.training.devices import keep_freed_memory, launch, leave_out_idle
from isomargin.training.embed import default_workers
from isomargin.training.large_batch import large_batch_backward
from isomargin.training.loop import clip, seed_step
from lab.experiment import Experiment, Plan
from lab.plan import PlannedRun, base_of, result_name
from lab.results_folder import Results
from lab.seed_means import grouped

WARM_UP = 2  # batches that are not counted, while memory is allocated and kernels are chosen
PARTS = ("loss", "backbone", "epoch")


@dataclass(frozen=True)
class Cost:
    """Seconds that the parts of an epoch take, in one repetition."""

    loss: float
    """The loss and its gradient with respect to the embeddings."""
    backbone: float
    """The model and its gradients."""
    epoch: float
    """Everything: loading, model, loss, optimizer."""


@dataclass(frozen=True)
class Measured:
    """One choice's costs."""

    run: PlannedRun
    """With the first seed, for its name and recipe."""
    costs: tuple[Cost, ...]
    """One per repetition."""
    batches: int
    """Per epoch."""
    device: str


class Clock:
    """Adds up the time that parts of a step take; waits for the GPU before it reads the time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """Read the time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Time a block."""
        begin = self.now()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + self.now() - begin


class Trainee:
    """What a choice trains: model, loss, optimizer and batches, made as the training loop makes them."""

    def __init__(self, run: PlannedRun) -> None:
        recipe = run.recipe
        self.run = run
        self.data = setup.open_data(recipe, check=False)
        self.fabric = launch(recipe, 1, "auto")
        if self.fabric.device.type == "cpu":
            keep_freed_memory()
        self.embedder = setup.make_recipe_model(recipe, self.data.train)
        self.recipe = setup.with_features(recipe, self.data.train)
        classes = len(self.data.train.class_names)
        self.loss = setup.make_recipe_loss(self.recipe, classes, self.embedder.dimensions).to(self.fabric.device)
        self.sampler = setup.make_sampler(recipe, self.data.train)
        leave_out_idle(self.embedder)
        self.model: Any = self.fabric.setup_module(self.embedder)
        self.optimizer: Any = self.fabric.setup_optimizers(setup.make_optimizer(recipe, self.embedder, self.loss))
        self.embedder.freeze_backbone(False)
        self.steps = 0

    @property
    def feeding(self) -> str:
        """A text that is the same for choices that train on the same batches."""
        return self.recipe.model_dump_json(include={"data", "batch", "augmentation", "seed", "model"})

    def batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Load the first batches."""
        images = self.embedder.input_statistics
        return training_batches(
            self.data.train,
            self.sampler,
            range(number),
            images.size,
            len(images.mean),
            setup.make_augmentation(self.recipe, self.data.train),
            self.recipe.augmentation.resize,
            default_workers(),
            self.fabric.device,
        )

    def step(self, batch: Tensor, labels: Tensor) -> dict[str, float]:
        """Take one training step; give the seconds of its parts."""
        clock = Clock(self.fabric.device)
        seed_step(self.recipe.seed, self.steps, 0)
        self.steps += 1
        with clock.time("step"):
            self.optimizer.zero_grad()
            batch = self.embedder.normalised(batch) if batch.is_floating_point() else batch
            self.backward(batch, labels, clock)
            clip(self.fabric, self.model, self.optimizer, self.recipe)
            self.optimizer.step()
        return clock.seconds

    def backward(self, batch: Tensor, labels: Tensor, clock: Clock) -> None:
        """Compute all gradients, those of the embeddings first."""
        if self.recipe.batch.chunk is not None:
            self.backward_in_chunks(batch, labels, clock, self.recipe.batch.chunk)
            return
        with clock.time("backbone"):
            embeddings = self.model(batch)
        leaves = embeddings.detach().requires_grad_()
        with clock.time("loss"):
            self.fabric.backward(self.loss(leaves, labels))
        with clock.time("backbone"):
            self.fabric.backward(embeddings, gradient=leaves.grad)

    def backward_in_chunks(self, batch: Tensor, labels: Tensor, clock: Clock, chunk: int) -> None:
        """Compute all gradients of a batch larger than memory; time that is not the loss's counts as the backbone's."""

        def loss(embeddings: Tensor, their_labels: Tensor) -> Tensor:
            with clock.time("loss"):
                value: Tensor = self.loss(embeddings, their_labels)
                return value

        def backward(tensor: Tensor, gradient: Tensor | None = None) -> None:
            with clock.time("loss" if gradient is None else "back"):
                self.fabric.backward(tensor, gradient=gradient)

        begin = clock.now()
        large_batch_backward(self.model, batch, labels, loss, chunk, backward=backward)
        clock.seconds["backbone"] = clock.now() - begin - clock.seconds["loss"]


def measure_cost(plan: Plan, runs: Sequence[PlannedRun], report: Callable[[str], None]) -> list[Measured]:
    """Time every choice of every setting, once per seed."""
    measured = []
    for setting in dict.fromkeys(run.setting for run in runs):
        groups = [group for (name, _), group in grouped(runs).items() if name == setting]
        trainees = [Trainee(group[0]) for group in groups]
        costs: list[list[Cost]] = [[] for _ in trainees]
        for repetition in range(len(groups[0])):
            report(f"{setting}: {len(trainees)} choices, repetition {repetition + 1} of {len(groups[0])}")
            for repetitions, cost in zip(costs, time_together(trainees, plan.batches), strict=True):
                repetitions.append(cost)
        measured += [
            Measured(trainee.run, tuple(repetitions), len(trainee.sampler), trainee.fabric.device.type)
            for trainee, repetitions in zip(trainees, costs, strict=True)
        ]
    return measured


def time_together(trainees: Sequence[Trainee], batches: int) -> list[Cost]:
    """Time some batches of every choice, in turn at every batch, each time beginning with another choice."""
    feeds = {trainee.feeding: trainee.batches(batches + WARM_UP) for trainee in trainees}
    steps: list[list[dict[str, float]]] = [[] for _ in trainees]
    for number in range(batches + WARM_UP):
        drawn = {feeding: next(feed) for feeding, feed in feeds.items()}
        for turn in range(len(trainees)):
            which = (number + turn) % len(trainees)
            seconds = trainees[which].step(*drawn[trainees[which].feeding])
            if number >= WARM_UP:
                steps[which].append(seconds)
    different = {trainee.feeding: trainee for trainee in trainees}
    feeding = {name: seconds_of_feeding(trainee, batches) for name, trainee in different.items()}
    return [as_cost(trainee, timed, feeding[trainee.feeding]) for trainee, timed in zip(trainees, steps, strict=True)]


def seconds_of_feeding(trainee: Trainee, batches: int) -> float:
    """Give the seconds that loading a batch takes if nothing else is done."""
    feed, clock = trainee.batches(batches + 1), Clock(trainee.fabric.device)
    next(feed)  # by then the processes that decode images have started
    begin = clock.now()
    for _ in feed:
        pass
    return (clock.now() - begin) / batches


def as_cost(trainee: Trainee, steps: Sequence[dict[str, float]], feeding: float) -> Cost:
    """Scale the medians over batches to an epoch."""
    loss, backbone, step = (median(seconds[part] for seconds in steps) for part in ("loss", "backbone", "step"))
    # Files are decoded by other processes: with a GPU that happens at the same time, without one on the same cores.
    beside = trainee.data.train.paths is not None and trainee.fabric.device.type == "cuda"
    batches = len(trainee.sampler)
    whole = max(step, feeding) if beside else step + feeding
    return Cost(batches * loss, batches * backbone, batches * whole)


# Results


def cost_results(experiment: Experiment, measured: Sequence[Measured]) -> Results:
    """Give the times of every choice, and how they differ from those it is compared with."""
    rows = []
    for choice in measured:
        base = compared_with(experiment, choice, measured)
        row: dict[str, Any] = {
            "setting": choice.run.setting,
            **choice.run.choices,
            "batches_an_epoch": choice.batches,
        }
        for part in PARTS:
            row |= spread_values(f"{part} seconds", [getattr(cost, part) for cost in choice.costs])
            row |= spread_values(f"{part} change", [] if base is None else changes_of_times(choice, base, part))
        rows.append(row)
    runs = [row for choice in measured for row in run_rows(choice)]
    recipes = {result_name(choice.run.setting, choice.run.choices): choice.run.recipe for choice in measured}
    return Results(rows, runs, recipes)


def compared_with(experiment: Experiment, choice: Measured, measured: Sequence[Measured]) -> Measured | None:
    """Find the choice whose times another's are compared with; None for that one itself."""
    base = base_of(choice.run.choices, experiment.against)
    same = (other for other in measured if other.run.setting == choice.run.setting and other.run.choices == base)
    return None if base == choice.run.choices else next(same, None)


def changes_of_times(choice: Measured, base: Measured, part: str) -> list[float]:
    """Give the relative change of a time in every repetition."""
    pairs = zip(choice.costs, base.costs, strict=True)
    return [getattr(here, part) / getattr(there, part) - 1 for here, there in pairs]


def spread_values(name: str, values: Sequence[float]) -> dict[str, float]:
    """Give the median and the range of values by name; nothing without values."""
    if not values:
        return {}
    return {name: median(values), f"{name} lowest": min(values), f"{name} highest": max(values)}


def run_rows(measured: Measured) -> list[dict[str, Any]]:
    """Give the rows of runs.csv: the times of every repetition, and the machine they were measured on."""
    run = measured.run
    machine = {"device": measured.device, "threads": torch.get_num_threads(), "batches_an_epoch": measured.batches}
    return [
        {
            "setting": run.setting,
            **run.choices,
            "repetition": number,
            **{f"{part} seconds": getattr(cost, part) for part in PARTS},  # not `loss` alone, which is an axis
            **machine,
        }
        for number, cost in enumerate(measured.costs)
    ]
