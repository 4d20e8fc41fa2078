"""``python -m isomargin``."""

from isomargin.cli.app import main

main()
