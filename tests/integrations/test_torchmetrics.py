"""The metrics of torchmetrics equal the definitions, in one process and in two."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as distributed

from compare import clusters
from integrations.installed import needs
from isomargin.core.errors import InputError
from processes import in_one_worker, run_together
from reference import reference as reference_evaluation

needs("torchmetrics")

from torchmetrics import MetricCollection

from isomargin.integrations.torchmetrics import (
    EpsilonOperatingPointInconsistency,
    FalseRejectRateAtFAR,
    OperatingPointInconsistency,
)

ROWS, LABELS = clusters(300, 12)


def make_metrics():
    return MetricCollection(
        {
            "opis": OperatingPointInconsistency(far=(0.02, 0.2), threads=1, settings={"grid": 51}),
            "epsilon_opis": EpsilonOperatingPointInconsistency(epsilon=0.25, threads=1),
            "frr_at_target": FalseRejectRateAtFAR(far=0.05, threads=1),
        }
    )


def expected_values():
    opis = reference_evaluation(ROWS, LABELS, far=(0.02, 0.2), grid=51).opis
    epsilon = reference_evaluation(ROWS, LABELS, epsilon=0.25).epsilon_opis
    frr = reference_evaluation(ROWS, LABELS, target_far=0.05).frr_at_target
    return {"opis": opis, "epsilon_opis": epsilon, "frr_at_target": frr}


def update(metrics, rows, size=32):
    for batch in torch.as_tensor(rows).split(size):
        metrics.update(torch.as_tensor(ROWS)[batch], torch.as_tensor(LABELS)[batch])


def test_metrics_equal_the_definitions_and_start_afresh_after_reset():
    metrics = make_metrics()
    metrics.update(torch.randn(64, ROWS.shape[1]), torch.arange(64) % 8)
    metrics.reset()
    update(metrics, np.arange(300))
    found = {name: float(value) for name, value in metrics.compute().items()}
    assert found == pytest.approx(expected_values(), rel=1e-9)


def test_metrics_say_that_lower_is_better_and_keep_no_graph():
    for metric in make_metrics().values():
        assert (metric.higher_is_better, metric.full_state_update, metric.is_differentiable) == (False, False, False)
    metric = OperatingPointInconsistency()
    metric.update(torch.randn(8, 4, requires_grad=True), torch.arange(8) % 2)
    assert not metric.embeddings[0].requires_grad


def test_values_are_drawn_within_their_bounds():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("agg")
    _, axes = OperatingPointInconsistency().plot([torch.tensor(0.2), torch.tensor(0.1)])
    assert axes.get_lines()[0].get_ydata().tolist() == pytest.approx([0.2, 0.1])


def test_forward_evaluates_a_batch_and_keeps_what_came_before():
    metric = OperatingPointInconsistency(far=(0.05, 0.2), threads=1)
    halves = torch.arange(300).split(150)
    values = [float(metric(torch.as_tensor(ROWS)[half], torch.as_tensor(LABELS)[half])) for half in halves]
    batches = [reference_evaluation(ROWS[half], LABELS[half], far=(0.05, 0.2)).opis for half in halves]
    assert values == pytest.approx(batches, rel=1e-9)
    assert float(metric.compute()) == pytest.approx(reference_evaluation(ROWS, LABELS, far=(0.05, 0.2)).opis, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: OperatingPointInconsistency(far=(0.2, 0.1)), "far is"),
        (lambda: OperatingPointInconsistency().update(torch.ones(3, 2), torch.ones(2).long()), "needed"),
        (lambda: OperatingPointInconsistency().update(torch.ones(3, 2), torch.ones(3)), "labels has dtype"),
        (lambda: OperatingPointInconsistency().compute(), "call update before compute"),
    ],
)
@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_bad_input_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def compute_in_a_group(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    metrics = make_metrics()
    update(metrics, np.arange(100) if rank == 0 else np.arange(100, 300))
    torch.save({name: float(value) for name, value in metrics.compute().items()}, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@in_one_worker
def test_two_processes_give_the_value_of_all_rows_on_both(tmp_path: Path):
    run_together(compute_in_a_group, (str(tmp_path),), 2)
    for rank in range(2):
        assert torch.load(tmp_path / f"{rank}.pt") == pytest.approx(expected_values(), rel=1e-9)
