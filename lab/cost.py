"""Experiments of kind `cost`: how long an epoch's parts take, the paper's t_loss, t_backbone and t_epoch.

All choices of a setting are timed in this process, in turn at every batch, on the same batches: what slows the machine
down for a while slows all of them. A step is the training loop's, taken apart at the embeddings; nothing is evaluated.
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
from lab.plan import PlannedRun, base_of, file_name
from lab.results_folder import Outcome
from lab.seed_means import grouped
from lab.tables import Table, signs

WARM_UP = 2  # batches that are not counted: memory is found, kernels are chosen
PARTS = ("loss", "backbone", "epoch")


@dataclass(frozen=True)
class Cost:
    """Seconds that the parts of an epoch take, once measured."""

    loss: float
    """The loss and its gradient at the embeddings."""
    backbone: float
    """The model and its gradients."""
    epoch: float
    """All: feeding, model, loss, optimiser."""


@dataclass(frozen=True)
class Measured:
    """One choice's costs."""

    run: PlannedRun
    """The first seed's, for its names and its recipe."""
    costs: tuple[Cost, ...]
    """A repetition each."""
    batches: int
    """An epoch has."""
    device: str


class Clock:
    """Adds up the time of some parts; waits for a GPU to be done before it looks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        """Look at the time."""
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
    """What a choice trains: model, loss, optimiser and batches, made as the training loop makes them."""

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
        """The same text for choices that train on the same batches."""
        return self.recipe.model_dump_json(include={"data", "batch", "augmentation", "seed", "model"})

    def batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Give its first batches."""
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
        """Take a training step; give the seconds of its parts."""
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
        """Take all gradients, those at the embeddings first."""
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
        """Take all gradients of a batch larger than memory; what is not the loss's part is the backbone's."""

        def loss(embeddings: Tensor, of: Tensor) -> Tensor:
            with clock.time("loss"):
                value: Tensor = self.loss(embeddings, of)
                return value

        def backward(tensor: Tensor, gradient: Tensor | None = None) -> None:
            with clock.time("loss" if gradient is None else "back"):
                self.fabric.backward(tensor, gradient=gradient)

        begin = clock.now()
        large_batch_backward(self.model, batch, labels, loss, chunk, backward=backward)
        clock.seconds["backbone"] = clock.now() - begin - clock.seconds["loss"]


def measure_cost(plan: Plan, runs: Sequence[PlannedRun], report: Callable[[str], None]) -> list[Measured]:
    """Time every choice of every setting, as often as there are seeds."""
    measured = []
    for setting in dict.fromkeys(run.setting for run in runs):
        groups = [group for (name, _), group in grouped(runs).items() if name == setting]
        trainees = [Trainee(group[0]) for group in groups]
        costs: list[list[Cost]] = [[] for _ in trainees]
        for repetition in range(len(groups[0])):
            report(f"{setting}: {len(trainees)} choices, time {repetition + 1} of {len(groups[0])}")
            for own, cost in zip(costs, time_together(trainees, plan.batches), strict=True):
                own.append(cost)
        measured += [
            Measured(each.run, tuple(own), len(each.sampler), each.fabric.device.type)
            for each, own in zip(trainees, costs, strict=True)
        ]
    return measured


def time_together(trainees: Sequence[Trainee], batches: int) -> list[Cost]:
    """Time some batches of every choice, in turn at every batch, another one first each time."""
    feeds = {each.feeding: each.batches(batches + WARM_UP) for each in trainees}
    steps: list[list[dict[str, float]]] = [[] for _ in trainees]
    for number in range(batches + WARM_UP):
        drawn = {feeding: next(feed) for feeding, feed in feeds.items()}
        for turn in range(len(trainees)):
            which = (number + turn) % len(trainees)
            seconds = trainees[which].step(*drawn[trainees[which].feeding])
            if number >= WARM_UP:
                steps[which].append(seconds)
    different = {each.feeding: each for each in trainees}
    feeding = {name: seconds_of_feeding(each, batches) for name, each in different.items()}
    return [as_cost(each, own, feeding[each.feeding]) for each, own in zip(trainees, steps, strict=True)]


def seconds_of_feeding(trainee: Trainee, batches: int) -> float:
    """Give the seconds that a batch takes to be there, were nothing else to do."""
    feed, clock = trainee.batches(batches + 1), Clock(trainee.fabric.device)
    next(feed)  # processes that decode images have started then
    begin = clock.now()
    for _ in feed:
        pass
    return (clock.now() - begin) / batches


def as_cost(trainee: Trainee, steps: Sequence[dict[str, float]], feeding: float) -> Cost:
    """Bring the medians over batches to an epoch."""
    loss, backbone, step = (median(each[part] for each in steps) for part in ("loss", "backbone", "step"))
    # Files are decoded by other processes: beside a GPU at the same time, on the same cores in addition.
    beside = trainee.data.train.paths is not None and trainee.fabric.device.type == "cuda"
    batches = len(trainee.sampler)
    whole = max(step, feeding) if beside else step + feeding
    return Cost(batches * loss, batches * backbone, batches * whole)


# What is written


def cost_outcome(experiment: Experiment, measured: Sequence[Measured]) -> Outcome:
    """Give the table: the three times of every choice, and how they differ from those it is held against."""
    axes = list(dict.fromkeys(axis for each in measured for axis in each.run.choices))
    heads = ["setting", *axes]
    for part in PARTS:
        heads += [f"{part}, s an epoch", "change"] if experiment.against else [f"{part}, s an epoch"]
    lines, numbers = [], []
    for each in measured:
        other = held_against(experiment, each, measured)
        line = [each.run.setting, *(each.run.choices.get(axis, "") for axis in axes)]
        number: dict[str, Any] = {"setting": each.run.setting, **each.run.choices, "batches_an_epoch": each.batches}
        for part in PARTS:
            changes = [] if other is None else changes_of_times(each, other, part)
            line += [time_cell(each, part), change_of_times(changes)] if experiment.against else [time_cell(each, part)]
            number |= spread_values(f"{part} seconds", [getattr(cost, part) for cost in each.costs])
            number |= spread_values(f"{part} change", changes)
        lines.append(line)
        numbers.append(number)
    recipes = {file_name(each.run.setting, each.run.choices): each.run.recipe for each in measured}
    return Outcome(Table(heads, lines, numbers), [one for each in measured for one in cost_values(each)], recipes)


def held_against(experiment: Experiment, one: Measured, measured: Sequence[Measured]) -> Measured | None:
    """Find what a choice's times are held against; None for that one itself."""
    base = base_of(one.run.choices, experiment.against)
    same = (each for each in measured if each.run.setting == one.run.setting and each.run.choices == base)
    return None if base == one.run.choices else next(same, None)


def changes_of_times(one: Measured, other: Measured, part: str) -> list[float]:
    """Give by how much of the other's a time is longer, each repetition."""
    pairs = zip(one.costs, other.costs, strict=True)
    return [getattr(here, part) / getattr(there, part) - 1 for here, there in pairs]


def time_cell(measured: Measured, part: str) -> str:
    """Write a time with its range over repetitions."""
    times = [getattr(cost, part) for cost in measured.costs]
    return f"{median(times):.3g} ({min(times):.3g} to {max(times):.3g})"


def change_of_times(changes: Sequence[float]) -> str:
    """Write a change of a time with its range over repetitions; nothing if there is none.

    >>> change_of_times([0.02, 0.031, -0.01])
    '+2.0% (−1.0 to +3.1)'
    """
    if not changes:
        return ""
    middle, low, high = (100 * each for each in (median(changes), min(changes), max(changes)))
    return signs(f"{middle:+.1f}% ({low:+.1f} to {high:+.1f})")


def spread_values(name: str, values: Sequence[float]) -> dict[str, float]:
    """Give the median and the range of some values by name; nothing of none."""
    if not values:
        return {}
    return {name: median(values), f"{name} lowest": min(values), f"{name} highest": max(values)}


def seconds_of(cost: Cost) -> dict[str, float]:
    """Give the times by names that no axis has: one is `loss`."""
    return {f"{part} seconds": getattr(cost, part) for part in PARTS}


def cost_values(measured: Measured) -> list[dict[str, Any]]:
    """Give every repetition's times, and what they were measured on."""
    run = measured.run
    machine = {"device": measured.device, "threads": torch.get_num_threads(), "batches_an_epoch": measured.batches}
    return [
        {"setting": run.setting, **run.choices, "repetition": number, **seconds_of(cost), **machine}
        for number, cost in enumerate(measured.costs)
    ]
