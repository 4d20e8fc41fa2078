"""What must hold for every loss of the registry, whatever it computes: a new one is tested the day it is added.

Values are held against definitions in the files named in HELD_IN.
"""

import inspect
from dataclasses import replace

import pytest
import torch
from batches import Example, NoHalfProducts, examples, general, layout, make
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from test_definitions import CASES, EXTREMES
from test_proxies import ALL as PROXY_CLASSES

from isomargin.losses import loss_names
from isomargin.losses.registry import REGISTRY

HELD_IN = {
    "test_definitions.py": {name for name, _ in CASES},
    "test_proxies.py": {each.name for each in PROXY_CLASSES},
    "test_threshold_penalty.py": {"threshold_penalty"},
}
PROXIES = HELD_IN["test_proxies.py"]
CLASSES = 20

every_loss = pytest.mark.parametrize("name", loss_names())


def build(name, example, dtype=torch.float64):
    """The loss with its defaults, its proxies the same each time."""
    torch.manual_seed(0)
    sizes = {"num_classes": CLASSES, "embedding_size": example.embeddings.shape[1]} if name in PROXIES else {}
    loss = make(name, **sizes)
    for each in loss.parameters():
        each.data.normal_()  # larger than they begin, so that gradients by the embeddings are, too
    return loss.double() if dtype == torch.float64 else loss


def numbered(example):
    """The same with classes numbered from 0 on, as proxies need them."""
    return replace(example, labels=torch.unique(example.labels, return_inverse=True)[1])


def run(name, example, dtype=torch.float64):
    """The value and the gradient by the embeddings."""
    loss = build(name, example, dtype)
    embeddings = example.embeddings.to(dtype).clone().requires_grad_()
    value = loss(embeddings, numbered(example).labels if name in PROXIES else example.labels)
    value.backward()
    return value.detach(), embeddings.grad


def test_every_loss_is_held_against_a_definition():
    assert set(loss_names()) == set().union(*HELD_IN.values())


def test_proxies_are_those_that_need_a_number_of_classes():
    assert {name for name, each in REGISTRY.items() if "num_classes" in inspect.signature(each).parameters} == PROXIES


@every_loss
def test_gradient_is_that_of_small_steps(name):
    if name == "threshold_penalty":
        pytest.skip("its weights are constants to the gradient by definition, but not to small steps")
    example = general(seed=22)
    loss = build(name, example)
    embeddings = example.embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda each: loss(each, example.labels), [embeddings])


@every_loss
def test_a_loss_is_a_finite_scalar_with_finite_gradients_on_any_batch(name):
    @hypothesis_settings(max_examples=10, deadline=None, database=None, derandomize=True)
    @given(examples())
    def hold(example):
        value, gradient = run(name, Example(example.embeddings, example.labels))
        assert value.shape == ()
        assert value.isfinite()
        assert gradient.isfinite().all()

    hold()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_loss
def test_values_and_gradients_stay_finite_for_extreme_numbers(name, dtype):
    for extreme, make_batch in EXTREMES.items():
        value, gradient = run(name, make_batch(), dtype)
        assert value.isfinite(), extreme
        assert gradient.isfinite().all(), extreme


@every_loss
def test_a_batch_without_rows_has_loss_0_and_a_gradient(name):
    value, gradient = run(name, layout("no rows"))
    assert value == 0
    assert gradient.shape == (0, 4)


@every_loss
def test_order_of_rows_does_not_matter(name):
    example = general()
    order = torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    value, gradient = run(name, example)
    torch.testing.assert_close(
        run(name, Example(example.embeddings[order], example.labels[order])), (value, gradient[order])
    )


@every_loss
def test_lengths_of_rows_do_not_matter_but_to_the_gradient(name):
    example = general()
    lengths = torch.logspace(-6, 6, len(example.embeddings), dtype=torch.float64)[:, None]
    value, gradient = run(name, example)
    stretched = replace(example, embeddings=example.embeddings * lengths)
    torch.testing.assert_close(run(name, stretched), (value, gradient / lengths), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float16, False), (torch.bfloat16, True), (torch.float32, True)], ids=str
)
@every_loss
def test_half_precision_gives_what_its_cast_to_float32_gives(name, dtype, autocast):
    example = general()
    example = replace(example, embeddings=example.embeddings.to(dtype))
    expected, whole = run(name, example, torch.float32)
    with NoHalfProducts(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value, gradient = run(name, example, dtype)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, whole.to(dtype), rtol=1e-6 + torch.finfo(dtype).eps, atol=1e-6)


@every_loss
def test_a_sum_with_itself_is_twice_the_loss(name):
    example = general()
    value, gradient = run(name, example)
    loss = build(name, example)
    embeddings = example.embeddings.clone().requires_grad_()
    both = loss + build(name, example)
    total = both(embeddings, example.labels)
    total.backward()
    torch.testing.assert_close((total.detach(), embeddings.grad), (2 * value, 2 * gradient))


@every_loss
def test_what_a_call_gave_is_kept_for_logging_without_gradient(name):
    example = general()
    loss = build(name, example)
    value = loss(example.embeddings.clone().requires_grad_(), example.labels)
    assert loss.values["loss"] == value.detach()
    assert not any(each.requires_grad for each in loss.values.values())


@every_loss
def test_nan_embeddings_raise_with_their_rows_if_asked(name):
    example = general()
    example.embeddings[[2, 5]] = float("nan")
    loss = build(name, example)
    loss.check_finite = True
    with pytest.raises(ValueError, match=r"2 rows \(2, 5\)"):
        loss(example.embeddings, example.labels)


@every_loss
def test_gradients_beyond_half_precision_reach_the_gradient_scaler_as_infinity(name):
    """The gradient of a row that is 1e-5 long is 1e5 times as long: float16 ends at 65504."""
    example = general()
    model = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([model], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    embeddings = (example.embeddings * 1e-5).half() * model.half()
    embeddings.retain_grad()
    value = build(name, example, torch.float32)(embeddings, example.labels)
    assert value.isfinite()
    scaler.scale(value).backward()
    assert embeddings.grad.dtype == torch.float16
    assert embeddings.grad.isinf().any()
    assert not embeddings.grad.isnan().any()
    scaler.step(optimizer)
    scaler.update()
    assert model == 1  # the step was left out
    assert scaler.get_scale() == 512


@every_loss
def test_going_back_inside_autocast_is_the_same_where_similarities_are_taken_again(name, monkeypatch):
    example = general()
    expected = run(name, example, torch.float32)
    monkeypatch.setattr("isomargin.losses._engine.KEPT_ENTRIES", 0)
    with NoHalfProducts(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(name, example, torch.float32)
    torch.testing.assert_close(found, expected)


@every_loss
def test_labels_may_be_of_any_integer_type(name):
    example = general()
    expected = build(name, example)(example.embeddings, example.labels)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32):
        loss = build(name, example)
        assert loss(example.embeddings, example.labels.to(dtype)) == expected, dtype


DEFAULTS = {  # as published, or as the documentation says why not
    "arcface": {"scale": 64, "margin": 0.5, "learning_rate_factor": 10, "angle_factor": 1, "cosine_margin": 0},
    "calibration": {"positive_margin": 0.9, "negative_margin": 0.6, "reduction": "violating"},
    "class_alignment": {
        **{"positive_weight": 50, "negative_weight": 0, "temperature": 0.3},
        **{"negative_temperature": None, "scale_free": False},
    },
    "contrastive": {"margin": 1, "reduction": "all"},
    "proxy_anchor": {"alpha": 32, "margin": 0.1, "learning_rate_factor": 100},
    "proxy_nca": {"scale": 3, "learning_rate_factor": 1},
    "proxy_nca++": {"temperature": 1 / 9, "learning_rate_factor": 1e5},
    "recall_at_k": {
        **{"k": (1, 2, 4, 8, 16), "temperature": 0.01, "rank_temperature": 1},
        **{"simix": False, "include_query": False, "seed": 0, "cap_k": False},
    },
    "roadmap": {
        **{"temperature": 0.01, "slope": 100, "delta": 0.05, "offset": 1.44, "include_query": False},
        **{"positive_margin": 0.9, "negative_margin": 0.6, "reduction": "violating"},
        **{"sup_ap_weight": 1, "calibration_weight": 1, "form": "corrected"},
    },
    "smooth_ap": {"temperature": 0.01, "include_query": False},
    "soft_triple": {
        **{"centers_per_class": 10, "scale": 20, "gamma": 0.1, "margin": 0.01, "tau": 0.2},
        **{"learning_rate_factor": 100},
    },
    "subcenter_arcface": {
        **{"sub_centers": 3, "scale": 64, "margin": 0.5, "learning_rate_factor": 10},
        **{"angle_factor": 1, "cosine_margin": 0},
    },
    "sup_ap": {
        **{"temperature": 0.01, "slope": 100, "delta": 0.05, "offset": 1.44, "include_query": False},
        **{"form": "corrected"},
    },
    "tcm": {
        **{"positive_margin": 0.9, "negative_margin": 0.5, "positive_weight": 1, "negative_weight": 1},
        **{"hard_only": True},
    },
    "threshold_penalty": {"base": "smooth_ap", "domains": 8, "far": 1e-3, "queue_size": 4096, "floor": 0.1},
    "triplet": {"margin": 0.2, "reduction": "violating"},
}


@every_loss
def test_defaults_are_those_that_the_documentation_gives(name):
    parameters = inspect.signature(REGISTRY[name]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not inspect.Parameter.empty}
    assert defaults == DEFAULTS[name] | {"check_finite": False}
