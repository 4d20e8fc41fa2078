"""Batches by class: their shape, that every image has its turn, and that processes share them without overlap."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isomargin.data.sampler import ClassBatchSampler


def labels_of(counts):
    return np.repeat(np.arange(len(counts)), counts)


@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=8),
    per_class=st.integers(1, 4),
    per_batch=st.integers(1, 4),
    small=st.sampled_from(["repeat", "drop"]),
    seed=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_every_batch_has_as_many_images_of_as_many_different_classes(counts, per_class, per_batch, small, seed):
    labels = labels_of(counts)
    usable = [count for count in counts if small == "repeat" or count >= per_class]
    if len(usable) < per_batch:
        with pytest.raises(ValueError, match="different classes are needed"):
            ClassBatchSampler(labels, per_batch, per_class, small, seed)
        return
    sampler = ClassBatchSampler(labels, per_batch, per_class, small, seed)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    for batch in batches:
        assert Counter(Counter(labels[batch].tolist()).values()) == {per_class: per_batch}
        for name in set(labels[batch]):
            rows = [row for row in batch if labels[row] == name]
            repeats = max(per_class - counts[name], 0)
            assert len(set(rows)) == per_class - repeats
    if small == "drop":
        assert all(counts[labels[row]] >= per_class for batch in batches for row in batch)


@pytest.mark.parametrize("counts", [[4] * 10, [8, 4, 4, 8, 16, 8, 4, 4], [20, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]])
@pytest.mark.parametrize("seed", range(5))
def test_every_image_comes_once_an_epoch_where_that_can_be(counts, seed):
    labels = labels_of(counts)
    per_batch = next(c for c in (4, 3, 2) if sum(counts) // 4 % c == 0 and max(counts) // 4 <= sum(counts) // 4 // c)
    sampler = ClassBatchSampler(labels, per_batch, 4, seed=seed)
    assert Counter(row for batch in sampler for row in batch) == Counter(range(len(labels)))


def test_no_image_is_left_out_for_many_epochs():
    labels = labels_of([5, 9, 3, 14, 2, 7])
    sampler = ClassBatchSampler(labels, 3, 4)
    seen = Counter()
    for epoch in range(40):
        sampler.set_epoch(epoch)
        seen.update(row for batch in sampler for row in batch)
    assert len(seen) == len(labels)
    assert min(seen.values()) >= 20


def test_a_batch_draws_from_its_families_first():
    labels = labels_of([8] * 24)
    families = labels // 6  # four families of six classes
    whole, chance = 0, 0
    for families_per_batch in (1, 0):
        sampler = ClassBatchSampler(labels, 6, 4, families=families, families_per_batch=families_per_batch)
        kept = [len(set(families[batch])) == 1 for batch in sampler]
        whole, chance = (sum(kept), chance) if families_per_batch else (whole, sum(kept))
        assert len(kept) == len(sampler) == 8
    assert whole >= 6  # the last batches take what is left
    assert chance == 0


@given(
    counts=st.lists(st.integers(1, 12), min_size=4, max_size=10),
    families_per_batch=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_families_leave_the_shape_of_batches_as_it_is(counts, families_per_batch, seed):
    labels = labels_of(counts)
    sampler = ClassBatchSampler(labels, 3, 2, seed=seed, families=labels % 3, families_per_batch=families_per_batch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert all(Counter(Counter(labels[batch].tolist()).values()) == {2: 3} for batch in batches)


def test_every_image_comes_once_an_epoch_in_families_too():
    labels = labels_of([4] * 12)
    sampler = ClassBatchSampler(labels, 4, 4, families=labels // 5, families_per_batch=2)
    assert Counter(row for batch in sampler for row in batch) == Counter(range(len(labels)))


def test_families_are_needed_to_draw_by_them():
    with pytest.raises(ValueError, match="families of the items are needed"):
        ClassBatchSampler(labels_of([4] * 4), 2, 2, families_per_batch=1)


def test_the_seed_and_the_epoch_make_the_order():
    labels = labels_of([6] * 9)
    one, other = ClassBatchSampler(labels, 3, 2, seed=1), ClassBatchSampler(labels, 3, 2, seed=1)
    first = list(one)
    assert first == list(other) == list(one)
    one.set_epoch(1)
    assert list(one) != first
    assert list(ClassBatchSampler(labels, 3, 2, seed=2)) != first


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_processes_share_every_batch_without_overlap(world_size):
    labels = labels_of([8] * 12)
    whole = list(ClassBatchSampler(labels, 6, 4))
    shares = [list(ClassBatchSampler(labels, 6, 4, rank=rank, world_size=world_size)) for rank in range(world_size)]
    for batch, *parts in zip(whole, *shares, strict=True):
        assert sorted(row for part in parts for row in part) == sorted(batch)


def test_labels_may_be_text():
    assert len(ClassBatchSampler(["b", "a", "b", "a"], 2, 2)) == 1


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"classes_per_batch": 0}, "classes_per_batch is 0"),
        ({"classes_per_batch": 3}, "there are 2 classes"),
        ({"classes_per_batch": 2, "images_per_class": 2.5}, "images_per_class is 2.5"),
        ({"classes_per_batch": 2, "small_classes": "keep"}, "small_classes is 'keep'"),
        ({"classes_per_batch": 2, "images_per_class": 4, "small_classes": "drop"}, "1 with fewer items were dropped"),
        ({"classes_per_batch": 2, "rank": 2, "world_size": 2}, "rank is 2 of 2"),
    ],
)
def test_bad_settings_are_refused(settings_, message):
    with pytest.raises(ValueError, match="needed") as raised:
        ClassBatchSampler([0, 0, 0, 0, 1], **settings_)
    assert message in str(raised.value)
