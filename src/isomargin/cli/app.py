"""The command ``isomargin``, assembled from the commands of the other modules.

Bad input ends with one sentence on standard error and exit code 2. Slow imports are inside the commands, so that
``isomargin --help`` answers at once.
"""

import sys
from typing import Annotated

import typer

from isomargin import __version__
from isomargin.cli import (
    adapting,
    checking,
    class_thresholds,
    demo,
    embedding,
    equalizing,
    figures,
    galleries,
    measuring,
    parts,
    report,
    thresholds,
    training,
)
from isomargin.cli.running import run_app

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure how consistently one similarity threshold works across classes, make it work better by equalizing or "
    "training, and choose thresholds.",
)


def main() -> None:
    """Run the command; turn bad input into one sentence and exit code 2."""
    run_app(app, "isomargin", sys.argv[1:] or ["--help"])


def show_version(requested: bool) -> None:
    """Print the version and exit."""
    if requested:
        print(f"isomargin {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that come before the command."""


for command in (
    measuring.evaluate,
    parts.prepare,
    parts.merge,
    galleries.templates,
    equalizing.equalize,
    class_thresholds.class_thresholds,
    thresholds.threshold,
    thresholds.transfer,
    checking.check,
    checking.canaries,
    checking.snippet,
    thresholds.compare,
    report.report,
    figures.figure,
    demo.demo,
    training.train,
    training.tune,
    embedding.embed,
    adapting.adapt,
):
    app.command()(command)
