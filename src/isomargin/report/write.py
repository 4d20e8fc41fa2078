"""``write_report``: one self-contained page from evaluations. It opens offline and can be mailed.

The page is put together from the files in `page/`, plotly's script and the contents; nothing in it asks the network.
"""

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping
from importlib import resources
from typing import Any

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.core.text import printable
from isomargin.measure.evaluation import Evaluation
from isomargin.report.contents import Examples, contents

SCRIPTS = ("numbers.js", "runs.js", "state.js", "plots.js", "threshold.js", "classes.js", "page.js")
"""In the order in which they build on each other."""


def write_report(
    evaluations: Evaluation | Mapping[str, Evaluation],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    intervals: bool = True,
    examples: Mapping[str, Examples] | None = None,
) -> None:
    """Write one HTML page to look at an evaluation, or at several side by side.

    Args:
        evaluations: one, or several by name; with several, differences are to the first.
        path: of the .html file, which is written whole or not at all.
        title: of the page; the names unless given.
        intervals: whether scores and differences have intervals over classes.
        examples: by name, confusions and thumbnails of some classes, from `class_examples`.

    >>> import isomargin as im, tempfile, pathlib, numpy as np
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     im.write_report(evaluation, f"{folder}/report.html")
    ...     pathlib.Path(folder, "report.html").read_text(encoding="utf-8")[:15]
    '<!DOCTYPE html>'
    """
    if isinstance(evaluations, Evaluation):
        evaluations = {"evaluation": evaluations}
    check_evaluations(evaluations)
    for name in examples or {}:
        checks.one_of(name, "examples", list(evaluations))
    made = contents(evaluations, intervals, examples)
    heading = printable(title) if title else ", ".join(run["name"] for run in made["runs"])
    with atomic_write(path) as temporary:
        temporary.write_text(page(made, heading), encoding="utf-8")


def check_evaluations(evaluations: Mapping[str, Evaluation]) -> None:
    """Refuse what no page can be made of."""
    if not isinstance(evaluations, Mapping):
        kind = type(evaluations).__name__
        raise InputError(f"an evaluation, or several by name, are needed for a report, and not {kind}")
    if not evaluations:
        raise InputError("a report needs at least one evaluation, and none was given")
    for name, each in evaluations.items():
        if not (isinstance(name, str) and isinstance(each, Evaluation)):
            kinds = f"{type(name).__name__} and {type(each).__name__}"
            raise InputError(f"evaluations are given by name, text and an Evaluation, and not {kinds}")
        for kind, pairs in (("positive", each.positive_pairs), ("negative", each.negative_pairs)):
            if pairs == 0:
                raise InputError(f"{name} has no {kind} pairs: a report shows thresholds between both kinds")


def page(made: dict[str, Any], title: str) -> str:
    """Put the page together."""
    from plotly.offline import get_plotlyjs

    script = "(() => {\n'use strict';\n" + "\n".join(part(name) for name in SCRIPTS) + "\n})();"
    plotly = get_plotlyjs()
    parts = {
        "TITLE": html.escape(title),
        "POLICY": policy(plotly, script),
        "STYLE": part("page.css"),
        "CONTENTS": as_script_data(made),
        "PLOTLY": plotly,
        "SCRIPT": script,
    }
    before, *pieces = part("page.html").split("@@")
    # Split once and joined: what a part holds is never looked at for further marks.
    return before + "".join(parts.get(piece, piece) for piece in pieces)


def part(name: str) -> str:
    """Read a file of the page."""
    return (resources.files("isomargin.report") / "page" / name).read_text(encoding="utf-8")


def as_script_data(values: dict[str, Any]) -> str:
    """Give JSON that cannot end the script element it stands in, whatever names it holds."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def policy(*scripts: str) -> str:
    """Give the content security policy: these scripts and no others, nothing from the network."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in scripts
    )
    rules = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])
