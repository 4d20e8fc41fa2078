"""What the tests of the command line share."""

import sys

import pytest

from isomargin.cli import app as cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command in this process; give its exit code, standard output and standard error."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["isomargin", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return call
