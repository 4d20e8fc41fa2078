"""Thresholds of equalized similarities: what they promise is counted again over all pairs, also below distance zero."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from given_shifts import Given, signed_distances
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import clusters
from isomargin.measure import evaluate as evaluate_module
from isomargin.thresholds.calibrate import Calibration
from isomargin.thresholds.transfer import transfer_card, transfer_threshold

RATES = {"far": (0.02, 0.3), "target_far": 0.02}


def measured(rows, labels, values, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return im.evaluate(rows, labels, equalizer=Given(values), **{**RATES, **options})


def all_pairs(rows, labels, values):
    """Sorted distances of positive and negative pairs; and those of each class."""
    distances, same = signed_distances(rows, values), labels[:, None] == labels
    upper = np.triu(np.ones_like(same), 1)
    classes = [labels == name for name in np.unique(labels)]
    return SimpleNamespace(
        positives=np.sort(distances[same & upper]),
        negatives=np.sort(distances[~same & upper]),
        class_positives=[distances[own][:, own][np.triu_indices(own.sum(), 1)] for own in classes],
        class_negatives=[distances[own][:, ~own].ravel() for own in classes],
    )


def within(distances, threshold):
    return int((distances <= threshold).sum())


@pytest.fixture(scope="module")
def near_zero():
    """Rows whose equalized distances straddle zero, from negative pairs as much as from positive ones."""
    rows, labels = clusters(240, 20, noise=1.2, seed=11)
    values = 0.35 + 0.1 * np.random.default_rng(12).normal(size=240)
    pairs = all_pairs(rows, labels, values)
    assert (pairs.negatives < 0).mean() > 0.02
    assert (pairs.positives > 0).mean() > 0.1
    return rows, labels, values, pairs


# ----- choosing


@pytest.mark.parametrize("how", ["listed", "binned"])
@pytest.mark.parametrize("far", [0.001, 0.01, 0.05, 0.3])
def test_the_largest_threshold_that_does_not_exceed_a_far(near_zero, far, how, monkeypatch):
    *data, pairs = near_zero
    if how == "binned":
        monkeypatch.setattr(evaluate_module, "SMALL", 0)
    evaluation = measured(*data)
    choice = im.choose_threshold(evaluation, far=far, draws=100)
    allowed = int(far * len(pairs.negatives))
    accepted = within(pairs.negatives, choice.distance)
    assert accepted <= allowed
    assert accepted == allowed if how == "listed" else accepted >= allowed - 3
    assert choice.far == pytest.approx(accepted / len(pairs.negatives), abs=1e-12)
    rejected = len(pairs.positives) - within(pairs.positives, choice.distance)
    assert choice.frr == pytest.approx(rejected / len(pairs.positives), abs=1e-12)
    if far <= 0.01:
        assert choice.distance < 0


@pytest.mark.parametrize("frr", [0.05, 0.5, 0.95])
def test_the_smallest_threshold_that_does_not_exceed_an_frr(near_zero, frr):
    *data, pairs = near_zero
    choice = im.choose_threshold(measured(*data), frr=frr, draws=100)
    needed = len(pairs.positives) - int(frr * len(pairs.positives))
    assert within(pairs.positives, choice.distance) == needed
    nearest = pairs.positives[needed - 1]
    assert nearest <= choice.distance
    assert within(pairs.negatives, choice.distance) == within(pairs.negatives, nearest)  # none that is not needed
    assert (choice.distance < 0) == (frr > 0.05)


def utilities(pairs, thresholds):
    specificity = 1 - np.searchsorted(pairs.negatives, thresholds, side="right") / len(pairs.negatives)
    sensitivity = np.searchsorted(pairs.positives, thresholds, side="right") / len(pairs.positives)
    return 2 * specificity * sensitivity / np.maximum(specificity + sensitivity, 1e-300)


def test_no_other_threshold_has_a_better_utility(near_zero):
    *data, pairs = near_zero
    choice = im.choose_threshold(measured(*data), utility="best", draws=100)
    every = np.concatenate([pairs.positives, pairs.negatives])
    assert utilities(pairs, np.array([choice.distance]))[0] == pytest.approx(utilities(pairs, every).max(), rel=1e-12)


@pytest.mark.parametrize("cost", [(1.0, 1.0, 0.5), (500.0, 1.0, 0.1)])
def test_no_other_threshold_costs_less(near_zero, cost):
    *data, pairs = near_zero
    choice = im.choose_threshold(measured(*data), cost=cost, draws=100)

    def costs(thresholds):
        far = np.searchsorted(pairs.negatives, thresholds, side="right") / len(pairs.negatives)
        frr = 1 - np.searchsorted(pairs.positives, thresholds, side="right") / len(pairs.positives)
        return cost[0] * (1 - cost[2]) * far + cost[1] * cost[2] * frr

    every = np.concatenate([[-9.0], pairs.positives, pairs.negatives])
    assert costs(np.array([choice.distance]))[0] == pytest.approx(costs(every).min(), rel=1e-12)
    assert (choice.distance < 0) == (cost[0] == 500)


FEW = {"far": (0.1, 0.9), "target_far": 0.1}  # of twelve negative pairs


def test_where_accepting_nothing_costs_least_the_threshold_is_below_every_pair():
    values = np.array([1.0, 0, 1.0, 0, 0, 0])  # the nearest pair, at -sqrt(2), is of different classes
    evaluation = measured(np.eye(6), np.array([0, 0, 1, 1, 2, 2]), values, **FEW)
    choice = im.choose_threshold(evaluation, cost=(1e6, 1.0, 0.5), draws=100)
    assert evaluation.axis.lowest < choice.distance < -np.sqrt(2)
    assert (choice.far, choice.frr) == (0, 1)


def test_a_threshold_that_accepts_the_farthest_pair_lies_beyond_it():
    values = np.array([-2.0, -2.0, 0, 0, 0, 0])  # the farthest pair, at sqrt(10), is of one class
    evaluation = measured(np.eye(6), np.array([0, 0, 1, 1, 2, 2]), values, **FEW)
    choice = im.promise_threshold(evaluation, frr=0.1, delta=0.25, draws=100)  # of three classes none may exceed it
    assert np.sqrt(10) + 1e-6 < choice.distance < evaluation.axis.highest
    assert choice.frr == 0


def test_a_given_distance_may_be_below_zero_but_not_outside_the_axis(near_zero):
    *data, pairs = near_zero
    evaluation = measured(*data)
    choice = im.choose_threshold(evaluation, distance=-0.25, draws=100)
    assert choice.far == within(pairs.negatives, -0.25) / len(pairs.negatives)
    with pytest.raises(im.InputError, match="an equalized distance from"):
        im.choose_threshold(evaluation, distance=evaluation.axis.lowest - 0.1)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-0.8, 0.8), st.sampled_from([0.02, 0.2, 0.7]))
def test_rates_are_never_exceeded(seed, constant, rate):
    rows, labels = clusters(50, 5, dimensions=4, seed=seed)
    values = constant + 0.3 * np.random.default_rng(seed).normal(size=50)
    pairs, evaluation = all_pairs(rows, labels, values), measured(rows, labels, values, far=(0.02, 0.9))
    for name, kind in (("far", "negatives"), ("frr", "positives")):
        distance = im.choose_threshold(evaluation, **{name: rate}, draws=100).distance
        distances = getattr(pairs, kind)
        wrong = within(distances, distance) if name == "far" else len(distances) - within(distances, distance)
        assert wrong == int(rate * len(distances) + 1e-9)


# ----- promises


@pytest.mark.parametrize("delta", [None, 0.2])
@pytest.mark.parametrize("rate", ["far", "frr"])
@pytest.mark.parametrize("target", [0.06, 0.5])
def test_a_promise_holds_for_the_classes_it_was_made_on(near_zero, rate, delta, target):
    *data, pairs = near_zero
    choice = im.promise_threshold(measured(*data), **{rate: target}, delta=delta, draws=100)
    by_class = pairs.class_negatives if rate == "far" else pairs.class_positives
    level = target if delta is None else delta

    def risk(threshold):
        rates = [within(distances, threshold) / len(distances) for distances in by_class]
        rates = np.array(rates) if rate == "far" else 1 - np.array(rates)
        losses = rates if delta is None else rates > target + 1e-12
        return (losses.sum() + 1) / (len(by_class) + 1)

    assert risk(choice.distance) <= level + 1e-12
    every = np.sort(np.concatenate(by_class))
    if rate == "far":  # the next pair would break it
        assert risk(every[every > choice.distance][0]) > level
    else:  # without the last pair it would be broken
        assert risk(every[every <= choice.distance][-1] - 1e-9) > level


def test_a_promise_that_allows_no_negative_pair_lies_below_all_of_them(near_zero):
    *data, pairs = near_zero
    evaluation = measured(*data)
    choice = im.promise_threshold(evaluation, far=1e-4, delta=0.05, draws=100)  # less than one pair of any class
    assert evaluation.axis.lowest < choice.distance < pairs.negatives[0] < 0
    assert choice.far == 0


def assumptions(evaluation):
    return " ".join(im.promise_threshold(evaluation, far=0.2, draws=100).promise.assumptions)


def test_a_promise_says_what_it_assumes_of_the_reference(near_zero):
    rows, labels, _, _ = near_zero
    local, cohort = im.Equalizer(20, 5).fit(rows), im.Equalizer(20, 0, method="cohort").fit(-rows[::-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = assumptions(im.evaluate(rows, labels, **RATES))
        in_reference = assumptions(im.evaluate(rows, labels, equalizer=local, **RATES))
        left_out = assumptions(im.evaluate(rows, labels, equalizer=local, new_classes=True, **RATES))
        apart = assumptions(im.evaluate(rows, labels, equalizer=cohort, **RATES))
    assert "equalizer" not in plain
    assert "have joined the reference of the equalizer" in in_reference
    assert "are not in the reference of the equalizer" in left_out
    assert "are not in the reference of the equalizer" in apart


# ----- cards


@pytest.fixture(scope="module")
def fitted(near_zero):
    """Rows, labels, their equalizer, and their evaluation."""
    rows, labels, _, _ = near_zero
    equalizer = im.Equalizer(20, 5).fit(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return rows, labels, equalizer, im.evaluate(rows, labels, equalizer=equalizer, **RATES)


def test_a_card_keeps_the_axis_and_the_equalizer(fitted, tmp_path):
    _, _, equalizer, evaluation = fitted
    card = im.make_card(im.choose_threshold(evaluation, far=0.02, draws=100), evaluation)
    card.save(tmp_path / "card.json")
    loaded = im.ThresholdCard.load(tmp_path / "card.json")
    assert loaded == card
    assert loaded.equalizer == equalizer.record()
    assert loaded.score_axis == "equalized_distance"
    assert loaded.accept_when == {"equalized_similarity": "at least", "equalized_distance": "at most"}
    assert loaded.distance == loaded.threshold["equalized_distance"]
    assert loaded.threshold["equalized_similarity"] == 1 - loaded.distance * abs(loaded.distance) / 2
    assert equalizer.digest_[:16] in loaded.summary()
    assert "neighbours 6 to 25 (local)" in loaded.summary()
    assert "cosine_similarity" not in loaded.summary()


def test_a_card_of_a_negative_distance_has_a_similarity_above_one(near_zero, tmp_path):
    evaluation = measured(*near_zero[:3])
    card = im.make_card(im.choose_threshold(evaluation, far=0.001, draws=100), evaluation)
    assert card.distance < 0
    assert card.threshold["equalized_similarity"] == pytest.approx(1 + card.distance**2 / 2)
    card.save(tmp_path / "card.json")
    assert im.ThresholdCard.load(tmp_path / "card.json") == card


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("digest", "was changed after it was written"),
        ("missing", "without a valid equalizer.offset"),
        ("axis", "of a kind that this isomargin does not know"),
        ("threshold", "without a valid threshold.equalized_similarity"),
    ],
)
def test_a_changed_card_is_refused(fitted, tmp_path, change, told):
    evaluation = fitted[3]
    im.make_card(im.choose_threshold(evaluation, far=0.02, draws=100), evaluation).save(tmp_path / "card.json")
    values = json.loads((tmp_path / "card.json").read_text())
    if change == "digest":
        values["equalizer"]["digest"] = "0" * 64
    elif change == "missing":
        del values["equalizer"]["offset"]
    elif change == "axis":
        values["score_axis"] = "l1_distance"
    else:
        values["threshold"] = {"l2": 1.0}
    (tmp_path / "card.json").write_text(json.dumps(values))
    with pytest.raises(im.InputError, match=told):
        im.ThresholdCard.load(tmp_path / "card.json")


# ----- transfer and calibration


def test_a_threshold_is_transferred_to_sets_of_the_same_equalizer_only(fitted):
    rows, labels, equalizer, evaluation = fitted
    half = np.arange(len(labels)) % 2 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        options = {"far": (0.05, 0.3), "target_far": 0.05}
        plain = im.evaluate(rows[half], labels[half], **options)
        same = im.evaluate(rows + 0.1, labels, equalizer=equalizer, **options)
        other = im.evaluate(rows, labels, equalizer=im.Equalizer(20, 6).fit(rows), **options)
        grown = im.Equalizer(20, 5).fit(rows).partial_fit(rows + 0.2)
        later = im.evaluate(rows + 0.1, labels, equalizer=grown, **options)
    choice = im.choose_threshold(evaluation, far=0.02, draws=100)
    card = im.make_card(choice, evaluation)
    for sets in ({"same": same}, {"later": later}):  # growing keeps the digest
        for transfer in (transfer_threshold(choice.distance, evaluation, sets), transfer_card(card, sets)):
            assert transfer.equalized
            assert transfer.rows[0].far == choice.far
            assert transfer.rows[1].far == next(iter(sets.values())).at(choice.distance).far
    refused = {"plain": (plain, "threshold is for equalized similarities, but those of 'plain' are plain")}
    refused["other"] = (other, f"'other' was equalized by {other.equalizer['digest'][:16]}")
    for name, (found, told) in refused.items():
        for call in (
            lambda found=found, name=name: transfer_threshold(choice.distance, evaluation, {name: found}),
            lambda found=found, name=name: transfer_card(card, {name: found}),
        ):
            with pytest.raises(im.InputError, match=told):
                call()
    with pytest.raises(im.InputError, match="threshold is for plain similarities, but those of 'same' are equalized"):
        transfer_threshold(1.0, plain, {"same": same})


@pytest.mark.parametrize("method", ["platt", "isotonic", "temperature"])
def test_equalized_similarities_are_calibrated_beyond_those_of_cosines(near_zero, method, tmp_path):
    rows, labels, values, pairs = near_zero
    evaluation = measured(rows, labels, values)
    calibration = im.calibrate(evaluation, method)
    least, largest = calibration.similarities
    assert largest > 1.3
    found = calibration.probability_at_distance(np.concatenate([pairs.positives, pairs.negatives]))
    matched = np.arange(len(found)) < len(pairs.positives)
    weight = np.where(matched, 0.5 / matched.sum(), 0.5 / (~matched).sum())  # as many matches as others
    for low, high in ((0.1, 0.4), (0.4, 0.6), (0.6, 0.9)):  # of a sigmoid, only roughly
        inside = (found >= low) & (found < high)
        share = weight[inside & matched].sum() / weight[inside].sum()
        assert share == pytest.approx((weight[inside] * found[inside]).sum() / weight[inside].sum(), abs=0.06)
    assert calibration.errors_after.ece < 0.1
    assert least < calibration.similarity_at(0.5) < largest
    with pytest.raises(im.InputError, match=f"equalized similarities from {least:g} to {largest:g}"):
        calibration(largest + 0.1)
    card = im.make_card(im.choose_threshold(evaluation, far=0.05), evaluation, calibration=calibration)
    card.save(tmp_path / "card.json")
    kept = Calibration.from_values(im.ThresholdCard.load(tmp_path / "card.json").calibration)
    assert kept == calibration


def test_a_calibration_saved_before_there_were_equalizers_is_of_cosines():
    values = Calibration("platt", 0.5, {"slope": 10.0, "intercept": -4.0}).as_values()
    del values["similarities"]
    assert Calibration.from_values(values).similarities == (-1.0, 1.0)
