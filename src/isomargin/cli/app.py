"""The command ``isomargin``, put together from `commands`.

Bad input ends with one sentence on standard error and exit code 2. Imports that take long are inside the commands,
so that ``isomargin --help`` answers at once.
"""

import io
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from isomargin import __version__
from isomargin.cli import figures, lab, measuring, report, thresholds, training
from isomargin.core.errors import InputError
from isomargin.core.extras import missing_package

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="One distance threshold that holds for every class: measure how far embeddings are from it, and train models "
    "that come nearer.",
)


def main() -> None:
    """Run the command; turn bad input into one sentence and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names that the output's encoding has not
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except InputError as error:
        refuse(str(error), error.details)
    except (KeyboardInterrupt, typer.Abort):
        print("\nisomargin: stopped", file=sys.stderr)
        sys.exit(130)
    except MemoryError as error:
        refuse(f"there is not enough memory ({error})")
    except OSError as error:
        refuse(f"{error.filename or 'a file'} cannot be used ({error.strerror})")
    except ModuleNotFoundError as error:
        explained = missing_package(error)
        if explained is None:
            raise
        refuse(str(explained))
    except Exception as error:
        if not hasattr(error, "format_message"):  # which typer's complaints about the options have
            raise
        refuse(error.format_message())


def refuse(sentence: str, details: Sequence[str] = ()) -> NoReturn:
    """End with one line on standard error, and one a detail, whatever characters file names brought into them."""
    from isomargin.core.text import printable

    print(f"isomargin: {printable(sentence)}", file=sys.stderr)
    for line in details:
        print(f"  {printable(line)}", file=sys.stderr)
    sys.exit(2)


def show_version(asked: bool) -> None:
    """Print the version and stop."""
    if asked:
        print(f"isomargin {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


for command in (
    measuring.evaluate,
    thresholds.threshold,
    thresholds.transfer,
    thresholds.compare,
    report.report,
    figures.figure,
    training.demo,
    training.train,
    training.tune,
    training.embed,
    lab.reproduce,
):
    app.command()(command)
