"""Losses added and weighted: `base + 0.5 * regularizer`. Those of pairs share one pass over the similarities."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from isomargin import checks
from isomargin.errors import InputError
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
        if not parts or len(parts) != len(weights):
            raise InputError(f"{len(parts)} losses came with {len(weights)} weights: one weight a loss is needed")
        self.parts = torch.nn.ModuleList(parts)
        self.weights = [checks.at_least_zero(weight, "weight") for weight in weights]
        self.names = _distinct([getattr(part, "name", type(part).__name__) for part in parts])

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Compute the parts, those of the same pairs together, and their weighted sum."""
        shared = [part for part in self.leaves() if isinstance(part, PairLoss) and part.shares_points(batch)]
        results: dict[int, tuple[Tensor, Records]] = {}
        if shared:
            values, records = compute_together(shared, batch)
            results = {id(part): each for part, *each in zip(shared, values, records, strict=True)}  # type: ignore[misc]
        return self.assemble(batch, results)

    def leaves(self) -> list[torch.nn.Module]:
        """List the parts, and those of parts that are sums, each once."""
        parts: dict[int, torch.nn.Module] = {}
        for part in self.parts:
            for leaf in part.leaves() if isinstance(part, WeightedSum) else [part]:
                parts[id(leaf)] = leaf
        return list(parts.values())

    def assemble(self, batch: Batch, results: dict[int, tuple[Tensor, Records]]) -> tuple[Tensor, Records]:
        """Add up, taking the results there are and computing the others."""
        values: list[Tensor] = []
        kept: Records = {}
        for part, name in zip(self.parts, self.names, strict=True):
            if isinstance(part, WeightedSum):
                value, told = part.assemble(batch, results)
            else:
                if id(part) not in results:
                    results[id(part)] = compute_any(part, batch)
                value, told = results[id(part)]
            values.append(value)
            kept[name] = value.detach()
            kept.update({f"{name}.{what}": each for what, each in told.items()})
            if isinstance(part, MetricLoss):
                part.values = {"loss": value.detach(), **told}
        total: Tensor = sum(weight * value for weight, value in zip(self.weights, values, strict=True))  # type: ignore[assignment]
        return total, kept

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the parts' parameters, each once; those of losses from elsewhere at the model's rate."""
        groups: list[dict[str, Any]] = []
        for part in self.leaves():
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
    if batch.references is None and batch.chosen is None:
        return part(batch.embeddings, batch.labels), {}
    if "ref_emb" not in inspect.signature(part.forward).parameters:
        raise InputError(f"{type(part).__name__} takes no ref_emb or indices_tuple, which this sum was called with")
    given = {"indices_tuple": batch.chosen, "ref_emb": batch.references, "ref_labels": batch.reference_labels}
    return part(batch.embeddings, batch.labels, **given), {}


def added(*losses: object) -> WeightedSum:
    """Add losses; plain sums among them are taken apart, so that (a + b) + c has three parts."""
    parts: list[torch.nn.Module] = []
    weights: list[float] = []
    for loss in losses:
        if type(loss) is WeightedSum:
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
    factor = checks.at_least_zero(weight, "weight")
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
