"""Small backbones: convolutional ones for grey images of 28 × 28, such as Omniglot and glyphs; others for vectors.

Those for images have the interface of timm's: `forward_features`, `num_features`, and a forward that returns one vector
per image. Those for vectors have nothing to pool, and so no `forward_features`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def _convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    """Create a convolution that keeps the size, except for its stride, and its BatchNorm."""
    return [
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    ]


class _SmallNet(nn.Module):
    """Layers from (n, 1, 28, 28) to a feature map of `num_features` channels."""

    def __init__(self, layers: list[nn.Module], num_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.num_features = num_features
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(self, images: Tensor) -> Tensor:
        """(n, 1, height, width) to a feature map (n, num_features, …, …)."""
        features: Tensor = self.layers(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """(n, 1, height, width) to the mean of the feature map (n, num_features)."""
        return self.forward_features(images).mean((-2, -1))


class _Residual(nn.Module):
    """Two 3 × 3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = _convolution(inputs, outputs, stride=stride), _convolution(outputs, outputs)
        self.convolutions = nn.Sequential(*first, nn.ReLU(inplace=True), *second)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.convolutions(features) + self.shortcut(features))


def tiny_conv() -> nn.Module:
    """Create `small_conv` with a second stride of 2: the same parameters at a quarter of the work.

    >>> tiny_conv().forward_features(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 96, 7, 7])
    """
    relu = nn.ReLU(inplace=True)
    return _SmallNet(
        [*_convolution(1, 24, 5, 2), relu, *_convolution(24, 48, 3, 2), relu, *_convolution(48, 96), relu], 96
    )


def small_conv() -> nn.Module:
    """Create three convolutions, 5 × 5 of stride 2 to 24 channels, 3 × 3 to 48 and to 96: 53 thousand parameters.

    >>> small_conv().forward_features(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 96, 14, 14])
    """
    relu = nn.ReLU(inplace=True)
    return _SmallNet([*_convolution(1, 24, 5, 2), relu, *_convolution(24, 48), relu, *_convolution(48, 96), relu], 96)


def small_conv4() -> nn.Module:
    """Create four convolutions, 5 × 5 of stride 2 to 32 channels, 3 × 3 to 64, of stride 2 to 128, and to 128 again.

    241 thousand parameters, at hardly more time than `small_conv`: its wide layers see 7 × 7 pixels.

    >>> small_conv4().forward_features(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 128, 7, 7])
    """
    relu = nn.ReLU(inplace=True)
    early = [*_convolution(1, 32, 5, 2), relu, *_convolution(32, 64), relu]
    return _SmallNet([*early, *_convolution(64, 128, stride=2), relu, *_convolution(128, 128), relu], 128)


def small_residual() -> nn.Module:
    """Create a 5 × 5 convolution of stride 2 and three residual blocks, of 64 channels at 14 and 128 at 7 pixels.

    584 thousand parameters; two and a half times the work of `small_conv4`, a quarter of that of `small_resnet`.

    >>> small_residual().forward_features(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 128, 7, 7])
    """
    blocks = [_Residual(32, 64, 1), _Residual(64, 128, 2), _Residual(128, 128, 1)]
    return _SmallNet([*_convolution(1, 32, 5, 2), nn.ReLU(inplace=True), *blocks], 128)


def small_resnet() -> nn.Module:
    """Create six residual blocks, of 32, 64 and 128 channels at 28, 14 and 7 pixels: about a million parameters.

    >>> small_resnet().forward_features(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 128, 7, 7])
    """
    layers: list[nn.Module] = [*_convolution(1, 32), nn.ReLU(inplace=True)]
    channels = 32
    for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (128, 1)):
        layers.append(_Residual(channels, width, stride))
        channels = width
    return _SmallNet(layers, channels)


SMALL: dict[str, Callable[[], nn.Module]] = {
    "tiny_conv": tiny_conv,
    "small_conv": small_conv,
    "small_conv4": small_conv4,
    "small_residual": small_residual,
    "small_resnet": small_resnet,
}
"""The small backbones by name."""


class _VectorNet(nn.Module):
    """Layers from (n, features) to (n, num_features)."""

    def __init__(self, layers: list[nn.Module], num_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.num_features = num_features

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, features) to (n, num_features)."""
        after: Tensor = self.layers(vectors)
        return after


def vectors(features: int) -> nn.Module:
    """Create a backbone that passes vectors of `features` numbers on; only the linear layer of the embedder is trained.

    >>> vectors(3)(torch.eye(3)[:1])
    tensor([[1., 0., 0.]])
    """
    return _VectorNet([], features)


def mlp(features: int, hidden: int = 512) -> nn.Module:
    """Create one hidden layer on vectors of `features` numbers, with BatchNorm and ReLU.

    >>> mlp(3, hidden=8)(torch.eye(3)).shape
    torch.Size([3, 8])
    """
    # BatchNorm would subtract a bias of the linear layer again.
    layers = [nn.Linear(features, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
    return _VectorNet(layers, hidden)


VECTOR: dict[str, Callable[..., nn.Module]] = {"vectors": vectors, "mlp": mlp}
"""The backbones for vectors by name; each is created for a number of `features`."""
