"""The report of several runs: what each says, how they differ, and which of them the parts below speak of."""

import numpy as np
import pytest
from expected import class_columns, close
from report_data import evaluated, written
from test_page import check_operating, check_outside, check_table, check_worst

import isomargin

pytestmark = pytest.mark.xdist_group("browser")


def test_every_tile_has_every_run_and_its_difference_to_the_first(show, two_runs):
    tab = show(two_runs)
    compared = isomargin.compare(dict(zip(two_runs.names, two_runs.evaluations, strict=True)))
    differences = {row.score: row.difference for row in compared.others["even"]}
    for run, evaluation in enumerate(two_runs.evaluations):
        scores, intervals = evaluation.scores(), evaluation.intervals()
        names = ("opis", "debiased_opis", "epsilon_opis", "far_within_two", "classes", "items")
        wanted = {"recall@1": scores["recall_at_k"]["1"], **{name: scores[name] for name in names}}
        for score, value in wanted.items():
            assert close(tab.number(f".tile[data-score='{score}'] .value[data-run='{run}']"), value), score
        for score in ("recall@1", "opis", "debiased_opis", "epsilon_opis", "far_within_two"):
            shown = f".tile[data-score='{score}'] .interval[data-run='{run}']"
            bounds = tab.number(shown, "data-low"), tab.number(shown, "data-high")
            assert bounds == pytest.approx((intervals[score].low, intervals[score].high)), score
        span = f".tile[data-score=calibration_range] .value[data-run='{run}']"
        assert (tab.number(span, "data-low"), tab.number(span, "data-high")) == evaluation.calibration_range
    for score in ("recall@1", "opis", "debiased_opis", "epsilon_opis", "far_within_two"):
        shown = tab.number(f".tile[data-score='{score}'] .difference[data-run='1']")
        assert close(shown, differences[score].value, 1e-9), score
    assert tab.find(".difference[data-run='0']").count() == 0
    assert "even" in tab.text("#headline")
    check_comparing_plots(tab, two_runs)
    tab.keep_picture("two-runs-light")


def check_comparing_plots(tab, two_runs):
    """Every run is in the plots that compare them."""
    for plot in ("plot-roc", "plot-det", "plot-pareto"):
        names = " ".join(str(trace["name"]) for trace in tab.traces(plot))
        assert all(name in names for name in two_runs.names), plot
    points = [trace for trace in tab.traces("plot-pareto") if trace["name"] in two_runs.names]
    for trace, evaluation in zip(points, two_runs.evaluations, strict=True):
        assert {round(float(value), 6) for value in (trace["x"][0], trace["y"][0])} & {
            round(evaluation.opis, 6),
            round(evaluation.debiased_opis, 6),
        }


def test_all_parts_speak_of_the_run_that_is_chosen(show, two_runs):
    tab, tolerance = show(two_runs), (1, 10)
    tab.tolerate(*tolerance)
    seen = []
    for run in (1, 0):
        tab.find("#run").select_option(str(run))
        tab.settle()
        evaluation = two_runs.evaluations[run]
        for index in (tab.last_index() // 3, tab.last_index() // 2):
            tab.slide(index)
            for each, other in enumerate(two_runs.evaluations):
                check_operating(tab, other, tolerance, each)
            check_outside(tab, evaluation, tolerance, run)
            check_worst(tab, evaluation, run)
            check_table(tab, evaluation, run)
        seen.append([tab.traces(plot) for plot in ("plot-far", "plot-frr", "plot-curves", "plot-distances")])
    assert all(one != other for one, other in zip(*seen, strict=True))
    names = tab.find("#run option").all_text_contents()
    assert [name.strip() for name in names] == two_runs.names


def test_at_a_distance_every_run_stands_at_its_nearest_threshold(show, two_runs):
    tab = show(two_runs)
    tab.choose_unit("distance")
    tab.slide(tab.last_index() // 2)
    from_slider = tab.distance(0), tab.distance(1)
    tab.find("button.preset[data-far='0.1']").click()
    tab.settle()
    assert tab.distance(0) == isomargin.choose_threshold(two_runs.evaluation, far=0.1).distance
    from_preset = tab.distance(0), tab.distance(1)
    tab.find("#run").select_option("1")
    for distance, other in (from_slider, from_preset):
        tab.type_threshold(f"{distance:.12f}")
        assert tab.distance(1) == other
        check_nearest_of_run(tab, distance, 1)


def check_nearest_of_run(tab, distance, run):
    """The chosen run's threshold is the nearest of its grid to a distance."""
    index, chosen = int(tab.find("#threshold").input_value()), tab.distance(run)
    for neighbour in (index - 1, index + 1):
        tab.slide(neighbour)
        assert abs(tab.distance(run) - distance) >= abs(chosen - distance) - 1e-9


def test_it_opens_at_a_false_accept_rate_at_which_every_run_has_its_own_threshold(show, two_runs):
    tab = show(two_runs)
    assert tab.find("#unit-far").is_checked()
    for run, evaluation in enumerate(two_runs.evaluations):
        assert tab.distance(run) == isomargin.choose_threshold(evaluation, far=0.01).distance
    for far in (0.001, 0.1):
        tab.find(f"button.preset[data-far='{far}']").click()
        tab.settle()
        for run, evaluation in enumerate(two_runs.evaluations):
            choice = isomargin.choose_threshold(evaluation, far=far)
            assert tab.distance(run) == choice.distance
            assert close(tab.operating(run)["far"], choice.far)
    assert tab.distance(0) != tab.distance(1)
    tab.slide(round(0.55 * tab.last_index()))
    reached = [tab.operating(run)["far"] for run in (0, 1)]
    assert 0.8 * reached[0] < reached[1] <= reached[0]
    tab.type_threshold("3%")
    assert all(0.02 < tab.operating(run)["far"] <= 0.03 for run in (0, 1))
    tab.choose_unit("distance")
    assert tab.distance(0) == pytest.approx(tab.distance(1), abs=0.02)


def test_classes_stay_highlighted_when_the_run_changes(show, two_runs):
    tab = show(two_runs)
    for place in (3, 5):
        tab.find("#classes tbody tr").nth(place).click()
    before = tab.find("#highlighted button.chip").all_text_contents()
    tab.find("#run").select_option("1")
    tab.settle()
    assert tab.find("#highlighted button.chip").all_text_contents() == before
    assert tab.text("#detail-name") == before[-1]
    selected = [row for row in tab.rows("#classes") if row["selected"] == "true"]
    assert sorted(row["texts"]["class"] for row in selected) == sorted(before)
    columns = class_columns(two_runs.evaluations[1], tab.distance(1))
    assert all(close(row["values"]["frr"], columns["frr"][row["index"]]) for row in selected)


def test_choosing_a_run_leaves_the_page_where_it_was_scrolled_to(show, two_runs):
    tab = show(two_runs)
    tab.script("() => scrollTo(0, 1400)")
    tab.settle()
    box = tab.find("#run").bounding_box()
    tab.page.mouse.click(box["x"] + 15, box["y"] + 8)  # the control is above the page, wherever that is scrolled to
    tab.page.keyboard.type("even")
    tab.page.keyboard.press("Enter")
    tab.settle()
    assert tab.find("#run").input_value() == "1"
    assert tab.script("() => scrollY") == 1400


def test_an_empty_tolerance_tolerates_all_and_each_run_is_counted_by_both_rates(show, two_runs):
    tab = show(two_runs)
    tab.tolerate(1, 10)
    tab.find("#tolerance-frr").fill("")
    tab.settle()
    for run, evaluation in enumerate(two_runs.evaluations):
        point = evaluation.at(tab.distance(run))
        row = f"#operating tr[data-run='{run}']"
        assert tab.number(f"{row} [data-cell=outside-far]") == (point.class_far > 0.01).sum()
        assert tab.number(f"{row} [data-cell=outside-frr]") == 0
        assert tab.number(f"{row} [data-cell=outside]") == (point.class_far > 0.01).sum()
    assert "FRR" not in tab.text("#outside-words")
    assert tab.attribute("#tolerance-frr", "aria-invalid") is None


def test_a_run_without_the_sorted_column_can_be_chosen(show, plain_data, tmp_path_factory):
    runs = {"one": evaluated(*plain_data), "two": evaluated(*plain_data, k=(5,))}
    tab = show(written(tmp_path_factory, runs, intervals=False))
    tab.find("#classes th button[data-column='recall@1']").click()
    tab.find("#run").select_option("1")
    tab.settle()
    assert tab.find("#classes th button[data-column='recall@5']").count() == 1
    assert len(tab.rows("#classes")) == runs["two"].class_count


def test_a_legend_shows_names_as_they_are(show, plain_data, tmp_path_factory):
    vectors, labels = plain_data
    labels = np.where(labels == labels[0], "%{meta} <b>", labels)
    tab = show(written(tmp_path_factory, {"%{meta}": evaluated(vectors, labels)}, intervals=False))
    tab.find("#curve-search").fill("%{")
    tab.find("button.suggestion").click()
    tab.drawn()
    legend = [each.replace("\u200b", "") for each in tab.find("#plot-curves .legendtext").all_text_contents()]
    assert "%{meta} <b>" in legend
