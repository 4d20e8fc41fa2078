"""What the proxy losses share: losses with learned vectors, the proxies, for each class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._base import MetricLoss, Records
from isomargin.losses._batch import Batch, normalise, product


class ProxyLoss(MetricLoss):
    """What the proxy losses share: their checks, the mean over samples, and the learning rate of the proxies."""

    weighs_samples = True
    takes_references = False
    proxies: torch.nn.Parameter
    """(proxies, d), ordered by class; the only parameter."""

    def __init__(self, num_classes: int, embedding_size: int, learning_rate_factor: float, check_finite: bool) -> None:
        super().__init__(check_finite)
        self.num_classes = checks.whole(num_classes, "num_classes")
        self.embedding_size = checks.whole(embedding_size, "embedding_size")
        self.learning_rate_factor = checks.above_zero(learning_rate_factor, "learning_rate_factor")

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Check the batch and compute the loss of its normalised vectors; without rows it is 0."""
        proxies = self.proxies
        self._check(batch, proxies)
        vectors = batch.vectors.to(proxies.dtype)
        if not len(vectors):
            return vectors.sum() + (proxies * 0).sum(), {}
        return self.batch_loss(vectors, batch.labels.long(), batch.weights), {}

    def batch_loss(self, vectors: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """Return the mean of the samples' losses, times their weights (n,)."""
        return weighted_mean(self.sample_losses(vectors, labels), weights)

    def sample_losses(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample (n,), from vectors (n, d) of length 1 and labels (n,)."""
        raise NotImplementedError

    def similarities(self, vectors: Tensor) -> Tensor:
        """Return the cosine similarity of each vector with each proxy (n, proxies)."""
        return product(vectors, normalise(self.proxies))

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the proxies with their learning rate, `learning_rate_factor` times the model's.

        >>> from isomargin.losses import ProxyAnchorLoss
        >>> [group["lr"] for group in ProxyAnchorLoss(10, 4).parameter_groups(1e-4)]
        [0.01]
        """
        rate = checks.at_least_zero(learning_rate, "learning_rate") * self.learning_rate_factor
        return [{"params": list(self.parameters()), "lr": rate}]

    def _check(self, batch: Batch, proxies: Tensor) -> None:
        name = type(self).__name__
        for given, what in ((batch.references, "ref_emb"), (batch.chosen, "indices_tuple")):
            if given is not None:
                raise InputError(f"{name} compares embeddings with its proxies: leave {what} out")
        if batch.weights is not None and not self.weighs_samples:
            raise InputError(f"{name} cannot weight its samples")
        if batch.embeddings.shape[1] != self.embedding_size:
            raise InputError(
                f"embeddings has {batch.embeddings.shape[1]} dimensions, the proxies of {name} have "
                f"{self.embedding_size}: the same number is needed"
            )
        if batch.embeddings.device != proxies.device:
            raise InputError(
                f"embeddings is on {batch.embeddings.device}, the proxies of {name} on {proxies.device}: "
                "move the loss there first, with loss.to(device)"
            )
        if proxies.dtype not in (torch.float32, torch.float64):
            raise InputError(f"the proxies of {name} are {proxies.dtype}: float32 is needed, with loss.float()")
        labels = batch.host_labels[0]
        outside = labels[(labels < 0) | (labels >= self.num_classes)]
        if len(outside):
            raise InputError(
                f"labels holds {int(outside[0])}: labels from 0 to {self.num_classes - 1} are needed for the "
                f"{self.num_classes} class{'es' if self.num_classes > 1 else ''} of {name}"
            )


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of losses (n,), times their weights (n,)."""
    return (losses if weights is None else losses * weights.to(losses)).mean()
