"""Whether a card still holds: the statistics against their definitions, and what the check notices."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.pairs.inputs import ClassSortedVectors
from isomargin.measure.statistics.intervals import Interval
from isomargin.thresholds.drift import drift_tests, measure_sample, null_moments, stability_index, u_variance
from isomargin.thresholds.realised import lowest_increase
from isomargin.thresholds.reference import Reference, make_reference

CLASSES, DIMENSIONS = 40, 8
pytestmark = pytest.mark.filterwarnings("ignore:.*OPIS:UserWarning")


class World:
    """Gaussian classes; new items of the same or of new classes."""

    def __init__(self, seed=0):
        self.generator = np.random.default_rng(seed)
        self.centres = self.new_centres()

    def new_centres(self):
        return self.generator.normal(size=(CLASSES, DIMENSIONS)) + 0.5

    def items(self, labels, centres=None):
        centres = self.centres if centres is None else centres
        return centres[labels] + 0.5 * self.generator.normal(size=(len(labels), DIMENSIONS))

    def sample(self, items, centres=None):
        labels = self.generator.integers(0, CLASSES, items)
        return self.items(labels, centres), labels


def card_of(vectors, labels, far=0.02, **options):
    evaluation = im.evaluate(vectors, labels, k=(1,))
    choice = im.choose_threshold(evaluation, far=far, draws=200)
    return im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(vectors, labels), **options)


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def measured(world):
    labels = np.repeat(np.arange(CLASSES), np.arange(CLASSES) % 5 + 8)
    return world.items(labels), labels


@pytest.fixture(scope="module")
def card(measured):
    return card_of(*measured, model="small-1")


def accepted(vectors, distance):
    """Loop over all ordered pairs: whether they are within a distance."""
    units = [row / math.sqrt(sum(row * row)) for row in vectors]
    return np.array([[math.sqrt(sum((a - b) ** 2)) <= distance for b in units] for a in units])


# ----- the statistics, by their definitions


@pytest.fixture(scope="module")
def small():
    world = World(5)
    labels = np.repeat(np.arange(6), [2, 3, 4, 5, 6, 7])
    vectors = world.items(labels)
    evaluation = im.evaluate(vectors, labels, far=(0.05, 0.5), target_far=0.2)
    distance = evaluation.target.distance + 1e-6
    return vectors, labels, make_reference(evaluation, distance, im.EmbeddingSet(vectors, labels))


def parts(within, labels):
    """M and P of a random sample in the mix of these labels, by loops over classes."""
    names, n = sorted(set(labels.tolist())), len(labels)
    negatives = positives = 0.0
    for c, d in itertools.product(names, names):
        block = within[np.ix_(labels == c, labels == d)]
        if c == d:
            m = len(block)
            positives += (m / n) ** 2 * (block.sum() - m) / (m * (m - 1))
        else:
            negatives += block.sum() / n**2
    return negatives, positives


def test_the_shares_of_random_pairs_are_those_of_a_sample_in_the_same_mix(small):
    vectors, labels, reference = small
    for i, distance in enumerate(reference.distances):
        negatives, positives = parts(accepted(vectors, distance), labels)
        assert reference.negatives[i] == pytest.approx(negatives, abs=1e-12)
        assert reference.positives[i] == pytest.approx(positives, abs=1e-12)
    sizes = np.bincount(labels)
    assert reference.positive_share == pytest.approx(sum((m / len(labels)) ** 2 for m in sizes))


def test_the_variance_over_classes_is_the_jackknife_of_sets_with_one_class_left_out(small):
    vectors, labels, reference = small
    left_out = []
    for c in range(6):
        rest = labels != c
        found = [parts(accepted(vectors[rest], distance), labels[rest]) for distance in reference.distances]
        left_out.append(np.concatenate(np.array(found).T))
    expected = 5 / 6 * 6 * np.cov(np.array(left_out).T, bias=True)
    np.testing.assert_allclose(reference.between, expected, atol=1e-12)


def test_item_covariances_are_those_of_each_items_share_of_accepted_others(small):
    vectors, labels, reference = small
    shares = np.array(
        [(accepted(vectors, distance).sum(axis=1) - 1) / (len(labels) - 1) for distance in reference.distances]
    )
    np.testing.assert_allclose(reference.item_total, np.cov(shares, bias=True), atol=1e-12)
    within = sum(np.cov(shares[:, labels == c]) * (labels == c).mean() for c in range(6))
    np.testing.assert_allclose(reference.item_within, within, atol=1e-12)


def test_the_moments_of_the_mean_vector_are_traces_of_covariances(small):
    vectors, labels, reference = small
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    total = np.cov(units.T, bias=True)
    within = sum(np.cov(units[labels == c].T) * (labels == c).mean() for c in range(6))
    classes = 5 * np.cov(np.array([units[labels != c].mean(axis=0) for c in range(6)]).T, bias=True)
    found = (reference.centre.items, reference.centre.within, reference.centre.classes)
    for (trace, square), matrix in zip(found, (total, within, classes), strict=True):
        assert trace == pytest.approx(np.trace(matrix))
        assert square == pytest.approx(np.trace(matrix @ matrix))
    np.testing.assert_allclose(reference.centre.mean, units.mean(axis=0))


def test_the_variance_of_a_u_statistic_is_exact():
    values, limit, n = [0.0, 1.0, 1.5, 4.0], 1.0, 3
    kernel = np.array([[float(abs(a - b) <= limit) for b in values] for a in values])
    statistics = [
        np.mean([kernel[a, b] for a, b in itertools.combinations(draw, 2)])
        for draw in itertools.product(range(4), repeat=n)
    ]
    projected, pairs = kernel.mean(axis=1).var(), kernel.var()
    assert u_variance(np.array([[projected]]), np.array([[pairs]]), n)[0, 0] == pytest.approx(np.var(statistics))


def test_the_shares_of_a_set_count_each_pair_of_different_items(small):
    vectors, _, reference = small
    found = measure_sample(unlabelled(vectors), np.zeros(len(vectors)), reference.distances)
    for share, distance in zip(found.shares, reference.distances, strict=True):
        within = accepted(vectors, distance)
        assert share == pytest.approx((within.sum() - len(within)) / (len(within) * (len(within) - 1)))


def unlabelled(vectors):
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return ClassSortedVectors(units, np.zeros(len(units), np.int64), np.array([len(units)]), np.array([0]), ())


def test_repeated_distances_fall_on_the_same_side_in_both_counts():
    generator = np.random.default_rng(0)
    codes, labels = np.sign(generator.normal(size=(120, 12))), np.arange(120) % 8
    evaluation = im.evaluate(codes, labels, far=(0.05, 0.5), target_far=0.1)
    choice = im.choose_threshold(evaluation, far=0.1, draws=100)
    reference = make_reference(evaluation, choice.distance, im.EmbeddingSet(codes, labels))
    within = evaluation.counts.negatives.pooled_within(reference.distances)
    within = within + evaluation.counts.positives.pooled_within(reference.distances)
    shares = measure_sample(unlabelled(codes), np.zeros(120), reference.distances).shares
    np.testing.assert_allclose(shares, within / (120 * 119 / 2), atol=1e-12)


def test_fewer_new_classes_have_more_positive_pairs_and_vary_more(card):
    reference = Reference.from_values(card.reference)
    usual, _, variance = null_moments(reference, 500, "new_classes", 1.0)
    fewer, _, larger = null_moments(reference, 500, "new_classes", 2.0)
    share = reference.positive_share
    far = reference.negatives[0] / (1 - share)
    frr = reference.positives[0] / share
    assert fewer[0] == pytest.approx(2 * share * frr + (1 - 2 * share) * far)
    assert (np.diag(larger) > np.diag(variance)).all()
    assert usual[0] == pytest.approx(share * frr + (1 - share) * far)


def test_the_stability_index_is_the_sum_over_bins():
    found, expected = [0.2, 0.7], [0.4, 0.5]
    by_hand = sum((p - q) * math.log(p / q) for p, q in [(0.2, 0.4), (0.5, 0.1), (0.3, 0.5)])
    assert stability_index(np.array(found), np.array(expected)) == pytest.approx(by_hand)


@pytest.mark.parametrize("null", ["same_classes", "new_classes"])
def test_alarms_are_rare_where_nothing_has_changed(null):
    alarms = 0
    for seed in range(8):
        world = World(100 + seed)
        labels = np.repeat(np.arange(CLASSES), 10)
        card = card_of(world.items(labels), labels)
        for _ in range(5):
            later, _ = world.sample(300, world.new_centres() if null == "new_classes" else None)
            alarms += not im.check_card(card, later, against=null).holds
    assert alarms <= 6  # of 40; at a rate of 5%, more are found once in 300 times


# ----- what is noticed


def test_the_card_holds_for_other_items_and_survives_its_file(world, card, tmp_path):
    later, _ = world.sample(600)
    check = im.check_card(card, later, model="small-1")
    assert (check.holds, check.cause, check.facts, check.notes) == (True, "nothing", (), ())
    card.save(tmp_path / "card.json")
    loaded = im.ThresholdCard.load(tmp_path / "card.json")
    assert loaded == card
    assert im.check_card(loaded, later, model="small-1").as_values() == check.as_values()


@pytest.mark.parametrize("null", ["same_classes", "new_classes"])
def test_a_doubled_accept_rate_is_noticed(world, card, null):
    later, _ = world.sample(600)
    units = later / np.linalg.norm(later, axis=1, keepdims=True)
    closer = (units + 0.5 / math.sqrt(DIMENSIONS)) * np.linalg.norm(later, axis=1, keepdims=True)
    check = im.check_card(card, closer, against=null)
    assert not check.holds
    assert check.cause == "unknown"
    (result,) = [result for result in check.drift if result.null == null]
    assert "accept_rate" in {test.name for test in result.failed}


def test_a_shifted_mix_is_noticed_as_other_than_the_same_classes(world, card):
    labels = world.generator.integers(0, 8, 600)
    assert not im.check_card(card, world.items(labels), against="same_classes").holds


def test_fewer_classes_are_explained_as_new_classes_if_their_number_is_given(world, card):
    labels = world.generator.integers(0, 12, 600)
    check = im.check_card(card, world.items(labels), classes=12)
    assert check.holds
    assert check.summary().startswith("The card holds if these are items of new classes of the same kind; they are not")


def test_a_rotated_space_has_the_same_distances_but_another_mean(world, card):
    later, _ = world.sample(600)
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(DIMENSIONS, DIMENSIONS)))
    check = im.check_card(card, later @ rotation, against="same_classes")
    assert [test.name for test in check.drift[0].failed] == ["centre"]
    plain = im.check_card(card, later)
    assert check.drift[0].tests[0].value == pytest.approx(plain.drift[0].tests[0].value)


def test_a_change_of_scale_is_noticed_though_distances_stay(world, card):
    later, _ = world.sample(600)
    check = im.check_card(card, 1.3 * later, against="same_classes")
    assert "lengths" in {test.name for test in check.drift[0].failed}
    assert check.drift[0].tests[0].p_value == im.check_card(card, later).drift[0].tests[0].p_value


def test_facts_fail_at_once(world, measured, card):
    later, _ = world.sample(600)
    wider = im.check_card(card, np.concatenate([later, later], axis=1))
    assert wider.facts == ("the vectors have 16 dimensions, those of the card 8",)
    assert (wider.holds, wider.cause) == (False, "model")
    other = im.check_card(card, later, model="small-2")
    assert other.facts == ("the model is 'small-2', that of the card 'small-1'",)
    vectors, labels = measured
    of_units = card_of(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels)
    assert "do not have length one" in im.check_card(of_units, later).facts[0]
    assert im.check_card(of_units, later / np.linalg.norm(later, axis=1, keepdims=True)).holds


def test_with_labels_the_realised_rates_decide(world, card):
    vectors, labels = world.sample(800)
    check = im.check_card(card, vectors, labels, draws=200)
    assert check.holds
    within = accepted(vectors, card.distance)
    positive = (labels[:, None] == labels) & ~np.eye(800, dtype=bool)
    assert check.rates.far.value == pytest.approx(within[labels[:, None] != labels].mean())
    assert check.rates.frr.value == pytest.approx(1 - within[positive].mean())
    noisy = im.check_card(card, vectors + 0.7 * world.generator.normal(size=vectors.shape), labels, draws=200)
    assert (noisy.holds, noisy.rates.worse) == (False, ("frr",))


def test_a_promise_decides_for_the_rate_that_it_is_about(world, measured):
    vectors, labels = measured
    evaluation = im.evaluate(vectors, labels, k=(1,))
    later, numbers = world.sample(800)
    for delta in (None, 0.2):
        choice = im.promise_threshold(evaluation, far=0.05, delta=delta, draws=100)
        card = im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(vectors, labels))
        kept = im.check_card(card, later, numbers, draws=100).rates
        rates = im.evaluate(later, numbers, k=(1,)).at(card.distance).class_far
        assert kept.promise.value == pytest.approx(rates.mean() if delta is None else (rates > 0.05).mean())
        assert (kept.promise.kept, kept.promise.allowed, kept.failed) == (True, delta or 0.05, ())
        broken = im.check_card(card, later + 1.0, numbers, draws=100).rates
        assert broken.failed == ("promise",)


def test_rows_that_cannot_be_used_are_named_by_their_own_numbers(world, card):
    later, _ = world.sample(5000)
    later[::7] = np.nan
    with pytest.raises(im.InputError, match="rows 0, 7"):
        im.check_card(card, later[: 7 * 2 + 60])
    with pytest.raises(im.InputError, match=r"and .* more of embeddings are NaN") as raised:
        im.check_card(card, later)
    assert all(int(row) % 7 == 0 for row in str(raised.value).split(" and ")[0].removeprefix("rows ").split(", "))


def test_classes_beyond_twice_the_cards_rate_are_named(world, card):
    vectors, labels = world.sample(800)
    vectors[labels == 7] = world.generator.normal(size=(int((labels == 7).sum()), DIMENSIONS)) * 2
    check = im.check_card(card, vectors, labels, draws=100)
    (first, *others) = check.rates.beyond
    limits = {name: 2 * card.measured[name]["value"] for name in ("far", "frr")}
    assert (first.name, first.rate) == (7, "frr")
    assert all(each.value > each.low > limits[each.rate] for each in check.rates.beyond)
    fresh, numbers = world.sample(4000)  # the others are beyond it indeed, as many more items show
    units = fresh / np.linalg.norm(fresh, axis=1, keepdims=True)
    for each in others:
        within = units[numbers == each.name] @ units.T >= card.threshold["cosine_similarity"]
        positive = numbers == each.name
        rate = within[:, ~positive].mean() if each.rate == "far" else 1 - within[:, positive].mean()
        assert rate > limits[each.rate]


def test_the_interval_of_an_increase_combines_those_of_both_rates():
    before = {"value": 0.01, "low": 0.008, "high": 0.014, "confidence": 0.95}
    assert lowest_increase(Interval(0.02, 0.017, 0.03, 0.95), before) == pytest.approx(0.01 - math.hypot(0.003, 0.004))


# ----- what a card lacks


def test_a_card_from_an_evaluation_alone_tests_the_accept_rate(world, measured):
    vectors, labels = measured
    evaluation = im.evaluate(vectors, labels, k=(1,))
    choice = im.choose_threshold(evaluation, far=0.02, draws=100)
    alone = im.make_card(choice, evaluation)
    later, _ = world.sample(600)
    check = im.check_card(alone, later)
    assert check.holds
    assert [test.name for test in check.drift[0].tests] == ["accept_rate"]
    assert "only the accept rate is tested" in check.notes[0]
    full = im.check_card(im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(vectors, labels)), later)
    for few, many in zip(check.drift, full.drift, strict=True):
        assert few.tests[0].error == pytest.approx(many.tests[0].error, rel=0.15)


def test_a_card_without_a_reference_is_refused(world, card):
    later, _ = world.sample(100)
    older = im.ThresholdCard.load(Path(__file__).parent / "older_card.json")
    for without in (older, replace(card, reference=None)):
        with pytest.raises(im.InputError, match="make a new one with `isomargin threshold"):
            im.check_card(without, later)


def test_an_equalized_card_needs_its_equalizer(world, measured):
    vectors, labels = measured
    equalizer = im.Equalizer(neighbours=20, skip=10).fit(vectors)
    evaluation = im.evaluate(vectors, labels, equalizer=equalizer, k=(1,))
    choice = im.choose_threshold(evaluation, far=0.02, draws=100)
    shifts = equalizer.shifts(vectors)
    card = im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(vectors, labels), shifts=shifts)
    later, _ = world.sample(400)
    with pytest.raises(im.InputError, match="give its equalizer"):
        im.check_card(card, later)
    check = im.check_card(card, later, equalizer=equalizer)
    assert check.holds
    units = later / np.linalg.norm(later, axis=1, keepdims=True)
    shift = equalizer.shifts(later).values
    similarity = units @ units.T + shift[:, None] + shift
    pairs = similarity[np.triu_indices(400, 1)]
    assert check.drift[0].tests[0].value == pytest.approx((pairs >= card.threshold["equalized_similarity"]).mean())


# ----- canaries


@pytest.fixture(scope="module")
def kept(card, measured):
    return im.Canaries.choose(card, measured[0], number=100)


def test_canaries_tell_a_changed_model_from_changed_data(world, card, measured, kept):
    later = world.items(world.generator.integers(0, 8, 600))
    again = measured[0][kept.ids].astype(np.float16)
    unmoved = kept.compare(card, again[::-1], kept.ids[::-1])
    assert (unmoved.changed, unmoved.moved_share, unmoved.missing) == (False, 0.0, 0)
    assert im.check_card(card, later, canaries=unmoved, against="same_classes").cause == "data"
    moved = kept.compare(card, again + np.float16(0.3), kept.ids)
    assert moved.changed
    check = im.check_card(card, world.sample(600)[0], canaries=moved)
    assert (check.holds, check.cause) == (False, "model")


def test_flipped_decisions_are_those_of_pairs_on_the_other_side_of_the_threshold(card, measured, kept):
    again = measured[0][kept.ids] + np.random.default_rng(1).normal(size=(100, DIMENSIONS))
    then, now = accepted(kept.vectors.astype(float), card.distance), accepted(again, card.distance)
    expected = (then != now)[np.triu_indices(100, 1)].mean()
    assert kept.compare(card, again, kept.ids).flipped_share == pytest.approx(expected)


def test_canaries_survive_their_file(card, kept, tmp_path):
    kept.save(tmp_path / "kept.npz")
    loaded = im.Canaries.load(tmp_path / "kept.npz")
    np.testing.assert_array_equal(loaded.vectors, kept.vectors)
    assert (loaded.ids.tolist(), loaded.card) == (kept.ids.tolist(), card.sha256)


def test_canaries_that_do_not_fit_are_refused(card, kept):
    vectors = np.asarray(kept.vectors)
    with pytest.raises(im.InputError, match=r"2 ids are not among the canaries \('x', 'y'\)"):
        kept.compare(card, vectors, ["x", "y", *kept.ids[2:].astype(str)])
    with pytest.raises(im.InputError, match="have no ids and 99 rows, but there are 100 canaries"):
        kept.compare(card, vectors[1:])
    with pytest.raises(im.InputError, match="belong to another card"):
        kept.compare(replace(card, created="2020-01-01"), vectors, kept.ids)


def test_the_values_are_json_and_the_summary_names_the_verdict(world, card):
    vectors, labels = world.sample(300)
    check = im.check_card(card, vectors, labels, draws=100)
    assert json.loads(json.dumps(check.as_values(), allow_nan=False))["holds"] is True
    assert check.summary().startswith("The card holds: its rates are not significantly worse.")
    assert im.check_card(card, vectors, draws=100).summary().startswith("The card holds: nothing has changed")
    assert max(map(len, check.summary().splitlines())) <= 100


def test_rates_that_hold_on_items_that_differ_are_said_to_do_so(world, card):
    vectors, labels = world.sample(300)
    check = im.check_card(card, 1.25 * vectors, labels, draws=100)
    assert check.holds
    assert "The items differ from the card's" in check.summary()


@pytest.mark.parametrize(("against", "said"), [("same_classes", True), ("new_classes", False), ("either", False)])
def test_items_are_said_to_differ_if_the_null_hypothesis_that_decides_is_rejected(world, card, against, said):
    labels = world.generator.integers(0, 12, 400)  # some of the classes: another mix of the same ones
    check = im.check_card(card, world.items(labels), labels, against=against, classes=12, draws=100)
    assert check.holds
    assert [bool(result.failed) for result in check.drift] == [True, False]
    assert ("The items differ from the card's" in check.summary()) == said


def test_both_null_hypotheses_are_tested_by_every_statistic(card, world):
    reference = Reference.from_values(card.reference)
    vectors, _ = world.sample(300)
    sample = measure_sample(unlabelled(vectors), np.log(np.linalg.norm(vectors, axis=1)), reference.distances)
    for null in ("same_classes", "new_classes"):
        names = [test.name for test in drift_tests(reference, sample, null)]
        assert names == ["accept_rate", "distribution", "centre", "lengths"]
