"""Losses by name: every one can be made from a plain dictionary, and mistakes are answered with what was meant."""

import inspect
from pathlib import Path

import pytest
import torch

import isomargin.losses
from isomargin.losses import MetricLoss, TCMLoss, WeightedSum, loss_names, make_loss
from isomargin.losses.registry import REGISTRY

SIZES = {"num_classes": 3, "embedding_size": 4}


def config(name):
    needed = inspect.signature(REGISTRY[name]).parameters
    return {"name": name, **{key: value for key, value in SIZES.items() if key in needed}}


@pytest.mark.parametrize("name", loss_names())
def test_every_loss_is_made_by_its_name_and_by_its_class_name(name):
    settings = config(name)
    loss = make_loss(settings)
    assert isinstance(loss, REGISTRY[name])
    assert type(make_loss({**settings, "name": type(loss).__name__})) is type(loss)
    value = loss(torch.eye(4)[:3].requires_grad_(), torch.tensor([0, 0, 1]))
    assert value.ndim == 0
    assert value.isfinite()


@pytest.mark.parametrize("name", loss_names())
def test_every_setting_of_a_loss_can_be_given_as_its_default(name):
    parameters = inspect.signature(REGISTRY[name]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    assert repr(make_loss(config(name))) == repr(make_loss(config(name) | defaults))
    assert defaults["check_finite"] is False


@pytest.mark.parametrize("name", loss_names())
def test_every_loss_stands_in_the_documentation(name):
    path = Path(__file__).parents[2] / "docs" / "losses.md"
    text = path.read_text()
    assert f"`{name}`" in text
    assert f"`{REGISTRY[name].__name__}`" in text


def test_every_loss_that_is_public_has_a_name():
    public = {getattr(isomargin.losses, each) for each in isomargin.losses.__all__}
    losses = {each for each in public if inspect.isclass(each) and issubclass(each, MetricLoss)}
    classes = losses - {MetricLoss, WeightedSum}
    assert classes == set(REGISTRY.values())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("smoth_ap", "there is no loss 'smoth_ap': did you mean 'smooth_ap'?"),
        ({"name": "TMC"}, "there is no loss 'TMC': did you mean 'tcm'?"),
        ("nonsense", "there is no loss 'nonsense': known are arcface, calibration"),
        ({"name": 3}, "there is no loss 3: known are"),
        (
            {"name": "tcm", "positve_margin": 0.9},
            "tcm has no setting 'positve_margin': did you mean 'positive_margin'?",
        ),
        ({"name": "triplet", "temperature": 1}, "triplet has no setting 'temperature': known are margin, reduction"),
        ({"name": "tcm", "positive_margin": "9e-1"}, "positive_margin is '9e-1': a finite number is needed (YAML"),
        ({"name": "recall_at_k", "k": "1,2"}, "k is '1,2': a whole number of at least 1 is needed"),
        ({"name": "tcm", "check_finite": "no"}, "check_finite is 'no': True or False is needed"),
        ({"name": "smooth_ap", "temperature": 1e-9}, "temperature is 1e-09: a number from 0.0001 to 100 is needed"),
        ({"weight": 2}, "has no name: one of"),
        ({"name": "arcface", "num_classes": 3}, "arcface was given no embedding_size"),
        ({"name": "tcm", "weight": -1}, "weight is -1: at least 0 is needed"),
        ({"name": "tcm", "weight": True}, "weight is True: a finite number is needed"),
        ([], r"the loss is []: a name, a dictionary with a name, or a list of these is needed"),
        (None, "the loss is None: a name"),
        (
            {"name": "threshold_penalty", "base": "triplet"},
            "base is TripletLoss, which with these settings is not a mean over samples",
        ),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(wrong, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        make_loss(wrong)
    assert message in str(raised.value)


def test_a_loss_that_is_made_already_is_taken_as_it_is():
    loss = TCMLoss()
    assert make_loss(loss) is loss
    assert make_loss([loss]) is loss
    assert make_loss([loss, torch.nn.Identity()]).weights == [1.0, 1.0]


def test_a_weight_in_a_single_dictionary_weighs_it():
    x, y = torch.eye(3), torch.tensor([0, 0, 1])
    assert make_loss({"name": "tcm", "weight": 0.5})(x, y) == 0.5 * TCMLoss()(x, y)


def test_a_base_loss_can_be_a_dictionary_inside_another():
    loss = make_loss({"name": "threshold_penalty", "base": {"name": "smooth_ap", "temperature": 0.1}})
    assert loss.base.temperature == 0.1
