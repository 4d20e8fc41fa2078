"""The accuracy calculator and the hook in the real tester of pytorch-metric-learning."""

import numpy as np
import pytest
import torch
from pytorch_metric_learning.testers import GlobalEmbeddingSpaceTester
from torch.utils.data import TensorDataset

import isomargin as im
from compare import clusters
from isomargin.core.errors import InputError
from isomargin.integrations.pytorch_metric_learning import ThresholdConsistencyCalculator, logging_hook
from reference import reference

ROWS, LABELS = clusters(240, 8)
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)
ADDED = ("opis", "epsilon_opis", "debiased_opis", "far_within_two", "frr_within_two", "eer", "frr")
OWN = ("precision_at_1", "mean_average_precision_at_r")


def make_calculator(**choices):
    return ThresholdConsistencyCalculator(device=torch.device("cpu"), threads=1, **choices)


def test_scores_are_those_of_the_definitions_beside_the_librarys_own():
    calculator = make_calculator(include=(*ADDED, *OWN), settings={"far": (0.02, 0.2), "target_far": 0.05})
    found = calculator.get_accuracy(ROWS, LABELS)
    expected = reference(ROWS.astype("float32"), LABELS, far=(0.02, 0.2), target_far=0.05)
    assert set(found) == {*ADDED, *OWN}
    for name, value in {"opis": expected.opis, "epsilon_opis": expected.epsilon_opis, "eer": expected.eer}.items():
        assert found[name] == pytest.approx(value, rel=1e-6)
    assert found["frr"] == pytest.approx(expected.frr_at_target)
    assert found["far_within_two"] == pytest.approx(expected.far_within_two.share)
    assert found["mean_average_precision_at_r"] == pytest.approx(expected.map_at_r, rel=1e-6)


def test_pairs_are_compared_once(monkeypatch):
    calls = []
    evaluate = im.evaluate
    monkeypatch.setattr(
        "isomargin.integrations.pytorch_metric_learning.evaluate",
        lambda *given, **others: (calls.append(1), evaluate(*given, **others))[1],
    )
    make_calculator(include=ADDED).get_accuracy(ROWS, LABELS)
    assert len(calls) == 1
    make_calculator(include=OWN).get_accuracy(ROWS, LABELS)
    assert len(calls) == 1


def test_other_references_are_a_gallery():
    queries, references = slice(0, 100), slice(100, 240)
    found = make_calculator(include=("opis", "eer")).get_accuracy(
        ROWS[queries], LABELS[queries], ROWS[references], LABELS[references]
    )
    evaluation = im.evaluate_gallery(
        ROWS[references], LABELS[references], ROWS[queries], LABELS[queries], template="each", progress=None
    )
    assert found == pytest.approx({"opis": evaluation.opis, "eer": evaluation.eer}, rel=1e-5)


def test_a_tester_logs_every_number_of_every_split():
    data = TensorDataset(torch.as_tensor(ROWS, dtype=torch.float32), torch.as_tensor(LABELS))
    logged = {}
    tester = GlobalEmbeddingSpaceTester(
        accuracy_calculator=make_calculator(include=("opis", "precision_at_1")),
        end_of_testing_hook=logging_hook(lambda name, value, epoch: logged.update({name: (value, epoch)})),
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
    )
    tester.test({"val": data}, 7, torch.nn.Identity())
    assert set(logged) == {"val/opis_level0", "val/precision_at_1_level0"}
    opis = reference(ROWS.astype("float32"), LABELS).opis
    assert logged["val/opis_level0"] == (pytest.approx(opis, rel=1e-5), 7)


def test_bad_input_is_refused_in_a_sentence():
    calculator = make_calculator(include=("opis",), settings={"pairs": "sampled"})
    with pytest.raises(InputError, match="pairs cannot be set if the references are not the queries"):
        calculator.get_accuracy(ROWS[:100], LABELS[:100], ROWS[100:], LABELS[100:])
    with pytest.raises(InputError, match="the references are the 100 queries and 140 other items"):
        calculator.get_accuracy(ROWS[:100], LABELS[:100], ROWS, LABELS, ref_includes_query=True)
