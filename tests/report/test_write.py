"""The page as a file: self-contained, whole, and with no way out of its data for a name."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

import isomargin as im
from isomargin.report.contents import contents


def drawn(names=None, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(24), 6)
    vectors = generator.normal(size=(24, 8))[labels] + 0.7 * generator.normal(size=(144, 8))
    return vectors, labels if names is None else np.array(names)[labels]


def page_of(evaluations, folder, **options):
    im.write_report(evaluations, folder / "report.html", **options)
    return (folder / "report.html").read_text(encoding="utf-8")


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="contents">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_asks_for_nothing_from_outside(tmp_path):
    page = page_of(im.evaluate(*drawn()), tmp_path)
    head = page[: page.index("<script")]
    assert not re.search(r"(?:src|href)=\"(?!#)", head)
    assert "url(" not in head
    assert "default-src 'none'" in head


def test_only_the_scripts_of_the_page_may_run(tmp_path):
    page = page_of(im.evaluate(*drawn()), tmp_path)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "unsafe-inline" not in policy.replace("style-src 'unsafe-inline'", "")
    assert "unsafe-eval" not in policy


def test_no_name_ends_the_script_that_holds_it(tmp_path):
    names = ["</script><script>alert(1)</script>", "<!--", "]]>", "@@SCRIPT@@", *(f"class {i}" for i in range(20))]
    page = page_of({"</title><b>": im.evaluate(*drawn(names))}, tmp_path)
    assert page.count("</script>") == 3
    assert "<b>" not in page[: page.index("<header>")]
    assert set(data_of(page)["runs"][0]["names"]) == set(names)


def test_scores_are_those_of_the_evaluation_to_the_last_digit(tmp_path):
    evaluation = im.evaluate(*drawn())
    run = data_of(page_of({"mine": evaluation}, tmp_path))["runs"][0]
    assert run["scores"] == evaluation.scores()
    bounds = evaluation.intervals()
    assert run["intervals"]["opis"] == [bounds["opis"].low, bounds["opis"].high, 0.95]


def test_differences_of_runs_are_those_of_compare():
    evaluations = {"one": im.evaluate(*drawn()), "two": im.evaluate(*drawn(seed=1))}
    made = contents(evaluations)
    for row in im.compare(evaluations).others["two"]:
        assert made["comparison"][0][row.score]["difference"]["low"] == row.difference.low
    assert made["headline"].startswith("two and one do not differ significantly in")


def test_a_certain_difference_is_in_the_headline():
    vectors, labels = drawn()
    centres = np.stack([vectors[labels == each].mean(axis=0) for each in range(24)])[labels]
    made = contents({"rough": im.evaluate(vectors, labels), "fine": im.evaluate(centres + 0.3 * vectors, labels)})
    assert made["headline"].startswith("fine compared with rough: OPIS is ")
    assert "lower" in made["headline"]


def test_the_headline_of_one_run_speaks_of_the_threshold_that_the_command_chooses():
    codes = np.sign(np.random.default_rng(0).normal(size=(40, 16)))[np.repeat(np.arange(40), 8)]
    flips = np.random.default_rng(1).random(codes.shape) < 0.12
    evaluation = im.evaluate(np.where(flips, -codes, codes), np.repeat(np.arange(40), 8))
    choice = im.choose_threshold(evaluation, far=0.01)
    point = evaluation.at(choice.distance)
    assert evaluation.target.far > 0.01 > choice.far  # many pairs are equally far apart
    made = contents({"codes": evaluation})
    sensitivity, specificity = 1 - point.class_frr, 1 - point.class_far
    worst = np.argmin(2 * sensitivity * specificity / (sensitivity + specificity))
    assert f"FAR of {100 * choice.far:.3g}% (distance {choice.distance:.4f})" in made["headline"]
    assert made["headline"].endswith(f"; {evaluation.names[worst]} is served worst.")
    assert made["runs"][0]["target"]["frr"] == point.frr
    assert "frr" not in made["runs"][0]["intervals"]  # which is that of the other threshold


def test_runs_that_were_not_measured_alike_have_no_differences():
    made = contents({"one": im.evaluate(*drawn()), "two": im.evaluate(*drawn(), c=2.0)})
    assert not made["alike"]
    assert made["notes"][0].startswith("There are no differences: one was evaluated with c 1.0")


def test_the_headline_of_many_runs_is_short():
    evaluation = im.evaluate(*drawn())
    assert len(contents({f"run {i}": evaluation for i in range(9)})["headline"]) < 400


def test_runs_on_other_classes_have_no_intervals_of_differences_and_are_told_why():
    made = contents({"one": im.evaluate(*drawn()), "two": im.evaluate(*drawn([f"c{i}" for i in range(24)]))})
    assert made["comparison"] is None
    assert "not evaluated on the same classes" in made["notes"][0]


def test_without_intervals_none_are_made():
    made = contents({"one": im.evaluate(*drawn()), "two": im.evaluate(*drawn(seed=1))}, intervals=False)
    assert made["comparison"] is None
    assert made["runs"][0]["intervals"] == {}


def test_the_shares_of_the_distribution_add_up_to_one():
    evaluation = im.evaluate(*drawn())
    shares = contents({"one": evaluation})["runs"][0]["distribution"]
    assert sum(shares["positive"]) == pytest.approx(1, abs=1e-5)
    assert sum(shares["negative"]) == pytest.approx(1, abs=1e-5)
    middle = len(shares["edges"]) // 2
    within = np.mean(evaluation.counts.negatives.pooled <= shares["edges"][middle])
    assert sum(shares["negative"][:middle]) == pytest.approx(within, abs=1e-5)


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(im.InputError, match="at least one evaluation"):
        im.write_report({}, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("evaluations", "options", "sentence"),
    [
        (lambda one: [one], {}, "an evaluation, or several by name"),
        (lambda one: {"a": "x"}, {}, "to Evaluation objects, not str to str"),
        (lambda one: {1: one}, {}, "not int to Evaluation"),
        (lambda one: {"a": one}, {"examples": {"b": {}}}, "examples"),
        (lambda one: {"a": one}, {"examples": {"a": {"x": None}}}, "a class 'x' that was not evaluated"),
    ],
)
def test_what_is_no_evaluation_by_name_is_told(tmp_path, evaluations, options, sentence):
    with pytest.raises(im.InputError, match=sentence):
        im.write_report(evaluations(im.evaluate(*drawn())), tmp_path / "report.html", **options)


def test_a_failed_report_leaves_the_old_one(tmp_path, monkeypatch):
    evaluation = im.evaluate(*drawn())
    old = page_of(evaluation, tmp_path)
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        im.write_report(evaluation, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == old
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
