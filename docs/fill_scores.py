"""Fill the table of docs/scores.md from the registry of scores: `python docs/fill_scores.py`."""

import re
from pathlib import Path

from isomargin.measure.scores.registry import SCORES, find_score

PAGE = Path(__file__).parent / "scores.md"


def scores_table() -> str:
    """Return a Markdown table with one row per score."""
    fixed = list(SCORES.values())
    ranks = [score.group for score in fixed].index("retrieval")
    rows = [
        f"| `{score.name}` | {score.title}{' *own*' if score.own else ''} | {score.meaning} | {score.direction} |"
        for score in [*fixed[:ranks], find_score("recall@1"), *fixed[ranks:]]
    ]
    return "\n".join(["| name | title | meaning | better |", "|---|---|---|---|", *rows])


def filled(page: str) -> str:
    """Return the page with its table replaced by that of the registry."""
    table = scores_table()
    return re.sub(r"(<!-- scores -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{table}\n{m[2]}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
