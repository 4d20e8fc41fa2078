"""`isomargin check --gallery`: exit codes, output, and what is refused."""

import json
import shutil

import numpy as np
import pytest


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A gallery, probes for its card, and later probes: the same kind, labelled, more of them unknown."""
    folder, generator = tmp_path_factory.mktemp("gallery"), np.random.default_rng(0)
    centres = generator.normal(size=(40, 8)) + 0.5

    def save(name, classes, labelled=True):
        vectors = centres[classes] + 0.5 * generator.normal(size=(len(classes), 8))
        np.savez(folder / name, embeddings=vectors, **({"labels": classes} if labelled else {}))

    enrolled, probes = np.repeat(np.arange(25), 6), generator.integers(0, 40, 400)
    save("gallery.npz", enrolled)
    save("other.npz", enrolled)
    save("probes.npz", probes)
    later = generator.integers(0, 40, 400)
    save("later.npz", later, labelled=False)
    save("labelled.npz", later)
    save("unknown.npz", generator.integers(25, 40, 400), labelled=False)
    return folder


@pytest.fixture
def folder(files, tmp_path, run, monkeypatch):
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for words in (
        "probes.npz --gallery gallery.npz --fpir 0.1 -o card.json",
        "probes.npz -o pairs.json",
        "gallery.npz --leave-one-out -o left-out.json",
    ):
        assert run("threshold", *words.split(), "--draws", 100)[0] == 0
    return tmp_path


def test_the_exit_code_says_whether_the_card_of_a_gallery_holds(folder, run):
    unchanged = "The card holds: nothing has changed that chance does not explain."
    rates_hold = "The card holds: its rates are not significantly worse."
    for name, line in (("later.npz", unchanged), ("labelled.npz", rates_hold)):
        code, out, _ = run("check", "card.json", name, "--gallery", "gallery.npz", "--template", "mean")
        assert (code, out.splitlines()[0]) == (0, line)
    assert "FPIR" in out
    code, out, _ = run("check", "card.json", "unknown.npz", "--gallery", "gallery.npz")
    assert (code, out.splitlines()[0]) == (1, "The card does not hold: something has changed.")
    assert "* probes accepted" in out
    code, out, _ = run("check", "card.json", "labelled.npz", "--gallery", "gallery.npz", "--json", "--draws", 100)
    values = json.loads(out)
    assert (code, values["holds"], values["rates"]["decisive"]) == (0, True, ["fpir", "fnir"])
    assert set(values["rates"]) >= {"far", "frr", "fpir", "fnir"}
    assert values["drift"]["new_classes"]["tests"][0]["name"] == "accepted_probes"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("card.json later.npz", "give --gallery GALLERY, or make a new one with `isomargin threshold FILE --output"),
        ("pairs.json later.npz --gallery gallery.npz", "`isomargin threshold PROBES --gallery GALLERY --output"),
        ("left-out.json later.npz --gallery gallery.npz", "its probes were the enrolled items): make one with"),
        ("card.json later.npz --gallery other.npz", "the gallery is not that of the card"),
        ("card.json later.npz --gallery gallery.npz --template max", "--template max --output card.json`"),
        ("card.json later.npz --gallery gallery.npz --margin 0.1", "but the card was measured with 0.0"),
        ("pairs.json later.npz --template mean", "--template concerns a gallery: give --gallery"),
        ("card.json later.npz --gallery later.npz", "labels"),
    ],
)
def test_bad_input_is_one_sentence(folder, run, arguments, sentence):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = run("check", *arguments.split(" "))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len([line for line in err.splitlines() if not line.startswith("note:")]) == 1
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
