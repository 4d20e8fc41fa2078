"""The source distribution and the wheel: built, and checked for what they hold."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

BESIDE = {
    *("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"),
    "src/isomargin.egg-info",
}
"""What the source distribution holds besides the package; setuptools writes PKG-INFO, setup.cfg and the egg-info."""


def build(folder: Path) -> Path:
    """Build both distributions, the wheel from the source distribution, check them, and return the wheel."""
    python = [sys.executable, "-m"]
    # The venv's own setuptools: nothing is downloaded. Standard output goes to a file, which is shown on failure.
    log = folder / "build.log"
    with log.open("w") as output:
        done = subprocess.run(
            [*python, "build", "--no-isolation", "--outdir", folder, ROOT], stdout=output, stderr=subprocess.STDOUT
        )
    if done.returncode:
        sys.exit(f"{log.read_text()}\nthe distributions could not be built")
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    subprocess.run([*python, "twine", "--no-color", "check", "--strict", wheel, sdist], check=True)
    check_contents(wheel, sdist)
    return wheel


def package_files() -> set[str]:
    """Return every file of the package as git knows it, relative to src: modules, recipes, the page, py.typed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.removeprefix("src/") for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check that each distribution holds the whole package and nothing that it should not."""
    expected = package_files()
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    compare("the wheel", expected, inside)
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    beside = {name if "egg-info" not in name else "src/isomargin.egg-info" for name in names}
    compare("the source distribution", {f"src/{name}" for name in expected} | BESIDE, beside)


def compare(what: str, expected: set[str], found: set[str]) -> None:
    """Stop with the names of files that are missing or too many."""
    if expected != found:
        missing, surplus = sorted(expected - found), sorted(found - expected)
        sys.exit(f"{what} lacks {missing or 'nothing'} and should not hold {surplus or 'anything else'}")
