"""Galleries against their definitions, in loops that share no code; the exact pass and the pass in tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gallery_reference as definition
import isomargin as im
from isomargin.measure import gallery as module
from isomargin.measure.pairs import gallery_tiles
from isomargin.measure.pairs.gallery_inputs import read_gallery
from isomargin.measure.pairs.gallery_pass import compare_exactly
from isomargin.measure.statistics.gallery_resampling import make_resampler

DATA = Path(__file__).parents[3] / "shared" / "data"
TEMPLATES = ("mean", "max", "each")
RANGE = {"far": (0.05, 0.4), "target_far": 0.1, "target_fpir": 0.2, "grid": 21, "progress": None, "threads": 1}


def draw(seed=0, classes=12, unknown=5, dimensions=8, spread=0.9):
    """A gallery of one to four items per class; five probes of most classes, and unknown ones."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes + unknown, dimensions))
    enrolled = np.repeat(np.arange(classes), generator.integers(1, 5, classes))
    probes = np.repeat(np.arange(classes + unknown), generator.integers(0, 6, classes + unknown))
    probes = np.concatenate([probes, [0, 0, 1, classes, classes]])  # some of each kind in any case
    order = generator.permutation(len(probes))
    items, others = (
        centres[labels] + spread * generator.normal(size=(len(labels), dimensions)) for labels in (enrolled, probes)
    )
    return items, enrolled, others[order], probes[order]


def check(evaluation, classes, found, fpir=0.2, tolerance=1e-9):
    expected = definition.consistency(classes, found, RANGE["far"], RANGE["grid"], RANGE["target_far"])
    close = {"rtol": 0, "atol": tolerance}
    np.testing.assert_allclose(evaluation.calibration_range, expected.calibration_range, **close)
    np.testing.assert_allclose(
        [evaluation.opis, evaluation.epsilon_opis, evaluation.target.far, evaluation.target.frr],
        [expected.opis, expected.epsilon_opis, expected.far, expected.frr],
        **close,
    )
    np.testing.assert_allclose(evaluation.target.class_far, expected.class_far, **close)
    np.testing.assert_allclose(evaluation.target.class_frr, expected.class_frr, **close)
    assert (evaluation.positive_pairs, evaluation.negative_pairs) == (expected.positive_pairs, expected.negative_pairs)
    assert evaluation.names[evaluation.curves.classes].tolist() == expected.with_curve
    for rank in (1, 2):
        point = evaluation.at_fpir(fpir, rank=rank)
        accepted, refused = definition.threshold_at_fpir(found, classes, fpir)
        assert accepted - 1e-9 <= point.distance <= refused + 1e-9
        check_point(point, definition.identification(classes, found, point.distance, rank=rank), close)
    narrow = evaluation.at_fpir(fpir, margin=0.05)
    check_point(narrow, definition.identification(classes, found, narrow.distance, margin=0.05), close)


def check_point(point, expected, close):
    for name in ("fpir", "fnir", "misidentified", "class_fnir", "false_positive_share"):
        np.testing.assert_allclose(getattr(point, name), getattr(expected, name), err_msg=name, **close)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_score_agrees_with_its_definition(template):
    items, enrolled, probes, labels = draw()
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, template=template, **RANGE)
    classes, found = definition.compare(items, enrolled.tolist(), probes, labels.tolist(), template)
    check(evaluation, classes, found)
    ranks = [
        1 + sum(value < min(scores[label]) for name, own in scores.items() if name != label for value in own)
        for label, scores in found
        if label in scores
    ]
    assert evaluation.recall_at_k == {k: np.mean([rank <= k for rank in ranks]) for k in (1, 5, 10)}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_leaving_one_out_agrees_with_its_definition(template):
    items, enrolled, _, _ = draw(seed=3, spread=0.7)
    evaluation = im.evaluate_gallery(items, enrolled, template=template, leave_one_out=True, **RANGE)
    classes, found = definition.compare(items, enrolled.tolist(), None, None, template, leave_one_out=True)
    expected = definition.consistency(classes, found, RANGE["far"], RANGE["grid"], RANGE["target_far"])
    np.testing.assert_allclose([evaluation.opis, evaluation.target.frr], [expected.opis, expected.frr], atol=1e-9)
    singles = int((np.bincount(enrolled) == 1).sum())
    assert singles > 0
    assert evaluation.items == len(enrolled) - singles == len(found)
    point = evaluation.gallery.at(1.0)
    check_point(point, definition.identification(classes, found, 1.0), {"rtol": 0, "atol": 1e-9})
    assert np.isnan(point.fpir)


@given(seed=st.integers(0, 10_000), template=st.sampled_from(TEMPLATES), fpir=st.floats(0.15, 0.9))
@settings(max_examples=25, deadline=None)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_threshold_for_an_fpir_is_the_largest_that_does_not_exceed_it(seed, template, fpir):
    items, enrolled, probes, labels = draw(seed)
    items, probes = np.round(2 * items), np.round(2 * probes) + 0.1  # many equal distances
    gallery = im.evaluate_gallery(
        items + 0.1, enrolled, probes, labels, template=template, **{**RANGE, "distances": (0.1, 1.9)}
    ).gallery
    if fpir * gallery.unknown < 1:
        return
    point = gallery.at_fpir(fpir)
    assert point.fpir <= fpir + 1e-12
    beyond = gallery.first_distance[gallery.known :]
    beyond = beyond[beyond > point.distance]
    if beyond.size:
        assert gallery.at(float(beyond.min())).fpir > fpir
    by_margin = gallery.at_fpir_by_margin(fpir)
    assert by_margin.fpir <= fpir + 1e-12
    wider = gallery.gaps[gallery.known :]
    wider = wider[wider < by_margin.margin]
    if wider.size and wider.max() > 0:
        assert gallery.at(gallery.axis.highest, float(wider.max())).fpir > fpir


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("equalized", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_pass_in_tiles_agrees_with_the_exact_one(template, equalized, monkeypatch):
    generator = np.random.default_rng(1)
    centres = generator.normal(size=(60, 16))
    enrolled = np.repeat(np.arange(40), generator.integers(1, 30, 40))
    labels = np.repeat(np.arange(60), 20)
    items, probes = (centres[of] + generator.normal(size=(len(of), 16)) for of in (enrolled, labels))
    equalizer = None
    if equalized:
        reference = im.make_templates(items, enrolled)[0] if template == "mean" else items
        equalizer = im.Equalizer(neighbours=5, skip=0).fit(reference)
    options = {"template": template, "equalizer": equalizer, "progress": None, "threads": 2}
    exact = im.evaluate_gallery(items, enrolled, probes, labels, **options)
    monkeypatch.setattr(module, "LISTED", 0)
    monkeypatch.setattr(gallery_tiles, "TILE_ROWS", 24)  # many tiles, and classes larger than a tile
    tiled = im.evaluate_gallery(items, enrolled, probes, labels, **options)
    assert (exact.method, tiled.method) == ("exact", "binned")
    assert tiled.counts.negatives.totals.tolist() == exact.counts.negatives.totals.tolist()
    assert tiled.gallery.by_probe.totals.tolist() == exact.gallery.by_probe.totals.tolist()
    np.testing.assert_array_equal(tiled.gallery.own_rank, exact.gallery.own_rank)
    for name in ("first", "second"):
        np.testing.assert_array_equal(
            getattr(tiled.gallery, f"{name}_class"), getattr(exact.gallery, f"{name}_class"), err_msg=name
        )
        np.testing.assert_allclose(
            getattr(tiled.gallery, f"{name}_distance"), getattr(exact.gallery, f"{name}_distance"), atol=1e-5
        )
    np.testing.assert_allclose(tiled.opis, exact.opis, atol=1e-4)
    np.testing.assert_allclose(tiled.target.frr, exact.target.frr, atol=2e-3)
    assert tiled.at_fpir(0.05).fnir == pytest.approx(exact.at_fpir(0.05).fnir, abs=1e-9)


@given(seed=st.integers(0, 10_000), how=st.sampled_from([("mean", 1), ("max", 3), ("each", 3)]))
@settings(max_examples=20, deadline=None)
def test_among_equally_near_classes_the_first_is_kept_whatever_the_order_of_the_tiles(seed, how):
    template, per_class = how
    generator = np.random.default_rng(seed)
    items, probes = (generator.choice([-0.25, 0.25], (count, 16)) for count in (120, 300))  # exact in float32
    sets = (items, np.arange(120) // per_class, probes, np.arange(300) % 60, template, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery_tiles, "TILE_ROWS", 8)  # workers begin at different blocks
        tiled = gallery_tiles.compare_in_tiles(read_gallery(*sets), 2).scores
    exact = compare_exactly(read_gallery(*sets, np.float64)).scores
    np.testing.assert_array_equal(tiled.first_class, exact.first_class)
    np.testing.assert_array_equal(tiled.second_class, exact.second_class)


@pytest.mark.parametrize("sides", ["both", "template", "probe"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_equalizer_shifts_templates_and_on_both_sides_probes(sides):
    items, enrolled, probes, labels = draw(seed=5)
    templates, _ = im.make_templates(items, enrolled)
    equalizer = im.Equalizer(neighbours=3, skip=0).fit(templates)
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, equalizer=equalizer, sides=sides, **RANGE)
    unit = probes / np.linalg.norm(probes, axis=1, keepdims=True)
    near = lambda rows, drop: np.sort(rows @ templates.T.astype(float), axis=1)[:, ::-1][:, drop : drop + 3].mean(1)  # noqa: E731
    of_class = dict(zip(range(12), near(templates.astype(float), 1), strict=True))
    of_probe = near(unit, 0)
    weight, constant = equalizer.weight_, equalizer.offset_

    def add(probe, name, _):
        probe_part = -weight * of_probe[probe] + constant / 2 if sides != "template" else 0.0
        return probe_part + (-weight * of_class[name] + constant / 2 if sides != "probe" else 0.0)

    classes, found = definition.compare(items, enrolled.tolist(), probes, labels.tolist(), "mean", add=add)
    check(evaluation, classes, found, tolerance=2e-6)  # an equalizer keeps its vectors in float32
    assert evaluation.equalizer["sides"] == sides


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_class_thresholds_are_subtracted_on_the_side_of_the_templates(template):
    items, enrolled, probes, labels = draw(seed=6)
    fitted = im.ClassThresholds(shrink=0.3, weights=(0.5, 0.25), template=template).fit(items, enrolled)
    offsets = dict(zip(fitted.classes_.tolist(), fitted.offsets_.tolist(), strict=True))
    assert len(set(offsets.values())) > 5
    options = {"template": template, "class_thresholds": fitted, **RANGE}
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, **options)
    rows = (items, enrolled.tolist(), probes, labels.tolist(), template)
    check(evaluation, *definition.compare(*rows, add=lambda probe, name, item: -offsets[name]))
    assert evaluation.equalizer == {
        "class_thresholds": fitted.record(),
        "sides": "template",
        "digest": fitted.record()["digest"],
    }
    again = im.evaluate_gallery(items, enrolled, leave_one_out=True, **options)
    rows = (items, enrolled.tolist(), None, None, template, True)
    classes, found = definition.compare(*rows, add=lambda probe, name, item: -offsets[name])
    expected = definition.consistency(classes, found, RANGE["far"], RANGE["grid"], RANGE["target_far"])
    np.testing.assert_allclose([again.opis, again.target.frr], [expected.opis, expected.frr], atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_equalizer_and_class_thresholds_add_up():
    items, enrolled, probes, labels = draw(seed=6)
    fitted = im.ClassThresholds(shrink=0.3, weights=(0.5, 0.25)).fit(items, enrolled)
    templates, _ = im.make_templates(items, enrolled)
    equalizer = im.Equalizer(neighbours=3, skip=0).fit(templates)
    shifts = equalizer.shifts(templates).values - fitted.offsets_
    options = {"equalizer": equalizer, "sides": "template", "class_thresholds": fitted, **RANGE}
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, **options)
    rows = (items, enrolled.tolist(), probes, labels.tolist(), "mean")
    check(evaluation, *definition.compare(*rows, add=lambda probe, name, item: shifts[name]), tolerance=2e-6)
    digests = {evaluation.equalizer["digest"], fitted.record()["digest"], equalizer.record()["digest"]}
    assert len(digests) == 3


def test_class_thresholds_of_another_gallery_are_refused():
    items, enrolled, probes, labels = draw(seed=6)
    fitted = im.ClassThresholds(shrink=0, weights=(0.5, 0.25)).fit(items, enrolled)

    def evaluate(gallery, of, template="mean"):
        im.evaluate_gallery(gallery, of, probes, labels, template=template, class_thresholds=fitted, **RANGE)

    with pytest.raises(im.InputError, match="'14' is not an enrolled class: thresholds exist for the 12 classes"):
        evaluate(items, np.where(enrolled == 3, 14, enrolled))
    with pytest.raises(im.InputError, match="'3' has a class threshold and is not in the gallery: fit the class"):
        evaluate(items[enrolled != 3], enrolled[enrolled != 3])
    with pytest.raises(im.InputError, match="are for mean templates and the gallery has max templates"):
        evaluate(items, enrolled, "max")
    other = im.ClassThresholds(shrink=0, weights=(0.5, 0.25)).fit(items[:, :5], enrolled)
    with pytest.raises(im.InputError, match="the gallery has 8 dimensions, the gallery of the class thresholds 5"):
        im.evaluate_gallery(items, enrolled, probes, labels, class_thresholds=other, **RANGE)


@pytest.mark.skipif(not DATA.exists(), reason="CLINC is not in shared/data")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_clinc_intents_agree_with_their_definition():
    stored = np.load(DATA / "clinc150-wordllama256.npz")
    labels, part = stored["labels"], stored["part"]
    generator = np.random.default_rng(0)
    enrolled = np.concatenate([
        generator.permutation(np.flatnonzero((labels == name) & (part == "train")))[:4]
        for name in np.unique(labels[part == "train"])[:40]
    ])  # fmt: skip
    probes = np.concatenate([generator.permutation(np.flatnonzero(part == name))[:200] for name in ("test", "oos_val")])
    vectors = stored["embeddings"].astype(np.float64)
    evaluation = im.evaluate_gallery(vectors[enrolled], labels[enrolled], vectors[probes], labels[probes], **RANGE)
    classes, found = definition.compare(
        vectors[enrolled], labels[enrolled].tolist(), vectors[probes], labels[probes].tolist(), "mean"
    )
    check(evaluation, classes, found)


@pytest.mark.skipif(not DATA.exists(), reason="Omniglot is not in shared/data")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_omniglot_characters_agree_with_their_definition():
    stored = np.load(DATA / "omniglot28.npz")
    names = stored["label"]
    chosen = np.flatnonzero(np.isin(names, np.flatnonzero(~stored["background"])[:40]))
    vectors = stored["images"][chosen].reshape(len(chosen), -1).astype(np.float64)
    labels, drawer = names[chosen].astype(np.int64), stored["drawer"][chosen]
    enrolled = (drawer <= 3) & (labels < np.median(labels))
    probes = drawer > 14
    evaluation = im.evaluate_gallery(
        vectors[enrolled], labels[enrolled], vectors[probes], labels[probes], template="max", **RANGE
    )
    classes, found = definition.compare(
        vectors[enrolled], labels[enrolled].tolist(), vectors[probes], labels[probes].tolist(), "max"
    )
    check(evaluation, classes, found)


def bad(**changes):
    items, enrolled, probes, labels = draw()
    values = {"gallery": items, "gallery_labels": enrolled, "probes": probes, "probe_labels": labels, **RANGE}
    return im.evaluate_gallery(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probes": np.ones((3, 5)), "probe_labels": [0, 1, 2]}, "the gallery has 8 dimensions and the probes have 5"),
        ({"gallery": np.ones((2, 8)), "gallery_labels": [7, 7]}, "the gallery has one class, 7"),
        ({"probes": np.ones((2, 8)), "probe_labels": [90, 91]}, "no probe has the label of an enrolled class"),
        ({"probes": np.ones((2, 8)), "probe_labels": ["0", "1"]}, "labels of the gallery are numbers and those of the"),
        ({"gallery": np.full((2, 8), np.nan), "gallery_labels": [0, 1]}, "gallery: rows 0, 1 of embeddings are NaN"),
        ({"probes": np.zeros((2, 8)), "probe_labels": [0, 1]}, "probes: rows 0, 1 of embeddings are zero vectors"),
        ({"gallery_labels": [1, 2]}, "gallery: labels has 2 entries, embeddings has"),
        ({"leave_one_out": True}, "leave_one_out takes the enrolled items as probes"),
        ({"probes": None}, "probes and probe_labels are needed"),
        ({"template": "median"}, "template is 'median'"),
        ({"margin": -1}, "margin is -1"),
        ({"target_far": 1e-9}, "target_far asks for a false accept rate of 1e-09"),
        ({"gallery": [[1, 0], [-1, 0], [0, 1]], "gallery_labels": [0, 0, 1], "probes": [[1, 1]], "probe_labels": [0]},
         "the enrolled items of 0 cancel out"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(changes, message):
    with pytest.raises(im.InputError) as refusal:
        bad(**changes)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_unknown_probes_fpir_is_absent_with_a_note():
    items, enrolled, probes, labels = draw()
    known = np.isin(labels, enrolled)
    with pytest.warns(UserWarning, match="no probe is unknown"):
        evaluation = im.evaluate_gallery(items, enrolled, probes[known], labels[known], **RANGE)
    assert evaluation.fpir_target is None
    with pytest.raises(im.InputError, match="without unknown probes, so FPIR is not known"):
        evaluation.at_fpir(0.05)
    with pytest.raises(im.InputError, match="FPIR and FNIR need a gallery"):
        im.evaluate(items, enrolled, far=(0.1, 0.4), target_far=0.2).at_fpir(0.1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gallery_survives_saving(tmp_path):
    items, enrolled, probes, labels = draw()
    names = np.array([f"class {i}" for i in range(17)])
    evaluation = im.evaluate_gallery(items, names[enrolled], probes, names[labels], margin=0.02, **RANGE)
    evaluation.save(tmp_path / "gallery.json")
    loaded = im.Evaluation.load(tmp_path / "gallery.json")
    assert loaded.comparison == "gallery"
    np.testing.assert_equal(loaded.scalars(), evaluation.scalars())
    one, other = evaluation.at_fpir(0.2), loaded.at_fpir(0.2)
    assert (one.distance, one.fnir, one.margin) == (other.distance, other.fnir, other.margin)
    assert loaded.gallery.unknown_names.tolist() == evaluation.gallery.unknown_names.tolist()
    np.testing.assert_array_equal(loaded.gallery.by_probe.counts, evaluation.gallery.by_probe.counts)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_leaving_out_a_class_gives_the_rates_of_the_gallery_without_it():
    items, enrolled, probes, labels = draw(seed=7, classes=15, unknown=8)
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, **RANGE)
    gallery, classes = evaluation.gallery, evaluation.class_count
    resampler = make_resampler(evaluation)
    distance = evaluation.at_fpir(0.3).distance
    decisions = resampler.by_threshold(np.array([distance]))._replace(template_factors=np.ones(3))
    weights = resampler.leave_out().astype(float)
    fpir, fnir, wrong = (rate[:, 0] for rate in resampler.rates_of(decisions, weights))
    for left_out in range(classes + len(gallery.unknown_names)):
        name = evaluation.names[left_out] if left_out < classes else gallery.unknown_names[left_out - classes]
        kept, kept_probes = enrolled != name, labels != name
        found = definition.compare(
            items[kept], enrolled[kept].tolist(), probes[kept_probes], labels[kept_probes].tolist(), "mean"
        )
        expected = definition.identification(*found, distance)
        assert fpir[left_out] == pytest.approx(expected.fpir, abs=1e-12)
        assert fnir[left_out] == pytest.approx(expected.fnir, abs=1e-12)
        assert wrong[left_out] == pytest.approx(expected.misidentified, abs=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_galleries_have_intervals_and_can_be_compared():
    items, enrolled, probes, labels = draw(seed=2, classes=25, unknown=15, spread=0.5)
    rough, fine = (
        im.evaluate_gallery(
            items + noise * np.random.default_rng(0).normal(size=items.shape), enrolled, probes, labels, **RANGE
        )
        for noise in (2.0, 0.0)
    )
    bounds = fine.intervals(draws=200)
    for name in ("opis", "far", "frr", "eer", "fpir", "fnir", "misidentified", "margin_fnir", "recall@1"):
        assert bounds[name].low <= bounds[name].value <= bounds[name].high
        assert bounds[name].low < bounds[name].high
    assert bounds["fnir"].value == fine.at_fpir(0.2).fnir
    rows = {row.score: row for row in im.compare({"rough": rough, "fine": fine}, draws=200).others["fine"]}
    assert rows["fnir"].difference.value == pytest.approx(fine.at_fpir(0.2).fnir - rough.at_fpir(0.2).fnir)
    assert rows["fnir"].difference.high < 0
    fewer = labels != labels.max()
    without = im.evaluate_gallery(items, enrolled, probes[fewer], labels[fewer], **RANGE)
    with pytest.raises(im.InputError, match="not evaluated with the same unknown probes"):
        im.compare({"all": fine, "without": without})
    best = im.evaluate_gallery(items, enrolled, probes, labels, template="max", **RANGE)
    assert im.compare({"mean": fine, "max": best}, draws=100).others["max"]
    with pytest.raises(im.InputError, match="compares all pairs of items and gallery probes with the templates"):
        im.compare({"pairs": im.evaluate(items, enrolled, far=(0.05, 0.4), target_far=0.1), "gallery": fine})


def test_with_one_probe_per_class_scores_over_classes_are_absent_with_a_note(tmp_path):
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(40, 8))
    items, probes = (centres[:count] + 0.5 * generator.normal(size=(count, 8)) for count in (30, 40))
    with pytest.warns(UserWarning, match="no enrolled class has two known probes"):
        evaluation = im.evaluate_gallery(items, np.arange(30), probes, np.arange(40), **RANGE)
    assert np.isnan(evaluation.opis)
    assert "opis" not in evaluation.scores()
    assert evaluation.at_fpir(0.2).fnir < 1
    bounds = evaluation.intervals(draws=100)
    assert "opis" not in bounds
    assert bounds["fnir"].low <= bounds["fnir"].value <= bounds["fnir"].high
    evaluation.save(tmp_path / "gallery.json")
    assert im.Evaluation.load(tmp_path / "gallery.json").at_fpir(0.2).fnir == evaluation.at_fpir(0.2).fnir
    card = im.make_card(im.choose_threshold(evaluation, fpir=0.2, draws=100), evaluation)
    assert "FNIR" in card.summary()
    with pytest.warns(UserWarning, match="no enrolled class has two known probes"):
        noisier = im.evaluate_gallery(items, np.arange(30), generator.permuted(probes, axis=0), np.arange(40), **RANGE)
    comparison = im.compare({"one": evaluation, "noisier": noisier}, draws=100)
    assert comparison.sentence("noisier").startswith("noisier's FNIR is")
    assert comparison.least_p_value == 1 / 101
    with pytest.raises(im.InputError, match="no class with two known probes"):
        im.write_report(evaluation, tmp_path / "report.html")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_equalizer_is_asked_once_and_its_notes_about_the_gallery_are_kept(monkeypatch):
    items, enrolled, probes, labels = draw()
    templates, _ = im.make_templates(items, enrolled)
    equalizer = im.Equalizer(neighbours=3, skip=0).fit(templates[::-1])  # another order: each is its own neighbour
    asked = []
    shifts = equalizer.shifts
    monkeypatch.setattr(equalizer, "shifts", lambda rows, ids=None: asked.append(len(rows)) or shifts(rows, ids))
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, equalizer=equalizer, **RANGE)
    assert asked == [len(templates), len(probes)]
    assert [note for note in evaluation.notes if note.startswith("gallery: ") and "exact copy in the reference" in note]
    assert not [
        note for note in evaluation.notes if note.startswith("probes: ") and "no row is in the reference" in note
    ]
