"""The command ``isomargin``: one module per group of commands."""

from isomargin.cli.app import main

__all__ = ["main"]
