"""Probabilities of a match: that known ones are found, and that errors are those of the definitions."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.calibration import calibration_curve

import isomargin as im
from compare import clusters
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.thresholds import calibration_error
from isomargin.thresholds.calibrate import Calibration, calibrate, deal
from isomargin.thresholds.calibration_error import calibration_errors

METHODS = ("platt", "isotonic", "temperature")
SMALLEST = im.evaluate(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1], distances=(0.5, 1.5), target_far=0.5)


# ----- pairs with a known answer


def evaluation_of(positives, negatives, appearances=1):
    """An evaluation of these similarities, a list of each kind for each class."""

    def listed(classes, appearances):
        distances = [np.sort(np.sqrt(2 - 2 * np.asarray(each, np.float64))) for each in classes]
        offsets = np.cumsum([0] + [len(each) for each in distances])
        return ListedDistances(np.concatenate(distances), offsets, appearances)

    names = np.arange(len(positives))
    counts = PairCounts(listed(positives, 1), listed(negatives, appearances))
    return replace(SMALLEST, names=names, sizes=np.full(len(names), 2), counts=counts)


def drawn(probability, similarity, classes=20):
    """Pairs dealt to classes at random, each a match with the probability of its similarity."""
    generator = np.random.default_rng(1)
    match = generator.random(len(similarity)) < probability(similarity)
    class_of = generator.integers(0, classes, len(similarity))
    parts = [[similarity[(match == kind) & (class_of == i)] for i in range(classes)] for kind in (True, False)]
    return evaluation_of(*parts), match.mean()


def uniform(pairs, low=-1.0, high=1.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, pairs)


def standard_errors(design, probability):
    """Of maximum likelihood, from Fisher's information."""
    information = (design * (probability * (1 - probability))[:, None]).T @ design
    return np.sqrt(np.diag(np.linalg.inv(information)))


@pytest.fixture(scope="module")
def letters():
    rows, labels = clusters(240, 12, dimensions=8, singles=2)
    with pytest.warns(UserWarning, match="single item"):
        return im.evaluate(rows, labels)


# ----- recovering what is known


def test_platt_finds_slope_and_intercept_within_sampling_error():
    similarity = uniform(60_000)
    evaluation, matches = drawn(lambda s: expit(8 * s - 2), similarity)
    found = calibrate(evaluation, "platt", prior=matches)
    design = np.stack([similarity, np.ones_like(similarity)], 1)
    off = np.array([found.parameters["slope"] - 8, found.parameters["intercept"] + 2])
    assert np.all(np.abs(off) < 4 * standard_errors(design, expit(8 * similarity - 2)))
    assert calibration_errors(evaluation, found).ece < 0.005
    assert found.errors_after.ece < 0.015  # a fold has 12,000 pairs
    assert found.errors_before.ece > 0.1


def test_platt_at_balanced_prior_has_the_share_of_matches_taken_out():
    evaluation, matches = drawn(lambda s: expit(8 * s - 2), uniform(60_000))
    found = calibrate(evaluation, "platt")
    assert found.prior == 0.5
    assert found.parameters["intercept"] == pytest.approx(-2 - logit(matches), abs=0.15)


def test_temperature_finds_its_width_within_sampling_error():
    similarity = uniform(40_000, -0.3, 0.9)
    evaluation, _ = drawn(lambda s: expit((s - 0.3) / 0.1), similarity)
    found = calibrate(evaluation, "temperature")
    inverse_error = standard_errors((similarity - 0.3)[:, None], expit((similarity - 0.3) / 0.1))[0]
    assert abs(1 / found.parameters["temperature"] - 10) < 5 * inverse_error  # and the centre's own error
    assert found.parameters["centre"] == pytest.approx(0.3, abs=0.01)
    assert calibration_errors(evaluation, found).ece < 0.02


def test_the_centre_of_temperature_is_the_equal_error_threshold(letters):
    centre = calibrate(letters, "temperature").parameters["centre"]
    threshold = np.sqrt(2 - 2 * centre)
    assert threshold == pytest.approx(letters.eer_distance, abs=1e-3)
    for kind in (letters.counts.positives, letters.counts.negatives):  # no pair lies between
        assert np.array_equal(*(kind.pooled_within(np.array([each])) for each in (threshold, letters.eer_distance)))


def test_isotonic_finds_steps():
    evaluation, matches = drawn(lambda s: np.select([s < -0.2, s < 0.4], [0.1, 0.5], 0.9), uniform(60_000))
    found = calibrate(evaluation, "isotonic", prior=matches)
    np.testing.assert_allclose(found([-0.7, -0.4]), 0.1, atol=0.03)
    np.testing.assert_allclose(found([0.0, 0.2]), 0.5, atol=0.04)
    np.testing.assert_allclose(found([0.6, 0.8]), 0.9, atol=0.03)
    assert found.errors_after.ece < 0.02


def test_isotonic_finds_what_no_sigmoid_has():
    evaluation, matches = drawn(lambda s: 0.2 + 0.6 * np.square((1 + s) / 2), uniform(60_000))
    at = np.linspace(-0.9, 0.9, 19)
    isotonic, platt = (calibrate(evaluation, each, prior=matches) for each in ("isotonic", "platt"))
    np.testing.assert_allclose(isotonic(at), 0.2 + 0.6 * np.square((1 + at) / 2), atol=0.05)
    assert isotonic.errors_after.ece < platt.errors_after.ece


# ----- errors against definitions


def plain_errors(positives, negatives, probability, prior, bins):
    """ECE, MCE and adaptive ECE of two lists of similarities, by loops over pairs."""
    pairs = [(p, 1, prior / len(positives)) for p in probability(np.array(positives)).tolist()]
    pairs += [(p, 0, (1 - prior) / len(negatives)) for p in probability(np.array(negatives)).tolist()]
    gaps, weights = [], []
    for k in range(bins):
        low, high = k / bins, (k + 1) / bins
        inside = [each for each in pairs if low < each[0] <= high or (k == 0 and each[0] == 0)]
        gaps.append(abs(sum(w * y for p, y, w in inside) - sum(w * p for p, y, w in inside)))
        weights.append(sum(w for p, y, w in inside))
    ece, mce = sum(gaps), max(gap / weight for gap, weight in zip(gaps, weights, strict=True) if weight > 0)

    # Pour pairs of equal probability, in its order, into buckets that hold 1 / bins each.
    buckets, room = [0.0], 1 / bins
    for _, group in itertools.groupby(sorted(pairs), key=lambda each: each[0]):
        members = list(group)
        left, excess = sum(w for p, y, w in members), sum(w * (y - p) for p, y, w in members)
        whole = left
        while left > room:
            buckets[-1] += excess * room / whole
            left, room = left - room, 1 / bins
            buckets.append(0.0)
        buckets[-1] += excess * left / whole
        room -= left
    return ece, mce, sum(abs(each) for each in buckets)


def similarities(distances, which=None):
    values = distances.distances if which is None else distances.of_class(which)
    return (1 - np.square(values) / 2).tolist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prior", [0.5, 0.03])
def test_errors_pooled_and_of_classes_are_those_of_plain_loops(letters, method, prior):
    calibration = calibrate(letters, method, prior=prior)
    found = calibration_errors(letters, calibration, bins=7)
    positives, negatives = letters.counts.positives, letters.counts.negatives
    expected = plain_errors(similarities(positives), similarities(negatives), calibration, prior, 7)
    assert (found.ece, found.mce, found.adaptive_ece) == pytest.approx(expected, abs=1e-9)
    for i in range(12):
        own = plain_errors(similarities(positives, i), similarities(negatives, i), calibration, prior, 7)
        of_class = (found.class_ece[i], found.class_mce[i], found.class_adaptive_ece[i])
        assert of_class == pytest.approx(own, abs=1e-9)
    for each in (found.class_ece, found.class_mce, found.class_adaptive_ece):
        assert np.isnan(each[12:]).all()
    summary = found.summary
    assert summary.class_ece_mean == pytest.approx(np.mean(found.class_ece[:12]))
    assert summary.class_ece_quantiles[0.5] == pytest.approx(np.median(found.class_ece[:12]))
    assert (summary.class_ece_worst, summary.worst_class) == (max(found.class_ece[:12]), found.class_ece[:12].argmax())


def test_errors_are_those_of_scikit_learn_where_every_pair_weighs_the_same():
    similarity = uniform(3_000)
    evaluation, matches = drawn(lambda s: expit(3 * s), similarity)
    calibration = Calibration("platt", float(matches), {"slope": 6.0, "intercept": 0.5})
    found = calibration_errors(evaluation, calibration, bins=10)
    kinds = (evaluation.counts.positives, evaluation.counts.negatives)
    probability = np.concatenate([calibration(similarities(each)) for each in kinds])
    match = np.repeat([1, 0], [each.pooled_total for each in kinds])
    shares, means = calibration_curve(match, probability, n_bins=10)
    sizes = np.histogram(probability, np.linspace(0, 1, 11))[0]
    assert found.ece == pytest.approx(np.abs(shares - means) @ sizes / 3_000, abs=1e-12)
    assert found.mce == pytest.approx(np.abs(shares - means).max(), abs=1e-12)
    order = np.argsort(probability)  # 300 pairs a bin
    gaps = (match - probability)[order].reshape(10, 300).mean(axis=1)
    assert found.adaptive_ece == pytest.approx(np.abs(gaps).mean(), abs=1e-12)


def test_a_probability_at_the_edge_of_two_bins_belongs_to_the_lower():
    knots = {"similarity": (-1.0, 0.5, 1.0), "probability": (0.1, 0.5, 0.9)}
    evaluation = evaluation_of([[0.5]], [[-1.0, 1.0]])
    found = calibration_errors(evaluation, Calibration("isotonic", 0.5, knots), bins=2)
    # Lower bin: 0.5 (1 - 0.5) - 0.25 · 0.1; upper bin: 0.25 · 0.9.
    assert found.ece == pytest.approx(0.225 + 0.225)


@pytest.mark.parametrize("method", METHODS)
def test_reported_errors_are_of_classes_the_map_has_not_seen(letters, method):
    counts = letters.counts
    found = calibrate(letters, method, folds=3, seed=5, prior=0.2)
    both = (counts.positives.totals > 0) & (counts.negatives.totals > 0)
    fold_of = deal(both, 3, 5)
    pooled, of_class = [], np.full(len(both), np.nan)
    for fold in range(3):
        inside, outside = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        kinds = (counts.positives, counts.negatives)
        others = evaluation_of(*([similarities(kind, i) for i in outside] for kind in kinds), appearances=2)
        fitted = calibrate(others, method, folds=2, prior=0.2)
        held_out = [list(itertools.chain(*(similarities(kind, i) for i in inside))) for kind in kinds]
        pooled.append(plain_errors(*held_out, fitted, 0.2, 15))
        for i in inside[both[inside]]:
            of_class[i] = plain_errors(*(similarities(kind, i) for kind in kinds), fitted, 0.2, 15)[0]
    after = found.errors_after
    assert (after.ece, after.mce, after.adaptive_ece) == pytest.approx(np.mean(pooled, axis=0), abs=1e-7)
    assert after.class_ece_mean == pytest.approx(np.nanmean(of_class), abs=1e-7)


def test_errors_before_are_those_of_the_rescaled_similarity(letters):
    before = calibrate(letters, "platt", folds=2).errors_before
    counts = letters.counts
    each = [
        plain_errors(
            similarities(counts.positives, i), similarities(counts.negatives, i), lambda s: (1 + s) / 2, 0.5, 15
        )
        for i in range(12)
    ]
    assert before.class_ece_mean == pytest.approx(np.mean(each, axis=0)[0])


def test_a_map_too_free_for_its_pairs_is_not_flattered():
    evaluation, _ = drawn(lambda s: np.full_like(s, 0.5), uniform(200))
    found = calibrate(evaluation, "isotonic")
    assert found.errors_after.ece > 3 * calibration_errors(evaluation, found).ece


# ----- bins, groups and lists


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kinds", ["negatives", "both"])
def test_bins_with_all_pairs_at_their_middles_give_exactly_what_lists_give(method, kinds):
    generator = np.random.default_rng(0)
    middles = (np.arange(64) + 0.5) / 32
    numbers = [generator.poisson(5 * np.exp(-0.5 * ((middles - at) / 0.3) ** 2), (9, 64)) for at in (0.8, 1.3)]
    numbers[0][3] = 0
    lists = [[np.repeat(1 - middles**2 / 2, row) for row in number] for number in numbers]
    listed = evaluation_of(*lists)
    binned = [BinnedDistances(number, 2.0, 1) for number in numbers]
    positives = binned[0] if kinds == "both" else listed.counts.positives
    counted = replace(listed, counts=PairCounts(positives, binned[1]))
    one, other = calibrate(listed, method), calibrate(counted, method)
    at = np.linspace(-1, 1, 99)
    np.testing.assert_allclose(one(at), other(at), atol=1e-7)
    for name in ("ece", "class_ece_mean", "class_ece_worst"):
        assert getattr(one.errors_after, name) == pytest.approx(getattr(other.errors_after, name), abs=1e-6)
    both = [calibration_errors(each, one, bins=11) for each in (listed, counted)]
    for name in ("class_ece", "class_mce", "class_adaptive_ece"):
        np.testing.assert_allclose(*(getattr(each, name) for each in both), atol=1e-6)
    assert np.isnan(both[1].class_ece).nonzero()[0].tolist() == [3]


@pytest.mark.parametrize("method", METHODS)
def test_bins_give_what_lists_give(method):
    rows, labels = clusters(600, 20, dimensions=12)
    data = sort_by_class(rows, labels)
    binned = im.evaluate(rows, labels)
    kept = count_pairs(data, k=(1,)).counts
    assert isinstance(kept.negatives, BinnedDistances)
    vectors = data.vectors.astype(np.float64)
    products = vectors @ vectors.T
    same = data.class_of[:, None] == data.class_of[None, :]
    parts = [[], []]
    for i in range(20):
        own = np.flatnonzero(data.class_of == i)
        parts[0].append(products[np.ix_(own, own)][np.triu_indices(len(own), 1)])
        parts[1].append(products[own][~same[own]])
    listed = evaluation_of(*parts)
    one, other = calibrate(replace(binned, counts=kept), method), calibrate(listed, method)
    at = np.linspace(-0.5, 0.95, 30)
    np.testing.assert_allclose(one(at), other(at), atol=0.01 if method == "isotonic" else 1e-3)
    for name in ("ece", "adaptive_ece", "class_ece_mean"):
        assert getattr(one.errors_after, name) == pytest.approx(getattr(other.errors_after, name), abs=2e-3)


@pytest.mark.parametrize("method", METHODS)
def test_long_lists_in_fine_bins_give_what_single_pairs_give(method, monkeypatch):
    evaluation, _ = drawn(lambda s: expit(12 * s - 3), uniform(30_000))
    one = calibrate(evaluation, method)
    monkeypatch.setattr(calibration_error, "LISTED", 100)
    monkeypatch.setattr(calibration_error, "CHUNK", 1_000)
    other = calibrate(evaluation, method)
    at = np.linspace(-0.9, 0.9, 30)
    np.testing.assert_allclose(one(at), other(at), atol=0.02 if method == "isotonic" else 1e-3)
    assert one.errors_after.ece == pytest.approx(other.errors_after.ece, abs=2e-3)


# ----- the prior


def test_isotonic_for_another_prior_is_what_a_fit_with_it_gives(letters):
    moved, fitted = calibrate(letters, "isotonic").with_prior(0.02), calibrate(letters, "isotonic", prior=0.02)
    assert moved.prior == fitted.prior == 0.02
    assert moved.errors_after is None
    np.testing.assert_allclose(moved.parameters["similarity"], fitted.parameters["similarity"], atol=1e-12)
    np.testing.assert_allclose(moved.parameters["probability"], fitted.parameters["probability"], atol=1e-9)


@pytest.mark.parametrize("method", ["platt", "temperature"])
def test_another_prior_moves_log_odds_and_agrees_with_a_fit_where_the_model_holds(method):
    evaluation, _ = drawn(lambda s: expit((s - 0.3) / 0.1), uniform(40_000, -0.3, 0.9))
    found = calibrate(evaluation, method)
    moved, fitted = found.with_prior(0.05), calibrate(evaluation, method, prior=0.05)
    at = np.linspace(0, 0.6, 13)
    np.testing.assert_allclose(logit(moved(at)) - logit(found(at)), logit(0.05), atol=1e-9)
    np.testing.assert_allclose(logit(moved(at)), logit(fitted(at)), atol=0.15)
    np.testing.assert_allclose(moved.with_prior(0.5)(at), found(at), atol=1e-12)


@pytest.mark.parametrize("method", ["platt", "temperature"])
def test_a_fit_with_the_prior_is_better_than_the_shift_where_the_model_does_not_hold(method, letters):
    def loss(calibration):
        positive, negative = (
            calibration(similarities(each)) for each in (letters.counts.positives, letters.counts.negatives)
        )
        return -0.02 * np.log(positive).mean() - 0.98 * np.log1p(-negative).mean()

    moved, fitted = calibrate(letters, method).with_prior(0.02), calibrate(letters, method, prior=0.02)
    assert loss(fitted) < loss(moved) - 1e-6


# ----- separable and senseless pairs


def test_separable_pairs_give_platts_probabilities():
    separable = evaluation_of([[0.8] * 4] * 5, [[0.1] * 8] * 5)
    # Two points and two parameters: the targets themselves.
    assert calibrate(separable, "platt")([0.8, 0.1]) == pytest.approx([21 / 22, 1 / 42])
    both_classes = evaluation_of([[0.8] * 4] * 5, [[0.1] * 16] * 5, appearances=2)  # the same pairs, counted twice
    assert calibrate(both_classes, "platt")([0.8, 0.1]) == pytest.approx([21 / 22, 1 / 42])
    temperature = calibrate(separable, "temperature")
    assert temperature.parameters["centre"] == pytest.approx(0.45)
    assert 1 / 42 < temperature(0.1) < 1 / 22
    assert temperature(0.8) == pytest.approx(1 - temperature(0.1))
    assert calibrate(separable, "isotonic")([0.8, 0.45, 0.1]) == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("far_apart", [False, True])
def test_pairs_that_similarity_tells_nothing_about_give_the_prior(method, far_apart):
    matches, others = ([-0.5, 0.0], [0.0, 0.5]) if far_apart else ([0.3], [0.3])
    found = calibrate(evaluation_of([matches * 50] * 5, [others * 50] * 5), method, prior=0.2)
    np.testing.assert_allclose(found([-0.6, 0.3, 0.9]), 0.2, atol=0.005)


# ----- answers


def test_similarity_at_is_the_smallest_with_the_probability(letters):
    for method in METHODS:
        found = calibrate(letters, method)
        for probability in (0.05, 0.5, 0.8):
            similarity = found.similarity_at(probability)
            assert found(similarity) >= probability
            assert found(similarity - 1e-9) < probability
            assert found.probability_at_distance(np.sqrt(2 - 2 * similarity)) == pytest.approx(probability, abs=1e-3)


def test_a_probability_that_is_never_reached_is_said_to_be():
    found = Calibration("platt", 0.001, {"slope": 4.0, "intercept": -5.0})
    with pytest.raises(im.InputError, match=r"no similarity has a probability of 0\.9: the largest is 0\.268"):
        found.similarity_at(0.9)
    assert Calibration("platt", 0.5, {"slope": 1.0, "intercept": 5.0}).similarity_at(0.2) == -1.0
    for wrong in (0, 1.5, "half", float("nan")):
        with pytest.raises(im.InputError, match="probability is"):
            found.similarity_at(wrong)


def test_what_is_no_similarity_is_refused():
    found = Calibration("platt", 0.5, {"slope": 4.0, "intercept": -5.0})
    assert isinstance(found(0.5), float)
    assert found(np.zeros((2, 3), np.float16)).shape == (2, 3)
    assert found(np.empty(0)).shape == (0,)
    for wrong, words in ((float("nan"), "nan"), ([0.5, 1.5], "1.5"), ("x", "numbers"), ([[1], [1, 2]], "numbers")):
        with pytest.raises(im.InputError, match=f"similarity .*{words}"):
            found(wrong)
    for wrong in (-0.1, [2.5], float("nan")):
        with pytest.raises(im.InputError, match="distance has"):
            found.probability_at_distance(wrong)


# ----- refusals


def test_evaluations_and_settings_that_cannot_be_used_are_refused(letters):
    some, none = [[0.5, 0.6]] * 3, [[], [], []]
    for wrong, kind in ((evaluation_of(some, none), "negative"), (evaluation_of(none, some), "positive")):
        with pytest.raises(im.InputError, match=f"has no {kind} pairs"):
            calibrate(wrong)
        with pytest.raises(im.InputError, match=f"has no {kind} pairs"):
            calibration_errors(wrong, Calibration("platt", 0.5, {"slope": 1.0, "intercept": 0.0}))
    with pytest.raises(im.InputError, match=r"only 3 of the 3 classes .* use folds=3 or fewer"):
        calibrate(evaluation_of(some, some), folds=5)
    with pytest.raises(im.InputError, match="no class has both"):
        calibrate(evaluation_of([[0.5], []], [[], [0.1]]))
    with pytest.raises(im.InputError, match="evaluate at least two such classes"):
        calibrate(evaluation_of([[0.5], []], [[0.1], [0.1]]), folds=2)
    for wrong, words in (
        ({"method": "beta"}, "method is 'beta'"),
        ({"prior": 0}, "prior is 0"),
        ({"prior": float("nan")}, "prior is nan"),
        ({"folds": 1}, "folds is 1"),
        ({"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(im.InputError, match=words):
            calibrate(letters, **wrong)
    with pytest.raises(im.InputError, match="bins is 0"):
        calibration_errors(letters, calibrate(letters), bins=0)


PLATT = {"slope": 1.0, "intercept": 0.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "beta"}, "method is 'beta'"),
        ({"prior": "half"}, "prior is 'half'"),
        ({"prior": 1}, "prior is 1"),
        ({"parameters": [1, 2]}, "a mapping is needed, with slope, intercept"),
        ({"parameters": {"slope": 1.0}}, "exactly slope, intercept are needed"),
        ({"parameters": {**PLATT, "slope": None}}, "slope is None"),
        ({"parameters": {**PLATT, "slope": -1.0}}, "slope is -1"),
        ({"parameters": {**PLATT, "intercept": float("inf")}}, "intercept is inf"),
        ({"method": "temperature"}, "exactly temperature, centre"),
        ({"method": "temperature", "parameters": {"temperature": 0, "centre": 0}}, "temperature is 0"),
        ({"method": "isotonic", "parameters": {"similarity": 1, "probability": [1]}}, "similarity of the knots is 1"),
        ({"method": "isotonic", "parameters": {"similarity": [0, 1], "probability": [1]}}, "2 similarities and 1"),
        ({"method": "isotonic", "parameters": {"similarity": [0, 1], "probability": [1, 0]}}, "do not increase"),
        ({"method": "isotonic", "parameters": {"similarity": [0], "probability": [1.5]}}, "from 0 to 1"),
        ({"errors_after": 0.1}, "errors_after is 0.1: a mapping"),
        ({"more": 1}, "calibration has .*more"),
    ],
    ids=str,
)
def test_values_that_are_no_calibration_are_refused(change, words):
    values = {"method": "platt", "prior": 0.5, "parameters": PLATT, "errors_before": None, "errors_after": None}
    assert Calibration.from_values(values).parameters == PLATT
    with pytest.raises(im.InputError, match=words):
        Calibration.from_values(values | change)


def test_errors_of_wrong_kinds_in_values_are_refused(letters):
    values = calibrate(letters).as_values()
    for name, wrong in (("ece", None), ("mce", -0.1), ("worst_class", 1.5), ("bins", 0), ("class_ece_quantiles", {})):
        changed = values | {"errors_after": values["errors_after"] | {name: wrong}}
        with pytest.raises(im.InputError, match=f"errors_after's {name}"):
            Calibration.from_values(changed)
    with pytest.raises(im.InputError, match="calibration is None: a mapping"):
        Calibration.from_values(None)


# ----- what holds for all pairs

kinds = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6), min_size=3, max_size=6)


@settings(max_examples=60, deadline=None)
@given(kinds, kinds, st.sampled_from(METHODS), st.floats(0.01, 0.99), st.randoms(use_true_random=False))
def test_every_map_rises_within_zero_and_one_whatever_the_order_of_classes(matches, others, method, prior, random):
    classes = min(len(matches), len(others))
    matches, others = matches[:classes], others[:classes]
    found = calibrate(evaluation_of(matches, others), method, prior=prior, folds=3)
    at = np.linspace(-1, 1, 201)
    probability = found(at)
    assert probability.min() >= 0
    assert probability.max() <= 1
    assert np.diff(probability).min() >= -1e-12
    assert Calibration.from_values(json.loads(json.dumps(found.as_values(), allow_nan=False))) == found
    for errors in (found.errors_before, found.errors_after):
        assert 0 <= errors.ece <= errors.mce + 1e-12 <= 1 + 1e-9
        assert 0 <= errors.class_ece_quantiles[0.05] <= errors.class_ece_worst + 1e-12
    order = list(range(classes))
    random.shuffle(order)
    shuffled = calibrate(
        evaluation_of([matches[i] for i in order], [others[i] for i in order]), method, prior=prior, folds=3
    )
    np.testing.assert_allclose(shuffled(at), probability, atol=1e-6)
