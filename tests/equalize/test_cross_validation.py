"""``EqualizerCV`` against its definition: the folds' objectives, the choice for each fold, the verdict."""

import functools
import warnings

import numpy as np
import pytest

import isomargin as im
from isomargin.equalize import cross_validation
from isomargin.measure.statistics.intervals import Interval
from reference import reference, unit_rows

TARGET = 0.2  # of a fold's few pairs, so that half a pair of a class hardly matters
HALF = 0.02  # what half a pair makes of an objective: in bins, the pair at the threshold is counted by half
TRIED = [(20, 0, 0.2), (20, 20, 0.2), (20, 0, 0.8), (20, 20, 0.8)]  # neighbours, skip, weight
SETTINGS = {"neighbours": (20,), "skip": (0, 20), "weight": (0.2, 0.8), "target_far": TARGET, "recall_loss": 100}
ONE = {"neighbours": (5,), "skip": (0,), "weight": (0.5,)}


def uneven(draw=0):
    """18 classes of ten items in two regions, of which one is crowded, in random order; draws differ in the items."""
    generator = np.random.default_rng(5)
    labels = generator.permutation(np.repeat(np.arange(18), 10))
    region = np.arange(18) % 2
    centres = 2 * generator.normal(size=(2, 8))[region]
    centres += np.array([0.2, 2.0])[region, None] * generator.normal(size=(18, 8))
    return centres[labels] + 1.2 * np.random.default_rng([5, draw]).normal(size=(180, 8)), labels


COHORT = uneven(draw=1)[0]


def offsets(rows, others, left_out, neighbours, skip):
    cosines = np.where(left_out, -np.inf, unit_rows(rows) @ unit_rows(others).T)
    return -np.sort(-cosines, axis=1)[:, skip : skip + neighbours].mean(axis=1)


def fold_scores(rows, labels, fold, candidate, new_classes=True, cohort=None, objective="far"):
    """By definition: the objective of each class of a fold, and recall@1 within the fold."""
    inside = np.isin(labels, fold)
    similarities = unit_rows(rows[inside]) @ unit_rows(rows[inside]).T
    if candidate is not None:
        neighbours, skip, weight = candidate
        itself = np.flatnonzero(inside)[:, None] == np.arange(len(rows))
        left_out = np.broadcast_to(inside, itself.shape) if new_classes else itself
        if cohort is None:
            r = offsets(rows[inside], rows, left_out, neighbours, skip)
        else:
            r = offsets(rows[inside], cohort, np.zeros((inside.sum(), len(cohort)), bool), neighbours, skip)
        similarities += 2 * weight * r.mean() - weight * (r[:, None] + r)
        similarities = np.triu(similarities) + np.triu(similarities, 1).T
    found = reference(
        rows[inside], labels[inside], similarities=similarities, far=(TARGET, 0.9), target_far=TARGET, k=(1,)
    )
    if objective == "far":
        off = np.clip(np.abs(np.log2(np.maximum(found.class_far_at_target, 1e-9) / TARGET)), 0, 3)
    else:
        off = found.opis_contribution * len(fold)
    return off, found.recall_at_k[1]


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


def search(kind="the other folds", objective="far"):
    """The search with the settings of this file, by where neighbours are searched; made once."""
    return searched(kind, objective)


def table(found):
    return found.scores_.set_index(["neighbours", "skip", "weight"])


# ----- judging


@pytest.mark.parametrize(
    ("kind", "objective"),
    [("the other folds", "far"), ("the other folds", "opis"), ("everything", "far"), ("a cohort", "far")],
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
        assert row["objective"] == pytest.approx(expected, abs=HALF if objective == "far" else 0.01 * expected)
        assert row["recall@1"] == pytest.approx(np.mean([recall for _, recall in judged]), abs=1e-12)
    assert objectives.max() - objectives.min() > (5 * HALF if objective == "far" else 0.05 * objectives.max())


def test_leaving_the_judged_classes_out_of_the_reference_matters():
    apart, together = (table(search(kind))["objective"] for kind in ("the other folds", "everything"))
    assert abs(apart[20, 20, 0.8] - together[20, 20, 0.8]) > 5 * HALF
    for kind, own_class in (("the other folds", "left_out"), ("everything", "in_reference"), ("a cohort", "outside")):
        assert {evaluation.equalizer["own_class"] for evaluation in search(kind).equalized_} == {own_class}


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
        changed[own] = COHORT[: own.sum()]
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
    scores = search().scores_
    tried = scores[scores["weight"] > 0]
    assert tried["recall@1"].max() < scores.loc[scores["weight"] == 0, "recall@1"].item()
    chosen = fitted(uneven(), recall_loss=0)
    found = table(search()).loc[(chosen.neighbours_, chosen.skip_, chosen.weight_), "recall@1"]
    assert found == tried["recall@1"].max() > tried["recall@1"].min()


def test_candidates_that_need_more_neighbours_than_there_are_are_left_out():
    found = fitted(uneven(), **{**ONE, "neighbours": (5, 500)})
    assert set(found.scores_["neighbours"]) == {1, 5}  # 1 stands for the raw similarities
    with pytest.raises(im.InputError, match="the reference has 120 neighbours for a row, fewer than any setting needs"):
        fitted(uneven(), neighbours=(100,), skip=(30,))  # of 180 rows, 60 are in the fold


# ----- the verdict


def test_where_nothing_can_be_gained_the_raw_similarities_are_kept():
    generator = np.random.default_rng(3)
    labels = np.arange(400) % 20
    rows = generator.normal(size=(20, 16))[labels] + 0.8 * generator.normal(size=(400, 16))  # alike in all directions
    verdict = fitted((rows, labels), neighbours=(30,), skip=(20,), weight=(0.5,)).verdict_
    assert not verdict.worth_it
    assert verdict.sentence.startswith("Keep the raw similarities: class FARs are off the target by a factor of")
    assert "no significant improvement (5% level, 20 held-out classes)" in verdict.sentence


def test_where_some_classes_are_crowded_equalizing_is_worth_it():
    generator = np.random.default_rng(0)
    labels = np.arange(360) % 30
    regions = 2 * generator.normal(size=(6, 16))
    centres = regions + np.linspace(0.4, 2.0, 6)[:, None] * generator.normal(size=(5, 6, 16))
    rows = centres.reshape(30, 16)[labels] + generator.normal(size=(360, 16))
    verdict = fitted((rows, labels), neighbours=(20,), skip=(0,), weight=(0.5,), target_far=0.05).verdict_
    assert verdict.worth_it
    assert verdict.equalized < verdict.raw
    assert verdict.sentence.startswith("Equalizing is worth it: class FARs are off the target by a factor of")


def test_where_some_classes_are_wide_equalizing_lowers_opis_while_they_are_in_the_reference():
    generator = np.random.default_rng(0)
    labels = np.arange(360) % 24
    widths = np.linspace(0.6, 2.4, 24)[labels, None]
    rows = generator.normal(size=(24, 16))[labels] + widths * generator.normal(size=(360, 16))
    options = {"objective": "opis", "neighbours": (10,), "skip": (0,), "weight": (0.5,), "target_far": 0.05}
    within, new = (fitted((rows, labels), new_classes=new, **options).verdict_ for new in (False, True))
    assert within.worth_it
    assert not new.worth_it
    assert within.raw == new.raw
    assert within.sentence.startswith("Equalizing is worth it: OPIS is")


@pytest.mark.parametrize(("low", "worth_it"), [(-0.01, False), (0.01, True)])
def test_a_gain_that_may_be_chance_is_not_worth_it(low, worth_it):
    verdict = cross_validation.Verdict("far", 1.0, 0.9, Interval(0.1, low, 0.2, 0.95), 30)
    assert verdict.worth_it == worth_it
    assert "by a factor of 1.87 on average, 2.00 without" in verdict.sentence


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
    assert "are not in the reference of the equalizer" in " ".join(card.promise["assumptions"])
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
    found = fitted(more, **{**ONE, "neighbours": (140,)})  # 120 and 20 are outside a fold
    assert sorted(np.concatenate(folds_of(found))) == list(range(18))
    assert len(found.equalizer_.vectors_) == 210


def test_large_folds_are_judged_on_some_of_their_classes(monkeypatch):
    for most, classes in ((45, 4), (5, 2)):
        monkeypatch.setattr(cross_validation, "MOST_ROWS", most)
        found = fitted(uneven(), **ONE)
        assert [evaluation.class_count for evaluation in found.raw_] == [classes] * 3


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
    with pytest.raises(im.InputError, match="target_far asks for a false accept rate of"):
        fitted(data, target_far=1e-4)
