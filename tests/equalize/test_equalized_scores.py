"""Every score of equalized similarities against the definitional reference, however pairs are counted.

The shifts are chosen freely here, so that similarities far above 1 and below -1 occur; the offsets from which an
equalizer computes them are tested in `test_equalizer.py`.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from given_shifts import Given, signed_distances, similarities
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import assert_classes_agree, assert_scores_agree, clusters, mean_class_errors
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs import inputs, tiles, torch_tiles
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.sampled import sample_pairs
from isomargin.measure.statistics import item_noise
from isomargin.measure.statistics.item_resampling import item_rates
from reference import reference

K = (1, 2, 4, 8)
EXACT = 1e-9
BINNED = 5e-4  # what half a pair is of the 1,500 that the target FAR accepts
RATES = {"far": (0.02, 0.3), "target_far": 0.02}
OLD_FILE = Path(__file__).parents[1] / "measure" / "data" / "evaluation-version-2.json"


def measured(rows, labels, values, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return im.evaluate(rows, labels, equalizer=Given(values), k=K, **{**RATES, **options})


def expected(rows, labels, values, **options):
    return reference(rows, labels, k=K, similarities=similarities(rows, values), **{**RATES, **options})


@pytest.fixture(scope="module")
def uneven():
    """400 rows in 12 classes and 3 of a single row, with shifts that make some pairs more similar than 1."""
    rows, labels = clusters(400, 12, singles=3, noise=0.9, seed=3)
    return rows, labels, 0.35 * np.random.default_rng(4).normal(size=len(labels))


@pytest.fixture(scope="module")
def definition(uneven):
    found = expected(*uneven)
    assert found.calibration_range[0] < -0.1  # the calibration range itself reaches below zero
    assert found.positive_distances[0] < -0.5
    return found


# ----- however pairs are counted


def test_the_exact_count_is_that_of_the_definition(uneven, definition):
    found = measured(*uneven)
    assert found.method == "exact"
    assert found.axis.name == "equalized_distance"
    assert_scores_agree(found, definition, EXACT)
    assert_classes_agree(found, definition, EXACT)


def test_the_exact_count_in_groups_is_the_same(uneven, definition, monkeypatch):
    from isomargin.measure.pairs import exact

    monkeypatch.setattr(exact, "GROUP_BYTES", 8 * len(uneven[0]) * 60)
    monkeypatch.setattr(exact, "KEPT_DISTANCES", 0)
    monkeypatch.setattr(exact, "LISTED_NEGATIVES", 0)
    found = measured(*uneven)
    assert isinstance(found.counts.negatives, BinnedDistances)
    assert_scores_agree(found, definition, EXACT)
    assert_classes_agree(found, definition, EXACT)
    assert found.counts.negatives.pooled_total == definition.negative_pairs  # no pair is lost beyond the bins


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("positives", ["listed", "binned"])
def test_the_binned_counts_are_those_of_the_definition(uneven, definition, device, positives, monkeypatch):
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    if positives == "binned":
        monkeypatch.setattr(tiles, "LISTED_POSITIVES", 0)
        monkeypatch.setattr(torch_tiles, "LISTED_POSITIVES", 0)
    found = measured(*uneven, device=device)
    assert found.method == "binned"
    assert isinstance(found.counts.positives, ListedDistances if positives == "listed" else BinnedDistances)
    assert_scores_agree(found, definition, BINNED if positives == "listed" else 3e-3)
    assert max(mean_class_errors(found, definition).values()) < (1e-4 if positives == "listed" else 3e-3)
    assert found.counts.negatives.pooled_total == definition.negative_pairs
    assert found.counts.negatives.start < definition.negative_distances[0]
    assert found.counts.negatives.reach > definition.negative_distances[-1]


@pytest.mark.parametrize("tile_rows", [64, 512])
def test_bins_hold_the_pairs_of_the_definition_in_tiles_of_any_size(uneven, definition, tile_rows):
    rows, labels, values = uneven
    data = sort_by_class(rows, labels, shifts=Given(values).shifts(rows))
    counts, ranks = tiles.count_pairs(data, k=K, tile_rows=tile_rows)
    at = np.quantile(definition.negative_distances, [0.01, 0.2, 0.5, 0.9])
    within = np.searchsorted(definition.negative_distances, at, side="right")
    np.testing.assert_allclose(counts.negatives.pooled_within(at), within, atol=2)
    recall = ranks.hits.sum(axis=0) / ranks.queries.sum()
    np.testing.assert_allclose(recall, list(definition.recall_at_k.values()))


def test_sampled_pairs_have_the_distances_of_the_definition(uneven):
    rows, labels, values = uneven
    order = np.argsort(labels, kind="stable")
    distances = signed_distances(rows, values)[np.ix_(order, order)]
    data = sort_by_class(rows, labels, np.float64, Given(values).shifts(rows))
    counts = sample_pairs(data, 5, seed=0)
    for index in (0, 5):
        own = np.arange(data.starts[index], data.ends[index])
        positives = distances[np.ix_(own, own)][np.triu_indices(len(own), 1)]
        np.testing.assert_allclose(counts.positives.of_class(index), np.sort(positives), atol=1e-6)
        others = np.delete(distances[own], own, axis=1).ravel()
        found = counts.negatives.of_class(index)
        assert len(found) == 5 * len(positives)
        assert np.abs(found[:, None] - others).min(axis=1).max() < 1e-6
    assert counts.negatives.distances.min() < -0.1
    sampled = measured(*uneven, pairs="sampled")
    assert sampled.negative_pairs == 10 * sampled.positive_pairs
    assert sampled.recall_at_k == measured(*uneven).recall_at_k


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1), st.integers(2, 7), st.integers(3, 6), st.sampled_from([0.05, 0.5, 2.0]))
def test_any_small_set_with_any_shifts_agrees_with_the_definition(seed, classes, dimensions, size):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 8, classes)
    sizes[0] = max(sizes[0], 2)
    labels = generator.permutation(np.repeat(np.arange(classes), sizes))
    rows = generator.normal(size=(len(labels), dimensions))
    values = size * generator.normal(size=len(labels))
    negatives = (len(labels) ** 2 - (sizes**2).sum()) // 2
    rates = {"far": (max(0.05, 1 / negatives), 0.97), "target_far": max(0.2, 1 / negatives), "grid": 13}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reference.SIMILARITY_DECIMALS", 14)
        definition = expected(rows, labels, values, **rates)
    assume(definition.calibration_range[0] < definition.calibration_range[1])
    # Rounding decides about a pair that is as far as a threshold within the range, to all digits.
    thresholds = np.linspace(*definition.calibration_range, 13)[1:-1]
    distances = np.concatenate([definition.positive_distances, definition.negative_distances])
    assume(np.abs(distances[:, None] - thresholds).min() > 1e-9)
    assume(np.abs(distances).min() > 1e-3)  # next to zero, the root of a rounded number is not precise to 1e-9
    found = measured(rows, labels, values, **rates)
    assert_scores_agree(found, definition, EXACT)
    assert_classes_agree(found, definition, EXACT)


def test_both_orders_of_a_pair_have_the_same_similarity():
    generator = np.random.default_rng(0)
    product = generator.normal(size=(300, 300))
    product += product.T
    values = generator.normal(size=300)
    data = inputs.ClassSortedVectors(np.empty((300, 1)), *[np.arange(300)] * 3, (), values)
    shifted = data.shift(product.copy(), slice(None), slice(None))
    np.testing.assert_array_equal(shifted, shifted.T)
    np.testing.assert_allclose(shifted - product, values + values[:, None])


# ----- ranks


@pytest.mark.parametrize("how", ["exact", "binned", "torch", "large classes"])
def test_ranks_are_right_where_all_positives_are_less_similar_than_any_cosine(how, monkeypatch):
    rows, labels = clusters(200, 8, seed=5)
    values = np.where(np.arange(200) % 4 == 0, -4.0, 0.3)  # every fourth row has s' below -2 to all others
    matrix = similarities(rows, values)
    far_off = [i for i in range(200) if np.delete(matrix[i], i)[np.delete(labels == labels[i], i)].max() < -2]
    assert len(far_off) > 20
    if how != "exact":
        monkeypatch.setattr(evaluate_module, "SMALL", 0)
    if how == "large classes":
        monkeypatch.setattr(tiles, "RANKED_CLASS", 4)
    found = measured(rows, labels, values, device="cpu" if how == "torch" else None)
    definition = expected(rows, labels, values)
    assert list(found.recall_at_k.values()) == pytest.approx(list(definition.recall_at_k.values()), abs=1e-12)
    coarse = 0.02 if how == "large classes" else 1e-12  # their queries are ranked in bins
    assert found.r_precision == pytest.approx(definition.r_precision, abs=coarse)
    assert found.map_at_r == pytest.approx(definition.map_at_r, abs=coarse)


def test_a_query_is_not_its_own_nearest_neighbour_whatever_its_shift(monkeypatch):
    # Row 0 has s' of 9 with itself, and is not to be found.
    rows, labels = np.eye(6), [0, 0, 1, 1, 2, 2]
    values = np.array([4.0, 0, 0, 0.1, 0.2, 0])
    rates = {"far": (0.1, 0.9), "target_far": 0.1}
    for small in (1 << 23, 0):
        monkeypatch.setattr(evaluate_module, "SMALL", small)
        found = measured(rows, labels, values, **rates)
        assert found.recall_at_k == expected(rows, labels, values, **rates).recall_at_k


# ----- what does not matter


@settings(max_examples=8, deadline=None)
@given(st.floats(-1, 1), st.integers(0, 2**32 - 1))
def test_a_constant_moves_thresholds_and_nothing_else(constant, seed):
    rows, labels = clusters(60, 5, dimensions=6, seed=seed)
    values = 0.2 * np.random.default_rng(seed).normal(size=60)
    one, other = measured(rows, labels, values), measured(rows, labels, values + constant)
    for name in ("eer", "auc", "recall_at_k", "r_precision", "map_at_r"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-12), name
    for name in ("far", "frr"):
        assert getattr(other.target, name) == pytest.approx(getattr(one.target, name), abs=1e-12)
        np.testing.assert_allclose(getattr(other.target, f"class_{name}"), getattr(one.target, f"class_{name}"))
    moved = [1 - each.target.distance * abs(each.target.distance) / 2 for each in (one, other)]
    assert moved[1] - moved[0] == pytest.approx(2 * constant, abs=1e-9)


def test_the_order_of_rows_changes_nothing(uneven):
    rows, labels, values = uneven
    order = np.random.default_rng(0).permutation(len(labels))
    one, other = measured(rows, labels, values).scalars(), measured(rows[order], labels[order], values[order]).scalars()
    assert other == pytest.approx(one, rel=1e-9, abs=1e-12, nan_ok=True)


def test_shifts_of_zero_give_the_scores_of_cosines(uneven):
    rows, labels, _ = uneven
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = im.evaluate(rows, labels, k=K, **RATES)
    zero = measured(rows, labels, np.zeros(len(labels)))
    # The levels at which item noise is measured start at the axis's lowest distance, which is not the same.
    scores = {name: value for name, value in plain.scalars().items() if "debiased" not in name and "noise" not in name}
    assert {name: zero.scalars()[name] for name in scores} == pytest.approx(scores, rel=1e-9)
    assert zero.debiased_opis == pytest.approx(plain.debiased_opis, rel=1e-3)


# ----- a real equalizer


@pytest.fixture(scope="module")
def fitted():
    """Rows, labels and an equalizer of them."""
    rows, labels = clusters(300, 12, noise=0.9, seed=7)
    return rows, labels, im.Equalizer(20, 10, 0.6).fit(rows)


def by_definition(rows, labels, new_classes):
    """(n, n) similarities s - w (r + r') + c, in float64."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T
    r = []
    for left_out in (np.eye(len(rows), dtype=bool), labels[:, None] == labels):
        others = np.where(left_out, -np.inf, cosines)
        r.append(-np.sort(-others, axis=1)[:, 10:30].mean(axis=1))
    offsets = r[1] if new_classes else r[0]
    return cosines - 0.6 * (offsets[:, None] + offsets) + 2 * 0.6 * r[0].mean()


@pytest.mark.parametrize("new_classes", [False, True])
def test_an_equalizer_is_measured_as_it_is_defined(fitted, new_classes):
    rows, labels, equalizer = fitted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = im.evaluate(rows, labels, equalizer=equalizer, new_classes=new_classes, k=K, **RATES)
    definition = reference(rows, labels, k=K, similarities=by_definition(rows, labels, new_classes), **RATES)
    assert_scores_agree(found, definition, 1e-3)  # offsets are means of float32 cosines
    assert found.opis == pytest.approx(definition.opis, rel=1e-4)
    assert found.equalizer["own_class"] == ("left_out" if new_classes else "in_reference")


def test_rows_with_ids_are_measured_alike_in_any_order(fitted):
    rows, labels, _ = fitted
    order = np.random.default_rng(1).permutation(len(rows))
    equalizer = im.Equalizer(20, 10, 0.6).fit(rows, ids=range(len(rows)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        one, other = (
            im.evaluate(rows[to], labels[to], equalizer=equalizer, ids=np.arange(len(rows))[to], **RATES)
            for to in (np.arange(len(rows)), order)
        )
    assert other.scalars() == pytest.approx(one.scalars(), rel=1e-3)
    assert other.opis == pytest.approx(one.opis, rel=1e-4)


def test_arguments_that_concern_an_equalizer_need_one(fitted):
    rows, labels, _ = fitted
    for options in ({"new_classes": True}, {"ids": range(len(rows))}):
        with pytest.raises(im.InputError, match="concern the neighbours of an equalizer"):
            im.evaluate(rows, labels, **options)
    with pytest.raises(im.InputError, match="of type EqualizerCV: a fitted isomargin"):
        im.evaluate(rows, labels, equalizer=im.EqualizerCV())
    with pytest.raises(im.InputError, match="equalizer is of type str"):
        im.evaluate(rows, labels, equalizer="equalizer.json")


# ----- what is computed from the items again


def test_item_noise_counts_shifted_similarities(uneven):
    rows, labels, values = uneven
    data = sort_by_class(rows, labels, np.float64, Given(values).shifts(rows))
    order = np.argsort(labels, kind="stable")
    matrix, names = similarities(rows, values)[np.ix_(order, order)], labels[order]
    classes = np.flatnonzero(data.sizes >= 4)
    chosen = np.concatenate([np.arange(data.starts[i], data.ends[i]) for i in classes])
    everything = np.arange(len(names))
    levels = np.array([-0.6, 0.8])  # similarities of 1.18 and 0.68
    positives, far = item_noise.count_levels(data, chosen, data.sizes[classes], [everything, everything[::2]], levels)
    same = names[:, None] == names
    for column, least in enumerate((1.18, 0.68)):
        accepted = matrix >= least
        own = (accepted & same).sum(axis=1) - np.diag(accepted)
        np.testing.assert_array_equal(positives[:, column], own[chosen])
        for half, others in enumerate((everything, everything[::2])):
            wrong = (accepted & ~same)[:, others].sum(axis=1) / (~same)[:, others].sum(axis=1)
            np.testing.assert_allclose(far[half, :, column], wrong[chosen])
        assert 0 < far[0, :, column].mean() < 1


def test_item_rates_count_shifted_similarities(uneven):
    rows, labels, values = uneven
    data = sort_by_class(rows, labels, np.float64, Given(values).shifts(rows))
    order = np.argsort(labels, kind="stable")
    matrix, names = similarities(rows, values)[np.ix_(order, order)], labels[order]
    same = (names[:, None] == names) & ~np.eye(len(names), dtype=bool)
    other = names[:, None] != names
    positives, negatives = item_rates(data, np.array([0.8, -0.6]))
    for column, least in enumerate((0.68, 1.18)):
        accepted = matrix >= least
        sensitivity = np.where(same.any(axis=1), (accepted & same).sum(axis=1) / np.maximum(same.sum(axis=1), 1), 0)
        np.testing.assert_allclose(positives[:, column], sensitivity, rtol=1e-6)
        np.testing.assert_allclose(negatives[:, column], (accepted & other).sum(axis=1) / other.sum(axis=1), rtol=1e-6)


def test_intervals_over_classes_and_items_hold_the_scores(uneven):
    rows, labels, values = uneven
    found = measured(*uneven)
    shifts = Given(values).shifts(rows)
    for bounds in (found.intervals(draws=100), found.intervals(draws=100, items=(rows, labels), shifts=shifts)):
        assert bounds["opis"].value == found.opis
        assert bounds["opis"].low < found.opis < bounds["opis"].high
        assert bounds["frr"].low < found.target.frr < bounds["frr"].high
    with pytest.raises(im.InputError, match="the evaluation has equalized similarities"):
        found.intervals(draws=100, items=(rows, labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = im.evaluate(rows, labels, **RATES)
    with pytest.raises(im.InputError, match="the evaluation has plain similarities"):
        plain.intervals(draws=100, items=(rows, labels), shifts=shifts)


def test_raw_and_equalized_similarities_are_compared(uneven):
    rows, labels, _ = uneven
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = im.evaluate(rows, labels, k=K, **RATES)
        found = measured(*uneven)
        comparison = im.compare({"raw": plain, "equalized": found}, draws=100)
    row = next(row for row in comparison.others["equalized"] if row.score == "opis")
    assert (row.first, row.other) == (plain.opis, found.opis)
    assert row.difference.low <= found.opis - plain.opis <= row.difference.high


# ----- other settings, and files


def test_thresholds_are_checked_against_the_equalized_axis(uneven, definition):
    found = measured(*uneven)
    low, high = found.axis.lowest, found.axis.highest
    assert low < -1
    assert high > 2
    assert found.at(low).far == 0
    assert found.at(high).far == 1
    accepted = np.searchsorted(definition.negative_distances, -0.2, side="right")
    assert found.at(-0.2).far == accepted / definition.negative_pairs > 0
    for distance in (low - 0.01, high + 0.01, np.nan):
        with pytest.raises(im.InputError, match="distance is"):
            found.at(distance)
    moved = found.with_settings(distances=(-0.5, 0.5))
    assert_scores_agree(moved, expected(*uneven, distances=(-0.5, 0.5)), EXACT)
    for distances in ((low - 0.01, 1.0), (1.0, high + 0.01)):
        with pytest.raises(im.InputError, match=r"<= lower < upper <="):
            found.with_settings(distances=distances)
        with pytest.raises(im.InputError, match=r"<= lower < upper <="):
            measured(*uneven, distances=distances)


@pytest.mark.parametrize("how", ["listed", "exact", "binned"])
def test_files_keep_the_axis_and_the_equalizer(uneven, how, tmp_path, monkeypatch):
    from isomargin.measure.pairs import exact

    if how != "listed":
        monkeypatch.setattr(exact, "LISTED_NEGATIVES", 0)
    if how == "binned":
        monkeypatch.setattr(evaluate_module, "SMALL", 0)
    found = measured(*uneven)
    found.save(tmp_path / "e.json")
    loaded = im.Evaluation.load(tmp_path / "e.json")
    assert loaded.axis == found.axis
    assert loaded.equalizer == found.equalizer
    assert loaded.scalars() == pytest.approx(found.scalars(), rel=0, abs=0, nan_ok=True)
    assert loaded.counts.negatives.start == found.counts.negatives.start
    at = float(np.mean(found.calibration_range))
    assert loaded.at(at).far == found.at(at).far
    values = json.loads((tmp_path / "e.json").read_text())
    assert values["score_axis"]["name"] == "equalized_distance"
    values["score_axis"]["lowest"] = 0.0
    (tmp_path / "e.json").write_text(json.dumps(values))
    with pytest.raises(im.InputError, match="does not match its checksum"):
        im.Evaluation.load(tmp_path / "e.json")


def test_files_from_before_there_were_equalizers_have_plain_distances():
    old = im.Evaluation.load(OLD_FILE)
    assert old.equalizer is None
    assert (old.axis.name, old.axis.lowest, old.axis.highest) == ("l2_distance", 0, 2)
    with pytest.raises(im.InputError, match="from 0 to 2 is needed"):
        old.at(-0.1)
