"""Promises for unseen classes: they hold on drawn classes of a known law, and the threshold is the best that keeps
them."""

import copy
import json
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import isomargin as im
from compare import clusters
from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.thresholds.conformal import Promise, first_place, promise_threshold, promised_distance

# Drawn classes: class i has its pairs at shift_i + WIDTH * q_j. The q_j are the same for all classes, as if one fixed
# population of negatives were seen from farther or nearer, and the shifts are normal. Rates of a new class at a
# threshold, their means and the probability of exceeding a target then follow from the normal law alone.
CENTRE, SHIFT, WIDTH = 1.2, 0.08, 0.12
QUANTILES = norm.ppf((np.arange(50) + 0.5) / 50)
REPETITIONS = 1500


def listed(classes, appearances=1):
    """Distances of some classes, given as lists."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in classes])])
    return ListedDistances(np.concatenate([np.sort(each) for each in classes]), offsets, appearances)


def draw(generator, classes):
    shifts = generator.normal(CENTRE, SHIFT, classes)
    return ListedDistances((shifts[:, None] + WIDTH * QUANTILES).ravel(), np.arange(classes + 1) * 50, 1)


def true_mean(rate, distance):
    """Expected rate of a new class."""
    far = norm.cdf((distance - CENTRE - WIDTH * QUANTILES[:, None]) / SHIFT).mean(axis=0)
    return far if rate == "far" else 1 - far


def true_exceedance(rate, target, distance):
    """Probability that the rate of a new class exceeds the target: that its pair after the allowed ones is wrong."""
    allowed = round(target * 50)
    if rate == "far":
        return norm.cdf((distance - CENTRE - WIDTH * QUANTILES[allowed]) / SHIFT)
    return 1 - norm.cdf((distance - CENTRE - WIDTH * QUANTILES[49 - allowed]) / SHIFT)


def pooled_distance(distances, rate, target):
    """What one would take without a promise: the pooled rate just within the target."""
    if rate == "far":
        return distances.pooled_distance_admitting(int(target * distances.pooled_total + 1e-9))
    return distances.pooled_distance_at(int((1 - target) * distances.pooled_total))


def mean_and_error(values):
    return values.mean(), values.std() / np.sqrt(len(values))


@pytest.mark.parametrize("rate", ["far", "frr"])
def test_a_class_exceeds_the_target_as_often_as_promised_where_the_pooled_threshold_fails(rate):
    generator, classes, delta, target = np.random.default_rng(1), 30, 0.1, 0.1
    found = {"promise": [], "pooled": []}
    for _ in range(REPETITIONS):
        drawn = draw(generator, classes)
        found["promise"].append(promised_distance(drawn, rate, target, delta))
        found["pooled"].append(pooled_distance(drawn, rate, target))
    share, error = mean_and_error(true_exceedance(rate, target, np.array(found["promise"])))
    assert share <= delta + 3 * error
    assert share >= delta - 1 / (classes + 1) - 3 * error
    share, error = mean_and_error(true_exceedance(rate, target, np.array(found["pooled"])))
    assert share > 3 * delta


@pytest.mark.parametrize("rate", ["far", "frr"])
def test_the_expected_rate_is_within_the_target_where_the_pooled_threshold_exceeds_it(rate):
    generator, classes, target = np.random.default_rng(2), 20, 0.1
    found = {"promise": [], "pooled": []}
    for _ in range(REPETITIONS):
        drawn = draw(generator, classes)
        found["promise"].append(promised_distance(drawn, rate, target, None))
        found["pooled"].append(pooled_distance(drawn, rate, target))
    mean, error = mean_and_error(true_mean(rate, np.array(found["promise"])))
    assert mean <= target + 3 * error
    assert mean >= target - 2 / (classes + 1) - 3 * error
    mean, error = mean_and_error(true_mean(rate, np.array(found["pooled"])))
    assert mean > target + 3 * error


def test_the_expected_rate_is_within_the_target_where_large_classes_hide_what_small_ones_suffer():
    generator, classes, target = np.random.default_rng(3), 40, 0.1
    risks = {"promise": [], "pooled": []}
    for _ in range(300):
        near = generator.random(classes + 1) < 0.3  # small classes whose negatives are near; the last one is new
        drawn = [
            generator.normal(1.0 if each else 1.3, 0.1) + 0.1 * norm.ppf((np.arange(n) + 0.5) / n)
            for each, n in zip(near, np.where(near, 20, 400), strict=True)
        ]
        known, new = listed(drawn[:-1]), drawn[-1]
        risks["promise"].append(np.mean(new <= promised_distance(known, "far", target, None)))
        risks["pooled"].append(np.mean(new <= pooled_distance(known, "far", target)))
    mean, error = mean_and_error(np.array(risks["promise"]))
    assert mean <= target + 3 * error
    mean, error = mean_and_error(np.array(risks["pooled"]))
    assert mean > target + 3 * error


# ----- the best threshold that keeps the promise

tenths = st.lists(st.lists(st.integers(1, 19), min_size=0, max_size=8), min_size=3, max_size=9).filter(
    lambda classes: sum(map(bool, classes)) >= 3
)
levels = st.sampled_from(["0.25", "0.3", "0.4", "0.5", "0.75"])


def classes_of(tenths_of_classes):
    return listed([np.array(each) / 10 for each in tenths_of_classes])


def by_trying_all(tenths_of_classes, rate, target, delta):
    """The threshold by the definition, in fractions: every place between two distances is tried."""
    classes = [[Fraction(value, 10) for value in each] for each in tenths_of_classes if each]
    level = target if delta is None else delta

    def loss(each, distance):
        wrong = sum((value <= distance) == (rate == "far") for value in each)
        share = Fraction(wrong, len(each))
        return share if delta is None else Fraction(share > target)

    values = sorted({value for each in classes for value in each})
    places = [(a + b) / 2 for a, b in zip([Fraction(0), *values], [*values, Fraction(2)], strict=True)]
    keeping = [d for d in places if (sum(loss(each, d) for each in classes) + 1) <= level * (len(classes) + 1)]
    return max(keeping) if rate == "far" else min(keeping)


@settings(max_examples=300, deadline=None)
@given(tenths, st.sampled_from(["far", "frr"]), levels, st.none() | levels)
def test_the_threshold_is_the_best_of_all_that_keep_the_promise(drawn, rate, target, delta):
    expected = by_trying_all(drawn, rate, Fraction(target), None if delta is None else Fraction(delta))
    found = promised_distance(classes_of(drawn), rate, float(target), None if delta is None else float(delta))
    assert found == pytest.approx(float(expected), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(tenths, st.sampled_from(["far", "frr"]), levels, levels)
def test_the_threshold_of_a_class_promise_is_an_order_statistic_of_the_classes_own(drawn, rate, target, delta):
    sizes = [len(each) for each in drawn if each]
    k = int(Fraction(delta) * (len(sizes) + 1))
    allowed = [int(Fraction(target) * n) for n in sizes]
    ascending = [sorted(each) for each in drawn if each]
    found = promised_distance(classes_of(drawn), rate, float(target), float(delta))
    if rate == "far":  # the distance of the first pair too many
        refused = sorted(each[m] for each, m in zip(ascending, allowed, strict=True))[k - 1] / 10
        assert refused - 1 <= found < refused
        assert not any(found < value / 10 < refused for each in drawn for value in each)
    else:  # the distance of the last pair that must be accepted
        needed = sorted(each[n - m - 1] for each, n, m in zip(ascending, sizes, allowed, strict=True))[-k] / 10
        assert found >= needed
        assert not any(needed < value / 10 <= found for each in drawn for value in each)


@settings(max_examples=100, deadline=None)
@given(tenths, st.sampled_from(["far", "frr"]), st.none() | levels, st.randoms(use_true_random=False))
def test_the_order_of_classes_changes_nothing(drawn, rate, delta, random):
    shuffled = random.sample(drawn, len(drawn))
    delta = None if delta is None else float(delta)
    one, other = (promised_distance(classes_of(each), rate, 0.4, delta) for each in (drawn, shuffled))
    assert one == other


@settings(max_examples=100, deadline=None)
@given(tenths, levels, levels, levels, levels)
def test_a_laxer_promise_never_has_a_stricter_threshold(drawn, target, other_target, delta, other_delta):
    distances = classes_of(drawn)
    (low, high), (less, more) = sorted(map(float, (target, other_target))), sorted(map(float, (delta, other_delta)))
    for strict, lax in (((low, None), (high, None)), ((low, less), (high, less)), ((low, less), (low, more))):
        assert promised_distance(distances, "far", *strict) <= promised_distance(distances, "far", *lax)
        assert promised_distance(distances, "frr", *strict) >= promised_distance(distances, "frr", *lax)


def test_pairs_equally_far_are_refused_together_rather_than_accepted_together():
    distances = listed([[0.5, 0.9, 0.9, 0.9], [0.7, 0.9, 0.9, 0.9], [0.9] * 4])
    assert promised_distance(distances, "far", 0.5, None) == pytest.approx(0.8)  # (1/4 + 1/4 + 0 + 1) / 4 <= 1/2
    assert promised_distance(distances, "frr", 0.5, None) == pytest.approx(1.45)  # midway to where none can be


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 5000])
def test_the_search_finds_every_place(count):
    distances = listed([np.arange(1, count + 1) / 5001])
    for wanted in sorted({0, 1, count // 3, count - 2, count - 1} & set(range(count))):
        assert first_place(distances, lambda places, wanted=wanted: places >= distances.distances[wanted]) == wanted


@pytest.mark.parametrize("delta", [None, 0.1])
@pytest.mark.parametrize("rate", ["far", "frr"])
def test_binned_distances_give_the_best_edge(rate, delta):
    generator = np.random.default_rng(4)
    values = [np.sort(generator.normal(generator.normal(1.2, 0.1), 0.1, 300)) for _ in range(40)]
    binned = BinnedDistances(np.stack([np.histogram(each, 500, (0, 2))[0] for each in values]), 2.0, 1)
    found = promised_distance(binned, rate, 0.1, delta)
    assert np.abs(binned.edges - found).min() < 2.1e-6
    level = 0.1 if delta is None else delta

    def keeps(distance):
        wrong = np.array([np.mean((each <= distance) == (rate == "far")) for each in values])
        return ((wrong if delta is None else wrong > 0.1).sum() + 1) / 41 <= level

    step = 0.004 if rate == "far" else -0.004
    assert keeps(found)
    assert not keeps(found + step)


# ----- from an evaluation to a promise


@pytest.fixture(scope="module")
def small():
    """A hundred classes of five images or so, all distances listed; three have a single item."""
    rows, labels = clusters(500, 97, dimensions=8, singles=3)
    with pytest.warns(UserWarning, match="single item"):
        return im.evaluate(rows, labels)


@pytest.mark.parametrize("delta", [None, 0.1])
@pytest.mark.parametrize("rate", ["far", "frr"])
def test_the_classes_of_the_calibration_set_keep_what_is_promised(small, rate, delta):
    promise = promise_threshold(small, **{rate: 0.2}, delta=delta).promise
    point = small.at(promise.distance)
    rates = point.class_far if rate == "far" else point.class_frr[small.sizes > 1]
    assert promise.classes == len(rates) == (100 if rate == "far" else 97)
    if delta is None:
        assert (rates.sum() + 1) / (len(rates) + 1) <= 0.2
    else:
        assert ((rates > 0.2).sum() + 1) / (len(rates) + 1) <= delta
    assert (promise.far, promise.frr) == (point.far, point.frr)


def test_counts_of_the_pass_in_bins_promise_nearly_what_lists_do():
    rows, labels = clusters(2000, 60, dimensions=12)
    data = sort_by_class(rows, labels)
    binned = count_pairs(data, k=(1,)).counts.negatives
    assert isinstance(binned, BinnedDistances)
    vectors = data.vectors.astype(np.float64)
    distance = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0))
    lists = listed([distance[data.class_of == i][:, data.class_of != i].ravel() for i in range(60)], appearances=2)
    for delta in (None, 0.05, 0.2):
        expected = promised_distance(lists, "far", 0.05, delta)
        assert promised_distance(binned, "far", 0.05, delta) == pytest.approx(expected, abs=1e-3)


def test_a_promise_says_what_it_promises_and_what_it_rests_on(small):
    confident = promise_threshold(small, far=0.01, delta=0.05).promise
    assert confident.what == "the FAR of an unseen class exceeds 1% with probability at most 5%"
    expected = promise_threshold(small, frr=0.025).promise
    assert expected.what == "the expected FRR of an unseen class is at most 2.5%"
    assert (confident.on, expected.on) == ("class", "mean")
    assert any("its negatives are" in each for each in confident.assumptions)
    assert any("two or more items" in each for each in expected.assumptions)
    values = json.loads(json.dumps(confident.as_values(), allow_nan=False))
    assert values["distance"] == confident.distance
    assert values["assumptions"] == list(confident.assumptions)
    assert len(values["assumptions"]) == 4


def test_the_spread_of_the_share_over_the_target_is_the_one_the_assumptions_name():
    generator = np.random.default_rng(5)
    found = [promised_distance(draw(generator, 39), "far", 0.1, 0.1) for _ in range(REPETITIONS)]
    shares = true_exceedance("far", 0.1, np.array(found))
    promise = Promise("far", 0.1, 0.1, classes=39, distance=1.0, far=0.01, frr=0.1)
    named = next(each for each in promise.assumptions if "standard deviation" in each).split()[-1]
    assert shares.std() == pytest.approx(float(named.rstrip("%")) / 100, rel=0.1)


# ----- equalized similarities


def draw_items(generator, classes, items=8):
    """Classes of different spread, whose items are nearer to each other than to those of other classes."""
    centres = generator.normal(size=(classes, 8))
    spreads = generator.uniform(0.1, 0.4, classes)
    rows = centres[:, None] + spreads[:, None, None] * generator.normal(size=(classes, items, 8))
    return rows.reshape(-1, 8), np.repeat(np.arange(classes), items)


def equalized_distances(items, item_shifts, others, other_shifts):
    """(items, others) equalized distances."""
    items, others = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (items, others))
    apart = 2 - 2 * (items @ others.T + item_shifts[:, None] + other_shifts)
    return np.copysign(np.sqrt(np.abs(apart)), apart)


def distances_of_new_class(equalizer, index, items):
    """Distances of a new class to the index, after it has joined and without."""
    grown = copy.copy(equalizer).partial_fit(items)
    joined = grown.shifts(np.concatenate([index, items])).values
    return {
        "joined": equalized_distances(items, joined[len(index) :], index, joined[: len(index)]),
        "not joined": equalized_distances(items, equalizer.shifts(items).values, index, equalizer.shifts(index).values),
    }


@pytest.fixture(scope="module")
def shares_over():
    """(sets,) shares of new classes, joined or not, whose FAR exceeds the promise of each evaluation."""
    generator, known, found = np.random.default_rng(6), 40, defaultdict(list)
    for _ in range(12):
        rows, labels = draw_items(generator, known + 10)
        index, calibration = rows[labels < known], labels[labels < known]
        equalizer = im.Equalizer(neighbours=4, skip=0, threads=1).fit(index)  # fewer than a class has items
        new = [distances_of_new_class(equalizer, index, rows[labels == i]) for i in range(known, known + 10)]
        for as_new in (False, True):
            evaluation = im.evaluate(index, calibration, equalizer=equalizer, new_classes=as_new, threads=1)
            distance = promised_distance(evaluation.counts.negatives, "far", 0.1, 0.1)
            for case in ("joined", "not joined"):
                rates = [np.mean(apart[case] <= distance) for apart in new]
                found[case, as_new].append(np.mean(np.array(rates) > 0.1))
    return {key: np.array(shares) for key, shares in found.items()}


@pytest.mark.filterwarnings("ignore:about .* of OPIS is noise")
def test_an_equalized_promise_holds_for_classes_measured_alike_and_fails_for_others(shares_over):
    for case, as_new in (("joined", False), ("not joined", True), ("joined", True)):
        share, error = mean_and_error(shares_over[case, as_new])
        assert share <= 0.1 + 0.02 + 3 * error  # 2%, because calibration classes are compared with each other
    assert shares_over["joined", False].mean() > 0.03
    share, error = mean_and_error(shares_over["not joined", False])
    assert share > 0.2 + 3 * error


def test_a_class_is_farther_from_all_others_once_it_has_joined(equalized):
    equalizer, rows, labels = equalized
    equalizer = im.Equalizer(**equalizer.get_params()).fit(rows[labels < 40])
    apart = distances_of_new_class(equalizer, rows[labels < 40], rows[labels == 50])
    assert (apart["joined"] >= apart["not joined"] - 1e-6).all()
    assert (apart["joined"] > apart["not joined"] + 0.01).mean() > 0.5


@pytest.fixture(scope="module")
def equalized():
    """An equalizer, its reference of forty classes, and forty other classes."""
    rows, labels = draw_items(np.random.default_rng(7), 80)
    half = labels < 40
    equalizer = im.Equalizer(neighbours=20, skip=0, threads=1).fit(rows[half], ids=np.flatnonzero(half))
    return equalizer, rows, labels


def promise_of(equalized, chosen, rate="far", **options):
    equalizer, rows, labels = equalized
    evaluation = im.evaluate(rows[chosen], labels[chosen], equalizer=equalizer, **options)
    return promise_threshold(evaluation, **{rate: 0.1}, delta=0.1).promise


@pytest.mark.parametrize("rate", ["far", "frr"])
def test_an_equalized_promise_says_for_which_classes_it_is(equalized, rate):
    reference, others = np.arange(320), np.arange(320, 640)
    joined = promise_of(equalized, reference, rate).assumptions[3]
    new = promise_of(equalized, reference, rate, new_classes=True).assumptions[3]
    outside = promise_of(equalized, others, rate).assumptions[3]
    assert joined.startswith("its items have joined the reference")
    assert new.startswith("its items are not in the reference")
    assert outside.startswith("its items are not in the reference")
    assert len({joined, new, outside}) == 3
    measured = {"far": (joined, "up to 86%"), "frr": (new, "up to 26%")}[rate]
    assert measured[1] in measured[0]


def test_rows_of_the_reference_are_known_by_their_ids_or_as_copies(equalized):
    _, rows, labels = equalized
    some = np.arange(300)[::-1]
    assert promise_of(equalized, some, ids=some).own_class == "in_reference"
    with pytest.warns(UserWarning, match="exact copy"), pytest.raises(im.InputError, match="their own neighbours"):
        promise_of(equalized, some)
    cohort = im.Equalizer(neighbours=20, skip=0, method="cohort", threads=1).fit(rows[:320])
    assert promise_of((cohort, rows, labels), np.arange(320, 640)).own_class == "outside"
    assert promise_of((cohort, rows, labels), np.arange(320)).own_class == "in_reference"


def test_rows_partly_of_the_reference_promise_nothing(equalized):
    some = np.arange(200, 500)
    with pytest.raises(im.InputError, match="some of the evaluated rows are in the reference"):
        promise_of(equalized, some, ids=some)


# ----- what cannot be promised


def test_what_so_few_classes_cannot_promise_is_refused_with_what_they_can_and_what_it_needs(small):
    with pytest.raises(im.InputError, match=r"far is 0.001, but with 100 classes .* 0.00991 .* needs 999 classes"):
        promise_threshold(small, far=0.001)
    with pytest.raises(
        im.InputError, match=r"frr is 0.01, but with 97 classes that have positive pairs .* 0.0103 .* 99 "
    ):
        promise_threshold(small, frr=0.01)
    with pytest.raises(im.InputError, match=r"delta is 0.005, but with 100 classes .* for each class: .* 199 classes"):
        promise_threshold(small, far=0.3, delta=0.005)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400), st.sampled_from(["far", "frr"]))
def test_the_least_that_a_refusal_offers_and_the_classes_it_asks_for_are_enough(classes, rate):
    generator = np.random.default_rng(classes)
    distances, level = draw(generator, classes), 0.9 / (classes + 1)
    with pytest.raises(im.InputError) as refusal:
        promised_distance(distances, rate, level, None)
    words = str(refusal.value).split()
    least = float(words[words.index("than") + 1])
    assert 0 < promised_distance(distances, rate, least, None) < 2
    needed = int(words[-2].replace(",", ""))
    promised_distance(draw(generator, needed), rate, level, None)
    with pytest.raises(im.InputError, match="can be promised"):
        promised_distance(draw(generator, needed - 1), rate, level, None)


def test_images_that_are_there_under_two_labels_are_told_of():
    twice = listed([[0.0, 1.0], [0.0, 1.0], [0.9, 1.2]])
    with pytest.raises(im.InputError, match="have two labels"):
        promised_distance(twice, "far", 0.3, None)
    binned = BinnedDistances(np.array([[1, 1], [1, 1], [0, 2]]), 2.0, 1)
    with pytest.raises(im.InputError, match="have two labels"):
        promised_distance(binned, "far", 0.3, None)


def test_a_set_without_pairs_promises_nothing():
    with pytest.raises(im.InputError, match="no class has negative pairs"):
        promised_distance(listed([[], []]), "far", 0.5, None)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "exactly one of them is needed"),
        ({"far": 0.1, "frr": 0.1}, "exactly one of them is needed"),
        ({"far": 1.0}, "far is 1.0: a number above 0 and below 1"),
        ({"frr": 0}, "frr is 0: a number above 0 and below 1"),
        ({"far": 0.1, "delta": 1.5}, "delta is 1.5"),
        ({"far": "0.1"}, "far is '0.1'"),
        ({"far": float("nan")}, "far is nan"),
    ],
    ids=str,
)
def test_bad_targets_are_refused(small, asked, sentence):
    with pytest.raises(im.InputError, match=sentence):
        promise_threshold(small, **asked)


def test_what_is_no_evaluation_is_refused():
    with pytest.raises(im.InputError, match="evaluation is of type ndarray"):
        promise_threshold(np.eye(3), far=0.1)
