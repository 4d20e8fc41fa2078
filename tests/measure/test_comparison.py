"""Models held against each other: equal ones, truly different ones, and ones that only chance sets apart."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import isomargin as im
from isomargin.measure.comparison import Comparison, Difference, compare
from isomargin.measure.scores.registry import find_score
from isomargin.measure.statistics.intervals import Interval

pytestmark = pytest.mark.xdist_group("comparison")  # models alike are compared once, in one of pytest's workers

DIMENSIONS = 8
SCORES = ["opis", "debiased_opis", "epsilon_opis", "relative_opis", "far_within_two", "mean_utility", "eer", "recall@1",
          "recall@4", "r_precision", "map_at_r", "frr"]  # fmt: skip


def draw_models(noises, classes=60, images=6, common=0.5, seed=0):
    """One set of images as several models see it: a part of what blurs an image is common to all of them."""
    generator = np.random.default_rng([seed, 5])
    centres = generator.normal(size=(classes, 1, DIMENSIONS))
    spreads = generator.uniform(0.4, 0.8, (classes, 1, 1))
    base = centres + common * spreads * generator.normal(size=(classes, images, DIMENSIONS))
    labels = np.repeat(np.arange(classes), images)
    rows = [base + noise * spreads * generator.normal(size=base.shape) for noise in noises]
    return [each.reshape(-1, DIMENSIONS) for each in rows], labels


def evaluate(rows, labels, **choices):
    return im.evaluate(rows, labels, **{"k": (1, 4), "threads": 1, **choices})


@pytest.fixture(scope="module")
def three():
    rows, labels = draw_models([0.9, 0.3, 0.9])
    return {name: evaluate(each, labels) for name, each in zip(("rough", "fine", "also rough"), rows, strict=True)}


@pytest.fixture(scope="module")
def comparison(three):
    return compare(three)


def rows_of(comparison, name):
    return {each.score: each for each in comparison.others[name]}


# --- Known answers ----------------------------------------------------------------------------------------------------


def test_a_model_does_not_differ_from_itself(three):
    itself = compare({"A": three["rough"], "B": three["rough"]}, draws=200)
    for row in itself.others["B"]:
        assert (row.difference.value, row.difference.low, row.difference.high) == (0, 0, 0), row.score
        assert row.p_value == 1
        assert not row.certain
        assert not row.better
        if row.change is not None:
            assert (row.change.value, row.change.low, row.change.high) == (0, 0, 0)
    same = "does not differ significantly (5% level)"
    assert itself.sentence("B") == f"B's OPIS {same}; recall@1 {same}"


def test_every_score_is_compared_as_it_was_measured(three, comparison):
    rows = rows_of(comparison, "fine")
    assert sorted(rows) == sorted(SCORES)
    rough, fine = three["rough"], three["fine"]
    for score, row in rows.items():
        first, other = (find_score(score).read(each) for each in (rough, fine))
        assert (row.first, row.other) == (first, other)
        assert row.difference.value == pytest.approx(other - first)
        assert row.difference.low <= row.difference.value <= row.difference.high
        if row.change is not None:
            assert row.change.value == pytest.approx(other / first - 1)
    assert rows["opis"].change is not None
    assert rows["recall@1"].change is None


@pytest.mark.parametrize("score", sorted(set(SCORES) - {"relative_opis", "far_within_two"}))  # not about all errors
def test_a_truly_better_model_is_found_to_be(comparison, score):
    row = rows_of(comparison, "fine")[score]
    assert row.certain
    assert row.p_value < 0.01
    assert row.better
    falls = score in ("opis", "debiased_opis", "epsilon_opis", "eer", "frr")
    assert (row.difference.value < 0) == falls


def test_bounds_hold_the_true_difference():
    """Over the law that classes are drawn from: the mean over many sets of other classes."""
    exact = {"mean_utility": [], "recall@1": []}
    for seed in range(40, 52):
        rows, labels = draw_models([0.7, 0.5], classes=40, images=5, seed=seed)
        one, other = (evaluate(each, labels, map_at_r=False) for each in rows)
        exact["mean_utility"].append(other.mean_utility - one.mean_utility)
        exact["recall@1"].append(other.recall_at_k[1] - one.recall_at_k[1])
    held = dict.fromkeys(exact, 0)
    for seed in range(20):
        rows, labels = draw_models([0.7, 0.5], classes=40, images=5, seed=seed)
        found = compare(
            {name: evaluate(each, labels, map_at_r=False) for name, each in zip("AB", rows, strict=True)},
            draws=300,
            confidence=0.9,
        )
        for name, truths in exact.items():
            bounds = rows_of(found, "B")[name].difference
            held[name] += bounds.low <= np.mean(truths) <= bounds.high
    # Of 20 at 90%, fewer than 14 happens once in 400.
    assert min(held.values()) >= 14, held


def test_pairing_makes_differences_more_certain_than_scores(three, comparison):
    from isomargin.measure.statistics.intervals import intervals

    alone = [intervals(three[name])["mean_utility"] for name in ("rough", "also rough")]
    paired = rows_of(comparison, "also rough")["mean_utility"].difference
    unpaired = np.hypot(*(each.high - each.low for each in alone))
    assert paired.high - paired.low < 0.9 * unpaired


def test_the_other_way_round_differences_change_their_sign(three):
    forth = rows_of(compare({"A": three["rough"], "B": three["also rough"]}), "B")
    back = rows_of(compare({"A": three["also rough"], "B": three["rough"]}), "B")
    for score, row in forth.items():
        assert back[score].difference.value == -row.difference.value
        assert back[score].difference.low == pytest.approx(-row.difference.high, rel=1e-6, abs=1e-12)
        assert back[score].difference.high == pytest.approx(-row.difference.low, rel=1e-6, abs=1e-12)
        assert back[score].p_value == pytest.approx(row.p_value, rel=1e-6)


def test_each_model_is_compared_as_if_it_were_the_only_other_one(three, comparison):
    assert list(comparison.others) == ["fine", "also rough"]
    alone = compare({"rough": three["rough"], "also rough": three["also rough"]})
    assert alone.others["also rough"] == comparison.others["also rough"]


# --- Chance -----------------------------------------------------------------------------------------------------------


ALIKE = 50


@pytest.fixture(scope="module")
def chance():
    """Many pairs of models of which neither is better: two independent blurs of the same images."""
    found = []
    for seed in range(ALIKE):
        rows, labels = draw_models([0.7, 0.7], classes=40, images=5, common=0.7, seed=1000 + seed)
        models = {name: evaluate(each, labels, k=(1,), map_at_r=False) for name, each in zip("AB", rows, strict=True)}
        found.append(compare(models, draws=250, seed=seed))
    return found


@pytest.mark.parametrize("score", ["opis", "debiased_opis", "epsilon_opis", "mean_utility", "eer", "recall@1", "frr"])
def test_models_alike_are_rarely_told_apart(chance, score):
    """p-values are about even: below 0.05 in about one of twenty, a little more often with only 40 classes."""
    p_values = np.array([rows_of(each, "B")[score].p_value for each in chance])
    assert (p_values < 0.05).sum() <= binom.ppf(0.999, ALIKE, 0.07)
    # The standard deviation of even numbers is the root of a twelfth. Of one side's p-values the mean would be 0.25.
    assert p_values.mean() == pytest.approx(0.5, abs=3.5 * np.sqrt(1 / 12 / ALIKE))


def test_what_is_certain_is_what_the_p_value_says(chance):
    for each in chance:
        for row in each.others["B"]:
            if abs(row.p_value - 0.05) > 0.015:  # quantiles lie between draws
                assert row.certain == (row.p_value < 0.05), row


def test_a_difference_and_the_change_it_makes_agree_on_what_is_certain(chance):
    """Else the sentence would give bounds of which it hides that they lie on both sides of zero."""
    for each in chance:
        for row in each.others["B"]:
            if row.change is not None and row.certain:
                assert row.change.low >= 0 or row.change.high <= 0, row


# --- Words ------------------------------------------------------------------------------------------------------------


def difference(score, value, low, high, change=None):
    bounds = None if change is None else Interval(*change, 0.95)
    return Difference(score, 0.5, 0.5 + value, Interval(value, low, high, 0.95), bounds, 0.001)


def said(*rows, confidence=0.95):
    return Comparison("A", {"B": rows}, confidence, classes=9, least_p_value=0.001).sentence("B")


def test_the_sentence_says_how_much_in_which_direction():
    lower = difference("opis", -0.02, -0.03, -0.01, change=(-0.31, -0.39, -0.22))
    same, more = difference("recall@1", 0.001, -0.01, 0.01), difference("recall@1", 0.0312, 0.01, 0.05)
    assert said(lower, same) == (
        "B's OPIS is 31% lower, 95% confidence interval 22% to 39%; recall@1 does not differ significantly (5% level)"
    )
    higher = difference("opis", 0.02, 0.01, 0.03, change=(0.31, 0.22, 0.39))
    assert said(higher, more, confidence=0.9) == (
        "B's OPIS is 31% higher, 90% confidence interval 22% to 39%; "
        "recall@1 is 3.12 points higher, 90% confidence interval 1.00 to 5.00"
    )
    assert (
        said(difference("opis", -0.02, -0.03, 0.01, change=(-0.3, -0.5, 0.2)))
        == "B's OPIS does not differ significantly (5% level)"
    )


def test_without_a_share_the_sentence_gives_the_difference_itself():
    text = said(difference("opis", -0.0234, -0.03, -0.01))
    assert re.fullmatch(r"B's OPIS is 0\.023 lower, 95% confidence interval 0\.01 to 0\.03", text)


def test_the_sentence_of_measured_models(comparison):
    number = r"\d+%"
    pattern = (
        rf"fine's OPIS is {number} lower, 95% confidence interval {number} to {number}; "
        r"recall@1 is \d+\.\d\d points higher, 95% confidence interval \d+\.\d\d to \d+\.\d\d"
    )
    assert re.fullmatch(pattern, comparison.sentence("fine"))


@given(value=st.floats(-1, 1), score=st.sampled_from(SCORES))
def test_better_is_lower_for_errors_and_higher_for_the_rest(value, score):
    row = difference(score, value, value, value)
    if value == 0:
        assert not row.better
    elif score in ("opis", "debiased_opis", "epsilon_opis", "relative_opis", "eer", "frr"):
        assert row.better == (value < 0)
    else:
        assert row.better == (value > 0)


def test_the_table_has_a_row_a_model_and_score(comparison):
    table = comparison.table
    assert len(table) == 2 * len(SCORES)
    assert list(table["model"].unique()) == ["fine", "also rough"]
    line = table[(table["model"] == "fine") & (table["score"] == "opis")].iloc[0]
    row = rows_of(comparison, "fine")["opis"]
    assert line["rough"] == row.first
    assert line["value"] == row.other
    assert (line["low"], line["high"], line["p_value"]) == (row.difference.low, row.difference.high, row.p_value)
    assert line["change_high"] == row.change.high
    assert np.isnan(table[table["score"] == "recall@1"]["change"]).all()


# --- What must not matter, and what is refused ------------------------------------------------------------------------


def test_the_seed_decides(three):
    pair = {"A": three["rough"], "B": three["also rough"]}
    assert compare(pair, draws=200, seed=1) == compare(pair, draws=200, seed=1)
    assert compare(pair, draws=200, seed=1) != compare(pair, draws=200, seed=2)


def test_more_confidence_is_wider(three):
    pair = {"A": three["rough"], "B": three["also rough"]}
    narrow, wide = (rows_of(compare(pair, confidence=each), "B") for each in (0.8, 0.99))
    for score in narrow:
        assert wide[score].difference.low < narrow[score].difference.low
        assert wide[score].difference.high > narrow[score].difference.high
        assert wide[score].p_value == narrow[score].p_value


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_order_of_rows_does_not_matter(seed):
    rows, labels = draw_models([0.7, 0.5], classes=15, seed=3)
    plain = evaluate(rows[0], labels), evaluate(rows[1], labels)
    order = np.random.default_rng(seed).permutation(len(labels))
    shuffled = evaluate(rows[1][order], labels[order])
    a, b = (rows_of(compare({"A": plain[0], "B": other}, draws=200), "B") for other in (plain[1], shuffled))
    for score in set(a) - {"debiased_opis"}:
        assert b[score].difference.low == pytest.approx(a[score].difference.low, rel=1e-6, abs=1e-12)
        assert b[score].p_value == pytest.approx(a[score].p_value, rel=1e-6)


def test_other_numbers_of_images_are_said(three):
    rows, labels = draw_models([0.9, 0.3])
    fewer = evaluate(rows[1][1:-1], labels[1:-1])
    found = compare({"A": three["rough"], "B": fewer}, draws=100)
    assert found.notes == ("2 classes have a different number of items in B than in A",)
    assert compare({"A": three["rough"], "B": three["fine"]}, draws=100).notes == ()


def test_one_model_is_refused(three):
    with pytest.raises(im.InputError, match="a comparison needs at least two evaluations, not 1"):
        compare({"A": three["rough"]})
    with pytest.raises(im.InputError, match="at least two"):
        compare({})


def test_other_classes_are_refused_by_name(three):
    rows, labels = draw_models([0.9])
    other = evaluate(rows[0], np.where(labels >= 55, labels + 100, labels))
    with pytest.raises(im.InputError, match=r"rough lacks 155, 156, 157 and 2 more; other lacks 55, 56, 57 and 2 more"):
        compare({"rough": three["rough"], "other": other})
    fewer = evaluate(rows[0][labels < 59], labels[labels < 59])
    with pytest.raises(im.InputError, match=r"\(fewer lacks 59\): a paired comparison needs the same test classes"):
        compare({"rough": three["rough"], "fewer": fewer})


@pytest.mark.parametrize(
    "change", [{"c": 2.0}, {"far": (0.02, 0.2)}, {"utility": "precision_recall"}, {"target_far": 0.05},
               {"target_frr": 0.1}, {"grid": 51}, {"epsilon": 0.2}, {"mean_curve": "pooled"},
               {"distances": (0.5, 0.9)}],
    ids=str,
)  # fmt: skip
def test_other_settings_are_refused_by_name(three, change):
    (name,) = change
    with pytest.raises(im.InputError, match=rf"A was evaluated with {name} .* and B with .*: scores can only be"):
        compare({"A": three["rough"], "B": three["fine"].with_settings(**change)})


@pytest.mark.parametrize("choices", [{"draws": 10}, {"confidence": 1.5}, {"draws": True}], ids=str)
def test_bad_choices_are_refused(three, choices):
    with pytest.raises(im.InputError, match=f"{next(iter(choices))} is"):
        compare({"A": three["rough"], "B": three["fine"]}, **choices)


def test_what_only_one_model_has_is_left_out(three):
    rows, labels = draw_models([0.9, 0.3])
    without = evaluate(rows[1], labels, k=(1,), map_at_r=False)
    scores = set(rows_of(compare({"A": three["rough"], "B": without}, draws=100), "B"))
    assert scores == set(SCORES) - {"recall@4", "map_at_r", "r_precision"}
