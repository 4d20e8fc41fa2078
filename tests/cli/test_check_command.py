"""`isomargin check` and `isomargin canaries`: exit codes, output, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

OLDER = Path(__file__).parents[1] / "thresholds" / "older_card.json"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The embeddings of a card, and later sets: the same kind, closer together, labelled."""
    folder, generator = tmp_path_factory.mktemp("check"), np.random.default_rng(0)
    labels, centres = np.repeat(np.arange(30), 10), generator.normal(size=(30, 8)) + 0.5

    def items(labels):
        return centres[labels] + 0.5 * generator.normal(size=(len(labels), 8))

    ids = np.array([f"item {i}" for i in range(300)])
    np.savez(folder / "measured.npz", embeddings=items(labels), labels=labels, ids=ids)
    later = generator.integers(0, 30, 400)
    vectors = items(later)
    np.savez(folder / "later.npz", embeddings=vectors)
    np.save(folder / "later.npy", vectors)
    np.save(folder / "short.npy", vectors)
    np.save(folder / "short.labels.npy", later[:3])
    np.savez(folder / "closer.npz", embeddings=vectors + 1.0)
    np.savez(folder / "labelled.npz", embeddings=vectors, labels=later)
    np.savez(folder / "wider.npz", embeddings=np.concatenate([vectors, vectors], axis=1))
    np.savez(folder / "few.npz", embeddings=vectors[:20])
    return folder


@pytest.fixture
def folder(files, tmp_path, run):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    card = ("threshold", tmp_path / "measured.npz", "-o", tmp_path / "card.json", "--model", "m1", "--draws", 100)
    assert run(*card)[0] == 0
    return tmp_path


def test_the_exit_code_says_whether_the_card_holds(folder, run):
    unchanged = "The card holds: nothing has changed that chance does not explain."
    rates_hold = "The card holds: its rates are not significantly worse."
    for name, line in (("later.npz", unchanged), ("later.npy", unchanged), ("labelled.npz", rates_hold)):
        code, out, _ = run("check", folder / "card.json", folder / name, "--model", "m1")
        assert (code, out.splitlines()[0]) == (0, line)
    code, out, _ = run("check", folder / "card.json", folder / "closer.npz")
    assert (code, out.splitlines()[0]) == (1, "The card does not hold: something has changed.")
    code, out, _ = run("check", folder / "card.json", folder / "later.npz", "--model", "m2")
    assert code == 1
    assert "the model is 'm2', that of the card 'm1'" in out


def test_json_has_the_verdict_and_the_numbers(folder, run):
    code, out, _ = run("check", folder / "card.json", folder / "closer.npz", "--json", "--against", "same")
    values = json.loads(out)
    assert (code, values["holds"], values["cause"], values["against"]) == (1, False, "unknown", "same_classes")
    assert values["drift"]["same_classes"]["rejected"] is True
    assert values["drift"]["same_classes"]["tests"][0]["name"] == "accept_rate"
    code, out, _ = run("check", folder / "card.json", folder / "labelled.npz", "--json", "--draws", 100)
    assert json.loads(out)["rates"]["worse"] == []
    code, out, _ = run("check", folder / "card.json", folder / "labelled.npz", "--json", "--unlabelled")
    assert json.loads(out)["rates"] is None


def test_another_dimension_does_not_hold(folder, run):
    code, out, _ = run("check", folder / "card.json", folder / "wider.npz")
    assert code == 1
    assert "the vectors have 16 dimensions, those of the card 8" in out
    assert "the model or its preprocessing has changed" in out


def test_canaries_say_which_of_the_two_has_changed(folder, run):
    code, out, _ = run("canaries", folder / "measured.npz", "--card", folder / "card.json", "--items", 60)
    assert code == 0
    assert out.startswith(f"60 canaries written to {folder / 'card.canaries.npz'}, named by their ids")
    with np.load(folder / "card.canaries.npz") as kept:
        vectors, ids = kept["embeddings"], kept["ids"]
    assert set(ids) <= {f"item {i}" for i in range(300)}
    np.savez(folder / "again.npz", embeddings=vectors[::-1], ids=ids[::-1])
    np.savez(folder / "moved.npz", embeddings=vectors + 1, ids=ids)
    check = ("check", folder / "card.json")
    code, out, _ = run(*check, folder / "closer.npz", "--canaries", folder / "again.npz")
    assert (code, "the data have changed; the model has not" in out) == (1, True)
    code, out, _ = run(*check, folder / "later.npz", "--canaries", folder / "moved.npz")
    assert (code, "the model or its preprocessing has changed" in out) == (1, True)
    code, out, _ = run(*check, folder / "later.npz", "--canaries", folder / "again.npz")
    assert (code, "canaries have not changed" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("check older.json later.npz", "make a new one with `isomargin threshold FILE --output card.json`"),
        ("check measured.npz later.npz", "measured.npz is not a threshold card"),
        ("check card.json card.json", "card.json contains no embeddings"),
        ("check card.json few.npz", "embeddings has 20 rows: at least 50 are needed"),
        ("check card.json later.npz --against others", "--against is 'others': one of either, same, new is needed"),
        ("check card.json later.npz --level 2", "level is 2.0: a number above 0 and below 1 is needed"),
        ("check card.json later.npz --classes 1", "classes is 1: a whole number of at least 2 is needed"),
        ("check card.json later.npz --labels-key names", "has no 'names'"),
        ("check card.json later.npz --canaries later.npz", "card.canaries.npz does not exist"),
        ("check card.json later.npz --tolerance 0.1", "belong to --canaries"),
        ("check card.json short.npy", "labels has 3 entries, embeddings has 400 rows"),
        ("canaries measured.npz --card card.json -o measured.npz", "is what the canaries are drawn from"),
        ("canaries wider.npz --card card.json", "has 16 dimensions, but the card was measured on 8"),
        ("canaries measured.npz --card card.json --items 5", "number is 5: a whole number of at least 20 is needed"),
        ("threshold measured.npz --model  -o new.json", "model is '': a name of the model is needed"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(folder, run, monkeypatch, arguments, sentence):
    shutil.copy(OLDER, folder / "older.json")
    monkeypatch.chdir(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = run(*arguments.split(" "))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len([line for line in err.splitlines() if not line.startswith("note:")]) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
