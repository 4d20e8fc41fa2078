"""Sums of losses: their values and gradients, what they tell, and that pairs are compared once for all of them."""

import pytest
import torch
from pytorch_metric_learning import losses as library

from isomargin.core.errors import InputError
from isomargin.losses import (
    ClassAlignmentLoss,
    CrossBatchMemory,
    ProxyAnchorLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SmoothAPLoss,
    TCMLoss,
    TripletLoss,
    WeightedSum,
    _engine,
    make_loss,
    share,
)
from isomargin.training.large_batch import large_batch_backward


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(12) % 4
    centres = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return (centres[labels] + torch.randn(12, 6, generator=generator, dtype=torch.float64)).requires_grad_(), labels


def value_and_gradient(loss, embeddings, labels):
    embeddings.grad = None
    value = loss(embeddings, labels)
    value.backward()
    return value.detach(), embeddings.grad.clone()


def test_a_sum_is_the_weighted_sum_of_values_and_of_gradients(batch):
    parts = [SmoothAPLoss(0.1), TCMLoss(0.9, 0.2), ClassAlignmentLoss(), TripletLoss(), RecallAtKLoss(simix=True)]
    weights = [1.0, 0.5, 0.1, 2.0, 0.25]
    alone = [value_and_gradient(part, *batch) for part in parts]
    parts[-1].calls.zero_()  # so that it draws the same mixtures again
    loss = parts[0] + 0.5 * parts[1] + parts[2] * 0.1 + 2 * parts[3] + 0.25 * parts[4]
    value, gradient = value_and_gradient(loss, *batch)
    assert loss.weights == weights
    torch.testing.assert_close(value, sum(w * v for w, (v, _) in zip(weights, alone, strict=True)))
    torch.testing.assert_close(gradient, sum(w * g for w, (_, g) in zip(weights, alone, strict=True)))
    torch.testing.assert_close(
        [loss.values[name] for name in ("smooth_ap", "tcm", "class_alignment", "triplet", "recall_at_k")],
        [v for v, _ in alone],
    )


def test_the_pairs_are_compared_once_for_all_parts(batch, monkeypatch):
    passes = []
    real = _engine._PairLosses.apply
    monkeypatch.setattr(_engine._PairLosses, "apply", lambda *arguments: passes.append(1) or real(*arguments))
    loss = SmoothAPLoss() + TCMLoss() + RoadmapLoss() + ClassAlignmentLoss()
    loss(*batch).backward()
    assert len(loss.leaves()) == 5
    assert len(passes) == 1


def test_values_hold_each_part_and_what_it_tells_without_gradient(batch):
    loss = SmoothAPLoss() + 0.5 * TCMLoss() + TCMLoss(0.8, 0.1)
    total = loss(*batch)
    assert set(loss.values) == {
        *("loss", "smooth_ap", "tcm", "tcm_2"),
        *("tcm.hard_positives", "tcm.hard_negatives", "tcm_2.hard_positives", "tcm_2.hard_negatives"),
    }
    assert not any(value.requires_grad for value in loss.values.values())
    assert loss.values["loss"] == total.detach()


@pytest.mark.parametrize("theirs_first", [True, False])
def test_losses_of_pytorch_metric_learning_can_be_parts(batch, theirs_first):
    theirs, ours = library.MultiSimilarityLoss(), TCMLoss()
    loss = theirs + 0.5 * ours if theirs_first else 0.5 * ours + theirs
    expected = value_and_gradient(theirs, *batch), value_and_gradient(ours, *batch)
    value, gradient = value_and_gradient(loss, *batch)
    torch.testing.assert_close(value, expected[0][0] + 0.5 * expected[1][0])
    torch.testing.assert_close(gradient, expected[0][1] + 0.5 * expected[1][1])
    assert "MultiSimilarityLoss" in loss.values


def test_any_module_called_with_embeddings_and_labels_can_be_a_part(batch):
    class Spread(torch.nn.Module):
        def forward(self, embeddings, labels):
            return embeddings.std()

    loss = SmoothAPLoss() + Spread()
    assert loss(*batch) == SmoothAPLoss()(*batch) + batch[0].std()


def test_parts_of_parts_are_one_list_and_weights_multiply():
    loss = 2 * (SmoothAPLoss() + 0.5 * (TCMLoss() + 3 * TripletLoss()))
    assert isinstance(loss, WeightedSum)
    assert loss.weights == [2.0, 1.0, 3.0]
    assert loss.names == ["smooth_ap", "tcm", "triplet"]
    assert "2 * smooth_ap + 1 * tcm + 3 * triplet" in repr(loss)


def test_the_parts_parameters_and_their_rates_are_the_sums(batch):
    proxies = ProxyAnchorLoss(4, 6).double()
    loss = proxies + TCMLoss() + library.ArcFaceLoss(4, 6).double()
    groups = loss.parameter_groups(1e-3)
    assert [group["lr"] for group in groups] == [0.1, 1e-3]
    assert {id(each) for group in groups for each in group["params"]} == {id(each) for each in loss.parameters()}
    loss(*batch).backward()
    assert all(each.grad is not None for each in loss.parameters())


def test_state_is_saved_and_loaded(batch):
    loss, other = (ProxyAnchorLoss(4, 6).double() + RecallAtKLoss(simix=True) for _ in range(2))
    loss(*batch)
    other.load_state_dict(loss.state_dict())
    assert loss(*batch) == other(*batch)


def test_a_check_for_finite_embeddings_outlives_addition():
    loss = 0.5 * (SmoothAPLoss() + RoadmapLoss(check_finite=True))
    with pytest.raises(ValueError, match=r"1 row \(1\)"):
        loss(torch.tensor([[1.0, 0.0], [float("nan"), 0.0]]), torch.tensor([0, 0]))


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), "2", True, None])
def test_a_weight_that_is_no_number_of_at_least_0_is_refused(weight):
    with pytest.raises(ValueError, match="needed"):
        weight * TCMLoss()


@pytest.mark.parametrize("other", [1, "tcm", torch.tensor(1.0), None])
def test_what_is_no_loss_cannot_be_added(other):
    with pytest.raises((ValueError, TypeError)):
        TCMLoss() + other


def test_a_list_in_a_recipe_is_a_sum(batch):
    made = make_loss(["smooth_ap", {"name": "tcm", "weight": 0.5, "negative_margin": 0.2}])
    by_hand = SmoothAPLoss() + 0.5 * TCMLoss(negative_margin=0.2)
    assert made(*batch) == by_hand(*batch)


def test_a_named_sum_stays_one_part_and_tells_of_its_own(batch):
    loss = RoadmapLoss() + TCMLoss()
    total = loss(*batch)
    assert {"roadmap", "roadmap.sup_ap", "roadmap.calibration", "tcm", "tcm.hard_positives"} <= set(loss.values)
    torch.testing.assert_close(loss.values["roadmap"], RoadmapLoss()(*batch).detach())
    torch.testing.assert_close(total, loss.values["roadmap"] + loss.values["tcm"], check_dtype=False)


def test_the_parts_keep_their_own_values_too(batch):
    consistency = TCMLoss()
    loss = SmoothAPLoss() + consistency
    loss(*batch)
    assert consistency.values["hard_positives"] == loss.values["tcm.hard_positives"]
    assert consistency.values["loss"] == loss.values["tcm"]


def test_the_same_loss_may_be_there_twice(batch):
    one = ProxyAnchorLoss(4, 6).double() + TCMLoss()
    value, gradient = value_and_gradient(one, *batch)
    twice = one + 2 * one
    assert [len(group["params"]) for group in twice.parameter_groups(1e-3)] == [1]
    torch.testing.assert_close(value_and_gradient(twice, *batch), (3 * value, 3 * gradient))


def test_python_can_sum_losses(batch):
    losses = [SmoothAPLoss(), TCMLoss()]
    assert sum(losses)(*batch) == (losses[0] + losses[1])(*batch)


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, -1.0], [1.0, "2"], [1.0, 2.0, 3.0]])
def test_parts_and_weights_must_fit(weights):
    with pytest.raises(ValueError, match="needed"):
        WeightedSum([SmoothAPLoss(), TCMLoss()], weights)


def test_a_part_that_takes_no_references_says_so(batch):
    memory = CrossBatchMemory(TCMLoss(), embedding_size=6)
    with pytest.raises(ValueError, match="CrossBatchMemory takes no ref_emb"):
        (SmoothAPLoss() + memory)(*batch, ref_emb=batch[0], ref_labels=batch[1])


def lengths(batch, *parts):
    return [value_and_gradient(part, *batch)[1].norm() for part in parts]


def test_a_share_makes_the_gradient_that_long_in_every_batch_whatever_the_scale(batch):
    base, regularizer = SmoothAPLoss(0.1), ClassAlignmentLoss()
    of_base, own = (value_and_gradient(part, *batch)[1] for part in (base, regularizer))
    for factor in (1.0, 1e-3, 1e4):
        loss = factor * base + share(ClassAlignmentLoss(50 * factor**2), 0.3)
        value, gradient = value_and_gradient(loss, *batch)
        expected = factor * of_base + 0.3 * factor * of_base.norm() / own.norm() * own
        torch.testing.assert_close(gradient, expected)
        weight = loss.values["class_alignment.weight"]
        torch.testing.assert_close(value, factor * loss.values["smooth_ap"] + weight * loss.values["class_alignment"])


def test_every_share_is_of_the_parts_that_have_a_weight(batch):
    base, first, second = SmoothAPLoss(0.1), TCMLoss(0.9, 0.2), ClassAlignmentLoss()
    loss = 2 * (base + share(first, 0.5) + share(second, 0.1))
    loss(*batch)
    long, one, two = lengths(batch, base, first, second)
    torch.testing.assert_close(loss.values["tcm.weight"], 2 * 0.5 * long / one)
    torch.testing.assert_close(loss.values["class_alignment.weight"], 2 * 0.1 * long / two)
    assert (2 * share(first, 0.25)).shares == [0.5]


def test_without_gradients_the_last_weight_stays(batch):
    embeddings, labels = batch
    loss = make_loss(["smooth_ap", {"name": "class_alignment", "share": 0.3}])
    loss(embeddings, labels)
    weight = loss.values["class_alignment.weight"]
    assert weight > 0
    with torch.no_grad():
        loss(embeddings[:8], labels[:8])
    assert loss.values["class_alignment.weight"] == weight


def test_a_regularizer_that_is_satisfied_takes_no_share(batch):
    embeddings, _ = batch
    batch = (embeddings, torch.arange(12) // 6)
    with torch.no_grad():  # friends on one point, strangers at a right angle
        embeddings.copy_(torch.eye(6, dtype=torch.float64)[batch[1]])
    loss = SmoothAPLoss() + share(TCMLoss(0.9, 0.5), 0.3)
    value, gradient = value_and_gradient(loss, *batch)
    expected, of_base = value_and_gradient(SmoothAPLoss(), *batch)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, of_base)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ([{"name": "tcm", "share": 0.3}], "at least one without a share is needed"),
        (["smooth_ap", {"name": "tcm", "share": -1}], "share is -1"),
        (["smooth_ap", {"name": "tcm", "share": 0.3, "weight": 2}], "a weight and a share"),
        (["smooth_ap", {"name": "roadmap", "share": 0.3}], "one loss"),
    ],
    ids=str,
)
def test_shares_that_mean_nothing_are_refused(batch, config, sentence):
    with pytest.raises(InputError, match=sentence):
        make_loss(config)(*batch)


@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_a_share_in_chunks_gives_the_gradient_of_the_whole_batch(batch, chunk):
    images, labels = batch[0].detach(), batch[1]
    model = torch.nn.Linear(6, 4).double()

    def gradients(step):
        model.zero_grad()
        loss = SmoothAPLoss(0.1) + share(TCMLoss(0.9, 0.2), 0.3)
        value = step(loss)
        return value.detach(), model.weight.grad.clone(), loss.values["tcm.weight"]

    def whole(loss):
        value = loss(model(images), labels)
        value.backward()
        return value

    expected = gradients(whole)
    assert expected[2] > 0
    in_chunks = gradients(lambda loss: large_batch_backward(model, images, labels, loss, chunk))
    torch.testing.assert_close(in_chunks, expected)


@pytest.mark.parametrize("factor", [1.0, 1e-6])  # whose derivatives are 0 in half precision
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_share_of_half_precision_is_that_of_its_cast_to_float32(batch, dtype, factor):
    half = batch[0].detach().to(dtype)
    values, gradients = [], []
    for embeddings in (half.clone(), half.float()):
        loss = factor * SmoothAPLoss(0.1) + share(TCMLoss(0.9, 0.2), 0.3)
        value, gradient = value_and_gradient(loss, embeddings.requires_grad_(), batch[1])
        assert gradient.dtype == embeddings.dtype
        values.append((value, loss.values["tcm.weight"]))
        gradients.append(gradient.to(dtype))
    assert values[0][1] > 0
    torch.testing.assert_close(*values, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(*gradients, rtol=1e-6 + torch.finfo(dtype).eps, atol=1e-6 * factor)
