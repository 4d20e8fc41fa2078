"""The commands threshold, transfer and compare, and intervals: what they print, write and refuse."""

import json
import os

import numpy as np
import pandas
import pytest

import isomargin as im

CLASSES, IMAGES, WIDTH = 40, 8, 16


def drawn(seed=0, spread=1.0, classes=CLASSES):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), IMAGES)
    widths = np.linspace(0.3, 1.2, classes)[labels, None]
    vectors = generator.normal(size=(classes, WIDTH))[labels] + spread * widths * generator.normal(
        size=(len(labels), WIDTH)
    )
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.fixture
def embeddings(tmp_path):
    """Write embeddings under a name, and give the path."""

    def write(name, **options):
        vectors, labels = drawn(**options)
        np.savez(tmp_path / name, embeddings=vectors, labels=labels)
        return tmp_path / name

    return write


# ----- threshold


def test_threshold_prints_what_it_writes(run, embeddings, tmp_path):
    code, out, _ = run("threshold", embeddings("a.npz"), "--far", "0.02", "--output", tmp_path / "card.json")
    card = im.ThresholdCard.load(tmp_path / "card.json")
    assert code == 0
    assert out.strip() == card.summary() == (tmp_path / "card.txt").read_text().strip()
    assert card.distance == im.choose_threshold(im.evaluate(*drawn()), far=0.02).distance
    assert card.source[0]["file"] == "a.npz"


def test_without_a_target_the_threshold_is_that_of_one_false_accept_in_a_hundred(run, embeddings):
    file = embeddings("a.npz")
    _, plain, _ = run("threshold", file, "--json")
    _, asked, _ = run("threshold", file, "--far", "0.01", "--json")
    assert json.loads(plain)["threshold"] == json.loads(asked)["threshold"]


@pytest.mark.parametrize(
    ("options", "choose"),
    [
        (["--frr", "0.1"], {"frr": 0.1}),
        (["--best-utility"], {"utility": "best"}),
        (["--cost", "10", "1", "0.2"], {"cost": (10.0, 1.0, 0.2)}),
        (["--distance", "0.9"], {"distance": 0.9}),
        (["--cosine", "0.595"], {"distance": 0.9}),
    ],
    ids=str,
)
def test_every_target_has_its_option(run, embeddings, options, choose):
    _, out, _ = run("threshold", embeddings("a.npz"), *options, "--json")
    expected = im.choose_threshold(im.evaluate(*drawn()), **choose)
    assert json.loads(out)["threshold"]["l2"] == pytest.approx(expected.distance, abs=1e-12)
    assert json.loads(out)["measured"]["far"]["value"] == pytest.approx(expected.far)


@pytest.mark.parametrize(("options", "delta"), [(["--unseen"], None), (["--delta", "0.1"], 0.1)], ids=str)
def test_a_promise_brings_its_own_threshold_and_stands_on_the_card(run, embeddings, options, delta):
    _, out, _ = run("threshold", embeddings("a.npz"), "--far", "0.1", *options, "--json")
    promise = im.promise_threshold(im.evaluate(*drawn()), far=0.1, delta=delta).promise
    card = json.loads(out)
    assert card["threshold"]["l2"] == pytest.approx(promise.distance)
    assert card["promise"]["what"] == promise.what
    assert card["target"] == promise.short


def test_a_calibration_is_saved_with_the_card(run, embeddings, tmp_path):
    from isomargin.thresholds.calibrate import Calibration

    run("threshold", embeddings("a.npz"), "--calibrate", "platt", "--prior", "0.2", "--output", tmp_path / "card.json")
    loaded = Calibration.from_values(im.ThresholdCard.load(tmp_path / "card.json").calibration)
    similarities = np.linspace(-1, 1, 9)
    expected = im.calibrate(im.evaluate(*drawn()), "platt", prior=0.2)
    np.testing.assert_allclose(loaded(similarities), expected(similarities), atol=1e-9)


def test_a_saved_evaluation_gives_the_same_card_as_the_embeddings(run, embeddings, tmp_path):
    file = embeddings("a.npz")
    im.evaluate(*drawn()).save(tmp_path / "evaluation.json")
    _, one, _ = run("threshold", file, "--json")
    _, other, _ = run("threshold", tmp_path / "evaluation.json", "--json")
    _, folder, _ = run("threshold", tmp_path, "--json")  # as a run's folder has it
    assert json.loads(one)["measured"] == json.loads(other)["measured"] == json.loads(folder)["measured"]


def test_labels_in_a_file_of_their_own_are_hashed_too(run, tmp_path):
    vectors, labels = drawn()
    np.save(tmp_path / "x.npy", vectors)
    np.save(tmp_path / "x.labels.npy", labels)
    _, out, _ = run("threshold", tmp_path / "x.npy", "--json")
    assert [each["file"] for each in json.loads(out)["source"]] == ["x.npy", "x.labels.npy"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--far", "1.5"], "above 0 and below 1"),
        (["--far", "0"], "above 0 and below 1"),
        (["--frr", "-0.1"], "above 0 and below 1"),
        (["--far", "1e-9"], "the smallest"),
        (["--far", "0.1", "--frr", "0.1"], "--far and --frr were given"),
        (["--best-utility", "--cosine", "0.5"], "--best-utility and --cosine"),
        (["--cosine", "2"], "cosine similarity from -1 to 1"),
        (["--distance", "3"], "from 0 to 2"),
        (["--best-utility", "--unseen"], "give --far or --frr"),
        (["--far", "0.001", "--unseen"], "classes"),
        (["--far", "0.1", "--delta", "0.001"], "classes"),
        (["--far", "0.1", "--delta", "2"], "delta is 2"),
        (["--far", "0.1", "--unseen", "--delta", "0.1"], "--unseen promises the mean"),
        (["--calibrate", "magic"], "'platt'"),
        (["--prior", "0.5"], "--prior belongs to --calibrate"),
        (["--draws", "3"], "draws is 3"),
        (["--confidence", "1"], "confidence is 1"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_written(run, embeddings, tmp_path, options, sentence):
    code, out, err = run("threshold", embeddings("a.npz"), *options, "--output", tmp_path / "card.json")
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz"]


# ----- transfer


def test_transfer_holds_other_sets_against_the_calibration_set(run, embeddings, tmp_path):
    one, other = embeddings("one.npz"), embeddings("other.npz", seed=1, spread=1.5)
    _, out, _ = run("transfer", one, other, "--far", "0.02", "--json", "--output", tmp_path / "sets.csv")
    sets = {row["name"]: row for row in json.loads(out)["sets"]}
    calibration = im.evaluate(*drawn())
    expected = im.evaluate(*drawn(seed=1, spread=1.5)).at(im.choose_threshold(calibration, far=0.02).distance)
    assert list(sets) == ["calibration", "other"]
    assert (sets["other"]["far"], sets["other"]["frr"]) == (expected.far, expected.frr)
    assert pandas.read_csv(tmp_path / "sets.csv").columns[0] == "name"
    _, text, _ = run("transfer", one, other, "--far", "0.02")
    assert "other" in text
    assert f"{expected.frr:.2%}" in text


def test_nothing_of_transfer_and_compare_is_cut_when_piped(run, embeddings):
    names = ["one" + "文" * 30, "other" + "x" * 90, "third"]
    files = [embeddings(f"{name}.npz", seed=seed, spread=seed + 1.0) for seed, name in enumerate(names)]
    _, rows, _ = run("transfer", *files, "--far", "0.02", "--json")
    _, out, _ = run("transfer", *files, "--far", "0.02")
    assert "…" not in out
    for row, line in zip(json.loads(rows)["sets"], out.splitlines()[2:], strict=False):
        assert line.startswith(f"{row['name']} ")
        assert line.split()[-1] == f"{row['own_distance']:.4f}"
        assert f"{row['frr']:.2%}" in line
    _, out, _ = run("compare", *files)
    assert "…" not in out
    assert all(name in out for name in names)


def test_a_card_is_applied_as_it_was_measured(run, embeddings, tmp_path):
    one, other = embeddings("one.npz"), embeddings("other.npz", seed=1, spread=1.5)
    run("threshold", one, "--far", "0.02", "--output", tmp_path / "card.json")
    _, by_card, _ = run("transfer", tmp_path / "card.json", other, "--json")
    _, by_set, _ = run("transfer", one, other, "--far", "0.02", "--json")
    for here, there in zip(json.loads(by_card)["sets"], json.loads(by_set)["sets"], strict=True):
        for name in ("classes", "items", "far", "frr", "accuracy", "far_difference", "frr_difference"):
            assert here[name] == pytest.approx(there[name], abs=1e-12), name


def test_a_card_that_was_edited_is_refused(run, embeddings, tmp_path):
    file = embeddings("one.npz")
    run("threshold", file, "--output", tmp_path / "card.json")
    card = tmp_path / "card.json"
    card.write_text(card.read_text().replace('"classes": 40', '"classes": 41'))
    code, _, err = run("transfer", card, file)
    assert code == 2
    assert "changed" in err
    card.write_text(card.read_text().replace('"version": 2', '"version": 7'))
    code, _, err = run("transfer", card, file)
    assert code == 2
    assert "version" in err


def test_a_card_takes_no_other_target(run, embeddings, tmp_path):
    file = embeddings("one.npz")
    run("threshold", file, "--output", tmp_path / "card.json")
    code, _, err = run("transfer", tmp_path / "card.json", file, "--far", "0.1")
    assert code == 2
    assert "its own threshold" in err


# ----- compare


def test_compare_says_which_scores_differ(run, embeddings, tmp_path):
    rough, fine = embeddings("rough.npz", spread=1.4), embeddings("fine.npz", spread=0.7)
    code, out, err = run("compare", rough, fine, "--output", tmp_path / "table.csv")
    assert (code, err) == (0, "")
    comparison = im.compare({"rough": im.evaluate(*drawn(spread=1.4)), "fine": im.evaluate(*drawn(spread=0.7))})
    assert out.rstrip().endswith(comparison.sentence("fine"))
    assert "lower" in comparison.sentence("fine")
    assert list(pandas.read_csv(tmp_path / "table.csv"))[:3] == ["model", "score", "rough"]
    _, text, _ = run("compare", rough, fine, "--json")
    assert json.loads(text)["models"]["fine"]["sentence"] == comparison.sentence("fine")


def test_files_of_the_same_name_are_told_apart_by_their_folders(run, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        vectors, labels = drawn(seed=ord(folder))
        np.savez(tmp_path / folder / "embeddings.npz", embeddings=vectors, labels=labels)
    _, out, _ = run("compare", tmp_path / "a" / "embeddings.npz", tmp_path / "b" / "embeddings.npz", "--json")
    assert json.loads(out)["first"] == "a/embeddings"
    assert list(json.loads(out)["models"]) == ["b/embeddings"]


def test_models_of_other_classes_are_not_compared(run, embeddings):
    code, out, err = run("compare", embeddings("a.npz"), embeddings("b.npz", classes=CLASSES + 2))
    assert (code, out) == (2, "")
    assert "same classes" in err
    assert "a lacks 40, 41" in err


def test_one_model_is_not_compared(run, embeddings):
    file = embeddings("a.npz")
    assert "at least two" in run("compare", file)[2]
    code, _, err = run("compare", file, file)
    assert code == 2
    assert "twice" in err


# ----- intervals


@pytest.mark.parametrize("resample", ["classes", "items"])
def test_evaluate_shows_intervals(run, embeddings, resample):
    file = embeddings("a.npz")
    options = ("--intervals", "--resample", resample, "--draws", "200")
    _, out, _ = run("evaluate", file, *options, "--json")
    found = json.loads(out)
    for name in ("opis", "debiased_opis", "epsilon_opis", "mean_utility", "recall@1", "far", "frr"):
        bounds = found["intervals"][name]
        assert bounds["low"] <= bounds["value"] <= bounds["high"], name
    assert found["intervals"]["opis"]["value"] == found["scores"]["opis"]
    _, text, _ = run("evaluate", file, *options)
    bounds = found["intervals"]["opis"]
    assert f"({bounds['low']:.4g} to {bounds['high']:.4g})" in text
    assert f"other {resample}" in text


def test_intervals_of_nothing_known_are_refused(run, embeddings):
    code, _, err = run("evaluate", embeddings("a.npz"), "--intervals", "--resample", "pairs")
    assert code == 2
    assert "'classes', 'items'" in err


# ----- what must not be lost, or half done


def test_a_card_never_takes_the_place_of_what_it_was_measured_on(run, tmp_path):
    vectors, labels = drawn()
    evaluation = tmp_path / "x.json"
    im.evaluate(vectors, labels).save(evaluation)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "lab.txt").write_text("\n".join(map(str, labels)) + "\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (
        [evaluation, "--output", evaluation],
        [tmp_path / "v.npy", "--labels", tmp_path / "lab.txt", "--output", tmp_path / "lab.json"],
    ):
        code, _, err = run("threshold", *arguments)
        assert code == 2
        assert "choose another name" in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_is_written_where_the_summary_cannot_be(run, embeddings, tmp_path):
    (tmp_path / "card.txt").mkdir()
    code, _, _ = run("threshold", embeddings("a.npz"), "--output", tmp_path / "card.json")
    assert code == 2
    assert not (tmp_path / "card.json").exists()


def test_no_card_is_written_where_its_summary_leads_nowhere(run, embeddings, tmp_path):
    (tmp_path / "card.txt").symlink_to(tmp_path / "missing" / "card.txt")
    code, _, err = run("threshold", embeddings("a.npz"), "--output", tmp_path / "card.json")
    assert code == 2
    assert "does not exist" in err
    assert not (tmp_path / "card.json").exists()


@pytest.mark.parametrize("refused", ["card.json", "card.txt"])
@pytest.mark.parametrize("older", [False, True])
def test_a_card_and_its_summary_are_replaced_together_or_not_at_all(
    run, embeddings, tmp_path, monkeypatch, refused, older
):
    file = embeddings("a.npz")
    if older:
        run("threshold", file, "--far", "0.1", "--output", tmp_path / "card.json")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    move = os.replace

    def refuse(source, target):
        if target == tmp_path / refused:
            raise PermissionError(1, "Operation not permitted")
        move(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    code, _, err = run("threshold", file, "--output", tmp_path / "card.json")
    assert code == 2
    assert "Operation not permitted" in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("options", [["--draws", "5"], ["--confidence", "2"]], ids=str)
def test_evaluate_writes_nothing_where_intervals_are_refused(run, embeddings, tmp_path, options):
    code, _, _ = run("evaluate", embeddings("a.npz"), "--intervals", *options, "--output", tmp_path / "e.json")
    assert code == 2
    assert not (tmp_path / "e.json").exists()


def test_resampling_without_intervals_is_refused(run, embeddings):
    assert "--intervals" in run("evaluate", embeddings("a.npz"), "--resample", "items")[2]


def test_a_card_in_place_of_pairs_is_told_so(run, embeddings, tmp_path):
    run("threshold", embeddings("a.npz"), "--output", tmp_path / "card.json")
    code, _, err = run("threshold", tmp_path / "card.json")
    assert code == 2
    assert "is a threshold card" in err


def test_a_set_named_calibration_can_be_applied_to(run, embeddings):
    code, out, _ = run("transfer", embeddings("a.npz"), embeddings("calibration.npz", seed=1), "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)["sets"]] == ["calibration", "calibration (applied)"]


def test_labels_as_numbers_and_as_text_are_told_apart(run, embeddings, tmp_path):
    vectors, labels = drawn()
    np.savez(tmp_path / "text.npz", embeddings=vectors, labels=labels.astype(str))
    code, _, err = run("compare", embeddings("numbers.npz"), tmp_path / "text.npz")
    assert code == 2
    assert "numbers" in err
    assert "text" in err


def test_the_folder_one_is_in_is_a_run_too(run, tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        im.evaluate(*drawn(seed=len(name))).save(tmp_path / name / "evaluation.json")
    monkeypatch.chdir(tmp_path / "one")
    code, out, _ = run("compare", ".", "../other", "--json")
    assert code == 0
    assert json.loads(out)["first"] == "one"


def test_few_pairs_are_enough_for_a_threshold_that_they_resolve(run, tmp_path):
    vectors, labels = drawn(classes=3)
    np.savez(tmp_path / "few.npz", embeddings=vectors[::4], labels=labels[::4])  # twelve negative pairs
    code, out, _ = run("threshold", tmp_path / "few.npz", "--far", "0.1", "--json")
    assert code == 0
    assert json.loads(out)["measured"]["far"]["value"] <= 0.1
    assert any("too narrow" in note for note in json.loads(out)["measured"]["notes"])


def test_a_hostile_file_name_cannot_write_to_the_terminal(run, embeddings):
    _, out, _ = run("compare", embeddings("a.npz"), embeddings("b\x1b[31m.npz", seed=1))
    assert "\x1b" not in out
