"""Names of classes and runs are anybody's text: a report shows them, and nothing comes of them."""

import csv

import pytest
from expected import class_utility, shown_name
from report_data import HOSTILE
from test_page import download

pytestmark = pytest.mark.xdist_group("browser")

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def elements_from_names(tab):
    """Elements and attributes that a page never makes by itself."""
    return tab.script(
        """() => [...document.querySelectorAll("*")].filter(element =>
            element.matches("img[src=x], svg[onload], a[href^='https://example'], a[href^='javascript:']")
            || (element.localName === "b" && element.textContent === "bold")
            || [...element.attributes].some(each => each.name.startsWith("on"))
            || (element.localName === "script" && element.textContent.includes("alert(")
                && element.type !== "application/json" && element.textContent.length < 100)
        ).map(element => element.outerHTML.slice(0, 100))"""
    )


def test_names_are_shown_and_nothing_comes_of_them(show, hostile):
    tab, names = show(hostile), hostile.evaluation.names
    wanted = {index: shown_name(name) for index, name in enumerate(names)}
    assert {row["index"]: row["texts"]["class"] for row in tab.rows("#classes")} == wanted
    for index, name in wanted.items():
        chosen, chip, detail = choose(tab, index)
        assert (chosen, chip, detail) == ("true", name, name)
    check_examples(tab, names)
    for row in tab.rows("#worst"):
        assert row["texts"]["class"] == wanted[row["index"]]
    check_search(tab)
    assert elements_from_names(tab) == []
    assert tab.page.title().startswith("</title><script>alert(3)</script>")
    assert tab.find("#run option").all_text_contents() == [shown_name(name) for name in hostile.names]
    tab.find("#run").select_option("1")
    tab.settle()
    assert elements_from_names(tab) == []


def check_examples(tab, names):
    """The detail of a class has its confusions and pictures, that of another has none."""
    choose(tab, list(names).index(HOSTILE[0]))
    confusions = tab.find("#detail li.confusion").all_text_contents()
    for text, other, share in zip(confusions, (HOSTILE[1], HOSTILE[12]), ("25.0%", "12.5%"), strict=True):
        assert text.startswith(shown_name(other))
        assert share in text
    widths = tab.script("() => [...document.querySelectorAll('#detail img')].map(each => each.naturalWidth)")
    assert widths == [1, 1, 1, 1]
    alternatives = [each.get_attribute("alt") for each in tab.find("#detail img").all()]
    assert all(shown_name(HOSTILE[0]) in each for each in alternatives)
    choose(tab, list(names).index(HOSTILE[1]))
    assert tab.find("#detail li.confusion, #detail img").count() == 0


def choose(tab, index):
    """Click a class's row: whether it is selected then, the last chip's text, the detail's name."""
    return tab.script(
        """index => {
            const row = document.querySelector(`#classes tr[data-class='${index}']`);
            row.click();
            const chips = [...document.querySelectorAll("#highlighted button.chip")];
            return [row.getAttribute("aria-selected"), chips.at(-1).textContent,
                document.getElementById("detail-name").textContent];
        }""",
        index,
    )


def check_search(tab):
    """Every name is found as it is shown."""
    for name in map(shown_name, HOSTILE):
        suggested, kept = tab.script(
            """name => {
                for (const id of ["curve-search", "filter"]) {
                    const field = document.getElementById(id);
                    field.value = name;
                    field.dispatchEvent(new Event("input", {bubbles: true}));
                }
                return ["button.suggestion", "#classes tbody [data-cell=class]"].map(
                    each => [...document.querySelectorAll(each)].map(found => found.textContent));
            }""",
            name,
        )
        assert name in suggested
        assert name in kept
    assert elements_from_names(tab) == []


def test_names_in_a_plot_s_labels_are_text(show, hostile):
    tab, evaluation = show(hostile), hostile.evaluation
    tab.find("#curve-group").select_option("none")
    distance = sum(evaluation.calibration_range) / 2
    for index, name in enumerate(evaluation.names):
        if not (any(each in name for each in "<&%\n") or len(name) > 100):
            continue  # plotly could read nothing but text in it
        choose(tab, index)
        tab.settle()
        label = hover_label(tab, "plot-curves", distance, class_utility(evaluation, distance)[index])
        shown = " ".join(shown_name(name).split())
        label = " ".join(label.split())
        assert shown in label or (len(shown) > 40 and shown[:20] in label), (shown, label)
        assert tab.find(".hoverlayer a, .hoverlayer [style*=bold]").count() == 0
        tab.find("#clear").click()
    assert elements_from_names(tab) == []


def hover_label(tab, plot, x, y):
    """What plotly says of the curve at a point."""
    place = tab.place_in_plot(plot, x, y)
    tab.page.mouse.move(place[0] + 3, place[1] + 3)
    tab.page.mouse.move(*place)
    label = tab.find(f"#{plot} .hoverlayer .hovertext").first
    label.wait_for(state="attached")
    return label.text_content()


def test_names_are_exported_as_they_are_and_never_as_formulas(show, hostile, tmp_path):
    tab = show(hostile)
    order = [row["index"] for row in tab.rows("#classes")]
    with download(tab, tmp_path).open(encoding="utf-8-sig", newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    column = header.index("class")
    assert len(rows) == len(HOSTILE)
    for index, row in zip(order, rows, strict=True):
        name = str(hostile.evaluation.names[index])
        formula = name.lstrip(" '").startswith(FORMULA) and name != "-12.5"
        assert row[column] == ("'" + name if formula else name)
        assert all(cell == "" or float(cell) is not None for place, cell in enumerate(row) if place != column)
