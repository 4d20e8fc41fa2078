"""Learning rates over time: the multiple of the base rate of every parameter group at a step.

All except the plateau depend only on the step, so that nothing has to be restored for them when a run is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from isomargin.core import checks
from isomargin.core.errors import InputError


@dataclass(frozen=True)
class MultiStep:
    """Multiplies by `factor` at each of the given epochs.

    >>> [round(MultiStep(at=(2, 4), factor=0.3)(epoch), 2) for epoch in range(6)]
    [1.0, 1.0, 0.3, 0.3, 0.09, 0.09]
    """

    at: Sequence[float]
    """Epochs."""
    factor: float = 0.3

    def __post_init__(self) -> None:
        checks.above_zero(self.factor, "factor")
        if any(later <= earlier for earlier, later in zip(self.at, self.at[1:], strict=False)):
            raise InputError(f"at is {list(self.at)}: epochs in ascending order are needed")

    def __call__(self, epoch: float) -> float:
        """Return the multiple at an epoch, which may be a fraction."""
        return self.factor ** sum(epoch >= start for start in self.at)


@dataclass(frozen=True)
class EveryEpochs:
    """Multiplies by `factor` every `epochs` epochs.

    >>> [EveryEpochs(2, factor=0.5)(epoch) for epoch in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    epochs: float
    factor: float = 0.5

    def __post_init__(self) -> None:
        checks.above_zero(self.epochs, "epochs")
        checks.above_zero(self.factor, "factor")

    def __call__(self, epoch: float) -> float:
        """Return the multiple at an epoch."""
        return self.factor ** math.floor(epoch / self.epochs)


@dataclass(frozen=True)
class Cosine:
    """Falls along half a cosine to `final` times the rate at the last epoch.

    >>> [round(Cosine(epochs=4)(epoch), 2) for epoch in range(5)]
    [1.0, 0.85, 0.5, 0.15, 0.0]
    """

    epochs: float
    final: float = 0.0

    def __post_init__(self) -> None:
        checks.above_zero(self.epochs, "epochs")

    def __call__(self, epoch: float) -> float:
        """Return the multiple at an epoch."""
        share = min(epoch / self.epochs, 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class OneCycle:
    """Rises along half a cosine from 1/25 of the rate, then falls to 1/10,000 of the start, as torch's `OneCycleLR`.

    >>> [round(OneCycle(epochs=10)(epoch), 2) for epoch in (0, 3, 10)]
    [0.04, 1.0, 0.0]
    """

    epochs: float
    rise: float = 0.3
    """The share of the epochs in which the rate rises."""
    initial: float = 1 / 25
    final: float = 1 / 25 / 10_000

    def __post_init__(self) -> None:
        checks.above_zero(self.epochs, "epochs")
        if not 0 < self.rise < 1:
            raise InputError(f"rise is {self.rise}: a share above 0 and below 1 is needed")

    def __call__(self, epoch: float) -> float:
        """Return the multiple at an epoch."""
        top = self.rise * self.epochs
        if epoch < top:
            return 1 + (self.initial - 1) * (1 + math.cos(math.pi * epoch / top)) / 2
        share = min((epoch - top) / (self.epochs - top), 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * share)) / 2


@dataclass
class Plateau:
    """Multiplies by `factor` whenever a score has not risen for more than `patience` evaluations.

    >>> plateau = Plateau(patience=1, factor=0.5)
    >>> for score in (0.5, 0.6, 0.6, 0.55, 0.7):
    ...     plateau.see(score)
    >>> plateau(0)
    0.5
    """

    patience: int = 4
    factor: float = 0.25
    best: float = -math.inf
    waited: int = 0
    lowered: int = field(default=0)

    def __post_init__(self) -> None:
        checks.above_zero(self.factor, "factor")

    def see(self, score: float) -> None:
        """Record the score of an evaluation; larger is better."""
        self.waited = 0 if score > self.best else self.waited + 1
        self.best = max(self.best, score)
        if self.waited > self.patience:
            self.lowered, self.waited = self.lowered + 1, 0

    def __call__(self, epoch: float) -> float:
        """Return the multiple, whatever the epoch."""
        return self.factor**self.lowered

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "waited": self.waited, "lowered": self.lowered}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state from a checkpoint."""
        self.best, self.waited, self.lowered = state["best"], int(state["waited"]), int(state["lowered"])
