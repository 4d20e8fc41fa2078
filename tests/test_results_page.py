"""The page of results and the README hold the numbers of the committed results, and link to files that are there."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("results*.md"))


def script(name):
    """Give a script of docs as a module."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def filler():
    return script("fill_results")


@pytest.mark.parametrize(
    "path", [*PAGES, ROOT / "docs" / "equalize.md", ROOT / "README.md"], ids=lambda path: path.name
)
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


def write_tables(folder, heads, tables):
    for experiment, lines in tables.items():
        (folder / "results" / experiment).mkdir(parents=True)
        (folder / "results" / experiment / "table.csv").write_text("\n".join([heads, *lines]))


def test_a_glance_marks_what_is_significant_alone_and_among_all_its_comparisons(filler, tmp_path, monkeypatch):
    heads = "setting,loss,training,opis change,opis change low,opis change high,opis p"
    tables = {
        "short": [
            "a,arcface,plain,,,,",
            "a,arcface,tcm,-0.2,-0.3,-0.1,0.001",
            "b,smooth_ap,tcm,0.1,0.05,0.2,0.03",
        ],
        "long": [
            "b,smooth_ap,tcm,-0.9,-0.95,-0.8,0.001",
            "b,arcface,tcm,-0.04,-0.2,0.1,0.4",
            "c,arcface,tcm,-0.5,-0.6,-0.4,0.001",
        ],
    }
    write_tables(tmp_path, heads, tables)
    monkeypatch.setattr(filler, "ROOT", tmp_path)
    page = "<!-- table: glance of=short/a,short/b,long/b training=tcm column=opis -->\nold\n<!-- end -->"
    lines = filler.filled(page).splitlines()[1:-1]
    assert lines[:-1] == [
        "| loss | a: TCM | b: TCM |",
        "| --- | --- | --- |",
        "| ArcFace | **−20%**† | −4% |",
        "| Smooth-AP | – | **+10%** |",
        "",
    ]
    counts = "with TCM, 1 of 3 are significantly lower (1 after the correction) and 1 higher (0)."
    assert lines[-1].startswith(f"OPIS, of all cases: {counts} Bold: ")
    assert lines[-1].endswith("after Holm's correction over all 3 comparisons of the table.")
    page = page.replace("long/b", "long/b:later")
    assert filler.filled(page).splitlines()[3:5] == [
        "| ArcFace | **−20%**† | – | −4% |",
        "| Smooth-AP | – | **+10%** | – |",
    ]


def test_holms_correction_is_that_of_an_independent_implementation():
    import numpy as np
    from scipy.stats import false_discovery_control  # not Holm's: only its order must agree

    from lab.holm import holm

    generator = np.random.default_rng(0)
    for number in (1, 2, 7, 46):
        p_values = generator.random(number) ** 4
        corrected = holm(p_values.tolist())
        rejected = set()  # by the definition: step down until one is not below its level
        for place, which in enumerate(np.argsort(p_values)):
            if p_values[which] > 0.05 / (number - place):
                break
            rejected.add(int(which))
        assert {which for which in range(number) if corrected[which] <= 0.05} == rejected
        assert np.array_equal(np.argsort(corrected, kind="stable")[:1], np.argsort(p_values)[:1])
        assert all(one >= other for one, other in zip(corrected, false_discovery_control(p_values), strict=True))


def test_raw_features_are_the_first_line_and_plain_has_its_change_from_them(filler, tmp_path, monkeypatch):
    ends = "opis change,opis change low,opis change high"
    heads = f"setting,loss,training,opis,{ends},{ends.replace('change', 'change from raw')}"
    lines = [
        "a,none,raw,0.02,,,,,,",
        "a,arcface,plain,0.01,,,,-0.5,-0.6,-0.4",
        "a,arcface,plain + local,0.004,-0.6,-0.7,-0.5,,,",
        "b,none,raw,0.9,,,,,,",
    ]
    write_tables(tmp_path, heads, {"birds": lines})
    monkeypatch.setattr(filler, "ROOT", tmp_path)
    page = (
        "<!-- table: birds setting=a loss=arcface rows=loss across=training:plain,plain+local columns=opis "
        "raw=changes -->\nold\n<!-- end -->"
    )
    assert filler.filled(page).splitlines()[1:-1] == [
        "| loss | plain: OPIS | plain from raw: OPIS | plain + local: OPIS |",
        "| --- | --- | --- | --- |",
        "| raw features | 20e-3 | – | – |",
        "| ArcFace | 10e-3 | −50% (−60 to −40) | −60% (−70 to −50) |",
    ]


def test_the_rank_correlation_is_of_the_trained_runs(filler, tmp_path, monkeypatch):
    (tmp_path / "results" / "front").mkdir(parents=True)
    runs = [("raw", 0.1, 9), ("plain", 0.5, 1), ("plain", 0.6, 2), ("plain", 0.7, 4), ("plain", 0.8, 3)]
    lines = [f"a,{training},{recall},{opis}" for training, recall, opis in runs]
    (tmp_path / "results" / "front" / "runs.csv").write_text("\n".join(["setting,training,recall@1,opis", *lines]))
    monkeypatch.setattr(filler, "ROOT", tmp_path)
    page = "<!-- table: correlation of=front -->\n<!-- end -->"
    assert "is −0.80 over all 4 trained models." in filler.filled(page)


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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_what_it_links_to_is_there(page):
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert (page.parent / link).exists(), link


def test_sections_that_pages_link_to_are_there():
    there = set()
    for page in PAGES:
        heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
        there |= {(page.name, re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")) for head in heads}
    links = [
        (page, section)
        for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
        for page, section in re.findall(r"\]\((?:docs/)?(results[\w-]*\.md)#([^)]+)", path.read_text(encoding="utf-8"))
    ]
    links += [
        (page.name, link) for page in PAGES for link in re.findall(r"\]\(#([^)]+)", page.read_text(encoding="utf-8"))
    ]
    assert links
    assert [link for link in links if link not in there] == []
