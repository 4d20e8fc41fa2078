"""``EqualizerCV`` against its definition: the folds' objectives, the choice for each fold, the verdict."""

import functools
import warnings

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import isomargin as im
from isomargin.equalize import cross_validation
from isomargin.equalize.verdict import NewClassRates, Verdict
from isomargin.measure.statistics.intervals import Interval
from reference import (
    calibration_range,
    curves,
    distance_at_far,
    even_grid,
    false_accept_rate,
    signed_distances,
    unit_rows,
)

TARGET = 0.2  # of a fold's few pairs, so that half a pair of a class hardly matters
HALF = 0.02  # what half a pair makes of an objective: in bins, the pair at the threshold is counted by half
TRIED = [(k, skip, 0.8) for k in (8, 20) for skip in (0, 10, 20)]  # neighbours, skip, weight
SETTINGS = {"neighbours": (8, 20), "skip": (0, 10, 20), "weight": (0.8,), "target_far": TARGET, "recall_loss": 100}
ONE = {"neighbours": (5,), "skip": (0,), "weight": (0.5,)}


def uneven(draw=0):
    """18 classes of ten items in two regions, of which one is crowded, in random order; draws differ in the items."""
    generator = np.random.default_rng(5)
    labels = generator.permutation(np.repeat(np.arange(18), 10))
    region = np.arange(18) % 2
    centres = 2 * generator.normal(size=(2, 8))[region]
    centres += np.array([0.2, 2.0])[region, None] * generator.normal(size=(18, 8))
    return centres[labels] + 0.8 * np.random.default_rng([5, draw]).normal(size=(180, 8)), labels


COHORT = uneven(draw=1)[0]


def offsets(rows, others, left_out, neighbours, skip):
    cosines = np.where(left_out, -np.inf, unit_rows(rows) @ unit_rows(others).T)
    return -np.sort(-cosines, axis=1)[:, skip : skip + neighbours].mean(axis=1)


def in_the_order(similarities):
    """The distances of similarities, with both orders of a pair exactly equal."""
    return signed_distances(np.triu(similarities) + np.triu(similarities, 1).T)


def by_definition(rows, labels, inside, candidate, new_classes, cohort):
    """Distances within a fold, utility curves and FARs of its classes: first in the index, then outside of it."""
    vectors, names = unit_rows(rows[inside]), labels[inside]
    itself = np.flatnonzero(inside)[:, None] == np.arange(len(rows))
    own_class = names[:, None] == labels
    r = outside = np.zeros(len(vectors))
    weight = 0.0
    if candidate is not None:
        neighbours, skip, weight = candidate
        if cohort is None:
            r = offsets(rows[inside], rows, itself, neighbours, skip)
            outside = offsets(rows[inside], rows, own_class, neighbours, skip) if new_classes else r
        else:
            r = outside = offsets(rows[inside], cohort, np.zeros((len(vectors), len(cohort)), bool), neighbours, skip)
    raised = vectors @ vectors.T + 2 * weight * r.mean()
    index = in_the_order(raised - weight * (r[:, None] + r))
    between = signed_distances(raised - weight * (outside[:, None] + r))  # a new class's row with a row of the index
    both = in_the_order(raised - weight * (outside[:, None] + outside))  # two rows of a new class
    same = names[:, None] == names
    pooled = np.sort(index[np.triu(~same, 1)])
    grid = even_grid(*calibration_range(pooled, pooled, (TARGET, 0.9), None, None), 101)
    threshold = distance_at_far(pooled, TARGET)
    utility, rates = [], []
    for positive, negative in ((index, index), (both, between)):
        for name in np.unique(names):
            pairs = np.sort(positive[np.ix_(names == name, names == name)][np.triu_indices((names == name).sum(), 1)])
            others = np.sort(negative[np.ix_(names == name, names != name)].ravel())
            rates.append(false_accept_rate(others, threshold))
            utility.append(curves(pairs, others, grid, 1.0, "specificity_sensitivity").utility)
    return index, np.stack(utility), rates


def fold_scores(rows, labels, fold, candidate, new_classes=True, cohort=None, objective="far"):
    """By definition: the objective of each class of a fold, and recall@1 within the fold."""
    inside = np.isin(labels, fold)
    index, utility, rates = by_definition(rows, labels, inside, candidate, new_classes, cohort)
    if objective == "far":
        judged = np.clip(np.abs(np.log2(np.maximum(rates, 1e-9) / TARGET)), 0, 3)
    else:
        judged = np.square(utility - utility.mean(axis=0)).mean(axis=1)
    np.fill_diagonal(index, np.inf)
    same = labels[inside][:, None] == labels[inside]
    nearest = np.where(same, index, np.inf).min(axis=1) <= np.where(same, np.inf, index).min(axis=1)
    return judged.reshape(2, len(fold)).mean(axis=0), nearest.mean()


def class_rates(rows, labels, fold, candidate):
    """(2, classes) FARs at the one threshold of the index: in the index, and outside of it."""
    inside = np.isin(labels, fold)
    _, _, rates = by_definition(rows, labels, inside, candidate, True, None)
    return np.array(rates).reshape(2, len(fold))


def folds_of(search):
    return [evaluation.names for evaluation in search.raw_]


def setting_of(evaluation):
    return tuple(evaluation.equalizer[name] for name in ("neighbours", "skip", "weight"))


def fitted(data, reference=None, **options):
    return im.EqualizerCV(**{**SETTINGS, **options}).fit(*data, reference=reference)


@functools.cache
def searched(kind, objective):
    cohort = COHORT if kind == "a cohort" else None
    return fitted(uneven(), cohort, objective=objective, new_classes=kind != "everything")


def search(kind="new classes", objective="far"):
    """The search with the settings of this file, by where neighbours are searched; made once."""
    return searched(kind, objective)


def table(found):
    return found.scores_.set_index(["neighbours", "skip", "weight"])


# ----- judging


@pytest.mark.parametrize(
    ("kind", "objective"),
    [("new classes", "far"), ("new classes", "opis"), ("everything", "far"), ("a cohort", "far")],
)
def test_candidates_are_judged_as_defined(kind, objective):
    rows, labels = uneven()
    found = search(kind, objective)
    folds = folds_of(found)
    assert sorted(np.concatenate(folds)) == list(range(18))
    cohort = COHORT if kind == "a cohort" else None
    objectives = table(found)["objective"]
    for candidate in [None, *TRIED]:
        judged = [fold_scores(rows, labels, fold, candidate, kind != "everything", cohort, objective) for fold in folds]
        row = table(found).loc[candidate or (1, 0, 0.0)]
        expected = np.concatenate([off for off, _ in judged]).mean()
        assert row["objective"] == pytest.approx(expected, abs=HALF if objective == "far" else 0.003 * expected)
        assert row["recall@1"] == pytest.approx(np.mean([recall for _, recall in judged]), abs=1e-12)
    assert objectives.max() - objectives.min() > (5 * HALF if objective == "far" else 0.02 * objectives.max())


def test_judging_classes_also_outside_the_index_matters():
    apart, together = (table(search(kind))["objective"] for kind in ("new classes", "everything"))
    assert abs(apart - together).max() > 5 * HALF
    for kind, own_class in (("new classes", "in_reference"), ("everything", "in_reference"), ("a cohort", "outside")):
        assert {evaluation.equalizer["own_class"] for evaluation in search(kind).equalized_} == {own_class}


def test_the_rates_of_new_classes_are_told_where_classes_are_judged_so():
    rates = search().new_class_rates_
    assert rates.target == TARGET
    raw = np.concatenate([evaluation.target.class_far for evaluation in search().raw_])
    np.testing.assert_allclose(rates.raw, raw, atol=1e-3)
    rows, labels = uneven()
    choices = [setting_of(evaluation) for evaluation in search().equalized_]
    outside = [class_rates(rows, labels, *fold)[1] for fold in zip(folds_of(search()), choices, strict=True)]
    np.testing.assert_allclose(rates.equalized, np.concatenate(outside), atol=1e-3)
    inside = [class_rates(rows, labels, *fold)[0] for fold in zip(folds_of(search()), choices, strict=True)]
    assert np.abs(rates.equalized - np.concatenate(inside)).max() > 0.05
    assert search("everything").new_class_rates_ is None
    assert search("a cohort").new_class_rates_ is None
    told = NewClassRates(0.01, np.array([0.03, 0.01]), np.array([0.004, 0.008, 0.012, 0.016]), 2)
    assert told.sentence == (
        "With each class left out of the index in turn (2 classes left out, too few pairs), 75% of them are within a "
        "factor of two of FAR 1% at the same threshold (50% without equalizing), and their mean FAR is 1% (2% without)."
    )


def test_each_fold_is_judged_with_what_the_others_choose():
    rows, labels = uneven()
    found = search()
    folds = folds_of(found)
    by_class = {
        candidate: [fold_scores(rows, labels, fold, candidate)[0] for fold in folds] for candidate in [None, *TRIED]
    }

    def check_best(chosen, judging):
        means = {name: np.concatenate([off[i] for i in judging]).mean() for name, off in by_class.items() if name}
        assert means[chosen] < min(means.values()) + HALF
        assert max(means.values()) > min(means.values()) + 5 * HALF

    choices = [setting_of(evaluation) for evaluation in found.equalized_]
    for fold, choice in enumerate(choices):
        check_best(choice, [other for other in range(3) if other != fold])
    check_best((found.neighbours_, found.skip_, found.weight_), range(3))
    assert len(set(choices)) > 1
    raw = np.concatenate(by_class[None]).mean()
    equalized = np.concatenate([by_class[choice][fold] for fold, choice in enumerate(choices)]).mean()
    verdict = found.verdict_
    assert (verdict.raw, verdict.equalized) == pytest.approx((raw, equalized), abs=HALF)
    assert verdict.gain.value == pytest.approx(verdict.raw - verdict.equalized)
    assert verdict.gain.low < verdict.gain.value < verdict.gain.high
    assert verdict.classes == 18


def test_a_folds_own_classes_have_no_part_in_the_choice_for_it():
    rows, labels = uneven()
    before = search("a cohort")  # neighbours in a cohort do not depend on the rows of other folds
    for fold in range(3):
        own = np.isin(labels, before.raw_[fold].names)
        changed = rows.copy()
        changed[own] = COHORT[: own.sum()] + 0.01
        after = fitted((changed, labels), COHORT)
        assert setting_of(after.equalized_[fold]) == setting_of(before.equalized_[fold])
        assert after.raw_[fold].opis != before.raw_[fold].opis
        for other in {0, 1, 2} - {fold}:
            assert after.raw_[other].opis == before.raw_[other].opis
        assert np.abs(table(after)["objective"] - table(before)["objective"]).max() > HALF
    # With a part of its own in the choice, a fold would be judged with what all folds choose.
    assert {setting_of(evaluation) for evaluation in before.equalized_} != {(20, before.skip_, before.weight_)}


# ----- choosing


def test_the_best_objective_is_chosen_among_those_that_lose_little_recall():
    scores = search().scores_
    raw = scores.loc[scores["weight"] == 0, "recall@1"].item()
    tried = scores[scores["weight"] > 0]  # sorted by the objective
    losses = 100 * (raw - tried["recall@1"])
    assert losses.iloc[0] > losses.iloc[1]  # the best by the objective loses more than the next
    chosen = fitted(uneven(), recall_loss=float(losses.iloc[0]) - 1e-6)
    assert (chosen.neighbours_, chosen.skip_, chosen.weight_) == tuple(tried.iloc[1][["neighbours", "skip", "weight"]])
    chosen = fitted(uneven(), recall_loss=float(losses.iloc[0]) + 1e-6)
    assert (chosen.neighbours_, chosen.skip_, chosen.weight_) == tuple(tried.iloc[0][["neighbours", "skip", "weight"]])


def test_where_every_candidate_loses_too_much_one_that_loses_least_is_judged():
    chosen = fitted(uneven(), skip=(10, 20), recall_loss=0)
    scores = chosen.scores_
    tried = scores[scores["weight"] > 0]
    assert tried["recall@1"].max() < scores.loc[scores["weight"] == 0, "recall@1"].item()
    found = table(chosen).loc[(chosen.neighbours_, chosen.skip_, chosen.weight_), "recall@1"]
    assert found == tried["recall@1"].max() > tried["recall@1"].min()


def test_candidates_that_need_more_neighbours_than_there_are_are_left_out():
    found = fitted(uneven(), **{**ONE, "neighbours": (5, 500)})
    assert set(found.scores_["neighbours"]) == {1, 5}  # 1 stands for the raw similarities
    with pytest.raises(im.InputError, match="the reference has 179 neighbours for a row, fewer than any setting needs"):
        fitted(uneven(), neighbours=(100,), skip=(80,))


# ----- the verdict


def test_where_nothing_can_be_gained_the_raw_similarities_are_kept():
    generator = np.random.default_rng(3)
    labels = np.arange(400) % 20
    rows = generator.normal(size=(20, 16))[labels] + 0.8 * generator.normal(size=(400, 16))  # alike in all directions
    verdict = fitted((rows, labels), neighbours=(30,), skip=(20,), weight=(0.5,)).verdict_
    assert not verdict.worth_it
    assert verdict.sentence.startswith(
        "Keep the raw similarities: on average a class's FAR is off the target by a factor"
    )
    assert "no significant improvement (5% level, 20 held-out classes)" in verdict.sentence


def test_where_some_classes_are_crowded_equalizing_is_worth_it():
    generator = np.random.default_rng(0)
    labels = np.arange(360) % 30
    regions = 2 * generator.normal(size=(6, 16))
    centres = regions + np.linspace(0.4, 2.0, 6)[:, None] * generator.normal(size=(5, 6, 16))
    rows = centres.reshape(30, 16)[labels] + generator.normal(size=(360, 16))
    verdict = fitted((rows, labels), neighbours=(20,), skip=(12,), weight=(0.5,), target_far=0.05).verdict_
    assert verdict.worth_it
    assert verdict.equalized < verdict.raw
    assert verdict.sentence.startswith(
        "Equalizing is worth it: on average a class's FAR is off the target by a factor of"
    )


def test_where_some_classes_are_wide_equalizing_lowers_opis():
    generator = np.random.default_rng(0)
    labels = np.arange(360) % 24
    widths = np.linspace(0.6, 2.4, 24)[labels, None]
    rows = generator.normal(size=(24, 16))[labels] + widths * generator.normal(size=(360, 16))
    options = {"objective": "opis", "neighbours": (10,), "skip": (0,), "weight": (0.5,), "target_far": 0.05}
    verdict = fitted((rows, labels), new_classes=False, **options).verdict_
    assert verdict.worth_it
    assert verdict.sentence.startswith("Equalizing is worth it: OPIS is")


@pytest.mark.parametrize(("low", "worth_it"), [(-0.01, False), (0.01, True)])
def test_a_gain_that_may_be_chance_is_not_worth_it(low, worth_it):
    verdict = Verdict("far", 1.0, 0.9, Interval(0.1, low, 0.2, 0.95), 30, recall_change=-0.3, recall_loss=0.3)
    assert verdict.worth_it == worth_it
    assert "by a factor of 1.87, 2.00 without" in verdict.sentence


def test_a_gain_at_too_much_recall_is_not_worth_it():
    verdict = Verdict("far", 1.0, 0.5, Interval(0.5, 0.4, 0.6, 0.95), 30, recall_change=-2.96, recall_loss=0.3)
    assert not verdict.worth_it
    assert verdict.sentence.endswith("but recall@1 falls by 3.0 points, more than the 0.3 allowed.")
    found = fitted(uneven(), skip=(10, 20), recall_loss=0).verdict_
    assert found.gain.low > 0
    assert found.loses_recall
    assert not found.worth_it
    worse = Verdict("far", 1.0, 1.5, Interval(-0.5, -0.6, -0.4, 0.95), 30, recall_change=0.0, recall_loss=0.3)
    assert "which is significantly worse" in worse.sentence


def test_differences_are_those_of_the_means_over_folds():
    found = search()
    rows = {row.score: row for row in found.differences(draws=100)}
    assert rows["opis"].first == pytest.approx(np.mean([evaluation.opis for evaluation in found.raw_]))
    assert rows["opis"].other == pytest.approx(np.mean([evaluation.opis for evaluation in found.equalized_]))
    assert rows["opis"].difference.low < rows["opis"].difference.value < rows["opis"].difference.high


# ----- what is fitted


def test_the_equalizer_has_the_chosen_settings_and_all_rows():
    rows, labels = uneven()
    ids = [f"item {row}" for row in range(len(rows))]
    found = im.EqualizerCV(**{**SETTINGS, **ONE}).fit(rows, labels, ids=ids)
    assert found.equalizer_.record() == im.Equalizer(5, 0, 0.5).fit(rows).record()
    assert found.equalizer_.ids_.tolist() == ids
    chosen = search()
    settings = chosen.neighbours_, chosen.skip_, chosen.weight_
    assert chosen.equalizer_.record() == im.Equalizer(*settings).fit(rows).record()


def test_with_a_reference_the_equalizer_is_of_a_cohort():
    found = search("a cohort")
    settings = found.neighbours_, found.skip_, found.weight_
    assert found.equalizer_.record() == im.Equalizer(*settings, "cohort").fit(COHORT).record()
    assert {evaluation.equalizer["method"] for evaluation in found.equalized_} == {"cohort"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the reference is recognised, so no row is its own neighbour
        np.testing.assert_array_equal(found.equalizer_.offsets(COHORT), found.equalizer_.offsets_)


def test_thresholds_can_be_chosen_on_the_evaluations_of_folds(tmp_path):
    evaluation = search().equalized_[0]
    card = im.make_card(im.promise_threshold(evaluation, far=0.5, draws=100), evaluation)
    card.save(tmp_path / "card.json")
    assert im.ThresholdCard.load(tmp_path / "card.json") == card
    assert len({each.equalizer["digest"] for each in search().equalized_}) == 3  # folds have their own thresholds


def test_the_same_seed_gives_the_same_and_another_seed_other_folds():
    again, other = fitted(uneven()), fitted(uneven(), **ONE, seed=1)
    assert again.scores_.equals(search().scores_)
    assert again.verdict_ == search().verdict_
    folds, same, different = ([list(names) for names in folds_of(found)] for found in (search(), again, other))
    assert folds == same
    assert folds != different


def test_classes_of_one_item_are_neighbours_but_not_judged():
    rows, labels = uneven()
    more = np.concatenate([rows, COHORT[:30]]), np.concatenate([labels, np.arange(100, 130)])
    found = fitted(more, **{**ONE, "neighbours": (190,)})  # of 179 other rows and 30
    assert sorted(np.concatenate(folds_of(found))) == list(range(18))
    assert len(found.equalizer_.vectors_) == 210


def test_large_folds_are_judged_on_some_items_of_their_classes_or_on_some_classes(monkeypatch):
    monkeypatch.setattr(cross_validation, "FEWEST_ITEMS", 4)
    for most, classes, items in ((45, 6, 7), (24, 6, 4), (20, 5, 4)):
        monkeypatch.setattr(cross_validation, "MOST_ROWS", most)
        found = fitted(uneven(), **ONE, objective="opis")
        assert [evaluation.class_count for evaluation in found.raw_] == [classes] * 3
        assert {int(size) for evaluation in found.raw_ for size in evaluation.sizes} == {items}


def test_a_class_too_large_to_be_left_out_is_judged_in_the_index_alone():
    rows, labels = uneven()
    large = np.concatenate([rows, COHORT[:150]]), np.concatenate([labels, np.full(150, 3)])
    found = fitted(large, **{**ONE, "neighbours": (175,)})  # 170 rows are of other classes
    assert found.neighbours_ == 175
    assert (found.new_class_rates_.left_out, len(found.new_class_rates_.raw)) == (1, 17)
    every, _ = zip(*(found._scores[(175, 0, 0.5)][fold] for fold in range(3)), strict=True)
    assert sum(map(len, every)) == 18


def test_classes_with_too_few_pairs_have_no_part_in_the_objective():
    rows, labels = uneven()
    few = np.concatenate([rows, COHORT[:2]]), np.concatenate([labels, [18, 18]])  # 120 pairs in the fold
    found = fitted(few, **ONE, target_far=0.05)
    assert found.verdict_.classes == 18
    assert found.new_class_rates_.left_out == 1
    assert sum(evaluation.class_count for evaluation in found.raw_) == 19


def test_without_a_target_far_it_is_one_percent_or_as_much_as_there_are_pairs_for():
    rows, labels = uneven()
    assert fitted((rows, labels), **ONE, target_far=None).target_far_ == 0.02  # ten of the 500 pairs of a class
    more = np.concatenate([rows, COHORT]), np.concatenate([labels, labels])
    assert fitted(more, **ONE, target_far=None).target_far_ == 0.01  # 20 of 2,000
    few = labels * 10 + np.arange(180) % 10 // 2
    with pytest.raises(im.InputError, match=r"use target_far=\S+ or more \(--target-far\)"):
        fitted((rows[:36], few[:36] % 18), **ONE, target_far=None)


def test_results_before_a_fit_are_refused():
    with pytest.raises(NotFittedError):
        im.EqualizerCV().differences()
    with pytest.raises(NotFittedError):
        _ = im.EqualizerCV().scores_


# ----- bad input


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"objective": "eer"}, "objective is 'eer'"),
        ({"recall_loss": -1}, "recall_loss is -1"),
        ({"target_far": 0}, "target_far is 0"),
        ({"folds": 2}, "folds is 2"),
        ({"folds": 10}, "folds is 10, but only 18 classes have two or more items: at most 9 folds"),
        ({"seed": -1}, "seed is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"neighbours": 5}, "neighbours is 5: a list of the values to try is needed"),
        ({"neighbours": (0,)}, "neighbours is 0"),
        ({"skip": ()}, r"skip is \(\): a list"),
        ({"skip": (-1,)}, "skip is -1"),
        ({"weight": "0.5"}, "weight is '0.5': a list"),
        ({"weight": (0.5, 2.0)}, "weight is 2.0"),
    ],
)
def test_bad_settings_are_refused(options, told):
    with pytest.raises(im.InputError, match=told):
        fitted(uneven(), **options)


def test_data_that_cannot_be_judged_are_refused():
    rows, labels = data = uneven()
    few = labels < 9
    with pytest.raises(im.InputError, match="9 classes have two or more items, too few for cross-validation"):
        fitted((rows[few], labels[few]))
    with pytest.raises(im.InputError, match="labels has 179 entries, embeddings has 180 rows"):
        fitted((rows, labels[:-1]))
    with pytest.raises(im.InputError, match="reference has 5 dimensions, embeddings has 8"):
        fitted(data, np.ones((50, 5)))
    with pytest.raises(im.InputError, match="rows 3 of embeddings are NaN"):
        fitted((np.where(np.arange(180)[:, None] == 3, np.nan, rows), labels))
    with pytest.raises(im.InputError, match="the id 0 names more than one row"):
        im.EqualizerCV(**SETTINGS).fit(rows, labels, ids=np.zeros(180, int))
    with pytest.raises(im.InputError, match=r"target_far is 0.0001, but .* too few .* use target_far=0.02 or more"):
        fitted(data, target_far=1e-4)
    with pytest.raises(im.InputError, match="180 of 180 rows have an exact copy in the reference"):
        fitted(data, rows[::-1])
