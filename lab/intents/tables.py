"""The tables of docs/integrations.md, made of the CSV files in results/intents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.files import read_csv
from lab.remarks.tables import interval, number, spread
from lab.table_text import as_markdown


def unseen_table(results: Path) -> str:
    """Return the scores on unseen intents."""
    heads = ["training", "similarity", "OPIS ×1e-3", "change", "recall@1 %", "change ", "FRR at FAR 1% %", "change  "]
    heads += ["classes with FAR within a factor of two %"]
    lines = []
    for row in read_csv(results / "table.csv"):
        cells = [row["training"], row["similarity"], spread(row, "opis", 1e3, 1), interval(row, "opis change")]
        for score in ("recall@1", "frr"):
            cells += [spread(row, score, 100, 1), interval(row, f"{score} change", 100, 1, "")]
        lines.append([*cells, number(row, "far_within_two", 100, 0)])
    return as_markdown(heads, lines)


def choice_table(results: Path) -> str:
    """Return the chosen settings, with their scores on held-out training intents."""
    heads = ["method", "tried", "chosen", "OPIS ×1e-3", "recall@1 %"]
    rows, lines = read_csv(results / "tuning.csv"), []
    for method in dict.fromkeys(row["method"] for row in rows):
        of_method = [row for row in rows if row["method"] == method]
        (best,) = [row for row in of_method if row["chosen"] == "1"]
        scores = [number(best, "opis", 1e3, 2), number(best, "recall@1", 100, 1)]
        lines.append([method, str(len(of_method)), chosen_text(best), *scores])
    return as_markdown(heads, lines)


def chosen_text(row: dict[str, str]) -> str:
    """Write the settings of a row."""
    if row["method"] == "equalizer":
        return f"{row['neighbours']} neighbours, {row['skip']} skipped"
    text = f"learning rate {row['rate']}, {row['epochs']} epochs, temperature {row['temperature']}"
    if row["method"] == "TCM":
        text += f"; margins {row['first']} and {row['second']}, share {row['share']}"
    if row["method"] == "alignment":
        text += f"; its temperature {row['first']}, share {row['share']}"
    return text


TABLES: dict[str, Callable[[Path], str]] = {"unseen": unseen_table, "choices": choice_table}
"""The tables of the page, by the words that name them there."""
