"""A Sphinx extension that reads this package's docstrings as they are meant.

A section `Parameters` with a line below it, whose entries are `name: text`, becomes `Args:`, which Sphinx reads.
Indented blocks below a line that ends with a colon are formulas in plain text, and are shown as they stand. Names of
pages become links. What scikit-learn adds to classes is left out.
"""

import re
from typing import Any

from sphinx.application import Sphinx


def read_parameters(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn the section `Parameters` into `Args:`, up to the next empty line."""
    for start, line in enumerate(lines):
        if line == "Parameters" and lines[start + 1 : start + 2] == ["-" * len(line)]:
            end = next((i for i in range(start + 2, len(lines)) if not lines[i].strip()), len(lines))
            lines[start:end] = ["Args:", *(f"    {entry}" for entry in lines[start + 2 : end])]
            return


def keep_formulas(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Write two colons above an indented block, so that nothing in it is read as markup."""
    for line, (above, empty, below) in enumerate(zip(lines, lines[1:], lines[2:], strict=False)):
        depth = len(above) - len(above.lstrip())
        if above.endswith(":") and not empty.strip() and below.startswith(" " * (depth + 4)):
            lines[line] = f"{above}:"


def link_pages(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn the names of pages into links."""
    lines[:] = [re.sub(r"\b(docs/([\w-]+)\.md)", r":doc:`\1 </\2>`", line) for line in lines]


def leave_out(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the methods with which scikit-learn passes on metadata."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", keep_formulas, priority=300)
    app.connect("autodoc-process-docstring", link_pages)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("autodoc-process-docstring", read_parameters, priority=400)  # before napoleon, which has 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}
