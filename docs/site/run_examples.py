"""A Sphinx extension that runs the examples of pages when the site is built; `cells` says how they are marked."""

from pathlib import Path
from typing import Any

from cells import render
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)


def run_page(app: Sphinx, page: str, content: list[str]) -> None:
    """Replace the examples of a page by what the site shows of them."""
    if not app.config.run_examples:
        return
    source, build = Path(app.env.doc2path(page)), Path(app.srcdir) / "_build"
    content[0], problems = render(content[0], page, source, build, app.config.release)
    for problem in problems:
        logger.warning(problem, location=page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_config_value("run_examples", True, "env", bool)
    app.connect("source-read", run_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
