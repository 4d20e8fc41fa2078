"""The losses with proxies against their published formulas in plain loops, and against pytorch-metric-learning."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as library

from isomargin.core.errors import InputError
from isomargin.losses import (
    ArcFaceLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
    TCMLoss,
)
from isomargin.losses._batch import Batch

ALL = [ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCALoss, ProxyNCAPlusPlusLoss, ProxyAnchorLoss, SoftTripleLoss]
WEIGHING = [each for each in ALL if each is not ProxyAnchorLoss]
CENTERS = {SubCenterArcFaceLoss: {"sub_centers": 2}, SoftTripleLoss: {"centers_per_class": 3}}


def centers_of(loss):
    """The proxies of a loss as (classes, centres a class, dimensions)."""
    ((name, parameter),) = loss.named_parameters()
    rows = parameter if name.endswith("proxies") else parameter.T
    return rows.reshape(loss.num_classes, -1, loss.embedding_size)


def place(loss, centers):
    """Put proxies (classes, centres a class, dimensions) into a loss."""
    ((name, parameter),) = loss.named_parameters()
    rows = centers.reshape(-1, loss.embedding_size)
    parameter.data.copy_(rows if name.endswith("proxies") else rows.T)


def unit(vector):
    return vector / vector.square().sum().sqrt()


def softmax_loss(logits, own):
    return -torch.log(torch.exp(logits[own]) / sum(torch.exp(each) for each in logits))


def arcface_logits(cosines, own, scale=64.0, margin=0.5):
    logits = [scale * each for each in cosines]
    angle = torch.acos(cosines[own])
    shifted = torch.cos(angle + margin) if angle <= math.pi - margin else torch.cos(angle) - margin * math.sin(margin)
    logits[own] = scale * shifted
    return logits


def sample_loss(kind, vector, own, centers):
    """The loss of one embedding, as published."""
    vector = unit(vector)
    cosines = [[(vector * unit(center)).sum() for center in centers_of_class] for centers_of_class in centers]
    if kind in (ArcFaceLoss, SubCenterArcFaceLoss):
        return softmax_loss(arcface_logits([max(each) for each in cosines], own), own)
    if kind is SoftTripleLoss:
        similarities = []
        for each in cosines:
            shares = [torch.exp(cosine / 0.1) for cosine in each]
            similarities.append(sum(share * cosine for share, cosine in zip(shares, each, strict=True)) / sum(shares))
        similarities[own] = similarities[own] - 0.01
        return softmax_loss([20 * each for each in similarities], own)
    distances = [(3 * vector - 3 * unit(center[0])).square().sum() for center in centers]
    if kind is ProxyNCAPlusPlusLoss:
        return softmax_loss([-each for each in distances], own)
    others = [torch.exp(-distance) for label, distance in enumerate(distances) if label != own]
    return -torch.log(torch.exp(-distances[own]) / sum(others)) if others else vector.sum() * 0


def spread(centers):
    """SoftTriple's term of the centres."""
    classes, count = centers.shape[:2]
    total = 0.0
    for each in centers:
        for first in range(count):
            for second in range(first + 1, count):
                total = total + torch.sqrt(2.0 + 1e-5 - 2 * (unit(each[first]) * unit(each[second])).sum())
    return total / (classes * count * (count - 1))


def proxy_anchor(vectors, labels, centers, alpha=32.0, margin=0.1):
    pulled, pushed, present = 0.0, 0.0, 0
    for label, center in enumerate(centers):
        cosines = [(unit(vector) * unit(center[0])).sum() for vector in vectors]
        own = [torch.exp(-alpha * (each - margin)) for each, of in zip(cosines, labels, strict=True) if of == label]
        others = [torch.exp(alpha * (each + margin)) for each, of in zip(cosines, labels, strict=True) if of != label]
        if own:
            present += 1
            pulled = pulled + torch.log(1 + sum(own))
        if others:
            pushed = pushed + torch.log(1 + sum(others))
    return pulled / present + pushed / len(centers)


def definition(kind, vectors, labels, centers):
    """The loss as published, in loops; 0 without rows."""
    if not len(vectors):
        return vectors.sum() + 0 * centers.sum()
    if kind is ProxyAnchorLoss:
        return proxy_anchor(vectors, labels, centers)
    mean = sum(sample_loss(kind, vector, own, centers) for vector, own in zip(vectors, labels, strict=True)) / len(
        labels
    )
    return mean + 0.2 * spread(centers) if kind is SoftTripleLoss else mean


def drawn(kind, seed, rows=6, classes=4, size=5, published=False):
    """A loss, with fewer centres than published unless asked, embeddings and labels in float64."""
    generator = torch.Generator().manual_seed(seed)
    loss = kind(classes, size, **({} if published else CENTERS.get(kind, {}))).double()
    place(loss, torch.randn(centers_of(loss).shape, generator=generator, dtype=torch.float64))
    vectors = torch.randn(rows, size, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.randint(classes, (rows,), generator=generator)
    return loss, vectors, labels


def assert_agrees(loss, vectors, labels):
    parameters = [vectors, *loss.parameters()]
    value = loss(vectors, labels)
    expected = definition(type(loss), vectors, labels.tolist(), centers_of(loss))
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(value, parameters)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", ALL)
def test_value_and_gradients_are_those_of_the_definition(kind):
    assert_agrees(*drawn(kind, 0, rows=3, classes=3, published=True))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(ALL),
    labels=st.lists(st.integers(0, 4), max_size=8),
    classes=st.integers(1, 5),
    seed=st.integers(0, 2**20),
)
def test_every_layout_is_computed_as_defined(kind, labels, classes, seed):
    loss, vectors, _ = drawn(kind, seed, rows=len(labels), classes=classes)
    labels = torch.tensor(labels, dtype=torch.long) % classes
    assert_agrees(loss, vectors, labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(loss(vectors[order], labels[order]), loss(vectors, labels))


@pytest.mark.parametrize("kind", ALL)
def test_gradients_are_numerical_ones(kind):
    loss, vectors, labels = drawn(kind, 3, rows=3, classes=2, size=3)
    (parameter,) = loss.parameters()
    assert torch.autograd.gradcheck(lambda rows, _: loss(rows, labels), (vectors, parameter))


@pytest.mark.parametrize("kind", [ArcFaceLoss, SubCenterArcFaceLoss])
def test_margins_of_the_papers_appendix_are_those_of_its_formula(kind):
    """log(1 + Σ exp(λ(s_ij − s_ii + δ))) with s_ii = cos(m₁θ + m₂), where that angle is below π."""
    settings = {"scale": 8.0, "margin": 0.2, "angle_factor": 1.1, "cosine_margin": 0.15}
    loss = kind(4, 5, **settings).double()
    generator = torch.Generator().manual_seed(0)
    place(loss, torch.randn(centers_of(loss).shape, generator=generator, dtype=torch.float64))
    labels = torch.tensor([0, 1, 2, 3, 1])
    # Near the proxies of their classes, so that no angle exceeds π.
    vectors = centers_of(loss).detach()[labels, 0] + 0.5 * torch.randn(5, 5, generator=generator, dtype=torch.float64)
    vectors.requires_grad_()
    total = 0.0
    for vector, own in zip(vectors, labels.tolist(), strict=True):
        cosines = [max((unit(vector) * unit(each)).sum() for each in centers) for centers in centers_of(loss)]
        angle = 1.1 * torch.acos(cosines[own]) + 0.2
        assert angle < math.pi
        others = [cosine for label, cosine in enumerate(cosines) if label != own]
        total = total + torch.log(1 + sum(torch.exp(8 * (each - torch.cos(angle) + 0.15)) for each in others))
    parameters = [vectors, *loss.parameters()]
    value = loss(vectors, labels)
    torch.testing.assert_close(value, total / 5)
    wanted = torch.autograd.grad(total / 5, parameters)
    torch.testing.assert_close(torch.autograd.grad(value, parameters), wanted)


def test_an_angle_factor_lets_the_logit_fall_beyond_pi_without_a_step():
    loss = ArcFaceLoss(2, 2, margin=0.3, angle_factor=2.5, cosine_margin=0.1)
    angles = torch.linspace(0.01, math.pi - 0.01, 2000, dtype=torch.float64)
    logits = loss.with_margins(angles.cos())
    steps = logits[1:] - logits[:-1]
    assert steps.max() < 1e-6
    assert steps.min() > -2.5 * 2 * math.pi / 2000
    torch.testing.assert_close(logits[0], torch.cos(torch.tensor(0.325, dtype=torch.float64)) - 0.1)


def test_arcface_beyond_pi_minus_margin_is_the_authors():
    loss = ArcFaceLoss(2, 2).double()
    place(loss, torch.eye(2, dtype=torch.float64)[:, None])
    angles = torch.linspace(math.pi - 0.45, math.pi - 0.01, 5, dtype=torch.float64)
    vectors = torch.stack([angles.cos(), -angles.sin()], dim=1)
    for each in vectors.split(1):
        assert_agrees(loss, each.clone().requires_grad_(), torch.tensor([0]))


@pytest.mark.parametrize("kind", ALL)
def test_extreme_inputs_stay_finite(kind):
    torch.manual_seed(0)
    loss = kind(3, 4)
    nearest = centers_of(loss)[:, 0].detach()
    one = torch.randn(3, 4)
    meeting = [nearest, -nearest, 1e-3 * nearest, nearest.repeat(2, 1)[1:4], nearest * (1 + 1e-6 * one)]
    for rows in [0 * one, 1e30 * one, 1e-30 * one, *meeting, torch.cat([0 * one[:1], 1e30 * one[1:]]), one.half()]:
        rows = rows.clone().requires_grad_()
        loss.zero_grad()
        value = loss(rows, torch.arange(3))
        value.backward()
        assert value.isfinite()
        assert value.dtype == torch.float32
        assert rows.grad.isfinite().all()
        assert all(each.grad.isfinite().all() for each in loss.parameters())


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e30, 3e38])
@pytest.mark.parametrize("kind", ALL)
def test_the_proxies_length_does_not_matter_and_gradients_stay_finite(kind, factor):
    loss, rows = kind(3, 4), torch.randn(3, 4).requires_grad_()
    proxies = torch.eye(4)[:3, None].expand_as(centers_of(loss))
    place(loss, proxies)
    expected = loss(rows, torch.arange(3))
    place(loss, factor * proxies)
    value = loss(rows, torch.arange(3))
    value.backward()
    assert value.isfinite()
    if factor:
        torch.testing.assert_close(value, expected)
    assert rows.grad.isfinite().all()
    assert all(each.grad.isfinite().all() for each in loss.parameters())


@pytest.mark.parametrize("kind", ALL)
def test_a_batch_without_rows_gives_zero_and_gradients(kind):
    loss = kind(3, 4)
    rows = torch.zeros(0, 4, requires_grad=True)
    value = loss(rows, torch.zeros(0, dtype=torch.long))
    value.backward()
    assert value == 0
    assert all((each.grad == 0).all() for each in loss.parameters())


@pytest.mark.parametrize("kind", ALL)
def test_float64_embeddings_leave_the_proxies_as_they_are(kind):
    loss = kind(3, 4)
    value = loss(torch.randn(2, 4, dtype=torch.float64), torch.tensor([0, 1]))
    assert {value.dtype, *(each.dtype for each in loss.parameters())} == {torch.float32}


@pytest.mark.parametrize("kind", ALL)
def test_autocast_and_half_precision_change_little(kind):
    torch.manual_seed(0)
    loss, rows, labels = kind(3, 4), torch.randn(5, 4).half(), torch.tensor([0, 1, 2, 0, 1], dtype=torch.uint8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(rows, labels)
    torch.testing.assert_close(value, loss(rows.float(), labels), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("wrong", [-1, 3, 255])
def test_labels_outside_the_classes_are_named(kind, wrong):
    with pytest.raises(InputError, match=f"labels holds {wrong}: labels from 0 to 2 are needed .* of {kind.__name__}"):
        kind(3, 4)(torch.randn(2, 4), torch.tensor([0, wrong]))


@pytest.mark.parametrize("kind", ALL)
def test_references_and_miners_are_refused(kind):
    rows, labels = torch.randn(2, 4), torch.tensor([0, 1])
    for loss in (kind(3, 4), kind(3, 4) + TCMLoss()):
        with pytest.raises(InputError, match=f"{kind.__name__} compares .* its proxies: leave ref_emb out"):
            loss(rows, labels, ref_emb=rows, ref_labels=labels)
        with pytest.raises(InputError, match="leave indices_tuple out"):
            loss(rows, labels, (torch.tensor([0]), torch.tensor([1]), torch.tensor([0]), torch.tensor([1])))


@pytest.mark.parametrize("kind", ALL)
def test_unfit_embeddings_and_proxies_are_refused(kind):
    with pytest.raises(InputError, match=r"embeddings has 5 dimensions, the proxies of .* have 4"):
        kind(3, 4)(torch.randn(2, 5), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"are torch\.float16: float32 is needed"):
        kind(3, 4).half()(torch.randn(2, 4), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=r"embeddings is on meta, the proxies of .* on cpu"):
        kind(3, 4).compute(Batch(torch.randn(2, 4, device="meta"), torch.tensor([0, 1])))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ArcFaceLoss, {"margin": 28.6}),
        (ArcFaceLoss, {"scale": 0}),
        (SubCenterArcFaceLoss, {"sub_centers": 0}),
        (ProxyNCALoss, {"scale": -1}),
        (ProxyNCAPlusPlusLoss, {"temperature": 0}),
        (ProxyAnchorLoss, {"alpha": math.nan}),
        (SoftTripleLoss, {"tau": -1}),
        *((kind, {"num_classes": 0}) for kind in ALL),
        *((kind, {"embedding_size": 2.5}) for kind in ALL),
        *((kind, {"learning_rate_factor": 0}) for kind in ALL),
    ],
)
def test_wrong_settings_are_named(kind, wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"{name} is .* needed"):
        kind(**{"num_classes": 3, "embedding_size": 4, **wrong})


@pytest.mark.parametrize("kind", WEIGHING)
def test_weights_weigh_the_mean_over_samples(kind):
    loss, vectors, labels = drawn(kind, 5)
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.0, 3.0])
    value, _ = loss.compute(Batch(vectors, labels, weights=weights))
    centers = centers_of(loss)
    each = [sample_loss(kind, row, own, centers) for row, own in zip(vectors, labels.tolist(), strict=True)]
    expected = sum(weight * one for weight, one in zip(weights.tolist(), each, strict=True)) / len(each)
    if kind is SoftTripleLoss:
        expected = expected + 0.2 * spread(centers)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    assert loss.weighs_samples


def test_proxy_anchor_refuses_weights():
    loss, vectors, labels = drawn(ProxyAnchorLoss, 0)
    assert not loss.weighs_samples
    with pytest.raises(InputError, match="ProxyAnchorLoss cannot weight its samples"):
        loss.compute(Batch(vectors, labels, weights=torch.ones(6)))


@pytest.mark.parametrize(("kind", "factor"), list(zip(ALL, [10.0, 10.0, 1.0, 1e5, 100.0, 100.0], strict=True)))
def test_parameter_groups_have_the_published_rates(kind, factor):
    loss = kind(3, 4)
    (group,) = loss.parameter_groups(1e-3)
    eps = {"eps": 1.0} if kind is ProxyNCAPlusPlusLoss else {}  # the authors' Adam
    assert group == {"params": list(loss.parameters()), "lr": 1e-3 * factor, **eps}
    (group,) = (kind(3, 4, learning_rate_factor=2.0) + TCMLoss()).parameter_groups(1e-3)
    assert group["lr"] == 2e-3


@pytest.mark.parametrize("kind", ALL)
def test_a_seed_gives_the_same_proxies_and_copies_are_equal(kind):
    losses = []
    for _ in range(2):
        torch.manual_seed(7)
        losses.append(kind(6, 4))
    losses += [copy.deepcopy(losses[0]), pickle.loads(pickle.dumps(losses[0]))]
    rows, labels = torch.randn(3, 4), torch.tensor([0, 4, 5])
    assert len({float(each(rows, labels).detach()) for each in losses}) == 1
    assert len(centers_of(losses[0]).unique()) > 20


@pytest.mark.parametrize("kind", ALL)
def test_training_brings_embeddings_to_their_proxies(kind):
    torch.manual_seed(0)
    loss, rows = kind(3, 4, learning_rate_factor=1.0), torch.randn(6, 4).requires_grad_()
    labels = torch.arange(6) % 3
    optimiser = torch.optim.Adam([{"params": [rows]}, *loss.parameter_groups(0.1)], lr=0.1)
    before = float(loss(rows, labels).detach())
    for _ in range(20):
        optimiser.zero_grad()
        value = loss(rows, labels)
        value.backward()
        optimiser.step()
    assert float(value.detach()) < before
    similarities = torch.nn.functional.cosine_similarity(rows[:, None, None], centers_of(loss)[None], dim=3).amax(dim=2)
    assert (similarities.argmax(dim=1) == labels).all()


def of_library(kind, loss):
    """The library's loss with the same proxies, where it has the same formula."""
    classes, size = loss.num_classes, loss.embedding_size
    theirs = {
        ArcFaceLoss: lambda: library.ArcFaceLoss(classes, size, margin=math.degrees(0.5)),
        SubCenterArcFaceLoss: lambda: library.SubCenterArcFaceLoss(
            num_classes=classes, embedding_size=size, margin=math.degrees(0.5), sub_centers=2
        ),
        ProxyNCAPlusPlusLoss: lambda: library.ProxyNCALoss(classes, size, softmax_scale=9),
        ProxyAnchorLoss: lambda: library.ProxyAnchorLoss(classes, size),
        SoftTripleLoss: lambda: library.SoftTripleLoss(classes, size, centers_per_class=3),
    }[kind]().double()
    (parameter,), (own,) = theirs.parameters(), loss.parameters()
    parameter.data.copy_(own if parameter.shape == own.shape else own.T)
    return theirs


@pytest.mark.parametrize("kind", [ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCAPlusPlusLoss, ProxyAnchorLoss])
def test_equals_pytorch_metric_learning_away_from_its_singular_points(kind):
    loss, vectors, labels = drawn(kind, 11)
    torch.testing.assert_close(loss(vectors, labels), of_library(kind, loss)(vectors, labels), rtol=1e-9, atol=1e-9)


def test_soft_triple_equals_pytorch_metric_learning_without_the_term_of_the_centres():
    loss, vectors, labels = drawn(SoftTripleLoss, 11)
    theirs = of_library(SoftTripleLoss, loss)(vectors, labels)
    torch.testing.assert_close(loss(vectors, labels) - 0.2 * spread(centers_of(loss)), theirs, rtol=1e-9, atol=1e-9)
    loss.tau = 0.0
    torch.testing.assert_close(loss(vectors, labels), theirs, rtol=1e-9, atol=1e-9)


def test_soft_triple_starts_from_the_library_s_centres():
    torch.manual_seed(3)
    ours = SoftTripleLoss(4, 5, centers_per_class=3)
    torch.manual_seed(3)
    theirs = library.SoftTripleLoss(4, 5, centers_per_class=3)
    assert torch.equal(ours.proxies, theirs.fc.T)


def test_soft_triple_with_one_centre_has_no_term_of_the_centres():
    values = []
    for tau in (0.0, 0.2):
        torch.manual_seed(0)
        loss = SoftTripleLoss(3, 4, centers_per_class=1, tau=tau)
        values.append(float(loss(torch.eye(4)[:3], torch.arange(3)).detach()))
    assert values[0] == values[1]


def test_pytorch_metric_learnings_proxy_nca_drops_samples_whose_probability_underflows():
    rows, proxies, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2), torch.tensor([1, 1])
    theirs = library.ProxyNCALoss(2, 2, softmax_scale=100)
    ours = ProxyNCAPlusPlusLoss(2, 2, temperature=1 / 100)
    theirs.proxies.data, ours.proxies.data = proxies, proxies.clone()
    assert float(theirs(rows, labels).detach()) == 0.0  # the first row, at the wrong proxy, is left out
    torch.testing.assert_close(ours(rows, labels), torch.tensor(100.0))  # (200 + 0) / 2


def test_pytorch_metric_learnings_proxy_nca_has_the_own_proxy_in_its_denominator():
    loss, vectors, labels = drawn(ProxyNCALoss, 11)
    probability = torch.exp(-of_library(ProxyNCAPlusPlusLoss, loss)(vectors[:1], labels[:1]))
    torch.testing.assert_close(loss(vectors[:1], labels[:1]), -torch.log(probability / (1 - probability)))


def test_pytorch_metric_learnings_arcface_has_no_gradient_where_an_embedding_meets_its_proxy():
    theirs = library.ArcFaceLoss(2, 2)
    theirs.W.data = torch.eye(2)
    rows = torch.eye(2, requires_grad=True)
    theirs(rows, torch.arange(2)).backward()
    assert rows.grad.isnan().any()


@pytest.mark.parametrize("make", ALL)
def test_many_classes_and_small_integer_labels_fit_together(make):
    loss = make(300, 4)
    embeddings = torch.randn(3, 4)
    assert loss(embeddings, torch.tensor([0, 49, 255], dtype=torch.uint8)) == loss(
        embeddings, torch.tensor([0, 49, 255])
    )


@pytest.mark.parametrize("make", ALL)
def test_replicas_of_data_parallel_can_be_called(make):
    loss = make(3, 4)
    replica = loss._replicate_for_data_parallel()
    for name, module in loss.named_children():  # what torch.nn.parallel.replicate does, without a second device
        copy = module._replicate_for_data_parallel()
        for key, parameter in module.named_parameters(recurse=False):
            setattr(copy, key, parameter.clone())
        setattr(replica, name, copy)
    for key, parameter in loss.named_parameters(recurse=False):
        setattr(replica, key, parameter.clone())
    batch = torch.eye(4)[:3], torch.tensor([0, 1, 2])
    assert replica(*batch) == loss(*batch)


@pytest.mark.parametrize("make", ALL)
def test_settings_are_shown(make):
    assert "num_classes=3, embedding_size=4" in repr(make(3, 4))
