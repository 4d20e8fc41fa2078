"""Write the tables of docs/results.md and of the README from results/*/table.csv: no number is copied by hand.

    python docs/fill_results.py

A table stands between two comments, of which the first says what it shows:

    <!-- table: base-losses setting=cub-heads rows=loss across=training:plain,tcm columns=recall@1,opis -->
    <!-- end -->

`rows` are the axes whose choices are rows, `across` an axis and the choices of it that stand beside each other: the
first with its scores, the others with their changes and 95% intervals against it. Without `across` every row has its
scores and their changes. Times, as `loss` and `epoch` of the experiment `cost`, have the range of their measurements in
brackets. Other settings, such as `setting=` and `loss=`, choose among the rows of the file, with commas
several.

`glance` is a table of many experiments: what choices of the training change in one column, by loss and setting, and in
how many cases measurably. A loss that several of the experiments have in a setting is taken from the first of them.

    <!-- table: glance of=base-losses/cub-heads,convergence/omniglot training=tcm,alignment column=opis -->
    <!-- end -->
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the lab is not installed

from lab.files import read_csv
from lab.score_text import THOUSANDTHS, change_text, unit
from lab.table_text import as_markdown

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")
TABLE = re.compile(r"<!-- table: (?P<name>\S+) (?P<settings>[^>]*?) -->\n(?P<old>.*?)<!-- end -->", re.S)
Cases = dict[tuple[str, str], dict[str, dict[str, str]]]
"""By setting and loss, the rows of its trainings."""
NAMES = {
    "proxy_nca": "ProxyNCA",
    "arcface": "ArcFace",
    "smooth_ap": "Smooth-AP",
    "recall_at_k": "RS@k",
    "proxy_anchor": "ProxyAnchor",
    "soft_triple": "SoftTriple",
    "tcm": "TCM",
    "both": "alignment and TCM",
    "lower_rate": "lower rate",
    "opis": "OPIS",
    "debiased_opis": "OPIS without noise",
    "epsilon_opis": "10%-OPIS",
    "far_threshold_spread": "threshold spread",
    "frr_threshold_spread": "FRR threshold spread",
    "calibration_low": "distance at 1% FAR",
    "calibration_high": "distance at 10% FAR",
    "tcm_by_weight": "TCM",
    "alignment_by_weight": "alignment",
    "tcm_by_share": "TCM by a share",
    "alignment_by_share": "alignment by a share",
}


def name(text: str) -> str:
    """Give a choice or a column as a reader knows it."""
    return NAMES.get(text, text.replace("_", " "))


def score(row: dict[str, str], column: str) -> str:
    """Write a score."""
    if f"{column} seconds" in row:
        return f"{float(row[f'{column} seconds']):.3g} s"
    value = unit(column) * float(row[column])
    if column in THOUSANDTHS:
        return f"{value:.3g}e-3"
    return f"{value:.1f}%" if column.startswith("recall@") else f"{value:.3g}"


def read(experiment: str, wanted: dict[str, str]) -> list[dict[str, str]]:
    """Read the rows of an experiment that have the wanted choices."""
    return [
        row
        for row in read_csv(ROOT / "results" / experiment / "table.csv")
        if all(row[each] in wanted.get(each, row[each]).split(",") for each in row)
    ]


def table(experiment: str, wanted: dict[str, str]) -> str:
    """Make a table."""
    rows = read(experiment, wanted)
    by, columns = wanted["rows"].split(","), wanted["columns"].split(",")
    axis, _, listed = wanted.get("across", "").partition(":")
    choices = listed.split(",") if listed else [""]
    heads = [*by]
    for number, choice in enumerate(choices):
        heads += [f"{name(choice)}: {name(column)}" if choice else name(column) for column in columns]
        if not choice and number == 0:
            heads += [f"{name(column)} change" for column in columns if any(change_text(row, column) for row in rows)]
    lines = []
    for key in dict.fromkeys(tuple(row[each] for each in by) for row in rows):
        same = [row for row in rows if tuple(row[each] for each in by) == key]
        cells = [name(each) for each in key]
        for number, choice in enumerate(choices):
            (row,) = (each for each in same if not choice or each[axis] == choice)
            cells += [score(row, each) if number == 0 else change_text(row, each) for each in columns]
            if not choice:
                cells += [change_text(row, each) for each in columns if any(change_text(every, each) for every in rows)]
        lines.append(cells)
    return as_markdown(heads, lines)


def read_cases(sources: str, trainings: str) -> Cases:
    """Read the rows of trainings by loss and setting, of experiments and settings as in `base-losses/cub-heads`."""
    cases: Cases = {}
    for source in sources.split(","):
        experiment, setting = source.split("/")
        here: Cases = {}
        for row in read(experiment, {"setting": setting, "training": trainings}):
            here.setdefault((setting, row["loss"]), {})[row["training"]] = row
        cases = {**here, **cases}
    return cases


def losses_of(cases: Cases) -> list[str]:
    """List the losses of cases, in the order of the paper."""
    return [each for each in NAMES if any(each == loss for _, loss in cases)]


def glance(wanted: dict[str, str]) -> str:
    """Make a table of what trainings change in all cases of a loss and a setting, and count the measurable changes."""
    trainings, column = wanted["training"].split(","), wanted["column"]
    cases = read_cases(wanted["of"], wanted["training"])
    settings = list(dict.fromkeys(source.split("/")[1] for source in wanted["of"].split(",")))
    losses = losses_of(cases)
    heads = ["loss", *(f"{setting}: {name(each)}" for setting in settings for each in trainings)]
    lines = []
    for loss in losses:
        cells = [brief(cases.get((here, loss), {}).get(each), column) for here in settings for each in trainings]
        lines.append([name(loss), *cells])
    signs = {each: [sign(rows[each], column) for rows in cases.values() if each in rows] for each in trainings}
    counts = [
        f"with {name(each)} {found.count(-1)} of {len(found)} are measurably lower and {found.count(1)} higher"
        for each, found in signs.items()
    ]
    title = f"{name(column)[0].upper()}{name(column)[1:]}"
    return f"{as_markdown(heads, lines)}\n{title}, of all cases: {'; '.join(counts)}.\n"


def brief(row: dict[str, str] | None, column: str) -> str:
    """Write a change without its interval, bold where that excludes zero; a dash where there is none."""
    if row is None:
        return "–"
    text = change_text(row, column).partition(" (")[0]
    return f"**{text}**" if sign(row, column) else text


def sign(row: dict[str, str], column: str) -> int:
    """Tell whether a change is measurably down (-1) or up (1)."""
    kind = "change" if row.get(f"{column} change") else "difference"
    low, high = (float(row[f"{column} {kind} {end}"]) for end in ("low", "high"))
    return (low > 0) - (high < 0)


def filled(page: str) -> str:
    """Give the page with its tables made anew."""

    def fill(found: re.Match[str]) -> str:
        wanted = dict(each.split("=", 1) for each in found["settings"].split())
        head = found[0][: found[0].index("-->") + 4]
        made = glance(wanted) if found["name"] == "glance" else table(found["name"], wanted)
        return f"{head}{made}<!-- end -->"

    return TABLE.sub(fill, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
