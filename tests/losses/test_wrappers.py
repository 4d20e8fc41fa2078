"""pytorch-metric-learning's wrappers take these losses, and miners choose their pairs."""

import pytest
import torch
from pytorch_metric_learning import losses as library
from pytorch_metric_learning import miners
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

from isomargin.losses import (
    ArcFaceLoss,
    CalibrationLoss,
    ClassAlignmentLoss,
    ContrastiveLoss,
    CrossBatchMemory,
    MetricLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SelfSupervisedLoss,
    SmoothAPLoss,
    SupAPLoss,
    TCMLoss,
    ThresholdPenaltyLoss,
    TripletLoss,
)

OF_PAIRS = [
    CalibrationLoss,
    ClassAlignmentLoss,
    ContrastiveLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SmoothAPLoss,
    SupAPLoss,
    TCMLoss,
    TripletLoss,
]


def make_batch(seed, rows=12):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (rows,), generator=generator)
    centres = torch.eye(4, 6)
    return (centres[labels] + 0.4 * torch.randn(rows, 6, generator=generator)).requires_grad_(), labels


@pytest.mark.parametrize("make", [*OF_PAIRS, lambda: SmoothAPLoss() + TCMLoss()])
def test_cross_batch_memory_compares_with_earlier_batches_without_the_row_itself(make):
    memory = CrossBatchMemory(make(), embedding_size=6, memory_size=30)
    first, first_labels = make_batch(1)
    second, second_labels = make_batch(2)
    memory(first, first_labels)
    value = memory(second, second_labels)
    value.backward()
    # By hand: the memory holds both batches, and a row of the second does not meet itself there.
    references, reference_labels = torch.cat([first, second]).detach(), torch.cat([first_labels, second_labels])
    same = second_labels[:, None] == reference_labels
    itself = torch.zeros_like(same)
    itself[:, 12:].fill_diagonal_(True)
    chosen = (*torch.where(same & ~itself), *torch.where(~same))
    expected = make()(second, second_labels, chosen, references, reference_labels)
    torch.testing.assert_close(value, expected)
    assert second.grad.abs().sum() > 0


@pytest.mark.parametrize("make", OF_PAIRS)
def test_distributed_and_self_supervised_wrappers_and_lists_of_losses_take_them(make):
    embeddings, labels = make_batch(3)
    expected = make()(embeddings, labels)
    with pytest.warns(UserWarning, match="non-distributed"):
        assert DistributedLossWrapper(make())(embeddings, labels) == expected
    assert library.MultipleLosses([make(), make()], weights=[1, 2])(embeddings, labels) == 3 * expected
    views = embeddings.detach() + 0.01
    doubled = torch.cat([embeddings, views]), torch.arange(12).repeat(2)
    assert SelfSupervisedLoss(make())(embeddings, views) == make()(*doubled)


def test_a_miner_chooses_the_pairs():
    embeddings, labels = make_batch(4)
    chosen = miners.MultiSimilarityMiner()(embeddings, labels)
    theirs = library.ThresholdConsistentMarginLoss()(embeddings, labels, chosen)
    ours = TCMLoss()
    torch.testing.assert_close(ours(embeddings, labels, chosen), theirs)
    assert int(ours.values["hard_positives"]) <= len(chosen[0])


def test_references_may_come_by_place_or_by_name():
    embeddings, labels = make_batch(5)
    references, reference_labels = make_batch(6)
    by_name = TCMLoss()(embeddings, labels, ref_emb=references, ref_labels=reference_labels)
    assert TCMLoss()(embeddings, labels, references, reference_labels) == by_name
    assert TCMLoss()(embeddings, labels, None, references, reference_labels) == by_name
    assert TCMLoss()(embeddings, labels, references, ref_labels=reference_labels) == by_name


def test_references_without_gradient_get_none_and_with_one_get_theirs():
    embeddings, labels = make_batch(7)
    references, reference_labels = make_batch(8)
    loss = SmoothAPLoss(0.1) + TCMLoss()
    loss(embeddings, labels, ref_emb=references.detach(), ref_labels=reference_labels).backward()
    alone = embeddings.grad.clone()
    embeddings.grad = None
    loss(embeddings, labels, ref_emb=references, ref_labels=reference_labels).backward()
    torch.testing.assert_close(embeddings.grad, alone)
    assert references.grad.abs().sum() > 0


def test_embeddings_without_gradient_still_train_the_references():
    embeddings, labels = make_batch(7)
    references, reference_labels = make_batch(8)
    TCMLoss()(embeddings.detach(), labels, ref_emb=references, ref_labels=reference_labels).backward()
    assert references.grad.abs().sum() > 0


def test_the_threshold_penalty_takes_references_too():
    embeddings, labels = make_batch(9)
    references, reference_labels = make_batch(10)
    ThresholdPenaltyLoss()(embeddings, labels, ref_emb=references, ref_labels=reference_labels).backward()
    assert embeddings.grad.isfinite().all()


def test_the_graph_can_be_walked_twice():
    embeddings, labels = make_batch(11)
    value = (SmoothAPLoss() + TCMLoss())(embeddings, labels)
    value.backward(retain_graph=True)
    once = embeddings.grad.clone()
    value.backward()
    torch.testing.assert_close(embeddings.grad, 2 * once)


@pytest.mark.parametrize("kind", ["hard", "semihard", "all"])
def test_a_miners_triplets_are_those_of_the_triplet_loss_and_no_others(kind):
    embeddings, labels = make_batch(12, rows=30)
    chosen = miners.TripletMarginMiner(margin=0.3, distance=LpDistance(power=2), type_of_triplets=kind)(
        embeddings, labels
    )
    theirs = library.TripletMarginLoss(margin=0.2, distance=LpDistance(power=2))(embeddings, labels, chosen)
    (expected,) = torch.autograd.grad(theirs, embeddings)
    ours = TripletLoss(margin=0.2)(embeddings, labels, chosen)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, embeddings)[0], expected)
    together = (TripletLoss(margin=0.2) + 0.5 * TCMLoss())(embeddings, labels, chosen)
    torch.testing.assert_close(together, theirs + 0.5 * TCMLoss()(embeddings, labels, chosen))


def test_a_pair_may_be_listed_on_both_sides():
    embeddings, labels = make_batch(13, rows=6)
    chosen = torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([0, 1]), torch.tensor([2, 4])
    loss = SmoothAPLoss(0.1)
    assert torch.autograd.gradcheck(
        lambda each: loss(each, labels, chosen), [embeddings.detach().double().requires_grad_()]
    )


def test_wrappers_take_ones_own_loss_but_none_with_proxies():
    class Own(MetricLoss):
        name = "own"

        def compute(self, batch):
            return batch.vectors.sum(), {}

    CrossBatchMemory(Own(), embedding_size=6)
    with pytest.raises(ValueError, match="ArcFaceLoss compares them with its proxies"):
        CrossBatchMemory(ArcFaceLoss(4, 6), embedding_size=6)
    with pytest.raises(Exception, match="not supported for ArcFaceLoss"):
        CrossBatchMemory(library.ArcFaceLoss(4, 6), embedding_size=6)
    assert CrossBatchMemory(library.TripletMarginLoss(), embedding_size=6).embedding_size == 6


def test_what_was_kept_for_the_way_back_is_let_go_after_it():
    embeddings, labels = make_batch(14)
    value = (SmoothAPLoss() + TCMLoss())(embeddings, labels)
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


@pytest.mark.parametrize("make", [SmoothAPLoss, TCMLoss, lambda: ArcFaceLoss(4, 6)])
def test_a_second_derivative_is_refused_rather_than_wrong(make):
    embeddings, labels = make_batch(15)
    value = make()(embeddings, labels)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(value, embeddings, create_graph=True)
