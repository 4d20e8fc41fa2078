"""The tables of docs/remarks.md, made of the CSV files in results/remarks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.files import read_csv
from lab.table_text import as_markdown

Row = dict[str, str]
LOSSES = {
    "proxy_nca": "ProxyNCA",
    "arcface": "ArcFace",
    "smooth_ap": "Smooth-AP",
    "recall_at_k": "RS@k",
    "proxy_anchor": "ProxyAnchor",
    "soft_triple": "SoftTriple",
}


def number(row: Row, name: str, scale: float, digits: int, signed: bool = False) -> str:
    """Write a value; a dash where there is none.

    >>> number({"opis": "-0.05"}, "opis", 100, 1, signed=True), number({"opis": ""}, "opis", 1, 1)
    ('−5.0', '–')
    """
    if not row.get(name):
        return "–"
    return f"{scale * float(row[name]):{'+' if signed else ''}.{digits}f}".replace("-", "−")


def percent(row: Row, name: str) -> str:
    """Write a relative change in percent."""
    text = number(row, name, 100, 0, signed=True)
    return text if text == "–" else f"{text}%"


def interval(row: Row, name: str, scale: float = 100, digits: int = 0, unit: str = "%") -> str:
    """Write a change with its interval, in bold if zero is outside; a dash where there is none.

    >>> interval({"a change": "-0.2", "a change low": "-0.3", "a change high": "-0.1"}, "a change")
    '**−20%** (−30 to −10)'
    """
    if not row.get(name):
        return "–"
    value, low, high = (number(row, f"{name}{end}", scale, digits, signed=True) for end in ("", " low", " high"))
    outside = float(row[f"{name} low"]) > 0 or float(row[f"{name} high"]) < 0
    mark = "**" if outside else ""
    return f"{mark}{value}{unit}{mark} ({low} to {high})"


def spread(row: Row, name: str, scale: float, digits: int) -> str:
    """Write a mean and its standard deviation over seeds or draws."""
    return f"{number(row, name, scale, digits)} ± {number(row, f'{name} deviation', scale, digits)}"


def margin_table(results: Path) -> str:
    """Return the table of how many pairs of margins lower OPIS."""
    heads = ["setting", "loss", "seeds", "pairs that lower OPIS", "in every seed", "best", "worst", "at 0.9 and 0.45"]
    lines = []
    for row in read_csv(results / "margins.csv"):
        best, worst = (
            f"{percent(row, end)} at {row[f'{end} positive margin']}, {row[f'{end} negative margin']}"
            for end in ("best", "worst")
        )
        near = percent(row, "near the paper")
        if row["seeds"] != "1":
            near += f" ({percent(row, 'near the paper lowest')}, {percent(row, 'near the paper highest')})"
        counts = [f"{row['lower']} of {row['pairs']}", row["lower in every seed"]]
        lines.append([row["setting"], LOSSES[row["loss"]], row["seeds"], *counts, best, worst, near])
    return as_markdown(heads, lines)


def margin_summary(results: Path) -> str:
    """Return the counts over all grids, and over those of Smooth-AP, the paper's loss."""
    rows = read_csv(results / "margins.csv")
    groups = {
        "all": rows,
        "heads": [row for row in rows if row["kind"] == "heads"],
        "networks": [row for row in rows if row["kind"] == "networks"],
        "Smooth-AP": [row for row in rows if row["loss"] == "smooth_ap"],
    }
    heads = ["grids", "number", "lower at every pair", "points that lower OPIS", "higher at 0.9 and 0.45"]
    lines = []
    for name, chosen in groups.items():
        points, lower = (sum(int(row[column]) for row in chosen) for column in ("pairs", "lower"))
        complete = sum(row["lower"] == row["pairs"] for row in chosen)
        higher = sum(float(row["near the paper"]) > 0 for row in chosen)
        share = f"{lower} of {points} ({100 * lower / points:.0f}%)"
        lines.append([name, str(len(chosen)), f"{complete} of {len(chosen)}", share, f"{higher} of {len(chosen)}"])
    return as_markdown(heads, lines)


def strict_table(results: Path) -> str:
    """Return recall@1 and OPIS by negative margin."""
    heads = ["grids", "negative margin", "recall@1 lower", "mean change of recall@1", "lowest", "OPIS lower"]
    lines = [
        [
            row["kind"],
            row["negative margin"],
            f"{row['recall@1 lower']} of {row['points']}",
            number(row, "mean recall@1 change", 100, 2, signed=True),
            number(row, "lowest recall@1 change", 100, 2, signed=True),
            f"{row['OPIS lower']} of {row['points']}",
        ]
        for row in read_csv(results / "negative-margin.csv")
    ]
    return as_markdown(heads, lines)


def share_summary(results: Path) -> str:
    """Return the decomposition averaged over grids."""
    heads = ["score", "grids", "positive", "negative", "rest", "negative share larger", "p of the shares"]
    heads += ["step of positive", "step of negative", "difference of the steps", "p of the steps"]
    lines = []
    for row in read_csv(results / "decomposition-summary.csv"):
        found = [f"{number(row, f'mean {part}', 100, 0)}%" for part in ("positive share", "negative share", "rest")]
        steps = [number(row, f"{side} step", 100, 2) for side in ("positive", "negative")]
        difference = interval(row, "step difference", 100, 2, "")
        larger = f"{row['larger negative share']} of {row['grids']}"
        tested = [number(row, "share p", 1, 3), *steps, difference, number(row, "step p", 1, 3)]
        lines.append(["OPIS" if row["score"] == "opis" else row["score"], row["kind"], *found, larger, *tested])
    return as_markdown(heads, lines)


def share_table(results: Path) -> str:
    """Return the decomposition of every grid."""
    heads = ["setting", "loss", "recall@1: positive", "negative", "rest", "noise"]
    heads += ["OPIS: positive", "negative", "rest", "noise"]
    rows = read_csv(results / "decomposition.csv")
    lines = []
    for setting, loss in dict.fromkeys((row["setting"], row["loss"]) for row in rows):
        by_score = {row["score"]: row for row in rows if (row["setting"], row["loss"]) == (setting, loss)}
        cells = []
        for score in ("recall@1", "opis"):
            row = by_score[score]
            for side in ("positive", "negative"):
                cells.append(f"{number(row, side, 100, 0)}% (p {number(row, f'{side} p', 1, 2)})")
            cells += [f"{number(row, 'rest', 100, 0)}%"]
            cells += [f"{number(row, 'noise', 100, 0)}%" if row["noise"] else "–"]
        lines.append([setting, LOSSES[loss], *cells])
    return as_markdown(heads, lines)


def noise_table(results: Path) -> str:
    """Return the scores of heads that were trained with wrong labels."""
    heads = ["data", "wrong labels", "training", "OPIS ×1e-3", "OPIS change", "recall@1 %", "recall@1 change"]
    heads += ["EER %", "EER change", "log OPIS ×100, minus that of right labels"]
    lines = []
    for row in read_csv(results / "label-noise.csv"):
        begin = [row["data"], f"{number(row, 'noise', 100, 0)}%", row["training"]]
        scores = [spread(row, "opis", 1e3, 1), interval(row, "opis change")]
        for score in ("recall@1", "eer"):
            scores += [spread(row, score, 100, 1), interval(row, f"{score} change", 100, 1, "")]
        lines.append([*begin, *scores, interval(row, "effect change", 100, 0, "")])
    return as_markdown(heads, lines)


def shift_table(results: Path) -> str:
    """Return what a threshold does that was chosen elsewhere, for cosines."""
    heads = [*SHIFT_HEADS, "OPIS change", "log OPIS ×100, minus that without a shift"]
    lines = [
        [*shift_cells(row), interval(row, "opis change"), interval(row, "effect change", 100, 0, "")]
        for row in read_csv(results / "shift.csv")
        if row["similarity"] == "cosine"
    ]
    return as_markdown(heads, lines)


def equalized_shift_table(results: Path) -> str:
    """Return the same for equalized similarities, compared with cosines."""
    lines = [
        [*shift_cells(row), interval(row, "equalized opis change")]
        for row in read_csv(results / "shift.csv")
        if row["similarity"] == "equalized" and row["embedding"] in ("raw", "plain", "TCM, weight 1")
    ]
    return as_markdown([*SHIFT_HEADS, "OPIS change from cosines"], lines)


SHIFT_HEADS = ("data", "threshold of", "used on", "embedding", "FAR %", "FRR %", "within a factor of two", "OPIS ×1e-3")


def shift_cells(row: Row) -> list[str]:
    """Write where a threshold comes from, what it is used on, and what it does there."""
    shift = row["shift"]
    moved = shift not in ("training classes", "test classes")
    chosen = "test classes" if moved else shift
    used = shift.replace("half of", "without half of") if moved else "test classes"
    rates = [spread(row, f"carried {rate}", 100, digits) for rate, digits in (("far", 2), ("frr", 1))]
    within = f"{number(row, 'within two', 100, 0)}%"
    return [row["data"], chosen, used, row["embedding"], *rates, within, spread(row, "opis", 1e3, 1)]


def floor_table(results: Path) -> str:
    """Return the OPIS of classes that are alike."""
    heads = ["kind", "classes", "items per class", "EER %", "OPIS ×1e-5", "debiased ×1e-5", "limit ×1e-5"]
    heads += ["true 1e-5: OPIS ×1e-5", "true 1e-5: debiased ×1e-5", "told apart"]
    lines = [
        [
            row["spread"],
            row["classes"],
            row["items"],
            number(row, "eer", 100, 1),
            spread(row, "opis", 1e5, 2),
            spread(row, "debiased", 1e5, 2),
            number(row, "limit", 1e5, 2),
            number(row, "different opis", 1e5, 2),
            number(row, "different debiased", 1e5, 2),
            number(row, "told apart", 100, 0) + ("%" if row["told apart"] else ""),
        ]
        for row in read_csv(results / "floor.csv")
    ]
    return as_markdown(heads, lines)


def gaussian_table(results: Path) -> str:
    """Return what an OPIS means in the Gaussian model."""
    rows = read_csv(results / "floor-gaussian.csv")
    lines = [[f"{float(row['opis']):.0e}", f"± {float(row['difference']):.3f}"] for row in rows]
    return as_markdown(["OPIS", "mean distance of positive pairs, from the middle"], lines)


TABLES: dict[str, Callable[[Path], str]] = {
    "margins": margin_table,
    "margins, counted": margin_summary,
    "strict negative margins": strict_table,
    "decomposition, averaged": share_summary,
    "decomposition": share_table,
    "label noise": noise_table,
    "shift": shift_table,
    "shift, equalized": equalized_shift_table,
    "floor": floor_table,
    "floor, Gaussian": gaussian_table,
}
"""The tables of the page, by the words that name them there."""
