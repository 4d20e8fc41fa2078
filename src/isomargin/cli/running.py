"""Run a command line program: bad input ends with one sentence on standard error and exit code 2."""

import io
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import NoReturn, TextIO

import typer

from isomargin.core.errors import InputError
from isomargin.core.extras import missing_package

STOPPED = 130
"""Exit code of a command that was stopped by Ctrl+C."""


def run_app(app: typer.Typer, program: str, arguments: Sequence[str]) -> NoReturn:
    """Run a program with these arguments, and exit.

    Bad input, unknown options and unusable files end with one sentence on standard error and exit code 2.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names that the encoding of the output cannot represent
    try:
        code = app(arguments, standalone_mode=False)
        if code == STOPPED:  # newer versions of typer return this for Ctrl+C, older ones raise Abort
            tell_stopped(program)
        sys.exit(code)
    except InputError as error:
        refuse(program, str(error), error.details)
    except (KeyboardInterrupt, typer.Abort):
        tell_stopped(program)
        sys.exit(STOPPED)
    except MemoryError as error:
        refuse(program, f"there is not enough memory ({error})")
    except OSError as error:
        refuse(program, f"{error.filename or 'a file'} cannot be used ({error.strerror or error})")
    except ModuleNotFoundError as error:
        explained = missing_package(error)
        if explained is None:
            raise
        refuse(program, str(explained))
    except Exception as error:
        if not hasattr(error, "format_message"):  # only typer's errors about options have one
            raise
        refuse(program, error.format_message())


def tell_stopped(program: str) -> None:
    """Say that the command was stopped; those that say more themselves end the process with `sys.exit(STOPPED)`."""
    print(f"\n{program}: stopped", file=sys.stderr)


def refuse(program: str, sentence: str, details: Sequence[str] = ()) -> NoReturn:
    """Exit with one line on standard error, and one line per detail; characters that cannot be printed are escaped."""
    from isomargin.core.text import printable

    print(f"{program}: {printable(sentence)}", file=sys.stderr)
    for line in details:
        print(f"  {printable(line)}", file=sys.stderr)
    sys.exit(2)


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Take SIGTERM, with which batch systems end a job, as Ctrl+C, so that what is half written is removed."""
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class FirstAndLastLine(io.TextIOBase):
    """Writes the first and the last line of what is written at a time, in one line."""

    def __init__(self, to: TextIO) -> None:
        self.to = to

    def write(self, text: str) -> int:
        """Write a text without what is between its first and its last line."""
        lines = text.removesuffix("\n").split("\n")
        end = "\n" if text.endswith("\n") else ""
        self.to.write(text if len(lines) == 1 else f"{lines[0]} {lines[-1]}{end}")
        return len(text)

    def flush(self) -> None:
        """Write at once."""
        self.to.flush()


@contextmanager
def telling_what_ray_repeats() -> Iterator[None]:
    """Write to standard error, without tracebacks, what Ray prints: which tasks it repeats, and why."""
    with redirect_stdout(FirstAndLastLine(sys.stderr)):
        yield
