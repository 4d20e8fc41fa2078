"""The command report, and --report of the others: what they write and refuse."""

import json
import re
import shutil

import numpy as np
import pytest

import isomargin as im
from isomargin.report.sources import Source, examples_of, worst_in_turn
from training.runs import patterns, tiny


def data_of(path):
    page = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="contents">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture
def embeddings(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 6)
    vectors = generator.normal(size=(24, 8))[labels] + 0.7 * generator.normal(size=(144, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez(tmp_path / "mine.npz", embeddings=vectors, labels=labels)
    return tmp_path / "mine.npz"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    im.train(tiny(epochs=0.3), folder)
    return folder


def test_a_report_of_embeddings_has_scores_and_confusions(run, embeddings, tmp_path):
    code, out, err = run("report", embeddings, "-o", tmp_path / "page.html")
    assert (code, out) == (0, "")
    assert "page.html" in err
    (made,) = data_of(tmp_path / "page.html")["runs"]
    loaded = np.load(embeddings)
    assert made["scores"]["opis"] == im.evaluate(loaded["embeddings"], loaded["labels"]).opis
    assert made["name"] == "mine"
    assert len(made["examples"]) == 24
    assert any(each["confusions"] for each in made["examples"].values())


def test_the_report_of_a_run_goes_into_its_folder(run, finished):
    code, _, err = run("report", finished, "--no-intervals")
    assert code == 0, err
    (made,) = data_of(finished / "report.html")["runs"]
    assert made["scores"] == im.Evaluation.load(finished / "evaluation.json").scores()
    assert made["intervals"] == {}
    assert all(not each["thumbnails"] for each in made["examples"].values())


def test_pictures_are_of_the_worst_classes_and_by_choice(run, finished, tmp_path):
    code, _, err = run("report", finished, "--thumbnails", 3, "--no-intervals", "-o", tmp_path / "page.html")
    assert code == 0, err
    (made,) = data_of(tmp_path / "page.html")["runs"]
    pictured = {made["names"][int(place)] for place, each in made["examples"].items() if each["thumbnails"]}
    evaluation = im.Evaluation.load(finished / "evaluation.json")
    assert pictured == {str(name) for name in worst_in_turn(evaluation, 3)}
    assert evaluation.worst_classes(1)["class"].item() in pictured


def test_several_runs_are_side_by_side(run, finished, embeddings, tmp_path):
    code, _, err = run("report", finished, embeddings, "-o", tmp_path / "page.html", "--title", "Both")
    assert code == 0, err
    assert [each["name"] for each in data_of(tmp_path / "page.html")["runs"]] == ["tiny", "mine"]
    assert "<h1>Both</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_evaluate_writes_a_report_too(run, embeddings, tmp_path):
    code, out, err = run("evaluate", embeddings, "--report", tmp_path / "page.html", "--target-far", "0.02")
    assert code == 0
    assert "OPIS" in out
    assert "page.html" in err
    assert data_of(tmp_path / "page.html")["runs"][0]["settings"]["target_far"] == 0.02


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "no/such/run"], "does not exist"),
        (["report", "{file}", "-o", "page.txt"], "should end in .html"),
        (["report", "{file}", "-o", "no/such/folder/page.html"], "there is no folder"),
        (["report", "{file}", "{file}"], "was given twice"),
        (["report", "{file}", "--thumbnails", "3", "-o", "{folder}/page.html"], "thumbnails need the folder of a run"),
        (["report", "{file}", "--labels", "x.npy", "--labels", "y.npy"], "--labels was given 2 times for 1 files"),
        (["report", "{file}", "--images", "{folder}"], "--images needs --thumbnails"),
        (["report", "{file}", "--thumbnails", "3", "--no-confusions"], "give one of them"),
        (["evaluate", "{file}", "--report", "page.pdf"], "should end in .html"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(run, embeddings, tmp_path, arguments, sentence):
    places = {"file": embeddings, "folder": tmp_path}
    code, out, err = run(*(each.format(**places) for each in arguments))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*.html"))


def test_without_embeddings_there_are_no_confusions(finished):
    assert examples_of("tiny", Source(im.Evaluation.load(finished / "evaluation.json"))) == {}


def test_confusions_can_be_left_out(run, embeddings, tmp_path):
    assert run("report", embeddings, "--no-confusions", "-o", tmp_path / "page.html")[0] == 0
    assert data_of(tmp_path / "page.html")["runs"][0]["examples"] == {}


def test_embeddings_that_are_not_those_evaluated_are_refused(run, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "other")
    stored = im.EmbeddingSet.load(finished / "embeddings.npz")
    im.EmbeddingSet(stored.vectors[:-1], stored.labels[:-1]).save(tmp_path / "other" / "embeddings.npz")
    code, _, err = run("report", tmp_path / "other")
    assert code == 2
    assert "99 in 10 classes, are not those that were evaluated, 100 in 10 classes" in err


def test_images_that_have_moved_are_found_where_they_are_said_to_be(run, finished, tmp_path):
    shutil.copytree(patterns(), tmp_path / "there")
    place = ["--thumbnails", 2, "--no-intervals", "-o", tmp_path / "page.html"]
    code, _, err = run("report", finished, "--images", tmp_path / "gone", *place)
    assert code == 2
    assert str(tmp_path / "gone") in err
    assert run("report", finished, "--images", tmp_path / "there", *place)[0] == 0
