"""Thresholds, promises and cards of galleries."""

from __future__ import annotations

import json

import numpy as np
import pytest

import isomargin as im


@pytest.fixture(scope="module")
def sets():
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(80, 16))
    enrolled, labels = np.repeat(np.arange(40), 5), np.repeat(np.arange(80), 10)
    items, probes = (centres[of] + generator.normal(size=(len(of), 16)) for of in (enrolled, labels))
    return items, enrolled, probes, labels


@pytest.fixture(scope="module")
def evaluation(sets):
    return im.evaluate_gallery(*sets, progress=None)


def test_the_threshold_for_an_fpir_is_that_of_the_evaluation(evaluation):
    choice = im.choose_threshold(evaluation, fpir=0.05, draws=100)
    point = evaluation.at_fpir(0.05)
    assert choice.distance == point.distance
    assert choice.target == "FPIR at most 0.05"
    found = choice.identification
    assert (found.fpir.value, found.fnir.value, found.misidentified) == (point.fpir, point.fnir, point.misidentified)
    assert found.fnir.low < found.fnir.value < found.fnir.high
    worst = evaluation.names[np.nanargmax(point.class_fnir)]
    assert choice.worst_classes[0].name == worst


@pytest.mark.parametrize("delta", [None, 0.1])
def test_a_promised_fpir_is_the_largest_threshold_that_keeps_the_condition(evaluation, delta):
    target, gallery = 0.1, evaluation.gallery
    choice = im.promise_threshold(evaluation, fpir=target, delta=delta, draws=100)

    def kept(distance):
        losses = []
        for unknown in range(40):
            own = [
                first <= distance
                for first, its in zip(gallery.first_distance[gallery.known :], gallery.unknown_class, strict=True)
                if its == unknown
            ]
            rate = sum(own) / len(own)
            losses.append(rate if delta is None else float(rate > target + 1e-9))
        return (sum(losses) + 1) / 41 <= (target if delta is None else delta) + 1e-9

    beyond = min(first for first in gallery.first_distance[gallery.known :] if first > choice.distance)
    assert kept(choice.distance)
    assert not kept(beyond)
    assert choice.promise.classes == 40
    assert "new unknown class" in choice.promise.what


def test_a_card_of_a_gallery_says_how_templates_are_made_and_survives_saving(evaluation, tmp_path):
    card = im.make_card(im.choose_threshold(evaluation, fpir=0.05, draws=100), evaluation)
    card.save(tmp_path / "card.json")
    loaded = im.ThresholdCard.load(tmp_path / "card.json")
    assert loaded == card
    assert (loaded.comparison, loaded.gallery["template"], loaded.gallery["unknown_probes"]) == ("gallery", "mean", 400)
    text = loaded.summary()
    for words in ("a probe and a template: mean of a class's items", "FPIR 5%", "400 unknown probes", "misidentified"):
        assert words in text


def test_without_unknown_probes_there_is_no_fpir_and_none_is_promised(sets):
    items, enrolled, probes, labels = sets
    known = labels < 40
    with pytest.warns(UserWarning, match="no probe is unknown"):
        evaluation = im.evaluate_gallery(items, enrolled, probes[known], labels[known], progress=None)
    choice = im.choose_threshold(evaluation, far=0.01, draws=100)
    assert choice.identification.fpir is None
    assert "  FPIR " not in im.make_card(choice, evaluation).summary()
    for choose in (im.choose_threshold, im.promise_threshold):
        with pytest.raises(im.InputError, match="without unknown probes"):
            choose(evaluation, fpir=0.05)


def test_a_threshold_of_all_pairs_is_refused_on_a_gallery(evaluation, sets):
    pairs = im.evaluate(*sets[2:], progress=None)
    with pytest.raises(im.InputError, match="--gallery GALLERY chooses one for it"):
        im.transfer_threshold(1.0, pairs, {"gallery": evaluation})
    with pytest.raises(im.InputError, match="FPIR and FNIR need a gallery"):
        im.choose_threshold(pairs, fpir=0.05)


def test_the_command_chooses_for_an_fpir_and_writes_the_card(run, sets, tmp_path):
    items, enrolled, probes, labels = sets
    np.savez(tmp_path / "gallery.npz", embeddings=items, labels=enrolled)
    np.savez(tmp_path / "probes.npz", embeddings=probes, labels=labels)
    code, out, _ = run("threshold", tmp_path / "probes.npz", "--gallery", tmp_path / "gallery.npz", "--fpir", 0.05,
                       "-o", tmp_path / "card.json", "--json", "--draws", 100)  # fmt: skip
    assert code == 0
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, progress=None)
    assert json.loads(out)["threshold"]["l2"] == pytest.approx(evaluation.at_fpir(0.05).distance)
    card = im.ThresholdCard.load(tmp_path / "card.json")
    assert [source["file"] for source in card.source] == ["probes.npz", "gallery.npz"]
    code, _, err = run("transfer", tmp_path / "card.json", tmp_path / "probes.npz")
    assert code == 2
    assert "the threshold was measured on probes with the templates of a gallery" in err
    code, _, err = run("threshold", tmp_path / "probes.npz", "--fpir", 0.05)
    assert code == 2
    assert "FPIR and FNIR need a gallery" in err


def test_the_command_takes_class_thresholds_and_the_card_names_them(run, sets, tmp_path):
    items, enrolled, probes, labels = sets
    np.savez(tmp_path / "gallery.npz", embeddings=items, labels=enrolled)
    np.savez(tmp_path / "probes.npz", embeddings=probes, labels=labels)
    fitted = im.ClassThresholds(shrink=0.5, weights=(0.25, 0.25)).fit(items, enrolled)
    fitted.save(tmp_path / "thresholds.json")
    options = ["--gallery", tmp_path / "gallery.npz", "--class-thresholds", tmp_path / "thresholds.json"]
    code, out, err = run("threshold", tmp_path / "probes.npz", *options, "--fpir", 0.05, "-o", tmp_path / "card.json")
    assert code == 0
    assert "note: gallery and probes: 1,000 of 1,000 embeddings do not have length one" in " ".join(out.split())
    assert "note:" not in err  # the card has the notes
    assert "minus the offset of the class" in out
    assert "equalized" not in out
    evaluation = im.evaluate_gallery(*sets, class_thresholds=fitted, progress=None)
    card = im.ThresholdCard.load(tmp_path / "card.json")
    assert card.distance == pytest.approx(evaluation.at_fpir(0.05).distance)
    assert card.threshold["cosine_minus_offset"] == pytest.approx(1 - card.distance * abs(card.distance) / 2)
    assert card.accept_when == {"cosine_minus_offset": "at least", "offset_distance": "at most"}
    code, _, err = run("threshold", tmp_path / "probes.npz", *options, "--cosine", 0.5)
    assert code == 2
    assert "but these pairs have another, cosine minus offset" in err
    assert len(err.strip().splitlines()) == 1
    _, out, _ = run("canaries", tmp_path / "probes.npz", "--card", tmp_path / "card.json")
    assert "NEW.npz --gallery GALLERY.npz --class-thresholds THRESHOLDS.json --canaries AGAIN.npz" in out
    assert card.equalizer["digest"] == evaluation.equalizer["digest"]
    code, out, _ = run("check", tmp_path / "card.json", tmp_path / "probes.npz", *options, "--draws", 100)
    assert code == 0
    assert out.startswith("The card holds: its rates are not significantly worse.")
    code, _, err = run("check", tmp_path / "card.json", tmp_path / "probes.npz", *options[:2])
    assert code == 2
    assert "the card was measured with class thresholds: give its class thresholds (--class-thresholds)" in err


def test_items_other_than_those_of_the_class_thresholds_are_noted(sets):
    items, enrolled, *others = sets
    fitted = im.ClassThresholds(shrink=0.5, weights=(0.25, 0.25)).fit(items, enrolled)
    order = np.random.default_rng(0).permutation(len(items))
    same = im.evaluate_gallery(items[order], enrolled[order], *others, class_thresholds=fitted, progress=None)
    assert not [note for note in same.notes if "fitted on" in note]
    fewer = np.delete(order, np.flatnonzero(enrolled[order] == enrolled[0])[:1])
    with pytest.warns(UserWarning, match="not those that the class thresholds were fitted on"):
        im.evaluate_gallery(items[fewer], enrolled[fewer], *others, class_thresholds=fitted, progress=None)


def test_with_one_label_for_all_unknown_probes_only_an_expected_fpir_is_promised(sets):
    items, enrolled, probes, labels = sets
    with pytest.warns(UserWarning, match="all unknown probes have the label 99"):
        evaluation = im.evaluate_gallery(items, enrolled, probes, np.where(labels < 40, labels, 99), progress=None)
    assert im.promise_threshold(evaluation, fpir=0.05, draws=100).promise.classes == 400
    with pytest.raises(im.InputError, match="whose FPIR is 0 or 1, so delta would be the FPIR"):
        im.promise_threshold(evaluation, fpir=0.05, delta=0.1)


def test_the_card_of_equalized_templates_says_how_they_are_served_and_that_is_so(sets):
    items, enrolled, probes, labels = sets
    templates, names = im.make_templates(items, enrolled)
    equalizer = im.Equalizer(neighbours=5, skip=0).fit(templates)
    evaluation = im.evaluate_gallery(*sets, equalizer=equalizer, sides="template", progress=None)
    choice = im.choose_threshold(evaluation, fpir=0.05, draws=100)
    card = im.make_card(choice, evaluation)
    assert "Templates alone are equalized" in card.summary()
    served = equalizer.transform_queries(probes) @ equalizer.transform_reference().T + equalizer.offset_ / 2
    accepted = served >= card.threshold["equalized_similarity"]
    unknown = ~np.isin(labels, names)
    assert accepted[unknown].any(axis=1).mean() == pytest.approx(choice.identification.fpir.value)
    with pytest.raises(im.InputError, match="there is no equalizer whose shifts it could choose"):
        im.evaluate_gallery(*sets, sides="template")
