"""Threshold consistency as metrics of torchmetrics: embeddings and labels are collected, and evaluated once at the end.

OPIS is defined by all pairs of a set, so that it is not a mean over batches: states are lists, concatenated over
processes, and `compute` returns what `isomargin.evaluate` returns for all rows.
"""

from typing import Any, ClassVar

from isomargin.integrations._packages import prepare

prepare("torchmetrics")

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from isomargin.core.errors import InputError
from isomargin.measure.evaluate import evaluate
from isomargin.measure.scores.registry import find_score
from isomargin.measure.settings import Settings

__all__ = ["EpsilonOperatingPointInconsistency", "FalseRejectRateAtFAR", "OperatingPointInconsistency"]


class _Score(Metric):
    """A score of `isomargin.evaluate`, by its name in the registry."""

    score: ClassVar[str]
    full_state_update = False
    is_differentiable = False
    higher_is_better = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0
    embeddings: list[Tensor]
    """(n, d) rows of each update."""
    labels: list[Tensor]
    """(n,) of each update."""

    def __init__(self, settings: dict[str, Any], threads: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checked = Settings.from_values(**settings)
        self.settings = {name: getattr(checked, name) for name in settings}
        self.threads = threads
        self.add_state("embeddings", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch: (n, d) embeddings, normalised or not, and (n,) integer labels."""
        if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1]:
            raise InputError(
                f"embeddings has shape {tuple(embeddings.shape)} and labels {tuple(labels.shape)}: "
                "(n, d) and (n,) are needed"
            )
        if labels.is_floating_point() or labels.is_complex():
            raise InputError(f"labels has dtype {labels.dtype}: integers are needed, the class of each row")
        self.embeddings.append(embeddings.detach())
        self.labels.append(labels.detach())

    def compute(self) -> Tensor:
        """Return the score of all rows, those of all processes included, as a scalar of float64."""
        if len(self.embeddings) == 0:
            raise InputError(f"{type(self).__name__} has no embeddings: call update before compute")
        embeddings, labels = dim_zero_cat(self.embeddings), dim_zero_cat(self.labels)
        evaluation = evaluate(
            embeddings, labels, k=(1,), map_at_r=False, threads=self.threads, progress=None, **self.settings
        )
        value = find_score(self.score).read(evaluation)
        return torch.tensor(value, dtype=torch.float64, device=embeddings.device)

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw values, by default that of `compute`, with matplotlib; return a figure and its axes."""
        return self._plot(val, ax)


class OperatingPointInconsistency(_Score):
    """OPIS: the variance over classes of the utility, averaged over the calibration range.

    Args:
        far: the calibration range, given as the pooled false accept rates at its two ends.
        threads: number of CPU threads; by default one per core.
        settings: further settings of `isomargin.evaluate`, such as ``grid``.
        kwargs: arguments of `torchmetrics.Metric`, as a dictionary.

    Call `update` in each step and `compute` at the end. A single batch, which `forward` evaluates as well, usually has
    too few pairs for the calibration range. All rows are kept until `reset`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(80) % 4
    >>> embeddings = torch.eye(16)[labels] + 0.5 * torch.randn(80, 16, generator=generator)
    >>> metric = OperatingPointInconsistency()
    >>> for rows in torch.arange(80).split(20):
    ...     metric.update(embeddings[rows], labels[rows])
    >>> round(float(metric.compute()), 4)
    0.0031
    """

    score = "opis"

    def __init__(
        self,
        far: tuple[float, float] = (1e-2, 1e-1),
        *,
        threads: int | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__({"far": far, **(settings or {})}, threads, **kwargs)


class EpsilonOperatingPointInconsistency(_Score):
    """ε-OPIS: the squared difference in utility between the best and the worst share ε of the classes.

    The arguments are those of `OperatingPointInconsistency`, and ``epsilon``, the share of the classes in each group.
    """

    score = "epsilon_opis"

    def __init__(
        self,
        epsilon: float = 0.1,
        far: tuple[float, float] = (1e-2, 1e-1),
        *,
        threads: int | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__({"epsilon": epsilon, "far": far, **(settings or {})}, threads, **kwargs)


class FalseRejectRateAtFAR(_Score):
    """The pooled false reject rate at the threshold whose pooled false accept rate is ``far``, one number."""

    score = "frr"

    def __init__(
        self,
        far: float = 1e-2,
        *,
        threads: int | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__({"target_far": far, **(settings or {})}, threads, **kwargs)
