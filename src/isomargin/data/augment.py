"""Random distortions of a whole batch at once, for small images that are kept in memory: no loader to wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isomargin import checks
from isomargin.errors import InputError


@dataclass(frozen=True)
class RandomAffine:
    """Turns, scales, shears and shifts each image of a batch at random, with bilinear interpolation and black around.

    >>> images = torch.rand(4, 1, 28, 28)
    >>> RandomAffine()(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 28, 28])
    """

    rotation: float = 10.0
    """Degrees, up to which either way."""
    scale: float = 0.1
    """The logarithm of width and of height, each on its own, up to which either way."""
    shear: float = 0.1
    """Up to which either way."""
    shift: float = 2.0
    """Pixels, up to which either way."""

    def __post_init__(self) -> None:
        for name in ("rotation", "scale", "shear", "shift"):
            checks.at_least_zero(getattr(self, name), name)

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Distort images (n, c, h, w) of floating point; all channels alike."""
        if images.ndim != 4 or not images.is_floating_point():
            raise InputError(
                f"images has shape {tuple(images.shape)} and {images.dtype}: "
                "floating point (images, channels, height, width) is needed"
            )
        count, _, height, width = images.shape
        draws = torch.rand(6, count, generator=generator).mul_(2).sub_(1).to(images)  # (6, n) in -1..1
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
