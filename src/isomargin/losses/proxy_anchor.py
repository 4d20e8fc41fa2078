"""Proxy Anchor: proxies pull and push the embeddings of the batch, hard ones most."""

from __future__ import annotations

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._proxies import ProxyLoss


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
        self.proxies = torch.nn.Parameter(torch.empty(self.num_classes, self.embedding_size))
        torch.nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def batch_loss(self, vectors: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Add the pull of the proxies whose class is in the batch and the push of all."""
        similarities = self.similarities(vectors)
        own = labels[:, None] == torch.arange(self.num_classes, device=labels.device)  # (n, num_classes)
        pull = (-self.alpha * (similarities - self.margin)).masked_fill(~own, -torch.inf)
        push = (self.alpha * (similarities + self.margin)).masked_fill(own, -torch.inf)
        one = similarities.new_zeros(1, self.num_classes)  # the logarithm of the 1 in log(1 + Σ)
        pull, push = (torch.cat([one, exponents]).logsumexp(dim=0) for exponents in (pull, push))
        return pull.sum() / own.any(dim=0).sum() + push.mean()
