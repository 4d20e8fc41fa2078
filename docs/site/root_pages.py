"""A Sphinx extension that leads links to files of the root, as the repository's host has them, to their pages here."""

import re
from typing import Any

from sphinx.application import Sphinx

PAGES = {"CHANGELOG": "project/changelog", "CONTRIBUTING": "project/contributing", "README": "index"}
LINK = re.compile(rf"\]\((?:\.\./)+({'|'.join(PAGES)})\.md")


def lead_inside(app: Sphinx, page: str, content: list[str]) -> None:
    """Replace such links; a slash stands for the folder of all pages."""
    content[0] = LINK.sub(lambda match: f"](/{PAGES[match[1]]}.md", content[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", lead_inside)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
