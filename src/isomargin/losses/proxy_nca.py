"""ProxyNCA and ProxyNCA++: embeddings are pulled to the proxy of their class, away from the other proxies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from isomargin.core import checks
from isomargin.losses._proxies import ProxyLoss


class _NearestProxyLoss(ProxyLoss):
    """One proxy per class; squared distances ‖x − p‖² = 2 − 2·cos, of which the 2 cancels in every ratio."""

    def __init__(self, num_classes: int, embedding_size: int, learning_rate_factor: float, check_finite: bool) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.proxies = torch.nn.Parameter(torch.randn(self.num_classes, self.embedding_size) / 8)


class ProxyNCALoss(_NearestProxyLoss):
    """ProxyNCA: the distance to the proxy of the right class, compared with those to the proxies of all other classes.

    With x and p at length `scale`, and y the class of x:

        mean of −log( exp(−‖x − p_y‖²) / Σ_{c ≠ y} exp(−‖x − p_c‖²) )

    The right proxy is not in the denominator, so the loss can be negative; with a single class it is 0. Proxies start
    from a normal distribution with standard deviation 1/8.

    Parameters
    ----------
    num_classes, embedding_size: number of proxies and of their dimensions. Labels go from 0 to num_classes − 1.
    scale: length of embeddings and proxies when they are compared.
    learning_rate_factor: the learning rate of the proxies relative to the model's. ProxyNCA++ introduced faster ones.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = ProxyNCALoss(num_classes=2, embedding_size=2)
    >>> loss.proxies.data = torch.eye(2)
    >>> float(loss(torch.eye(2), torch.tensor([0, 1])).detach())  # 0 to the right proxy, 2 · 3² to the other
    -18.0
    """

    name = "proxy_nca"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        scale: float = 3.0,
        learning_rate_factor: float = 1.0,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.scale = checks.above_zero(scale, "scale")

    def sample_losses(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return how much nearer the other proxies are than the right one, as a logarithm (n,)."""
        logits = 2 * self.scale**2 * self.similarities(vectors)
        if self.num_classes == 1:
            return logits[:, 0] * 0
        right = labels[:, None]
        return logits.scatter(1, right, -torch.inf).logsumexp(dim=1) - logits.gather(1, right)[:, 0]


class ProxyNCAPlusPlusLoss(_NearestProxyLoss):
    """ProxyNCA++: the probability of the right class's proxy among all proxies, at a low temperature.

    With x and p at length 1, y the class of x and T the temperature:

        mean of −log( exp(−‖x − p_y‖² / T) / Σ_c exp(−‖x − p_c‖² / T) )

    T = 1/9 is the same as vectors of length 3, which the authors' code has. Proxies start from a normal distribution
    with standard deviation 1/8.

    Parameters
    ----------
    num_classes, embedding_size: number of proxies and of their dimensions. Labels go from 0 to num_classes − 1.
    temperature: the temperature T.
    learning_rate_factor: the learning rate of the proxies relative to the model's. The authors' 1e5 (4e2 for the
        proxies, 4e-3 for the model; 1e4 on Stanford Online Products) belongs to Adam with eps = 1, so
        `parameter_groups` sets that eps for the proxies. At Adam's usual eps a step moves each number by about the
        learning rate, however small its gradient.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = ProxyNCAPlusPlusLoss(num_classes=2, embedding_size=2)
    >>> loss.proxies.data = torch.eye(2)
    >>> value = loss(torch.eye(2), torch.tensor([1, 0]))  # 2 to the right proxy, 0 to the other
    >>> round(float(value.detach()), 4)
    18.0
    """

    name = "proxy_nca++"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 1 / 9,
        learning_rate_factor: float = 1e5,
        check_finite: bool = False,
    ) -> None:
        super().__init__(num_classes, embedding_size, learning_rate_factor, check_finite)
        self.temperature = checks.temperature(temperature, "temperature")

    def sample_losses(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return minus the logarithm of the right proxy's probability (n,)."""
        return cross_entropy(2 / self.temperature * self.similarities(vectors), labels, reduction="none")

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the proxies with their learning rate and, for optimisers that know it, the authors' eps."""
        return [{**group, "eps": 1.0} for group in super().parameter_groups(learning_rate)]
