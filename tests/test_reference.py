"""The reference against values worked out by hand, scikit-learn and the plainest loops."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import reference as module
from reference import (
    distance_at_far,
    distance_at_frr,
    distance_matrix,
    epsilon_groups,
    group_size,
    reference,
    unit_rows,
)

# Angles on the circle. Two points `a` degrees apart have distance 2 sin(a / 2): 1 at 60, sqrt(2) at 90.
#   A = {0, 30}    positive 30   negatives 60 90 90 120 150 180
#   B = {90, 180}  positive 90   negatives 60 90 90 150 180 180
#   C = {270}      none          negatives 90 90 120 180
#   pooled         30 90         negatives 60 90 90 90 120 150 180 180
CROSS_ANGLES = [0, 30, 90, 180, 270]
CROSS_LABELS = ["A", "A", "B", "B", "C"]

# A = {0, 10, 50} with positives 10 40 50, B = {20, 300} with positive 80; negatives 10 20 30 60 70 110.
RANKS_ANGLES = [0, 10, 50, 20, 300]
RANKS_LABELS = [7, 7, 7, 9, 9]


def on_circle(degrees):
    radians = np.deg2rad(np.asarray(degrees, dtype=np.float64))
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def chord(degrees):
    return 2 * np.sin(np.deg2rad(degrees) / 2)


def cross(**options):
    # FAR 0.1 needs 1 of 8 negative pairs (60 degrees), FAR 0.5 needs 4 of 8 (90 degrees).
    # The grid is 1, 1.207 (no pair between the first and this one), sqrt(2).
    return reference(on_circle(CROSS_ANGLES), CROSS_LABELS, **{"far": (0.1, 0.5), "grid": 3, "k": (1, 2), **options})


def test_cross_pairs_range_and_curves():
    result = cross()
    assert list(result.classes) == ["A", "B", "C"]
    assert list(result.curve_classes) == ["A", "B"]
    assert list(result.sizes) == [2, 2, 1]
    assert (result.positive_pairs, result.negative_pairs) == (2, 8)
    assert list(result.class_positive_pairs) == [1, 1, 0]
    assert list(result.class_negative_pairs) == [6, 6, 4]
    np.testing.assert_allclose(result.grid, [1, (1 + sqrt(2)) / 2, sqrt(2)], rtol=1e-10)
    assert (result.grid[0], result.grid[-1]) == result.calibration_range
    np.testing.assert_allclose(result.far, [1 / 8, 1 / 8, 4 / 8])
    np.testing.assert_allclose(result.frr, [1 / 2, 1 / 2, 0])
    np.testing.assert_allclose(result.sensitivity, [[1, 1, 1], [0, 0, 1]])
    np.testing.assert_allclose(result.specificity, [[5 / 6, 5 / 6, 1 / 2]] * 2)
    np.testing.assert_allclose(result.precision, [[1 / 2, 1 / 2, 1 / 4], [0, 0, 1 / 4]])
    # 2 * 5/6 / (5/6 + 1) = 10/11;  2 * 1/2 / (1/2 + 1) = 2/3
    np.testing.assert_allclose(result.utility, [[10 / 11, 10 / 11, 2 / 3], [0, 0, 2 / 3]])


def test_cross_inconsistency():
    result = cross()
    # Mean curve 5/11 5/11 2/3: both classes are 5/11 away at two of three points.
    np.testing.assert_allclose(result.mean_curve, [5 / 11, 5 / 11, 2 / 3])
    assert result.opis == pytest.approx(50 / 363)
    np.testing.assert_allclose(result.opis_contribution, [25 / 363, 25 / 363, np.nan])
    np.testing.assert_allclose(result.class_mean_utility, [82 / 99, 22 / 99, np.nan])
    assert result.mean_utility == pytest.approx(52 / 99)
    # Mean of (1 - mean curve)^2: (36/121 + 36/121 + 1/9) / 3 = 769/3267
    assert result.relative_opis == pytest.approx(50 / 363 * 3267 / 769)
    # One class at each end, 10/11 apart at two of three points.
    assert result.epsilon_opis == pytest.approx(200 / 363)
    assert (list(result.worst_classes), list(result.best_classes)) == ([1], [0])
    assert cross(epsilon_form="printed").epsilon_opis == pytest.approx(50 / 363)


def test_cross_with_the_pooled_mean():
    result = cross(mean="pooled")
    # Sensitivity 1/2 1/2 1, specificity 7/8 7/8 1/2; 2 * 7/16 / (11/8) = 7/11
    np.testing.assert_allclose(result.mean_curve, [7 / 11, 7 / 11, 2 / 3])
    # A is 3/11 away, B 7/11, at two of three points.
    assert result.opis == pytest.approx(58 / 363)
    np.testing.assert_allclose(result.opis_contribution, [9 / 363, 49 / 363, np.nan])


def test_cross_with_precision_and_recall():
    result = cross(utility="precision_recall")
    np.testing.assert_allclose(result.utility, [[2 / 3, 2 / 3, 2 / 5], [0, 0, 2 / 5]])
    assert result.opis == pytest.approx(2 / 27)
    pooled = cross(utility="precision_recall", mean="pooled")
    # True accepts 1 1 2, false accepts 1 1 4, recall 1/2 1/2 1: the F-score is 1/2 throughout.
    np.testing.assert_allclose(pooled.pooled_precision, [1 / 2, 1 / 2, 1 / 3])
    np.testing.assert_allclose(pooled.mean_curve, [1 / 2, 1 / 2, 1 / 2])
    assert pooled.opis == pytest.approx((2 / 36 + 2 / 4 + 2 / 100) / 6)


def test_cross_weight_of_sensitivity():
    # c = 2: 5 * 5/6 / (4 * 5/6 + 1) = 25/26;  5 * 1/2 / (4 * 1/2 + 1) = 5/6
    np.testing.assert_allclose(cross(c=2.0).utility, [[25 / 26, 25 / 26, 5 / 6], [0, 0, 5 / 6]])


def test_cross_operating_points():
    # FAR 0.6 needs 5 of 8 pairs (120 degrees); A 4 of 6 (120), B 4 of 6 (150), C 3 of 4 (120).
    result = cross(target_far=0.6)
    assert result.target_distance == pytest.approx(sqrt(3))
    assert (result.far_at_target, result.frr_at_target) == (5 / 8, 0)
    np.testing.assert_allclose(result.class_far_at_target, [4 / 6, 3 / 6, 3 / 4])
    np.testing.assert_allclose(result.class_frr_at_target, [0, 0, np.nan])
    np.testing.assert_allclose(result.class_far_distance, chord([120, 150, 120]))
    np.testing.assert_allclose(result.class_frr_distance, [chord(30), chord(90), np.nan])
    # Two values: the deviation is half their gap, the quantile q lies at the share q of it.
    low, gap, width = chord(120), chord(150) - chord(120), sqrt(2) - 1
    assert result.far_distance_spread.std == pytest.approx(gap / 2)
    assert result.far_distance_spread.relative_std == pytest.approx(gap / 2 / width)
    expected = low + gap * np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    np.testing.assert_allclose(result.far_distance_spread.quantiles, expected)
    np.testing.assert_allclose(result.far_distance_spread.relative_quantiles, expected / width)
    assert result.frr_distance_spread.std == pytest.approx((chord(90) - chord(30)) / 2)
    # At FAR 0.1 the threshold is 60 degrees: B's one positive pair is rejected.
    strict = cross(target_far=0.1)
    assert (strict.far_at_target, strict.frr_at_target) == (1 / 8, 1 / 2)
    np.testing.assert_allclose(strict.class_frr_at_target, [0, 1, np.nan])


def test_cross_verification_and_retrieval():
    result = cross()
    # (FAR, FRR) at 60 and 90: (1/8, 1/2), (1/2, 0): the line between them has FAR = FRR at 3/7 of its length.
    # B: (1/6, 1), (1/2, 0), at 5/8 of its length.
    assert result.eer == pytest.approx(2 / 7)
    assert result.eer_distance == pytest.approx(sqrt(2))
    np.testing.assert_allclose(result.class_eer, [0, 3 / 8, np.nan])
    np.testing.assert_allclose(result.class_eer_distance, [chord(30), chord(90), np.nan])
    # 30 is nearer than all 8; 90 is nearer than 4 and tied with 3. B: nearer than 3, tied with 2 of 6.
    assert result.auc == pytest.approx(13.5 / 16)
    np.testing.assert_allclose(result.class_auc, [1, 4 / 6, np.nan])
    # Only the query at 90 has a nearer negative (30); the query at 180 has a tied one (270), which does not harm it.
    assert result.recall_at_k == {1: 0.75, 2: 1.0}
    np.testing.assert_allclose(result.class_recall_at_k[1], [1, 1 / 2, np.nan])
    assert (result.r_precision, result.map_at_r) == (0.75, 0.75)


def test_ranks_of_several_positives():
    result = reference(on_circle(RANKS_ANGLES), RANKS_LABELS, distances=(0.5, 1.0), k=(1, 2, 3, 4))
    # Order of the others as same (+) or other (-) class, R first places before the bar:
    #   0: + - | + -      10: + - | + - (the tie puts + first)      50: - + | + -      20: - | - - +      300: - | - + -
    assert result.r_precision == pytest.approx((1 / 2 + 1 / 2 + 1 / 2 + 0 + 0) / 5)
    assert result.map_at_r == pytest.approx((1 / 2 + 1 / 2 + 1 / 4 + 0 + 0) / 5)
    np.testing.assert_allclose(result.class_r_precision, [1 / 2, 0])
    np.testing.assert_allclose(result.class_map_at_r, [5 / 12, 0])
    assert result.recall_at_k == {1: 0.4, 2: 0.6, 3: 0.8, 4: 1.0}
    assert result.calibration_range == (0.5, 1.0)


def test_range_from_a_reject_rate():
    # Positives 10 40 50 80: FRR <= 1/4 from 50 on. FAR 0.6 needs 4 of 6 negatives: 60.
    result = reference(on_circle(RANKS_ANGLES), RANKS_LABELS, far=(0.1, 0.6), frr=0.25)
    np.testing.assert_allclose(result.calibration_range, chord([50, 60]))
    with pytest.raises(ValueError, match="empty"):
        reference(on_circle(RANKS_ANGLES), RANKS_LABELS, far=(0.1, 0.5), frr=0.25)


def test_rates_are_whole_counts():
    ladder = np.arange(1.0, 101.0)
    # 0.07 * 100 comes out a rounding error above 7, 0.29 * 100 one below 29.
    assert 0.07 * 100 > 7
    assert 0.29 * 100 < 29
    assert distance_at_far(ladder, 0.07) == 7
    assert distance_at_far(ladder, 0.071) == 8
    assert distance_at_far(ladder, 0.0) == 1
    assert distance_at_frr(ladder, 0.29) == 71
    assert distance_at_frr(ladder, 0.289) == 72
    assert distance_at_frr(ladder, 1.0) == 1


def test_groups_round_half_up_and_keep_the_order_of_equals():
    assert [group_size(0.1, count) for count in (1, 14, 15, 25, 100)] == [1, 1, 2, 3, 10]
    worst, best = epsilon_groups(np.array([0.5, 0.2, 0.2 + 1e-16, 0.5]), 0.25)
    assert (list(worst), list(best)) == ([1], [3])


def test_distances_are_symmetric_and_rounding_makes_no_difference():
    rows = np.random.default_rng(1).normal(size=(40, 7))
    matrix = distance_matrix(unit_rows(np.concatenate([rows, rows * 3.7])))
    assert np.array_equal(matrix, matrix.T)
    assert np.all(np.diag(matrix[:40, 40:]) == 0)
    assert np.array_equal(matrix[:40, :40], matrix[40:, 40:])


def test_similarities_replace_cosines_and_may_exceed_one():
    # A = {0, 1}, B = {2, 3}: positives 1.5 and 0.5, negatives 2 and three times -1, so distances -1 1, -sqrt(2) 2 2 2.
    matrix = np.array([[9, 1.5, 2, -1], [1.5, 9, -1, -1], [2, -1, 9, 0.5], [-1, -1, 0.5, 9]])
    result = reference(np.eye(4), ["A", "A", "B", "B"], similarities=matrix, far=(0.25, 0.5), k=(1,))
    np.testing.assert_allclose(result.positive_distances, [-1, 1])
    np.testing.assert_allclose(result.negative_distances, [-sqrt(2), 2, 2, 2])
    np.testing.assert_allclose(result.calibration_range, [-sqrt(2), 2])
    assert result.recall_at_k == {1: 0.5}  # the pair 0, 2 are each other's nearest
    rows = np.random.default_rng(6).normal(size=(30, 5))
    plain, given = (
        reference(rows, np.arange(30) % 5, similarities=matrix)
        for matrix in (None, unit_rows(rows) @ unit_rows(rows).T)
    )
    for name in ("opis", "eer", "auc", "map_at_r", "target_distance"):
        assert getattr(plain, name) == pytest.approx(getattr(given, name), rel=1e-9)


def random_set(seed: int, steps: int):
    """Whole-number coordinates in few steps, so that many distances are tied; classes of 1 to 9 rows, shuffled."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(10) * 5 - 7, [1, 2, 2, 3, 4, 5, 6, 8, 9, 9]))
    rows = generator.integers(1, steps + 1, size=(len(labels), 3)) * generator.choice([-1, 1], p=[0.2, 0.8], size=3)
    return rows.astype(np.float32), labels


def plain_distances(rows):
    unit = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    return np.sqrt(np.maximum(0, 2 - 2 * np.round(unit @ unit.T, 11)))


def plain_pairs(rows, labels):
    distances = plain_distances(rows)
    first, second = np.triu_indices(len(labels), 1)
    return distances[first, second], labels[first], labels[second]


@pytest.mark.parametrize(("seed", "steps"), [(0, 2), (1, 4), (2, 50)])
def test_area_is_that_of_scikit_learn(seed, steps):
    rows, labels = random_set(seed, steps)
    result = reference(rows, labels)
    distance, first, second = plain_pairs(rows, labels)
    assert result.auc == pytest.approx(roc_auc_score(first == second, -distance), abs=1e-12)
    for index in result.curve_index:
        own = (first == result.classes[index]) | (second == result.classes[index])
        expected = roc_auc_score((first == second)[own], -distance[own])
        assert result.class_auc[index] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("seed", "steps"), [(0, 2), (1, 4), (2, 50)])
def test_curves_and_rates_are_those_of_plain_masks(seed, steps):
    rows, labels = random_set(seed, steps)
    result = reference(rows, labels, far=(0.02, 0.4), grid=11)
    distance, first, second = plain_pairs(rows, labels)
    same = first == second
    for point, threshold in enumerate(result.grid):
        assert result.far[point] == pytest.approx(np.mean(distance[~same] <= threshold))
        assert result.frr[point] == pytest.approx(np.mean(distance[same] > threshold))
        for row, name in enumerate(result.curve_classes):
            positive = distance[same & (first == name)]
            negative = distance[(first == name) != (second == name)]
            assert result.sensitivity[row, point] == pytest.approx(np.mean(positive <= threshold))
            assert result.specificity[row, point] == pytest.approx(np.mean(negative > threshold))
            accepted = np.sum(positive <= threshold), np.sum(negative <= threshold)
            assert result.precision[row, point] == pytest.approx(accepted[0] / max(1, sum(accepted)))
    assert result.opis == pytest.approx(np.mean(np.var(result.utility, axis=0)))
    assert np.nansum(result.opis_contribution) == pytest.approx(result.opis)


@pytest.mark.parametrize(("seed", "steps"), [(0, 2), (1, 4), (2, 50)])
def test_equal_error_is_that_of_a_plain_loop(seed, steps):
    rows, labels = random_set(seed, steps)
    result = reference(rows, labels)
    distance, first, second = plain_pairs(rows, labels)
    same = first == second
    accept, reject = 0.0, 1.0
    for threshold in np.unique(distance):
        last_accept, last_reject = accept, reject
        accept, reject = np.mean(distance[~same] <= threshold), np.mean(distance[same] > threshold)
        if accept >= reject:
            break
    # Where a + t * (accept - a) = r + t * (reject - r).
    share = (last_reject - last_accept) / (accept - last_accept - reject + last_reject)
    assert result.eer == pytest.approx(last_accept + share * (accept - last_accept))
    assert result.eer_distance == pytest.approx(threshold)


@pytest.mark.parametrize(("seed", "steps"), [(0, 2), (1, 4), (2, 50)])
def test_retrieval_is_that_of_sorted_lists(seed, steps):
    rows, labels = random_set(seed, steps)
    result = reference(rows, labels, k=(1, 3))
    distances = plain_distances(rows)
    found: dict[int, list[tuple[float, float, bool, bool]]] = {}
    for query, name in enumerate(labels):
        # False sorts before True: the same class comes first at equal distance.
        others = sorted((distances[query, row], labels[row] != name) for row in range(len(labels)) if row != query)
        relevant = np.array([not other for _, other in others])
        count = int(relevant.sum())
        if count:
            precision = np.cumsum(relevant[:count]) / np.arange(1, count + 1)
            average = np.sum(precision * relevant[:count]) / count
            found.setdefault(name, []).append((precision[-1], average, relevant[0], relevant[:3].any()))
    expected = np.mean([one for values in found.values() for one in values], axis=0)
    actual = [result.r_precision, result.map_at_r, result.recall_at_k[1], result.recall_at_k[3]]
    np.testing.assert_allclose(actual, expected)
    for index in result.curve_index:
        expected = np.mean(found[result.classes[index]], axis=0)
        actual = [result.class_r_precision, result.class_map_at_r, *result.class_recall_at_k.values()]
        np.testing.assert_allclose([values[index] for values in actual], expected)


def test_neither_order_nor_length_of_rows_matters():
    rows, labels = random_set(3, 4)
    order = np.random.default_rng(4).permutation(len(labels))
    plain = reference(rows, labels)
    moved = reference(rows[order] * np.linspace(0.5, 9, len(labels))[:, None], labels[order])
    for name in ("opis", "epsilon_opis", "eer", "auc", "map_at_r", "target_distance", "calibration_range"):
        assert getattr(plain, name) == pytest.approx(getattr(moved, name), rel=1e-12)


def test_working_in_pieces_changes_nothing(monkeypatch):
    rows, labels = random_set(5, 50)
    whole = reference(rows, labels)
    monkeypatch.setattr(module, "ROWS_AT_A_TIME", 7)
    monkeypatch.setattr(module, "THRESHOLDS_AT_A_TIME", 3)
    pieces = reference(rows, labels)
    assert np.array_equal(whole.negative_distances, pieces.negative_distances)
    assert np.array_equal(whole.utility, pieces.utility)
    assert (whole.eer, whole.eer_distance) == (pieces.eer, pieces.eer_distance)
    np.testing.assert_array_equal(whole.class_eer, pieces.class_eer)


def test_what_has_no_answer_is_refused():
    with pytest.raises(ValueError, match="zero"):
        reference(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), [0, 0, 1])
    with pytest.raises(ValueError, match="pair"):
        reference(on_circle([0, 10]), [0, 0])
    with pytest.raises(ValueError, match="pair"):
        reference(on_circle([0, 10]), [0, 1])
