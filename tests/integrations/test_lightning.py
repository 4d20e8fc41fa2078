"""The callback with the real trainer of Lightning."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import isomargin as im
from compare import clusters
from integrations.installed import in_one_worker, needs
from isomargin.core.errors import InputError

needs("pytorch_lightning")

import pytorch_lightning

from isomargin.integrations.lightning import ThresholdConsistency

pytestmark = in_one_worker

ROWS, LABELS = clusters(240, 8)
DATA = TensorDataset(torch.as_tensor(ROWS, dtype=torch.float32), torch.as_tensor(LABELS))


class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Sequential(torch.nn.Linear(ROWS.shape[1], 8), torch.nn.Dropout(0.5))

    def forward(self, inputs):
        return self.layer(inputs)

    def training_step(self, batch):
        return self(batch[0]).square().mean()

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module, callback, folder, **choices):
    trainer = pytorch_lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[callback],
        **choices,
    )
    trainer.fit(module, DataLoader(DATA, batch_size=60), DataLoader(DATA, batch_size=60))
    return trainer


def expected_scalars(module):
    module.eval()
    with torch.no_grad():
        return im.evaluate(module(DATA.tensors[0]), LABELS, far=(0.02, 0.1)).scalars()


def make_callback(**choices):
    return ThresholdConsistency(DataLoader(DATA, batch_size=50), threads=1, far=(0.02, 0.1), **choices)


def logged_scalars(trainer):
    return {name.removeprefix("val/"): float(value) for name, value in trainer.callback_metrics.items()}


def test_the_scalars_of_the_last_epoch_are_logged_and_training_goes_on_in_its_mode(tmp_path):
    module = Module()
    seen = []
    callback = make_callback(embed=lambda model, inputs: (seen.append(model.training), model(inputs))[1])
    trainer = fit(module, callback, tmp_path)
    assert logged_scalars(trainer) == pytest.approx(expected_scalars(module), rel=1e-5, nan_ok=True)
    assert callback.evaluation.items == 240
    assert seen == [False] * 10  # five batches in two epochs, none in the sanity check


def test_every_second_validation(tmp_path):
    calls = []
    callback = make_callback(every=2, embed=lambda model, inputs: (calls.append(1), model(inputs))[1])
    fit(Module(), callback, tmp_path)
    assert len(calls) == 5  # the batches of one epoch of two


def test_processes_share_the_batches(monkeypatch):
    """Joining what they hold is `gather`, which is tested with real processes."""
    monkeypatch.setattr("isomargin.integrations.lightning.gather", lambda *held: held)
    callback = make_callback(embed=lambda _, inputs: inputs)
    shares = [callback.embed_all(SimpleNamespace(world_size=2, global_rank=rank), Module()) for rank in range(2)]
    assert [len(labels) for _, labels in shares] == [140, 100]
    batches = [[part.split(50) for part in share] for share in shares]
    for part, expected in enumerate(DATA.tensors):
        in_order = [batches[number % 2][part][number // 2] for number in range(5)]
        assert torch.equal(torch.cat(in_order), expected)


def test_other_batches_are_refused(tmp_path):
    callback = ThresholdConsistency(DataLoader(DATA.tensors[0], batch_size=50))
    with pytest.raises(InputError, match=r"batches of \(inputs, labels\) are needed"):
        fit(Module(), callback, tmp_path)
