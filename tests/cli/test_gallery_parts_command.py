"""Galleries of shards on the command line: in one process, in parts that are merged, and refusals in one sentence."""

from __future__ import annotations

import numpy as np
import pytest

import isomargin as im


@pytest.fixture
def folder(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(40, 16))
    names = np.array([f"person {i}" for i in range(40)])
    for name, of in (("gallery", np.repeat(np.arange(30), 5)), ("probes", np.repeat(np.arange(40), 12))):
        (tmp_path / name).mkdir()
        of = generator.permutation(of)
        for number, part in enumerate(np.array_split(of, 2)):
            vectors = centres[part] + generator.normal(size=(len(part), 16))
            im.EmbeddingSet(vectors.astype(np.float32), names[part]).save(tmp_path / name / f"{number}.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(run, *words):
    code, _, errors = run(*words, "-o", "evaluation.json")
    assert code == 0, errors
    return im.Evaluation.load("evaluation.json").scalars()


def scores(run, *words):
    """What a command measures; other parts have other tiles, which may move a similarity by its last bit."""
    return pytest.approx(measured(run, *words), abs=1e-6, nan_ok=True)


def test_parts_merge_to_what_one_process_measures(folder, run):
    whole = scores(run, "evaluate", "probes", "--gallery", "gallery", "--margin", 0.01)
    for number in (2, 3, 1):
        part = ("--margin", 0.01, "--part", f"{number}/3", "--output", "parts")
        assert run("evaluate", "probes", "--gallery", "gallery", *part)[0] == 0
    assert run("merge", "parts", "-o", "merged.json")[0] == 0
    merged = im.Evaluation.load(folder / "merged.json")
    assert merged.scalars() == whole
    assert (merged.comparison, merged.gallery.margin) == ("gallery", 0.01)
    code, _, errors = run("evaluate", "probes", "--gallery", "gallery", *part)
    assert code == 0
    assert "part-1-of-3.npz is there already and was not counted again" in errors


def test_a_prepared_gallery_needs_no_further_options(folder, run):
    how = ("--template", "max")
    code, out, _ = run("prepare", "probes", "prepared", "--gallery", "gallery", *how)
    assert code == 0
    assert "480 probes of 16 dimensions, 150 enrolled items in 30 classes" in out
    whole = scores(run, "evaluate", "probes", "--gallery", "gallery", *how)
    assert measured(run, "evaluate", "prepared") == whole
    for number in (1, 2):
        assert run("evaluate", "prepared", "--part", f"{number}/2", "--output", "parts")[0] == 0
    assert measured(run, "merge", "parts") == whole
    (folder / "prepared").rename(folder / "moved")
    assert measured(run, "merge", "parts", "--prepared", "moved") == whole


def test_a_gallery_whose_items_are_left_out_is_counted_in_parts(folder, run):
    whole = scores(run, "evaluate", "gallery", "--leave-one-out")
    for number in (1, 2):
        part = ("--part", f"{number}/2", "--output", "parts")
        assert run("evaluate", "gallery", "--leave-one-out", *part)[0] == 0
    assert measured(run, "merge", "parts") == whole


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["empty", "--gallery", "gallery"], "probes: empty has no shards"),
        (["probes", "--gallery", "empty"], "gallery: empty has no shards"),
        (["wide.npy", "--gallery", "gallery"], "the gallery has 16 dimensions and the probes have 9"),
        (["numbers.npy", "--gallery", "gallery"], "labels of the gallery are text and those of the probes numbers"),
        (["others.npy", "--gallery", "gallery"], "no probe has the label of an enrolled class (probes: 'nobody'"),
        (
            ["probes", "--gallery", "gallery", "--equalizer", "e.json"],
            "--equalizer cannot be used with a gallery in pa",
        ),
        (["probes", "--gallery", "gallery", "--class-thresholds", "t.json"], "--class-thresholds cannot be used with"),
        (
            ["probes", "--gallery", "gallery", "--gallery-labels", "l.txt"],
            "--gallery-labels cannot be used with shards",
        ),
        (["probes", "--gallery", "gallery", "--memory", "200MB"], "sorting 480 rows needs at least 0.302 GB"),
        (["probes", "--gallery", "gallery", "--part", "1/999", "--output", "p"], "so use at most as many parts"),
        (["prepared", "--gallery", "gallery"], "prepared is a gallery that was prepared with its probes and templates"),
        (["probes", "--part", "1/2", "--output", "."], "prepared already exists"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_sentence(words, sentence, folder, run):
    generator = np.random.default_rng(0)
    (folder / "empty").mkdir()
    for name, width, labels in (("wide", 9, ["person 1"]), ("numbers", 16, [1]), ("others", 16, ["nobody"])):
        im.EmbeddingSet(generator.normal(size=(4, width)), labels * 4).save(folder / f"{name}.npy")
    im.prepare_gallery("gallery", "probes", "prepared")
    code, _, errors = run("evaluate", *words)
    assert code == 2
    assert sentence in errors
    assert len(errors.splitlines()) == 1


def test_parts_of_a_gallery_and_of_all_pairs_in_one_folder_are_refused_by_name(folder, run):
    for number in (1, 2):
        assert run("evaluate", "probes", "--gallery", "gallery", "--part", f"{number}/2", "--output", "parts")[0] == 0
    assert run("evaluate", "probes", "--part", "1/1", "--output", "pairs")[0] == 0
    (folder / "pairs" / "part-1-of-1.npz").rename(folder / "parts" / "part-1-of-1.npz")
    code, _, errors = run("merge", "parts")
    assert code == 2
    assert "part-1-of-1.npz in parts belong to another plan" in errors
    assert "of a gallery and not of all pairs" in errors


def test_parts_with_another_memory_are_refused_with_this_reason(folder, run):
    generator = np.random.default_rng(0)
    for name in ("gallery", "probes"):  # so many counters that memory decides into how many sections they are cut
        im.EmbeddingSet(generator.normal(size=(4000, 4)), np.arange(4000)).save(folder / f"{name}.npy")
    sets = ("probes.npy", "--gallery", "gallery.npy", "--output", "parts")
    assert run("evaluate", *sets, "--part", "1/6", "--memory", "2GB")[0] == 0
    code, _, errors = run("evaluate", *sets, "--part", "1/6", "--memory", "400MB")
    assert (code, "belongs to another plan, with another memory" in errors) == (2, True)
    assert run("evaluate", *sets, "--part", "2/6", "--memory", "400MB")[0] == 0
    code, _, errors = run("merge", "parts")
    assert (code, "belong to another plan than the other parts, with another memory" in errors) == (2, True)
