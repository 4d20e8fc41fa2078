"""Losses added and weighted: `base + 0.5 * regularizer`. Those of pairs share one pass over the similarities."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from isomargin.errors import InputError
from isomargin.losses import _settings
from isomargin.losses._base import MetricLoss, PairLoss, Records, compute_together
from isomargin.losses._batch import Batch


class WeightedSum(MetricLoss):
    """A sum of losses, each with a weight. Made by `+` and `*`, or by `make_loss` from a list.

    Parts may be this package's or any other that is called as `loss(embeddings, labels)`, such as those of
    pytorch-metric-learning. After a call `values` holds `loss` and, for each part, its own value (unweighted) and what
    it tells besides, under its name.

    >>> import torch
    >>> from isomargin.losses import SmoothAPLoss, TCMLoss
    >>> loss = SmoothAPLoss() + 0.5 * TCMLoss()
    >>> value = loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> {name: round(float(each), 3) for name, each in loss.values.items()}
    {'loss': 0.95, 'smooth_ap': 0.5, 'tcm': 0.9, 'tcm.hard_positives': 2.0, 'tcm.hard_negatives': 0.0}
    """

    name = "sum"

    def __init__(self, parts: list[torch.nn.Module], weights: list[float], check_finite: bool = False) -> None:
        super().__init__(check_finite or any(getattr(part, "check_finite", False) for part in parts))
        self.parts = torch.nn.ModuleList(parts)
        self.weights = weights
        self.names = _distinct([getattr(part, "name", type(part).__name__) for part in parts])

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Compute the parts, those of the same pairs together, and their weighted sum."""
        values: dict[int, Tensor] = {}
        records: dict[int, Records] = {}
        shared = [i for i, part in enumerate(self.parts) if isinstance(part, PairLoss) and part.shares_points]
        if shared:
            together, told = compute_together([self.parts[i] for i in shared], batch)  # type: ignore[misc]
            values.update(zip(shared, together, strict=True))
            records.update(zip(shared, told, strict=True))
        for i, part in enumerate(self.parts):
            if i not in values:
                values[i], records[i] = compute_any(part, batch)
        total = sum(weight * values[i] for i, weight in enumerate(self.weights))
        kept: Records = {}
        for i, name in enumerate(self.names):
            kept[name] = values[i].detach()
            kept.update({f"{name}.{what}": value for what, value in records[i].items()})
        return total, kept  # type: ignore[return-value]

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the parts' parameters; those of losses from elsewhere at the model's rate."""
        groups: list[dict[str, Any]] = []
        for part in self.parts:
            if isinstance(part, MetricLoss):
                groups += part.parameter_groups(learning_rate)
            elif parameters := list(part.parameters()):
                groups.append({"params": parameters, "lr": learning_rate})
        return groups

    def extra_repr(self) -> str:
        """Show the sum."""
        return " + ".join(f"{weight:g} * {name}" for weight, name in zip(self.weights, self.names, strict=True))


def compute_any(part: torch.nn.Module, batch: Batch) -> tuple[Tensor, Records]:
    """Compute one part, ours or another library's."""
    if isinstance(part, MetricLoss):
        return part.compute(batch)
    if batch.weights is not None:
        raise InputError(f"{type(part).__name__} cannot weigh its samples")
    given = batch.references is not None or batch.chosen is not None
    if isinstance(part, BaseMetricLossFunction) or given:
        value = part(batch.embeddings, batch.labels, batch.chosen, batch.references, batch.reference_labels)
    else:
        value = part(batch.embeddings, batch.labels)
    return value, {}


def added(*losses: object) -> WeightedSum:
    """Add losses; sums among them are taken apart, so that (a + b) + c has three parts."""
    parts: list[torch.nn.Module] = []
    weights: list[float] = []
    for loss in losses:
        if isinstance(loss, WeightedSum):
            parts += list(loss.parts)
            weights += loss.weights
        elif isinstance(loss, torch.nn.Module):
            parts.append(loss)
            weights.append(1.0)
        else:
            raise InputError(f"a loss cannot be added to a {type(loss).__name__}: add losses, weighted by numbers")
    return WeightedSum(parts, weights, any(getattr(loss, "check_finite", False) for loss in losses))


def weighted(loss: MetricLoss, weight: object) -> WeightedSum:
    """Weigh a loss by a number of at least 0."""
    factor = _settings.at_least_zero(weight, "weight")
    one = added(loss)
    return WeightedSum(list(one.parts), [factor * each for each in one.weights], one.check_finite)


def _distinct(names: list[str]) -> list[str]:
    """Number those that are there twice.

    >>> _distinct(["tcm", "tcm", "triplet"])
    ['tcm', 'tcm_2', 'triplet']
    """
    numbered: list[str] = []
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return numbered
