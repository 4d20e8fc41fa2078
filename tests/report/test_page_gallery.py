"""The report of galleries: probes, templates and unknown probes, with every number held against the Evaluation."""

import math
import re

import pytest
from browser import PHONE
from expected import class_utility, close, tolerance_of
from report_data import galleries, gallery_evaluated, written
from test_page import check_operating, check_outside, check_worst, tolerance_shown
from test_page_looks import assert_no_wreckage, low_contrasts

import isomargin as im

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="session")
def one_gallery(tmp_path_factory):
    """The report of a gallery with unknown probes."""
    return written(tmp_path_factory, {"door": gallery_evaluated(*galleries())}, title="A gallery")


def check_identification(tab, evaluation, run=0):
    """FPIR, FNIR and misidentified probes of a run, and in the table the FNIR and false positives of each class."""
    distance = tab.distance(run)
    point = evaluation.identification.at(distance)
    for name in ("fpir", "fnir", "misidentified"):
        shown = f"#operating tr[data-run='{run}'] [data-cell={name}]"
        assert close(tab.number(shown), getattr(point, name)), name
    table, rates = evaluation.per_class, evaluation.at(distance)
    columns = {
        "enrolled": table["enrolled"].to_numpy(float),
        "probes": table["probes"].to_numpy(float),
        "far": rates.class_far,
        "frr": rates.class_frr,
        "fnir": point.class_fnir,
        "false_positive_share": point.false_positive_share,
        "utility": class_utility(evaluation, distance),
        "mean_utility": table["mean_utility"].to_numpy(),
        "eer": table["eer"].to_numpy(),
        "recall@1": table["recall@1"].to_numpy(),
    }
    rows = tab.rows("#classes")
    assert len(rows) == evaluation.class_count
    for row in rows:
        for name, values in columns.items():
            assert close(row["values"][name], values[row["index"]], tolerance_of(name)), (name, row)
            assert math.isnan(row["values"][name]) == (row["texts"][name].strip() == "–"), (name, row)


def test_it_opens_with_probes_and_templates_at_the_target_fpir(show, one_gallery):
    tab, evaluation = show(one_gallery), one_gallery.evaluation
    point, bounds = evaluation.at_fpir(0.05), evaluation.intervals()["fnir"]
    sizes = {"classes": 32, "known": 12 * 30 + 1, "unknown": 12 * 10}
    for score, value in {**sizes, "fnir": point.fnir, "misidentified": point.misidentified}.items():
        assert close(tab.number(f".tile[data-score={score}] .value"), value), score
    interval = ".tile[data-score=fnir] .interval"
    assert (tab.number(interval, "data-low"), tab.number(interval, "data-high")) == (bounds.low, bounds.high)
    assert tab.find(".tile[data-score=items]").count() == 0
    assert "mean of a class's items" in tab.text("#gallery")
    assert f"{point.fnir:.2%} of the known probes are missed" in tab.text("#headline")
    assert tab.distance() == point.distance
    tab.drawn()
    assert "Classes with fewer than two known probes have no curve: 2." in tab.text("#curves-note")
    tab.find("#words summary").click()
    terms = tab.find("#words dt:visible").all_text_contents()
    assert {"gallery, template", "known and unknown probes", "FPIR, FNIR"} <= set(terms)
    assert len(terms) == len(set(terms))
    check_operating(tab, evaluation, tolerance_shown(tab))
    check_identification(tab, evaluation)
    assert_no_wreckage(tab)
    tab.keep_picture("gallery-light")


def test_identification_follows_the_presets_the_slider_and_typed_rates(show, one_gallery):
    tab, evaluation, tolerance = show(one_gallery), one_gallery.evaluation, (2, 20)
    tab.tolerate(*tolerance)
    for fpir in (0.01, 0.05, 0.1):
        tab.find(f"button.preset[data-fpir='{fpir}']").click()
        tab.settle()
        assert tab.distance() == evaluation.at_fpir(fpir).distance
        check_identification(tab, evaluation)
    for part in (0, 0.4, 1):
        tab.slide(round(part * tab.last_index()))
        check_operating(tab, evaluation, tolerance)
        check_outside(tab, evaluation, tolerance)
        check_identification(tab, evaluation)
    check_worst(tab, evaluation)
    tab.choose_unit("fpir")
    tab.type_threshold("20")
    shown = tab.number("#operating [data-cell=fpir]")
    assert shown == evaluation.at_fpir(0.2).fpir <= 0.2
    assert tab.find("#threshold-unit").is_visible()
    tab.type_threshold("120")
    assert "an FPIR in percent" in tab.text("#asked")
    (line,) = [trace for trace in tab.traces("plot-identification") if trace["meta"] == "run 0"]
    assert len(line["x"]) > 20


@pytest.mark.parametrize("viewport", [None, PHONE])
def test_a_gallery_can_be_read_in_the_dark_and_on_a_phone(show, one_gallery, viewport):
    tab = show(one_gallery, color_scheme="dark", **({} if viewport is None else {"viewport": viewport}))
    tab.find("#classes tbody tr").first.click()
    tab.drawn()
    width = tab.script("() => innerWidth")
    assert tab.script("() => document.documentElement.scrollWidth") <= width
    assert low_contrasts(tab) == []
    if viewport is None:
        assert tab.script("() => { const at = document.querySelector('#classes'); return at.offsetWidth }") <= 905
    tab.keep_picture(f"gallery-dark-{width}")


def test_galleries_are_compared_at_the_same_fpir(show, tmp_path_factory):
    runs = {template: gallery_evaluated(*galleries(), template=template) for template in ("mean", "max")}
    tab = show(written(tmp_path_factory, runs))
    assert tab.find("#unit-fpir").is_checked()
    tab.find("button.preset[data-fpir='0.1']").click()
    tab.settle()
    for run, evaluation in enumerate(runs.values()):
        assert tab.distance(run) == evaluation.at_fpir(0.1).distance
        tab.find("#run").select_option(str(run))
        check_identification(tab, evaluation, run)
    tab.find("button.preset[data-far='0.01']").click()
    tab.settle()
    assert tab.find("#unit-far").is_checked()
    assert tab.distance(1) == im.choose_threshold(runs["max"], far=0.01).distance
    assert all(words in tab.text("#gallery") for words in ("mean of a class's items", "best of a class's items"))


def test_without_unknown_probes_there_is_no_fpir(show, tmp_path_factory):
    vectors, labels, *_ = galleries()
    evaluation = gallery_evaluated(vectors, labels, leave_one_out=True)
    tab = show(written(tmp_path_factory, {"left out": evaluation}))
    assert tab.find("button.preset[data-fpir]").count() == 0
    assert not tab.find("#unit-fpir").is_visible()
    assert not tab.find("#identification").is_visible()
    assert tab.find("#classes th button[data-column=false_positive_share]").count() == 0
    assert tab.text("#operating [data-cell=fpir]") == "–"
    fnir = evaluation.identification.at(tab.distance()).fnir
    assert close(tab.number("#operating [data-cell=fnir]"), fnir)
    assert "without the probe" in tab.text("#gallery")
    assert_no_wreckage(tab)


def test_all_pairs_have_no_words_of_galleries(show, plain):
    tab = show(plain)
    assert not re.search(r"FPIR|FNIR|probe|template", tab.find("body").inner_text())
