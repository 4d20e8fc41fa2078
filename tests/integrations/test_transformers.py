"""`compute_metrics` with the real Trainer of transformers and a small model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import isomargin as im
from compare import clusters
from integrations.installed import in_one_worker, needs
from isomargin.core.errors import InputError
from isomargin.integrations.transformers import make_compute_metrics

needs("transformers", "accelerate")

from transformers import Trainer, TrainingArguments

pytestmark = in_one_worker

ROWS, LABELS = clusters(120, 6)


class Model(torch.nn.Module):
    """Returns a loss, something else, and embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(ROWS.shape[1], 8)

    def forward(self, inputs, labels=None):
        embeddings = self.layer(inputs)
        return {"loss": embeddings.square().mean(), "lengths": embeddings.norm(dim=1), "embeddings": embeddings}


def evaluate_with_trainer(folder, **choices):
    data = [{"inputs": row, "labels": int(label)} for row, label in zip(ROWS.astype(np.float32), LABELS, strict=True)]
    arguments = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", per_device_eval_batch_size=50, disable_tqdm=True
    )
    model = Model()
    trainer = Trainer(model, arguments, eval_dataset=data, compute_metrics=make_compute_metrics(**choices))
    return model, trainer.evaluate()


def test_the_trainer_reports_the_scalars_of_the_chosen_output(tmp_path):
    model, found = evaluate_with_trainer(tmp_path, output=1, far=(0.02, 0.1), threads=1)
    with torch.no_grad():
        embeddings = model(torch.as_tensor(ROWS, dtype=torch.float32))["embeddings"]
    expected = im.evaluate(embeddings, LABELS, far=(0.02, 0.1)).scalars()
    named = {name: found[f"eval_{name}"] for name in expected}
    assert named == pytest.approx(expected, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    ("choices", "prediction", "sentence"),
    [
        ({"output": 2}, ((ROWS, ROWS), LABELS), "output is 2, but the model returns 2 outputs"),
        ({}, (ROWS, (LABELS, LABELS)), "the data set has 2 columns of labels"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(choices, prediction, sentence):
    with pytest.raises(InputError, match=sentence):
        make_compute_metrics(**choices)(SimpleNamespace(predictions=prediction[0], label_ids=prediction[1]))
