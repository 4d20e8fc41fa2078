"""What the tests of commands that train share."""

import sys

import pytest

from isomargin.cli import app as cli


@pytest.fixture
def typed(capsys, monkeypatch, tmp_path):
    """Run a command in this process, in an empty folder; returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["isomargin", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call
