"""Virtual environments in which what users install is tried: nothing of the checkout can be imported there."""

import json
import os
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).parent
CUDA = ("nvidia-", "triton", "cuda-")


class Environment:
    """A virtual environment in a folder; `below` is one whose packages it sees beneath its own."""

    def __init__(self, folder: Path, below: "Environment | None" = None) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.folder, self.python = folder, folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.site = folder / "lib" / version / "site-packages"
        if below is not None:
            (self.site / "below.pth").write_text(f"{below.site}\n")

    def install(self, *arguments: str | Path) -> float:
        """Install with this interpreter's pip; return the seconds that it took."""
        begun = time.monotonic()
        # Modules are compiled when they are first imported, which most of them never are.
        pip = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check"]
        self._run([*pip, "install", "--quiet", "--no-compile", *arguments])
        self._run([*pip, "check"], stdout=subprocess.DEVNULL)
        return time.monotonic() - begun

    def run(self, *arguments: str | Path, folder: Path | None = None, isolated: bool = True) -> None:
        """Run Python there; isolated, it imports nothing from the current folder or the script's."""
        self._run([self.python, *(["-I"] if isolated else []), *arguments], folder)

    def versions(self) -> dict[str, str]:
        """Return the versions of all packages that can be imported there, by normalised name."""
        code = (
            "import json, re; from importlib.metadata import distributions\n"
            "found = reversed([*distributions()])  # of two with the same name, the first is imported\n"
            "print(json.dumps({re.sub('[-_.]+', '-', package.name).lower(): package.version for package in found}))"
        )
        done = subprocess.run([self.python, "-I", "-c", code], capture_output=True, text=True, check=True)
        found: dict[str, str] = json.loads(done.stdout)
        surplus = [name for name in found if name.startswith(CUDA)]
        if surplus:
            sys.exit(f"packages of CUDA were installed: {', '.join(surplus)}")
        return found

    def _run(self, command: list[str | Path], folder: Path | None = None, stdout: int | None = None) -> None:
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = f"{self.folder / 'bin'}{os.pathsep}{outside.get('PATH', '')}"
        done = subprocess.run(command, cwd=folder, env={**outside, "PATH": path}, stdout=stdout)
        if done.returncode:
            sys.exit(f"failed in {self.folder.name}: {' '.join(map(str, command))}")


def core_environment(folder: Path, wheel: Path) -> Environment:
    """Make an environment with the wheel and what it requires without any extra, and install nothing again.

    The required packages, and what these require, are links to those of this interpreter: a copy would be 900 MB, and a
    download 250. Nothing else can be imported, and pip refuses if a requirement of the wheel is not met.
    """
    environment = Environment(folder)
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    begin = PathDistribution(zipfile.Path(wheel, metadata.removesuffix("METADATA")))
    for package in required(begin, frozenset(), {}).values():
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            link = environment.site / name
            if not link.exists():
                link.symlink_to(str(package.locate_file(name)))
    environment.install("--no-index", wheel)
    return environment


def required(package: Distribution, extras: frozenset[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add what a package requires, and what that requires, to what was found, by name."""
    for requirement in requirements(package, extras):
        if requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            required(found[requirement.name], frozenset(requirement.extras), found)
    return found


def requirements(package: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what a package requires on this machine, with these extras."""
    for text in package.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement
