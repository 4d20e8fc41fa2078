"""What a loss cannot use is refused in one sentence that has what was expected and what came."""

import math
import re

import numpy as np
import pytest
import torch
from batches import make
from test_definitions import CASES

LOSSES = ["tcm", "triplet", "roadmap"]  # batches are read in one place for all; a sum is called in another way
ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
EXPECTATION = r"needed|must|give both|cannot|points outside"

every_loss = pytest.mark.parametrize("name", LOSSES)


def refusal(call, *given):
    """The sentence with which this is refused; it has each of the given words or numbers and says what would do."""
    with pytest.raises(ValueError, match=EXPECTATION) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for each in given:
        assert re.search(rf"(?<![\w.]){re.escape(str(each))}(?!\w)", text), f"{each!r} is not in {text!r}"
    return text


# ------------------------------------------------------------------------------------------------------------- batches


@every_loss
@pytest.mark.parametrize(
    ("embeddings", "given"),
    [
        (ROWS[0], (3,)),
        (ROWS[None], (1, 6, 3)),
        (torch.tensor(1.0), ()),
    ],
    ids=["one dimension", "three dimensions", "a number"],
)
def test_embeddings_have_two_dimensions(name, embeddings, given):
    refusal(lambda: make(name)(embeddings, LABELS), "embeddings", given)


@every_loss
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_embeddings_are_floating_point(name, dtype):
    refusal(lambda: make(name)(torch.ones(6, 3, dtype=dtype), LABELS), "embeddings", dtype)


@every_loss
@pytest.mark.parametrize(("embeddings", "given"), [(ROWS.numpy(), "ndarray"), (ROWS.tolist(), "list")])
def test_embeddings_are_a_tensor(name, embeddings, given):
    refusal(lambda: make(name)(embeddings, LABELS), "embeddings", given)


@every_loss
@pytest.mark.parametrize("count", [0, 5, 7])
def test_there_is_one_label_a_row(name, count):
    refusal(lambda: make(name)(ROWS, torch.zeros(count, dtype=torch.long)), "labels", count, 6)


@every_loss
def test_labels_have_one_dimension(name):
    refusal(lambda: make(name)(ROWS, LABELS[:, None]), "labels", (6, 1))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_are_integers(name, dtype):
    refusal(lambda: make(name)(ROWS, LABELS.to(dtype)), "labels", dtype)


@every_loss
def test_labels_are_numbers(name):
    with pytest.raises(ValueError, match=r"labels .*integers"):
        make(name)(ROWS, ["cat", "cat", "dog", "dog", "owl", "owl"])
    refusal(lambda: make(name)(ROWS, None), "labels", None)


@every_loss
@pytest.mark.parametrize("labels", [LABELS.tolist(), LABELS.numpy(), LABELS.to(torch.int32), LABELS.to(torch.uint8)])
def test_labels_of_any_integers_are_taken(name, labels):
    assert torch.equal(make(name)(ROWS, labels), make(name)(ROWS, LABELS))


# ---------------------------------------------------------------------------------------------------------- references


@every_loss
def test_references_come_with_labels(name):
    text = refusal(lambda: make(name)(ROWS, LABELS, ref_emb=ROWS), "ref_emb", "ref_labels")
    assert text.index("ref_emb") < text.index("ref_labels")
    text = refusal(lambda: make(name)(ROWS, LABELS, ref_labels=LABELS), "ref_labels", "ref_emb")
    assert text.index("ref_labels") < text.index("ref_emb")


@every_loss
def test_references_have_as_many_dimensions(name):
    refusal(lambda: make(name)(ROWS, LABELS, ref_emb=torch.ones(6, 5), ref_labels=LABELS), "ref_emb", 5, 3)


@every_loss
@pytest.mark.parametrize(
    ("references", "labels", "given"),
    [
        (ROWS[0], LABELS, ("ref_emb", (3,))),
        (ROWS.long(), LABELS, ("ref_emb", torch.int64)),
        (ROWS.numpy(), LABELS, ("ref_emb", "ndarray")),
        (ROWS, LABELS[:4], ("ref_labels", 4, 6)),
        (ROWS, LABELS[:, None], ("ref_labels", (6, 1))),
        (ROWS, LABELS.double(), ("ref_labels", torch.float64)),
    ],
)
def test_references_are_checked_as_embeddings_are(name, references, labels, given):
    refusal(lambda: make(name)(ROWS, LABELS, ref_emb=references, ref_labels=labels), *given)


# ------------------------------------------------------------------------------------------------------------- indices


def index(*numbers):
    return torch.tensor(numbers, dtype=torch.long)


@every_loss
@pytest.mark.parametrize(
    "chosen",
    [
        (index(0), index(6), index(0), index(2)),
        (index(6), index(1), index(0), index(2)),
        (index(0), index(1), index(0), index(60)),
        (index(0), index(-1), index(0), index(2)),
        (index(0), index(1), index(9)),
        (index(-2), index(1), index(3)),
    ],
)
def test_indices_point_into_the_batch(name, chosen):
    refusal(lambda: make(name)(ROWS, LABELS, chosen), "indices_tuple", 6)


@every_loss
def test_indices_point_into_the_references(name):
    chosen = index(0), index(2), index(0), index(0)
    refusal(lambda: make(name)(ROWS, LABELS, chosen, ROWS[:2], LABELS[:2]), "indices_tuple", 6, 2)


@every_loss
@pytest.mark.parametrize("chosen", [(), (index(0), index(1)), (index(0),) * 5])
def test_indices_are_of_pairs_or_triplets(name, chosen):
    refusal(lambda: make(name)(ROWS, LABELS, chosen), "indices_tuple", 3, 4)


@every_loss
def test_indices_have_an_other_for_each_anchor(name):
    refusal(lambda: make(name)(ROWS, LABELS, (index(0, 2), index(1), index(0), index(2))), "indices_tuple", 2, 1)


# ------------------------------------------------------------------------------------------------------ NaN, if asked


@every_loss
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_named(name, value):
    rows = ROWS.clone()
    rows[1, 2] = value
    rows[4, 0] = value
    loss = make(name, check_finite=True)
    text = refusal(lambda: loss(rows, LABELS), "embeddings", 1, 4)
    assert "row" in text
    text = refusal(lambda: loss(ROWS, LABELS, ref_emb=rows, ref_labels=LABELS), "ref_emb", 1, 4)
    assert "row" in text


@every_loss
def test_finite_rows_pass_the_check(name):
    assert torch.equal(make(name, check_finite=True)(ROWS, LABELS), make(name)(ROWS, LABELS))


# ------------------------------------------------------------------------------------------------------------ settings

WITH_MARGINS = ["tcm", "calibration", "roadmap"]
NUMBERS = {
    "tcm": ["positive_margin", "negative_margin", "positive_weight", "negative_weight"],
    "smooth_ap": ["temperature"],
    "recall_at_k": ["temperature", "rank_temperature"],
    "sup_ap": ["temperature", "slope", "delta", "offset"],
    "calibration": ["positive_margin", "negative_margin"],
    "roadmap": [
        *("temperature", "slope", "delta", "offset"),
        *("positive_margin", "negative_margin", "sup_ap_weight", "calibration_weight"),
    ],
    "contrastive": ["margin"],
    "triplet": ["margin"],
    "class_alignment": ["positive_weight", "negative_weight", "temperature", "negative_temperature"],
}
SWITCHES = {
    "tcm": ["hard_only"],
    "smooth_ap": ["include_query"],
    "recall_at_k": ["include_query", "simix", "cap_k"],
    "sup_ap": ["include_query"],
    "roadmap": ["include_query"],
    "class_alignment": ["scale_free"],
}
REDUCTIONS = {
    "calibration": ["all", "violating"],
    "roadmap": ["all", "violating"],
    "contrastive": ["all", "violating", "together"],
    "triplet": ["all", "violating"],
}


def each_of(settings, wanted=lambda setting: True):
    return [(name, setting) for name, listed in settings.items() for setting in listed if wanted(setting)]


def refuses(name, setting, value):
    refusal(lambda: make(name, **{setting: value}), setting, value if isinstance(value, (int, float)) else repr(value))


@pytest.mark.parametrize(("name", "setting"), each_of(NUMBERS))
def test_numbers_are_finite_numbers(name, setting):
    for value in (math.nan, math.inf, -math.inf, "0.5", True, [0.5]):
        refuses(name, setting, value)


@pytest.mark.parametrize(("name", "setting"), each_of(NUMBERS, lambda setting: setting != "negative_temperature"))
def test_numbers_are_given_but_for_the_temperature_of_negatives(name, setting):
    refuses(name, setting, None)


@pytest.mark.parametrize("name", WITH_MARGINS)
@pytest.mark.parametrize("setting", ["positive_margin", "negative_margin"])
def test_margins_are_cosine_similarities(name, setting):
    for value in (-1.01, 1.5, 90):
        refuses(name, setting, value)


@pytest.mark.parametrize("name", WITH_MARGINS)
def test_positive_margin_is_not_below_the_negative_one(name):
    call = {"positive_margin": 0.4, "negative_margin": 0.45}
    refusal(lambda: make(name, **call), "positive_margin", 0.4, "negative_margin", 0.45)


@pytest.mark.parametrize("name", WITH_MARGINS)
@pytest.mark.parametrize(("positive", "negative"), [(1, -1), (0.5, 0.5), (1.0, 1.0), (-1, -1.0)])
def test_margins_may_be_at_their_bounds_and_the_same(name, positive, negative):
    loss = make(name, positive_margin=positive, negative_margin=negative)
    assert loss(ROWS, LABELS).isfinite()


@pytest.mark.parametrize(("name", "setting"), each_of(NUMBERS, lambda setting: setting.endswith("weight")))
def test_weights_are_not_below_zero(name, setting):
    for value in (-1e-9, -1, -math.inf):
        refuses(name, setting, value)


@pytest.mark.parametrize(("name", "setting"), each_of(NUMBERS, lambda setting: setting.endswith("temperature")))
def test_temperatures_are_above_zero(name, setting):
    for value in (0, 0.0, -0.01, -1, math.nan):
        refuses(name, setting, value)


@pytest.mark.parametrize("value", [(), [], (0,), (1, -2), (1, 2.5), ("1",), (1, True), 0, -1, 1.5, "1", None])
def test_depths_of_recall_are_whole_numbers_of_at_least_one(value):
    text = refusal(lambda: make("recall_at_k", k=value))
    assert re.match(r"k\b", text)
    worst = [each for each in value if not (type(each) is int and each > 0)] if isinstance(value, (tuple, list)) else []
    shown = [repr(each) for each in (value, *worst)] + ["empty"] * (value in ((), []))
    assert any(each in text for each in shown), f"none of {shown} is in {text!r}"


@pytest.mark.parametrize("name", list(REDUCTIONS))
@pytest.mark.parametrize("value", ["mean", "ALL", "", None, 1])
def test_reductions_are_among_those_there_are(name, value):
    call = {"reduction": value}
    refusal(lambda: make(name, **call), "reduction", *map(repr, REDUCTIONS[name]))
    assert repr(value) in refusal(lambda: make(name, **call))


@pytest.mark.parametrize(("name", "setting"), each_of(SWITCHES))
def test_switches_are_true_or_false(name, setting):
    for value in ("yes", 1, 0, None, np.array([True])):
        call = {setting: value}
        text = refusal(lambda call=call: make(name, **call), setting, "True", "False")
        assert repr(value) in text


@pytest.mark.parametrize("name", list(dict(CASES)))
def test_a_setting_that_there_is_not_is_refused(name):
    with pytest.raises((TypeError, ValueError), match="positive_margine"):
        make(name, positive_margine=0.9)
