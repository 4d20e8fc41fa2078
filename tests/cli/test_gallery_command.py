"""`isomargin evaluate --gallery`: tables, JSON, files, and refusals in one sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest

import isomargin as im


@pytest.fixture
def files(tmp_path):
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(40, 16))
    enrolled, labels = np.repeat(np.arange(30), 5), np.repeat(np.arange(40), 12)
    names = np.array([f"person {i}" for i in range(40)])
    for name, of in (("gallery", enrolled), ("probes", labels)):
        vectors = centres[of] + generator.normal(size=(len(of), 16))
        np.savez(tmp_path / f"{name}.npz", embeddings=vectors.astype(np.float32), labels=names[of])
    return tmp_path


def load(path):
    stored = np.load(path)
    return stored["embeddings"], stored["labels"]


def test_the_command_prints_what_the_function_measures(run, files):
    probes, gallery = files / "probes.npz", files / "gallery.npz"
    saved, table = files / "evaluation.json", files / "classes.csv"
    options = ["--json", "--intervals", "--draws", 100, "-o", saved, "--per-class", table]
    code, out, _ = run("evaluate", probes, "--gallery", gallery, *options)
    assert code == 0
    printed = json.loads(out)
    expected = im.evaluate_gallery(*load(gallery), *load(probes), k=(1, 2, 4, 8, 16, 32), progress=None)
    assert printed["scores"]["fnir"] == pytest.approx(expected.at_fpir(0.05).fnir)
    assert printed["scores"]["opis"] == pytest.approx(expected.opis)
    assert printed["intervals"]["fnir"]["low"] < printed["scores"]["fnir"] < printed["intervals"]["fnir"]["high"]
    assert im.Evaluation.load(saved).at_fpir(0.05).fnir == expected.at_fpir(0.05).fnir
    assert '"enrolled","probes"' in table.read_text().splitlines()[0]


def test_the_tables_say_that_scores_are_of_probes_and_templates(run, files):
    code, out, _ = run(
        "evaluate", files / "probes.npz", "--gallery", files / "gallery.npz", "--template", "max", "--worst", 2
    )
    assert code == 0
    for words in (
        "150 items in 30 classes",
        "best of a class's items",
        "360 in 30 classes",
        "120 in 10 classes",
        "FNIR at FPIR 5%",
        "of false positives",
    ):
        assert words in out
    assert "MAP@R" not in out


def test_leaving_one_out_needs_no_probes(run, files):
    _code, out, _ = run("evaluate", files / "gallery.npz", "--leave-one-out", "--json", "--worst", 0)
    expected = im.evaluate_gallery(*load(files / "gallery.npz"), leave_one_out=True, progress=None)
    printed = json.loads(out)
    assert printed["scores"]["frr"] == pytest.approx(expected.target.frr)
    assert printed["scores"]["fnir"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--template", "max"], "--template concerns a gallery"),
        (["--gallery", "gallery.npz", "--leave-one-out"], "--leave-one-out takes the enrolled items as probes"),
        (["--gallery", "gallery.npz", "--device", "cuda"], "--device concerns pairs of items and not a gallery"),
        (["--gallery", "nowhere.npz"], "nowhere.npz"),
        (["--gallery", "gallery.npz", "--target-fpir", "2"], "target_fpir is 2"),
        (["--gallery", "narrow.npz"], "the gallery has 8 dimensions and the probes have 16"),
        (["--gallery", "others.npz"], "no probe has the label of an enrolled class"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(run, files, options, message, monkeypatch):
    monkeypatch.chdir(files)
    vectors, labels = load("gallery.npz")
    np.savez("narrow.npz", embeddings=vectors[:, :8], labels=labels)
    np.savez("others.npz", embeddings=vectors, labels=np.char.add(labels, " of another kind"))
    code, _out, err = run("evaluate", "probes.npz", *options, "-o", "evaluation.json")
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not (files / "evaluation.json").exists()


def test_a_threshold_is_chosen_with_few_probes(run, files):
    vectors, labels = load(files / "probes.npz")
    np.savez(files / "few.npz", embeddings=vectors[::120], labels=labels[::120])  # four probes: 117 negatives
    vectors, labels = load(files / "gallery.npz")
    few = np.isin(labels, ["person 0", "person 10", "person 20"])
    np.savez(files / "small.npz", embeddings=vectors[few], labels=labels[few])
    options = ["--gallery", files / "small.npz", "--fpir", 1 - 1e-9, "--draws", 100, "--json"]
    code, out, err = run("threshold", files / "few.npz", *options)
    assert code == 0, err
    assert json.loads(out)["gallery"]["unknown_probes"] == 1


def test_templates_are_the_unit_means_of_unit_vectors(run, files):
    code, out, _ = run("templates", files / "gallery.npz", "-o", files / "templates.npz")
    assert code == 0
    assert "30 templates of 150 items" in out
    vectors, labels = load(files / "gallery.npz")
    written, names = load(files / "templates.npz")
    for row, name in zip(written, names, strict=True):
        mean = np.mean([vector / np.linalg.norm(vector) for vector in vectors[labels == name].astype(float)], axis=0)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)
    code, _, err = run("templates", files / "gallery.npz", "-o", files / "gallery.npz")
    assert code == 2
    assert "is the gallery" in err
