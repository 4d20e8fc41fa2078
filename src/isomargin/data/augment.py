"""Random distortions of training images.

`RandomAffine` distorts a whole batch at once, for small images in memory, which need no loader. `RandomCrop` is what
the recipes of the benchmarks do to each image file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.models.torchvision_shim import import_torchvision


@dataclass(frozen=True)
class RandomAffine:
    """Rotates, scales, shears and shifts each image of a batch at random, with bilinear interpolation on black.

    >>> images = torch.rand(4, 1, 28, 28)
    >>> RandomAffine()(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 28, 28])
    """

    rotation: float = 10.0
    """Largest rotation in degrees, in either direction."""
    scale: float = 0.1
    """Largest change of the logarithm of width and of height, separately, in either direction."""
    shear: float = 0.1
    """Largest shear, in either direction."""
    shift: float = 2.0
    """Largest shift in pixels, in either direction."""

    def __post_init__(self) -> None:
        for name in ("rotation", "scale", "shear", "shift"):
            checks.at_least_zero(getattr(self, name), name)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Distort floating point images (n, c, h, w); all channels of an image in the same way."""
        return self.distort(images, self.draw(len(images), generator))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw the distortions of `count` images, (6, count) from -1 to 1.

        Separate from `distort`, so that processes that share a batch can draw for the whole batch and take their part.
        """
        return torch.rand(6, count, generator=generator).mul_(2).sub_(1)

    def distort(self, images: Tensor, draws: Tensor) -> Tensor:
        """Distort images (n, c, h, w) as drawn, (6, n)."""
        if images.ndim != 4 or not images.is_floating_point():
            raise InputError(
                f"images has shape {tuple(images.shape)} and {images.dtype}: "
                "floating point (images, channels, height, width) is needed"
            )
        count, _, height, width = images.shape
        draws = draws.to(images)
        angle = draws[0] * math.radians(self.rotation)
        across, down = (draws[1:3] * self.scale).exp()
        shear = draws[3] * self.shear
        cosine, sine = angle.cos(), angle.sin()
        matrices = images.new_zeros(count, 2, 3)
        matrices[:, 0, 0] = across * cosine
        matrices[:, 0, 1] = across * (shear * cosine - sine) * height / width
        matrices[:, 1, 0] = down * sine * width / height
        matrices[:, 1, 1] = down * (shear * sine + cosine)
        matrices[:, 0, 2] = draws[4] * 2 * self.shift / max(width, 1)
        matrices[:, 1, 2] = draws[5] * 2 * self.shift / max(height, 1)
        grid = torch.nn.functional.affine_grid(matrices, list(images.shape), align_corners=False)
        return torch.nn.functional.grid_sample(images, grid, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class RandomCrop:
    """Crops an image at random, resizes the crop to the size of the model, and flips it left to right at random.

    torchvision's `RandomResizedCrop` and `RandomHorizontalFlip`; the sides of the crop are 3:4 to 4:3.
    """

    smallest_area: float = 0.08
    """The smallest share of the image's area."""
    flip: float = 0.5
    """How often it is flipped."""

    def __post_init__(self) -> None:
        if not 0 < checks.number(self.smallest_area, "smallest_area") <= 1:
            raise InputError(f"smallest_area is {self.smallest_area}: a share above 0 and up to 1 is needed")
        if not 0 <= checks.number(self.flip, "flip") <= 1:
            raise InputError(f"flip is {self.flip}: a share from 0 to 1 is needed")

    def transform(self, size: int) -> Callable[[Any], Tensor]:
        """Return the transform of a PIL image to uint8 (channels, size, size); it draws from torch's random state."""
        v2 = _torchvision_transforms()
        crop = v2.RandomResizedCrop(size, scale=(self.smallest_area, 1.0))
        transform: Callable[[Any], Tensor] = v2.Compose([crop, v2.RandomHorizontalFlip(self.flip), v2.PILToTensor()])
        return transform


def centre_crop(size: int, resize: int | None = None) -> Callable[[Any], Tensor]:
    """Return the transform of a test image: resize the shorter side to `resize` (8/7 of size), crop the centre.

    >>> from PIL import Image
    >>> centre_crop(28)(Image.new("RGB", (100, 60))).shape
    torch.Size([3, 28, 28])
    """
    v2 = _torchvision_transforms()
    side = round(size * 8 / 7) if resize is None else resize
    if side < size:
        raise InputError(f"resize is {resize}: at least the model's {size} pixels are needed")
    transform: Callable[[Any], Tensor] = v2.Compose([v2.Resize(side), v2.CenterCrop(size), v2.PILToTensor()])
    return transform


class ImageTransform:
    """The transform of an image, random or of the centre, which worker processes can be sent.

    torchvision's transforms themselves cannot: a new process would import torchvision before the shim that it may need.
    """

    def __init__(self, size: int, crop: RandomCrop | None = None, resize: int | None = None) -> None:
        self.size, self.crop, self.resize = size, crop, resize
        self._transform: Callable[[Any], Tensor] | None = self._make()

    def _make(self) -> Callable[[Any], Tensor]:
        return centre_crop(self.size, self.resize) if self.crop is None else self.crop.transform(self.size)

    def __call__(self, image: Any) -> Tensor:
        """Return a PIL image as uint8 (channels, size, size)."""
        if self._transform is None:
            self._transform = (
                centre_crop(self.size, self.resize) if self.crop is None else self.crop.transform(self.size)
            )
        return self._transform(image)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transform": None}


def _torchvision_transforms() -> Any:
    import_torchvision()
    from torchvision.transforms import v2

    return v2
