"""Schedules against torch's own, and the plateau over a checkpoint."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from isomargin.training.schedule import Cosine, EveryEpochs, MultiStep, OneCycle, Plateau


def torch_rates(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (MultiStep(at=(3, 7), factor=0.3), lambda o: lr_scheduler.MultiStepLR(o, [3, 7], gamma=0.3)),
        (EveryEpochs(4, factor=0.5), lambda o: lr_scheduler.StepLR(o, 4, gamma=0.5)),
        (Cosine(epochs=10), lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
        (Cosine(epochs=10, final=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.1)),
    ],
    ids=["multi-step", "every", "cosine", "cosine to a tenth"],
)
def test_rates_are_those_of_torch(ours, theirs):
    assert [ours(epoch) for epoch in range(10)] == pytest.approx(torch_rates(theirs, 10))


def test_one_cycle_is_that_of_torch():
    theirs = torch_rates(lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=101, pct_start=0.3), 101)
    # torch counts the last step of the rise, 0.3 · 101 − 1, so that its top lies at 29.3
    ours = OneCycle(epochs=100, rise=(0.3 * 101 - 1) / 100)
    assert [ours(step) for step in range(101)] == pytest.approx(theirs, abs=1e-9)


def test_the_plateau_lowers_as_torchs_does():
    scores = [0.5, 0.6, 0.6, 0.5, 0.61, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.7]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.25, patience=2, threshold=0.0)
    ours = Plateau(patience=2)
    for score in scores:
        ours.see(score)
        theirs.step(score)
        assert ours(0) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_the_plateau_goes_on_from_a_checkpoint():
    whole, first = Plateau(patience=1), Plateau(patience=1)
    for score in (0.5, 0.4):
        whole.see(score)
        first.see(score)
    resumed = Plateau(patience=1)
    resumed.load_state_dict(first.state_dict())
    for plateau in (whole, resumed):
        plateau.see(0.3)
    assert whole(0) == resumed(0) < 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiStep(at=(5, 3)),
        lambda: MultiStep(at=(5,), factor=0),
        lambda: EveryEpochs(0),
        lambda: Cosine(epochs=math.inf),
        lambda: OneCycle(epochs=3, rise=1.5),
        lambda: Plateau(factor=-1),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError, match="needed"):
        make()
