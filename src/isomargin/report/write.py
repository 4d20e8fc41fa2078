"""``write_report``: a self-contained HTML report of evaluations, which opens offline and can be sent by mail.

It is assembled from the files in `page/`, plotly's script and the contents. It makes no network requests.
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
from isomargin.measure.settings import COMPARED
from isomargin.report.contents import Examples, contents

SCRIPTS = ("numbers.js", "runs.js", "state.js", "plots.js", "threshold.js", "classes.js", "page.js")
"""The scripts of the page, in the order in which they depend on each other."""


def write_report(
    evaluations: Evaluation | Mapping[str, Evaluation],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    intervals: bool = True,
    examples: Mapping[str, Examples] | None = None,
) -> None:
    """Write an HTML report of one evaluation, or of several side by side.

    Args:
        evaluations: one evaluation, or several by name; the first is what the others are compared with.
        path: the .html file, which is written atomically.
        title: the title of the report; by default the names of the evaluations.
        intervals: whether to compute confidence intervals over classes for scores and differences.
        examples: for each name, confusions and thumbnails of classes, as `class_examples` returns them.

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
    values = contents(evaluations, intervals, examples)
    heading = printable(title) if title else ", ".join(run["name"] for run in values["runs"])
    with atomic_write(path) as temporary:
        temporary.write_text(page(values, heading), encoding="utf-8")


def check_evaluations(evaluations: Mapping[str, Evaluation]) -> None:
    """Refuse evaluations that cannot be reported."""
    if not isinstance(evaluations, Mapping):
        kind = type(evaluations).__name__
        raise InputError(f"a report needs an evaluation, or several by name, not {kind}")
    if not evaluations:
        raise InputError("a report needs at least one evaluation: none was given")
    for name, evaluation in evaluations.items():
        if not (isinstance(name, str) and isinstance(evaluation, Evaluation)):
            kinds = f"{type(name).__name__} to {type(evaluation).__name__}"
            raise InputError(f"evaluations should map names (str) to Evaluation objects, not {kinds}")
        if evaluation.comparison == "trials":
            raise InputError(
                f"{name} compares {COMPARED['trials']}, which a report cannot show: `isomargin evaluate` prints its "
                "scores and writes its groups with --per-class"
            )
        if not evaluation.has_curves:
            raise InputError(f"{name} has no class with two known probes: a report needs curves of classes")
        for kind, pairs in (("positive", evaluation.positive_pairs), ("negative", evaluation.negative_pairs)):
            if pairs == 0:
                raise InputError(f"{name} has no {kind} pairs: a report needs positive and negative pairs")
    (first_name, first), *others = evaluations.items()
    for name, evaluation in others:
        if evaluation.comparison != first.comparison:
            raise InputError(
                f"{first_name} compares {COMPARED[first.comparison]} and {name} {COMPARED[evaluation.comparison]}: "
                "write a report of each"
            )


def page(values: dict[str, Any], title: str) -> str:
    """Assemble the page."""
    from plotly.offline import get_plotlyjs

    script = "(() => {\n'use strict';\n" + "\n".join(part(name) for name in SCRIPTS) + "\n})();"
    plotly = get_plotlyjs()
    parts = {
        "TITLE": html.escape(title),
        "POLICY": policy(plotly, script),
        "STYLE": part("page.css"),
        "CONTENTS": as_script_data(values),
        "PLOTLY": plotly,
        "SCRIPT": script,
    }
    before, *pieces = part("page.html").split("@@")
    # Split once and joined, so that placeholders within a part are never replaced.
    return before + "".join(parts.get(piece, piece) for piece in pieces)


def part(name: str) -> str:
    """Read a file of the page."""
    return (resources.files("isomargin.report") / "page" / name).read_text(encoding="utf-8")


def as_script_data(values: dict[str, Any]) -> str:
    """Return JSON that cannot end the script element around it, whatever names it contains."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def policy(*scripts: str) -> str:
    """Return the content security policy: only these scripts may run, and nothing may be loaded from the network."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    rules = ["default-src 'none'", f"script-src {hashes}", "style-src 'unsafe-inline'", "img-src data: blob:"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])
