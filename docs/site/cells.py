"""Runs the examples of a page and writes what they print below them, for the pages of the site.

A fenced block of `python` or `sh` is run if a comment stands on the line before it, so that pages stay plain Markdown:

    <!-- run -->                                run it
    <!-- run: lancedb, polars -->               run it where these packages are installed; else say that it was not run
    <!-- run: ; exit=1 -->                      expect this exit code
    <!-- run: ; shows=a.svg what is in it -->   show a picture that it writes, with a text for who cannot see it
    <!-- expect: 38.4% | 12 classes -->         what the examples so far must have printed, because the text says so

The examples of a page share one Python session and one temporary folder. A block of `text` that follows an example on
the page is replaced. What was printed is kept in `_build/runs` until the page's examples or the package change.
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CELL = re.compile(
    r"^<!-- run(?:: *(?P<options>[^>]*?))? -->\n```(?P<language>python|sh)\n(?P<code>.*?)^```\n"
    r"(?P<shown>```text\n.*?^```\n)?",
    re.MULTILINE | re.DOTALL,
)
EXPECT = re.compile(r"^<!-- expect: (.*?) -->\n", re.MULTILINE)
MADE = "was not found, so these are made vectors"
"""What tutorial_data prints where a data set is missing; the numbers in the text are then not those of the examples."""

MINUTES = 30
"""For the examples of one page."""

WITHOUT_DATA = """```{warning}
This page was built without the data set that its text speaks of. The examples ran on made vectors, so their numbers
differ from those in the text.
```
"""


def read_options(text: str | None) -> dict[str, Any]:
    """The packages that an example needs, and its other options."""
    packages, *others = (text or "").split(";")
    options: dict[str, Any] = {"needs": re.findall(r"\w+", packages), "exit": 0}
    for option in others:
        name, _, value = option.strip().partition("=")
        if name not in ("exit", "shows"):
            raise ValueError(f"an example has the option {name!r}: exit and shows are known")
        if name == "shows":
            value, _, options["seen"] = value.partition(" ")
        options[name] = int(value) if name == "exit" else value
    options["missing"] = [name for name in options["needs"] if importlib.util.find_spec(name) is None]
    return options


def environment(folder: Path) -> dict[str, str]:
    """A terminal of 100 columns without colours or a network, in which `isomargin` is this repository's."""
    ours = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(folder), os.environ.get("PYTHONPATH", "")]),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "ISOMARGIN_DATA": os.environ.get("ISOMARGIN_DATA", str(ROOT.parent / "shared" / "data")),
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }
    return {**os.environ, **ours}


def digest(page: str, cells: list[dict[str, Any]], folder: Path) -> str:
    """Hash of everything that the output depends on, except for the versions of other packages."""
    found = hashlib.sha256(json.dumps([page, cells, sys.version]).encode())
    sources = [*(ROOT / "src").rglob("*.py"), *folder.glob("*.py"), HERE / "run_cells.py", ROOT / "constraints.txt"]
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()


def run(page: str, cells: list[dict[str, Any]], source: Path, build: Path) -> list[dict[str, Any]]:
    """What the cells of a page print, from an earlier build if nothing has changed."""
    kept = build / "runs" / f"{page}.json"
    key = digest(page, cells, source.parent)
    if kept.is_file():
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["key"] == key:
            return found["results"]
    files = build / "runs" / page
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, tempfile.NamedTemporaryFile() as answer:
        command = [sys.executable, str(HERE / "run_cells.py"), answer.name]
        ended = subprocess.run(
            command,
            input=json.dumps(cells),
            cwd=name,
            env=environment(source.parent),
            stderr=subprocess.PIPE,
            text=True,
            timeout=60 * MINUTES,
        )
        try:
            results = json.loads(Path(answer.name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise RuntimeError(f"the examples of {page} ended without an answer:\n{ended.stderr}") from error
        for wanted in (cell["shows"] for cell in cells if "shows" in cell):
            if (Path(name) / wanted).is_file():
                shutil.copy(Path(name) / wanted, files / wanted)
    if not any(result["error"] for result in results):
        kept.write_text(json.dumps({"key": key, "results": results}), encoding="utf-8")
    return results


def shown_output(output: str) -> str:
    """What a cell printed, without the logs of trainers, which are dictionaries, and without colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", output).rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines if not line.startswith("{'"))


def as_markdown(cell: dict[str, Any], result: dict[str, Any] | None, up: str) -> str:
    """A cell as the site shows it: its code, and what it printed and drew."""
    parts = [f"```{cell['language']}\n{cell['code']}```"]
    if cell["missing"]:
        names = " and ".join(cell["missing"])
        parts.append(f"```{{note}}\nThis example was not run when the site was built, without {names}.\n```")
    elif result is not None:
        if output := shown_output(result["output"]):
            parts.append(f"````{{code-block}} text\n:class: output\n\n{output}\n````")
        if "shows" in cell:
            parts.append(f"![{cell['seen']}]({up}{cell['shows']})")
    return "\n\n".join(parts) + "\n"


def missing_output(text: str, printed: str) -> list[str]:
    """What a passage speaks of and the examples before it have not printed."""
    return [wanted for match in EXPECT.finditer(text) for wanted in match[1].split(" | ") if wanted not in printed]


def render(text: str, page: str, source: Path, build: Path, version: str) -> tuple[str, list[str]]:
    """The text of a page with the output of its examples, and what is wrong with them.

    Args:
        text: the page in Markdown.
        page: its name in the site, such as `tutorials/threshold`.
        source: its file; examples may import modules of its folder.
        build: the folder for what was printed and written.
        version: the version of isomargin, for the line at the end of the page.
    """
    matches = list(CELL.finditer(text))
    if not matches:
        return text, []
    cells = [
        {**read_options(match["options"]), "language": match["language"], "code": match["code"]} for match in matches
    ]
    wanted = [cell for cell in cells if not cell["missing"]]
    results = run(page, wanted, source, build)
    problems = [
        f"an example fails:\n{cell['code']}\n{result['error']}"
        for cell, result in zip(wanted, results, strict=False)
        if result["error"]
    ]
    left, up = iter(results), "../" * page.count("/") + f"_build/runs/{page}/"
    parts, missing, end, printed = [], [], 0, ""
    for match, cell in zip(matches, cells, strict=True):
        result = None if cell["missing"] else next(left, None)
        before = text[end : match.start()]
        missing += missing_output(before, printed)
        parts += [before, as_markdown(cell, result, up)]
        printed += shown_output(result["output"]) if result else ""
        end = match.end()
    missing += missing_output(text[end:], printed)
    seconds = sum(result["seconds"] for result in results)
    last = f"\n*When the site was built, the examples ran in {seconds:.0f} s, with isomargin {version}.*\n"
    rendered = EXPECT.sub("", "".join([*parts, text[end:], last]))
    if any(MADE in result["output"] for result in results):
        return rendered.replace("\n", f"\n\n{WITHOUT_DATA}\n", 1), problems
    return rendered, problems + [f"the examples do not print {what!r}, which the text speaks of" for what in missing]
