"""OneFace's penalty: thresholds and weights by hand, the queue, and that the order of rows plays no part."""

import math

import pytest
import torch

from isomargin.losses import ArcFaceLoss, SmoothAPLoss, ThresholdPenaltyLoss
from isomargin.losses.threshold_penalty import divide


def make_batch(seed=0, rows=24):
    """Two domains: one of classes that are near to each other, and one of classes that are far from each other."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 8
    centres = torch.zeros(8, 10, dtype=torch.float64)
    centres[:4, 0] = 3  # shared by the classes of the first domain
    centres[:4, 1] += torch.arange(4)
    centres[4:, 6:] = 2 * torch.eye(4, dtype=torch.float64)
    centres[4:, 5] = 1
    noise = 0.3 * torch.randn(rows, 10, generator=generator, dtype=torch.float64)
    return (centres[labels] + noise).requires_grad_(), labels


def by_hand(embeddings, labels, domain, far, floor, queue=None, queue_labels=None):
    """Weights from sorted lists of similarities."""
    unit = (embeddings / embeddings.norm(dim=1, keepdim=True)).detach()
    known = unit if queue is None else torch.cat([unit, queue])
    known_labels = labels if queue is None else torch.cat([labels, queue_labels])

    def threshold(rows):
        similarities = sorted(
            (float(unit[i] @ known[j]) for i in rows for j in range(len(known)) if labels[i] != known_labels[j]),
            reverse=True,
        )
        return similarities[max(math.ceil(round(far * len(similarities), 6)), 1) - 1]

    whole = threshold(range(len(unit)))
    of_domain = {k: threshold([i for i in range(len(unit)) if domain[i] == k]) for k in set(domain.tolist())}
    return [max(of_domain[int(k)], floor) / max(whole, floor) for k in domain], whole


def weighted_by_hand(embeddings, labels, weights):
    """Smooth-AP's queries one by one: each alone against all others."""
    losses = []
    for row in range(len(labels)):
        others = [i for i in range(len(labels)) if i != row]
        losses.append(
            SmoothAPLoss(0.1)(embeddings[[row]], labels[[row]], ref_emb=embeddings[others], ref_labels=labels[others])
        )
    return sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / len(losses)


def test_each_samples_loss_is_weighted_by_its_domains_threshold_over_the_batchs():
    embeddings, labels = make_batch()
    loss = ThresholdPenaltyLoss({"name": "smooth_ap", "temperature": 0.1}, domains=2, far=0.05)
    value = loss(embeddings, labels)
    (gradient,) = torch.autograd.grad(value, embeddings)
    domain = divide(torch.nn.functional.normalize(embeddings.detach()), 2)
    weights, threshold = by_hand(embeddings, labels, domain, 0.05, 0.1)
    assert max(weights) > 1.0 > min(weights)
    assert float(loss.values["threshold"]) == pytest.approx(threshold)
    expected = weighted_by_hand(embeddings, labels, weights)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, embeddings)[0])


def test_the_queue_adds_negatives_of_earlier_batches_and_drops_the_oldest():
    loss = ThresholdPenaltyLoss({"name": "smooth_ap", "temperature": 0.1}, domains=2, far=0.05, queue_size=30)
    first, second, third = (make_batch(seed) for seed in range(3))
    for batch in (first, second):
        loss(*batch)
    assert len(loss.queue) == 30
    unit = [torch.nn.functional.normalize(embeddings.detach()) for embeddings, _ in (first, second)]
    queue, queue_labels = torch.cat([unit[1], unit[0][:6]]), torch.cat([second[1], first[1][:6]])
    value = loss(*third)
    domain = divide(torch.nn.functional.normalize(third[0].detach()), 2)
    weights, _ = by_hand(*third, domain, 0.05, 0.1, queue, queue_labels)
    torch.testing.assert_close(value, weighted_by_hand(*third, weights))


def test_the_queue_stays_as_it_is_in_evaluation_and_is_saved_and_loaded():
    loss, other = ThresholdPenaltyLoss(), ThresholdPenaltyLoss()
    loss(*make_batch())
    kept = loss.queue.clone()
    loss.eval()
    value = loss(*make_batch(1))
    assert torch.equal(loss.queue, kept)
    other.load_state_dict(loss.state_dict())
    assert other.eval()(*make_batch(1)) == value


def test_the_order_of_rows_plays_no_part():
    embeddings, labels = make_batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        ThresholdPenaltyLoss(domains=3)(embeddings, labels),
        ThresholdPenaltyLoss(domains=3)(embeddings[order], labels[order]),
    )


def test_one_domain_is_the_base_loss():
    batch = make_batch()
    torch.testing.assert_close(ThresholdPenaltyLoss(domains=1)(*batch), SmoothAPLoss()(*batch))


def test_a_base_with_proxies_is_weighted_too():
    embeddings, labels = make_batch()
    base = ArcFaceLoss(8, 10).double()
    loss = ThresholdPenaltyLoss(base, domains=2, far=0.05)
    value = loss(embeddings, labels)
    domain = divide(torch.nn.functional.normalize(embeddings.detach()), 2)
    weights, _ = by_hand(embeddings, labels, domain, 0.05, 0.1)
    each = torch.stack([base(embeddings[[i]], labels[[i]]) for i in range(len(labels))])
    torch.testing.assert_close(value, (torch.tensor(weights) * each).mean())
    assert [group["lr"] for group in loss.parameter_groups(1e-3)] == [1e-2]


def test_thresholds_below_the_floor_count_as_it():
    embeddings, labels = torch.eye(6).repeat(2, 1).requires_grad_(), torch.arange(12) % 6
    assert ThresholdPenaltyLoss(domains=3)(embeddings, labels) == SmoothAPLoss()(embeddings, labels)


def test_another_number_of_dimensions_than_the_queue_has_is_refused():
    loss = ThresholdPenaltyLoss()
    loss(*make_batch())
    with pytest.raises(ValueError, match="3 dimensions, those of earlier calls had 10"):
        loss(torch.eye(3), torch.arange(3))


@pytest.mark.parametrize(
    ("labels", "rows"), [([], 0), ([1], 1), ([1, 1, 1], 3), ([1, 2, 3], 3)], ids=["none", "one", "one class", "singles"]
)
def test_where_nothing_can_be_compared_the_loss_is_0_and_has_gradients(labels, rows):
    embeddings = torch.eye(4)[:rows].requires_grad_()
    value = ThresholdPenaltyLoss()(embeddings, torch.tensor(labels, dtype=torch.int64))
    value.backward()
    assert value == 0
    assert (embeddings.grad == 0).all()


def test_a_rate_of_7_percent_accepts_7_of_100_negatives():
    assert ThresholdPenaltyLoss(far=0.07)._accepted(100) == 7


def test_the_base_losss_check_for_finite_embeddings_is_made():
    loss = ThresholdPenaltyLoss(SmoothAPLoss(check_finite=True))
    with pytest.raises(ValueError, match="NaN"):
        loss(torch.tensor([[float("nan")], [1.0]]), torch.tensor([0, 0]))


def test_a_batch_with_nan_leaves_nothing_in_the_queue(recwarn):
    loss = ThresholdPenaltyLoss()
    embeddings, labels = make_batch()
    spoiled = embeddings.detach().clone()
    spoiled[3] = float("nan")
    loss(spoiled, labels)
    assert loss.queue.isfinite().all()
    assert len(loss.queue) == len(labels) - 1
    assert not recwarn.list


def test_groups_that_are_far_apart_are_domains_of_their_own_however_few_are_in_them():
    groups = torch.arange(4).repeat_interleave(torch.tensor([9, 5, 3, 1]))
    noise = torch.randn(18, 6, generator=torch.Generator().manual_seed(0))
    domain = divide(torch.nn.functional.normalize(torch.eye(4, 6)[groups] + 0.1 * noise), 4)
    assert torch.equal(domain[:, None] == domain, groups[:, None] == groups)
