"""Whether the card of a gallery still holds: the statistics against their definitions, and what the check notices."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.gallery_shifts import GalleryShifts
from isomargin.thresholds.checking import reference_of
from isomargin.thresholds.probe_drift import null_covariances
from isomargin.thresholds.probe_reference import ProbeReference, gallery_digest, probe_values, read_probes

DIMENSIONS, ENROLLED, UNKNOWN = 8, 30, 20
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class World:
    """Gaussian classes, of which the first are enrolled with six items each."""

    def __init__(self, seed=0):
        self.generator = np.random.default_rng(seed)
        self.centres = self.new_centres(ENROLLED + UNKNOWN)
        labels = np.repeat(np.arange(ENROLLED), 6)
        self.gallery = im.EmbeddingSet(self.items(labels), labels)

    def new_centres(self, number):
        return self.generator.normal(size=(number, DIMENSIONS)) + 0.5

    def items(self, labels, centres=None):
        centres = self.centres if centres is None else centres
        return centres[labels] + 0.5 * self.generator.normal(size=(len(labels), DIMENSIONS))

    def probes(self, number, unknown=0.4, centres=None, known=ENROLLED):
        is_unknown = self.generator.random(number) < unknown
        labels = np.where(
            is_unknown,
            ENROLLED + self.generator.integers(0, UNKNOWN, number),
            self.generator.integers(0, known, number),
        )
        return self.items(labels, centres), labels

    def card(self, vectors, labels, fpir=0.1, **how):
        evaluation = im.evaluate_gallery(
            self.gallery.vectors, self.gallery.labels, vectors, labels, k=(1,), grid=10, progress=None, threads=1, **how
        )
        choice = im.choose_threshold(evaluation, fpir=fpir, draws=200)
        return im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(vectors, labels), gallery=self.gallery)


@pytest.fixture(scope="module")
def world():
    return World()


@pytest.fixture(scope="module")
def measured(world):
    return world.probes(500)


@pytest.fixture(scope="module")
def card(world, measured):
    return world.card(*measured)


# ----- the statistics, by their definitions


def scores(world, vectors, template):
    """(probes, comparisons), (probes, classes) distances to what a template is, by loops; the best of each class."""
    units = world.gallery.vectors / np.linalg.norm(world.gallery.vectors, axis=1, keepdims=True)
    members = [units[world.gallery.labels == name] for name in range(ENROLLED)]
    if template == "mean":
        members = [rows.mean(axis=0, keepdims=True) for rows in members]
        members = [row / np.linalg.norm(row) for row in members]
    compared, best = [], []
    for probe in vectors:
        unit = probe / math.sqrt(sum(probe * probe))
        rows = [np.sqrt(((unit - its) ** 2).sum(axis=1)) for its in members]
        best.append([min(row) for row in rows])
        compared.append(best[-1] if template == "max" else np.concatenate(rows))
    return np.array(compared), np.array(best)


@pytest.mark.parametrize(("template", "margin"), [("mean", 0.0), ("mean", 0.05), ("max", 0.0), ("each", 0.02)])
def test_the_numbers_of_a_probe_are_shares_of_its_comparisons_and_whether_a_class_is_accepted(world, template, margin):
    vectors, _ = world.probes(40)
    distances = np.array([0.6, 0.4, 0.9, 1.3])
    data, _ = read_probes(vectors, np.arange(40), None, world.gallery, template, GalleryShifts())
    found = probe_values(data, distances, margin)
    compared, best = scores(world, vectors, template)
    for i, distance in enumerate(distances):
        np.testing.assert_allclose(found[:, 1 + i], (compared <= distance).mean(axis=1), atol=1e-12)
    ordered = np.sort(1 - best**2 / 2, axis=1)
    accepted = (best.min(axis=1) <= 0.6) & (ordered[:, -1] - ordered[:, -2] >= margin)
    np.testing.assert_array_equal(found[:, 0], accepted)


def test_the_reference_has_the_means_and_variances_of_probes_and_of_classes(world, measured, card):
    vectors, labels = measured
    reference, known = reference_of(card), labels < ENROLLED
    compared, best = scores(world, vectors, "mean")
    values = np.stack([best.min(axis=1) <= card.distance, (compared <= card.distance).mean(axis=1)], axis=1)
    np.testing.assert_allclose(reference.known_means[:2], values[known].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(reference.unknown_means[:2], values[~known].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(reference.means[:2], values.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(reference.total[:2, :2], np.cov(values.T, bias=True), rtol=1e-6)
    for part, over in ((known, reference.over_known), (~known, reference.over_unknown)):
        names = np.unique(labels[part])
        left_out = [values[part & (labels != name)].mean(axis=0) for name in names]
        jackknife = (len(names) - 1) * np.cov(np.array(left_out).T, bias=True) * part.mean() ** 2
        np.testing.assert_allclose(over[:2, :2], jackknife, rtol=1e-5)
    # beside the classes, the card's error for new classes is that of its proportion of unknown probes
    of_card, _ = null_covariances(reference, 100, "new_classes", 1.0)
    difference = values[known].mean(axis=0) - values[~known].mean(axis=0)
    proportion = known.mean() * (~known).mean() * np.outer(difference, difference) / len(labels)
    expected = proportion + (reference.over_known + reference.over_unknown)[:2, :2]
    np.testing.assert_allclose(of_card[:2, :2], expected, rtol=1e-6)


def test_the_reference_survives_the_file_of_the_card(world, card, tmp_path):
    card.save(tmp_path / "card.json")
    loaded = im.ThresholdCard.load(tmp_path / "card.json")
    later, _ = world.probes(300)
    found, expected = (im.check_card(each, later, gallery=world.gallery).as_values() for each in (loaded, card))
    assert found == expected
    json.dumps(found, allow_nan=False)
    assert ProbeReference.from_values(loaded.reference).known == reference_of(card).known


def test_the_digest_of_a_gallery_knows_its_classes_but_not_the_order_of_its_rows(world):
    def of(vectors, labels, template):
        rows = np.arange(10)
        gallery = im.EmbeddingSet(vectors, labels)
        return gallery_digest(read_probes(world.gallery.vectors, rows, None, gallery, template, GalleryShifts())[0])

    vectors, labels = world.gallery.vectors, world.gallery.labels
    order = np.random.default_rng(0).permutation(len(labels))
    for template in ("mean", "max"):
        digest = of(vectors, labels, template)
        assert of(vectors[order] * 3, labels[order], template) == digest
        assert of(vectors[6:], labels[6:], template) != digest
        assert of(vectors, (labels + 1) % ENROLLED, template) != digest


@pytest.mark.parametrize("null", ["same_classes", "new_classes"])
def test_alarms_are_rare_where_nothing_has_changed(null):
    alarms = 0
    for seed in range(8):
        world = World(100 + seed)
        card = world.card(*world.probes(400, known=ENROLLED // 2 if null == "new_classes" else ENROLLED))
        for _ in range(5):
            if null == "new_classes":  # the other half of the enrolled classes, and other unknown ones
                centres = np.concatenate([np.roll(world.centres[:ENROLLED], 15, axis=0), world.new_centres(UNKNOWN)])
                later, _ = world.probes(300, centres=centres, known=ENROLLED // 2)
            else:
                later, _ = world.probes(300)
            alarms += not im.check_card(card, later, gallery=world.gallery, against=null).holds
    assert alarms <= 6  # of 40; at a rate of 5%, more are found once in 300 times


# ----- what is noticed


def failed(check, null):
    (result,) = [result for result in check.drift if result.null == null]
    return {test.name for test in result.failed}


def test_the_card_holds_for_other_probes(world, card):
    later, _ = world.probes(600)
    check = im.check_card(card, later, gallery=world.gallery)
    assert (check.holds, check.cause, check.facts, check.notes) == (True, "nothing", (), ())
    values = check.as_values()["drift"]["same_classes"]["tests"]
    assert [test["name"] for test in values] == ["accepted_probes", "accept_rate", "distribution", "centre", "lengths"]
    assert "could they be probes of other classes, as many of them unknown? yes" in check.summary()


@pytest.mark.parametrize("null", ["same_classes", "new_classes"])
def test_twice_as_many_unknown_probes_show_in_the_share_of_accepted_probes(world, card, null):
    later, _ = world.probes(600, unknown=0.8)
    check = im.check_card(card, later, gallery=world.gallery, against=null)
    assert not check.holds
    assert "accepted_probes" in failed(check, null)


def test_other_enrolled_classes_are_noticed_as_another_mix(world, card):
    later, _ = world.probes(600, known=6)
    check = im.check_card(card, later, gallery=world.gallery)
    assert failed(check, "same_classes")
    assert not im.check_card(card, later, gallery=world.gallery, against="same_classes").holds


def test_a_swapped_model_is_noticed_because_the_gallery_is_of_the_old_one(world, card):
    later, _ = world.probes(600)
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(DIMENSIONS, DIMENSIONS)))
    check = im.check_card(card, later @ rotation, gallery=world.gallery)
    assert not check.holds
    assert {"accepted_probes", "accept_rate"} <= failed(check, "new_classes")


def test_with_labels_fpir_and_fnir_decide_for_a_card_of_an_fpir(world, card):
    vectors, labels = world.probes(900)
    check = im.check_card(card, vectors, labels, gallery=world.gallery, draws=200)
    _, best = scores(world, vectors, "mean")
    unknown = labels >= ENROLLED
    first, accepted = best.argmin(axis=1), best.min(axis=1) <= card.distance
    assert check.holds
    assert check.rates.decisive == ("fpir", "fnir")
    assert check.rates.fpir.value == pytest.approx(accepted[unknown].mean())
    assert check.rates.fnir.value == pytest.approx(1 - (accepted & (first == labels))[~unknown].mean())
    closer = vectors.copy()
    closer[unknown] = world.items(labels[unknown] % ENROLLED)  # unknown probes that look like enrolled classes
    worse = im.check_card(card, closer, labels, gallery=world.gallery, draws=200)
    assert (worse.holds, worse.rates.failed) == (False, ("fpir",))
    by_far = im.check_card(replace(card, target="FAR at most 0.01"), closer, labels, gallery=world.gallery, draws=200)
    assert by_far.rates.decisive == ("far", "frr")


def test_without_new_unknown_probes_fnir_decides_alone(world, card):
    vectors, labels = world.probes(600, unknown=0.0)
    check = im.check_card(card, vectors, labels, gallery=world.gallery, draws=100)
    assert (check.holds, check.rates.fpir) == (True, None)
    assert any("FPIR was not compared" in note for note in check.notes)


def test_classes_beyond_twice_the_cards_rate_are_named(world, card):
    vectors, labels = world.probes(900)
    vectors[labels == 7] = -vectors[labels == 7]
    check = im.check_card(card, vectors, labels, gallery=world.gallery, draws=100)
    assert (7, "frr", 1.0) in [(each.name, each.rate, each.value) for each in check.rates.beyond]
    assert all(2 * card.measured[each.rate]["value"] < each.low < each.value for each in check.rates.beyond)


def test_a_promised_fpir_is_compared_with_the_unknown_classes(world, measured):
    vectors, labels = measured
    evaluation = im.evaluate_gallery(world.gallery.vectors, world.gallery.labels, vectors, labels, progress=None)
    choice = im.promise_threshold(evaluation, fpir=0.2, draws=100)
    card = im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(vectors, labels), gallery=world.gallery)
    later, numbers = world.probes(900)
    kept = im.check_card(card, later, numbers, gallery=world.gallery, draws=100).rates
    accepted = scores(world, later, "mean")[1].min(axis=1) <= card.distance
    classes = [accepted[numbers == name].mean() for name in range(ENROLLED, ENROLLED + UNKNOWN)]
    assert kept.promise.value == pytest.approx(np.mean(classes))
    assert (kept.promise.rate, kept.promise.kept, kept.failed) == ("fpir", True, ())


@pytest.mark.parametrize("shifted_by", ["equalizer", "class_thresholds", "both"])
def test_similarities_are_shifted_as_the_card_says(world, measured, shifted_by):
    vectors, labels = measured
    templates, _ = im.make_templates(world.gallery.vectors, world.gallery.labels)
    shifts = {
        "equalizer": im.Equalizer(neighbours=5, weight=0.5, method="cohort").fit(templates),
        "class_thresholds": im.ClassThresholds(0.5, (0.5, 0.25)).fit(world.gallery.vectors, world.gallery.labels),
    }
    shifts = {name: value for name, value in shifts.items() if shifted_by in (name, "both")}
    how = shifts | ({"sides": "template"} if "equalizer" in shifts else {})
    evaluation = im.evaluate_gallery(world.gallery.vectors, world.gallery.labels, vectors, labels, progress=None, **how)
    card = im.make_card(
        im.choose_threshold(evaluation, fpir=0.1, draws=100),
        evaluation,
        embeddings=im.EmbeddingSet(vectors, labels),
        gallery=world.gallery,
        **shifts,
    )
    identification = evaluation.gallery
    nearest = identification.first_distance.copy()
    nearest[: identification.known] = np.minimum(nearest[: identification.known], identification.own_distance)
    assert reference_of(card).means[0] == pytest.approx((nearest <= card.distance).mean())
    later, numbers = world.probes(500)
    assert im.check_card(card, later, numbers, gallery=world.gallery, draws=100, **shifts).holds
    assert im.check_card(card, later, gallery=world.gallery, **shifts).holds
    with pytest.raises(im.InputError, match=r"the card was measured (on equalized similarities|with class thresholds)"):
        im.check_card(card, later, gallery=world.gallery)


# ----- what is refused


def test_another_gallery_is_refused_without_labels_and_noted_with_them(world, card):
    vectors, labels = world.probes(600)
    kept = world.gallery.labels > 0
    other = im.EmbeddingSet(world.gallery.vectors[kept], world.gallery.labels[kept])
    with pytest.raises(im.InputError, match=r"the gallery is not that of the card.*--gallery GALLERY --output"):
        im.check_card(card, vectors, gallery=other)
    check = im.check_card(card, vectors, labels, gallery=other, draws=100)
    assert (check.drift, check.stability_index, check.rates is None) == ((), None, False)
    assert check.notes[0] == "the gallery is not that of the card: only the realised rates were compared"
    assert "could they be" not in check.summary()


def test_cards_of_another_comparison_are_refused(world, card, measured):
    vectors, labels = measured
    with pytest.raises(im.InputError, match="not for pairs of items: give --gallery GALLERY, or make a new one with"):
        im.check_card(card, vectors)
    pairs = im.evaluate(vectors, labels, k=(1,))
    of_pairs = im.make_card(im.choose_threshold(pairs, far=0.05, draws=100), pairs)
    with pytest.raises(im.InputError, match=r"all pairs of items and not for a gallery: make one with .*--gallery"):
        im.check_card(of_pairs, vectors, gallery=world.gallery)
    alone = replace(card, reference=None)
    with pytest.raises(im.InputError, match=r"nothing that new probes could be compared with .*--gallery GALLERY"):
        im.check_card(alone, vectors, gallery=world.gallery)
