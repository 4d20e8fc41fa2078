"""Fill the tables of docs/integrations.md from results/intents, so that no number is copied by hand.

    python docs/fill_intents.py

A table is between two comments, the first of which names it: <!-- intents: unseen --> and <!-- end -->.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the lab is not installed

from lab.intents.tables import TABLES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "integrations.md"
TABLE = re.compile(r"<!-- intents: (?P<name>[^>]*?) -->\n.*?<!-- end -->", re.S)


def filled(page: str, results: Path = ROOT / "results" / "intents") -> str:
    """Give the page with its tables filled in again."""
    return TABLE.sub(
        lambda found: f"<!-- intents: {found['name']} -->\n{TABLES[found['name']](results)}<!-- end -->", page
    )


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
