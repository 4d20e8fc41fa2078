"""Weighted sums of losses: `base + 0.5 * regularizer`. Losses of pairs share one pass over the similarities.

A regularizer can have a share instead of a weight, `base + share(regularizer, 0.3)`: its gradient with respect to the
embeddings is then 0.3 times as long as the base's in every batch, whatever the scale of either.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses._base import MetricLoss, PairLoss, Records, compute_together
from isomargin.losses._batch import Batch


class WeightedSum(MetricLoss):
    """A weighted sum of losses. It is the result of `+` and `*`, or of `make_loss` with a list.

    Parts may be losses of this package or any other that is called as `loss(embeddings, labels)`, such as those of
    pytorch-metric-learning. After a call `values` holds `loss` and, under the name of each part, its unweighted value
    and what else it logs.

    >>> import torch
    >>> from isomargin.losses import SmoothAPLoss, TCMLoss
    >>> loss = SmoothAPLoss() + 0.5 * TCMLoss()
    >>> value = loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> {name: round(float(logged), 3) for name, logged in loss.values.items()}
    {'loss': 0.95, 'smooth_ap': 0.5, 'tcm': 0.9, 'tcm.hard_positives': 2.0, 'tcm.hard_negatives': 0.0}
    """

    name = "sum"

    def __init__(
        self,
        parts: list[torch.nn.Module],
        weights: list[float],
        check_finite: bool = False,
        shares: list[float | None] | None = None,
    ) -> None:
        super().__init__(check_finite or any(getattr(part, "check_finite", False) for part in parts))
        shares = [None] * len(weights) if shares is None else shares
        if not parts or len(parts) != len(weights) or len(parts) != len(shares):
            raise InputError(
                f"{len(parts)} losses were given with {len(weights)} weights: one weight per loss is needed"
            )
        self.parts = torch.nn.ModuleList(parts)
        self.needs_positive_pairs = all(getattr(part, "needs_positive_pairs", False) for part in parts)
        self.weights = [checks.at_least_zero(weight, "weight") for weight in weights]
        self.shares = [None if value is None else checks.at_least_zero(value, "share") for value in shares]
        self.names = _distinct([getattr(part, "name", type(part).__name__) for part in parts])
        self.share_weights = {number: torch.zeros(()) for number, value in enumerate(self.shares) if value is not None}

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Compute the parts, those that compare the same pairs together, and their weighted sum."""
        shared = [part for part in self.leaves() if isinstance(part, PairLoss) and part.shares_points(batch)]
        results: dict[int, tuple[Tensor, Records]] = {}
        if shared:
            values, records = compute_together(shared, batch)
            results = {id(part): result for part, *result in zip(shared, values, records, strict=True)}  # type: ignore[misc]
        return self.assemble(batch, results)

    def leaves(self) -> list[torch.nn.Module]:
        """List the parts, with sums replaced by their parts, each once."""
        parts: dict[int, torch.nn.Module] = {}
        for part in self.parts:
            for leaf in part.leaves() if isinstance(part, WeightedSum) else [part]:
                parts[id(leaf)] = leaf
        return list(parts.values())

    def assemble(self, batch: Batch, results: dict[int, tuple[Tensor, Records]]) -> tuple[Tensor, Records]:
        """Add up the parts; compute those that have no result yet."""
        values: list[Tensor] = []
        kept: Records = {}
        for part, name in zip(self.parts, self.names, strict=True):
            if isinstance(part, WeightedSum):
                value, logged = part.assemble(batch, results)
            else:
                if id(part) not in results:
                    results[id(part)] = compute_any(part, batch)
                value, logged = results[id(part)]
            value = value + batch.zero_or_nan.to(value)
            values.append(value)
            kept[name] = value.detach()
            kept.update({f"{name}.{key}": record for key, record in logged.items()})
            if isinstance(part, MetricLoss):
                part.values = {"loss": value.detach(), **logged}
        total: Tensor = sum(  # type: ignore[assignment]
            weight * value
            for weight, value, share in zip(self.weights, values, self.shares, strict=True)
            if share is None
        )
        if any(share is not None for share in self.shares):
            total = self._with_shares(total, values, batch.embeddings, kept)
        return total, kept

    def _with_shares(self, plain: Tensor, values: list[Tensor], embeddings: Tensor, kept: Records) -> Tensor:
        """Add the parts that have a share, with the weight that gives the gradient of each its length.

        Without gradients, as in validation, the weights of the last call are used.
        """
        if not isinstance(plain, Tensor):
            raise InputError(
                "every loss of this sum has a share: at least one without a share is needed, which the shares refer to"
            )
        taken = torch.is_grad_enabled() and embeddings.requires_grad
        length = _gradient_length(plain, embeddings) if taken else None
        total = plain
        for number, (value, share) in enumerate(zip(values, self.shares, strict=True)):
            if share is None:
                continue
            if length is not None:
                part_length = _gradient_length(value, embeddings)
                self.share_weights[number] = torch.where(part_length > 0, share * length / part_length, 0.0)
            kept[f"{self.names[number]}.weight"] = self.share_weights[number].to(value)
            total = total + self.share_weights[number].to(value) * value
        return total

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the parameters of the parts, each once; those of other libraries' losses at the rate of the model."""
        groups: list[dict[str, Any]] = []
        for part in self.leaves():
            if isinstance(part, MetricLoss):
                groups += part.parameter_groups(learning_rate)
            elif parameters := list(part.parameters()):
                groups.append({"params": parameters, "lr": learning_rate})
        return groups

    def extra_repr(self) -> str:
        """Show the sum."""
        return " + ".join(
            f"{weight:g} * {name}" if share is None else f"share({name}, {share:g})"
            for weight, name, share in zip(self.weights, self.names, self.shares, strict=True)
        )


def compute_any(part: torch.nn.Module, batch: Batch) -> tuple[Tensor, Records]:
    """Compute one part, of this package or of another library."""
    if isinstance(part, MetricLoss):
        return part.compute(batch)
    if batch.weights is not None:
        raise InputError(f"{type(part).__name__} cannot weight its samples")
    if batch.references is None and batch.chosen is None:
        return part(batch.embeddings, batch.labels), {}
    if "ref_emb" not in inspect.signature(part.forward).parameters:
        raise InputError(f"{type(part).__name__} takes no ref_emb or indices_tuple, which this sum was called with")
    given = {"indices_tuple": batch.chosen, "ref_emb": batch.references, "ref_labels": batch.reference_labels}
    return part(batch.embeddings, batch.labels, **given), {}


def added(*losses: object) -> WeightedSum:
    """Add losses; plain sums are split into their parts, so that (a + b) + c has three parts."""
    parts: list[torch.nn.Module] = []
    weights: list[float] = []
    shares: list[float | None] = []
    for loss in losses:
        if type(loss) is WeightedSum:
            parts += list(loss.parts)
            weights += loss.weights
            shares += loss.shares
        elif isinstance(loss, torch.nn.Module):
            parts.append(loss)
            weights.append(1.0)
            shares.append(None)
        else:
            raise InputError(f"a loss cannot be added to a {type(loss).__name__}: add losses, weighted by numbers")
    return WeightedSum(parts, weights, any(getattr(loss, "check_finite", False) for loss in losses), shares)


def share(loss: MetricLoss, of_base: object) -> WeightedSum:
    """Weight a regularizer so that its gradient is, in every batch, `of_base` times as long as the rest of the sum's.

    The gradients are those with respect to the embeddings of the whole batch. A weight that suits one base loss can be
    a hundred times too large for another; a share suits both. It costs two more backward passes to the embeddings, none
    through the model.

    >>> from isomargin.losses import SmoothAPLoss, TCMLoss
    >>> loss = SmoothAPLoss() + share(TCMLoss(), 0.3)
    >>> points = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    >>> value = loss(points, torch.arange(8) % 4)
    >>> loss.extra_repr(), sorted(loss.values)[-1]
    ('1 * smooth_ap + share(tcm, 0.3)', 'tcm.weight')
    """
    if isinstance(loss, WeightedSum):
        raise InputError("a share belongs to one loss, and this is a sum: give a share to each of its parts")
    return WeightedSum([loss], [1.0], loss.check_finite, [checks.at_least_zero(of_base, "share")])


def _gradient_length(value: Tensor, embeddings: Tensor) -> Tensor:
    """Return the norm of a loss's gradient with respect to the embeddings; 0 where it does not depend on them."""
    if not value.requires_grad:
        return value.new_zeros(())
    (derivative,) = torch.autograd.grad(value, embeddings, retain_graph=True, allow_unused=True)
    length: Tensor = value.new_zeros(()) if derivative is None else derivative.detach().norm()
    return length


def weighted(loss: MetricLoss, weight: object) -> WeightedSum:
    """Weight a loss by a number of at least 0."""
    factor = checks.at_least_zero(weight, "weight")
    one = added(loss)
    weights = [factor * value for value in one.weights]
    shares = one.shares
    if all(value is not None for value in shares):  # otherwise they follow the rest of the sum by themselves
        shares = [factor * value for value in shares if value is not None]
    return WeightedSum(list(one.parts), weights, one.check_finite, shares)


def _distinct(names: list[str]) -> list[str]:
    """Number names that occur more than once.

    >>> _distinct(["tcm", "tcm", "triplet"])
    ['tcm', 'tcm_2', 'triplet']
    """
    numbered: list[str] = []
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return numbered
