"""The tables of an experiment, made from its CSV files: rows, columns, and the notes below them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from isomargin.core.errors import InputError
from lab.calibration_ranges import range_tables
from lab.choices import is_local, is_raw
from lab.experiment import Experiment, load_experiment, load_settings
from lab.files import read_csv
from lab.rank_correlation import rank_sentences
from lab.results_folder import RANGES, RUNS, TABLE
from lab.score_text import NOTHING, change_text, score_text, signs, title
from lab.table_text import Table, as_latex, as_markdown, markdown_page

Format = Literal["markdown", "latex"]
FORMATS: tuple[Format, ...] = ("markdown", "latex")
Row = dict[str, str]
"""A row of table.csv, by the names of its columns."""


def tables_text(name: str, results: Path, form: Format = "markdown") -> str:
    """Write the tables of an experiment's results.

    Args:
        name: of the experiment.
        results: the folder that holds a folder of this name.
        form: Markdown has notes and the paper's own rows below the table; LaTeX has the tables alone.
    """
    experiment, folder = load_experiment(name), results / name
    if not (folder / TABLE).is_file():
        raise InputError(f"{folder} has no {TABLE}: run the experiment first, or choose other --results")
    tables = [make_table(experiment, read_csv(folder / TABLE))]
    if any(wanted.figure == "error_against_opis" for wanted in experiment.figures):
        sentences = rank_sentences(read_csv(folder / RUNS))
        tables = [replace(tables[0], notes=(*tables[0].notes, *sentences))]
    ranges = range_tables(read_csv(folder / RANGES)) if (folder / RANGES).is_file() else []
    if form == "latex":
        return "\n".join(as_latex(table.heads, table.lines) for table in (*tables, *ranges))
    return markdown_page(tables) + published_part(experiment) + ("\n" + markdown_page(ranges) if ranges else "")


def as_format(text: str) -> Format:
    """Read a format.

    >>> as_format("tex")
    Traceback (most recent call last):
    isomargin.InputError: format is 'tex': one of markdown, latex is needed
    """
    for form in FORMATS:
        if text == form:
            return form
    raise InputError(f"format is {text!r}: one of {', '.join(FORMATS)} is needed")


def make_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """Make the table of an experiment of any kind."""
    match experiment.kind:
        case "training":
            return training_table(experiment, rows)
        case "margins":
            return margins_table(experiment, rows)
        case "tuning":
            return tuning_table(experiment, rows)
        case "cost":
            return cost_table(experiment, rows)


def axes_of(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """Give the axes that rows have, in the order of their columns."""
    axes = {axis for plan in experiment.plans.values() for axis in plan.axes}
    return [name for name in (rows[0] if rows else ()) if name in axes]


def with_changes(heads: Sequence[str], changed: Sequence[bool]) -> list[str]:
    """Give every head, followed by a head for the changes where there are any."""
    return [text for head, has in zip(heads, changed, strict=True) for text in ([head, "change"] if has else [head])]


# Runs that were trained and tested


def training_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """Make the table of trained runs: one line per group of seeds, or one per seed with the group's mean below."""
    axes = axes_of(experiment, rows)
    by_seed = experiment.rows == "seeds"
    columns = [column for column in experiment.columns if any(column in row for row in rows)]
    changed = [any(change_text(row, column) for row in rows) for column in columns]
    heads = [
        "setting",
        *axes,
        "seed" if by_seed else "seeds",
        *with_changes([title(column) for column in columns], changed),
    ]
    lines = []
    for row in rows:
        line = [row["setting"], *(row[axis] for axis in axes), seeds_cell(row)]
        for column, has_changes in zip(columns, changed, strict=True):
            line += [score_cell(row, column), *([change_text(row, column)] if has_changes else [])]
        lines.append(line)
    return Table(heads, lines, notes=training_notes(rows, axes))


def is_mean_of_seeds(row: Row) -> bool:
    """Tell whether a row stands below the rows of single seeds."""
    return row.get("seed") == "mean"


def seeds_cell(row: Row) -> str:
    """Write how many seeds a row is of, or which one."""
    if is_mean_of_seeds(row):
        return "mean ± deviation" if int(row["seeds"]) > 1 else "mean"
    return row.get("seed") or row["seeds"]


def score_cell(row: Row, column: str) -> str:
    """Write a score; below single seeds with their standard deviation, where it is known."""
    text = score_text(row, column)
    if is_mean_of_seeds(row) and row.get(f"{column} deviation"):
        return f"{text} ± {score_text(row, f'{column} deviation', column)}"
    return text


def training_notes(rows: Sequence[Row], axes: Sequence[str]) -> tuple[str, ...]:
    """Say what the settings are, and what the changes are compared with."""
    notes = setting_notes(row["setting"] for row in rows)
    compared = [row for row in rows if row.get("against")]
    if compared:
        single = any(row["seeds"] == "1" and not is_raw(row) for row in compared)
        over = "classes; a single seed cannot show how much seeds differ" if single else "classes and seeds"
        notes.append(
            f"Changes compare with {bases(compared, axes)}; in brackets, 95% confidence intervals over {over}."
        )
    if any(is_raw(row) and not is_local(row) for row in rows):
        notes.append("raw: the features themselves, before anything is trained; table.csv has changes from them too.")
    if any(is_local(row) for row in rows):
        notes.append(
            "+ local: the same embeddings with the default equalizer, fitted on the test items without labels."
        )
    return tuple(notes)


def setting_notes(settings: Iterable[str]) -> list[str]:
    """Say what settings are."""
    known, _ = load_settings()
    return [f"{name}: {known[name].about}." for name in dict.fromkeys(settings) if name in known and known[name].about]


def bases(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """Name what rows are compared with, by the choices that differ.

    >>> bases([{"loss": "a", "training": "tcm", "against": "a+plain"}], ["loss", "training"])
    'plain'
    """
    differing = [
        choice for row in rows for choice in row["against"].split("+") if choice not in [row[axis] for axis in axes]
    ]
    return ", ".join(dict.fromkeys(differing))


# Searches of margins


def margins_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """Make the table of picked margins, with the scores on held-out classes without and with TCM."""
    axes = axes_of(experiment, rows)
    scores = [
        f"{score} {kind}" for score in ("recall@1 %", "OPIS ×1e-3") for kind in ("without TCM", "with TCM", "change")
    ]
    heads = ["setting", *axes, "seeds", "m⁺", "m⁻", "weight", *scores]
    lines = [[row["setting"], *(row[axis] for axis in axes), *margins_cells(row)] for row in rows]
    missing = [nothing_picked(row, axes) for row in rows if not row["positive_margin"]]
    return Table(heads, lines, notes=tuple(missing))


def nothing_picked(row: Row, axes: Sequence[str]) -> str:
    """Say that a search has picked nothing."""
    name = " ".join([row["setting"], *(row[axis] for axis in axes)])
    return f"{name} has no margins: no point of its grid has scores with every seed."


def margins_cells(row: Row) -> list[str]:
    """Write what a search has picked; dashes where it has picked nothing."""
    if not row["positive_margin"]:
        return [row["seeds"], *[NOTHING] * 9]
    recall, opis, base_recall, base_opis = (
        float(row[f"{score}{part}"] or math.nan) for part in ("", " without TCM") for score in ("recall_at_1", "opis")
    )
    return [
        row["seeds"],
        f"{float(row['positive_margin']):g}",
        f"{float(row['negative_margin']):g}",
        f"{float(row['weight']):g}" if row["weight"] else f"share {float(row['share']):g}",
        *(score_text(row, f"recall_at_1{part}", "recall@1") for part in (" without TCM", "")),
        NOTHING if math.isnan(base_recall) else signs(f"{100 * (recall - base_recall):+.2f}"),
        *(score_text(row, f"opis{part}", "opis") for part in (" without TCM", "")),
        signs(f"{100 * (opis / base_opis - 1):+.0f}%") if base_opis > 0 else NOTHING,
    ]


# Tuning


def tuning_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """Make the table of what was chosen for TCM and the class alignment, with the scores on held-out classes."""
    axes = axes_of(experiment, rows)
    scores = [f"{score} {kind}" for score in ("recall@1 %", "OPIS ×1e-3") for kind in ("plain", "chosen")]
    heads = ["setting", *axes, "regularizer", "seeds", "points", "m⁺", "m⁻", "share", *scores]
    ends = {setting: plan.tuning.ends for plan in experiment.plans.values() if plan.tuning for setting in plan.settings}
    cells = [tuning_cells(row, ends[row["setting"]]) for row in rows]
    lines = [[row["setting"], *(row[axis] for axis in axes), *line] for row, line in zip(rows, cells, strict=True)]
    at_end = sum(any(cell.endswith("*") for cell in line) for line in cells)
    note = f"An asterisk marks the first or the last value that is tried; {at_end} of {len(rows)} choices have one."
    return Table(heads, lines, notes=(*setting_notes(row["setting"] for row in rows), note))


def tuning_cells(row: Row, ends: Mapping[str, tuple[float, float]]) -> list[str]:
    """Write what was chosen, with a mark at the ends of what is tried; dashes where every training diverged."""
    chosen = [
        f"{float(row[name]):g}{'*' if float(row[name]) in ends[name] else ''}" if row[name] else NOTHING
        for name in ("positive_margin", "negative_margin", "share")
    ]
    scores = [score_text(row, f"{score}{part}", score) for score in ("recall@1", "opis") for part in (" plain", "")]
    return [row["training"], row["seeds"], row["points"], *chosen, *scores]


# Times


def cost_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """Make the table of the times that an epoch's parts take, with their range over repetitions."""
    axes = axes_of(experiment, rows)
    compared = bool(experiment.against)
    parts = [name.removesuffix(" seconds") for name in (rows[0] if rows else ()) if name.endswith(" seconds")]
    times = with_changes([f"{part}, s an epoch" for part in parts], [compared] * len(parts))
    lines = []
    for row in rows:
        line = [row["setting"], *(row[axis] for axis in axes)]
        for part in parts:
            line += [time_cell(row, part), *([change_text(row, part)] if compared else [])]
        lines.append(line)
    return Table(["setting", *axes, *times], lines)


def time_cell(row: Row, part: str) -> str:
    """Write a time with its range over repetitions."""
    middle, low, high = (float(row[f"{part} seconds{end}"]) for end in ("", " lowest", " highest"))
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


# The paper's rows


def published_part(experiment: Experiment) -> str:
    """Write the paper's own rows, which stand below the table; nothing if there are none."""
    if not experiment.published:
        return ""
    heads = list(dict.fromkeys(name for row in experiment.published for name in row))
    lines = [[published_cell(row.get(name)) for name in heads] for row in experiment.published]
    return f"\n{f'The paper reports: {experiment.paper}'.strip()}\n\n{as_markdown(heads, lines)}"


def published_cell(value: str | float | None) -> str:
    """Write a number as the paper prints it, as far as a number can tell.

    >>> published_cell(0.38e-3), published_cell(63.1), published_cell(-0.16), published_cell("–"), published_cell(None)
    ('3.8e-4', '63.1', '−0.16', '–', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    text = f"{value:.10g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.10e}"
    digits, exponent, power = text.partition("e")
    return f"{signs(digits).rstrip('0').rstrip('.')}e{int(power)}" if exponent else signs(digits)
