"""The page of results and the README hold the numbers of the committed results, and link to files that are there."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"


def script(name):
    """Give a script of docs as a module."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def filler():
    return script("fill_results")


@pytest.mark.parametrize("path", [PAGE, ROOT / "docs" / "equalize.md", ROOT / "README.md"], ids=lambda path: path.name)
def test_its_tables_are_those_of_the_results(filler, path):
    page = path.read_text(encoding="utf-8")
    begun = sum(page.count(f"<!-- {kind}:") for kind in ("table", "equalize", "networks", "regime", "targets"))
    assert begun == page.count("<!-- end -->") > 0
    assert filler.filled(page) == page


def test_a_table_is_made_of_the_numbers_in_the_csv(filler, tmp_path, monkeypatch):
    place = tmp_path / "results" / "birds"
    place.mkdir(parents=True)
    heads = "setting,loss,training,opis,opis change,opis change low,opis change high,recall@1,recall@1 difference"
    lines = ["a,smooth_ap,plain,0.0123,,,,0.5,,,", "a,smooth_ap,tcm,0.01,-0.2,-0.3,0.1,0.5,0.01,-0.002,0.022"]
    text = "\n".join([f"{heads},recall@1 difference low,recall@1 difference high", *lines, "b,arcface,plain,1,,,,1,,,"])
    (place / "table.csv").write_text(text)
    monkeypatch.setattr(filler, "ROOT", tmp_path)
    wanted = {"setting": "a", "rows": "loss", "across": "training:plain,tcm", "columns": "recall@1,opis"}
    assert filler.table("birds", wanted).splitlines()[2:] == [
        "| Smooth-AP | 50.0% | 12.3e-3 | +1.00 (−0.20 to +2.20) | −20% (−30 to +10) |"
    ]


def test_a_glance_has_the_changes_of_several_experiments_and_counts_the_measurable(filler, tmp_path, monkeypatch):
    heads = "setting,loss,training,opis change,opis change low,opis change high"
    tables = {
        "short": ["a,arcface,plain,,,", "a,arcface,tcm,-0.2,-0.3,-0.1", "b,smooth_ap,tcm,0.1,0.05,0.2"],
        "long": ["b,smooth_ap,tcm,-0.9,-0.95,-0.8", "b,arcface,tcm,-0.04,-0.2,0.1", "c,arcface,tcm,-0.5,-0.6,-0.4"],
    }
    for experiment, lines in tables.items():
        (tmp_path / "results" / experiment).mkdir(parents=True)
        (tmp_path / "results" / experiment / "table.csv").write_text("\n".join([heads, *lines]))
    monkeypatch.setattr(filler, "ROOT", tmp_path)
    page = "<!-- table: glance of=short/a,short/b,long/b training=tcm column=opis -->\nold\n<!-- end -->"
    assert filler.filled(page).splitlines()[1:-1] == [
        "| loss | a: TCM | b: TCM |",
        "| --- | --- | --- |",
        "| ArcFace | **−20%** | −4% |",
        "| Smooth-AP | – | **+10%** |",
        "",
        "OPIS, of all cases: with TCM 1 of 3 are measurably lower and 1 higher.",
    ]


def test_the_picture_has_a_mark_for_every_case_of_the_tables_hollow_where_zero_is_in_the_interval(filler, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    picture = script("overview_picture")
    rows = [
        row
        for sources in (picture.USUAL, picture.LONG)
        for case in filler.read_cases(sources, "tcm,alignment").values()
        for row in case.values()
    ]
    ends = [float(row[f"opis change {end}"]) for row in rows for end in ("low", "high")]
    assert picture.RANGE[0] < min(ends) < max(ends) < picture.RANGE[1]
    marks = [
        line
        for panel in picture.draw().axes
        for line in panel.lines
        if len(line.get_xdata()) == 1 and line.get_marker() in "so"
    ]
    drawn = sorted((float(line.get_xdata()[0]), line.get_markerfacecolor() == "white") for line in marks)
    assert drawn == sorted((float(row["opis change"]), not filler.sign(row, "opis")) for row in rows)


def test_times_are_shown_in_seconds_with_the_range_of_their_changes(filler, tmp_path, monkeypatch):
    place = tmp_path / "results" / "cost"
    place.mkdir(parents=True)
    heads = "setting,loss,training,loss seconds,loss change,loss change lowest,loss change highest"
    (place / "table.csv").write_text(f"{heads}\na,smooth_ap,plain,0.4321,,,\na,smooth_ap,tcm,0.5,0.157,0.1,-0.2\n")
    monkeypatch.setattr(filler, "ROOT", tmp_path)
    assert filler.table("cost", {"rows": "training", "columns": "loss"}).splitlines()[2:] == [
        "| plain | 0.432 s |  |",
        "| TCM | 0.5 s | +15.7% (+10.0 to −20.0) |",
    ]


def test_what_it_links_to_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)", PAGE.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (PAGE.parent / link).exists(), link


def test_sections_that_pages_link_to_are_there():
    heads = re.findall(r"^#+ (.+)$", PAGE.read_text(encoding="utf-8"), re.M)
    there = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    links = [
        (path.name, link)
        for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
        for link in re.findall(r"\]\((?:docs/)?results\.md#([^)]+)", path.read_text(encoding="utf-8"))
    ]
    links += [(PAGE.name, link) for link in re.findall(r"\]\(#([^)]+)", PAGE.read_text(encoding="utf-8"))]
    assert links
    assert [each for each in links if each[1] not in there] == []
