"""Speed and memory of the training loop, as ratios measured side by side in one run.

    python benchmarks/bench_training.py            # everything, about twelve minutes on 2 cores
    python benchmarks/bench_training.py --quick    # two rounds of a few steps, to check that it runs

`train` is compared with a bare loop, written by hand in plain PyTorch for the same model, loss, sampler and images,
without logs, checkpoints or seeds; with the same training without TCM; and with the memory of a plain batch. It runs on
the CPU. The times are those of training steps including the preparation of their batches, without set-up and
evaluation. Rounds are interleaved and the median ratio is reported, because other programs share the machine. Memory is
measured in separate processes.
"""

import argparse
import ctypes
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from isomargin.data.augment import RandomAffine
from isomargin.data.images import DataSplit, ImageSet
from isomargin.data.registry import REGISTRY
from isomargin.data.sampler import ClassBatchSampler
from isomargin.losses import make_loss
from isomargin.training import loop, setup
from isomargin.training.embed import default_workers
from isomargin.training.recipe import Recipe, read_recipe
from measuring import MEGABYTE, forget_peak, in_a_process, memory_in_use, verdict

WARM_UP = 3  # steps of each round that are not timed
ALONE = {"base": "smooth_ap"}
WITH_TCM = {"base": "smooth_ap", "regularizer": "tcm"}
LITE = {"backbone": "tf_efficientnet_lite0", "image_size": 96, "dimensions": 128}
TINY = {
    "backbone": "test_resnet",
    "image_size": 64,
    "dimensions": 128,
}  # the smallest of timm: reading files takes most of the time
FROZEN = ["conv_stem", "bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.3"]  # as in recipes/cub-lite0.yaml

Item = TypeVar("Item")
Batches = Iterator[tuple[Tensor, Tensor]]


# What is trained


def synthetic_images(root: Path, classes: int, images_per_class: int, size: int) -> DataSplit:
    """Reader for `load_data`: noisy coloured blocks in memory; `root` is ignored."""
    generator = np.random.default_rng(0)

    def part(name: str, classes: int) -> ImageSet:
        labels = np.arange(classes).repeat(images_per_class)
        blocks = generator.integers(0, 190, (classes, 4, 4, 3), np.uint8).repeat(size // 4, 1).repeat(size // 4, 2)
        pixels = blocks[labels] + generator.integers(0, 65, (len(labels), size, size, 3), np.uint8)
        names = tuple(f"{name} {number:04}" for number in range(classes))
        return ImageSet(labels, names, pixels=pixels)

    return DataSplit("synthetic", part("train", classes), part("test", 8), closed=False)


REGISTRY["synthetic"] = synthetic_images


def write_photographs(folder: Path, classes: int, images_per_class: int, size: int = 160) -> None:
    """Write JPEG files as smooth as photographs, one folder per class."""
    generator = np.random.default_rng(0)
    for number in range(classes):
        (folder / f"{number:03}").mkdir()
        for image in range(images_per_class):
            coarse = generator.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
            smooth = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC), np.int16)
            pixels = (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:03}" / f"{image}.jpg", quality=90)


def make_recipe(steps: int, **sections: Any) -> Recipe:
    """Make a recipe with this number of steps, evaluated on few images and only at the end."""
    evaluation: dict[str, Any] = {"every": 1e6}
    if sections["data"]["name"] == "glyphs":
        evaluation |= {"held_out": 0.02, "test": False}
    recipe = read_recipe({"name": "bench", "evaluation": evaluation, "optimizer": {"learning_rate": 1e-3}, **sections})
    batches = len(setup.make_sampler(recipe, setup.open_data(recipe, check=False).train))
    return recipe.model_copy(update={"epochs": steps / batches})


# Timing of the steps


@dataclass
class Stopwatch:
    """Records when each batch is ready; the time between two batches is that of a step and of preparing a batch."""

    times: list[float]

    def over(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Pass the batches through."""
        for batch in batches:
            self.times.append(time.perf_counter())
            yield batch

    @property
    def step(self) -> float:
        """Mean seconds of a step, without the warm-up and without the last step, which ends in an evaluation."""
        return (self.times[-1] - self.times[WARM_UP]) / (len(self.times) - 1 - WARM_UP)


def our_step(recipe: Recipe) -> float:
    """Train with `train`; return the seconds of a step."""
    watch, feed = Stopwatch([]), loop.training_batches
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(loop, "training_batches", lambda *settings: watch.over(feed(*settings))),
    ):
        loop.train(recipe, folder, accelerator="cpu", check_images=False, quiet=True)
    return watch.step


def bare_step(recipe: Recipe) -> float:
    """Train with plain PyTorch; return the seconds of a step."""
    images = setup.open_data(recipe, check=False).train
    model = setup.make_recipe_model(recipe, images)
    loss = setup.make_recipe_loss(recipe, len(images.class_names), model.dimensions)
    optimizer = setup.make_optimizer(recipe, model, loss)
    sampler = setup.make_sampler(recipe, images)
    steps = setup.count_steps(recipe, len(sampler))
    if images.paths is None:
        batches = bare_batches_in_memory(images, sampler)
    else:
        batches = bare_batches_of_files(images, sampler, model.input_statistics)
    watch = Stopwatch([])
    for batch, labels in watch.over(itertools.islice(batches, steps)):
        value = loss(model(batch), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    return watch.step


def bare_batches_in_memory(images: ImageSet, sampler: ClassBatchSampler) -> Batches:
    """Yield batches of images in memory, without end."""
    pixels, labels = torch.from_numpy(images.pixels)[:, None], torch.from_numpy(images.labels)
    distort = RandomAffine()
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for rows in sampler:
            chosen = torch.tensor(rows)
            yield distort(pixels[chosen].float() / 255), labels[chosen]


class BareFiles(Dataset[tuple[Tensor, int]]):
    """Image files with the transforms of torchvision, as uint8: a quarter of the bytes to send from the workers."""

    def __init__(self, images: ImageSet, size: int) -> None:
        from torchvision.transforms import v2

        self.paths, self.labels = images.paths, images.labels.tolist()
        self.transform = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.transform(Image.open(self.paths[row]).convert("RGB")), self.labels[row]


def bare_batches_of_files(images: ImageSet, sampler: ClassBatchSampler, expected: Any) -> Batches:
    """Yield batches of image files, without end."""
    files = BareFiles(images, expected.size)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (expected.mean, expected.std))
    loader = DataLoader(files, batch_sampler=EpochAfterEpoch(sampler), num_workers=default_workers())
    for batch, labels in loader:
        yield (batch.float() / 255 - mean) / std, labels


@dataclass
class EpochAfterEpoch:
    """Repeats the epochs of a sampler without end, so that workers are not restarted after every epoch."""

    sampler: ClassBatchSampler

    def __iter__(self) -> Iterator[list[int]]:
        for epoch in itertools.count():
            self.sampler.set_epoch(epoch)
            yield from self.sampler


def in_turns(first: Callable[[], float], second: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Measure both in every round, in alternating order, after a warm-up round."""
    pairs = []
    for number in range(rounds + 1):
        if number % 2:
            first_seconds = first()
            second_seconds = second()
        else:
            second_seconds = second()
            first_seconds = first()
        pairs.append((first_seconds, second_seconds))
    return pairs[1:]


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median and the two quartiles."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return statistics.median(ordered), ordered[quarter], ordered[-1 - quarter]


# The three comparisons


def against_bare(cases: dict[str, tuple[Recipe, int]]) -> None:
    """Print the images per second of `train` and of a bare loop; cases are recipes and numbers of rounds."""
    print("\nour loop compared with a bare loop, images per second")
    print(f"  {'':36s}{'ours':>8s}{'bare':>8s}   ours / bare (quartiles)")
    for title, (recipe, rounds) in cases.items():
        pairs = in_turns(lambda recipe=recipe: our_step(recipe), lambda recipe=recipe: bare_step(recipe), rounds)
        images = recipe.batch.classes * recipe.batch.images_per_class
        ours, bare = (images / statistics.median(durations) for durations in zip(*pairs, strict=True))
        ratio, low, high = quartiles(bare / ours for ours, bare in pairs)
        shown = f"{ratio:.3f} ({low:.3f} to {high:.3f})"
        print(f"  {title:36s}{ours:8.0f}{bare:8.0f}   {shown:26s} at least 0.97: {verdict(ratio >= 0.97)}", flush=True)


def price_of_tcm(cases: dict[str, tuple[Recipe, int]], judged: str) -> None:
    """Print how much TCM adds to the time of training; cases are recipes with TCM and numbers of rounds."""
    print("\ncost of adding TCM to SmoothAP, milliseconds per step")
    print(f"  {'':36s}{'with':>8s}{'alone':>8s}   added (quartiles)")
    for title, (recipe, rounds) in cases.items():
        alone = recipe.model_copy(update={"loss": read_recipe({**recipe.model_dump(), "loss": ALONE}).loss})
        pairs = in_turns(lambda recipe=recipe: our_step(recipe), lambda alone=alone: our_step(alone), rounds)
        with_it, without = (1000 * statistics.median(durations) for durations in zip(*pairs, strict=True))
        added, low, high = (100 * (ratio - 1) for ratio in quartiles(first / second for first, second in pairs))
        shown = f"{added:+.2f}% ({low:+.2f}% to {high:+.2f}%)"
        limit = f"at most 1.5%: {verdict(added <= 1.5)}" if title == judged else "for information"
        print(f"  {title:36s}{with_it:8.1f}{without:8.1f}   {shown:26s} {limit}", flush=True)


def peak_of_training(recipe: Recipe) -> float:
    """In a separate process: the peak memory of all training steps except the last, above that before the first."""
    feed, before, peak = loop.training_batches, [], []

    def watched(*settings: Any) -> Batches:
        for batch in feed(*settings):
            if not before:
                ctypes.CDLL(None).malloc_trim(
                    0
                )  # return memory that set-up has freed, or its reuse would not be counted
                before.append(memory_in_use("VmRSS"))
                forget_peak()
            peak.append(memory_in_use("VmHWM"))
            yield batch

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(loop, "training_batches", watched):
        loop.train(recipe, folder, accelerator="cpu", quiet=True)
    return peak[-1] - before[0]


def peak_of_loss(images: int, dimensions: int) -> float:
    """In a separate process: the peak memory of SmoothAP with TCM on this many embeddings, 4 per class."""
    loss = make_loss(["smooth_ap", "tcm"])
    embeddings, labels = torch.randn(images, dimensions, requires_grad=True), torch.arange(images) // 4
    loss(embeddings[:64], labels[:64]).backward()
    embeddings.grad = None
    before = memory_in_use("VmRSS")
    forget_peak()
    loss(embeddings, labels).backward()
    return memory_in_use("VmHWM") - before


def memory_of_two_stages(size: int, chunk: int, batch: int, steps: int) -> None:
    """Print the memory of a batch that is computed in chunks, compared with that of a plain batch."""
    settings = {
        "data": {"name": "synthetic", "root": ".", "classes": batch // 4, "images_per_class": 4, "size": size},
        "model": {"backbone": "resnet18", "image_size": size, "freeze_batch_norm": "statistics"},
        "loss": WITH_TCM,
        "augmentation": {"name": "none"},
        "optimizer": {"name": "sgd", "momentum": 0.0},  # keeps no state in memory
    }
    in_stages = make_recipe(steps, batch={"classes": batch // 4, "chunk": chunk}, **settings)
    plain = make_recipe(steps, batch={"classes": chunk // 4}, **settings)
    stages_peak, plain_peak = (in_a_process(peak_of_training, recipe) / MEGABYTE for recipe in (in_stages, plain))
    loss_peak = in_a_process(peak_of_loss, batch, 512) / MEGABYTE
    ratio = (stages_peak - loss_peak) / plain_peak
    print(f"\npeak memory of a step in two stages, resnet18 at {size} pixels, each in a separate process")
    print(f"  {stages_peak:8.0f} MB  {batch:,} images, {chunk} at a time")
    print(f"  {plain_peak:8.0f} MB  {chunk} images in a plain batch")
    print(f"  {loss_peak:8.0f} MB  SmoothAP + TCM of {batch:,} embeddings")
    print(f"  without the loss / plain: {ratio:.3f}   at most 1.3: {verdict(ratio <= 1.3)}")


def main() -> None:
    """Run the selected comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of a few steps")
    parser.add_argument("--only", choices=["loop", "tcm", "memory"], help="run only this comparison")
    arguments = parser.parse_args()

    def case(steps: int, rounds: int, **sections: Any) -> tuple[Recipe, int]:
        recipe = make_recipe(WARM_UP + (3 if arguments.quick else steps) + 1, loss=WITH_TCM, **sections)
        return recipe, 2 if arguments.quick else rounds

    glyphs = {"data": {"name": "glyphs"}, "batch": {"classes": 64}}
    small_conv = {"model": {"backbone": "small_conv", "dimensions": 128}, **glyphs}
    small_resnet = {"model": {"backbone": "small_resnet", "dimensions": 128}, **glyphs}
    conv, resnet, lite = "small_conv, glyphs, batch 256", "small_resnet, glyphs, batch 256", "lite0, 96 px, batch 64"
    print(f"PyTorch {torch.__version__} on {torch.get_num_threads()} threads")
    if arguments.only in (None, "loop"):
        with tempfile.TemporaryDirectory() as folder:
            write_photographs(Path(folder), classes=40, images_per_class=15)
            photographs = {
                "data": {"name": "folder", "root": folder, "order": 36},
                "batch": {"classes": 16},
            }
            against_bare(
                {
                    conv: case(56, 7, **small_conv),
                    resnet: case(8, 5, **small_resnet),
                    "lite0, half frozen, JPEGs, batch 64": case(20, 5, model={**LITE, "freeze": FROZEN}, **photographs),
                    "tiny resnet, JPEGs, batch 64": case(60, 7, model=TINY, **photographs),
                }
            )
    if arguments.only in (None, "tcm"):
        in_memory = {
            "data": {"name": "synthetic", "root": ".", "classes": 64, "images_per_class": 8, "size": 96},
            "model": LITE,
            "batch": {"classes": 16},
            "augmentation": {"name": "none"},
        }
        price_of_tcm({lite: case(8, 5, **in_memory), conv: case(28, 7, **small_conv)}, judged=lite)
    if arguments.only in (None, "memory"):
        memory_of_two_stages(size=64, chunk=100, batch=400 if arguments.quick else 1000, steps=3)


if __name__ == "__main__":
    main()
