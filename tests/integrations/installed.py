"""Skip a file of tests whose package is not installed."""

import importlib.util

import pytest

from isomargin.integrations._packages import prepare


def needs(*packages: str) -> None:
    """Skip the tests of a module unless all packages are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
        prepare(package)
