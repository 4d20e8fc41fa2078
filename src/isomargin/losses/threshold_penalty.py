"""OneFace's threshold consistency penalty: samples of domains that need a stricter threshold count more.

Its code is not public; the docstring of the class says what was assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._base import MetricLoss, Records
from isomargin.losses._batch import Batch

ROUNDS = 10  # of k-means; for a batch it converges long before


class ThresholdPenaltyLoss(MetricLoss):
    """Liu et al., *OneFace: One Threshold for All* (2022), as the paper describes it.

    The batch is divided into domains. The threshold T_k of a domain is the similarity at which its false accept rate is
    the target, over its negative pairs with a queue of past embeddings and the batch. T is the same for the whole
    batch. The loss of a sample is weighted by the ratio of the two:

        loss = mean over samples i of  max(T_k(i), floor) / max(T, floor) · base_i

    Assumed, because neither the formula nor the code is public: domains are clusters of the batch's embeddings
    (spherical k-means with a farthest-first start, so that the order of rows makes no difference except for ties);
    thresholds below `floor` count as `floor`, because their ratio means nothing; weights carry no gradient; the base
    loss is a mean over samples.

    Parameters
    ----------
    base: the loss that is weighted: `SmoothAPLoss` (the default), `RecallAtKLoss`, `SupAPLoss`, `ArcFaceLoss`,
        `SubCenterArcFaceLoss`, `ProxyNCALoss`, `ProxyNCAPlusPlusLoss` or `SoftTripleLoss`; also a name or a dictionary
        for `make_loss`.
    domains: number of domains.
    far: the target false accept rate.
    queue_size: how many past embeddings are kept; new ones replace the oldest. Only in training mode.
    floor: a similarity above 0.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = ThresholdPenaltyLoss(domains=2, far=0.1)
    >>> round(float(loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))), 4)  # one threshold, so the same as Smooth-AP
    0.5
    >>> sorted(loss.values)
    ['largest_weight', 'loss', 'threshold', 'threshold_deviation']
    """

    name = "threshold_penalty"

    def __init__(
        self,
        base: MetricLoss | str | Mapping[str, Any] = "smooth_ap",
        domains: int = 8,
        far: float = 1e-3,
        queue_size: int = 4096,
        floor: float = 0.1,
        check_finite: bool = False,
    ) -> None:
        from isomargin.losses.registry import make_loss

        base = make_loss(base)
        super().__init__(check_finite or base.check_finite)
        self.base = base
        self.needs_positive_pairs = base.needs_positive_pairs
        if not self.base.weighs_samples:
            raise InputError(
                f"base is {type(self.base).__name__}, which with these settings is not a mean over samples: "
                "one such as SmoothAPLoss is needed, without simix and without a weight"
            )
        self.domains = checks.whole(domains, "domains")
        self.far = checks.share(far, "far")
        self.queue_size = checks.whole(queue_size, "queue_size", least=0)
        self.floor = checks.above_zero(floor, "floor")
        self.queue: Tensor | None = None
        self.queue_labels: Tensor | None = None

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Weight the samples, and compute the base loss."""
        vectors = batch.vectors.detach()
        known, known_labels = self._candidates(vectors, batch.labels)
        domain = divide(vectors, self.domains)
        negatives = len(known) - (batch.labels[:, None] == known_labels).sum(dim=1)  # (n,)
        finite = vectors.isfinite().all(dim=1)
        read = torch.stack([domain, negatives, finite]).cpu().numpy()  # all that the host has to know, at once
        if read[2].all():
            weights, records = self._weights(vectors, batch.labels, known, known_labels, domain, read)
        else:
            weights, records = vectors.new_ones(len(vectors)), {}
        value, base_records = self.base.compute(batch.weighted(weights))
        if self.training:
            if not read[2].all():  # a bad batch must not spoil later ones
                known, known_labels = self._candidates(vectors[finite], batch.labels[finite])
            self.queue = known[: self.queue_size].clone()
            self.queue_labels = known_labels[: self.queue_size].clone()
        return value, {**base_records, **records}

    def _weights(
        self,
        vectors: Tensor,
        labels: Tensor,
        known: Tensor,
        known_labels: Tensor,
        domain: Tensor,
        read: np.ndarray,
    ) -> tuple[Tensor, Records]:
        """Return the weights (n,), and what to log about the thresholds."""
        sizes = np.bincount(read[0], minlength=self.domains).tolist()
        counts = np.bincount(read[0], weights=read[1], minlength=self.domains).astype(int).tolist()
        accepted = self._accepted(sum(counts))
        if not accepted:
            return vectors.new_ones(len(vectors)), {}
        highest: list[Tensor] = []
        thresholds: list[Tensor] = []
        for rows, count in zip(torch.split(domain.argsort(stable=True), sizes), counts, strict=True):
            if not count:
                thresholds.append(vectors.new_full((), math.nan))
                continue
            similarities = vectors[rows] @ known.T
            similarities.masked_fill_(labels[rows][:, None] == known_labels, -math.inf)
            most = similarities.flatten().topk(min(count, accepted)).values
            thresholds.append(most[self._accepted(count) - 1])
            highest.append(most)
        threshold = torch.cat(highest).topk(accepted).values[-1]
        ratios = torch.stack(thresholds).clamp(min=self.floor) / threshold.clamp(min=self.floor)
        weights = ratios[domain].nan_to_num(nan=1.0)
        there = torch.stack([found for found, count in zip(thresholds, counts, strict=True) if count])
        return weights, {
            "threshold": threshold,
            "threshold_deviation": there.std(correction=0),
            "largest_weight": weights.max(),
        }

    def _accepted(self, count: float) -> int:
        """Return how many of `count` negatives the target rate accepts; 7% of 100 are 7, whatever rounding does."""
        return math.ceil(self.far * count - 1e-9 * count)

    def _candidates(self, vectors: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Concatenate the batch and the queue: (q, d) and (q,)."""
        if self.queue is None or self.queue_labels is None:
            return vectors, labels
        if self.queue.shape[1] != vectors.shape[1]:
            raise InputError(
                f"embeddings has {vectors.shape[1]} dimensions, those of earlier calls had {self.queue.shape[1]}: "
                "the queue needs the same number; create a new loss for another model"
            )
        return torch.cat([vectors, self.queue.to(vectors)]), torch.cat([labels, self.queue_labels.to(labels)])

    def get_extra_state(self) -> dict[str, Tensor | None]:
        """Save the queue with the model."""
        return {"queue": self.queue, "queue_labels": self.queue_labels}

    def set_extra_state(self, state: dict[str, Tensor | None]) -> None:
        """Restore a saved queue."""
        self.queue, self.queue_labels = state["queue"], state["queue_labels"]

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the parameters of the base loss."""
        return self.base.parameter_groups(learning_rate)


def divide(vectors: Tensor, domains: int) -> Tensor:
    """Divide unit vectors (n, d) into domains by spherical k-means: (n,) numbers below `domains`.

    >>> divide(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), 2)
    tensor([0, 1, 0])
    """
    if not len(vectors):
        return torch.zeros(0, dtype=torch.int64, device=vectors.device)
    nearest = (vectors @ vectors.mean(dim=0)).argmax(dim=0, keepdim=True)
    centres = vectors[nearest]
    to_nearest = vectors @ centres[0]
    for _ in range(min(domains, len(vectors)) - 1):
        farthest = vectors[to_nearest.argmin(dim=0, keepdim=True)]
        centres = torch.cat([centres, farthest])
        to_nearest = torch.maximum(to_nearest, vectors @ farthest[0])
    domain = (vectors @ centres.T).argmax(dim=1)
    numbers = torch.arange(len(centres), device=vectors.device)
    for _ in range(ROUNDS):  # always all: to find that nothing moved would be to wait for the device in every round
        members = (domain[:, None] == numbers).to(vectors)  # (n, centres)
        sums = members.T @ vectors
        moved = torch.nn.functional.normalize(sums, dim=1)
        centres = torch.where(sums.abs().sum(dim=1, keepdim=True) > 0, moved, centres)
        domain = (vectors @ centres.T).argmax(dim=1)
    return domain
