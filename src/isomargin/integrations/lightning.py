"""A callback for Lightning: after each validation it embeds a loader, evaluates it and logs every score.

Works with ``lightning`` and with ``pytorch_lightning``. In several processes, each embeds its share of the batches.
"""

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from isomargin.integrations._packages import prepare

if importlib.util.find_spec("lightning") is None:
    prepare("pytorch_lightning")
    from pytorch_lightning import Callback
else:
    prepare("lightning")
    from lightning.pytorch import Callback

import torch
from torch import Tensor

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.losses.gather import gather
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.settings import Settings

__all__ = ["ThresholdConsistency"]


class ThresholdConsistency(Callback):
    """Evaluates labelled items after each validation, and logs ``Evaluation.scalars()``.

    Args:
        loader: batches of (inputs, labels), in the same order in every process and without a distributed sampler.
        embed: a function of the module and inputs that returns (n, d) embeddings; by default the module is called.
        prefix: what stands before the names of the scores, such as ``"val/"``, which gives ``val/opis``.
        every: number of validations from one evaluation to the next.
        threads: number of CPU threads that compare pairs; by default one per core.
        settings: settings of `isomargin.evaluate`, such as ``far``.

    Callbacks such as ``ModelCheckpoint(monitor="val/opis", mode="min")`` see the scores if they come after this one.
    """

    evaluation: Evaluation
    """The last evaluation."""

    def __init__(
        self,
        loader: Iterable[Any],
        embed: Callable[[Any, Any], Tensor] | None = None,
        prefix: str = "val/",
        every: int = 1,
        threads: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        Settings.from_values(**settings)
        self.loader, self.embed, self.prefix = loader, embed, prefix
        self.every, self.threads, self.settings = checks.whole(every, "every"), threads, settings
        self.validations = 0

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate and log, except in Lightning's sanity check before training."""
        if trainer.sanity_checking:
            return
        self.validations += 1
        if (self.validations - 1) % self.every:
            return
        embeddings, labels = self.embed_all(trainer, pl_module)
        self.evaluation = evaluate(embeddings, labels, threads=self.threads, progress=None, **self.settings)
        scalars = {f"{self.prefix}{name}": value for name, value in self.evaluation.scalars().items()}
        pl_module.log_dict(scalars, on_step=False, on_epoch=True, batch_size=1)  # the same in every process

    def embed_all(self, trainer: Any, pl_module: Any) -> tuple[Tensor, Tensor]:
        """(n, d) embeddings and (n,) labels of the loader, those of all processes."""
        rows: list[Tensor] = []
        labels: list[Tensor] = []
        was_training = pl_module.training
        pl_module.eval()
        with torch.no_grad():
            for number, batch in enumerate(self.loader):
                if number % trainer.world_size != trainer.global_rank:
                    continue
                if not isinstance(batch, tuple | list) or len(batch) != 2:
                    raise InputError(
                        f"the loader gives a {type(batch).__name__}: batches of (inputs, labels) are needed"
                    )
                inputs, classes = pl_module.transfer_batch_to_device(batch, pl_module.device, 0)
                found = pl_module(inputs) if self.embed is None else self.embed(pl_module, inputs)
                rows.append(found.detach().float())
                labels.append(classes)
        pl_module.train(was_training)
        if not rows:
            raise InputError(
                f"process {trainer.global_rank} has no batch of the loader: at least one batch per process is needed"
            )
        return gather(torch.cat(rows), torch.cat(labels))
