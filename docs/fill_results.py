"""Fill the tables of the pages from results/*/table.csv, so that no number is copied by hand.

    python docs/fill_results.py

A table is between two comments. The first one says what it shows:

    <!-- table: base-losses setting=cub-heads rows=loss across=training:plain,tcm columns=recall@1,opis -->
    <!-- end -->

`rows` lists the axes whose choices are rows. `across` names an axis and the choices of it that are columns: the first
with its scores, the others with their changes from the first and 95% confidence intervals. Without `across` every row
has its scores and their changes. Times, such as `loss` and `epoch` of the experiment `cost`, have the range of their
measurements in brackets. Other settings, such as `setting=` and `loss=`, select rows of the file; commas separate
several values.

Where the file has raw features (training=raw), they are the first line, with their scores in the columns of the first
choice. `raw=changes` adds how the first choice changes them. `plain+local` is plain training, equalized.
`compared=equalized` shows only the changes from plain training equalized, of the rows that have them.

`glance` is a table of several experiments: how much some choices of the training change one score, by loss and setting,
and how many of the changes are statistically significant, that is, have a 95% confidence interval without zero: these
are in bold. A dagger marks those that are still significant at 5% after Holm's correction over all comparisons of the
table. A loss that several of the experiments have in a setting is taken from the first of them. A setting that is
trained longer in one of them has columns of its own, named by what follows a colon.

    <!-- table: glance of=base-losses/cub-heads,convergence/omniglot:long training=tcm,alignment column=opis -->
    <!-- end -->

`correlation` is a sentence: Spearman's rank correlation of the error 1 - recall@1 and OPIS over the runs of an
experiment, from its runs.csv.

    <!-- table: correlation of=pareto -->
    <!-- end -->

`tuning` is what the experiment of that name has chosen, as `python -m lab tables tuning` prints it.

    <!-- table: tuning setting=cub-heads-held-out -->
    <!-- end -->

`equalize`, `networks`, `regime` and `targets` are tables of the experiment equalize: of one data set, of networks
trained in several ways, of one regime for all data sets, and of what was aimed at.

    <!-- equalize: cub -->
    <!-- end -->
    <!-- regime: 4 items per class -->
    <!-- end -->
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the lab is not installed

from isomargin.measure.settings import Settings
from lab.choices import LOCAL, RAW
from lab.equalizing.tables import TABLES
from lab.experiment import load_experiment
from lab.files import read_csv
from lab.holm import LEVEL, holm
from lab.rank_correlation import rank_sentences
from lab.score_text import NOTHING, change_text, score_of, unit
from lab.table_text import as_markdown
from lab.tables import tuning_table

ROOT = Path(__file__).parents[1]
PAGES = (*sorted((ROOT / "docs").glob("results*.md")), ROOT / "docs" / "equalize.md", ROOT / "README.md")
TABLE = re.compile(r"<!-- table: (?P<name>\S+) (?P<settings>[^>]*?) -->\n(?P<old>.*?)<!-- end -->", re.S)
EQUALIZE = re.compile(
    r"<!-- (?P<kind>equalize|networks|regime|targets): (?P<name>[^>]*?) -->\n(?P<old>.*?)<!-- end -->", re.S
)
Row = dict[str, str]
Cases = dict[tuple[str, str], dict[str, Row]]
"""By setting and loss, the rows of its trainings."""
LOSSES = {
    "proxy_nca": "ProxyNCA",
    "arcface": "ArcFace",
    "smooth_ap": "Smooth-AP",
    "recall_at_k": "RS@k",
    "proxy_anchor": "ProxyAnchor",
    "soft_triple": "SoftTriple",
}
"""In the order of the paper."""
NAMES = {
    **LOSSES,
    "tcm": "TCM",
    "tcm_paper": "TCM, weight 1",
    "raw": "raw features",
    "none": "",
    "both": "alignment and TCM",
    "tcm_by_weight": "TCM",
    "alignment_by_weight": "alignment",
    "tcm_by_share": "TCM by a share",
    "alignment_by_share": "alignment by a share",
    "tcm_tuned": "TCM, tuned",
    "alignment_tuned": "alignment, tuned",
    "alignment_strangers": "alignment of negative pairs",
    # Shorter than the scores' own titles; the page explains them.
    "debiased_opis": "OPIS without noise",
    "far_threshold_spread": "threshold spread",
    "frr_threshold_spread": "FRR threshold spread",
    "calibration_low": "distance at 1% FAR",
    "calibration_high": "distance at 10% FAR",
}


def name(text: str) -> str:
    """Give the name of a choice or a column that readers know."""
    if text.endswith(LOCAL):
        return f"{name(text.removesuffix(LOCAL))}{LOCAL}"
    score = score_of(text)
    return NAMES.get(text) or (text.replace("_", " ") if score is None else score.title_for(Settings()))


def score_cell(row: Row, column: str) -> str:
    """Write a score, or a time."""
    if f"{column} seconds" in row:
        return f"{float(row[f'{column} seconds']):.3g} s"
    value = unit(column) * float(row[column])
    if unit(column) == 1e3:
        return f"{value:.3g}e-3"
    return f"{value:.1f}%" if unit(column) == 100 else f"{value:.3g}"


def read(experiment: str, wanted: dict[str, str]) -> list[Row]:
    """Read the rows of an experiment that have the wanted choices."""
    return [
        row
        for row in read_csv(ROOT / "results" / experiment / "table.csv")
        if all(value in wanted.get(column, value).split(",") for column, value in row.items())
    ]


def table(experiment: str, wanted: dict[str, str]) -> str:
    """Make a table of one experiment."""
    rows = read(experiment, wanted)
    axes, columns = wanted["rows"].split(","), wanted["columns"].split(",")
    of_setting = {"setting": wanted["setting"]} if "setting" in wanted else {}
    raw = [row for row in read(experiment, of_setting) if row.get("training") == RAW]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.get("training") != RAW:
            groups.setdefault(tuple(row[axis] for axis in axes), []).append(row)
    if "across" in wanted:
        axis, _, choices = wanted["across"].partition(":")
        heads, cells = across_table(groups, axis, choices.split(","), columns, wanted.get("raw") == "changes")
    elif "compared" in wanted:
        compared, raw = f" from {wanted['compared']}", []
        groups = {key: rows for key, rows in groups.items() if change_text(rows[0], columns[0], compared)}
        heads = [f"{name(column)} change" for column in columns]
        cells = [[change_text(row, column, compared) for column in columns] for (row,) in groups.values()]
    else:
        heads, cells = plain_table(groups, columns)
    lines = [[*(name(choice) for choice in key), *line] for key, line in zip(groups, cells, strict=True)]
    for row in reversed(raw):
        begin = [name(RAW) if axis in ("loss", "training") else name(row[axis]) for axis in axes]
        if name(RAW) not in begin:
            begin[0] += f", {name(RAW)}"
        scores = [score_cell(row, column) for column in columns]
        first = next((i for i, key in enumerate(groups) if row["setting"] in key), 0)  # above the setting's own rows
        lines.insert(first, [*begin, *scores, *[NOTHING] * (len(heads) - len(scores))])
    return as_markdown([*axes, *heads], lines)


Cells = tuple[list[str], list[list[str]]]
"""Heads and lines."""


def across_table(
    groups: dict[tuple[str, ...], list[Row]], axis: str, choices: list[str], columns: list[str], from_raw: bool = False
) -> Cells:
    """Give the scores of the first choice of an axis, and the changes of the others; of the first from raw if asked."""
    heads = [f"{name(choice)}: {name(column)}" for choice in choices for column in columns]
    if from_raw:
        heads[len(columns) : len(columns)] = [f"{name(choices[0])} from raw: {name(column)}" for column in columns]
    lines = []
    for rows in groups.values():
        line = []
        for choice in choices:
            (chosen,) = (row for row in rows if row[axis] == choice)
            cell = score_cell if choice == choices[0] else change_text
            line += [cell(chosen, column) for column in columns]
            if from_raw and choice == choices[0]:
                line += [change_text(chosen, column, " from raw") for column in columns]
        lines.append(line)
    return heads, lines


def plain_table(groups: dict[tuple[str, ...], list[Row]], columns: list[str]) -> Cells:
    """Give the scores of every row, and their changes where there are any."""
    rows = [row for (row,) in groups.values()]
    changed = [column for column in columns if any(change_text(row, column) for row in rows)]
    heads = [*(name(column) for column in columns), *(f"{name(column)} change" for column in changed)]
    lines = [
        [*(score_cell(row, column) for column in columns), *(change_text(row, column) for column in changed)]
        for row in rows
    ]
    return heads, lines


def read_cases(sources: str, trainings: str) -> Cases:
    """Read the rows of trainings by setting and loss, from sources such as `base-losses/cub-heads,splits/cub-heads`.

    `convergence/omniglot:long` adds the losses that `omniglot` does not have yet, as those of `omniglot long`.
    """
    cases: Cases = {}
    known: set[tuple[str, str]] = set()
    for source in sources.split(","):
        experiment, setting, _ = parts_of(source)
        rows = [
            row
            for row in read(experiment, {"setting": setting, "training": trainings})
            if (setting, row["loss"]) not in known
        ]
        for row in rows:
            cases.setdefault((column_of(source), row["loss"]), {})[row["training"]] = row
        known |= {(setting, row["loss"]) for row in rows}
    return cases


def parts_of(source: str) -> tuple[str, str, str]:
    """Divide a source into its experiment, its setting and what makes the setting another one here, if anything."""
    experiment, _, rest = source.partition("/")
    setting, _, other = rest.partition(":")
    return experiment, setting, other


def column_of(source: str) -> str:
    """Name the columns of a source.

    >>> column_of("convergence/omniglot:long"), column_of("two-sides/omniglot")
    ('omniglot long', 'omniglot')
    """
    _, setting, other = parts_of(source)
    return f"{setting} {other}".strip()


def losses_of(cases: Cases) -> list[str]:
    """List the losses of cases, in the order of the paper."""
    return [loss for loss in LOSSES if any(loss == other for _, other in cases)]


def glance(wanted: dict[str, str]) -> str:
    """Make a table of several experiments: the changes of a score by loss and setting, and how many are significant."""
    trainings, column = wanted["training"].split(","), wanted["column"]
    cases = read_cases(wanted["of"], wanted["training"])
    settings = list(dict.fromkeys(map(column_of, wanted["of"].split(","))))
    heads = ["loss", *(f"{setting}: {name(training)}" for setting in settings for training in trainings)]
    wanted_rows = [row for rows in cases.values() for training, row in rows.items() if training in trainings]
    corrected = dict(zip(map(id, wanted_rows), holm([p_value(row, column) for row in wanted_rows]), strict=True))
    lines = []
    for loss in losses_of(cases):
        rows = [cases.get((setting, loss), {}).get(training) for setting in settings for training in trainings]
        lines.append([name(loss), *(change_without_interval(row, column, corrected) for row in rows)])
    counts = []
    for training in trainings:
        chosen = [rows[training] for rows in cases.values() if training in rows]
        signs = [sign(row, column) for row in chosen]
        lasting = [sign(row, column) for row in chosen if corrected[id(row)] < LEVEL]
        counts.append(
            f"with {name(training)}, {signs.count(-1)} of {len(signs)} are significantly lower "
            f"({lasting.count(-1)} after the correction) and {signs.count(1)} higher ({lasting.count(1)})"
        )
    title = f"{name(column)[0].upper()}{name(column)[1:]}"
    return (
        f"{as_markdown(heads, lines)}\n{title}, of all cases: {'; '.join(counts)}. Bold: the 95% confidence interval "
        f"excludes zero. †: also significant at 5% after Holm's correction over all {len(wanted_rows)} comparisons of "
        "the table.\n"
    )


def p_value(row: Row, column: str) -> float:
    """Give the p value of a change."""
    return float(row[f"{column} p"])


def change_without_interval(row: Row | None, column: str, corrected: dict[int, float]) -> str:
    """Write a change without its interval, in bold where the interval excludes zero; a dash where there is none.

    A dagger stands where the corrected p value, by the identity of the row, is below 5% too.
    """
    if row is None:
        return NOTHING
    text = change_text(row, column).partition(" (")[0]
    if not sign(row, column):
        return text
    return f"**{text}**{'†' if corrected[id(row)] < LEVEL else ''}"


def correlation(wanted: dict[str, str]) -> str:
    """Say how the error and OPIS of an experiment's runs are ranked, together and by training."""
    return "".join(
        f"{sentence}\n" for sentence in rank_sentences(read_csv(ROOT / "results" / wanted["of"] / "runs.csv"))
    )


def tuning(wanted: dict[str, str]) -> str:
    """Make the table of what was chosen by one rule, with the number of choices at an end of the values tried."""
    made = tuning_table(load_experiment("tuning"), read("tuning", wanted))
    return f"{as_markdown(made.heads, made.lines)}\n{made.notes[-1]}\n"


def sign(row: Row, column: str) -> int:
    """Tell whether a change is significantly down (-1), up (1) or neither (0)."""
    kind = "change" if row.get(f"{column} change") else "difference"
    low, high = (float(row[f"{column} {kind} {end}"]) for end in ("low", "high"))
    return (low > 0) - (high < 0)


def filled(page: str) -> str:
    """Give a page with its tables filled in again."""

    def fill(found: re.Match[str]) -> str:
        settings = found["settings"].replace("+local", "&").split()
        wanted = dict(setting.replace("&", LOCAL).split("=", 1) for setting in settings)
        head = found[0][: found[0].index("-->") + 4]
        several = {"glance": glance, "correlation": correlation, "tuning": tuning}.get(found["name"])
        text = several(wanted) if several else table(found["name"], wanted)
        return f"{head}{text}<!-- end -->"

    def fill_equalize(found: re.Match[str]) -> str:
        text = TABLES[found["kind"]](ROOT / "results" / "equalize", found["name"])
        return f"<!-- {found['kind']}: {found['name']} -->\n{text}<!-- end -->"

    return EQUALIZE.sub(fill_equalize, TABLE.sub(fill, page))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
