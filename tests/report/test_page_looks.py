"""How the report looks and reads: themes, a phone's width, readable and named controls; and sets at the edge."""

import itertools
import math
import re

import numpy as np
import pytest
from browser import PHONE
from expected import contrast
from report_data import clusters, evaluated, written
from test_page import check_operating, check_outside, check_table, check_worst

import isomargin

pytestmark = pytest.mark.xdist_group("browser")

PLOTS = ("plot-far", "plot-frr", "plot-curves", "plot-distances", "plot-roc", "plot-det")
TEXTS = (
    *("h1", "h2", "p", "#headline", ".tile .value", ".tile .interval", ".tile", "#operating td", "#operating th"),
    *("#classes td", "#classes th button", "#worst td", "label", "button.preset", "#curves-note", "#rows-note"),
    *("#theme", "#export", "#threshold-value", "button.chip", "#detail", "select", ".difference"),
)


CONTROLS = ("button", "checkbox", "combobox", "link", "radio", "searchbox", "slider", "spinbutton", "textbox")


def colour(text):
    """(red, green, blue, opacity) of a computed colour."""
    numbers = [float(each) for each in re.findall(r"[\d.]+", text)]
    assert text.startswith("rgb"), text
    return (*numbers[:3], numbers[3] if len(numbers) > 3 else 1.0)


def hex_colour(text):
    """(red, green, blue) of plotly's notation."""
    assert re.fullmatch("#[0-9a-f]{6}", text), text
    return [int(text[place : place + 2], 16) for place in (1, 3, 5)]


def plot_colours(tab, plot):
    """Paper and font colours that plotly draws with."""
    tab.drawn()
    return tab.script(
        """plot => { const layout = document.getElementById(plot)._fullLayout;
            return [layout.paper_bgcolor, layout.font.color] }""",
        plot,
    )


def low_contrasts(tab):
    """Texts whose colour is too near to what is behind them: (what, contrast)."""
    found = tab.script(
        """selectors => selectors.flatMap(selector => {
            const element = [...document.querySelectorAll(selector)].find(each => each.checkVisibility());
            if (!element) return [];
            const behind = [];
            for (let each = element; each; each = each.parentElement)
                behind.push(getComputedStyle(each).backgroundColor);
            return [[selector, getComputedStyle(element).color, behind]];
        })""",
        list(TEXTS),
    )
    assert len(found) > 15
    low = []
    for selector, text, behind in found:
        ground = np.array([255.0, 255.0, 255.0])
        for each in reversed(behind):
            *values, opacity = colour(each)
            ground = opacity * np.array(values) + (1 - opacity) * ground
        *values, opacity = colour(text)
        ratio = contrast(opacity * np.array(values) + (1 - opacity) * ground, ground)
        if ratio < 4.5:
            low.append((selector, round(ratio, 2)))
    return low


def check_focus(tab):
    """Wherever Tab leads, there is an outline."""
    seen = {}
    for _ in range(30):
        tab.page.keyboard.press("Tab")
        which, style, width = tab.script(
            """() => { const style = getComputedStyle(document.activeElement);
                return [document.activeElement.outerHTML.slice(0, 80), style.outlineStyle, style.outlineWidth] }"""
        )
        seen[which] = style not in ("none", "auto") and float(width.removesuffix("px")) >= 2
    assert len(seen) > 15
    assert [which for which, outlined in seen.items() if not outlined] == []


def background(tab):
    return tab.script("() => getComputedStyle(document.body).backgroundColor")


def test_the_theme_is_the_reader_s_and_the_button_changes_all_of_it(show, plain):
    tab = show(plain)
    tab.find("#classes tbody tr").first.click()
    themes = {}
    for theme in ("light", "dark"):
        assert tab.attribute("html", "data-theme") == theme
        assert low_contrasts(tab) == [], theme
        themes[theme] = background(tab), *(plot_colours(tab, plot) for plot in PLOTS)
        tab.find("#theme").click()
        tab.settle()
    for light, dark in zip(themes["light"][1:], themes["dark"][1:], strict=True):
        assert contrast(hex_colour(light[0]), hex_colour(light[1])) > 4.5
        assert contrast(hex_colour(dark[0]), hex_colour(dark[1])) > 4.5
        assert light[0] != dark[0]
    assert (background(tab), *(plot_colours(tab, plot) for plot in PLOTS)) == themes["light"]
    tab = show(plain, color_scheme="dark")
    assert tab.attribute("html", "data-theme") == "dark"
    assert (background(tab), *(plot_colours(tab, plot) for plot in PLOTS)) == themes["dark"] != themes["light"]
    tab.keep_picture("one-run-dark")


def test_a_phone_shows_all_of_it_without_scrolling_sideways(show, two_runs):
    tab = show(two_runs, viewport=PHONE)
    tab.find("#classes tbody tr").first.click()
    tab.drawn()
    fits(tab, PHONE["width"])
    tab.keep_picture("phone")
    tab.page.set_viewport_size({"width": 800, "height": 900})
    tab.page.wait_for_timeout(400)  # plotly waits a little before it follows
    fits(tab, 800)


def fits(tab, width):
    """Nothing is wider than the window, and every plot fills its place."""
    assert tab.script("() => document.documentElement.scrollWidth") <= width
    for plot in (*PLOTS, "plot-pareto"):
        place, drawn = (tab.find(f"#{plot}{part}").first.bounding_box() for part in ("", " .main-svg"))
        assert place["x"] >= 0, plot
        assert place["x"] + place["width"] <= width, plot
        assert drawn["width"] == pytest.approx(place["width"], abs=2), plot


def test_the_focus_is_seen_and_everything_has_a_name_for_those_who_do_not_see_it(show, two_runs):
    tab = show(two_runs)
    check_focus(tab)
    tab.find("#classes tbody tr").first.click()
    tab.settle()
    controls = re.findall(rf"- '?({'|'.join(CONTROLS)})\b(.*)", tab.find("body").aria_snapshot())
    assert len(controls) > 30
    assert [role for role, rest in controls if not re.match(r' ".*\w', rest)] == []
    assert tab.find("h1").count() == 1
    assert tab.find("html[lang]").count() == 1
    assert tab.find("th:not([scope])").count() == 0
    for table in ("#operating", "#classes", "#worst"):
        assert tab.find(f"{table} th[scope=col]").count() > 2, table
    assert tab.find("img:not([alt])").count() == 0
    levels = tab.script("() => [...document.querySelectorAll('h1, h2, h3, h4')].map(each => Number(each.localName[1]))")
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


# ----- sets at the edge


def assert_no_wreckage(tab):
    """Nothing is shown that only a programmer would understand."""
    tab.drawn()
    assert not re.search(r"\b(NaN|undefined|null|Infinity|object Object)\b", tab.find("body").inner_text())


def at_several_thresholds(tab, evaluation):
    """Hold all numbers against the evaluation at the slider's ends and between them."""
    tolerance = (1, 10)
    tab.tolerate(*tolerance)
    for part in (0, 1, 0.6):
        tab.slide(round(part * tab.last_index()))
        check_operating(tab, evaluation, tolerance)
        check_outside(tab, evaluation, tolerance)
        check_table(tab, evaluation)
    check_worst(tab, evaluation)


def test_a_tiny_set_has_only_the_presets_it_resolves(show, tmp_path_factory):
    vectors, labels = clusters(np.array([3, 2, 2, 1]), dimensions=4)
    evaluation = evaluated(vectors, labels, far=(0.1, 0.5), target_far=0.1)
    tab = show(written(tmp_path_factory, {"tiny": evaluation}))
    fars = [float(each.get_attribute("data-far")) for each in tab.find("button.preset[data-far]").all()]
    assert 0.1 in fars
    assert all(far * evaluation.negative_pairs >= 1 for far in fars)
    assert tab.distance() == isomargin.choose_threshold(evaluation, far=0.1).distance
    at_several_thresholds(tab, evaluation)
    row = next(each for each in tab.rows("#classes") if each["texts"]["items"].strip() == "1")
    assert all(row["texts"][name].strip() == "–" for name in ("frr", "utility", "mean_utility", "eer", "recall@1"))
    row = tab.find(f"#classes tr[data-class='{row['index']}']")
    row.click()
    tab.settle()
    assert row.get_attribute("aria-selected") == "true"
    assert_no_wreckage(tab)


def test_runs_of_other_settings_are_each_followed(show, plain_data, tmp_path_factory):
    settings = {
        "sampled": {"pairs": "sampled"},
        "precision and recall": {"utility": "precision_recall", "c": 0.5},
        "pooled mean, no recall@1": {"mean_curve": "pooled", "k": (2, 4)},
    }
    evaluations = {name: evaluated(*plain_data, **each) for name, each in settings.items()}
    tab = show(written(tmp_path_factory, evaluations, intervals=False))
    tolerance = (1, 10)
    tab.tolerate(*tolerance)
    for run, evaluation in enumerate(evaluations.values()):
        assert tab.distance(run) == isomargin.choose_threshold(evaluation, far=0.01).distance
    for run, evaluation in enumerate(evaluations.values()):
        tab.find("#run").select_option(str(run))
        tab.slide(round(0.6 * tab.last_index()))
        check_operating(tab, evaluation, tolerance, run)
        check_outside(tab, evaluation, tolerance, run)
        check_worst(tab, evaluation, run)
        check_table(tab, evaluation, run)
    assert tab.find(".interval").count() == 0
    assert_no_wreckage(tab)


def test_a_perfect_set_has_a_report(show, tmp_path_factory):
    labels = np.repeat(np.arange(30), 3)
    vectors = np.eye(30)[labels] + 0.01 * np.random.default_rng(0).normal(size=(90, 30))
    evaluation = evaluated(vectors, labels)
    tab = show(written(tmp_path_factory, {"perfect": evaluation}))
    assert tab.operating()["frr"] == 0
    at_several_thresholds(tab, evaluation)
    assert math.isfinite(tab.number(".tile[data-score=opis] .value"))
    assert_no_wreckage(tab)
