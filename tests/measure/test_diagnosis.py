"""What `diagnose` finds on made data: each rule where it is right and where it must stay silent."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.diagnosis import Finding, beyond_noise, rate_spreads, value_range, worst_few

CLASSES, ITEMS, DIMENSIONS = 60, 20, 48
LABELS = np.repeat(np.arange(CLASSES), ITEMS)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _binned(monkeypatch):
    """Pairs in bins, which is faster; the rules do not depend on it."""
    monkeypatch.setattr("isomargin.measure.evaluate.SMALL", 0)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def directions(number, seed):
    return unit(np.random.default_rng(seed).normal(size=(number, DIMENSIONS)))


def around(centres, width, labels=LABELS, seed=1):
    """Items around the centres of their classes; a width for all classes, or one per class."""
    noise = np.random.default_rng(seed).normal(size=(len(labels), DIMENSIONS)) / np.sqrt(DIMENSIONS)
    return centres[labels] + np.broadcast_to(width, len(centres))[labels, None] * noise


def even():
    return around(directions(CLASSES, 0), 1.0)


def with_merged_classes(number):
    """Classes of which the first few have half of their items around a second centre."""
    embeddings, second = even(), directions(number, 2)
    moved = (number > LABELS) & (np.arange(len(LABELS)) % 2 == 0)
    embeddings[moved] += (second - directions(CLASSES, 0)[:number])[LABELS[moved]]
    return embeddings


def crowded():
    """Half of the classes close to a common direction, so that they are mistaken for each other."""
    centres = directions(CLASSES, 0)
    centres[: CLASSES // 2] = unit(centres[: CLASSES // 2] + centres[:1])
    return around(centres, 0.8)


def of_different_widths():
    return around(directions(CLASSES, 0), np.linspace(0.4, 1.6, CLASSES))


def with_common_part(width=2.0):
    """Every item with the same vector added and with a length of its own, like features that nobody has centred."""
    lengths = np.random.default_rng(3).uniform(0.5, 1.5, size=(len(LABELS), 1))
    return lengths * around(directions(CLASSES, 0), width) + 1.5 * directions(1, 4)


def evaluate(embeddings, labels=LABELS, **settings):
    return im.evaluate(embeddings, labels, k=(1,), map_at_r=False, threads=1, **settings)


@cache
def plain(make, *arguments):
    """The evaluation of a made set, computed once for all tests."""
    return evaluate(make(*arguments))


@cache
def equalized(make, *arguments):
    embeddings = make(*arguments)
    return evaluate(embeddings, equalizer=im.Equalizer(neighbours=60, skip=ITEMS, threads=1).fit(embeddings))


def found(evaluation):
    return {finding.name: finding for finding in im.diagnose(evaluation)}


# --- each rule --------------------------------------------------------------------------------------------------------


def test_even_classes_are_told_in_one_line_that_one_threshold_suits_them():
    (finding,) = im.diagnose(plain(even))
    assert finding == Finding("one_threshold", "One threshold suits these classes about equally well.", "")


def test_nothing_is_said_where_opis_is_neither_low_nor_explained(monkeypatch):
    monkeypatch.setattr("isomargin.measure.diagnosis.RULES", ())
    assert im.diagnose(plain(of_different_widths)) == ()
    assert len(im.diagnose(plain(even))) == 1


def test_few_items_are_found_where_the_note_says_so_and_opis_is_not_low():
    labels = np.repeat(np.arange(CLASSES), 4)
    noisy = evaluate(around(directions(CLASSES, 0), 1.5, labels), labels)
    assert "few_items" in found(noisy)
    assert found(noisy)["few_items"].remedy == "evaluate more items per class"
    assert "few_items" not in found(evaluate(around(directions(CLASSES, 0), 0.5, labels), labels))
    assert "few_items" not in found(plain(of_different_widths))


def test_few_items_are_found_where_noise_is_unknown():
    labels = np.repeat(np.arange(CLASSES), 3)
    assert "few_items" in found(evaluate(around(directions(CLASSES, 0), 1.5, labels), labels))


def test_classes_that_reject_most_of_their_pairs_need_a_better_model():
    hopeless = found(evaluate(around(directions(CLASSES, 0), 4.0)))["no_separation"]
    assert hopeless.sentence.startswith("100% of classes reject most of their own pairs at FAR 1%")
    assert "isomargin adapt FILE -o adapter/" in hopeless.remedy
    assert "no_separation" not in found(plain(of_different_widths))


def test_a_few_merged_classes_are_named():
    finding = found(plain(with_merged_classes, 2))["few_classes"]
    assert finding.sentence.startswith("Only 2 of 60 classes carry 9")
    assert {finding.sentence[-5], finding.sentence[-2]} == {"0", "1"}
    assert finding.remedy.endswith(": isomargin report FILE -o report.html")
    assert "Only 1 of 60 classes carries" in found(plain(with_merged_classes, 1))["few_classes"].sentence


def test_at_most_three_classes_are_named_and_their_names_are_short_and_printable(monkeypatch):
    monkeypatch.setattr("isomargin.measure.diagnosis.CARRIED", 0.9)  # so that all five are needed
    labels = np.repeat(np.arange(2 * CLASSES), ITEMS)
    embeddings = np.concatenate([with_merged_classes(5), around(directions(CLASSES, 7), 1.0)])
    names = np.array([f"\x1b[2J{'x' * 50}{i:03}" for i in range(2 * CLASSES)])
    sentence = found(evaluate(embeddings, names[labels]))["few_classes"].sentence
    assert sentence.endswith(" and 2 more.")
    assert sentence.count("\\x1b[2Jxxx") == 3
    assert sentence.isprintable()
    assert len(sentence) < 150


@pytest.mark.parametrize("made", [(of_different_widths,), (even,), (with_merged_classes, 12)])
def test_classes_are_not_named_where_many_share_opis_or_opis_is_tiny(made):
    assert "few_classes" not in found(plain(*made))


def test_classes_far_better_than_the_rest_are_not_blamed():
    widths = np.full(CLASSES, 1.7)
    widths[:3] = 0.2
    evaluation = evaluate(around(directions(CLASSES, 0), widths))
    assert evaluation.curves.squared_deviations[:3].sum() > evaluation.curves.squared_deviations[3:].sum()
    assert worst_few(evaluation) == ([], 0.0, 0.0)


def test_uneven_fars_are_found_and_the_remedy_helps():
    raw, better = plain(crowded), equalized(crowded)
    finding = found(raw)["far_spread"]
    assert finding.remedy == "isomargin equalize FILE -o equalizer.json"
    low, high = np.quantile(raw.target.class_far, (0.05, 0.95))
    assert f"{100 * low:.2g}% to {100 * high:.2g}% (9 classes in 10)" in finding.sentence
    assert rate_spreads(better)[0] < rate_spreads(raw)[0] / 2
    assert "far_spread" not in found(better)


def test_no_range_of_fars_is_given_where_every_class_has_few_pairs():
    evaluation = evaluate(crowded(), target_far=4e-4)
    assert evaluation.far_within_two.classes == 0
    finding = found(evaluation)["far_spread"]
    assert finding.sentence == (
        "Class FARs differ by more than chance explains at the one threshold for FAR 0.04%, but classes have too few "
        "pairs to say by how much."
    )


def test_uneven_fars_are_not_mentioned_where_a_stricter_threshold_has_lower_rates():
    evaluation = evaluate(around(directions(CLASSES, 0), 0.2))
    assert rate_spreads(evaluation)[0] > 0.5
    assert list(found(evaluation)) == ["one_threshold"]


def test_uneven_frrs_are_found_where_fars_are_alike():
    finding = found(plain(of_different_widths))["frr_spread"]
    assert finding.sentence.startswith("Class FARs are alike, but class FRR goes from 0% to 5")
    assert finding.remedy.startswith("train with class alignment (docs/training.md)")
    assert "isomargin equalize FILE" in finding.remedy
    assert not {"far_spread", "frr_spread"} & set(found(plain(even)))
    assert "frr_spread" not in found(plain(crowded))


@pytest.mark.parametrize(("classes", "items"), [(8, 20), (40, 5), (40, 10)])
@pytest.mark.parametrize("seed", range(2))
def test_the_noise_of_few_items_is_not_taken_for_uneven_rates(classes, items, seed):
    labels = np.repeat(np.arange(classes), items)
    alike = around(np.eye(DIMENSIONS)[:classes], 1.2, labels, seed)  # all centres equally far apart
    assert not {"far_spread", "frr_spread", "few_classes"} & set(found(evaluate(alike, labels)))


def test_sampled_pairs_are_noisier_than_all_pairs():
    sampled = evaluate(even(), pairs="sampled", negatives_per_positive=1)
    every = plain(even)
    assert not {"far_spread", "frr_spread"} & set(found(sampled))
    noise = sampled.item_noise.of_rates(sampled.target.distance, sampled)[0].mean()
    assert noise > 2 * every.item_noise.of_rates(every.target.distance, every)[0].mean()


def test_a_common_part_is_found_and_subtracting_it_lowers_the_error_rates():
    features = with_common_part()
    raw, centred = plain(with_common_part), evaluate(features - features.mean(axis=0))
    assert "subtract their mean before normalising" in found(raw)["common_part"].remedy
    assert centred.eer < raw.eer - 0.05
    assert centred.target.frr < raw.target.frr
    assert "common_part" not in found(centred)


def test_a_common_part_is_not_mentioned_where_classes_are_separated():
    separated = plain(with_common_part, 0.4)
    assert separated.counts.negatives.mean_similarity > 0.25
    assert "common_part" not in found(separated)


@pytest.mark.parametrize("exact", [True, False])
def test_the_mean_similarity_of_negative_pairs_is_the_squared_length_of_the_mean(exact, monkeypatch):
    monkeypatch.setattr("isomargin.measure.evaluate.SMALL", 1 << 30 if exact else 0)
    vectors = unit(with_common_part())
    evaluation = evaluate(vectors)
    assert evaluation.method == ("exact" if exact else "binned")
    similarity = vectors @ vectors.T
    expected = similarity[LABELS[:, None] != LABELS].mean()
    assert evaluation.counts.negatives.mean_similarity == pytest.approx(expected, abs=1e-4 if exact else 1e-3)
    assert expected == pytest.approx(np.square(vectors.mean(axis=0)).sum(), abs=0.01)


# --- equalized evaluations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [(even,), (crowded,), (of_different_widths,), (with_common_part,), (with_merged_classes, 2)]
)
def test_an_equalized_evaluation_is_not_told_to_equalize(made):
    findings = found(equalized(*made))
    assert not any("isomargin equalize" in finding.remedy for finding in findings.values())
    assert "common_part" not in findings


def test_an_equalized_evaluation_with_uneven_rates_is_told_what_else_helps():
    assert found(equalized(of_different_widths))["frr_spread"].remedy.startswith("train with class alignment")
    embeddings = of_different_widths()
    unskipped = im.Equalizer(neighbours=ITEMS - 5, skip=0).fit(embeddings)
    finding = found(evaluate(embeddings, equalizer=unskipped))["far_spread"]
    assert finding.remedy.startswith("set the equalizer's skip to about 20, the number of items per class")
    assert "far_spread" not in found(equalized(of_different_widths))


@pytest.mark.parametrize("settings", [{"method": "local", "skip": ITEMS}, {"method": "cohort", "skip": 0}])
def test_an_equalizer_that_skips_as_it_should_is_not_told_to_skip(settings):
    evaluation = replace(plain(crowded), equalizer=settings)
    assert found(evaluation)["far_spread"].remedy.startswith("choose a threshold with a promise for each class")


def test_a_report_is_proposed_for_an_equalized_evaluation_too():
    remedy = found(equalized(with_merged_classes, 2))["few_classes"].remedy
    assert remedy == "look for mislabelled or merged classes: isomargin report FILE -o report.html"


# --- order, settings, parts -------------------------------------------------------------------------------------------


def test_the_most_important_finding_comes_first():
    assert list(found(plain(with_common_part, 2.5)))[-2:] == ["no_separation", "common_part"]


def test_the_target_rate_of_the_settings_is_named():
    evaluation = plain(crowded).with_settings(target_far=0.005)
    assert found(evaluation)["far_spread"].sentence.endswith("at the one threshold for FAR 0.5%.")


def test_classes_of_one_item_are_left_out():
    labels = LABELS.copy()
    labels[:3] = [1001, 1002, 1003]
    assert [finding.name for finding in im.diagnose(evaluate(even(), labels))] == ["one_threshold"]


def test_a_saved_evaluation_has_the_same_diagnosis(tmp_path):
    evaluation = plain(crowded)
    evaluation.save(tmp_path / "evaluation.json")
    assert im.diagnose(im.Evaluation.load(tmp_path / "evaluation.json")) == im.diagnose(evaluation)


def test_a_spread_is_zero_unless_it_is_well_above_the_noise():
    rates = np.array([0.1, 0.3])  # variance 0.01
    assert beyond_noise(rates, np.array([0.003, 0.003])) == pytest.approx(np.sqrt(0.007))
    assert beyond_noise(rates, np.array([0.004, 0.004])) == 0
    assert beyond_noise(rates, np.array([-0.004, 0.0])) == pytest.approx(0.1)


def test_a_range_of_few_classes_goes_from_the_least_to_the_largest():
    assert value_range(np.array([np.nan, 0.0, 1.0])) == "0% to 100%"


# --- the command ------------------------------------------------------------------------------------------------------


def saved(path, vectors, names=("embeddings", "labels")):
    np.savez(path, **dict(zip(names, (vectors, LABELS), strict=True)))
    return path


def test_evaluate_ends_with_the_diagnosis_and_a_command_for_this_file(tmp_path, run):
    path = saved(tmp_path / "my set.npz", crowded())
    code, out, _ = run("evaluate", path)
    assert code == 0
    lines = out.splitlines()
    below = lines[lines.index("diagnosis") :]
    assert below[1].startswith("Class FAR goes from ")
    assert below[2:] == [f"  isomargin equalize '{path}' -o equalizer.json"]


def test_the_command_repeats_the_options_by_which_the_file_was_read(tmp_path, run):
    path = saved(tmp_path / "set.npz", crowded(), ("x", "y"))
    _, out, _ = run("evaluate", path, "--embeddings-key", "x", "--labels-key", "y")
    assert out.endswith(f"  isomargin equalize {path} --embeddings-key x --labels-key y -o equalizer.json\n")


def test_evaluate_ends_with_one_line_where_one_threshold_suits(tmp_path, run):
    _, out, _ = run("evaluate", saved(tmp_path / "set.npz", even()))
    assert out.endswith("\n\ndiagnosis\nOne threshold suits these classes about equally well.\n")


def test_json_has_the_diagnosis(tmp_path, run):
    path = saved(tmp_path / "set.npz", crowded())
    _, out, _ = run("evaluate", path, "--json")
    (finding,) = json.loads(out)["diagnosis"]
    assert set(finding) == {"name", "sentence", "remedy"}
    assert finding["name"] == "far_spread"
    assert finding["remedy"] == f"isomargin equalize {path} -o equalizer.json"


def test_the_diagnosis_is_short(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "set.npz", with_common_part(2.5))
    _, out, _ = run("evaluate", "set.npz")
    below = out[out.index("diagnosis\n") :].splitlines()
    assert len(below) <= 7
    assert max(map(len, below)) <= 100
