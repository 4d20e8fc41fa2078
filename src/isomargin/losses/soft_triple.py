"""SoftTriple: a softmax over classes with several centres each."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from isomargin.core import checks
from isomargin.losses._batch import normalise, product
from isomargin.losses._proxies import ProxyLoss, weighted_mean


class SoftTripleLoss(ProxyLoss):
    """SoftTriple: a softmax over classes with several centres each; superfluous centres are pulled together.

    With s_ck the cosine similarity of an embedding and centre k of class c, y its class and w_ck the centres at
    length 1, of which there are K in each of C classes:

        S_c = Σ_k softmax_k(s_ck / γ) · s_ck
        mean of −log( exp(λ(S_y − δ)) / ( exp(λ(S_y − δ)) + Σ_{c ≠ y} exp(λ·S_c) ) )
            + τ / (C·K·(K−1)) · Σ_c Σ_{k < l} √(2 + 10⁻⁵ − 2·w_ck·w_cl)

    Centres start from He's uniform distribution with a = √5, as in the authors' code. Sample weights apply to the mean,
    not to the term of the centres. The loss of a batch without rows is 0, without that term.

    Parameters
    ----------
    num_classes, embedding_size: number of classes and of dimensions. Labels go from 0 to num_classes − 1.
    centers_per_class: K; with 1 there is no term with τ.
    scale, gamma, margin, tau: λ, γ, δ and τ.
    learning_rate_factor: the learning rate of the centres relative to the model's; the authors have 100 (1e-2, 1e-4).
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = SoftTripleLoss(num_classes=3, embedding_size=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 2])).backward()
    >>> sum(parameter.numel() for parameter in loss.parameters()) == 3 * 10 * 8
    True
    """

    name = "soft_triple"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        learning_rate_factor: float = 100.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.centers_per_class = checks.whole(centers_per_class, "centers_per_class")
        self.scale = checks.above_zero(scale, "scale")
        self.gamma = checks.above_zero(gamma, "gamma")
        self.margin = checks.number(margin, "margin")
        self.tau = checks.at_least_zero(tau, "tau")
        drawn = torch.empty(self.embedding_size, self.num_classes * self.centers_per_class)
        torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
        self.proxies = torch.nn.Parameter(
            drawn.T.contiguous()
        )  # rows are several times faster to normalise than columns

    def batch_loss(self, vectors: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the mean of the samples' losses plus the term of the centres."""
        centers = normalise(self.proxies)  # once for both
        value = weighted_mean(self.losses_at(centers, vectors, labels), weights)
        if self.tau == 0 or self.centers_per_class == 1:
            return value
        return value + self.tau * self.spread(centers)

    def losses_at(self, centers: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample (n,) with centres of length 1."""
        cosines = product(vectors, centers).view(len(vectors), self.num_classes, self.centers_per_class)
        similarities = ((cosines / self.gamma).softmax(dim=2) * cosines).sum(dim=2)
        right = labels[:, None]
        lowered = similarities.scatter_add(1, right, torch.full_like(right, -self.margin, dtype=similarities.dtype))
        return cross_entropy(self.scale * lowered, labels, reduction="none")

    def spread(self, centers: Tensor) -> Tensor:
        """Return half the mean distance between two centres of a class."""
        count = self.centers_per_class
        classes = centers.view(self.num_classes, count, -1)
        one, other = torch.triu_indices(count, count, offset=1, device=centers.device)
        similarities = product(classes, classes)[:, one, other]
        squares = (2 - 2 * similarities).clamp_min(0) + 1e-5  # rounding can make a similarity larger than 1
        return squares.sqrt().sum() / (self.num_classes * count * (count - 1))
