"""From the features of a backbone at each position to one vector per image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

POOLINGS = ("avg", "max", "avg+max", "gem", "cls", "none")
"""`cls` is a transformer's class token; `none` leaves the pooling to the backbone itself."""


class AveragePooling(nn.Module):
    """The mean over positions.

    >>> AveragePooling()(torch.tensor([[[1.0, 3.0]]]))
    tensor([[2.]])
    """

    def forward(self, features: Tensor) -> Tensor:
        """(n, channels, positions) to (n, channels)."""
        return features.mean(-1)


class MaximumPooling(nn.Module):
    """The maximum over positions.

    >>> MaximumPooling()(torch.tensor([[[1.0, 3.0]]]))
    tensor([[3.]])
    """

    def forward(self, features: Tensor) -> Tensor:
        """(n, channels, positions) to (n, channels)."""
        return features.amax(-1)


class AverageMaximumPooling(nn.Module):
    """The sum of mean and maximum over positions, as in Proxy Anchor.

    >>> AverageMaximumPooling()(torch.tensor([[[1.0, 3.0]]]))
    tensor([[5.]])
    """

    def forward(self, features: Tensor) -> Tensor:
        """(n, channels, positions) to (n, channels)."""
        return features.mean(-1) + features.amax(-1)


class GeneralizedMeanPooling(nn.Module):
    """The generalized mean (GeM) over positions, (mean x^p)^(1/p); features below 1e-6 count as 1e-6.

    p = 1 is the mean; the larger p, the closer to the maximum. It is meant for features after a ReLU: negative
    features, such as those of a transformer, are lost.

    >>> GeneralizedMeanPooling(power=3.0)(torch.tensor([[[1.0, 2.0]]]))
    tensor([[1.6510]])
    """

    power: Tensor

    def __init__(self, power: float = 3.0, learnable: bool = False) -> None:
        super().__init__()
        if learnable:
            self.power = nn.Parameter(torch.tensor(float(power)))
        else:
            self.register_buffer("power", torch.tensor(float(power)))

    def forward(self, features: Tensor) -> Tensor:
        """(n, channels, positions) to (n, channels)."""
        return features.clamp(min=1e-6).pow(self.power).mean(-1).pow(1 / self.power)

    def extra_repr(self) -> str:
        """Show the power, and whether it trains."""
        return f"power={self.power.item():g}, learnable={isinstance(self.power, nn.Parameter)}"


def make_pooling(name: str, gem_power: float = 3.0, gem_learnable: bool = False) -> nn.Module:
    """Create a pooling by its name; `cls` and `none` have nothing to pool.

    >>> make_pooling("gem")
    GeneralizedMeanPooling(power=3, learnable=False)
    """
    if name == "gem":
        return GeneralizedMeanPooling(gem_power, gem_learnable)
    plain = {"avg": AveragePooling, "max": MaximumPooling, "avg+max": AverageMaximumPooling}
    return plain.get(name, nn.Identity)()
