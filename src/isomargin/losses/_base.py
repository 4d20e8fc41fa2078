"""What every loss shares: the call, the values for logging, and that losses can be added and weighted."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from torch import Tensor

from isomargin.core import checks
from isomargin.losses._batch import Batch, full_precision, read_batch
from isomargin.losses._engine import Gradient, pair_losses
from isomargin.losses._pairs import Pairs, Tile

if TYPE_CHECKING:
    from isomargin.losses.composition import WeightedSum

Records = dict[str, Tensor]


class MetricLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss of embeddings (n, d) and labels (n,), called as pytorch-metric-learning calls its own.

    It derives from that library's base class only so that its wrappers and trainers accept it; the library's distances
    and reducers are not used. Two wrappers accept losses by class name: `isomargin.losses` has them for these losses.
    `a + 0.5 * b` is a loss too.

    Parameters
    ----------
    check_finite: raise an error that names the rows where embeddings hold NaN or infinity; costs a pass over them.

    To write your own loss, define `compute`; `batch.vectors` are the embeddings at length 1:

    >>> class CentreLoss(MetricLoss):
    ...     name = "centre"
    ...     def compute(self, batch):
    ...         return batch.vectors.mean(dim=0).norm(), {}
    >>> (CentreLoss() + 0.5 * CentreLoss())(torch.eye(4), torch.arange(4))
    tensor(0.7500)
    """

    name: str
    """The name in recipes and logs."""

    weighs_samples = False
    """Whether the loss is a mean over samples, which `Batch.weights` can weight."""

    needs_positive_pairs = False
    """Whether a batch without positive pairs, one item per class, teaches it nothing."""

    takes_references = True
    """Whether it accepts `ref_emb` and `indices_tuple`."""

    values: Records
    """What the last call returned, without gradient, for logging: `loss`, and other values of the loss."""

    def __init__(self, check_finite: bool = False) -> None:
        torch.nn.Module.__init__(self)
        self.collect_stats = False
        self.check_finite = checks.truth(check_finite, "check_finite")
        self.values = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Any = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss, a scalar; NaN where embeddings or references hold NaN or infinity.

        Parameters
        ----------
        embeddings: (n, d), normalised or not; half precision is converted to float32, under autocast too.
        labels: (n,), any integers.
        indices_tuple: a miner's pairs or triplets, to use only these pairs, each once; usually left out.
        ref_emb: (m, d), compare the embeddings with these instead of with each other. All pairs count then.
        ref_labels: (m,)
        """
        batch = read_batch(embeddings, labels, indices_tuple, ref_emb, ref_labels, self.check_finite)
        with full_precision(batch.embeddings.device):
            value, records = self.compute(batch)
            value = value + batch.zero_or_nan.to(value)
        self.values = {"loss": value.detach(), **records}
        return value

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Return the loss of a checked batch, and values to log with it."""
        raise NotImplementedError

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """List the parameters of this loss as groups for an optimiser, at the learning rates that they need.

        Empty for a loss without parameters. `learning_rate` is that of the model.

        >>> from isomargin.losses import TCMLoss
        >>> TCMLoss().parameter_groups(1e-4)
        []
        """
        return []

    def extra_repr(self) -> str:
        """Show the settings."""
        settings = {name: getattr(self, name, self) for name in inspect.signature(type(self)).parameters}
        if not self.check_finite:
            settings.pop("check_finite", None)
        shown = {name: value for name, value in settings.items() if not isinstance(value, torch.nn.Module)}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def __add__(self, other: object) -> WeightedSum:
        from isomargin.losses.composition import added

        return added(self, other)

    def __radd__(self, other: object) -> WeightedSum:
        from isomargin.losses.composition import added

        return added(self) if isinstance(other, int) and other == 0 else added(other, self)  # sum() starts with 0

    def __mul__(self, weight: object) -> WeightedSum:
        from isomargin.losses.composition import weighted

        return weighted(self, weight)

    __rmul__ = __mul__


class PairLoss(MetricLoss):
    """A loss that is a function of the pairs' cosine similarities; several share one pass over them (`_engine.py`)."""

    needs_positive_pairs = True

    compares_with_itself = False
    """Whether it reads each row's similarity to itself."""

    def compute(self, batch: Batch) -> tuple[Tensor, Records]:
        """Compute this loss alone."""
        values, records = compute_together([self], batch)
        return values[0], records[0]

    def points(self, batch: Batch) -> tuple[Tensor, Tensor | None, Pairs]:
        """Return the vectors (n, d) to compare, the references, and which pairs are positive and negative."""
        return batch.vectors, batch.reference_vectors, batch.pairs

    def shares_points(self, batch: Batch) -> bool:
        """Whether it compares the batch unchanged, so that it can share the pass with other losses."""
        return True

    def records(self, pairs: Pairs, state: Any) -> Records:
        """Return values to log with the loss."""
        return {}

    def begin(self, pairs: Pairs, weights: Tensor | None) -> Any:
        """Create the state that the forward pass fills."""
        raise NotImplementedError

    def visit(self, tile: Tile, state: Any) -> None:
        """Read one tile."""
        raise NotImplementedError

    def finish(self, pairs: Pairs, state: Any) -> Tensor | float:
        """Return the loss, from the state. Read what tiles left on the device at once: each reading waits for it."""
        raise NotImplementedError

    def add_gradient(self, tile: Tile, state: Any, scale: float, gradient: Gradient) -> None:
        """Add scale times the derivative of the loss with respect to the tile's similarities."""
        raise NotImplementedError


def compute_together(parts: list[PairLoss], batch: Batch) -> tuple[tuple[Tensor, ...], list[Records]]:
    """Compute losses that compare the same points, in one pass."""
    vectors, references, pairs = parts[0].points(batch)
    values, states = pair_losses(parts, vectors, references, pairs, batch.weights)
    return values, [part.records(pairs, state) for part, state in zip(parts, states, strict=True)]
