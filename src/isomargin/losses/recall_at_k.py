"""The recall@k surrogate, with SiMix: virtual embeddings between those of a class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._batch import Batch
from isomargin.losses._pairs import Pairs, upload
from isomargin.losses._ranks import RankLoss

SEED_STRIDE = 2_654_435_761  # torch's generator reads 32 bits: this keeps nearby seeds from drawing the same numbers


class RecallAtKLoss(RankLoss):
    """Patel, Tolias and Matas (2022), RS@k: a smooth share of a query's positives among the first k.

    With R_j the soft rank of positive j as in Smooth-AP and P the number of the query's positives:

        recall@k = min(Σ_j σ((k − R_j)/τ_rank), k) / min(k, P),    loss = 1 − mean over queries and over k

    Queries without a positive are left out of the mean.

    Parameters
    ----------
    k: one or several numbers of neighbours.
    temperature: τ of the ranks.
    rank_temperature: τ_rank, in ranks.
    simix: mix all pairs of a class, αx + (1 − α)y with α uniform in (0, 1), and add the results (not normalised again)
        to the batch as further items of the class: 4 items become 10. With references they are added to the queries
        only. It cannot be used with `indices_tuple`, and so not in a cross-batch memory.
    include_query: give the query itself a place above its positives, as the authors' code does.
    cap_k: use the number of items in the batch, without those of SiMix, in place of any larger k, as the authors' code
        does.
    seed: of the α. They are a function of it and of the number of calls so far (kept in `state_dict`), so that several
        processes draw the same numbers. Activation checkpointing around the loss would call it twice: checkpoint the
        model instead.
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity.

    >>> loss = RecallAtKLoss(k=(1, 2))
    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> round(float(loss(points, torch.tensor([0, 0, 1, 1]))), 4)  # a right ranking, with smooth steps
    0.3845
    """

    name = "recall_at_k"

    query_is_ranked = False

    def __init__(
        self,
        k: int | Iterable[int] = (1, 2, 4, 8, 16),
        temperature: float = 0.01,
        rank_temperature: float = 1.0,
        simix: bool = False,
        include_query: bool = False,
        seed: int = 0,
        cap_k: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__(temperature, include_query, check_finite)
        several = isinstance(k, Iterable) and not isinstance(k, str)
        self.k = tuple(checks.whole(number, "k") for number in (k if several else [k]))  # type: ignore[union-attr]
        if not self.k:
            raise InputError("k is empty: at least one number of neighbours is needed")
        self.rank_temperature = checks.temperature(rank_temperature, "rank_temperature")
        self.simix = checks.truth(simix, "simix")
        self.weighs_samples = not simix
        self.seed = checks.whole(seed, "seed", least=0)
        self.cap_k = checks.truth(cap_k, "cap_k")
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def shares_points(self, batch: Batch) -> bool:
        """With SiMix it compares more points than other losses."""
        return not self.simix

    def points(self, batch: Batch) -> tuple[Tensor, Tensor | None, Pairs]:
        """Add the virtual embeddings of SiMix, if it is on."""
        if not self.simix:
            return super().points(batch)
        if batch.chosen is not None:
            raise InputError("simix adds embeddings that indices_tuple does not list: use one or the other")
        labels, reference_labels = batch.host_labels
        device = batch.labels.device
        places = Pairs.of(labels, None, device, None).host_places(0, len(labels))
        ends = np.stack(divmod(places, max(len(labels), 1)))
        ends = ends[:, ends[0] < ends[1]]
        weights = self.mixing_weights(ends.shape[1]).to(batch.vectors)[:, None]
        rows, columns = upload(ends, device)
        mixed = torch.lerp(batch.vectors[columns], batch.vectors[rows], weights)
        labels = np.concatenate([labels, labels[ends[0]]])
        vectors = torch.cat([batch.vectors, mixed])
        pairs = Pairs.of(labels, reference_labels, device, None)
        return vectors, batch.reference_vectors, replace(pairs, virtual=ends.shape[1])

    def mixing_weights(self, count: int) -> Tensor:
        """Draw the next `count` weights α, uniform in (0, 1)."""
        generator = torch.Generator().manual_seed((self.seed * SEED_STRIDE + int(self.calls)) % 2**32)
        self.calls += 1
        return torch.rand(count, generator=generator)

    def query_losses(
        self, positive_ranks: Tensor, above: Tensor, ranked: Tensor, counts: Tensor, items: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return 1 − mean over k of recall@k."""
        ranks = positive_ranks + above
        recalls = torch.zeros_like(ranks[:, 0])
        slopes = torch.zeros_like(ranks)
        for k in (min(k, items) if self.cap_k else k for k in self.k):
            within = ((k - ranks) / self.rank_temperature).sigmoid() * ranked  # (b, ranked)
            found = within.sum(dim=1)
            most = counts.clamp(1, k)
            recalls += found.clamp(max=k) / most
            force = within * (1 - within) / self.rank_temperature / most[:, None]
            slopes += force * (found < k)[:, None]
        slopes /= len(self.k)
        return 1 - recalls / len(self.k), slopes, slopes
