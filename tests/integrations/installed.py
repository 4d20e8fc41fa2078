"""Skip a file of tests whose package is not installed; keep those of large packages together."""

import importlib.util

import pytest

from isomargin.integrations._packages import prepare

in_one_worker = pytest.mark.xdist_group("integrations")
"""For tests of large packages: importing them is most of the time, so that one of pytest's workers does it."""


def needs(*packages: str) -> None:
    """Skip the tests of a module unless all packages are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
        prepare(package)
