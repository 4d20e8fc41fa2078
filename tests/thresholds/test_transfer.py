"""One threshold applied to several sets, compared with loops over all pairs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import clusters
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.thresholds.transfer import transfer_threshold

SETS = {"same": (0.8, 1), "noisier": (1.4, 2), "tighter": (0.4, 3)}  # noise, seed


def drawn(noise, seed):
    return clusters(300, 25, dimensions=8, noise=noise, seed=seed)


@pytest.fixture(scope="module")
def evaluations():
    return {name: im.evaluate(*drawn(*each)) for name, each in {"calibration": (0.8, 0), **SETS}.items()}


def others(evaluations):
    return {name: evaluations[name] for name in SETS}


def all_pairs(rows, labels):
    """(pairs,) distances and whether each pair is of one class; (pairs, 2) its labels."""
    vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    first, second = np.triu_indices(len(rows), 1)
    distance = np.linalg.norm(vectors[first] - vectors[second], axis=1)
    return distance, labels[first] == labels[second], np.stack([labels[first], labels[second]], axis=1)


def by_loops(rows, labels, threshold):
    distance, same, ends = all_pairs(rows, labels)
    near = distance <= threshold
    class_far, class_frr = [], []
    for each in np.unique(labels):
        own = (ends == each).any(axis=1)
        class_far.append(near[own & ~same].mean())
        class_frr.append(1 - near[own & same].mean())
    right = np.mean([near[same].mean(), (~near[~same]).mean()])
    return near[~same].mean(), 1 - near[same].mean(), right, class_far, class_frr


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.1])
def test_every_row_is_what_loops_over_the_pairs_give(evaluations, threshold):
    transfer = transfer_threshold(threshold, evaluations["calibration"], others(evaluations))
    assert [row.name for row in transfer.rows] == ["calibration", *SETS]
    expected = {name: by_loops(*drawn(*each), threshold) for name, each in {"calibration": (0.8, 0), **SETS}.items()}
    first = expected["calibration"]
    for row in transfer.rows:
        far, frr, accuracy, class_far, class_frr = expected[row.name]
        assert (row.classes, row.items) == (25, 300)
        assert (row.far, row.frr, row.accuracy) == pytest.approx((far, frr, accuracy))
        differences = (row.far_difference, row.frr_difference, row.accuracy_difference)
        assert differences == pytest.approx((far - first[0], frr - first[1], accuracy - first[2]))
        assert row.worst_class_far == pytest.approx(np.quantile(class_far, 0.95))
        assert row.worst_class_frr == pytest.approx(np.quantile(class_frr, 0.95))


@settings(max_examples=30, deadline=None)
@given(threshold=st.floats(0.2, 1.6))
def test_the_own_distance_admits_as_many_negatives_as_it_can_within_the_calibration_sets_rate(evaluations, threshold):
    transfer = transfer_threshold(threshold, evaluations["calibration"], others(evaluations))
    for row in transfer.rows[1:]:
        distance, same, _ = all_pairs(*drawn(*SETS[row.name]))
        negatives = np.sort(distance[~same])
        assert np.mean(negatives <= row.own_distance) <= transfer.rows[0].far + 1e-12
        beyond = negatives[negatives > row.own_distance]
        assert np.mean(negatives <= beyond[0]) > transfer.rows[0].far


def test_a_set_transfers_to_itself_without_a_difference(evaluations):
    calibration = evaluations["calibration"]
    first, second = transfer_threshold(0.9, calibration, {"again": calibration}).rows
    assert (second.far_difference, second.frr_difference, second.accuracy_difference) == (0, 0, 0)
    assert (first.far, first.own_distance) == (second.far, second.own_distance)


def test_binned_counts_give_nearly_the_rows_of_lists(monkeypatch, evaluations):
    expected = transfer_threshold(0.8, evaluations["calibration"], others(evaluations))
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    binned = {name: im.evaluate(*drawn(*each)) for name, each in SETS.items()}
    assert isinstance(binned["same"].counts.negatives, BinnedDistances)
    found = transfer_threshold(0.8, evaluations["calibration"], binned)
    for row, other in zip(found.rows, expected.rows, strict=True):
        assert row.far == pytest.approx(other.far, abs=1e-4)
        assert row.own_distance == pytest.approx(other.own_distance, abs=1e-3)


def test_classes_of_one_image_are_left_out_of_the_worst_frr():
    rows, labels = clusters(200, 20, dimensions=8, singles=4)
    with pytest.warns(UserWarning, match="single item"):
        alone = im.evaluate(rows, labels)
    row = transfer_threshold(0.9, alone, {"again": alone}).rows[0]
    class_frr = by_loops(rows[labels < 20], labels[labels < 20], 0.9)[4]
    assert row.worst_class_frr == pytest.approx(np.quantile(class_frr, 0.95))


def test_a_set_with_the_same_image_under_two_labels_has_no_own_distance_for_a_rate_of_zero(evaluations):
    rows, labels = drawn(0.8, 4)
    rows[np.flatnonzero(labels == 1)[0]] = rows[np.flatnonzero(labels == 0)[0]]
    row = transfer_threshold(0.0, evaluations["calibration"], {"twice": im.evaluate(rows, labels)}).rows[1]
    assert math.isnan(row.own_distance)
    assert row.far > 0


def test_the_table_has_a_row_for_each_set_and_a_column_for_each_field(evaluations):
    transfer = transfer_threshold(0.8, evaluations["calibration"], others(evaluations))
    table = transfer.table
    assert table["name"].tolist() == ["calibration", *SETS]
    assert table["far"].tolist() == [row.far for row in transfer.rows]
    assert set(table.columns) == set(vars(transfer.rows[0]))


def test_what_cannot_be_transferred_is_refused(evaluations):
    calibration = evaluations["calibration"]
    for distance, other, sentence in (
        (0.8, {}, "others is empty"),
        (0.8, [calibration], "others is of type list: a dictionary of evaluations"),
        (0.8, {"photos": np.eye(3)}, "the set 'photos' is of type ndarray"),
        (0.8, {"calibration": calibration}, "use another name"),
        (2.5, {"photos": calibration}, "distance is 2.5"),
        (float("nan"), {"photos": calibration}, "distance is nan"),
    ):
        with pytest.raises(im.InputError, match=sentence):
            transfer_threshold(distance, calibration, other)
    with pytest.raises(im.InputError, match="the set 'calibration' is of type NoneType"):
        transfer_threshold(0.8, None, {"photos": calibration})
