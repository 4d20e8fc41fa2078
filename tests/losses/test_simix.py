"""SiMix: virtual embeddings between those of a class join the batch."""

import itertools

import definitions
import pytest
import torch

from isomargin.losses import RecallAtKLoss


def make_batch():
    generator = torch.Generator().manual_seed(5)
    labels = torch.tensor([2, 0, 2, 1, 2, 0, 7, 0])
    return torch.randn(8, 4, generator=generator, dtype=torch.float64).requires_grad_(), labels


def mixed_by_hand(embeddings, labels, weights):
    """The unit vectors and, not normalised again, αx + (1 − α)y for each pair of a class."""
    unit = embeddings / embeddings.norm(dim=1, keepdim=True)
    pairs = [(a, b) for a, b in itertools.combinations(range(len(labels)), 2) if labels[a] == labels[b]]
    assert len(pairs) == len(weights)
    rows = [weight * unit[a] + (1 - weight) * unit[b] for weight, (a, b) in zip(weights, pairs, strict=True)]
    return torch.cat([unit, torch.stack(rows)]), torch.cat([labels, labels[[a for a, _ in pairs]]])


@pytest.mark.parametrize("include_query", [False, True])
def test_the_virtual_embeddings_join_rows_and_columns_and_are_not_normalised_again(monkeypatch, include_query):
    embeddings, labels = make_batch()
    loss = RecallAtKLoss(k=(1, 2), temperature=0.1, simix=True, seed=3, include_query=include_query)
    value = loss(embeddings, labels)
    (gradient,) = torch.autograd.grad(value, embeddings)
    weights = RecallAtKLoss(simix=True, seed=3).mixing_weights(6).double()
    monkeypatch.setattr(definitions, "unit", lambda vectors: vectors)
    points, point_labels = mixed_by_hand(embeddings, labels, weights)
    expected = definitions.recall_at_k(points, point_labels, k=(1, 2), temperature=0.1, include_query=include_query)
    (expected_gradient,) = torch.autograd.grad(expected, embeddings)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_every_call_mixes_anew_and_a_seed_and_a_saved_state_repeat_it():
    embeddings, labels = make_batch()
    embeddings = embeddings.detach()
    loss, again = (RecallAtKLoss(temperature=0.1, simix=True, seed=1) for _ in range(2))
    values = [float(loss(embeddings, labels)) for _ in range(3)]
    assert len(set(values)) == 3
    assert [float(again(embeddings, labels)) for _ in range(2)] == values[:2]
    resumed = RecallAtKLoss(temperature=0.1, simix=True, seed=1)
    resumed.load_state_dict(again.state_dict())
    assert float(resumed(embeddings, labels)) == values[2]
    assert float(RecallAtKLoss(temperature=0.1, simix=True, seed=2)(embeddings, labels)) not in values


def test_with_references_the_virtual_embeddings_are_queries_alone():
    embeddings, labels = make_batch()
    references, reference_labels = make_batch()
    loss = RecallAtKLoss(simix=True)
    vectors, columns, pairs = loss.points(loss_batch(embeddings, labels, references, reference_labels))
    assert len(vectors) == 8 + 6
    assert len(columns) == 8
    assert pairs.shape == (14, 8)


def loss_batch(embeddings, labels, references, reference_labels):
    from isomargin.losses._batch import read_batch

    return read_batch(embeddings, labels, None, references, reference_labels, False)


def test_mixing_where_no_class_has_two_images_changes_nothing():
    embeddings = torch.randn(3, 4, requires_grad=True)
    value = RecallAtKLoss(simix=True)(embeddings, torch.arange(3))
    value.backward()
    assert value == 0
    assert (embeddings.grad == 0).all()


def test_chosen_pairs_and_mixing_exclude_each_other():
    embeddings, labels = make_batch()
    chosen = torch.tensor([0]), torch.tensor([2]), torch.tensor([0]), torch.tensor([1])
    with pytest.raises(ValueError, match="indices_tuple"):
        RecallAtKLoss(simix=True)(embeddings, labels, chosen)
