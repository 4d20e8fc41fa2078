"""From sets of items to the tensors that a model takes, batch by batch.

Everything random is a function of the seed, the step and the position in the batch. It does not depend on how often a
run was resumed, or on the number of processes or workers. Images in memory are distorted a batch at a time. Files are
decoded by worker processes, in pieces, so that a batch of thousands is in memory only once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from isomargin.core.errors import InputError
from isomargin.data.augment import ImageTransform, RandomAffine, RandomCrop
from isomargin.data.images import ImageSet
from isomargin.data.sampler import ClassBatchSampler

__all__ = ["image_seeds", "rows_of_steps", "training_batches", "unseen_batches", "view_batches"]

_PIECE = 128  # images that a worker decodes at a time

Augmentation = RandomAffine | RandomCrop | None


def training_batches(
    images: ImageSet,
    sampler: ClassBatchSampler,
    steps: range,
    size: int,
    channels: int,
    augmentation: Augmentation,
    resize: int | None = None,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the share of this process of the batches of some steps: images (n, channels, size, size) and labels (n,).

    The batch of a step is number step % batches of epoch step // batches of the sampler. Distorted images in memory are
    floating point from 0 to 1, all other images uint8 from 0 to 255; vectors are unchanged. `resize` is for files that
    are not distorted, as in `unseen_batches`.

    >>> pixels = np.zeros((8, 28, 28), np.uint8)
    >>> images = ImageSet(np.arange(8) // 2, ("a", "b", "c", "d"), pixels=pixels)
    >>> sampler = ClassBatchSampler(images.labels, classes_per_batch=2, images_per_class=2)
    >>> for batch, labels in training_batches(images, sampler, range(3), 28, 1, RandomAffine()):
    ...     print(batch.shape, labels.shape)
    torch.Size([4, 1, 28, 28]) torch.Size([4])
    torch.Size([4, 1, 28, 28]) torch.Size([4])
    torch.Size([4, 1, 28, 28]) torch.Size([4])
    """
    check_augmentation(images, augmentation)
    labels = torch.from_numpy(images.labels)
    if images.paths is not None:
        assert isinstance(augmentation, RandomCrop | None)
        transform = ImageTransform(size, augmentation, resize)
        order = _Pieces(sampler, steps)
        pieces = _load(_Files(images, transform, channels), order, workers, device)
        for drawn, batch in _assembled(pieces, len(sampler.positions)):
            yield batch.to(device, non_blocking=True), labels[drawn].to(device)
        return
    assert not isinstance(augmentation, RandomCrop)
    source = _in_memory(images, device)
    for step, rows in rows_of_steps(sampler, steps):
        chosen = torch.tensor(rows)
        batch = _as_channels(source[chosen.to(device)], size, channels)
        if augmentation is not None and images.pixels is not None:
            whole = sampler.classes_per_batch * sampler.images_per_class
            generator = torch.Generator().manual_seed(int(image_seeds(sampler.seed, step, 1)[0]))
            draws = augmentation.draw(whole, generator)[:, sampler.positions]
            batch = augmentation.distort(batch.float() / 255, draws)
        yield batch, labels[chosen].to(device)


def unseen_batches(
    images: ImageSet,
    rows: NDArray[np.int64],
    size: int,
    channels: int,
    batch: int = 256,
    resize: int | None = None,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield the items of some rows, in order, undistorted: of files the centre, see `centre_crop`.

    >>> images = ImageSet(np.arange(3), ("a", "b", "c"), pixels=np.zeros((3, 28, 28), np.uint8))
    >>> [len(part) for part in unseen_batches(images, np.arange(3), 28, 1, batch=2)]
    [2, 1]
    """
    parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    if images.paths is not None:
        order = [[(int(row), 0) for row in part] for part in parts]
        for _, pixels in _load(_Files(images, ImageTransform(size, None, resize), channels), order, workers, device):
            yield pixels.to(device, non_blocking=True)
        return
    source = _in_memory(images, device)
    for part in parts:
        yield _as_channels(source[torch.from_numpy(part).to(device)], size, channels)


def view_batches(
    images: ImageSet,
    views: int,
    size: int,
    channels: int,
    crop: RandomCrop,
    batch: int,
    workers: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield random views of image files: of all images in order, then the next view of all, `batch` at a time."""
    keys = [(row, int(seed)) for view in range(views) for row, seed in enumerate(image_seeds(0, view, len(images)))]
    order = [keys[start : start + batch] for start in range(0, len(keys), batch)]
    for _, pixels in _load(_Files(images, ImageTransform(size, crop), channels), order, workers, device):
        yield pixels.to(device, non_blocking=True)


def check_augmentation(images: ImageSet, augmentation: Augmentation) -> None:
    """Refuse an augmentation that does not fit the kind of images."""
    if images.paths is not None and isinstance(augmentation, RandomAffine):
        raise InputError("the augmentation is affine, which is for images in memory: for files crop or none is needed")
    if images.paths is None and isinstance(augmentation, RandomCrop):
        raise InputError(
            "the augmentation is crop, which is for image files: for images in memory affine or none is needed"
        )
    if images.vectors is not None and augmentation is not None:
        raise InputError("the augmentation is affine, which is for images: for vectors none is needed")


def image_seeds(seed: int, step: int, count: int) -> NDArray[np.uint64]:
    """Return a seed for each image of a step.

    >>> image_seeds(0, 7, 3)[:2].tolist() == image_seeds(0, 7, 2).tolist()
    True
    """
    return np.random.SeedSequence([seed, step]).generate_state(count, np.uint64) >> np.uint64(1)


def rows_of_steps(sampler: ClassBatchSampler, steps: range) -> Iterator[tuple[int, list[int]]]:
    """Yield the sampler's rows for each step, over as many epochs as needed."""
    step = steps.start
    while step < steps.stop:
        epoch, place = divmod(step, len(sampler))
        sampler.set_epoch(epoch)
        for number, rows in enumerate(sampler):
            if number >= place and step < steps.stop:
                yield step, rows
                step += 1


# Images in memory


def _in_memory(images: ImageSet, device: torch.device | str) -> Tensor:
    """Return pixels as uint8 (n, c, h, w), or vectors (n, d)."""
    if images.vectors is not None:
        return torch.from_numpy(images.vectors).to(device)
    assert images.pixels is not None
    pixels = torch.from_numpy(np.ascontiguousarray(images.pixels)).to(device)
    return pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)


def _as_channels(batch: Tensor, size: int, channels: int) -> Tensor:
    """Convert a batch (n, c, h, w) to the size and the channels of a model."""
    if batch.ndim == 2:
        return batch
    if batch.shape[1] != channels:
        if channels == 1:
            weights = torch.tensor([0.299, 0.587, 0.114], device=batch.device).view(3, 1, 1)
            batch = (batch.float() * weights).sum(dim=1, keepdim=True).round().to(torch.uint8)
        else:
            batch = batch.expand(-1, channels, -1, -1)
    if batch.shape[2:] != (size, size):
        resized = torch.nn.functional.interpolate(
            batch.float(), (size, size), mode="bilinear", align_corners=False, antialias=True
        )
        batch = resized.round().clamp(0, 255).to(torch.uint8)
    return batch


# Image files


class _Files(Dataset[tuple[int, Tensor]]):
    """Images by row and seed."""

    def __init__(self, images: ImageSet, transform: ImageTransform, channels: int) -> None:
        self.images, self.transform, self.channels = images, transform, channels

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, Tensor]:
        row, seed = key
        image = self.images.read(row)
        if self.channels == 1:
            image = image.convert("L")
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 100 times as long
        try:
            return row, self.transform(image)
        finally:
            torch.set_rng_state(before)


class _Pieces(Sampler[list[tuple[int, int]]]):
    """The rows of steps, each with a seed, in pieces that end with a step at the latest."""

    def __init__(self, sampler: ClassBatchSampler, steps: range) -> None:
        self.sampler, self.steps = sampler, steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        positions = self.sampler.positions
        for step, rows in rows_of_steps(self.sampler, self.steps):
            seeds = image_seeds(self.sampler.seed, step, int(positions.max()) + 1)[positions].tolist()
            both = list(zip(rows, seeds, strict=True))
            yield from (both[start : start + _PIECE] for start in range(0, len(both), _PIECE))

    def __len__(self) -> int:
        return len(self.steps) * -(-len(self.sampler.positions) // _PIECE)


def _load(
    files: _Files, order: _Pieces | Sequence[Any], workers: int, device: torch.device | str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows and pixels in the given order; an error of a worker is raised without the worker's traceback."""
    on_gpu = torch.device(device).type == "cuda"
    loader: DataLoader[Any] = DataLoader(
        files,
        batch_sampler=order,
        num_workers=workers,
        pin_memory=on_gpu,
        worker_init_fn=_leave_interruptions,
        generator=torch.Generator(),  # the loader would draw from the global one
    )
    try:
        yield from loader
    except InputError as error:
        raise InputError(str(error).strip().rpartition("InputError: ")[2]) from error


def _leave_interruptions(worker: int) -> None:
    """Leave Ctrl-C to the process that trains, which ends the workers itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _assembled(pieces: Iterator[tuple[Tensor, Tensor]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Assemble pieces into batches."""
    rows: list[Tensor] = []
    parts: list[Tensor] = []
    for row, part in pieces:
        rows.append(row)
        parts.append(part)
        if sum(map(len, rows)) == size:
            batch = torch.cat(rows), torch.cat(parts)
            rows, parts = [], []  # freed before the batch is used, which may be large
            del row, part
            yield batch
