"""`isomargin class-thresholds`, and `isomargin evaluate --class-thresholds`."""

from __future__ import annotations

import json

import numpy as np
import pytest

import isomargin as im


@pytest.fixture
def files(tmp_path):
    """Ten items of each of 60 classes, of which some lie close together, and probes of 80."""
    generator = np.random.default_rng(0)
    regions = np.eye(12)[:4] * np.linspace(0, 8, 4)[:, None]
    centres = (regions + generator.normal(size=(20, 4, 12))).reshape(80, 12)
    names = np.array([f"intent {i:02}" for i in range(80)])
    for name, of in (("gallery", np.arange(600) % 60), ("probes", np.arange(800) % 80)):
        vectors = centres[of] + 0.4 * generator.normal(size=(len(of), 12))
        np.savez(tmp_path / f"{name}.npz", embeddings=vectors.astype(np.float32), labels=names[of])
    return tmp_path


def load(path):
    stored = np.load(path)
    return stored["embeddings"], stored["labels"]


def test_class_thresholds_are_fitted_written_and_measured(run, files):
    gallery, probes, output = files / "gallery.npz", files / "probes.npz", files / "thresholds.json"
    code, out, err = run("class-thresholds", gallery, "-o", output, "--unknowns", "random")
    assert code == 0
    fitted = im.ClassThresholds(unknowns="random").fit(*load(gallery))
    assert fitted.verdict_.sentence in out
    assert f"--gallery {gallery} --class-thresholds {output}" in out
    assert "the common threshold is" in out
    assert "thresholds.safetensors" in err
    assert im.ClassThresholds.load(output).record() == fitted.record()
    command = ("evaluate", probes, "--gallery", gallery, "--class-thresholds", output)
    code, out, _ = run(*command, "--json")
    assert code == 0
    measured = json.loads(out)
    expected = im.evaluate_gallery(*load(gallery), *load(probes), class_thresholds=fitted, progress=None)
    assert measured["scores"]["fnir"] == pytest.approx(expected.at_fpir(0.05).fnir)
    assert measured["equalizer"]["class_thresholds"] == fitted.record()
    code, out, _ = run(*command)
    assert "shifted by class thresholds" in out


def test_a_refusal_is_printed_with_its_numbers(run, tmp_path):
    labels = np.arange(120) % 40  # classes that differ by chance alone
    vectors = np.eye(40)[labels] + 0.2 * np.random.default_rng(0).normal(size=(120, 40))
    np.savez(tmp_path / "gallery.npz", embeddings=vectors, labels=labels)
    output = tmp_path / "thresholds.json"
    code, out, _ = run("class-thresholds", tmp_path / "gallery.npz", "-o", output, "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["verdict"]["worth_it"] is False
    assert "Keep one threshold" in printed["verdict"]["sentence"]
    assert len(set(printed["thresholds"].values())) == 1
    code, out, _ = run("class-thresholds", tmp_path / "gallery.npz", "-o", output)
    assert "Every class keeps the common threshold" in out
    assert "--class-thresholds" not in out


def test_bad_input_is_one_sentence(run, files):
    gallery, probes, output = files / "gallery.npz", files / "probes.npz", files / "thresholds.json"
    (files / "gallery.safetensors").write_text("")
    for words, sentence in (
        (("class-thresholds", files / "missing.npz"), "missing.npz"),
        (("class-thresholds", gallery, "-o", files / "thresholds.txt"), "should end in .json"),
        (("class-thresholds", gallery, "-o", files / "gallery.json"), "choose another name"),
        (("class-thresholds", gallery, "-o", output, "--unknowns", "few"), "unknowns is 'few'"),
        (("evaluate", probes, "--class-thresholds", output), "--class-thresholds concerns a gallery"),
        (("evaluate", probes, "--gallery", gallery, "--class-thresholds", gallery), "not a file of class thresholds"),
    ):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert sentence in err
        assert not output.exists()
    assert run("class-thresholds", gallery, "-o", output)[0] == 0
    code, _, err = run("threshold", output, "--far", 0.01)
    assert code == 2
    assert "has class thresholds" in err
    code, _, err = run("evaluate", gallery, "--gallery", probes, "--class-thresholds", output)
    assert code == 2
    assert "is not an enrolled class" in err
