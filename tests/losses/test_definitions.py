"""Every loss and its gradient against the definition.

All settings are compared on a few batches that have what makes a difference to them. Which pairs there are, tiles,
kinds of numbers and the way back are the engine's: every layout and every kind of pairs is tried with each loss once.
"""

import math
from dataclasses import replace
from functools import partial

import definitions
import pytest
import torch
from batches import (
    LAYOUTS,
    PAIRINGS,
    Example,
    NoHalfProducts,
    against_references,
    examples,
    general,
    layout,
    make,
    masks,
    with_pairs,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from pytorch_metric_learning import distances, losses, reducers

# High temperatures beside the defaults, at which many gradients are too small to tell right from wrong.
CASES = [
    ("tcm", {}),
    ("tcm", {"positive_margin": 0.7, "negative_margin": 0.2}),
    ("tcm", {"positive_margin": 0.5, "negative_margin": 0.5}),  # where exact ties are at the margins
    ("tcm", {"hard_only": False}),
    ("tcm", {"positive_weight": 0.0, "negative_weight": 2.5, "negative_margin": -0.25}),
    ("tcm", {"positive_weight": 0.3, "negative_weight": 0.0, "hard_only": False}),
    ("smooth_ap", {}),
    ("smooth_ap", {"temperature": 0.1}),
    ("smooth_ap", {"temperature": 0.2, "include_query": True}),
    ("recall_at_k", {}),
    ("recall_at_k", {"temperature": 0.1, "k": (1,)}),
    ("recall_at_k", {"temperature": 0.2, "k": [3, 1], "rank_temperature": 0.5}),
    ("recall_at_k", {"temperature": 0.1, "k": (1, 2), "rank_temperature": 2.0, "include_query": True}),
    ("recall_at_k", {"temperature": 0.1, "k": (1, 30), "rank_temperature": 5.0, "cap_k": True}),
    ("sup_ap", {}),
    ("sup_ap", {"temperature": 0.1, "slope": 5.0, "delta": 0.3, "offset": 0.7}),
    ("sup_ap", {"temperature": 0.1, "include_query": True}),
    ("sup_ap", {"temperature": 0.1, "slope": 5.0, "delta": 0.3, "form": "2021"}),
    ("calibration", {}),
    ("calibration", {"reduction": "all"}),
    ("calibration", {"positive_margin": 0.7, "negative_margin": -0.3}),
    ("roadmap", {}),
    (
        "roadmap",
        {"temperature": 0.1, "slope": 5.0, "reduction": "all", "sup_ap_weight": 0.5, "calibration_weight": 2},
    ),
    ("roadmap", {"form": "2021"}),
    ("roadmap", {"delta": 0.2, "offset": 2.0, "positive_margin": 0.8, "negative_margin": 0.3, "include_query": True}),
    ("contrastive", {}),
    ("contrastive", {"reduction": "violating", "margin": 1.4}),
    ("contrastive", {"reduction": "together", "margin": 0.7}),
    ("triplet", {}),
    ("triplet", {"reduction": "all"}),
    ("triplet", {"margin": 1.3, "reduction": "all"}),
    ("triplet", {"margin": 1.3}),
    ("class_alignment", {}),
    ("class_alignment", {"negative_weight": 50.0, "temperature": 0.1}),
    ("class_alignment", {"temperature": 0.5, "positive_weight": 3.0, "negative_weight": 0.0}),
    ("class_alignment", {"positive_weight": 0.0, "negative_weight": 2.0}),
    ("class_alignment", {"scale_free": True, "positive_weight": 0.05, "negative_weight": 0.05}),
    ("class_alignment", {"negative_weight": 50.0, "negative_temperature": 0.03}),
    ("class_alignment", {"scale_free": True, "positive_weight": 0.05, "negative_temperature": 0.03}),
]


def case_name(case):
    name, settings = case
    return "-".join([name, *(f"{key}={value}" for key, value in settings.items())])


# Each loss once, with settings at which both sides and all terms have gradients that can be told from 0.
OF_EACH_LOSS = [
    ("tcm", {"hard_only": False}),
    ("smooth_ap", {"temperature": 0.2, "include_query": True}),
    ("recall_at_k", {"temperature": 0.1, "k": (1, 2), "rank_temperature": 2.0, "include_query": True}),
    ("sup_ap", {"temperature": 0.1, "slope": 5.0, "delta": 0.3, "offset": 0.7}),
    ("calibration", {"reduction": "all"}),
    ("roadmap", {}),
    ("contrastive", {"reduction": "together", "margin": 0.7}),
    ("triplet", {"margin": 1.3}),
    ("class_alignment", {"negative_weight": 50.0, "temperature": 0.1}),
]

every_case = pytest.mark.parametrize("case", CASES, ids=case_name)
each_loss = pytest.mark.parametrize("case", OF_EACH_LOSS, ids=lambda case: case[0])
NEAR = 1e-9

# Every layout for the batch against itself; the other pairings on those layouts that they could change.
PAIRED = ["shuffled", "some single items", "one class", "all single", "one row", "no rows", "exact ties", "zero rows"]
LAYOUT_AND_PAIRING = [(name, "all pairs") for name in LAYOUTS] + [
    (name, pairing) for pairing in PAIRINGS if pairing != "all pairs" for name in PAIRED
]
# Classes of all sizes, ties, a class that only the references have, some pairs only and some of them twice, triplets.
DIFFERENT = [
    ("unequal classes", "all pairs"),
    ("some single items", "all pairs"),
    ("exact ties", "all pairs"),
    ("shuffled", "references"),
    ("shuffled", "chosen triplets"),
    ("some single items", "chosen pairs with references"),
]


# ----------------------------------------------------------------------------------------------------------- running


def evaluate(function, example, dtype=torch.float64):
    """The value, and the gradients by the embeddings and by the references (None without them)."""
    embeddings = example.embeddings.to(dtype).clone().requires_grad_()
    references = None if example.references is None else example.references.to(dtype).clone().requires_grad_()
    value = function(embeddings, example.labels, references, example.reference_labels, example.chosen)
    value.backward()
    return value.detach(), embeddings.grad, None if references is None else references.grad


def found(case, example, dtype=torch.float64):
    name, settings = case
    loss = make(name, **settings)

    def call(embeddings, labels, references, reference_labels, chosen):
        return loss(embeddings, labels, chosen, references, reference_labels)

    return evaluate(call, example, dtype)


def defined(case, example):
    name, settings = case
    value, gradient, by_references = evaluate(lambda *batch: getattr(definitions, name)(*batch, **settings), example)
    if example.references is not None and by_references is None:  # no row was there to be compared with them
        by_references = torch.zeros_like(example.references)
    return value, gradient, by_references


def assert_same(first, second, rtol, atol):
    for one, other in zip(first, second, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


def assert_finite(results):
    for each in results:
        assert each is None or each.isfinite().all()


# -------------------------------------------------------------------------------------------- where a loss has a kink


def near_pairs(example):
    """(n, m, m) whether two similarities of a row are as good as the same; (n, m, m) whether they are so exactly.

    A row's similarity to itself is among them, since `include_query` compares with it.
    """
    whole = example if example.references is not None else replace(example, references=example.embeddings)
    similarities = whole.similarities()
    near = (similarities[:, :, None] - similarities[:, None, :]).abs() < NEAR
    exact = exact_pairs(whole)
    return near, exact[:, :, None] & exact[:, None, :]


def exact_pairs(example):
    """(n, m) whether a similarity is computed without rounding, in any order of summation."""
    columns = example.embeddings if example.references is None else example.references

    def kinds(rows):
        unit = torch.nn.functional.normalize(rows, eps=1e-300)
        return (unit == 0).all(dim=1), (unit * 2 % 1 == 0).all(dim=1)

    (zero_rows, exact_rows), (zero_columns, exact_columns) = kinds(example.embeddings), kinds(columns)
    return zero_rows[:, None] | zero_columns | (exact_rows[:, None] & exact_columns)


def value_is_defined(case, example):
    """Whether rounding has no say in the value: it has where a loss counts and there is a tie but for 1e-16."""
    name, settings = case
    if name in ("sup_ap", "roadmap"):
        near, exact = near_pairs(example)
        different = ~torch.eye(near.shape[1], dtype=torch.bool)
        return not (near & ~exact & different).any()
    if name == "contrastive" and settings.get("reduction") == "violating":
        same_place = (example.similarities() > 1 - NEAR) & masks(example)[0] & ~exact_pairs(example)
        return not same_place.any()
    return True


def gradient_is_defined(case, example):
    """Whether the definition has a derivative here."""
    name, settings = case
    positive, negative = masks(example)
    similarities = example.similarities()
    if name in ("sup_ap", "roadmap"):  # H jumps where a positive and a negative are equally similar
        near, _ = near_pairs(example)
        reached = positive if example.references is not None else positive | torch.eye(len(positive), dtype=torch.bool)
        if (near & reached[:, :, None] & negative[:, None, :]).any():
            return False
    if name == "contrastive":  # the root has an infinite one where negatives are in one place
        return not ((similarities > 1 - NEAR) & negative).any()
    if name == "triplet":  # the hinge's corner
        corner = 2 * (similarities[:, None, :] - similarities[:, :, None]) + settings.get("margin", 0.2)
        return not ((corner.abs() < NEAR) & positive[:, :, None] & negative[:, None, :]).any()
    if name in ("calibration", "roadmap"):
        margins = settings.get("positive_margin", 0.9), settings.get("negative_margin", 0.6)
        return not any(
            (((similarities - margin).abs() < NEAR) & side).any()
            for margin, side in zip(margins, (positive, negative), strict=True)
        )
    return True


def check(case, example):
    """Hold value and gradient against the definition wherever it has them; everywhere they are finite."""
    result = found(case, example)
    assert_finite(result)
    if not value_is_defined(case, example):
        return
    expected = defined(case, example)
    coincident = case[0] == "contrastive" and not gradient_is_defined(case, example)
    # sqrt(2 - 2s) turns the rounding of s at 1, 1e-16, into 1e-8.
    assert_same(
        result[:1], expected[:1], **({"rtol": 0, "atol": 1e-7} if coincident else {"rtol": 1e-9, "atol": 1e-10})
    )
    if gradient_is_defined(case, example):
        assert_same(result[1:], expected[1:], rtol=1e-7, atol=1e-8)


# ---------------------------------------------------------------------------------------------- against the definition


def by_name(name):
    return name.replace(" ", "_")


@pytest.mark.parametrize(("place", "pairing"), DIFFERENT, ids=by_name)
@every_case
def test_value_and_gradient_are_the_definitions_with_all_settings(case, place, pairing):
    check(case, PAIRINGS[pairing](layout(place)))


@pytest.mark.parametrize(("place", "pairing"), LAYOUT_AND_PAIRING, ids=by_name)
def test_value_and_gradient_are_the_definitions_on_every_layout(place, pairing):
    for case in OF_EACH_LOSS:
        check(case, PAIRINGS[pairing](layout(place)))


@each_loss
def test_value_and_gradient_are_the_definitions_on_any_batch(case):
    @hypothesis_settings(max_examples=12, deadline=None, database=None, derandomize=True)
    @given(examples())
    def hold(example):
        check(case, example)

    hold()


@each_loss
def test_references_may_be_the_batch_itself_and_then_rows_meet_themselves(case):
    name, settings = case
    example = general()
    results = []
    for loss in (partial(getattr(definitions, name), **settings), make(name, **settings)):
        embeddings = example.embeddings.clone().requires_grad_()
        value = loss(embeddings, example.labels, ref_emb=embeddings, ref_labels=example.labels)
        value.backward()
        results.append((value.detach(), embeddings.grad))
    assert_same(results[1], results[0], rtol=1e-7, atol=1e-8)


@each_loss
def test_only_what_asks_for_a_gradient_gets_one(case):
    name, settings = case
    example = against_references(general())
    _, by_embeddings, by_references = found(case, example)
    for which, expected in (("embeddings", by_embeddings), ("references", by_references)):
        embeddings = example.embeddings.clone().requires_grad_(which == "embeddings")
        references = example.references.clone().requires_grad_(which == "references")
        make(name, **settings)(embeddings, example.labels, None, references, example.reference_labels).backward()
        wanted, other = (embeddings, references) if which == "embeddings" else (references, embeddings)
        torch.testing.assert_close(wanted.grad, expected, rtol=1e-12, atol=1e-14)
        assert other.grad is None


@each_loss
def test_upstream_gradient_scales_the_gradient(case):
    name, settings = case
    example = general()
    _, expected, _ = found(case, example)
    embeddings = example.embeddings.clone().requires_grad_()
    (-3 * make(name, **settings)(embeddings, example.labels)).backward()
    torch.testing.assert_close(embeddings.grad, -3 * expected, rtol=1e-12, atol=1e-14)


@each_loss
def test_going_back_twice_gives_twice_the_gradient(case):
    name, settings = case
    example = against_references(general())
    embeddings, references = (each.clone().requires_grad_() for each in (example.embeddings, example.references))
    value = make(name, **settings)(embeddings, example.labels, None, references, example.reference_labels)
    value.backward(retain_graph=True)
    value.backward()
    _, *expected = found(case, example)
    assert_same((embeddings.grad, references.grad), [2 * each for each in expected], rtol=1e-12, atol=1e-14)


@each_loss
def test_two_calls_before_going_back_do_not_mix(case):
    name, settings = case
    loss = make(name, **settings)
    both = general(), against_references(general(seed=23))
    inputs = [example.embeddings.clone().requires_grad_() for example in both]
    values = [
        loss(embeddings, example.labels, None, example.references, example.reference_labels)
        for embeddings, example in zip(inputs, both, strict=True)
    ]
    (values[0] + values[1]).backward()
    for embeddings, example in zip(inputs, both, strict=True):
        torch.testing.assert_close(embeddings.grad, found(case, example)[1], rtol=1e-12, atol=1e-14)


@each_loss
def test_input_is_left_as_it_was_and_need_not_be_contiguous(case):
    name, settings = case
    example = general()
    value, gradient, _ = found(case, example)
    turned = example.embeddings.T.contiguous().T.requires_grad_()
    assert not turned.is_contiguous()
    again = make(name, **settings)(turned, example.labels)
    again.backward()
    assert_same((again.detach(), turned.grad), (value, gradient), rtol=1e-9, atol=1e-12)
    assert torch.equal(turned, example.embeddings)


@each_loss
def test_value_without_gradient_is_the_same(case):
    name, settings = case
    example = general()
    with torch.no_grad():
        value = make(name, **settings)(example.embeddings, example.labels)
    assert not value.requires_grad
    torch.testing.assert_close(value, found(case, example)[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pairing", list(PAIRINGS))
@pytest.mark.parametrize("place", ["shuffled", "some single items", "exact ties", "all single", "one row"])
def test_tcm_tells_how_many_pairs_were_hard(place, pairing):
    example = PAIRINGS[pairing](layout(place))
    loss = make("tcm")
    value = loss(example.embeddings, example.labels, example.chosen, example.references, example.reference_labels)
    expected = definitions.hard_pairs(
        example.embeddings, example.labels, example.references, example.reference_labels, example.chosen
    )
    assert (float(loss.values["hard_positives"]), float(loss.values["hard_negatives"])) == expected
    torch.testing.assert_close(torch.as_tensor(loss.values["loss"]), value.detach(), rtol=0, atol=0)


# ------------------------------------------------------------------------------------------- what must change nothing


@each_loss
def test_names_of_classes_do_not_matter(case):
    example = general()
    renamed = torch.tensor([10**12, -5, 3, 0])[example.labels]
    assert_same(found(case, replace(example, labels=renamed)), found(case, example), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kept", [0, None])
@pytest.mark.parametrize("rows", [1, 3])
@each_loss
def test_tiles_do_not_matter(case, rows, kept, monkeypatch):
    batches = [pair(layout("some single items")) for pair in PAIRINGS.values()]
    whole = [found(case, example) for example in batches]
    monkeypatch.setattr("isomargin.losses._engine.TILE_ENTRIES", 8 * rows)
    if kept is not None:
        monkeypatch.setattr("isomargin.losses._engine.KEPT_ENTRIES", kept)
    for example, expected in zip(batches, whole, strict=True):
        assert_same(found(case, example), expected, rtol=1e-9, atol=1e-12)


@each_loss
def test_listing_all_pairs_is_listing_none(case):
    example = general()
    everything = with_pairs(example, share=1.1)
    assert_same(found(case, everything), found(case, example), rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------------------------------- nothing to compare

NO_PAIRS = {
    "one row": list(dict(CASES)),
    "no rows": list(dict(CASES)),
    "all single": ["smooth_ap", "recall_at_k", "sup_ap", "triplet", "class_alignment"],
    "one class": ["triplet", "class_alignment"],
}


@pytest.mark.parametrize(("place", "name"), [(place, name) for place, names in NO_PAIRS.items() for name in names])
def test_loss_and_gradient_are_zero_where_nothing_can_be_compared(place, name):
    example = layout(place)
    value, gradient, _ = found((name, {}), example)
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(example.embeddings))


@each_loss
@pytest.mark.parametrize("with_references", [False, True])
def test_loss_and_gradient_are_zero_without_any_chosen_pair(case, with_references):
    example = general()
    example = against_references(example) if with_references else example
    empty = torch.zeros(0, dtype=torch.long)
    for chosen in ((empty,) * 4, (empty,) * 3):
        value, gradient, by_references = found(case, replace(example, chosen=chosen))
        assert value == 0
        assert torch.equal(gradient, torch.zeros_like(example.embeddings))
        if with_references:
            assert torch.equal(by_references, torch.zeros_like(example.references))


@each_loss
def test_loss_and_gradient_are_zero_without_any_reference(case):
    example = replace(
        general(), references=torch.zeros(0, 3, dtype=torch.float64), reference_labels=torch.zeros(0, dtype=torch.long)
    )
    value, gradient, by_references = found(case, example)
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(example.embeddings))
    assert by_references.shape == (0, 3)


# ------------------------------------------------------------------------------------------- numbers of every size


@every_case
def test_float32_is_as_good_as_it_can_be(case):
    example = general()
    expected_value, expected_gradient, _ = defined(case, example)
    value, gradient, _ = found(case, example, torch.float32)
    assert value.dtype == gradient.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected_value, rtol=1e-4, atol=1e-5)
    scale = float(expected_gradient.abs().max())
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-4, atol=1e-4 * scale + 1e-6)


def tiny_and_huge(example):
    scales = torch.tensor([1e-30, 1e30] * len(example.embeddings))[: len(example.embeddings), None]
    return replace(example, embeddings=example.embeddings.float() * scales)


def zeroed(example, rows):
    embeddings = example.embeddings.clone()
    embeddings[rows] = 0
    return replace(example, embeddings=embeddings)


EXTREMES = {
    "tiny and huge": lambda: tiny_and_huge(general()),
    "all tiny": lambda: replace(general(), embeddings=general().embeddings.float() * 1e-30),
    "all huge": lambda: replace(general(), embeddings=general().embeddings.float() * 1e30),
    "smaller than normal": lambda: replace(general(), embeddings=general().embeddings.float() * 1e-40),
    "a zero row": lambda: zeroed(general(), [2]),
    "nothing but zeros": lambda: zeroed(general(), slice(None)),
    "duplicates across classes": lambda: layout("duplicates across classes"),
    "duplicates in a class": lambda: layout("duplicates in a class"),
    "all in one place": lambda: replace(general(), embeddings=general().embeddings[:1].repeat(8, 1)),
    "opposite": lambda: replace(general(), embeddings=general().embeddings[:1] * torch.tensor([[1.0], [-1.0]] * 4)),
}


@every_case
def test_values_and_gradients_stay_finite_with_all_settings(case):
    for extreme in EXTREMES.values():
        assert_finite(found(case, against_references(extreme()), torch.float32))


@each_loss
def test_value_of_tiny_and_huge_rows_is_that_of_unit_rows(case):
    expected, _, _ = found(case, general())
    for extreme in ("tiny and huge", "all tiny", "all huge"):
        value, _, _ = found(case, EXTREMES[extreme](), torch.float32)
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-5)


def test_guard_against_half_products_sees_them():
    half = torch.ones(2, 2, dtype=torch.bfloat16)
    with NoHalfProducts(), pytest.raises(AssertionError, match="bfloat16"):
        half @ half
    with NoHalfProducts(), torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(AssertionError, match="bfloat16"):
        half.float() @ half.float()


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float16, False), (torch.bfloat16, True), (torch.float32, True)], ids=str
)
@each_loss
def test_half_precision_gives_what_its_cast_to_float32_gives(case, dtype, autocast):
    example = against_references(general())
    example = replace(example, embeddings=example.embeddings.to(dtype), references=example.references.to(dtype))
    expected = found(case, example, torch.float32)
    with NoHalfProducts(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value, *gradients = found(case, example, dtype)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected[0], rtol=1e-6, atol=1e-7)
    for gradient, whole in zip(gradients, expected[1:], strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, whole.to(dtype), rtol=1e-6 + torch.finfo(dtype).eps, atol=1e-6)


# --------------------------------------------------------------------------------- the definitions themselves, by hand

ROOT = math.sqrt(0.4)
# a = (1, 0), b = (0.6, 0.8), c = (0, 1): ab is positive with 0.6, ac negative with 0, bc negative with 0.8; c is alone.
BY_HAND = [
    ("tcm", {}, (0.9 - 0.6) + (0.8 - 0.5)),
    ("tcm", {"hard_only": False}, (0.9 - 0.6) + (0.8 - 0.5) + (0.0 - 0.5)),
    ("tcm", {"positive_weight": 2.0, "negative_weight": 10.0}, 2 * 0.3 + 10 * 0.3),
    ("tcm", {"positive_margin": 0.5, "negative_margin": 0.0}, 0.8 / 2),
    (
        "smooth_ap",
        {"temperature": 0.1},
        1 - (1 / (1 + 1 / (1 + math.exp(6))) + 1 / (1 + 1 / (1 + math.exp(-2)))) / 2,
    ),
    (
        "smooth_ap",  # a: itself 1, b 0.6 | c 0.  b: itself 1, a 0.6 | c 0.8
        {"temperature": 0.2, "include_query": True},
        1
        - (
            (1 + 1 / (1 + math.exp(2))) / (1 + 1 / (1 + math.exp(2)) + 1 / (1 + math.exp(5)))
            + (1 + 1 / (1 + math.exp(-2))) / (1 + 1 / (1 + math.exp(-2)) + 1 / (1 + math.exp(3)))
            + (1 + 1 / (1 + math.exp(2))) / (1 + 1 / (1 + math.exp(2)) + 1 / (1 + math.exp(1)))
            + (1 + 1 / (1 + math.exp(-2))) / (1 + 1 / (1 + math.exp(-2)) + 1 / (1 + math.exp(-1)))
        )
        / 4,
    ),
    (
        "recall_at_k",  # one positive: its rank is 1 + sigmoid(-6) for a and 1 + sigmoid(2) for b
        {"temperature": 0.1, "k": (1,), "rank_temperature": 1.0},
        1 - (1 / (1 + math.exp(1 / (1 + math.exp(6)))) + 1 / (1 + math.exp(1 / (1 + math.exp(-2))))) / 2,
    ),
    (
        "sup_ap",  # for b the negative is 0.2 ahead, beyond delta
        {"temperature": 0.1},
        1 - (1 / (1 + 1 / (1 + math.exp(6))) + 1 / (1 + 100 * 0.15 + 1.44)) / 2,
    ),
    (
        "sup_ap",
        {"temperature": 0.1, "form": "2021"},
        1 - (1 / (1 + 1 / (1 + math.exp(6))) + 1 / (1 + 100 * 0.2 + 1.44)) / 2,
    ),
    (
        "sup_ap",
        {"temperature": 0.1, "delta": 0.25},
        1 - (1 / (1 + 1 / (1 + math.exp(6))) + 1 / (1.5 + 1 / (1 + math.exp(-2)))) / 2,
    ),
    ("calibration", {}, 0.3 + 0.2),
    ("calibration", {"reduction": "all"}, 0.3 + 0.1),
    ("roadmap", {"sup_ap_weight": 0.0, "calibration_weight": 3.0}, 3 * (0.3 + 0.2)),
    ("contrastive", {}, 0.4 + (1 - ROOT) ** 2 / 2 / 2),
    ("contrastive", {"reduction": "violating"}, 0.4 + (1 - ROOT) ** 2 / 2),
    ("contrastive", {"reduction": "together"}, (0.4 + (1 - ROOT) ** 2 / 2) / 3),
    ("triplet", {}, 2 * (0.8 - 0.6) + 0.2),
    ("triplet", {"reduction": "all"}, (2 * (0.8 - 0.6) + 0.2) / 2),
    ("class_alignment", {}, 0.0),
]


@pytest.mark.parametrize(("name", "settings", "expected"), BY_HAND)
def test_three_rows_give_what_a_hand_computes(name, settings, expected):
    rows = torch.tensor([[1.0, 0.0], [1.2, 1.6], [0.0, 3.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    assert float(getattr(definitions, name)(rows, labels, **settings)) == pytest.approx(expected, abs=1e-12)
    assert float(make(name, **settings)(rows, labels)) == pytest.approx(expected, abs=1e-12)


def test_gradient_of_tcm_by_three_rows_is_what_a_hand_computes():
    example = Example(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0, 0, 1]))
    # (0.9 - ab) + (bc - 0.5): by a it is -b, by b it is c - a, by c it is b, each without its part along the row
    expected = torch.tensor([[0.0, -0.8], [-1.12, 0.84], [0.6, 0.0]], dtype=torch.float64)
    for run in (defined, found):
        torch.testing.assert_close(run(("tcm", {}), example)[1], expected, rtol=1e-12, atol=1e-12)


def test_class_alignment_of_two_classes_is_what_a_hand_computes():
    rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    # Both classes have the same negatives; their positives have 0.6 and 1, so the variance is 0.2 squared.
    for run in (definitions.class_alignment, make("class_alignment")):
        assert float(run(rows, labels)) == pytest.approx(50 * 0.04, abs=1e-12)
    negative = 0.3 * math.log((2 * math.exp(0) + 2 * math.exp(0.8 / 0.3)) / 4)
    scale_free = 50 * 0.04 / (0.8 - negative) ** 2
    assert float(definitions.class_alignment(rows, labels, scale_free=True)) == pytest.approx(scale_free, abs=1e-9)
    assert float(make("class_alignment", scale_free=True)(rows, labels)) == pytest.approx(scale_free, abs=1e-9)


def test_scale_free_alignment_has_nothing_from_squeezing_all_similarities():
    labels = torch.arange(4).repeat_interleave(5)
    noise = torch.randn(20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    spread = torch.tensor([0.1, 0.2, 0.3, 0.4])[labels][:, None]
    rows = torch.nn.functional.normalize(torch.eye(4, 8, dtype=torch.float64)[labels] + spread * noise)
    squeezed = torch.cat([rows, torch.full((20, 1), 3.0, dtype=torch.float64)], dim=1)  # s becomes (s + 9) / 10
    before, after = ({"temperature": 0.2}, {"temperature": 0.02})
    loss = [float(make("class_alignment", **each)(x, labels)) for each, x in ((before, rows), (after, squeezed))]
    free = [
        float(make("class_alignment", scale_free=True, **each)(x, labels))
        for each, x in ((before, rows), (after, squeezed))
    ]
    assert loss[1] == pytest.approx(loss[0] / 100, rel=1e-9)
    assert free[1] == pytest.approx(free[0], rel=1e-9)


# ------------------------------------------------------------------ against pytorch-metric-learning, where it is right


def assert_agree(ours, theirs, example, rtol=1e-7, atol=1e-9):
    results = []
    for loss in (ours, theirs):
        embeddings = example.embeddings.clone().requires_grad_()
        value = loss(embeddings, example.labels)
        value.backward()
        results.append((value.detach().double(), embeddings.grad))
    assert_same(*results, rtol=rtol, atol=atol)


in_places = pytest.mark.parametrize("place", ["shuffled", "some single items", "one class"])


@in_places
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.5, 2.0)])
def test_tcm_is_that_of_pytorch_metric_learning(place, weights):
    theirs = losses.ThresholdConsistentMarginLoss(weights[0], weights[1], margin_plus=0.8, margin_minus=0.3)
    ours = make("tcm", positive_weight=weights[0], negative_weight=weights[1], positive_margin=0.8, negative_margin=0.3)
    assert_agree(ours, theirs, layout(place))


@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_smooth_ap_with_the_query_is_that_of_pytorch_metric_learning(temperature):
    # As many classes as images in each: elsewhere that one takes the one number for the other. It sums in float32.
    ours, theirs = make("smooth_ap", temperature=temperature, include_query=True), losses.SmoothAPLoss(temperature)
    assert_agree(ours, theirs, layout("balanced sorted"), rtol=1e-5, atol=1e-6)


@in_places
@pytest.mark.parametrize("reduction", ["all", "violating"])
def test_calibration_is_pytorch_metric_learnings_contrastive_loss_of_similarities(place, reduction):
    theirs = losses.ContrastiveLoss(
        pos_margin=0.9,
        neg_margin=0.6,
        distance=distances.CosineSimilarity(),
        reducer=reducers.MeanReducer() if reduction == "all" else None,
    )
    assert_agree(make("calibration", reduction=reduction), theirs, layout(place))


@in_places
@pytest.mark.parametrize("reduction", ["all", "violating", "together"])
def test_contrastive_is_half_the_squares_of_pytorch_metric_learnings(place, reduction):
    linear = losses.ContrastiveLoss(
        pos_margin=0, neg_margin=1.3, distance=distances.LpDistance(), reducer=reducers.DoNothingReducer()
    )

    def theirs(embeddings, labels):
        sides = [torch.as_tensor(side["losses"]).flatten() ** 2 / 2 for side in linear(embeddings, labels).values()]
        if len(labels.unique()) == 1:  # then its other side is the number 0 and no pair
            sides = sides[:1]
        if reduction == "together":
            return torch.cat(sides).mean()
        return sum((side[side > 0] if reduction == "violating" else side).mean() for side in sides)

    assert_agree(make("contrastive", margin=1.3, reduction=reduction), theirs, layout(place), rtol=1e-6, atol=1e-8)


@in_places
@pytest.mark.parametrize("reduction", ["all", "violating"])
def test_triplet_is_that_of_pytorch_metric_learning(place, reduction):
    example = layout(place)

    def reducer():
        return reducers.MeanReducer() if reduction == "all" else None

    of_squares = losses.TripletMarginLoss(margin=0.5, distance=distances.LpDistance(power=2), reducer=reducer())
    of_cosines = losses.TripletMarginLoss(margin=0.25, distance=distances.CosineSimilarity(), reducer=reducer())
    ours = make("triplet", margin=0.5, reduction=reduction)
    assert_agree(ours, of_squares, example, rtol=1e-6, atol=1e-8)
    assert_agree(ours, lambda *batch: 2 * of_cosines(*batch), example)
