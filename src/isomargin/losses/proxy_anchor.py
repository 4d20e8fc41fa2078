"""Proxy Anchor: proxies pull and push the embeddings of the batch, hard ones most."""

from __future__ import annotations

from pytorch_metric_learning import losses as library
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._proxies import Cosine, ProxyLoss


class ProxyAnchorLoss(ProxyLoss):
    """Proxy Anchor: each proxy pulls the batch's embeddings of its class and pushes all others, the hard ones most.

    With s(x, p) the cosine similarity, P the proxies, P⁺ those whose class is in the batch, and X_p the embeddings of
    p's class:

        1/|P⁺| · Σ_{p ∈ P⁺} log(1 + Σ_{x ∈ X_p} exp(−α(s(x, p) − δ)))
            + 1/|P| · Σ_{p ∈ P} log(1 + Σ_{x ∉ X_p} exp(α(s(x, p) + δ)))

    Proxies start from He's normal distribution over the classes. Samples have no separate losses, so no weights either.

    Parameters
    ----------
    num_classes, embedding_size: number of proxies and of their dimensions. Labels go from 0 to num_classes − 1.
    margin: δ.
    alpha: α.
    learning_rate_factor: the learning rate of the proxies relative to the model's; the authors have 100.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> import torch
    >>> loss = ProxyAnchorLoss(num_classes=3, embedding_size=8)
    >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 2])).backward()
    >>> loss(torch.randn(1, 8), torch.tensor([3]))
    Traceback (most recent call last):
    isomargin.InputError: labels holds 3: labels from 0 to 2 are needed for the 3 classes of ProxyAnchorLoss
    """

    name = "proxy_anchor"

    weighs_samples = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32.0,
        learning_rate_factor: float = 100.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.margin = checks.number(margin, "margin")
        self.alpha = checks.above_zero(alpha, "alpha")
        self.inner = library.ProxyAnchorLoss(
            num_classes=self.num_classes,
            embedding_size=self.embedding_size,
            margin=self.margin,
            alpha=self.alpha,
            distance=Cosine(),
        )

    @property
    def proxy_parameter(self) -> Tensor:
        """The proxies."""
        parameter: Tensor = self.inner.proxies
        return parameter

    def batch_loss(self, vectors: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the library's loss of the whole batch."""
        value: Tensor = self.inner(vectors, labels)
        return value
