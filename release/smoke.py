"""`make smoke`: the wheel is built and checked, and the core works where no optional package is installed.

Also checks a small program of a user with `mypy --strict` against the installed wheel. Part of what must pass before a
change lands, so it downloads nothing.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from distributions import build
from environments import HERE, Environment, core_environment


def check_types(environment: Environment, folder: Path) -> None:
    """Check the program of a user; its packages are those of the environment, mypy is this interpreter's."""
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment.python, "--config-file", ""]
    program = folder / "consumer.py"
    program.write_bytes((HERE / "consumer.py").read_bytes())
    if subprocess.run([*mypy, "--cache-dir", folder / "mypy", program], cwd=folder).returncode:
        sys.exit("a user's program does not pass mypy --strict with the installed wheel")


def main() -> None:
    """Run all steps and print what each took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "work").mkdir()
        wheel = build(folder)
        built = time.monotonic()
        environment = core_environment(folder / "core", wheel)
        installed = time.monotonic()
        environment.run(HERE / "smoke_core.py", wheel.name.split("-")[1], folder=folder / "work")
        run = time.monotonic()
        check_types(environment, folder)
    seconds = (built - begun, installed - built, run - installed, time.monotonic() - run)
    print("built in {:.0f} s, installed in {:.0f} s, run in {:.0f} s, types checked in {:.0f} s".format(*seconds))


if __name__ == "__main__":
    main()
