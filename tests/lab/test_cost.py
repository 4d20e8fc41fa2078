"""Timing: a timed step is a step of the training loop, and times are scaled to an epoch."""

from types import SimpleNamespace

import pytest
import torch

from isomargin.training.loop import train
from isomargin.training.recipe import ScheduleRecipe
from isomargin.training.run import open_run
from lab import cost
from lab.cost import Cost, Measured, Trainee, as_cost, cost_results
from lab.experiment import Experiment
from lab.files import read_csv, write_csv
from lab.plan import PlannedRun, planned_runs
from lab.tables import make_table
from lab.toy_data import write_toy_data


@pytest.mark.parametrize("chunk", [None, 5])
def test_a_timed_step_is_a_step_of_training(add, tmp_path, chunk):
    plan = {"settings": ["toy"], "axes": {"loss": ["arcface"], "training": ["tcm"]}, "seeds": 1}
    experiment = add("cost", kind="cost", plans={"toy": plan})
    (run,) = planned_runs(experiment, "toy", data=write_toy_data(tmp_path / "data"))
    batch = run.recipe.batch.model_copy(update={"chunk": chunk})
    optimizer = run.recipe.optimizer.model_copy(update={"clip_norm": 0.5})
    recipe = run.recipe.model_copy(update={"batch": batch, "optimizer": optimizer, "schedule": ScheduleRecipe()})
    trainee = Trainee(run.model_copy(update={"recipe": recipe}))
    steps = [trainee.step(images, labels) for images, labels in trainee.batches(2)]
    for seconds in steps:
        assert 0 < seconds["loss"] + seconds["backbone"] < seconds["step"]
    assert len(trainee.sampler) == 8
    train(recipe, tmp_path / "run", quiet=True)
    _, trained = open_run(tmp_path / "run")
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(trainee.embedder.state_dict()[name], value, msg=name)


def test_choices_take_turns_at_every_batch_and_the_first_ones_are_not_counted(monkeypatch):
    order = []

    class Pretended:
        def __init__(self, name, seconds):
            self.name, self.seconds, self.feeding = name, seconds, "the same"
            self.data = SimpleNamespace(train=SimpleNamespace(paths=None))
            self.fabric = SimpleNamespace(device=torch.device("cpu"))
            self.sampler = range(10)

        def batches(self, number):
            return iter([(batch, batch) for batch in range(number)])

        def step(self, batch, labels):
            order.append((batch, self.name))
            early = 100.0 if batch < cost.WARM_UP else 0.0
            return {"loss": early + self.seconds, "backbone": early + 2.0, "step": early + 3.0 + self.seconds + batch}

    monkeypatch.setattr(cost, "seconds_of_feeding", lambda trainee, batches: 0.5)
    first, second = cost.time_together([Pretended("a", 1.0), Pretended("b", 1.5)], batches=3)
    assert [name for _, name in order[:4]] == ["a", "b", "b", "a"]
    assert [batch for batch, _ in order] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert first == Cost(loss=10.0, backbone=20.0, epoch=10 * (4.0 + 3 + 0.5))
    assert second == Cost(loss=15.0, backbone=20.0, epoch=10 * (4.5 + 3 + 0.5))


@pytest.mark.parametrize(
    ("device", "paths", "epoch"), [("cuda", ["a"], 30.0), ("cuda", None, 40.0), ("cpu", ["a"], 40.0)]
)
def test_decoding_files_overlaps_with_a_gpu_only(device, paths, epoch):
    trainee = SimpleNamespace(
        data=SimpleNamespace(train=SimpleNamespace(paths=paths)),
        fabric=SimpleNamespace(device=torch.device(device)),
        sampler=range(10),
    )
    assert as_cost(trainee, [{"loss": 0.1, "backbone": 0.5, "step": 1.0}], 3.0).epoch == epoch


def test_times_are_compared_within_each_repetition(tmp_path):
    experiment = Experiment.model_validate(
        {
            "title": "a",
            "kind": "cost",
            "plans": {"toy": {"settings": ["toy"], "axes": {"loss": ["x"], "training": ["plain", "tcm"]}}},
            "against": {"training": "plain"},
        }
    )

    def measured(training, *costs):
        run = PlannedRun.model_construct(
            setting="toy", choices={"loss": "x", "training": training}, seed=0, recipe=None
        )
        return Measured(run, costs, 8, "cpu")

    plain = measured("plain", Cost(1.0, 4.0, 6.0), Cost(2.0, 4.0, 8.0), Cost(4.0, 4.0, 10.0))
    tcm = measured("tcm", Cost(1.5, 4.0, 6.0), Cost(2.2, 5.0, 8.0), Cost(5.0, 3.0, 12.0))
    results = cost_results(experiment, [plain, tcm])
    first, second = results.rows
    assert [first[f"loss seconds{part}"] for part in ("", " lowest", " highest")] == [2.0, 1.0, 4.0]
    assert [second[f"loss change{part}"] for part in ("", " lowest", " highest")] == pytest.approx([0.25, 0.1, 0.5])
    assert second["backbone change lowest"] == -0.25
    assert "loss change" not in first
    assert {row["loss"] for row in [*results.rows, *results.runs]} == {"x"}  # the axis, not the time
    write_csv(tmp_path / "table.csv", results.rows)
    table = make_table(experiment, read_csv(tmp_path / "table.csv"))
    assert table.lines[0] == ["toy", "x", "plain", "2 (1 to 4)", "", "4 (4 to 4)", "", "8 (6 to 10)", ""]
    assert table.lines[1][4] == "+25.0% (+10.0 to +50.0)"
    assert table.lines[1][8] == "+0.0% (+0.0 to +20.0)"
