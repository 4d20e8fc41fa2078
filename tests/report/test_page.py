"""The report of one run, used as a person would: every number on it is held against the Evaluation."""

import csv
import math
import re
from statistics import NormalDist

import numpy as np
import pandas
import pytest
from expected import all_distances, class_columns, class_utility, close, outside, similarity, tolerance_of, worst

import isomargin

pytestmark = pytest.mark.xdist_group("browser")

COLUMNS = ("class", "items", "far", "frr", "utility", "own_threshold", "mean_utility", "opis_share", "eer", "recall@1")


def check_operating(tab, evaluation, tolerance, run=0):
    shown = tab.operating(run)
    point = evaluation.at(shown["distance"])
    assert close(shown["similarity"], similarity(shown["distance"]))
    assert close(shown["far"], point.far)
    assert close(shown["frr"], point.frr)
    assert shown["outside"] == outside(evaluation, shown["distance"], *tolerance)[2].sum()


def check_outside(tab, evaluation, tolerance, run=0):
    counts = [each.sum() for each in outside(evaluation, tab.distance(run), *tolerance)]
    assert [tab.number(name) for name in ("#outside-far", "#outside-frr", "#outside")] == counts


def check_worst(tab, evaluation, run=0):
    distance = tab.distance(run)
    columns = class_columns(evaluation, distance)
    for by in ("far", "frr", "utility"):
        tab.find("#worst-by").select_option(by)
        tab.settle()
        rows = tab.rows("#worst")
        wanted = worst(columns[by], largest=by != "utility")
        assert [row["values"][by] for row in rows] == pytest.approx(list(wanted), rel=1e-12, abs=1e-12)
        check_cells(rows, columns, evaluation.names, ("far", "frr", "utility"))


def check_cells(rows, columns, names, shown):
    for row in rows:
        assert row["texts"]["class"] == str(names[row["index"]])
        for name in shown:
            assert close(row["values"][name], columns[name][row["index"]], tolerance_of(name)), (name, row)
            assert math.isnan(row["values"][name]) == (row["texts"][name].strip() == "–"), (name, row)


def check_table(tab, evaluation, run=0):
    columns = class_columns(evaluation, tab.distance(run))
    check_cells(tab.rows("#classes"), columns, evaluation.names, columns)


def check_histograms(tab, evaluation):
    """Every class that has a rate is in a bar that is no further from the rate than its width."""
    point = evaluation.at(tab.distance())
    for plot, rates in (("plot-far", point.class_far), ("plot-frr", point.class_frr)):
        (bars,) = [trace for trace in tab.traces(plot) if trace["type"] == "bar"]
        middles, counts = np.array(bars["x"], float) / 100, np.array(bars["y"], float)
        known = rates[~np.isnan(rates)]
        half = (middles[1] - middles[0]) / 2
        edges = np.append(middles - half, middles[-1] + half)
        # A rate on an edge may be counted on either side of it.
        low, high = (np.searchsorted(np.sort(known), edges + shift * 1e-9) for shift in (-1, 1))
        within = np.append(0, np.cumsum(counts))
        assert counts.sum() == len(known), plot
        assert (within[1:-1] >= low[1:-1]).all(), plot
        assert (within[1:-1] <= high[1:-1]).all(), plot


def numbers_in(text):
    """The numbers that a text shows, percents as shares."""
    found = re.findall(r"[-−]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+|\s*[×·]\s*10[⁻⁰-⁹¹²³]+)?\s*%?", text)
    plain = [each.replace(",", "").replace("−", "-").replace(" ", "") for each in found]
    return [float(each[:-1]) / 100 if each.endswith("%") else float(each) for each in plain]


# ----- the harness itself


def test_what_no_report_may_do_is_noticed(new_tab, tmp_path):
    done = {
        "<script>console.error('oh')</script>": "console error: oh",
        "<script>console.warn('hm')</script>": "console warning: hm",
        "<script>setTimeout(() => { throw new Error('broken') })</script>": "error: broken",
        "<script>setTimeout(() => alert(1))</script>": "dialog: 1",
        "<img src='http://127.0.0.1:9/x.png'>": "request: http://127.0.0.1:9/x.png",
        "<script>fetch('https://example.org').catch(() => 0)</script>": "request: https://example.org/",
        "<script>setTimeout(() => open('about:blank'))</script>": "another tab: ",
    }
    (tmp_path / "bad.html").write_text(page_of("".join(done)))
    (tmp_path / "good.html").write_text(page_of("<script>console.log('all is well')</script>"))
    forbidden = '<meta http-equiv="Content-Security-Policy" content="script-src \'none\'"><script>0</script>'
    (tmp_path / "policy.html").write_text(page_of(forbidden))
    bad, good, policy = (new_tab().open(tmp_path / f"{name}.html") for name in ("bad", "good", "policy"))
    for noted in done.values():
        assert wait_until(good, lambda noted=noted: [each for each in bad.problems if each.startswith(noted)]), noted
    assert any("Content Security Policy" in problem for problem in policy.problems)
    assert good.problems == []


def wait_until(tab, answer):
    """Ask again until there is something, five seconds at most."""
    for _ in range(50):
        if found := answer():
            return found
        tab.page.wait_for_timeout(100)
    return answer()


def page_of(body):
    return f"<!doctype html><html data-ready='true'><body>{body}</body></html>"


# ----- the scores


def test_it_opens_with_the_scores_and_at_the_target_far(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    scores, intervals = evaluation.scores(), evaluation.intervals()
    wanted = {
        "recall@1": scores["recall_at_k"]["1"],
        "opis": scores["opis"],
        "debiased_opis": scores["debiased_opis"],
        "epsilon_opis": scores["epsilon_opis"],
        "far_within_two": scores["far_within_two"],
        "classes": scores["classes"],
        "items": scores["items"],
        "pairs": scores["positive_pairs"] + scores["negative_pairs"],
    }
    for score, value in wanted.items():
        shown = f".tile[data-score='{score}'] .value[data-run='0']"
        assert close(tab.number(shown), value), score
        assert numbers_in(tab.text(shown))[0] == pytest.approx(value, rel=0.01), score
    span = ".tile[data-score=calibration_range] .value"
    assert (tab.number(span, "data-low"), tab.number(span, "data-high")) == evaluation.calibration_range
    near, left_out = evaluation.far_within_two, r"\d+ of 40 classes left out \(too few pairs\)"
    remark = tab.text(".tile[data-score=far_within_two] .hint")
    assert re.fullmatch(rf"[\d.]+% if only chance differed; {left_out}", remark)
    assert numbers_in(remark)[:2] == pytest.approx([near.expected, near.left_out], rel=0.01)
    for score in ("recall@1", "opis", "debiased_opis", "epsilon_opis", "far_within_two"):
        shown = f".tile[data-score='{score}'] .interval[data-run='0']"
        bounds = tab.number(shown, "data-low"), tab.number(shown, "data-high")
        assert bounds == pytest.approx((intervals[score].low, intervals[score].high)), score
    assert tab.find(".difference").count() == 0
    assert tab.text("#headline").strip()
    assert not tab.find("#run").is_visible()
    assert tab.page.title().startswith("A plain report")
    assert tab.find("#unit-distance").is_checked()
    assert tab.distance() == isomargin.choose_threshold(evaluation, far=0.01).distance
    assert float(tab.find("#threshold-value").input_value()) == pytest.approx(tab.distance(), abs=1e-4)
    check_operating(tab, evaluation, tolerance_shown(tab))
    check_table(tab, evaluation)
    tab.keep_picture("one-run-light")


def tolerance_shown(tab):
    """The tolerances as they stand, in percent."""
    return [float(tab.find(f"#tolerance-{rate}").input_value()) for rate in ("far", "frr")]


# ----- the threshold


@pytest.mark.parametrize("report", ["plain", "many"])
def test_everything_follows_the_slider(show, report, request):
    report = request.getfixturevalue(report)
    tab, evaluation, tolerance = show(report), report.evaluation, (2, 20)
    tab.tolerate(*tolerance)
    seen = []
    for part in (0, 0.3, 0.6, 1) if evaluation.method == "exact" else (0.5,):
        tab.slide(round(part * tab.last_index()))
        check_operating(tab, evaluation, tolerance)
        check_outside(tab, evaluation, tolerance)
        check_worst(tab, evaluation)
        check_table(tab, evaluation)
        check_histograms(tab, evaluation)
        seen.append(tab.distance())
    assert seen == sorted(set(seen))


def test_the_slider_obeys_keyboard_and_mouse_in_every_unit(show, plain):
    tab, tolerance = show(plain), (1, 10)
    tab.tolerate(*tolerance)
    for unit in ("distance", "similarity", "far"):
        before = tab.distance()
        tab.choose_unit(unit)
        assert tab.distance() == before
        use_keys(tab)
        check_operating(tab, plain.evaluation, tolerance)
        drag(tab)
        check_operating(tab, plain.evaluation, tolerance)
        check_outside(tab, plain.evaluation, tolerance)
        point, shown = tab.operating(), numbers_in(tab.find("#threshold-value").input_value())[0]
        assert shown / (100 if unit == "far" else 1) == pytest.approx(
            point[unit], abs=5e-4 if unit != "far" else 0.01 * point["far"]
        )
        assert tab.find("#threshold-unit").is_visible() == (unit == "far")
        assert tab.attribute("#threshold", "aria-valuetext")


def use_keys(tab):
    """Step along the grid with the arrows, and to its ends."""
    tab.find("#threshold").focus()
    index, before = int(tab.find("#threshold").input_value()), tab.distance()
    for key, step in (("ArrowRight", 1), ("ArrowLeft", -1), ("ArrowUp", 1)):
        tab.page.keyboard.press(key)
        tab.settle()
        index += step
        assert int(tab.find("#threshold").input_value()) == index
        assert (tab.distance() > before) == (step > 0)
        before = tab.distance()
    tab.page.keyboard.press("Home")
    tab.settle()
    nearest = tab.distance()
    tab.page.keyboard.press("End")
    tab.settle()
    assert nearest < before < tab.distance()


def drag(tab):
    """Drag from the right end to two fifths of the slider."""
    farthest, box = tab.distance(), tab.find("#threshold").bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + box["width"] - 8, middle)
    tab.page.mouse.down()
    for part in (0.8, 0.4):
        tab.page.mouse.move(box["x"] + part * box["width"], middle, steps=2)
    tab.settle()
    while_held = tab.distance()
    tab.page.mouse.up()
    tab.settle()
    assert tab.distance() == while_held < farthest
    last = tab.last_index()
    assert int(tab.find("#threshold").input_value()) == pytest.approx(0.4 * last, abs=0.05 * last)


def test_presets_are_the_chosen_thresholds_and_typed_ones_are_taken_to_the_grid(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    for far in (0.001, 0.01, 0.1):
        tab.find(f"button.preset[data-far='{far}']").click()
        tab.settle()
        choice = isomargin.choose_threshold(evaluation, far=far)
        assert tab.distance() == choice.distance
        assert close(tab.operating()["far"], choice.far)
    tab.find("button.preset[data-preset=eer]").click()
    tab.settle()
    point = tab.operating()
    assert abs(point["far"] - evaluation.eer) < 0.01
    assert abs(point["frr"] - evaluation.eer) < 0.01
    low, high = evaluation.calibration_range
    for distance in (low, high):
        tab.type_threshold(f"{distance:.6f}")
        check_nearest(tab, distance)
    tab.choose_unit("similarity")
    middle = (low + high) / 2
    tab.type_threshold(f" {similarity(middle):.9f} ")
    check_nearest(tab, middle)
    tab.choose_unit("far")
    for text, rate in (("1%", 0.01), ("3", 0.03), ("2 %", 0.02), ("1e1", 0.1), ("0.5", 0.005), ("0,7", 0.007)):
        tab.type_threshold(text)
        assert tab.operating()["far"] <= rate
        asked = tab.find("#asked").text_content()
        assert (text in asked) == (abs(tab.operating()["far"] - rate) > 5e-4 * rate)
        index = int(tab.find("#threshold").input_value())
        tab.slide(index + 1)
        assert tab.operating()["far"] > rate
        tab.slide(index)
    tab.choose_unit("distance")
    tab.find("#threshold-value").fill(f"{low:.6f}")
    tab.find("#threshold-value").press("Tab")
    tab.settle()
    check_nearest(tab, low)


def check_nearest(tab, distance):
    """The threshold is the grid's nearest to a distance."""
    index, chosen = int(tab.find("#threshold").input_value()), tab.distance()
    for neighbour in (index - 1, index + 1):
        if 0 <= neighbour <= tab.last_index():
            tab.slide(neighbour)
            assert abs(tab.distance() - distance) >= abs(chosen - distance) - 1e-9
    tab.slide(index)
    assert tab.distance() == chosen


def test_nonsense_is_refused_and_leaves_the_threshold_alone(show, plain):
    tab = show(plain)
    before = tab.operating()
    nonsense = {
        "distance": ("", "far", "1.0.0", "-0.5", "2.5", "NaN", "Infinity", "1e999", "0x1", "<b>", "1%"),
        "similarity": ("two", "-1.5", "1.5", "--1"),
        "far": ("1%%", "-1%", "101%", "150", "%", "nan%", "0"),
    }
    for unit, texts in nonsense.items():
        tab.choose_unit(unit)
        good = tab.find("#threshold-value").input_value()
        for text in texts:
            tab.type_threshold(text)
            assert tab.attribute("#threshold-value", "aria-invalid") == "true", (unit, text)
            assert tab.operating() == before, (unit, text)
        tab.type_threshold(good)
        assert tab.attribute("#threshold-value", "aria-invalid") in (None, "false")
        assert tab.operating() == before


def test_classes_are_outside_when_they_exceed_the_tolerance_and_not_when_they_meet_it(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    quarter = 25  # percent: many classes have 28 positive pairs, 7 of which are exactly so many
    for index in range(tab.last_index() // 2, tab.last_index(), 3):
        tab.slide(index)
        if (evaluation.at(tab.distance()).class_frr == quarter / 100).any():
            break
    assert (evaluation.at(tab.distance()).class_frr == quarter / 100).any()
    for tolerance in ((1, quarter), (1, quarter - 0.01), (0, 0), (100, 100), (0.5, 100), (100, 3.5)):
        tab.tolerate(*tolerance)
        check_operating(tab, evaluation, tolerance)
        check_outside(tab, evaluation, tolerance)
    tab.slide(tab.last_index() // 3)
    assert (evaluation.at(tab.distance()).class_far == 0).any()
    tab.tolerate(0, 100)
    check_operating(tab, evaluation, (0, 100))
    check_outside(tab, evaluation, (0, 100))


# ----- the table of classes


def test_every_column_sorts_both_ways_and_anew_at_another_threshold(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    columns = class_columns(evaluation, tab.distance())
    for name in COLUMNS:
        directions = []
        for _ in range(2):
            tab.find(f"#classes th button[data-column='{name}']").evaluate("button => button.click()")
            rows = tab.rows("#classes")
            assert sorted(row["index"] for row in rows) == list(range(evaluation.class_count))
            sorted_by = tab.find("#classes th[aria-sort=ascending], #classes th[aria-sort=descending]")
            assert sorted_by.locator("button").get_attribute("data-column") == name
            directions.append(sorted_by.get_attribute("aria-sort"))
            check_order(rows, columns.get(name), directions[-1], name)
        assert sorted(directions) == ["ascending", "descending"], name
    tab.find("#classes th button[data-column=frr]").click()
    tab.slide(tab.last_index() // 2)
    direction = tab.find("#classes th:has(button[data-column=frr])").get_attribute("aria-sort")
    check_order(tab.rows("#classes"), evaluation.at(tab.distance()).class_frr, direction, "frr")


def check_order(rows, values, direction, name):
    """Rows ascend or descend; classes without a value come last either way."""
    if values is None:
        order = [row["texts"]["class"] for row in rows]
        assert order == sorted(order, reverse=direction == "descending")
        return
    order = np.array([values[row["index"]] for row in rows])
    known = int((~np.isnan(order)).sum())
    assert not np.isnan(order[:known]).any(), name
    steps = np.diff(order[:known])
    assert ((steps if direction == "ascending" else -steps) >= -1e-12).all(), (name, direction)


def test_filters_keep_the_rows_that_pass_them(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    total = evaluation.class_count
    tab.tolerate(1, 10)
    strays = set(np.flatnonzero(outside(evaluation, tab.distance(), 1, 10)[2]).tolist())
    assert 0 < len(strays) < total
    tens = {index for index, name in enumerate(evaluation.names) if "S 1" in str(name).upper()}
    tab.find("#filter").fill("S 1")
    tab.settle()
    assert {row["index"] for row in tab.rows("#classes")} == tens
    assert tab.text("#rows-note").startswith(f"{len(tens)} of {total} classes")
    tab.find("#outside-only").check()
    tab.settle()
    assert {row["index"] for row in tab.rows("#classes")} == tens & strays
    tab.find("#filter").fill("")
    tab.settle()
    assert {row["index"] for row in tab.rows("#classes")} == strays
    assert tab.text("#rows-note").startswith(f"{len(strays)} of {total} classes")
    tab.slide(tab.last_index() // 3)
    strays = set(np.flatnonzero(outside(evaluation, tab.distance(), 1, 10)[2]).tolist())
    assert {row["index"] for row in tab.rows("#classes")} == strays
    tab.find("#outside-only").uncheck()
    tab.find("#filter").fill("no class has this name")
    tab.settle()
    assert tab.rows("#classes") == []
    assert tab.text("#rows-note").startswith(f"0 of {total} classes")


def test_a_long_table_grows_when_asked_while_filters_and_export_look_at_all_of_it(show, many, tmp_path):
    tab, evaluation = show(many), many.evaluation
    assert len(tab.rows("#classes")) == 100
    exported = pandas.read_csv(download(tab, tmp_path))["class"].tolist()
    assert sorted(exported) == list(range(701))
    assert exported[:100] == [int(row["texts"]["class"]) for row in tab.rows("#classes")]
    tab.find("#classes th button[data-column=frr]").click()
    tab.settle()
    direction = tab.find("#classes th:has(button[data-column=frr])").get_attribute("aria-sort")
    worst_first = np.sort(evaluation.at(tab.distance()).class_frr)
    worst_first = worst_first if direction == "ascending" else worst_first[::-1]
    shown = [row["values"]["frr"] for row in tab.rows("#classes")]
    assert shown == pytest.approx(list(worst_first[:100]), abs=1e-12)
    tab.find("#more").click()
    tab.settle()
    assert len(tab.rows("#classes")) == 500
    tab.find("#more").click()
    tab.settle()
    assert len(tab.rows("#classes")) == 701
    assert not tab.find("#more").is_visible()
    tab.find("#filter").fill("70")
    tab.settle()
    assert {row["texts"]["class"] for row in tab.rows("#classes")} == {
        str(number) for number in range(701) if "70" in str(number)
    }


def test_the_export_holds_the_filtered_rows_in_the_table_s_order(show, plain, tmp_path):
    tab, evaluation = show(plain), plain.evaluation
    tab.slide(tab.last_index() // 2)
    tab.tolerate(1, 10)
    tab.find("#outside-only").check()
    tab.find("#classes th button[data-column=utility]").click()
    tab.settle()
    rows = tab.rows("#classes")
    table = pandas.read_csv(download(tab, tmp_path))
    columns = class_columns(evaluation, tab.distance())
    assert 0 < len(table) == len(rows) < evaluation.class_count
    assert table["class"].tolist() == [row["texts"]["class"] for row in rows]
    for name, values in columns.items():
        wanted = [values[row["index"]] for row in rows]
        within = tolerance_of(name)
        assert table[name].to_numpy(float) == pytest.approx(wanted, rel=within, abs=within, nan_ok=True), name


def download(tab, folder):
    with tab.page.expect_download() as started:
        tab.find("#export").click()
    assert started.value.suggested_filename == "classes.csv"
    path = folder / "classes.csv"
    started.value.save_as(path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lengths = {len(row) for row in csv.reader(file, strict=True)}
    assert len(lengths) == 1
    return path


# ----- classes that are looked at


def test_a_class_is_found_highlighted_and_let_go(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    search = tab.find("#curve-search")
    search.press_sequentially("CLASS 0")
    suggestions = tab.find("button.suggestion")
    assert suggestions.count() == 8
    wanted = suggestions.nth(3).text_content()
    suggestions.nth(3).click()
    tab.settle()
    assert chips(tab) == [wanted]
    assert tab.text("#detail-name") == wanted
    search.fill("")
    search.press_sequentially("ass 17")
    assert tab.find("button.suggestion").all_text_contents() == ["class 17"]
    search.press("Enter")
    tab.settle()
    assert chips(tab) == [wanted, "class 17"]
    assert tab.text("#detail-name") == "class 17"
    index = list(evaluation.names).index("class 17")
    row = tab.find(f"#classes tr[data-class='{index}']")
    assert row.get_attribute("aria-selected") == "true"
    search.fill("no class has this name")
    assert tab.find("button.suggestion").count() == 0
    search.press("Enter")
    assert len(chips(tab)) == 2
    tab.find(f"#highlighted button.chip[data-class='{index}']").click()
    tab.settle()
    assert chips(tab) == [wanted]
    assert row.get_attribute("aria-selected") != "true"
    tab.find("#clear").click()
    tab.settle()
    assert chips(tab) == []
    assert tab.find("#classes tr[aria-selected=true]").count() == 0


def chips(tab):
    """Names of the highlighted classes, without what else a chip shows."""
    return [text.strip(" ×✕\u00a0") for text in tab.find("#highlighted button.chip").all_text_contents()]


def test_rows_highlight_their_class_by_click_and_by_the_keyboard_alone(show, plain):
    tab = show(plain)
    before = tab.distance()
    assert tab_to(tab, "#threshold")
    tab.page.keyboard.press("ArrowRight")
    tab.settle()
    assert tab.distance() > before
    assert tab_to(tab, "#classes tbody tr[data-class]")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.settle()
    rows = tab.rows("#classes")
    assert [row["selected"] for row in rows].index("true") == 1
    assert tab.text("#detail-name") == rows[1]["texts"]["class"]
    tab.page.keyboard.press("Tab")
    assert not tab.script("() => document.activeElement.matches('#classes tbody tr')")
    clicked = tab.find("#classes tbody tr").nth(4)
    clicked.click()
    tab.settle()
    assert clicked.get_attribute("aria-selected") == "true"
    assert tab.text("#detail-name") == rows[4]["texts"]["class"]
    assert chips(tab) == [rows[1]["texts"]["class"], rows[4]["texts"]["class"]]
    tab.find("#worst tr[data-class]").first.click()
    tab.settle()
    assert tab.text("#detail-name") == tab.rows("#worst")[0]["texts"]["class"]
    tab.slide(tab.last_index() // 2)
    assert len(chips(tab)) in (2, 3)
    assert tab.find("#classes tr[aria-selected=true]").count() == len(chips(tab))


def tab_to(tab, selector, most=60):
    """Press Tab until the focus is there."""
    for _ in range(most):
        tab.page.keyboard.press("Tab")
        if tab.script("selector => document.activeElement.matches(selector)", selector):
            return True
    return False


# ----- the plots


def test_a_click_in_a_plot_of_distances_sets_the_threshold(show, plain):
    tab, evaluation = show(plain), plain.evaluation
    low, high = evaluation.calibration_range
    for plot, share in (("plot-curves", 0.3), ("plot-distances", 0.8)):
        distance = low + share * (high - low)
        tab.drawn()
        top = tab.script("plot => document.getElementById(plot)._fullLayout.yaxis.range", plot)
        x, y = tab.place_in_plot(plot, distance, top[0] + 0.93 * (top[1] - top[0]))
        tab.page.mouse.click(x, y)
        tab.settle()
        width = tab.script(
            """plot => { const axis = document.getElementById(plot)._fullLayout.xaxis;
                return axis.p2d(1) - axis.p2d(0) }""",
            plot,
        )
        assert tab.distance() == pytest.approx(distance, abs=2 * width), plot
        check_operating(tab, evaluation, tolerance_shown(tab))


def pieces(trace):
    """The curves of a trace, as (x, y) arrays: gaps divide one that draws many."""
    x, y = (np.array([np.nan if each is None else each for each in trace[axis]], float) for axis in "xy")
    gaps = np.flatnonzero(np.isnan(x) | np.isnan(y))
    parts = [(x[keep], y[keep]) for keep in np.split(np.arange(len(x)), gaps)]
    return [(x[~np.isnan(y)], y[~np.isnan(y)]) for x, y in parts if (~np.isnan(y)).sum() > 1]


def check_members(evaluation, classes, drawn):
    """Curves are those of classes of the group: three of them are compared with every class's in three places."""
    for x, y in drawn[:: max(1, len(drawn) // 3)]:
        places = [len(x) // 4, len(x) // 2, 3 * len(x) // 4]
        found = np.array([class_utility(evaluation, float(x[each]))[classes] for each in places])  # (places, classes)
        assert (np.abs(found - y[places, None]).max(axis=0) < 1e-9).any()


def traces_by_meta(tab, plot):
    return {trace["meta"]: trace for trace in tab.traces(plot)}


@pytest.mark.parametrize("report", ["plain", "many"])
def test_the_curves_drawn_are_those_of_the_group_asked_for(show, report, request):
    report = request.getfixturevalue(report)
    tab, evaluation = show(report), report.evaluation
    order = np.argsort(evaluation.curves.class_mean_utility, kind="stable")
    tenth = round(0.1 * len(order))
    groups = {"all": order, "best": order[-tenth:], "worst": order[:tenth], "none": order[:0]}
    for group, members in groups.items():
        tab.find("#curve-group").select_option(group)
        tab.settle()
        drawn = pieces(traces_by_meta(tab, "plot-curves")["classes"])
        assert len(drawn) == min(len(members), 300)
        said = [int(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", tab.text("#curves-note"))]
        assert said[0] == len(drawn)
        assert len(drawn) == len(members) or said[1] == len(members)
        check_members(evaluation, evaluation.curves.classes[members], drawn)
    tab.find("#classes tbody tr").first.click()
    tab.settle()
    assert sum(str(meta).startswith("class ") for meta in traces_by_meta(tab, "plot-curves")) == 1


def test_plots_show_the_classes_utility_the_pairs_distances_and_their_rates(show, plain, plain_data):
    tab = show(plain)
    check_distances_plot(tab, plain_data)
    check_rates_plots(tab, plain_data)
    check_curves_plot(tab, plain.evaluation)
    buttons = tab.script("() => [...document.querySelectorAll('.modebar-btn')].map(each => each.dataset.title)")
    # Plotly offers to upload what is drawn unless it is told not to.
    assert {"Download plot as a PNG"} <= set(buttons) <= {"Download plot as a PNG", "Zoom in", "Zoom out", "Reset axes"}


def check_curves_plot(tab, evaluation):
    low, high = evaluation.calibration_range
    grid = np.linspace(low, high, 12)
    ((x, y),) = pieces(traces_by_meta(tab, "plot-curves")["mean"])
    wanted = np.interp(grid, evaluation.curves.distances, evaluation.curves.mean_utility)
    assert np.interp(grid, x, y) == pytest.approx(wanted, abs=5e-3)
    at_points = [np.nanmean(class_utility(evaluation, float(each))) for each in x]
    assert y == pytest.approx(np.array(at_points), abs=1e-6)
    for index in evaluation.curves.classes[[5, 11]].tolist():
        tab.find(f"#classes tr[data-class='{index}']").click()
        tab.settle()
        ((x, y),) = pieces(traces_by_meta(tab, "plot-curves")[f"class {index}"])
        at_points = [class_utility(evaluation, float(each))[index] for each in x]
        assert y == pytest.approx(np.array(at_points), abs=1e-9)


def check_distances_plot(tab, plain_data):
    traces = traces_by_meta(tab, "plot-distances")
    for kind, distances in zip(("positive 0", "negative 0"), all_distances(*plain_data), strict=True):
        middles, densities = (np.array(traces[kind][axis], float) for axis in "xy")
        width = middles[1] - middles[0]
        assert (densities * width).sum() == pytest.approx(1, abs=1e-5)
        edges = np.append(middles - width / 2, middles[-1] + width / 2)
        counted = np.histogram(distances, edges)[0] / len(distances)
        # A pair on an edge may be counted on either side of it.
        assert np.abs(np.cumsum(densities * width) - np.cumsum(counted)).max() < 2 / len(distances)


def check_rates_plots(tab, plain_data):
    positives, negatives = (np.sort(each) for each in all_distances(*plain_data))
    roc, det = (traces_by_meta(tab, plot) for plot in ("plot-roc", "plot-det"))
    assert len(roc["run 0"]["x"]) > 100
    for far, accepted in zip(roc["run 0"]["x"], roc["run 0"]["y"], strict=True):
        check_on_roc(far, 1 - accepted, positives, negatives)
    assert len(det["run 0"]["x"]) > 100
    for far, frr in zip(det["run 0"]["x"], det["run 0"]["y"], strict=True):
        check_on_roc(NormalDist().cdf(far), NormalDist().cdf(frr), positives, negatives)
    tab.slide(tab.last_index() // 2)
    point, (roc, det) = tab.operating(), (traces_by_meta(tab, plot)["here 0"] for plot in ("plot-roc", "plot-det"))
    assert (roc["x"][0], roc["y"][0]) == pytest.approx((point["far"], 1 - point["frr"]))
    assert NormalDist().cdf(det["x"][0]) == pytest.approx(point["far"], rel=1e-6)
    assert NormalDist().cdf(det["y"][0]) == pytest.approx(point["frr"], rel=1e-6)


def check_on_roc(far, frr, positives, negatives):
    """A threshold exists that has both rates."""
    count = round(far * len(negatives))
    assert far == pytest.approx(count / len(negatives), abs=1e-7)
    least = negatives[count - 1] if count else 0.0
    most = negatives[count] if count < len(negatives) else 2.0
    accepted = np.searchsorted(positives, [least, most], side="right")
    rejected = 1 - accepted / len(positives)
    assert rejected[1] - 1e-7 <= frr <= rejected[0] + 1e-7
