"""The tables of docs/equalize.md, from results/equalize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lab.files import read_csv
from lab.table_text import as_markdown

Row = Mapping[str, str]
SCORES = {
    "recall@1": ("recall@1", 100, 1),
    "MAP@R": ("map_at_r", 100, 1),
    "EER": ("eer", 100, 1),
    "FRR at FAR 1%": ("frr", 100, 1),
    "OPIS ×1e-3": ("opis", 1e3, 2),
    "without item noise": ("debiased_opis", 1e3, 2),
    "spread": ("far_threshold_spread", 1, 3),
}
"""By heading: name, factor and number of digits."""
RELATIVE = ("opis", "debiased_opis", "far_threshold_spread")
SHARES = ["within a factor of two", "the same, new classes", "mean FAR, new classes"]
REGIME_HEADS = ["data", "method", "recall@1", "EER", "FRR at FAR 1%", "OPIS ×1e-3", "spread", "within a factor of two"]
NETWORK_METHODS = ("raw", "local, 1 to 30", "local, 31 to 130", "local, chosen for FAR")
ALL_IN, DEFAULT = "local, 1 to 30", "local, 31 to 130"


def number(row: Row, name: str, scale: float, digits: int, unit: str = "") -> str:
    """Write a value; nothing where there is none."""
    return f"{scale * float(row[name]):.{digits}f}{unit}" if row.get(name) else ""


def change(row: Row, name: str, scale: float, digits: int) -> str:
    """Write a change with its interval: in percent for scores that are compared so, else in their own unit.

    >>> change({"opis change": "-0.5", "opis change low": "-0.6", "opis change high": "-0.4"}, "opis", 1e3, 2)
    '−50%: −60 to −40'
    """
    if not row.get(f"{name} change"):
        return ""
    factor, places, unit = (100, 0, "%") if name in RELATIVE else (scale, digits, "")
    value, low, high = (f"{factor * float(row[f'{name} change{end}']):+.{places}f}" for end in ("", " low", " high"))
    return f"{value}{unit}: {low} to {high}".replace("-", "−")


def score_cell(row: Row, name: str, scale: float, digits: int) -> str:
    """Write a mean with the change from raw and its interval, or for raw itself with the deviation over splits."""
    changed = change(row, name, scale, digits)
    if changed:
        return f"{number(row, name, scale, digits)} ({changed})"
    return f"{number(row, name, scale, digits)} ± {number(row, f'{name} deviation', scale, digits)}"


def share_cells(row: Row) -> list[str]:
    """Write the shares of classes near the target."""
    return [
        f"{number(row, 'within two', 100, 0)} ± {number(row, 'within two deviation', 100, 0)}%",
        number(row, "within two, new", 100, 0, "%"),
        number(row, "mean FAR, new", 100, 2, "%"),
    ]


def cells(row: Row) -> list[str]:
    """Write all columns of one method."""
    return [*(score_cell(row, *score) for score in SCORES.values()), *share_cells(row)]


def method_table(results: Path, data: str) -> str:
    """Return the table of one data set's methods."""
    lines = [[row["method"], *cells(row)] for row in read_csv(results / "table.csv") if row["data"] == data]
    return as_markdown(["method", *SCORES, *SHARES], lines)


def network_table(results: Path, kind: str) -> str:
    """Return the table of networks trained in several ways, whose names begin alike."""
    lines = [
        [row["data"].removeprefix(f"{kind}-"), row["method"], *cells(row)]
        for row in read_csv(results / "table.csv")
        if row["data"].startswith(f"{kind}-") and row["method"] in NETWORK_METHODS
    ]
    return as_markdown(["training", "method", *SCORES, *SHARES], lines)


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


# ----- the targets

Methods = Mapping[str, Row]


def value(row: Row, name: str) -> float:
    """Read a number."""
    return float(row[name])


def changed_by(method: str, score: str) -> Callable[[Methods], tuple[str, bool]]:
    """Return a target: a score at least a quarter lower."""

    def judge(rows: Methods) -> tuple[str, bool]:
        found = value(rows[method], f"{score} change")
        return f"{100 * found:+.0f}%".replace("-", "−"), found <= -0.25

    return judge


def more_than_permuted(rows: Methods) -> tuple[str, bool]:
    """Return a target: the spread narrower than with permuted offsets, intervals apart."""
    found, control = rows[ALL_IN], rows["permuted, 1 to 30"]
    high, low = value(found, "far_threshold_spread change high"), value(control, "far_threshold_spread change low")
    return f"≤ {100 * high:+.0f}% and ≥ {100 * low:+.0f}%".replace("-", "−"), high < low


def share_outside(rows: Methods) -> tuple[str, bool]:
    """Return a target: half as many classes outside the factor of two."""
    before, after = (1 - value(rows[name], "within two") for name in ("raw", DEFAULT))
    return f"{100 * before:.0f}% → {100 * after:.0f}%", after <= before / 2


def share_inside(column: str) -> Callable[[Methods], tuple[str, bool]]:
    """Return a target: at least 90% of the classes within the factor of two."""

    def judge(rows: Methods) -> tuple[str, bool]:
        found = value(rows[DEFAULT], column)
        return f"{100 * found:.0f}%", found >= 0.9

    return judge


def not_higher(score: str) -> Callable[[Methods], tuple[str, bool]]:
    """Return a target: an error rate that does not rise, with either setting."""

    def judge(rows: Methods) -> tuple[str, bool]:
        found = [100 * value(rows[name], f"{score} change") for name in (ALL_IN, DEFAULT)]
        return ", ".join(f"{points:+.1f}" for points in found).replace("-", "−"), max(found) <= 0

    return judge


def keeps_recall(rows: Methods) -> tuple[str, bool]:
    """Return a target: recall@1 not worse, the lower bound above -0.3 points with either setting."""
    found = [100 * value(rows[name], "recall@1 change low") for name in (ALL_IN, DEFAULT)]
    return ", ".join(f"{points:+.2f}" for points in found).replace("-", "−"), min(found) > -0.3


TARGETS: dict[str, Callable[[Methods], tuple[str, bool]]] = {
    "OPIS, 1 to 30: at least 25% lower": changed_by(ALL_IN, "opis"),
    "spread, 1 to 30: at least 25% lower": changed_by(ALL_IN, "far_threshold_spread"),
    "spread, 31 to 130: at least 25% lower": changed_by(DEFAULT, "far_threshold_spread"),
    "spread, 1 to 30: interval below that of permuted offsets": more_than_permuted,
    "classes outside the factor of two, 31 to 130: at least halved": share_outside,
    "classes inside it, 31 to 130: at least 90%": share_inside("within two"),
    "the same for new classes": share_inside("within two, new"),
    "EER, both settings: not higher (points)": not_higher("eer"),
    "FRR at FAR 1%, both settings: not higher (points)": not_higher("frr"),
    "recall@1, both settings: lower bound above −0.3 points": keeps_recall,
}
"""By what is asked for: a function of one data set's methods that returns what was found and whether it is enough."""


def target_table(results: Path, names: str) -> str:
    """Return the table of the targets, for data sets named in a list with commas; bold where a target is missed."""
    wanted = [name.strip() for name in names.split(",")]
    rows = read_csv(results / "table.csv")
    lines = []
    for target, judge in TARGETS.items():
        line = [target]
        for data in wanted:
            found, met = judge({row["method"]: row for row in rows if row["data"] == data})
            line.append(found if met else f"**{found}**")
        lines.append(line)
    return as_markdown(["target", *wanted], lines)


TABLES = {"equalize": method_table, "networks": network_table, "regime": regime_table, "targets": target_table}
"""The tables of the page, by the word that names them there."""
