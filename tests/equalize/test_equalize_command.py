"""The command ``equalize``, and ``--equalizer`` of other commands: what they do and refuse."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest

import isomargin as im

QUICK = ("--neighbours", 12, "--skip", 4, "--weight", 0.5)


def drawn(draw=0, dimensions=12):
    """12 classes of 20 rows; draws differ in the rows."""
    generator = np.random.default_rng(7)
    labels = np.arange(240) % 12
    centres = generator.normal(size=(12, dimensions)) + 2 * generator.normal(size=(3, dimensions))[np.arange(12) % 3]
    return centres[labels] + np.random.default_rng(draw).normal(size=(240, dimensions)), labels


def quiet(function, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*arguments, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two draws with labels, one without, one of other dimensions, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, draw, dimensions in (("a", 0, 12), ("b", 1, 12), ("narrow", 0, 5)):
        rows, labels = drawn(draw, dimensions)
        np.savez(f"{name}.npz", embeddings=rows, labels=labels)
    np.save("bare.npy", drawn()[0])
    np.save("cohort.npy", drawn(2)[0])
    return tmp_path


@pytest.fixture
def equalizer(folder):
    """An equalizer of the first draw, beside it."""
    fitted = im.Equalizer(12, 4).fit(drawn()[0])
    fitted.save("equalizer.json")
    return fitted


def refused(found):
    """The one sentence of a command that was refused."""
    code, out, err = found
    assert (code, out) == (2, "")
    *notes, sentence = err.splitlines()
    assert all(note.startswith("note: ") for note in notes), err
    assert sentence.startswith("isomargin: "), err
    return sentence


# ----- equalize


def test_settings_are_chosen_and_the_verdict_is_told(folder, run):
    chosen = ("--skip", 10, "--weight", 0.5, "--recall-loss", 100, "--objective", "opis")
    code, out, err = run("equalize", "a.npz", "--output", "e.json", *chosen)
    assert code == 0, err
    assert err == "written to e.json and e.safetensors\n"
    search = im.EqualizerCV("opis", skip=(10,), weight=(0.5,), recall_loss=100).fit(*drawn())
    assert search.verdict_.worth_it
    assert im.Equalizer.load("e.json").record() == search.equalizer_.record()
    told = " ".join(out.split())
    assert search.verdict_.sentence in told
    assert f"Chosen: neighbours {search.skip_ + 1} to {search.skip_ + search.neighbours_}, weight 0.5." in told
    assert search.new_class_rates_.sentence in told
    assert "isomargin evaluate a.npz --equalizer e.json" in told
    assert "recall@1" in told


def test_the_next_step_can_be_copied_and_follows_the_verdict(folder, run):
    rows, labels = drawn()
    np.save("bare.npy", rows)
    (folder / "my labels.txt").write_text("\n".join(f"class {label}" for label in labels))
    given = ("equalize", "bare.npy", "--labels", "my labels.txt", "--output", "my eq.json", "--skip", 10)
    _, out, _ = run(*given, "--objective", "opis", "--recall-loss", 100, "--target-far", 0.02)
    assert "isomargin evaluate bare.npy --labels 'my labels.txt' --equalizer 'my eq.json'\n" in out
    assert "--equalizer 'my eq.json' --far 0.02 --output card.json\n" in out
    _, out, _ = run(*given, "--recall-loss", 0)
    assert "Keep the raw similarities" in out
    assert "\n  isomargin threshold bare.npy --labels 'my labels.txt' --far 0.01 --output card.json\n" in out


def test_json_has_the_verdict_the_differences_and_all_candidates(folder, run):
    options = ("--objective", "opis", "--no-new-classes", "--seed", 3, "--recall-loss", 5)
    _, out, _ = run("equalize", "a.npz", "--neighbours", 12, "--skip", 4, *options, "--json")
    values = json.loads(out)
    search = im.EqualizerCV("opis", False, 5, neighbours=(12,), skip=(4,), seed=3).fit(*drawn())
    assert values["equalizer"] == search.equalizer_.record() == im.Equalizer.load("equalizer.json").record()
    assert values["verdict"]["sentence"] == search.verdict_.sentence
    assert values["verdict"]["worth_it"] == search.verdict_.worth_it
    assert values["verdict"]["gain"]["low"] == search.verdict_.gain.low
    assert values["candidates"] == search.scores_.to_dict("records")
    assert len(values["candidates"]) == 4  # raw, and three weights
    opis = next(row for row in values["differences"] if row["score"] == "opis")
    assert opis["first"] == pytest.approx(np.mean([evaluation.opis for evaluation in search.raw_]))


def test_a_file_without_labels_gets_the_default_settings(folder, run):
    code, out, err = run("equalize", "bare.npy", "--unlabelled")
    assert code == 0, err
    assert im.Equalizer.load("equalizer.json").record() == im.Equalizer().fit(drawn()[0]).record()
    assert "Equalized by neighbours 31 to 130, weight 0.5." in out
    assert "nothing was judged" in out
    code, out, _ = run("equalize", "bare.npy", "--unlabelled", *QUICK, "--json", "--output", "e.json")
    assert code == 0
    assert json.loads(out) == {"equalizer": im.Equalizer(12, 4).fit(drawn()[0]).record(), "verdict": None}


def test_a_small_reference_is_noted(folder, run):
    np.save("small.npy", drawn()[0][:50])
    code, out, err = run("equalize", "small.npy", "--unlabelled")
    assert code == 0
    assert err.startswith("note: the reference has 50 rows, too few to skip 30 neighbours and average 100")
    assert "neighbours 31 to 49" in out


def test_a_reference_is_a_cohort(folder, run):
    cohort = drawn(2)[0]
    code, out, err = run("equalize", "a.npz", "--reference", "cohort.npy", *QUICK, "--json")
    assert code == 0, err
    expected = im.Equalizer(12, 4, 0.5, "cohort").fit(cohort).record()
    assert json.loads(out)["equalizer"] == im.Equalizer.load("equalizer.json").record() == expected
    code, out, err = run("equalize", "bare.npy", "--unlabelled", "--reference", "cohort.npy", "--json")
    assert code == 0, err
    assert json.loads(out)["equalizer"] == im.Equalizer(100, 0, 0.5, "cohort").fit(cohort).record()


def test_ids_of_rows_are_kept_and_others_left_out(folder, run):
    rows, labels = drawn()
    np.savez("named.npz", embeddings=rows, labels=labels, ids=np.arange(240) + 5)
    for unlabelled in ((), ("--unlabelled",)):
        assert run("equalize", "named.npz", *QUICK, *unlabelled)[0] == 0
        assert im.Equalizer.load("equalizer.json").ids_.tolist() == list(range(5, 245))
    people, no_names = labels, np.linspace(0, 1, 240)
    for ids, unlabelled in ((people, ()), (people, ("--unlabelled",)), (no_names, ("--unlabelled",))):
        np.savez("named.npz", embeddings=rows, labels=labels, ids=ids)
        assert run("equalize", "named.npz", *QUICK, *unlabelled)[0] == 0
        assert im.Equalizer.load("equalizer.json").ids_ is None


# ----- the commands that use it


def test_evaluate_measures_equalized_similarities(equalizer, run):
    for extra, new_classes in (((), False), (("--new-classes",), True)):
        code, out, err = run("evaluate", "a.npz", "--equalizer", "equalizer.json", *extra, "--json")
        assert code == 0, err
        expected = quiet(im.evaluate, *drawn(), equalizer=equalizer, new_classes=new_classes)
        values = json.loads(out)
        assert values["scores"]["opis"] == expected.opis
        assert values["equalizer"] == equalizer.record(new_classes)
    shown = run("evaluate", "a.npz", "--equalizer", "equalizer.json", "--new-classes")[1]
    assert "equalized by neighbours 5 to 16, classes as new" in shown
    assert "(equalized similarity " in shown


def test_an_evaluation_written_with_an_equalizer_needs_it_no_more(equalizer, run):
    code, _, err = run("evaluate", "a.npz", "--equalizer", "equalizer.json", "--output", "a.json")
    assert code == 0, err
    _, out, _ = run("threshold", "a.json", "--far", 0.05, "--json")
    expected = im.choose_threshold(quiet(im.evaluate, *drawn(), equalizer=equalizer), far=0.05)
    assert json.loads(out)["threshold"]["equalized_distance"] == expected.distance


@pytest.mark.parametrize("resample", ["classes", "items"])
def test_intervals_are_of_equalized_similarities(equalizer, run, resample):
    options = ("--intervals", "--resample", resample, "--draws", 100, "--json")
    _, out, _ = run("evaluate", "a.npz", "--equalizer", "equalizer.json", *options)
    rows, labels = drawn()
    evaluation = quiet(im.evaluate, rows, labels, equalizer=equalizer)
    items = {"items": (rows, labels), "shifts": equalizer.shifts(rows)} if resample == "items" else {}
    expected = evaluation.intervals(100, **items)["opis"]
    assert json.loads(out)["intervals"]["opis"]["low"] == expected.low


def test_a_threshold_is_chosen_and_transferred(equalizer, run):
    code, out, err = run("threshold", "a.npz", "--equalizer", "equalizer.json", "--far", 0.05, "--output", "card.json")
    assert code == 0, err
    card = im.ThresholdCard.load("card.json")
    evaluation = quiet(im.evaluate, *drawn(), equalizer=equalizer)
    assert card.distance == im.choose_threshold(evaluation, far=0.05).distance
    assert card.equalizer == equalizer.record()
    assert "equalized_similarity" in out
    other = quiet(im.evaluate, *drawn(1), equalizer=equalizer)
    for first in (("card.json",), ("a.npz", "--far", 0.05)):
        code, out, err = run("transfer", first[0], "b.npz", *first[1:], "--equalizer", "equalizer.json", "--json")
        assert code == 0, err
        assert json.loads(out)["sets"][1]["far"] == other.at(card.distance).far
    assert "(equalized similarity " in run("transfer", "card.json", "b.npz", "--equalizer", "equalizer.json")[1]


def test_a_promise_says_what_it_assumes_of_new_classes(equalizer, run):
    options = ("--equalizer", "equalizer.json", "--far", 0.2, "--unseen", "--json")
    for extra, assumed in (((), "have joined the reference"), (("--new-classes",), "are not in the reference")):
        _, out, _ = run("threshold", "a.npz", *options, *extra)
        assert assumed in " ".join(json.loads(out)["promise"]["assumptions"])


def test_rows_are_recognised_by_their_ids(folder, run):
    rows, labels = drawn()
    order = np.random.default_rng(0).permutation(240)
    np.savez("named.npz", embeddings=rows, labels=labels, ids=np.arange(240))
    np.savez("shuffled.npz", embeddings=rows[order], labels=labels[order], ids=order)
    run("equalize", "named.npz", "--unlabelled", *QUICK)
    for extra in ((), ("--new-classes",)):
        one, other = (
            run("evaluate", name, "--equalizer", "equalizer.json", *extra, "--json")
            for name in ("named.npz", "shuffled.npz")
        )
        assert other[0] == 0, other[2]
        found = [json.loads(out)["scores"]["opis"] for _, out, _ in (one, other)]
        assert found[0] == pytest.approx(found[1], rel=1e-4)
    np.savez("text.npz", embeddings=rows[order], labels=labels[order], ids=order.astype(str))
    assert "exact copy in the reference" in run("evaluate", "text.npz", "--equalizer", "equalizer.json")[2]


def test_rows_that_are_their_own_neighbours_are_noted_once(equalizer, run):
    rows, labels = drawn()
    np.savez("shuffled.npz", embeddings=rows[::-1], labels=labels[::-1])
    commands = (
        ("evaluate", "shuffled.npz", "--intervals", "--draws", 100, "--report", "page.html"),
        ("threshold", "shuffled.npz"),
        ("report", "shuffled.npz", "-o", "page.html", "--no-intervals"),
    )
    for command in commands:
        code, out, err = run(*command, "--equalizer", "equalizer.json")
        assert code == 0, err
        (note,) = [
            note for note in " ".join((err + out).split()).split("note: ") if "exact copy in the reference" in note
        ]
        assert "240 of 240 rows" in note
        assert "UserWarning" not in err


def test_a_run_is_equalized_by_its_embeddings(equalizer, folder, run):
    (folder / "run").mkdir()
    rows, labels = drawn()
    (folder / "run" / "recipe.yaml").write_text("name: run\n")
    im.EmbeddingSet(rows, labels).save("run/embeddings.npz")
    quiet(im.evaluate, rows, labels).save("run/evaluation.json")
    expected = quiet(im.evaluate, rows, labels, equalizer=equalizer)
    _, out, _ = run("threshold", "run", "--equalizer", "equalizer.json", "--json")
    card = json.loads(out)
    assert card["threshold"]["equalized_distance"] == im.choose_threshold(expected, far=0.01).distance
    assert [source["file"] for source in card["source"]] == ["embeddings.npz"]
    assert run("equalize", "run", "--unlabelled", *QUICK, "--output", "of-run.json")[0] == 0
    assert im.Equalizer.load("of-run.json").digest_ == equalizer.digest_
    code, _, err = run("report", "run", "--equalizer", "equalizer.json", "--no-intervals")
    assert code == 0, err
    page = (folder / "run" / "report.html").read_text(encoding="utf-8")
    contents = json.loads(
        re.search(r'<script type="application/json" id="contents">(.*?)</script>', page, re.DOTALL)[1]
    )
    assert contents["runs"][0]["scores"]["opis"] == expected.opis


# ----- errors


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("equalize a.npz -o e.npz", "e.npz should end in .json"),
        ("equalize a.npz -o nowhere/e.json", "there is no folder nowhere"),
        ("equalize missing.npz", "missing.npz does not exist"),
        ("equalize missing.npz --unlabelled --reference cohort.npy", "missing.npz does not exist"),
        ("equalize bare.npy", "labels"),
        ("equalize a.npz --unlabelled --objective opis --seed 5", "--objective and --seed beside --unlabelled"),
        ("equalize a.npz --labels bare.npy --unlabelled", "--labels beside --unlabelled"),
        ("equalize a.npz --neighbours 0", "--neighbours"),
        ("equalize a.npz --weight 2", "weight is 2.0"),
        ("equalize a.npz --objective eer", "objective is 'eer'"),
        ("equalize a.npz --neighbours 500", "fewer than any setting needs"),
        ("equalize a.npz --reference narrow.npz", "reference has 5 dimensions, embeddings has 12"),
        ("equalize equalizer.json -o e.json", "contains no embeddings"),
        ("equalize equalizer.json --unlabelled -o e.json", "contains no embeddings"),
        ("equalize equalizer.json --unlabelled", "would be replaced by the equalizer"),
        ("evaluate a.npz --equalizer missing.json", "missing.json does not exist"),
        ("evaluate a.npz --equalizer b.npz", "b.npz is not an equalizer that isomargin wrote: give its .json file"),
        ("evaluate a.npz --equalizer a.json", "a.json is not an equalizer"),
        ("evaluate a.npz --new-classes", "--new-classes concerns the reference of an equalizer"),
        ("evaluate b.npz --equalizer equalizer.json --new-classes", "not those of the equalizer's reference"),
        ("evaluate narrow.npz --equalizer equalizer.json", "embeddings has 5 dimensions"),
        ("evaluate equalizer.json", "contains no embeddings"),
        ("evaluate a.npz --equalizer equalizer.json -o equalizer.json", "equalizer.json is the equalizer"),
        ("evaluate a.npz --equalizer equalizer.json --output equalizer.json", "equalizer.json is the equalizer"),
        ("evaluate a.npz --equalizer equalizer.json --distances -9 1", "distances is (-9.0, 1.0)"),
        ("threshold equalizer.json", "equalizer.json is an equalizer: give embeddings, an evaluation or a run"),
        ("threshold a.json --equalizer equalizer.json", "a.json has counts, which cannot be equalized any more"),
        ("threshold a.npz --equalizer equalizer.json --output equalizer.json", "choose another name for --output"),
        ("threshold a.npz --equalizer equalizer.json --cosine 0.5", "--cosine is a plain similarity"),
        ("threshold a.npz --equalizer equalizer.json --distance 9", "an equalized distance from"),
        ("transfer a.npz b.npz --equalizer equalizer.json --cosine 0.5", "--cosine is a plain similarity"),
        ("transfer card.json b.npz", "threshold is for equalized similarities, but those of 'b' are plain"),
        ("transfer a.json b.npz --equalizer equalizer.json", "threshold is for plain similarities, but those of 'b'"),
        ("transfer card.json b.npz --equalizer other.json", "'b' was equalized by"),
        ("report a.json --equalizer equalizer.json -o r.html", "a.json has counts"),
        ("report equalizer.json -o r.html", "equalizer.json is an equalizer"),
        ("compare equalizer.json a.npz", "equalizer.json is an equalizer"),
    ],
)
def test_bad_input_ends_in_one_sentence(equalizer, run, line, told):
    if "a.json" in line:
        quiet(im.evaluate, *drawn()).save("a.json")
    if "other.json" in line:
        im.Equalizer(12, 5).fit(drawn()[0]).save("other.json")
    if "card.json" in line:
        evaluation = quiet(im.evaluate, *drawn(), equalizer=equalizer)
        im.make_card(im.choose_threshold(evaluation, far=0.05, draws=100), evaluation).save("card.json")
    assert told in refused(run(*line.split()))


def test_embeddings_are_not_replaced_by_the_reference_beside_the_output(folder, run):
    rows, labels = drawn()
    im.EmbeddingSet(rows, labels).save("mine.safetensors")
    content = (folder / "mine.safetensors").read_bytes()
    shutil.copy("mine.safetensors", "equalizer.safetensors")
    for line in (
        "equalize mine.safetensors --output mine.json",
        "equalize a.npz --reference mine.safetensors --output mine.json",
        "equalize mine.safetensors --unlabelled --output ./mine.json",
        "equalize equalizer.safetensors --unlabelled",  # the default name
    ):
        assert "would be replaced by the equalizer" in refused(run(*line.split()))
    for line in ("equalize a.npz --output mine.json", "equalize a.npz --unlabelled --output mine.json"):
        assert "mine.safetensors exists, does not belong to an equalizer" in refused(run(*line.split()))
    with pytest.raises(im.InputError, match="would be replaced"):
        im.Equalizer(5, 0).fit(rows).save("mine.json")
    assert (folder / "mine.safetensors").read_bytes() == content
    assert not (folder / "mine.json").exists()
