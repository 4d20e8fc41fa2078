"""Runs the examples of one page, in a process and a folder of their own; `run_examples` starts it.

Reads a list of cells as JSON from standard input, and writes for each of them what it printed to the file that its
argument names. It stops at the first cell that fails.
"""

import contextlib
import io
import json
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path


def run_python(code: str, names: dict[str, object]) -> tuple[str, str | None]:
    """Return what the code prints on standard output, and its error, if any."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<example>", "exec"), names)
    except BaseException:  # SystemExit too: an example that ends the process is wrong
        return printed.getvalue(), traceback.format_exc(limit=-3)
    return printed.getvalue(), None


def run_shell(code: str, expected: int) -> tuple[str, str | None]:
    """Return what a terminal would show, and an error unless the exit code is the expected one."""
    ended = subprocess.run(
        ["bash", "-ec", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wrong = ended.returncode != expected
    return ended.stdout, f"exit code {ended.returncode}, not {expected}:\n{ended.stdout}" if wrong else None


def main() -> None:
    """Run the cells one after another; those in Python share their names, as in one session."""
    warnings.simplefilter("ignore")  # of the libraries, about themselves
    names: dict[str, object] = {"__name__": "example"}
    results = []
    for cell in json.load(sys.stdin):
        started = time.perf_counter()
        if cell["language"] == "python":
            output, error = run_python(cell["code"], names)
        else:
            output, error = run_shell(cell["code"], cell["exit"])
        results.append({"output": output, "error": error, "seconds": time.perf_counter() - started})
        if error:
            break
    Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
