"""What a run keeps on disk, and how it continues from there: its state, its checkpoints, its tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isomargin.core.errors import DivergedError, InputError
from isomargin.losses import MetricLoss
from isomargin.models.embedder import Embedder
from isomargin.training.agreement import together
from isomargin.training.checkpoint import (
    Content,
    checkpoint_path,
    fitting,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from isomargin.training.run_folder import RunFolder, write_metrics
from isomargin.training.schedule import Plateau

if TYPE_CHECKING:
    from lightning_fabric import Fabric


CONTENT: Content = {
    **dict.fromkeys(("model", "loss", "optimizer", "schedule", "sums"), dict),
    "summed": int,
    "history": list,
    "best": (int, float),
    "chosen": int,
    "data": str,
}
"""What a checkpoint holds."""


@dataclass
class State:
    """The progress of a run. A checkpoint holds it, the parameters and the state of the optimiser."""

    step: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Sums of the loss and its parts since the last evaluation, in float64."""
    summed: int = 0
    """The number of steps in the sums."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The rows of metrics.csv."""
    best: float = -math.inf
    """The best score so far; larger is better."""
    chosen: int = 0
    """The step of the model that has it."""

    def add(self, values: dict[str, Tensor]) -> None:
        """Add the values of a step."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0) + value.double()
        self.summed += 1

    def means(self) -> dict[str, float]:
        """Return the means since the last evaluation; raise where the loss is not finite."""
        means = {name: float(total) / self.summed for name, total in self.sums.items()}
        if not math.isfinite(means.get("loss", 0.0)):
            raise DivergedError(
                f"the loss is {means['loss']} by step {self.step}: training diverged, lower optimizer.learning_rate or "
                "set optimizer.clip_norm; the last checkpoint was written before that"
            )
        return means


def save(
    fabric: Fabric,
    run: RunFolder,
    state: State,
    embedder: Embedder,
    loss: MetricLoss,
    optimizer: Any,
    schedule: Any,
    data: str,
) -> None:
    """Write a checkpoint, with the checksum of the data, then metrics.csv, which follows from it."""
    state.means()  # a run that diverged keeps its last good checkpoint
    if fabric.global_rank == 0:
        content = {
            "model": on_cpu(embedder.state_dict()),
            "loss": on_cpu(loss.state_dict()),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict() if isinstance(schedule, Plateau) else {},
            "sums": {name: float(value) for name, value in state.sums.items()},
            "summed": state.summed,
            "history": state.history,
            "best": state.best,
            "chosen": state.chosen,
            "data": data,
        }
        save_checkpoint(run.checkpoints, state.step, content)
        write_metrics(run.metrics, state.history)


def restore(
    fabric: Fabric,
    run: RunFolder,
    state: State,
    embedder: Embedder,
    loss: MetricLoss,
    optimizer: Any,
    schedule: Any,
    data: str,
) -> list[str]:
    """Load the last good checkpoint, which the first process looks for; return what is wrong with newer ones."""
    content: dict[str, Any] | None = None
    notes: list[str] = []
    with together(fabric):
        if fabric.global_rank == 0:
            state.step, content, notes = load_checkpoint(run.checkpoints, CONTENT)
    state.step, notes = fabric.broadcast((state.step, notes))
    with together(fabric):
        if content is None:
            content = read_checkpoint(checkpoint_path(run.checkpoints, state.step), CONTENT)
    if content["data"] != data:
        raise InputError(
            f"the items or classes are not those that {run.path} was started with: bring them back, or start a new run"
        )
    device = next(embedder.parameters()).device
    with fitting(checkpoint_path(run.checkpoints, state.step)):
        embedder.load_state_dict(content["model"])
        loss.load_state_dict(content["loss"])
        optimizer.load_state_dict(content["optimizer"])
        if isinstance(schedule, Plateau):
            schedule.load_state_dict(content["schedule"])
        state.sums = {
            name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in content["sums"].items()
        }
        state.history = [dict(row) for row in content["history"]]
    state.summed, state.best, state.chosen = content["summed"], content["best"], content["chosen"]
    return [f"{note}; the one of step {state.step} is used" for note in notes]


def on_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """Move the tensors of a state dict to the CPU, in the usual layout."""
    return {
        name: value.detach().cpu().contiguous() if isinstance(value, Tensor) else value for name, value in state.items()
    }


class Log:
    """The metrics for TensorBoard; metrics.csv is written with the checkpoints."""

    def __init__(self, run: RunFolder, state: State, first: bool) -> None:
        self.writer: Any = None
        if first:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(run.tensorboard), purge_step=state.step + 1)

    def write(self, row: dict[str, Any]) -> None:
        """Write the row of an evaluation; each name is a curve over the steps."""
        if self.writer is not None:
            for name, value in row.items():
                if name != "step":
                    self.writer.add_scalar(name.replace("@", "_at_"), value, row["step"])
            self.writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self.writer is not None:
            self.writer.close()
