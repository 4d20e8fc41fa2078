"""The tables of docs/equalize.md, from results/equalize."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.files import read_csv
from lab.table_text import as_markdown

Row = Mapping[str, str]
HEADS = [
    "method", "recall@1", "MAP@R", "EER", "FRR at FAR 1%", "OPIS ×1e-3", "change of OPIS", "spread", "change of spread",
    "within a factor of two", "the same, new classes", "mean FAR, new classes",
]  # fmt: skip
REGIME_HEADS = ["data", "method", "recall@1", "EER", "FRR at FAR 1%", "OPIS ×1e-3", "spread", "within a factor of two"]


def number(row: Row, name: str, scale: float, digits: int, unit: str = "") -> str:
    """Write a value; nothing where there is none."""
    return f"{scale * float(row[name]):.{digits}f}{unit}" if row.get(name) else ""


def with_deviation(row: Row, name: str, scale: float, digits: int) -> str:
    """Write a mean and the standard deviation over splits."""
    return f"{number(row, name, scale, digits)} ± {number(row, f'{name} deviation', scale, digits)}"


def change(row: Row, name: str) -> str:
    """Write a relative change with its interval, in percent.

    >>> change({"opis change": "-0.5", "opis change low": "-0.6", "opis change high": "-0.4"}, "opis")
    '−50% (−60 to −40)'
    """
    if not row.get(f"{name} change"):
        return ""
    value, low, high = (f"{100 * float(row[f'{name} change{end}']):+.0f}" for end in ("", " low", " high"))
    return f"{value}% ({low} to {high})".replace("-", "−")


def method_table(results: Path, data: str) -> str:
    """Return the table of one data set's methods."""
    lines = [
        [
            row["method"],
            with_deviation(row, "recall@1", 100, 1),
            number(row, "map_at_r", 100, 1),
            with_deviation(row, "eer", 100, 1),
            with_deviation(row, "frr", 100, 1),
            with_deviation(row, "opis", 1e3, 2),
            change(row, "opis"),
            number(row, "far_threshold_spread", 1, 3),
            change(row, "far_threshold_spread"),
            with_deviation(row, "within two", 100, 0) + "%",
            number(row, "within two, new", 100, 0, "%"),
            number(row, "mean FAR, new", 100, 2, "%"),
        ]
        for row in read_csv(results / "table.csv")
        if row["data"] == data
    ]
    return as_markdown(HEADS, lines)


def regime_table(results: Path, regime: str) -> str:
    """Return the table of one regime, for all data sets."""
    lines = [
        [
            row["data"],
            row["method"],
            number(row, "recall@1", 100, 1),
            number(row, "eer", 100, 1),
            number(row, "frr", 100, 1),
            number(row, "opis", 1e3, 2),
            number(row, "far_threshold_spread", 1, 3),
            number(row, "within two", 100, 0, "%"),
        ]
        for row in read_csv(results / "regimes.csv")
        if row["regime"] == regime
    ]
    return as_markdown(REGIME_HEADS, lines)
