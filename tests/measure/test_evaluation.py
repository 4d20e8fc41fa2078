"""What an Evaluation answers after the pairs are counted."""

import json
from pathlib import Path

import numpy as np
import pytest

import isomargin as im
from compare import assert_scores_agree, clusters
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs import sampled as sampled_module
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.sampled import REPEATED, repeated_share, sample_pairs
from isomargin.measure.scores.consistency import epsilon_groups, group_size, threshold_spread
from reference import reference

K = (1, 2, 5)


@pytest.fixture(scope="module")
def letters():
    rows, labels = clusters(1200, 40, dimensions=12)
    return rows, labels, im.evaluate(rows, labels, k=K)


@pytest.fixture(scope="module")
def codes():
    """Binary codes: distances that repeat, too many pairs to list."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 25, 1500)
    flips = np.where(generator.random((1500, 16)) < 0.2, -1.0, 1.0)
    rows = generator.choice([-1.0, 1.0], (25, 16))[labels] * flips
    return rows, labels, im.evaluate(rows, labels, k=K)


@pytest.mark.parametrize("change", [{"epsilon": 0.3}, {"c": 2.0}, {"utility": "precision_recall"}], ids=str)
def test_a_setting_that_asks_nothing_new_of_the_pairs_keeps_exact_answers(codes, change):
    rows, labels, found = codes
    assert isinstance(found.counts.negatives, BinnedDistances)
    changed = found.with_settings(**change)
    assert changed.method == "exact"
    assert_scores_agree(changed, reference(rows, labels, k=K, **change), 1e-9)


def test_a_new_range_from_bins_says_that_it_is_interpolated(letters):
    rows, labels, found = letters
    assert found.method == "exact"
    changed = found.with_settings(far=(5e-3, 5e-2), target_far=0.02)
    assert changed.method == "binned"
    assert "interpolated within bins" in changed.notes[-1]
    expected = reference(rows, labels, k=K, far=(5e-3, 5e-2), target_far=0.02)
    assert_scores_agree(changed, expected, 1e-3)
    assert changed.opis == pytest.approx(expected.opis, rel=1e-4)


def test_a_set_small_enough_to_list_answers_everything_exactly():
    rows, labels = clusters(300, 12, singles=3)
    with pytest.warns(UserWarning, match="single item"):
        found = im.evaluate(rows, labels, k=K)
    assert isinstance(found.counts.negatives, ListedDistances)
    changed = found.with_settings(far=(5e-3, 5e-2), grid=37, target_frr=0.2)
    assert changed.method == "exact"
    assert_scores_agree(changed, reference(rows, labels, k=K, far=(5e-3, 5e-2), grid=37, target_frr=0.2), 1e-9)


@pytest.mark.parametrize("fixture", ["letters", "codes"])
def test_the_target_is_the_operating_point_at_its_distance(fixture, request):
    found = request.getfixturevalue(fixture)[2]
    point = found.at(found.target.distance)
    assert (point.far, point.frr) == (found.target.far, found.target.frr)
    assert found.target.far >= found.settings.target_far


def test_any_threshold_has_the_rates_of_the_pairs(letters):
    rows, labels, found = letters
    vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distance = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0))
    same = labels[:, None] == labels[None, :]
    upper = np.triu(np.ones_like(same), 1)
    for threshold in (0.5, 0.9, 1.2, 1.6):
        point = found.at(threshold)
        near = distance <= threshold
        assert point.far == pytest.approx(near[upper & ~same].mean(), abs=1e-5)
        assert point.frr == pytest.approx(1 - near[upper & same].mean(), abs=1e-9)
        for i in (0, 7, 39):
            own = labels == i
            assert point.class_far[i] == pytest.approx(near[own][:, ~own].mean(), abs=1e-4)
            assert point.class_frr[i] == pytest.approx(1 - near[own][:, own][np.triu_indices(own.sum(), 1)].mean())


def test_contributions_of_classes_sum_to_opis(letters):
    found = letters[2]
    assert found.per_class["opis_contribution"].sum() == pytest.approx(found.opis, rel=1e-12)


def test_printed_opis_is_the_loop_of_algorithm_1_over_the_grid(letters):
    rows, labels, _ = letters
    found = im.evaluate(rows, labels, k=K, grid=21)
    vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distance = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0))
    np.fill_diagonal(distance, np.nan)  # an item is no pair with itself
    low, high = found.calibration_range
    total = 0.0
    for d in np.linspace(low, high, 21):
        utility = []
        for i in np.unique(labels):
            own = labels == i
            psi = np.nanmean(np.where(np.isnan(distance[own][:, own]), np.nan, distance[own][:, own] <= d))
            phi = (distance[own][:, ~own] > d).mean()
            utility.append(2 * phi * psi / (phi + psi))
        total += sum((u - np.mean(utility)) ** 2 for u in utility) / (len(utility) * (high - low))
    assert found.printed_opis == pytest.approx(total, rel=1e-6)
    assert found.printed_opis == pytest.approx(found.opis * 21 / (high - low), rel=1e-12)
    assert found.scores()["printed_opis"] == found.printed_opis


def test_worst_classes_are_the_rows_with_the_worst_values(letters):
    found = letters[2]
    table = found.per_class
    assert found.worst_classes(3)["mean_utility"].tolist() == sorted(table["mean_utility"])[:3]
    assert found.worst_classes(3, by="far")["far"].tolist() == sorted(table["far"], reverse=True)[:3]
    with pytest.raises(im.InputError, match="choose from mean_utility"):
        found.worst_classes(by="class")


def test_groups_of_epsilon_opis_are_rounded_to_the_nearest_and_never_empty():
    assert [group_size(0.1, classes) for classes in (1, 4, 5, 14, 15, 659, 11_316)] == [1, 1, 1, 1, 2, 66, 1132]
    assert group_size(1.0, 7) == 7
    worst, best = epsilon_groups(np.array([0.5, 0.5, 0.5, 0.9]), 0.5)
    assert (worst.tolist(), best.tolist()) == ([0, 1], [2, 3])


def test_spread_on_the_scale_of_the_range_is_zero_at_its_start_and_one_at_its_end():
    spread = threshold_spread(np.array([0.9, 1.0, 1.1]), (0.9, 1.1))
    assert spread.relative_quantiles[0.5] == pytest.approx(0.5)
    assert spread.relative_quantiles[0.05] == pytest.approx(0.05)
    assert spread.relative_deviation == pytest.approx(np.std([0.9, 1.0, 1.1]) / 0.2)


def test_sampled_negatives_are_of_the_class_and_ten_to_one():
    rows, labels = clusters(200, 6, dimensions=4, singles=2)
    data = sort_by_class(rows, labels)
    counts = sample_pairs(data, per_positive=10, seed=3)
    assert counts.negatives.totals.tolist() == (10 * counts.positives.totals).tolist()
    distance = np.sqrt(np.maximum(2 - 2 * data.vectors.astype(np.float64) @ data.vectors.astype(np.float64).T, 0))
    for i in range(6):
        own = data.class_of == i
        possible = np.sort(distance[own][:, ~own].ravel())
        drawn = counts.negatives.of_class(i)
        place = np.clip(np.searchsorted(possible, drawn), 1, len(possible) - 1)
        gap = np.minimum(abs(possible[place] - drawn), abs(possible[place - 1] - drawn))
        assert gap.max() < 1e-9
        positive = np.sort(distance[own][:, own][np.triu_indices(own.sum(), 1)])
        np.testing.assert_allclose(counts.positives.of_class(i), positive, atol=1e-7)


def test_the_sampled_protocol_estimates_what_all_pairs_give():
    rows, labels = clusters(1500, 30, dimensions=12)
    whole = im.evaluate(rows, labels)
    found = [im.evaluate(rows, labels, pairs="sampled", seed=seed) for seed in range(5)]
    assert found[0].negative_pairs == 10 * found[0].positive_pairs
    assert found[0].recall_at_k == whole.recall_at_k
    assert np.mean([each.opis for each in found]) == pytest.approx(whole.opis, rel=0.05)
    assert found[0].opis != found[1].opis
    assert found[0].scores() == im.evaluate(rows, labels, pairs="sampled", seed=0).scores()


def test_sampled_pairs_too_many_to_list_are_the_same_pairs_in_bins(monkeypatch):
    rows, labels = clusters(600, 20, dimensions=12, singles=3)
    listed = im.evaluate(rows, labels, pairs="sampled", seed=2)
    monkeypatch.setattr(sampled_module, "MOST_LISTED", 1000)
    found = im.evaluate(rows, labels, pairs="sampled", seed=2)
    assert (listed.method, found.method) == ("exact", "binned")
    assert isinstance(found.counts.negatives, BinnedDistances)
    assert found.counts.negatives.totals.tolist() == listed.counts.negatives.totals.tolist()
    for name in ("opis", "epsilon_opis", "debiased_opis", "eer", "auc", "frr"):
        assert found.scalars()[name] == pytest.approx(listed.scalars()[name], rel=1e-4), name
    monkeypatch.setattr(sampled_module, "LISTED_POSITIVES", 1000)
    both = im.evaluate(rows, labels, pairs="sampled", seed=2)
    assert isinstance(both.counts.positives, BinnedDistances)
    assert both.opis == pytest.approx(listed.opis, rel=1e-3)
    assert both.intervals(draws=100)["opis"].low < both.opis


def test_blocks_of_sampled_pairs_make_up_the_whole(monkeypatch):
    data = sort_by_class(*clusters(120, 4, dimensions=5))
    whole = sample_pairs(data, per_positive=10, seed=0)
    monkeypatch.setattr(sampled_module, "BLOCK", 17)
    in_blocks = sample_pairs(data, per_positive=10, seed=0)
    np.testing.assert_array_equal(in_blocks.positives.distances, whole.positives.distances)
    assert in_blocks.negatives.totals.tolist() == whole.negatives.totals.tolist()


@pytest.mark.parametrize("dimensions", [16, 512, 2048])
def test_continuous_embeddings_are_not_taken_for_repeated_ones(dimensions):
    rows, labels = clusters(3000, 50, dimensions=dimensions)
    assert repeated_share(sort_by_class(rows, labels)) < REPEATED


def test_repeated_distances_are_seen(codes):
    assert repeated_share(sort_by_class(*codes[:2])) > 0.9


@pytest.mark.parametrize(("dimensions", "reason"), [(2, "in 2 dimensions"), (3, "in 3 dimensions")])
def test_few_dimensions_are_counted_exactly(dimensions, reason, monkeypatch):
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    rows, labels = clusters(1500, 10, dimensions=dimensions, noise=0.3)
    with pytest.warns(UserWarning, match=reason):
        found = im.evaluate(rows, labels, k=K)
    assert found.recall_at_k == pytest.approx(reference(rows, labels, k=K).recall_at_k, abs=1e-9)


def test_queries_that_float32_cannot_rank_are_ranked_in_float64(monkeypatch):
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    rows, labels = clusters(2500, 60, dimensions=5, noise=0.5)
    # Near twins in other classes, nearer than float32 tells from a positive twin.
    rows[:400] = rows[400:800] + 1e-5 * np.random.default_rng(0).normal(size=(400, 5))
    labels[:200] = labels[400:600]
    found = im.evaluate(rows, labels, k=K)
    assert found.method == "binned"
    expected = reference(rows, labels, k=K)
    assert found.recall_at_k == pytest.approx(expected.recall_at_k, rel=1e-3)
    assert found.map_at_r == pytest.approx(expected.map_at_r, rel=1e-3)


@pytest.mark.parametrize("choices", [{}, {"device": "cpu"}, {"pairs": "sampled"}], ids=str)
def test_uncentred_embeddings_are_ranked_in_float64_on_every_path(choices, monkeypatch):
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    rows, labels = clusters(1200, 40, dimensions=16)
    rows += 100
    with pytest.warns(UserWarning, match="are very close together"):
        found = im.evaluate(rows, labels, k=K, **choices)
    expected = reference(rows, labels, k=K)
    assert found.recall_at_k == pytest.approx(expected.recall_at_k, rel=1e-6)
    assert found.map_at_r == pytest.approx(expected.map_at_r, rel=1e-6)


def test_embeddings_too_close_to_measure_are_said_to_be():
    rows, labels = clusters(200, 10, dimensions=16)
    with pytest.warns(UserWarning, match="subtract their mean"):
        im.evaluate(rows + 1e5, labels)


def test_the_representation_is_one_line(letters):
    assert len(repr(letters[2])) < 150
    assert "opis=" in repr(letters[2])


@pytest.mark.parametrize("value", [-0.1, 2.1, "a", [0.9], float("nan")])
def test_a_threshold_that_is_no_distance_is_refused(letters, value):
    with pytest.raises(im.InputError, match="distance is"):
        letters[2].at(value)


def test_a_number_of_classes_must_be_one(letters):
    with pytest.raises(im.InputError, match="whole number"):
        letters[2].worst_classes(-1)


OLD_FILE = Path(__file__).parent / "data" / "evaluation-version-2.json"


def test_a_file_of_the_version_before_still_loads_with_the_scores_that_it_states():
    stated = json.loads(OLD_FILE.read_text(encoding="utf-8"))["scores"]
    scalars = im.Evaluation.load(OLD_FILE).scalars()
    for name in ("opis", "debiased_opis", "epsilon_opis", "relative_opis", "mean_utility", "eer", "auc", "map_at_r"):
        assert scalars[name] == stated[name], name
    assert scalars["items"] == stated["images"] == 20


@pytest.mark.parametrize("path", [("scores", "opis"), ("sizes", "values", 0), ("notes",), ("settings", "grid")])
def test_a_saved_evaluation_that_was_edited_is_refused(tmp_path, path):
    file = tmp_path / "evaluation.json"
    im.Evaluation.load(OLD_FILE).save(file)
    assert im.Evaluation.load(file).items == 20
    values = json.loads(file.read_text(encoding="utf-8"))
    *parents, last = path
    place = values
    for name in parents:
        place = place[name]
    place[last] = ["edited"] if last == "notes" else place[last] + 1
    file.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(im.InputError, match="does not match its checksum, so the file was edited or damaged"):
        im.Evaluation.load(file)
