"""Tables as text: Markdown to read, LaTeX to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
"""Characters that LaTeX reads as commands, or that pdflatex has no letter for."""


@dataclass(frozen=True)
class Table:
    """A table as it is read."""

    heads: list[str]
    lines: list[list[str]]
    """One cell per head."""
    before: str = ""
    """A sentence above the table."""
    notes: tuple[str, ...] = ()
    """Sentences below the table."""


def as_markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table as Markdown.

    >>> print(as_markdown(["loss", "recall@1 %"], [["a|b", "98.07"]]), end="")
    | loss | recall@1 % |
    | --- | --- |
    | a\\|b | 98.07 |
    """
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows) + "\n"


def as_latex(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a table as LaTeX, with the rules of booktabs."""
    body = [" & ".join(latex_text(cell) for cell in line) + r" \\" for line in lines]
    top = " & ".join(latex_text(head) for head in heads) + r" \\"
    rows = [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", top, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*rows, r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    r"""Escape what LaTeX would read as a command, and write signs in the way LaTeX sets them.

    >>> latex_text("smooth_ap, 10% − 2"), latex_text("m⁺ 1–2")
    ('smooth\\_ap, 10\\% $-$ 2', 'm$^+$ 1--2')
    """
    return "".join(LATEX.get(letter, letter) for letter in text)


def markdown_page(tables: Sequence[Table]) -> str:
    """Write tables below each other as Markdown, each with its sentences.

    >>> print(markdown_page([Table(["loss"], [["a"]], notes=("A note.",))]), end="")
    | loss |
    | --- |
    | a |
    <BLANKLINE>
    A note.
    """
    paragraphs = []
    for table in tables:
        paragraphs += [f"{table.before}\n"] if table.before else []
        paragraphs += [as_markdown(table.heads, table.lines), *(f"{note}\n" for note in table.notes)]
    return "\n".join(paragraphs)
