"""An experiment's rows as a table: Markdown to read, LaTeX to print, CSV to compute with."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from isomargin.measure.comparison import Difference
from isomargin.measure.seed_comparison import FAR_SPREAD, FRR_SPREAD
from lab.experiment import Experiment
from lab.files import without_nan
from lab.seed_means import Row, row_values, run_values

TITLES = {
    "opis": "OPIS ×1e-3",
    "debiased_opis": "OPIS without noise ×1e-3",
    "epsilon_opis": "10%-OPIS ×1e-3",
    "relative_opis": "OPIS / sq. disutility",
    "mean_utility": "mean utility",
    "eer": "EER %",
    "map_at_r": "MAP@R %",
    FAR_SPREAD: "threshold spread",
    FRR_SPREAD: "FRR threshold spread",
    "seconds": "seconds a run",
}
THOUSANDTHS = ("opis", "debiased_opis", "epsilon_opis")
SHARES = ("eer", "map_at_r", "mean_utility")
LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "^": r"\^{}",
    "~": r"\~{}",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "⁺": "$^+$",
    "⁻": "$^-$",
    "²": "$^2$",
    "′": "$'$",
    "–": "--",
    "τ": r"$\tau$",
    "ε": r"$\varepsilon$",
}
"""What LaTeX would read, or pdflatex has no letter for."""


def title(column: str) -> str:
    """Name a column.

    >>> title("opis"), title("recall@1")
    ('OPIS ×1e-3', 'recall@1 %')
    """
    return TITLES.get(column, f"{column} %")


def shown(column: str, value: float) -> str:
    """Write a score as its column does.

    >>> shown("opis", 1.8436e-3), shown("recall@1", 0.98067)
    ('1.84', '98.07')
    """
    if math.isnan(value):
        return "–"
    digits = ".2f" if unit(column) == 100 else ".3g"
    return signs(f"{unit(column) * value:{digits}}")


def unit(column: str) -> float:
    """Give what a column's values are multiplied by.

    >>> unit("opis"), unit("recall@1"), unit("far_threshold_spread")
    (1000.0, 100.0, 1.0)
    """
    if column in THOUSANDTHS:
        return 1e3
    return 100.0 if column.startswith("recall@") or column in SHARES else 1.0


def change(difference: Difference) -> str:
    """Write a difference with its interval: a share of the first for OPIS and its kin, points for shares.

    >>> from isomargin.measure.statistics.intervals import Interval
    >>> moved, share = Interval(-0.001, -0.002, -0.0005, 0.95), Interval(-0.3, -0.4, -0.1, 0.95)
    >>> change(Difference("opis", 0.003, 0.002, moved, share, 0.01))
    '−30% (−40 to −10)'
    >>> change(Difference("recall@1", 0.9, 0.899, moved, None, 0.01))
    '−0.10 (−0.20 to −0.05)'
    >>> change(Difference("debiased_opis", 0.0001, -0.0009, moved, None, 0.01))
    '−1.00 (−2.00 to −0.50)'
    """
    if difference.change is not None:
        of = difference.change
        return signs(f"{100 * of.value:+.0f}% ({100 * of.low:+.0f} to {100 * of.high:+.0f})")
    of, scale = difference.difference, unit(difference.score)
    return signs(f"{scale * of.value:+.2f} ({scale * of.low:+.2f} to {scale * of.high:+.2f})")


def signs(text: str) -> str:
    """Put the minus sign in the hyphen's place."""
    return text.replace("-", "−")


@dataclass(frozen=True)
class Table:
    """An experiment's table: as it is read, and every number of it."""

    heads: list[str]
    lines: list[list[str]]
    """A cell a head."""
    numbers: list[dict[str, Any]]
    """By name, for computing; not all rows have all."""


def make_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    """Give the table of an experiment's runs, a row a group, or a row a seed with the group below."""
    axes = list(dict.fromkeys(axis for row in rows for axis in row.choices))
    columns = [each for each in experiment.columns if any(each in row.means for row in rows)]
    changed = [each for each in columns if any(each in row.differences for row in rows)]
    by_seed = experiment.rows == "seeds"
    heads = ["setting", *axes, "seed" if by_seed else "seeds"]
    for column in columns:
        heads += [title(column), "change"] if column in changed else [title(column)]
    lines, numbers = [], []
    for row in rows:
        begin = [row.setting, *(row.choices.get(axis, "") for axis in axes)]
        if by_seed:
            for result in row.results:
                cells = [[score_cell(column, result.scores), ""] for column in columns]
                lines.append([*begin, str(result.run.seed), *flat(cells, columns, changed)])
                numbers.append(run_values(result))
        cells = [[mean_cell(column, row, by_seed), change_cell(column, row)] for column in columns]
        which = ("mean ± deviation" if row.seeds > 1 else "mean") if by_seed else str(row.seeds)
        lines.append([*begin, which, *flat(cells, columns, changed)])
        numbers.append({**row_values(row), "seed": "mean"} if by_seed else row_values(row))
    return Table(heads, lines, numbers)


def notes_of(rows: Sequence[Row], about: Mapping[str, str]) -> tuple[str, ...]:
    """Say what the settings of some rows are, by name, and what stands in brackets."""
    notes = setting_notes(dict.fromkeys(row.setting for row in rows), about)
    if any(row.differences for row in rows):
        single = any(row.seeds == 1 for row in rows if row.differences)
        over = "classes; how much seeds differ a single one cannot tell" if single else "classes and seeds"
        notes.append(f"Changes are against {against(rows)}, in brackets their 95% intervals over {over}.")
    return tuple(notes)


def setting_notes(names: Iterable[str], about: Mapping[str, str]) -> list[str]:
    """Say what settings are."""
    return [f"{name}: {about[name]}." for name in names if about.get(name)]


def against(rows: Sequence[Row]) -> str:
    """Name what rows are held against, by the choices that they have not in common.

    >>> from types import SimpleNamespace as row
    >>> against([row(choices={"loss": "a", "training": "tcm"}, against="a+plain")])
    'plain'
    """
    held = [(row.choices, row.against.split("+")) for row in rows if row.against is not None]
    return ", ".join(dict.fromkeys(each for own, base in held for each in base if each not in own.values()))


def flat(cells: Sequence[list[str]], columns: Sequence[str], changed: Sequence[str]) -> list[str]:
    """Put scores and changes side by side, without changes where a column has none."""
    pairs = zip(cells, columns, strict=True)
    return [text for pair, column in pairs for text in (pair if column in changed else pair[:1])]


def score_cell(column: str, scores: Mapping[str, float]) -> str:
    """Write a score, if there is one."""
    return shown(column, scores[column]) if column in scores else ""


def mean_cell(column: str, row: Row, with_deviation: bool) -> str:
    """Write the mean over seeds, with the deviation of single ones where it is wanted and known."""
    mean = score_cell(column, row.means)
    known = with_deviation and column in row.deviations and not math.isnan(row.deviations[column])
    return f"{mean} ± {shown(column, row.deviations[column])}" if known else mean


def change_cell(column: str, row: Row) -> str:
    """Write how a score differs from that it is held against."""
    return change(row.differences[column]) if column in row.differences else ""


def as_markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table for reading.

    >>> print(as_markdown(["loss", "recall@1 %"], [["a|b", "98.07"]]), end="")
    | loss | recall@1 % |
    | --- | --- |
    | a\\|b | 98.07 |
    """
    parts = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(each.replace("|", "\\|") for each in line) + " |" for line in parts) + "\n"


def read_markdown(text: str) -> tuple[list[str], list[list[str]], str]:
    """Read a text that begins with a table as `as_markdown` writes it: heads, lines, and what comes after.

    >>> read_markdown(as_markdown(["loss"], [["a|b"]]) + "\\nA note.\\n")
    (['loss'], [['a|b']], '\\nA note.\\n')
    """
    rows = list(takewhile(lambda line: line.startswith("|"), text.splitlines(keepends=True)))
    heads, _, *lines = ([each.replace("\\|", "|") for each in row.strip()[2:-2].split(" | ")] for row in rows)
    return heads, lines, text[sum(map(len, rows)) :]


def published_part(experiment: Experiment) -> str:
    """Write the paper's own rows, to stand below the table; nothing if there are none."""
    if not experiment.published:
        return ""
    heads = list(dict.fromkeys(name for row in experiment.published for name in row))
    lines = [[published_cell(row.get(name)) for name in heads] for row in experiment.published]
    return f"\n{f'The paper has: {experiment.paper}'.strip()}\n\n{as_markdown(heads, lines)}"


def published_cell(value: str | float | None) -> str:
    """Write a number as the paper does, as far as a number can tell.

    >>> published_cell(0.38e-3), published_cell(63.1), published_cell(-0.16), published_cell("–"), published_cell(None)
    ('3.8e-4', '63.1', '−0.16', '–', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    text = f"{value:.10g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.10e}"
    digits, exponent, power = text.partition("e")
    return f"{signs(digits).rstrip('0').rstrip('.')}e{int(power)}" if exponent else signs(digits)


def as_latex(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table for a paper, with the rules of booktabs."""
    body = [" & ".join(latex_text(each) for each in line) + r" \\" for line in lines]
    top = " & ".join(latex_text(each) for each in heads) + r" \\"
    rows_of_text = [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", top, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*rows_of_text, r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    r"""Escape what LaTeX would read, and write signs that it has no letter for as it does.

    >>> latex_text("smooth_ap, 10% − 2"), latex_text("m⁺ 1–2")
    ('smooth\\_ap, 10\\% $-$ 2', 'm$^+$ 1--2')
    """
    return "".join(LATEX.get(each, each) for each in text)


def as_csv(numbers: Sequence[Mapping[str, Any]]) -> str:
    """Write every number of every row; empty where there is none."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in numbers for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(without_nan(dict(row)) for row in numbers)
    return text.getvalue()
