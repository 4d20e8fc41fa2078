"""What the tests of the command line share."""

import os
import sys
import tempfile
import threading

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


@pytest.fixture(scope="session")
def postgres_server():
    """Start PostgreSQL, once for all tests of the group "PostgreSQL"; give the arguments of psycopg.connect."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed")
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    # Not one of pytest's folders, which only root may enter if the tests run as root; PostgreSQL then runs as a user.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        pgserver.get_server(folder, cleanup_mode="delete") as server,
    ):
        yield psycopg.conninfo.conninfo_to_dict(server.get_uri())


@pytest.fixture
def pipe(tmp_path):
    """Make a named pipe; whoever reads it sees its end, so that a test in which it is read fails and never hangs."""
    ended, writers = threading.Event(), {}

    def close_again_and_again(path):
        while not ended.is_set():
            os.close(os.open(path, os.O_WRONLY))  # waits for a reader

    def make(name):
        path = tmp_path / name
        os.mkfifo(path)
        writers[path] = threading.Thread(target=close_again_and_again, args=[path], daemon=True)
        writers[path].start()
        return path

    yield make
    ended.set()
    for path, writer in writers.items():
        opened = os.open(path, os.O_RDWR)
        writer.join(timeout=1)  # not for ever: the pipe may have been replaced
        os.close(opened)
