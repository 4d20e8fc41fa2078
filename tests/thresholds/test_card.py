"""A threshold's card: what it says, that it survives its file, and that a changed file is refused."""

import hashlib
import json
import math
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import isomargin as im
from compare import clusters
from isomargin.thresholds.calibrate import Calibration
from isomargin.thresholds.card import ThresholdCard, make_card
from isomargin.thresholds.choose import choose_threshold
from isomargin.thresholds.conversions import ACCEPT_WHEN, conversions

HOSTILE = ["\x1b[2J\x1b]0;owned\x07", "two\nlines", "猫" * 60, "\u202egnp.exe", "[bold]markup[/bold]", ""]
PROMISE = {
    "what": "a new class exceeds FAR 0.05 with probability at most 0.1",
    "delta": 0.1,
    "assumptions": ["classes to come are exchangeable with those measured", "their negatives are of the same kind"],
}


@pytest.fixture(scope="module")
def evaluation():
    rows, labels = clusters(300, 12, singles=3)
    names = np.array([HOSTILE[i] if i < len(HOSTILE) else f"class {i}" for i in range(15)])
    with pytest.warns(UserWarning, match="single item"):
        return im.evaluate(rows, names[labels])


@pytest.fixture(scope="module")
def choice(evaluation):
    return choose_threshold(evaluation, far=0.05, draws=100)


@pytest.fixture
def card(evaluation, choice, tmp_path):
    (tmp_path / "X.npy").write_bytes(b"vectors")
    (tmp_path / "labels.txt").write_bytes(b"labels")
    files = [tmp_path / "X.npy", str(tmp_path / "labels.txt")]
    calibration = Calibration("platt", 0.5, {"slope": 2.5, "intercept": -1.0})
    return replace(make_card(choice, evaluation, source=files, calibration=calibration), promise=PROMISE)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_conventions_say_the_same_of_any_two_unit_vectors(seed, dimensions):
    a, b = np.random.default_rng(seed).normal(size=(2, dimensions))
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    found = conversions(float(np.linalg.norm(a - b)))
    expected = {
        "cosine_similarity": a @ b,
        "cosine_distance": 1 - a @ b,
        "l2": np.linalg.norm(a - b),
        "squared_l2": np.square(a - b).sum(),
        "inner_product": a @ b,
    }
    assert found == pytest.approx(expected, abs=1e-12)


@given(st.floats(0, 2), st.floats(0, 2))
def test_every_convention_accepts_the_nearer_pair(threshold, distance):
    at, of_pair = conversions(threshold), conversions(distance)
    accepted = {
        name: of_pair[name] >= at[name] if ACCEPT_WHEN[name] == "at least" else of_pair[name] <= at[name]
        for name in ACCEPT_WHEN
    }
    assert list(at) == list(ACCEPT_WHEN)
    if abs(threshold - distance) > 1e-7:
        assert set(accepted.values()) == {distance < threshold}


@pytest.mark.parametrize("value", [-0.1, 2.1, math.nan, math.inf, "1", None, True])
def test_no_distance_is_not_converted(value):
    with pytest.raises(im.InputError, match="distance is"):
        conversions(value)


def test_a_card_says_what_was_chosen_and_measured(card, choice, evaluation):
    assert card.distance == choice.distance
    assert card.threshold["cosine_similarity"] == pytest.approx(1 - choice.distance**2 / 2)
    assert card.target == "FAR at most 0.05"
    assert card.measured["classes"] == 15
    assert card.measured["items"] == 303
    assert card.measured["negative_pairs"] == evaluation.negative_pairs
    assert card.measured["far"]["value"] == choice.far <= 0.05
    assert card.measured["far"]["low"] == choice.far_interval.low
    assert card.measured["class_frr_quantiles"]["0.95"] == choice.class_frr_quantiles[0.95]
    assert [each["name"] for each in card.worst_classes] == [each.name for each in choice.worst_classes]
    assert "single item" in card.measured["notes"][0]
    assert card.created == datetime.now(UTC).date().isoformat()
    assert card.isomargin == im.__version__
    assert card.source == [
        {"file": "X.npy", "sha256": hashlib.sha256(b"vectors").hexdigest()},
        {"file": "labels.txt", "sha256": hashlib.sha256(b"labels").hexdigest()},
    ]


def test_a_card_survives_its_file(card, tmp_path):
    card.save(tmp_path / "card.json")
    loaded = ThresholdCard.load(tmp_path / "card.json")
    assert loaded == card
    assert loaded.sha256 == card.sha256
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "card.json").read_bytes()
    assert str(tmp_path) not in (tmp_path / "card.json").read_text()


def test_a_card_of_nothing_but_the_threshold_survives_too(evaluation, choice, tmp_path):
    card = make_card(choice, evaluation)
    card.save(tmp_path / "card.json")
    assert ThresholdCard.load(tmp_path / "card.json") == card
    assert (card.source, card.promise, card.calibration) == (None, None, None)
    one = make_card(choice, evaluation, source=tmp_path / "card.json").source
    assert [each["file"] for each in one] == ["card.json"]


@pytest.mark.parametrize("asked", [{"far": 0.05}, {"frr": 0.1}, {"utility": "best"}], ids=str)
def test_the_classes_worst_by_either_rate_are_on_the_card_whatever_the_target(evaluation, asked):
    choice = choose_threshold(evaluation, **asked, draws=100)
    card, point = make_card(choice, evaluation), evaluation.at(choice.distance)
    for listed, rates in ((card.worst_by_far, point.class_far), (card.worst_by_frr, point.class_frr)):
        order = sorted((i for i in range(15) if rates[i] > 0), key=lambda i: -rates[i])[:10]
        assert [each["name"] for each in listed] == [evaluation.names[i] for i in order]
    by_far, by_frr = card.summary().split("Largest FAR")[1].split("Largest FRR")
    for section, listed in ((by_far, card.worst_by_far), (by_frr, card.worst_by_frr)):
        values = [[each["far"], each["frr"]] for each in listed[:3]]
        rows = ["   ".join("-" if rate is None else f"{100 * rate:.3g}%" for rate in row) for row in values]
        flat = " ".join(section.split())
        assert all(" ".join(row.split()) in flat for row in rows)


def test_a_card_of_version_1_is_read_and_saved_as_the_present_version(tmp_path):
    older = Path(__file__).parent / "older_card.json"
    card = ThresholdCard.load(older)
    assert card.target == "an expected FAR of at most 20% in unseen classes"
    assert (card.worst_by_far, card.worst_by_frr) == (None, None)
    assert "Where it fails most" in card.summary()
    assert card.measured["items"] == json.loads(older.read_text())["measured"]["images"]
    card.save(tmp_path / "card.json")
    assert ThresholdCard.load(tmp_path / "card.json") == card
    (tmp_path / "edited.json").write_text(older.read_text().replace('"classes": ', '"classes": 1'))
    with pytest.raises(im.InputError, match="was changed after it was written"):
        ThresholdCard.load(tmp_path / "edited.json")


def test_a_card_of_a_kind_that_is_not_known_is_refused(card, tmp_path):
    write_changed(card, tmp_path / "card.json", set_at("comparison", value="tournament"), rehash=True)
    with pytest.raises(im.InputError, match="of a kind that this isomargin does not know"):
        ThresholdCard.load(tmp_path / "card.json")


def test_the_file_is_plain_json_with_the_number_under_its_names(card, tmp_path):
    card.save(tmp_path / "card.json")
    values = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert values["format"] == "isomargin threshold card"
    assert values["version"] == 2
    assert set(values["threshold"]) == {"cosine_similarity", "cosine_distance", "l2", "squared_l2", "inner_product"}
    assert values["accept_when"]["inner_product"] == "at least"
    assert values["worst_classes"][0].keys() == {"name", "items", "far", "frr"}
    unsigned = {name: value for name, value in values.items() if name != "sha256"}
    canonical = json.dumps(unsigned, sort_keys=True, separators=(",", ":"))
    assert values["sha256"] == hashlib.sha256(canonical.encode()).hexdigest()


def write_changed(card, path, change, rehash):
    card.save(path)
    values = json.loads(path.read_text())
    change(values)
    if rehash:
        values.pop("sha256", None)
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
        values["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(values))


def set_at(*path, value):
    def change(values):
        for name in path[:-1]:
            values = values[name]
        values[path[-1]] = value

    return change


CHANGES = {
    "another number": set_at("threshold", "cosine_similarity", value=0.5),
    "another name": set_at("worst_classes", 0, "name", value="someone else"),
    "another promise": set_at("promise", "delta", value=0.01),
    "one more part": set_at("approved_by", value="me"),
    "another source": set_at("source", value=None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_card_that_someone_edited_is_refused(card, tmp_path, change):
    write_changed(card, tmp_path / "card.json", change, rehash=False)
    with pytest.raises(im.InputError, match=r"card\.json was changed after it was written"):
        ThresholdCard.load(tmp_path / "card.json")


def test_white_space_and_order_are_no_change(card, tmp_path):
    card.save(tmp_path / "card.json")
    values = json.loads((tmp_path / "card.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps(dict(reversed(values.items())), indent=7))
    assert ThresholdCard.load(tmp_path / "card.json") == card


@pytest.mark.parametrize("name", [*(each.name for each in fields(ThresholdCard) if each.default is MISSING), "sha256"])
def test_a_missing_part_is_named(card, tmp_path, name):
    write_changed(card, tmp_path / "card.json", lambda values: values.pop(name), rehash=name != "sha256")
    with pytest.raises(im.InputError, match=rf"card\.json is a threshold card without a valid {name}"):
        ThresholdCard.load(tmp_path / "card.json")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (set_at("threshold", "l2", value="1"), r"threshold\.l2"),
        (set_at("threshold", value=[]), "threshold"),
        (set_at("measured", "far", value=0.1), r"measured\.far"),
        (set_at("measured", "items", value=True), r"measured\.items"),
        (set_at("worst_classes", 2, value={}), r"worst_classes\[2\]\.name"),
        (set_at("worst_classes", value={}), "worst_classes"),
        (set_at("worst_by_frr", 0, "far", value="x"), r"worst_by_frr\[0\]\.far"),
        (set_at("worst_by_far", value=None), "worst_by_far"),
        (set_at("source", 0, "file", value=3), r"source\[0\]\.file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_of_another_kind_is_named(card, tmp_path, change, part):
    write_changed(card, tmp_path / "card.json", change, rehash=True)
    with pytest.raises(im.InputError, match=f"without a valid {part}"):
        ThresholdCard.load(tmp_path / "card.json")


def test_another_version_is_refused(card, tmp_path):
    write_changed(card, tmp_path / "card.json", set_at("version", value=3), rehash=True)
    with pytest.raises(im.InputError, match=r"card\.json is a threshold card of version 3, .* reads version 2"):
        ThresholdCard.load(tmp_path / "card.json")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\x93NUMPY", "is not JSON"),
        (b'{"format": "isomargin threshold card"', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"format": NaN}', "is not JSON"),
        (b"[1, 2]", "not a threshold card"),
        (b'{"format": "isomargin evaluation", "version": 1}', "not a threshold card"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_file_that_is_no_card_is_refused(tmp_path, content, sentence):
    (tmp_path / "card.json").write_bytes(content)
    with pytest.raises(im.InputError, match=rf"card\.json .*{sentence}"):
        ThresholdCard.load(tmp_path / "card.json")


def test_no_number_is_too_large_for_a_sentence(card, tmp_path):
    card.save(tmp_path / "card.json")
    text = (tmp_path / "card.json").read_text()
    for huge in ("1e999", "9" * 5000):
        (tmp_path / "card.json").write_text(text.replace(f'"items": {card.measured["items"]}', f'"items": {huge}'))
        with pytest.raises(im.InputError, match=r"card\.json"):
            ThresholdCard.load(tmp_path / "card.json")


def test_a_missing_file_or_source_is_refused(evaluation, choice, tmp_path):
    with pytest.raises(im.InputError, match="does not exist"):
        ThresholdCard.load(tmp_path / "none.json")
    with pytest.raises(im.InputError, match=r"X\.npy does not exist"):
        make_card(choice, evaluation, source=[tmp_path / "X.npy"])


@pytest.mark.parametrize("asked", [{"far": 0.2}, {"frr": 0.2}, {"far": 0.3, "delta": 0.2}], ids=str)
def test_a_promised_threshold_has_as_full_a_card_as_a_chosen_one(evaluation, tmp_path, asked):
    promised = im.promise_threshold(evaluation, **asked, draws=100)
    chosen = im.choose_threshold(evaluation, distance=promised.distance, draws=100)
    card, other = im.make_card(promised, evaluation), im.make_card(chosen, evaluation)
    card.save(tmp_path / "card.json")
    assert ThresholdCard.load(tmp_path / "card.json") == card
    assert card.promise == promised.promise.as_values()
    assert (card.threshold, card.target) == (other.threshold, promised.promise.short)
    assert {**card.measured, "share_over_target": None} == {**other.measured, "share_over_target": None}
    over = promised.share_over_target
    rates = evaluation.at(promised.distance)
    class_rates = rates.class_far if "far" in asked else rates.class_frr[~np.isnan(rates.class_frr)]
    assert over == np.mean(class_rates > next(iter(asked.values())))
    assert promised.promise.what in " ".join(card.summary().split())


def test_a_promise_and_a_choice_take_the_same_options_for_their_intervals(evaluation):
    options = {"draws": 200, "confidence": 0.8, "seed": 3}
    promised = im.promise_threshold(evaluation, far=0.2, **options)
    chosen = im.choose_threshold(evaluation, distance=promised.distance, **options)
    assert (promised.far_interval, promised.frr_interval) == (chosen.far_interval, chosen.frr_interval)


def test_what_a_card_cannot_be_made_of_is_refused(evaluation, choice):
    for arguments in ((0.5, evaluation), (choice, choice)):
        with pytest.raises(im.InputError, match=r"is of type \w+: the result of isomargin\.\w+"):
            make_card(*arguments)
    with pytest.raises(
        im.InputError, match=r"calibration is of type dict: the result of isomargin\.calibrate is needed"
    ):
        make_card(choice, evaluation, calibration={"method": "platt"})


@pytest.mark.parametrize("first", range(len(HOSTILE)))
def test_the_summary_can_be_pasted_anywhere(card, first):
    names = HOSTILE[first:] + HOSTILE[:first]
    worst = [{**card.worst_classes[0], "name": name} for name in names]
    files = [{**card.source[0], "file": names[0]}]
    text = replace(card, worst_by_far=worst, source=files, promise={**PROMISE, names[1]: names[2]}).summary()
    lines = text.split("\n")
    assert max(cell_len(line) for line in lines) <= 88
    assert all(line.isprintable() for line in lines)
    text.encode("utf-8")


def test_the_summary_names_classes_and_files_in_full(card):
    names = ["long class name " * 4 + "end", "x" * 90]
    worst = [{**card.worst_classes[0], "name": name} for name in names]
    files = [{**card.source[0], "file": f"{names[1]}.npz"}]
    text = replace(card, worst_by_far=worst, worst_by_frr=worst, source=files).summary()
    flat = "".join(text.split())
    assert text.count("…") == 1  # that of the hash
    assert all("".join(name.split()) in flat for name in names)
    assert max(cell_len(line) for line in text.split("\n")) <= 88


def test_the_summary_says_what_matters(card):
    text = card.summary()
    assert len(text.split("\n")) <= 45
    flat = " ".join(text.split())
    for name, value in card.threshold.items():
        assert f"{name} accept when {card.accept_when[name]} {value:.9f}" in flat
    assert "FAR at most 0.05" in text
    assert "303 items in 15 classes" in flat
    assert f"FAR {100 * card.measured['far']['value']:.3g}% (95% interval " in text
    assert "X.npy" in text
    for sentence in (PROMISE["what"], *PROMISE["assumptions"]):
        assert sentence in flat
    assert "platt" in text
    assert f"{100 * card.measured['share_over_target']:.3g}% of the classes" in text


def test_the_summary_says_which_numbers_hold_for_unit_vectors_only(card):
    lines = {line.split()[0]: line for line in card.summary().split("\n") if "accept when" in line}
    marked = {name for name, line in lines.items() if line.endswith("unit vectors only")}
    # Twice as long a vector: which values of a pair change?
    a, b = np.array([0.6, 0.8]), np.array([1.0, 0.0])
    values = {
        "cosine_similarity": lambda x, y: x @ y / np.linalg.norm(x) / np.linalg.norm(y),
        "cosine_distance": lambda x, y: 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y),
        "l2": lambda x, y: np.linalg.norm(x - y),
        "squared_l2": lambda x, y: np.square(x - y).sum(),
        "inner_product": lambda x, y: x @ y,
    }
    assert lines.keys() == values.keys()
    assert marked == {name for name, value in values.items() if abs(value(a, b) - value(2 * a, b)) > 1e-9}


def test_a_card_of_embeddings_of_other_lengths_says_so(evaluation, card):
    # The fixture's rows are not of length one.
    assert any("do not have length one" in note for note in evaluation.notes)
    assert "do not have length one" in " ".join(card.summary().split())


@pytest.mark.parametrize(
    ("distance", "rate", "units", "event"),
    [
        (1e-3, "far", 6, "no false accept among"),
        (1e-3, "frr", 12, "no accepted pair among"),
        (2.0, "far", 6, "no rejected pair among"),
        (2.0, "frr", 12, "no false reject among"),
    ],
)
def test_the_interval_of_a_rate_without_a_single_event_is_explained(evaluation, distance, rate, units, event):
    card = make_card(choose_threshold(evaluation, distance=distance, draws=100, confidence=0.9), evaluation)
    (note,) = [each for each in card.measured["notes"] if event in each]
    pairs = evaluation.negative_pairs if rate == "far" else evaluation.positive_pairs
    assert f"among {pairs:,} " in note
    assert f"the interval of {rate.upper()} counts" in note
    share = float(note.split("more than ")[1].split("%")[0]) / 100
    # So many independent draws, none of which has an event of this probability: one time in ten.
    assert (1 - share) ** units == pytest.approx(0.1, rel=1e-2)
    found = card.measured[rate]
    assert max(found["high"] - found["value"], found["value"] - found["low"]) == pytest.approx(share, rel=1e-2)
    assert f", {units} " in note
    assert "below 10%" in note
    assert event in card.summary()


def test_the_interval_of_any_other_rate_needs_no_explanation(card):
    assert not any("the interval of" in note for note in card.measured["notes"])


def test_the_summary_says_that_nothing_was_promised(card):
    assert "Nothing is promised" in replace(card, promise=None).summary()
    assert "Nothing is promised" not in card.summary()
