"""ArcFace and sub-centre ArcFace: softmax losses with a margin on the angle to the proxy of the right class."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._proxies import ProxyLoss


def _angle(value: Any, name: str) -> float:
    if not 0 <= checks.number(value, name) < math.pi:
        raise InputError(f"{name} is {value}: an angle in radians from 0 to below π is needed")
    return float(value)


class _AngularLoss(ProxyLoss):
    """A softmax over the classes, with margins for the right one and `sub_centers` proxies per class."""

    sub_centers = 1

    def _set(self, scale: float, margin: float, angle_factor: float, cosine_margin: float) -> None:
        """Check the settings and draw the proxies."""
        self.scale = checks.above_zero(scale, "scale")
        self.margin = _angle(margin, "margin")
        self.angle_factor = checks.above_zero(angle_factor, "angle_factor")
        self.cosine_margin = checks.at_least_zero(cosine_margin, "cosine_margin")
        drawn = torch.empty(self.embedding_size, self.num_classes * self.sub_centers).normal_(std=0.01)
        self.proxies = torch.nn.Parameter(drawn.T.contiguous())

    def sample_losses(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return minus the logarithm of the right class's probability (n,)."""
        cosines = self.similarities(vectors)
        if self.sub_centers > 1:
            cosines = cosines.view(len(vectors), self.num_classes, self.sub_centers).max(dim=2).values
        right = labels[:, None]
        lowered = self.with_margins(cosines.gather(1, right))
        return cross_entropy(self.scale * cosines.scatter(1, right, lowered), labels, reduction="none")

    def with_margins(self, cosine: Tensor) -> Tensor:
        """Return cos(m₁θ + m) − δ for the cosines of θ, continued beyond π so that it still decreases."""
        # The slope of √x is unbounded at 0, so the sine stays a little above 0.
        sine = (1 - cosine.square()).clamp_min(torch.finfo(cosine.dtype).eps).sqrt()
        if self.angle_factor == 1:
            added = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
            beyond = cosine - self.margin * math.sin(self.margin)
            return torch.where(cosine >= -math.cos(self.margin), added, beyond) - self.cosine_margin
        angle = self.angle_factor * torch.atan2(sine, cosine) + self.margin
        half_turns = (angle.detach() / math.pi).floor()
        return (1 - 2 * (half_turns % 2)) * angle.cos() - 2 * half_turns - self.cosine_margin


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
    angle_factor, cosine_margin: m₁ and δ of the TCM paper's appendix, in which the right class has cos(m₁θ_y + m) − δ.
        If m₁ is not 1, cos x is continued beyond x = π as in SphereFace: (−1)ᵏ cos x − 2k, with k = ⌊x/π⌋.
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
        angle_factor: float = 1.0,
        cosine_margin: float = 0.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self._set(scale, margin, angle_factor, cosine_margin)


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
    angle_factor, cosine_margin: as in `ArcFaceLoss`.
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
        angle_factor: float = 1.0,
        cosine_margin: float = 0.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.sub_centers = checks.whole(sub_centers, "sub_centers")
        self._set(scale, margin, angle_factor, cosine_margin)
