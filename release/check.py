"""`make release-check`: the core with its oldest and newest dependencies, and every extra, each in its own environment.

    python release/check.py                                     all of it
    python release/check.py oldest                              the core's tests with constraints-oldest.txt
    python release/check.py newest                              the same with the newest versions there are today
    python release/check.py extras --only qdrant --only faiss   the smoke tests of these extras

Each environment is deleted when it has passed. What was tested is written into docs/support.md.
"""

import argparse
import os
import re
import sys
import tempfile
import time
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

from distributions import ROOT, build
from environments import HERE, Environment
from packaging.requirements import Requirement
from smoke_extras import SMOKE

sys.path.insert(0, str(ROOT))
from conftest import NEEDED

PAGE = ROOT / "docs" / "support.md"

CORE_TESTS = (
    *(f"isomargin.{layer}" for layer in ("core", "io", "measure", "equalize", "theory", "thresholds", "report")),
    *(f"tests/{folder}" for folder in ("measure", "equalize", "thresholds", "cli", "report", "stores")),
    *(f"tests/test_{name}.py" for name in ("bad_input", "cli", "csv_files", "embedding_ids", "embeddings", "package")),
    *(f"tests/test_{name}.py" for name in ("reference", "shards", "theory")),
)
"""The layers that need no extra: the examples in their docstrings, as installed, and their tests."""

FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis")

BESIDE = {"postgresql": ("pgserver",)}
"""What the smoke test of an extra needs besides the extra: a server."""


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PARTS = ["oldest", "newest", "extras"]
EXTRAS = PROJECT["optional-dependencies"]


def name_of(requirement: str) -> str:
    """Return the normalised name of what is required."""
    return re.sub(r"[-_.]+", "-", Requirement(requirement).name).lower()


def constrain_torch(folder: Path) -> Path:
    """Write a constraint to the build of torch that is installed here, so that pip never chooses one with CUDA."""
    path = folder / "torch.txt"
    path.write_text("".join(f"{name}=={version(name)}\n" for name in ("torch", "torchvision")))
    return path


def described(found: dict[str, str], requirements: list[str]) -> str:
    """Return the versions of what is required, as text; an extra that builds on another is named."""
    named = dict.fromkeys(name_of(requirement) for requirement in requirements)
    versions = [f"{name} {found[name]}" for name in named if name != "isomargin"]
    builds_on = [f"`{extra}`" for text in requirements if "isomargin" in text for extra in Requirement(text).extras]
    return ", ".join(builds_on + versions)


def check_core(folder: Path, wheel: Path, torch: Path, *constraints: Path) -> str:
    """Install the wheel, try it without any extra, then run the core's tests; return the versions.

    Many of the core's tests compare with tensors, rendered letters and figures, so they run with those extras
    installed, in their newest versions.
    """
    environment = Environment(folder)
    bound = [argument for path in (torch, *constraints) for argument in ("--constraint", path)]
    seconds = environment.install(*bound, wheel)
    work = folder / "work"
    work.mkdir()
    environment.run(HERE / "smoke_core.py", wheel.name.split("-")[1], folder=work)
    tools = [text for text in EXTRAS["dev"] if name_of(text) in FOR_TESTS]
    environment.install(*bound, f"{wheel}[train,figures]", *tools)
    begun = time.monotonic()
    pytest = ("-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "--doctest-modules")
    optional = [
        f"--ignore-glob={folder.resolve()}/*/isomargin/{name}.py" for name in NEEDED
    ]  # these belong to the extras
    environment.run(*pytest, *optional, "--rootdir", ROOT, "--pyargs", *CORE_TESTS, folder=ROOT, isolated=False)
    print(f"  installed in {seconds:.0f} s, tests passed in {time.monotonic() - begun:.0f} s", flush=True)
    versions = described(environment.versions(), PROJECT["dependencies"])
    rmtree(folder)
    return versions


def check_extra(folder: Path, wheel: Path, torch: Path, core: Environment, extra: str) -> str:
    """Install an extra above the core and try it; return the versions of what it names."""
    begun = time.monotonic()
    environment = Environment(folder, below=core)
    environment.install("--constraint", torch, f"{wheel}[{extra}]", *BESIDE.get(extra, ()))
    installed = time.monotonic()
    work = folder / "work"
    work.mkdir()
    environment.run(HERE / "smoke_extras.py", extra, folder=work)
    print(f"  installed in {installed - begun:.0f} s, run in {time.monotonic() - installed:.0f} s", flush=True)
    versions = described(environment.versions(), EXTRAS[extra])
    rmtree(folder)
    return versions


def write(rows: dict[str, str]) -> None:
    """Replace the rows of docs/support.md that were tested."""
    page = PAGE.read_text(encoding="utf-8")
    python = ".".join(map(str, sys.version_info[:3]))
    for name, versions in rows.items():
        row = f"| {name} | {python} | {date.today()} | {versions} |"
        page, count = re.subn(rf"^\| {re.escape(name)} \|.*$", lambda _, row=row: row, page, flags=re.MULTILINE)
        if count != 1:
            sys.exit(f"{PAGE.name} needs one row for {name}:\n{row}")
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Check what the command line says; each row of the table is written as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--only", action="append", choices=SMOKE, help="of the extras; may be given several times")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, torch = build(folder), constrain_torch(folder)
        if "oldest" in arguments.parts:
            write({"oldest": check_core(folder / "oldest", wheel, torch, ROOT / "constraints-oldest.txt")})
        if "newest" in arguments.parts:
            write({"newest": check_core(folder / "newest", wheel, torch)})
        if "extras" in arguments.parts:
            core = Environment(folder / "core")
            core.install("--constraint", torch, wheel)
            for extra in arguments.only or SMOKE:
                write({f"`{extra}`": check_extra(folder / extra, wheel, torch, core, extra)})


if __name__ == "__main__":
    main()
