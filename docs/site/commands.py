"""A Sphinx extension that writes the reference of the command line from the commands themselves.

It takes the place of the comment `<!-- commands -->` of a page.
"""

import re
from typing import Any

from sphinx.application import Sphinx

MARK = "<!-- commands -->"
HEADER = "| option | what it does |\n|---|---|"


def in_cell(text: str) -> str:
    """Text for a cell of a table, on one line."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def with_links(text: str) -> str:
    """Text with options as code and names of pages as links, in which no bracket starts a link."""
    passages = re.split("(`.*?`)", text.replace("[", "\\["))  # those with an odd index are code already
    passages[::2] = [re.sub(r"(?<!\S)--[\w-]+", r"`\g<0>`", passage) for passage in passages[::2]]
    return re.sub(r"\b(docs/([\w-]+\.md))", r"[\1](../\2)", "".join(passages))


def described(command: Any, name: str, context: Any) -> str:
    """A section on one command."""
    records = [record for parameter in command.params if (record := parameter.get_help_record(context))]
    usage = " ".join(["isomargin", name, *command.collect_usage_pieces(context)])
    text = [with_links(" ".join(paragraph.split())) for paragraph in command.help.split("\n\n")]
    rows = [f"| `{in_cell(names)}` | {with_links(in_cell(meaning))} |" for names, meaning in records]
    return "\n\n".join([f"## {name}", *text, f"```text\n{usage}\n```", "\n".join([HEADER, *rows])])


def write_commands(app: Sphinx, page: str, content: list[str]) -> None:
    """Replace the mark by one section per command."""
    if MARK not in content[0]:
        return
    from typer.main import get_command

    from isomargin.cli.app import app as cli

    group: Any = get_command(cli)
    context = group.make_context("isomargin", [], resilient_parsing=True)
    sections = [described(command, name, context) for name, command in group.commands.items()]
    content[0] = content[0].replace(MARK, "\n\n".join(sections))


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", write_commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
