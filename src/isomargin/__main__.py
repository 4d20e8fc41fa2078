"""``python -m isomargin``."""

from isomargin.cli import main

main()
