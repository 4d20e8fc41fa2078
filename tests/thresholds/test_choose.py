"""The chosen threshold against all thresholds, tried one by one on the pairs' own distances."""

import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import clusters
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs import tiles as pairs_module
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.rates import threshold_at_far
from isomargin.measure.settings import Settings
from isomargin.thresholds.choose import (
    choose_threshold,
    distance_at_frr,
    distance_of_best_utility,
    distance_of_least_cost,
)
from isomargin.thresholds.threshold_choice import rejected_share, share_over

QUICK = {"draws": 100}
BINS = 8
SHORT = 2e-6  # of a bin's edge stays a threshold from bins, because pairs at it are counted beyond it

# Multiples of 1/16 are floats and tie often; a few bins of 1/4 hold several of them.
some_distances = st.lists(st.integers(0, 32).map(lambda each: each / 16), min_size=1, max_size=12)
rates = st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50)
kinds = st.sampled_from(["listed", "binned", "negatives binned", "positives binned"])


def listed(distances):
    return ListedDistances(np.sort(np.array(distances)), np.array([0, len(distances)]), appearances=1)


def binned(distances):
    counts = np.zeros((1, BINS), np.uint32)
    for each in distances:
        counts[0, min(int(each * BINS / 2), BINS - 1)] += 1
    return BinnedDistances(counts, reach=2.0, appearances=1)


def counted(positives, negatives, kind):
    return PairCounts(
        binned(positives) if kind in ("binned", "positives binned") else listed(positives),
        binned(negatives) if kind in ("binned", "negatives binned") else listed(negatives),
    )


def accepted(distances, threshold, in_bins):
    """Pairs within the threshold; those at a bin's edge are known to be in the bin above."""
    if in_bins and threshold < 2:
        return sum(each < threshold for each in distances)
    return sum(each <= threshold for each in distances)


def all_thresholds(positives, negatives, kind):
    """One of each set that accepts the same pairs, as far as they are known, by their own ends."""
    if kind != "listed":
        return [*(edge * 2 / BINS - SHORT for edge in range(1, BINS)), 2.0]
    return sorted({0.0, *positives, *negatives})


def rates_at(positives, negatives, kind, threshold):
    false_accepts = accepted(negatives, threshold, kind in ("binned", "negatives binned"))
    accepts = accepted(positives, threshold, kind in ("binned", "positives binned"))
    return Fraction(false_accepts, len(negatives)), 1 - Fraction(accepts, len(positives))


@settings(max_examples=150, deadline=None)
@given(some_distances, some_distances, rates, kinds)
def test_no_larger_threshold_keeps_the_far(positives, negatives, far, kind):
    counts = counted(positives, negatives, kind)
    in_bins = kind in ("binned", "negatives binned")
    if far * len(negatives) < 1:
        with pytest.raises(im.InputError, match=f"is {1 / len(negatives):.3g}"):
            threshold_at_far(counts, float(far), "not_exceeded")
        return
    ends = all_thresholds([], negatives, "binned" if in_bins else "listed")
    good = [each for each in ends if Fraction(accepted(negatives, each, in_bins), len(negatives)) <= far]
    if not good:
        with pytest.raises(im.InputError, match="no threshold has a false accept rate of at most"):
            threshold_at_far(counts, float(far), "not_exceeded")
        return
    found = threshold_at_far(counts, float(far), "not_exceeded")
    assert accepted(negatives, found, False) == accepted(negatives, max(good), in_bins)
    assert found == 2 or found not in negatives


@settings(max_examples=150, deadline=None)
@given(some_distances, some_distances, rates, kinds)
def test_no_smaller_threshold_keeps_the_frr(positives, negatives, frr, kind):
    counts = counted(positives, negatives, kind)
    if frr * len(positives) < 1:
        with pytest.raises(im.InputError, match=f"is {1 / len(positives):.3g}"):
            distance_at_frr(counts, float(frr))
        return
    found = distance_at_frr(counts, float(frr))
    if kind == "negatives binned":
        farthest_kept = sorted(positives)[len(positives) - math.floor(frr * len(positives)) - 1]
        edges = all_thresholds(positives, negatives, kind)
        # Not the edge where the pair itself lies: rounding could drop it there.
        edge = min((each for each in edges if each > farthest_kept), default=2.0)
        assert found == pytest.approx(edge, abs=1e-9)
        assert farthest_kept < found or found == 2  # nothing is farther
        return
    if kind != "listed":
        edges = all_thresholds(positives, negatives, kind)
        good = [each for each in edges if rates_at(positives, negatives, kind, each)[1] <= frr]
        assert found == pytest.approx(min(good), abs=2 * SHORT + 1e-9)  # on the other side of the edge
        assert 1 - Fraction(accepted(positives, found, False), len(positives)) <= frr
        return
    ends = all_thresholds(positives, negatives, "listed" if kind == "listed" else "binned")
    good = [each for each in ends if rates_at(positives, negatives, kind, each)[1] <= frr]
    assert rates_at(positives, negatives, kind, found) == rates_at(positives, negatives, kind, min(good))
    assert kind != "listed" or found == 2 or found not in positives + negatives


def utility_of(far, frr, positives, negatives, chosen):
    sensitivity = 1 - frr
    first = 1 - far
    if chosen.utility == "precision_recall":
        accepts, accepted_negatives = sensitivity * len(positives), far * len(negatives)
        first = accepts / (accepts + accepted_negatives) if accepts + accepted_negatives else Fraction(0)
    weight = Fraction(chosen.c) ** 2
    whole = weight * first + sensitivity
    return (1 + weight) * first * sensitivity / whole if whole else Fraction(0)


@settings(max_examples=150, deadline=None)
@given(
    some_distances,
    some_distances,
    kinds,
    st.sampled_from(["specificity_sensitivity", "precision_recall"]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_no_threshold_has_a_better_utility_and_no_smaller_one_as_good(positives, negatives, kind, utility, c):
    chosen = Settings(utility=utility, c=c)
    found = distance_of_best_utility(counted(positives, negatives, kind), chosen)

    def value(threshold):
        return utility_of(*rates_at(positives, negatives, kind, threshold), positives, negatives, chosen)

    ends = all_thresholds(positives, negatives, kind)
    best = max(value(each) for each in ends)
    smallest = min(each for each in ends if value(each) == best)
    assert rates_at(positives, negatives, kind, found) == rates_at(positives, negatives, kind, smallest)
    assert kind != "listed" or found == 2 or found not in positives + negatives


@settings(max_examples=150, deadline=None)
@given(some_distances, some_distances, kinds, st.integers(1, 20), st.integers(1, 20), rates)
def test_no_threshold_costs_less_and_no_smaller_one_as_little(positives, negatives, kind, accept, reject, prior):
    def cost(threshold):
        far, frr = rates_at(positives, negatives, kind, threshold)
        return accept * (1 - prior) * far + reject * prior * frr

    ends = all_thresholds(positives, negatives, kind)
    least = min(cost(each) for each in ends)
    counts = counted(positives, negatives, kind)
    if least > reject * prior:
        with pytest.raises(im.InputError, match="costs least to accept no pair at all"):
            distance_of_least_cost(counts, accept, reject, float(prior))
        return
    found = distance_of_least_cost(counts, accept, reject, float(prior))
    smallest = min(each for each in ends if cost(each) == least)
    assert rates_at(positives, negatives, kind, found) == rates_at(positives, negatives, kind, smallest)
    assert kind != "listed" or found == 2 or found not in positives + negatives


# ----- on embeddings


def pair_distances(rows, labels):
    vectors = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distance = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0))
    return distance, labels[:, None] == labels[None, :]


@pytest.fixture(scope="module")
def small():
    rows, labels = clusters(300, 12, singles=3)
    with pytest.warns(UserWarning, match="single item"):
        return rows, labels, im.evaluate(rows, labels)


@pytest.fixture(scope="module")
def large():
    rows, labels = clusters(1200, 40, dimensions=12)
    return rows, labels, im.evaluate(rows, labels)


TARGETS = [{"far": 0.02}, {"frr": 0.1}, {"utility": "best"}, {"cost": (1.0, 3.0, 0.2)}]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("fixture", ["small", "large"])
def test_rates_of_the_choice_are_those_of_the_pairs(fixture, target, request):
    rows, labels, evaluation = request.getfixturevalue(fixture)
    choice = choose_threshold(evaluation, **target, **QUICK)
    distance, same = pair_distances(rows, labels)
    upper = np.triu(np.ones_like(same), 1)
    near = distance <= choice.distance
    edge = distance <= choice.distance + 2.1e-6  # a threshold from bins stays short of the edge it was counted at
    assert near[upper & ~same].mean() - 2e-6 <= choice.far <= edge[upper & ~same].mean() + 2e-6
    assert choice.frr == pytest.approx(1 - near[upper & same].mean(), abs=1e-9)
    far, far_at_edge, frr = [], [], []
    for name in np.unique(labels):
        own = labels == name
        far.append(near[own][:, ~own].mean())
        far_at_edge.append(edge[own][:, ~own].mean())
        if own.sum() > 1:
            frr.append(1 - near[own][:, own][np.triu_indices(own.sum(), 1)].mean())
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    assert tuple(choice.class_far_quantiles) == tuple(choice.class_frr_quantiles) == levels
    found = np.array(list(choice.class_far_quantiles.values()))
    assert (np.quantile(far, levels) - 2e-5 <= found).all()
    assert (found <= np.quantile(far_at_edge, levels) + 2e-5).all()
    assert list(choice.class_frr_quantiles.values()) == pytest.approx(np.quantile(frr, levels), abs=1e-9)
    if "far" in target:
        assert choice.far <= 0.02
        assert choice.share_over_target == np.mean(np.array(far) > 0.02)
    elif "frr" in target:
        assert choice.frr <= 0.1
        assert choice.share_over_target == np.mean(np.array(frr) > 0.1)
    else:
        assert choice.share_over_target is None


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_worst_classes_are_those_that_the_target_is_farthest_from(small, target):
    rows, labels, evaluation = small
    choice = choose_threshold(evaluation, **target, **QUICK)
    near = pair_distances(rows, labels)[0] <= choice.distance
    failures = {}
    for name in np.unique(labels):
        own = labels == name
        far = near[own][:, ~own].mean()
        if own.sum() == 1:
            failures[int(name)] = far if "far" in target else np.nan
            continue
        frr = 1 - near[own][:, own][np.triu_indices(own.sum(), 1)].mean()
        utility = 2 * (1 - far) * (1 - frr) / (2 - far - frr)
        by = {"far": far, "frr": frr, "utility": 1 - utility, "cost": 0.8 * far + 3 * 0.2 * frr}
        failures[int(name)] = by[next(iter(target))]
        for each in choice.worst_classes:
            if each.name == name:
                assert each.items == own.sum()
                assert (each.far, each.frr) == pytest.approx((far, frr), abs=1e-9)
    expected = sorted((name for name in failures if failures[name] > 1e-9), key=lambda name: -failures[name])[:10]
    assert [each.name for each in choice.worst_classes] == expected
    assert len(expected) > 3


def test_class_utility_can_be_of_precision_and_recall(small):
    rows, labels, evaluation = small
    choice = choose_threshold(evaluation.with_settings(utility="precision_recall", c=2.0), utility="best", **QUICK)
    assert choice.target == "best utility of precision and recall, c = 2"
    near = pair_distances(rows, labels)[0] <= choice.distance
    values = {}
    for name in np.unique(labels):
        own = labels == name
        if own.sum() > 1:
            within = near[own][:, own][np.triu_indices(own.sum(), 1)]
            precision = within.sum() / (within.sum() + near[own][:, ~own].sum())
            values[int(name)] = 5 * precision * within.mean() / (4 * precision + within.mean())
    assert [each.name for each in choice.worst_classes] == sorted(values, key=values.get)[:10]


def test_a_listed_threshold_keeps_away_from_every_pair(small):
    rows, labels, evaluation = small
    distance, same = pair_distances(rows, labels)
    upper = np.triu(np.ones_like(same), 1)
    for target in TARGETS[1:]:
        chosen = choose_threshold(evaluation, **target, **QUICK).distance
        nearest = np.sort(distance[upper])
        place = np.searchsorted(nearest, chosen)
        below, above = chosen - nearest[place - 1], nearest[place] - chosen
        assert below == pytest.approx(above, rel=1e-3, abs=1e-10)
        assert below > 1e-8


@pytest.mark.parametrize("positives_in_bins", [False, True])
def test_thresholds_from_bins_are_near_those_from_all_pairs(small, positives_in_bins, monkeypatch):
    rows, labels, exact = small
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    if positives_in_bins:
        monkeypatch.setattr(pairs_module, "LISTED_POSITIVES", 0)
    with pytest.warns(UserWarning, match="single item"):
        coarse = im.evaluate(rows, labels)
    assert isinstance(coarse.counts.negatives, BinnedDistances)
    assert isinstance(coarse.counts.positives, BinnedDistances) == positives_in_bins
    width = coarse.counts.negatives.edges[1]
    for target in TARGETS:
        found = choose_threshold(coarse, **target, **QUICK)
        expected = choose_threshold(exact, **target, **QUICK)
        assert (found.far, found.frr) == pytest.approx((expected.far, expected.frr), abs=2e-4)
        assert np.abs(coarse.counts.negatives.edges - found.distance).min() < 2.1e-6
        if "far" in target or "frr" in target:
            step = np.diff(np.sort(pair_distances(rows, labels)[0].ravel())).max()
            assert abs(found.distance - expected.distance) < width + step
    assert choose_threshold(coarse, far=0.02, **QUICK).far <= 0.02
    assert choose_threshold(coarse, frr=0.1, **QUICK).frr <= 0.1


def test_the_same_seed_gives_the_same_intervals_and_they_hold_the_rates(small):
    evaluation = small[2]
    one = choose_threshold(evaluation, far=0.05, draws=200, seed=1)
    again = choose_threshold(evaluation, far=0.05, draws=200, seed=1)
    assert (one.far_interval, one.frr_interval) == (again.far_interval, again.frr_interval)
    assert one.far_interval.low <= one.far <= one.far_interval.high
    assert one.frr_interval.low <= one.frr <= one.frr_interval.high
    assert one.far_interval.confidence == 0.95


def test_a_target_that_is_met_by_every_class_names_no_class():
    rows = np.eye(4)[np.arange(40) % 4]
    evaluation = im.evaluate(rows, np.arange(40) % 4, distances=(0.5, 1.5))
    choice = choose_threshold(evaluation, utility="best", **QUICK)
    assert (choice.far, choice.frr, choice.worst_classes) == (0.0, 0.0, ())
    assert choice.distance == pytest.approx(np.sqrt(2) / 2)


def test_rates_that_are_just_the_target_are_not_above_it():
    counts = counted([i / 64 for i in range(1, 101)], [2.0], "listed")
    assert 1 - 95 / 100 > 0.05
    assert rejected_share(counts, distance_at_frr(counts, 0.05)) == 0.05
    assert share_over(np.array([1 - 95 / 100, 0.06, np.nan, 0.01, 0.02]), 0.05) == 0.25


# ----- bad input


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ({}, "exactly one of far, frr, utility, cost, distance, fpir, but none was given"),
        ({"far": 0.1, "frr": 0.1}, "but far and frr were given"),
        ({"far": 0.0}, "far is 0.0: a number above 0 and below 1"),
        ({"far": "0.1"}, "far is '0.1'"),
        ({"frr": 1.0}, "frr is 1.0: a number above 0 and below 1"),
        ({"far": 1e-9}, "smallest rate above zero is"),
        ({"frr": 1e-9}, "smallest that can be told from zero is"),
        ({"utility": "most"}, "utility is 'most': one of 'best'"),
        ({"cost": (1.0, 1.0)}, "three numbers are needed"),
        ({"cost": (0.0, 1.0, 0.5)}, "cost of a false accept is 0.0: a number above 0"),
        ({"cost": (1.0, float("inf"), 0.5)}, "cost of a false reject is inf"),
        ({"cost": (1.0, 1.0, 1.0)}, "prior of cost is 1.0"),
    ],
    ids=str,
)
def test_a_bad_target_is_refused(small, target, sentence):
    with pytest.raises(im.InputError, match=sentence):
        choose_threshold(small[2], **target)


def test_duplicates_across_classes_that_no_threshold_can_keep_apart_are_told():
    rows = np.concatenate([np.eye(8)[[0] * 10], np.eye(8)[[0] * 10], np.eye(8)[[1, 2, 3, 4]]])
    labels = np.repeat([0, 1, 2], [10, 10, 4])
    evaluation = im.evaluate(rows, labels, distances=(0.5, 1.5), target_far=0.9)
    with pytest.raises(im.InputError, match=r"even at distance 0 it is 0.556, because .* remove duplicates"):
        choose_threshold(evaluation, far=0.1)


@pytest.mark.parametrize("kind", ["positive", "negative"])
def test_an_evaluation_without_pairs_of_one_kind_is_refused(small, kind):
    evaluation = small[2]
    none = ListedDistances(np.zeros(0), np.zeros(evaluation.class_count + 1, np.int64), appearances=1)
    counts = replace(evaluation.counts, **{f"{kind}s": none})
    with pytest.raises(im.InputError, match=f"no {kind} pairs"):
        choose_threshold(replace(evaluation, counts=counts), far=0.1)


@pytest.mark.parametrize("bits", [16, 64])
def test_codes_whose_distances_repeat_keep_the_far_and_what_the_card_says(bits):
    labels = np.repeat(np.arange(60), 20)
    generator = np.random.default_rng(bits)
    codes = np.sign(generator.normal(size=(60, bits))[labels] + 1.5 * generator.normal(size=(len(labels), bits)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        evaluation = im.evaluate(codes, labels)
    assert isinstance(evaluation.counts.negatives, BinnedDistances)
    products = (codes @ codes.T)[np.triu_indices(len(codes), 1)].astype(int)
    negative = (labels[:, None] != labels)[np.triu_indices(len(codes), 1)]
    distances = np.sqrt(2 - 2 * products / bits)
    for far in (0.01, 0.05, 0.2):
        found = choose_threshold(evaluation, far=far, **QUICK)
        assert (distances[negative] <= found.distance).mean() <= far
        assert (distances[negative] <= found.distance).mean() == pytest.approx(found.far, abs=1e-9)
        assert (distances[~negative] > found.distance).mean() == pytest.approx(found.frr, abs=1e-9)
    promise = im.promise_threshold(evaluation, far=0.1)
    rates = [
        (distances[here] <= promise.distance).mean()
        for label in range(60)
        for here in [negative & ((labels[:, None] == label) | (labels == label))[np.triu_indices(len(codes), 1)]]
    ]
    assert (sum(rates) + 1) / 61 <= 0.1
