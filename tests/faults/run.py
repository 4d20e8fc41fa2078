"""Run the test suite against each fault of faults.toml and write down which test finds it.

The project is copied to a temporary directory once. Each fault is applied to the copy, the tests that are closest to
the faulty module run until one fails, and the file is restored. Faults that have a verdict in the output file are
skipped. In the end the tests that found faults must pass without them. The exit status is 1 if one does not, or if a
fault that the old suite found is not found any more.
"""

import argparse
import ast
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

# All that has to be changed here when tests move: where each area's tests are.
AREAS = {
    "measure": ["tests/measure", "tests/test_reference.py"],
    "losses": ["tests/losses"],
    "thresholds": ["tests/thresholds"],
    "training": ["tests/training", "tests/data"],
    "report": ["tests/report"],
}
HERE = Path(__file__).resolve().parent
COLUMNS = ["name", "area", "verdict", "test", "seconds"]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "runs", "*.egg-info")


def find_file(tree: Path, text: str) -> Path:
    """Return the source file that contains the text; it must occur exactly once in all of them."""
    counts = {path: path.read_text().count(text) for path in (tree / "src").rglob("*") if path.suffix in (".py", ".js")}
    if sum(counts.values()) != 1:
        raise SystemExit(f"{text!r} occurs {sum(counts.values())} times in the sources, not once")
    return max(counts, key=lambda path: counts[path])


def imported_modules(path: Path) -> set[str]:
    """Return the names of all modules that a test file imports, and of what it imports from them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def select_tests(tree: Path, area: str, faulty: Path) -> list[str]:
    """Return what to run: the module's doctests, the area's tests (the closest first), other tests that import it."""
    module = ".".join(faulty.relative_to(tree / "src").with_suffix("").parts)
    places = [tree / place for place in AREAS[area]]
    if missing := [str(place) for place in places if not place.exists()]:
        raise SystemExit(f"{', '.join(missing)} of the area {area} is not there: correct AREAS")
    ranked = []
    for path in (tree / "tests").rglob("test_*.py"):
        elsewhere = not any(path.is_relative_to(place) for place in places)
        imports = module in imported_modules(path)
        if imports or not elsewhere:
            unlike = faulty.stem.strip("_") not in path.stem
            ranked.append((elsewhere, not imports, unlike, str(path.relative_to(tree))))
    doctests = [str(faulty.relative_to(tree))] if faulty.suffix == ".py" else []
    return doctests + [path for *_, path in sorted(ranked)]


def run_pytest(tree: Path, tests: list[str], timeout: float | None) -> tuple[int | None, str]:
    """Return pytest's exit code, None after the timeout, and its output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line", *tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    shutil.rmtree(tree / ".hypothesis", ignore_errors=True)  # examples that failed for another fault
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, cwd=tree, env=environment, start_new_session=True, **pipes) as process:
        try:
            output = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that tests have started
            return None, ""
    return process.returncode, output


def judge(tree: Path, fault: dict[str, str], timeout: float) -> tuple[str, str]:
    """Return the verdict on one fault (found, missed or timeout) and the failing test."""
    path = find_file(tree, fault["find"])
    original = path.read_text()
    path.write_text(original.replace(fault["find"], fault["replace"]))
    code, output = run_pytest(tree, select_tests(tree, fault["area"], path), timeout)
    path.write_text(original)
    if code is None or (code == 0 and re.search(r"\b\d+ passed", output)):
        return ("timeout" if code is None else "missed"), ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?::.*?)(?: - .*)?$", output, re.MULTILINE)
    if code != 1 or failed is None:
        raise SystemExit(f"{fault['name']}: pytest could not judge it (exit code {code})\n{output[-3000:]}")
    return "found", failed[1]


def main() -> None:
    """Judge the faults that have no verdict yet."""
    parser = argparse.ArgumentParser(description="Run the test suite against each fault of faults.toml.")
    parser.add_argument("--output", type=Path, default=Path("runs/faults.csv"), help="results (default: %(default)s)")
    parser.add_argument("--only", metavar="NAME", help="judge this fault alone, even if it has a verdict")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for each fault (default: %(default)s)")
    options = parser.parse_args()
    faults = {fault["name"]: fault for fault in tomllib.loads((HERE / "faults.toml").read_text())["fault"]}
    if options.only and options.only not in faults:
        parser.error(f"there is no fault named {options.only!r}")
    results = {}
    if options.output.exists():
        with options.output.open(newline="") as file:
            results = {row["name"]: (row["verdict"], row["test"]) for row in csv.DictReader(file)}
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(",".join(COLUMNS) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "project"
        shutil.copytree(HERE.parents[1], tree, symlinks=True, ignore=NOT_COPIED)
        for name in [options.only] if options.only else [name for name in faults if name not in results]:
            begun = time.monotonic()
            results[name] = judge(tree, faults[name], options.timeout)
            seconds = round(time.monotonic() - begun)
            print(name, *results[name], f"{seconds} s", sep=": ", flush=True)
            with options.output.open("a", newline="") as file:
                csv.writer(file).writerow([name, faults[name]["area"], *results[name], seconds])
        judged = [options.only] if options.only else list(faults)
        tests = sorted({results[name][1] for name in judged if results[name][0] == "found"})
        code, output = run_pytest(tree, tests, None) if tests else (0, "")
        if code != 0:
            raise SystemExit(f"a test that found a fault fails without it, or cannot run by itself\n{output[-3000:]}")
    found = [name for name, fault in faults.items() if fault["old"].startswith("found")]
    if lost := [name for name in found if results.get(name, ("found",))[0] != "found"]:
        raise SystemExit(f"found by the old suite and not any more: {', '.join(lost)}")


if __name__ == "__main__":
    main()
