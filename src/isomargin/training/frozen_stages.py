"""What the frozen first stages of a network make of images: computed once per view, and kept in a file.

Where a recipe freezes the first stages, every epoch would decode the same files and run the same stages again, which
takes most of the time. With `augmentation.views` each training image has a fixed number of random views instead.
Their outputs are kept, as float16, and training starts from them. The test images, of which there is one view, are
kept too. The files can be shared by runs that differ in the loss, the seed or the trained stages' settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, locked
from isomargin.core.memory import map_new_array
from isomargin.core.progress import progress_bar
from isomargin.data.augment import RandomCrop
from isomargin.data.feeding import image_seeds, rows_of_steps, unseen_batches, view_batches
from isomargin.data.images import ImageSet
from isomargin.data.sampler import ClassBatchSampler
from isomargin.models.embedder import Embedder

__all__ = ["FrozenStages", "batches_of_views"]

_BATCH = 32  # images at a time: small enough for the caches of a CPU
_FORMAT = 1  # to be raised if the same settings would give other outputs

Maps = NDArray[np.float16]
Report = Callable[[float], None] | None


@dataclass(frozen=True, eq=False)
class FrozenStages:
    """Computes and finds the outputs of a model's frozen stages."""

    model: Embedder
    folder: Path
    """Where the files are kept, each under a name that depends on everything that it was computed from."""
    workers: int
    resize: int | None
    """Of test images, see `centre_crop`."""
    device: torch.device

    def of_views(self, images: ImageSet, crop: RandomCrop, views: int) -> Maps:
        """Return (views, n, channels, height, width): random views of training images, the same for every seed."""
        size, channels = self.model.input_statistics.size, len(self.model.input_statistics.mean)
        pieces = view_batches(images, views, size, channels, crop, _BATCH, self.workers, self.device)
        return self._kept(images, views, {"size": size, "crop": asdict(crop)}, pieces)

    def of_tests(self, images: ImageSet) -> Maps:
        """Return (n, channels, height, width), of the test images, undistorted."""
        size, channels = self.model.test_size, len(self.model.input_statistics.mean)
        rows = np.arange(len(images))
        pieces = unseen_batches(images, rows, size, channels, _BATCH, self.resize, self.workers, self.device)
        maps: Maps = self._kept(images, 1, {"size": size, "resize": self.resize}, pieces)[0]
        return maps

    def _kept(self, images: ImageSet, views: int, settings: dict[str, Any], pieces: Iterator[Tensor]) -> Maps:
        """Open the file of these outputs, after computing it if there is none."""
        path = self.folder / f"{self._digest(images, views, settings)}.npy"
        with locked(self.folder, wait=True):  # another run may be computing the same
            if not path.is_file():
                with atomic_write(path) as temporary, progress_bar("frozen stages") as report:
                    self._write(temporary, len(images), views, pieces, report)
        maps: Maps = np.load(path, mmap_mode="r")
        return maps

    def _write(self, path: Path, count: int, views: int, pieces: Iterator[Tensor], report: Report) -> None:
        flat: Any = None  # (views * n, channels, height, width)
        done = 0
        for pixels in pieces:
            outputs = self.model.frozen_stages(pixels).half().cpu().numpy()
            if not np.isfinite(outputs).all():
                raise InputError("the frozen stages return numbers that float16 cannot hold: leave out views")
            if flat is None:
                shape = (views, count, *outputs.shape[1:])
                flat = map_new_array(path, np.float16, shape).reshape(-1, *shape[2:])
            flat[done : done + len(outputs)] = outputs
            done += len(outputs)
            if report is not None:
                report(done / len(flat))
        flat.flush()

    def _digest(self, images: ImageSet, views: int, settings: dict[str, Any]) -> str:
        """Return a checksum of the weights, the image files and the settings that the outputs depend on."""
        digest = hashlib.sha256(json.dumps([_FORMAT, views, settings], sort_keys=True).encode())
        for weights in self.model.frozen_weights():
            digest.update(weights.detach().cpu().numpy().tobytes())
        for path in images.paths or ():
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return digest.hexdigest()[:32]


def batches_of_views(
    maps: Maps, labels: NDArray[np.int64], sampler: ClassBatchSampler, steps: range, device: torch.device | str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the share of this process of the batches of some steps, as `training_batches`, from views drawn at random.

    Yields (n, channels, height, width) and labels (n,).
    """
    positions, numbers = sampler.positions, torch.from_numpy(labels)
    for step, rows in rows_of_steps(sampler, steps):
        seeds = image_seeds(sampler.seed, step, int(positions.max()) + 1)[positions]
        drawn = (seeds % np.uint64(len(maps))).astype(np.int64)  # (n,)
        batch = torch.from_numpy(np.asarray(maps[drawn, rows])).to(device)
        yield batch.float().contiguous(memory_format=torch.channels_last), numbers[rows].to(device)
