"""ArcFace and sub-centre ArcFace: softmax losses with a margin on the angle to the proxy of the right class."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning import losses as library
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._proxies import Cosine, ProxyLoss


class _AngularMargin:
    """ArcFace's margin in radians, with a derivative that is finite where an embedding equals its proxy."""

    margin: float

    def init_margin(self) -> None:
        """Keep the margin: the library would convert it from degrees."""

    def modify_cosine_of_target_classes(self, cosine: Tensor) -> Tensor:
        # The slope of √x is unbounded at 0, so the sine stays a little above 0. So is that of the library's arc cosine.
        sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
        added = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        return torch.where(cosine >= -math.cos(self.margin), added, cosine - self.margin * math.sin(self.margin))


class _ArcFace(_AngularMargin, library.ArcFaceLoss):  # type: ignore[misc]
    pass


class _SubCenterArcFace(_AngularMargin, library.SubCenterArcFaceLoss):  # type: ignore[misc]
    pass


def _angle(value: Any, name: str) -> float:
    if not 0 <= checks.number(value, name) < math.pi:
        raise InputError(f"{name} is {value}: an angle in radians from 0 to below π is needed")
    return float(value)


class _AngularLoss(ProxyLoss):
    def _take(self, library_loss: Any, scale: float, margin: float, **more: int) -> None:
        """Create the library's loss with these settings as the inner one."""
        self.scale = checks.above_zero(scale, "scale")
        self.margin = _angle(margin, "margin")
        self.inner = library_loss(
            num_classes=self.num_classes,
            embedding_size=self.embedding_size,
            scale=self.scale,
            margin=self.margin,
            distance=Cosine(),
            weight_init_func=partial(torch.nn.init.normal_, std=0.01),
            **more,
        )

    @property
    def proxy_parameter(self) -> Tensor:
        """The proxies."""
        parameter: Tensor = self.inner.W
        return parameter


class ArcFaceLoss(_AngularLoss):
    """ArcFace: a softmax over the classes' proxies, with a margin that is added to the angle of the right class.

    With θ_c the angle between an embedding and the proxy of class c, y its class, s the scale and m the margin:

        mean of −log( exp(s·cos(θ_y + m)) / ( exp(s·cos(θ_y + m)) + Σ_{c ≠ y} exp(s·cos θ_c) ) )

    Where θ_y > π − m, cos(θ_y) − m·sin(m) replaces cos(θ_y + m), as in the authors' code, so that the loss still
    decreases with the angle. Proxies start from a normal distribution with standard deviation 0.01.

    Parameters
    ----------
    num_classes, embedding_size: number of proxies and of their dimensions. Labels go from 0 to num_classes − 1.
    scale, margin: s and m, m in radians (0.5 is 28.6 degrees).
    learning_rate_factor: the learning rate of the proxies relative to the model's; Unicom is fine-tuned with 10.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = ArcFaceLoss(num_classes=3, embedding_size=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 2])).backward()
    >>> optimiser = torch.optim.AdamW(loss.parameter_groups(1e-4))
    >>> optimiser.param_groups[0]["lr"]
    0.001
    """

    name = "arcface"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 64.0,
        margin: float = 0.5,
        learning_rate_factor: float = 10.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self._take(_ArcFace, scale, margin)


class SubCenterArcFaceLoss(_AngularLoss):
    """Sub-centre ArcFace: `ArcFaceLoss` with several proxies per class, of which the nearest to an embedding counts.

    With θ_ck the angle between an embedding and proxy k of class c, it is ArcFace with cos θ_c = max_k cos θ_ck. In a
    class with outliers or wrong labels a separate proxy can take them.

    Parameters
    ----------
    num_classes, embedding_size: number of classes and of dimensions. Labels go from 0 to num_classes − 1.
    sub_centers: number of proxies per class.
    scale, margin: s and m of ArcFace, m in radians.
    learning_rate_factor: the learning rate of the proxies relative to the model's.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = SubCenterArcFaceLoss(num_classes=3, embedding_size=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 2])).backward()
    >>> sum(parameter.numel() for parameter in loss.parameters()) == 3 * 3 * 8
    True
    """

    name = "subcenter_arcface"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        sub_centers: int = 3,
        scale: float = 64.0,
        margin: float = 0.5,
        learning_rate_factor: float = 10.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.sub_centers = checks.whole(sub_centers, "sub_centers")
        self._take(_SubCenterArcFace, scale, margin, sub_centers=self.sub_centers)
