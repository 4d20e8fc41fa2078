"""SoftTriple: a softmax over classes of several centres each."""

from __future__ import annotations

import torch
from pytorch_metric_learning import losses as library
from torch import Tensor

from isomargin import checks
from isomargin.losses._batch import normalise, product
from isomargin.losses._proxies import Cosine, ProxyLoss


class SoftTripleLoss(ProxyLoss):
    """SoftTriple: a softmax over classes of several centres each, whose superfluous centres are drawn together.

    With s_ck the cosine similarity of an embedding and centre k of class c, y its class and w_ck the centres at
    length 1, of which there are K in each of C classes:

        S_c = Σ_k softmax_k(s_ck / γ) · s_ck
        mean of −log( exp(λ(S_y − δ)) / ( exp(λ(S_y − δ)) + Σ_{c ≠ y} exp(λ·S_c) ) )
            + τ / (C·K·(K−1)) · Σ_c Σ_{k < l} √(2 + 10⁻⁵ − 2·w_ck·w_cl)

    Centres start from He's uniform distribution with a = √5, as the authors'. Weights weigh the mean, not the centres'
    term; a batch without rows has a loss of 0, without that term too.

    Parameters
    ----------
    num_classes, embedding_size: number of classes and of dimensions. Labels go from 0 to num_classes − 1.
    centers_per_class: K; with 1 there is no term of τ.
    scale, gamma, margin, tau: λ, γ, δ and τ.
    learning_rate_factor: how many times the model's learning rate the centres get; 100 is the authors' (1e-2 and 1e-4).
    check_finite: raise, with the rows, where embeddings hold NaN or infinity.

    >>> loss = SoftTripleLoss(num_classes=3, embedding_size=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 2])).backward()
    >>> sum(each.numel() for each in loss.parameters()) == 3 * 10 * 8
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
        self.inner = library.SoftTripleLoss(
            num_classes=self.num_classes,
            embedding_size=self.embedding_size,
            centers_per_class=self.centers_per_class,
            la=self.scale,
            gamma=self.gamma,
            margin=self.margin,
            distance=Cosine(),
        )

    @property
    def proxy_parameter(self) -> Tensor:
        """The proxies."""
        parameter: Tensor = self.inner.fc
        return parameter

    def batch_loss(self, vectors: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the mean of the samples' losses and the centres' term."""
        value = super().batch_loss(vectors, labels, weights)
        if self.tau == 0 or self.centers_per_class == 1:
            return value
        return value + self.tau * self.spread()

    def spread(self) -> Tensor:
        """Return half the mean distance of two centres of a class, which the library leaves out of the loss."""
        count = self.centers_per_class
        centers = normalise(self.inner.fc.T).view(self.num_classes, count, -1)
        one, other = torch.triu_indices(count, count, offset=1, device=centers.device)
        similarities = product(centers, centers)[:, one, other]
        squares = (2 - 2 * similarities).clamp_min(0) + 1e-5  # rounding can make a similarity larger than 1
        return squares.sqrt().sum() / (self.num_classes * count * (count - 1))
