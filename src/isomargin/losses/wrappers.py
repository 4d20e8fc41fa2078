"""pytorch-metric-learning's wrappers for the losses of this package.

`CrossBatchMemory` and `SelfSupervisedLoss` of that library accept losses by a fixed list of class names. These
subclasses ask the loss itself, and also accept what the library accepts. Its other wrappers need no subclass.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning import losses as library

from isomargin.core.errors import InputError
from isomargin.losses._base import MetricLoss


class _AcceptsMetricLosses:
    """Accepts each `MetricLoss` that can be compared with references, and the losses that the library lists."""

    def __init__(self, loss: Any, *arguments: Any, **keywords: Any) -> None:
        if not isinstance(loss, MetricLoss):
            super().check_loss_support(type(loss).__name__)  # type: ignore[misc]
        elif not loss.takes_references:
            raise InputError(
                f"{type(self).__name__} compares embeddings with references, and {type(loss).__name__} compares them "
                "with its proxies: use a loss of pairs"
            )
        super().__init__(loss, *arguments, **keywords)  # type: ignore[call-arg]

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute the loss as the library does; not compiled, as the place in the memory changes at every step."""
        return super().forward(*arguments, **keywords)  # type: ignore[misc]

    @classmethod
    def check_loss_support(cls, loss_name: str) -> None:
        """Accept any name: the library passes only the name, and the loss itself was checked before."""


class CrossBatchMemory(_AcceptsMetricLosses, library.CrossBatchMemory):  # type: ignore[misc]
    """The library's `CrossBatchMemory`: compare each batch with the embeddings of earlier ones too.

    >>> import torch
    >>> from isomargin.losses import TCMLoss
    >>> memory = CrossBatchMemory(TCMLoss(), embedding_size=4, memory_size=100)
    >>> round(float(memory(torch.eye(4), torch.tensor([0, 0, 1, 1]))), 4)
    0.9
    """


class SelfSupervisedLoss(_AcceptsMetricLosses, library.SelfSupervisedLoss):  # type: ignore[misc]
    """The library's `SelfSupervisedLoss`: two views of the same items are the positive pairs.

    >>> import torch
    >>> from isomargin.losses import TCMLoss
    >>> round(float(SelfSupervisedLoss(TCMLoss())(torch.eye(4), torch.eye(4))), 4)
    0.0
    """
