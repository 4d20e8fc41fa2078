"""An experiment's rows as a table: Markdown to read, LaTeX to print, CSV to compute with."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from isomargin.lab.experiment import Experiment
from isomargin.lab.results import Row, row_values
from isomargin.measure.comparison import Difference
from isomargin.measure.seeds import SPREAD

TITLES = {
    "opis": "OPIS ×1e-3",
    "debiased_opis": "OPIS without noise ×1e-3",
    "epsilon_opis": "10%-OPIS ×1e-3",
    "relative_opis": "OPIS / sq. disutility",
    "mean_utility": "mean utility",
    "eer": "EER %",
    "map_at_r": "MAP@R %",
    SPREAD: "threshold spread",
    "seconds": "seconds a run",
}
THOUSANDTHS = ("opis", "debiased_opis", "epsilon_opis")
SHARES = ("eer", "map_at_r", "mean_utility")


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
    if column in THOUSANDTHS:
        return f"{1e3 * value:.3g}"
    if column.startswith("recall@") or column in SHARES:
        return f"{100 * value:.2f}"
    return f"{value:.3g}"


def change(difference: Difference) -> str:
    """Write a difference with its interval: a share of the first for OPIS and its kin, points for shares.

    >>> from isomargin.measure.uncertainty import Interval
    >>> moved, share = Interval(-0.001, -0.002, -0.0005, 0.95), Interval(-0.3, -0.4, -0.1, 0.95)
    >>> change(Difference("opis", 0.003, 0.002, moved, share, 0.01))
    '−30% (−40 to −10)'
    >>> change(Difference("recall@1", 0.9, 0.899, moved, None, 0.01))
    '−0.10 (−0.20 to −0.05)'
    """
    if difference.change is not None:
        of = difference.change
        return signs(f"{100 * of.value:+.0f}% ({100 * of.low:+.0f} to {100 * of.high:+.0f})")
    of = difference.difference
    return signs(f"{100 * of.value:+.2f} ({100 * of.low:+.2f} to {100 * of.high:+.2f})")


def signs(text: str) -> str:
    """Put the minus sign in the hyphen's place."""
    return text.replace("-", "−")


def cells(experiment: Experiment, rows: Sequence[Row]) -> list[list[str]]:
    """Give the table's cells, the heads first."""
    axes = list(dict.fromkeys(axis for row in rows for axis in row.choices))
    columns = [each for each in experiment.columns if any(each in row.means for row in rows)]
    heads = ["setting", *axes, "seeds"]
    for column in columns:
        heads.append(title(column))
        if any(column in row.differences for row in rows):
            heads.append("change")
    table = [heads]
    for row in rows:
        line = [row.setting, *(row.choices.get(axis, "") for axis in axes), str(row.seeds)]
        for column in columns:
            line.append(shown(column, row.means[column]) if column in row.means else "")
            if any(column in each.differences for each in rows):
                line.append(change(row.differences[column]) if column in row.differences else "")
        table.append(line)
    return table


def as_markdown(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Write the table for reading."""
    heads, *lines = cells(experiment, rows)
    parts = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(each.replace("|", "\\|") for each in line) + " |" for line in parts) + "\n"


def as_latex(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Write the table for a paper, with the rules of booktabs."""
    heads, *lines = cells(experiment, rows)
    body = [" & ".join(latex_text(each) for each in line) + r" \\" for line in lines]
    top = " & ".join(latex_text(each) for each in heads) + r" \\"
    rows_of_text = [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", top, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*rows_of_text, r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    r"""Escape what LaTeX would read.

    >>> latex_text("smooth_ap, 10% − 2")
    'smooth\\_ap, 10\\% $-$ 2'
    """
    for mark in "&%$#_{}":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("−", "$-$").replace("×", r"$\times$")


def as_csv(rows: Sequence[Row]) -> str:
    """Write every number of every row."""
    flat = [row_values(row) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
