"""Fill the tables of docs/remarks.md from results/remarks, so that no number is copied by hand.

    python docs/fill_remarks.py

A table is between two comments, the first of which names it:

    <!-- remark: margins -->
    <!-- end -->
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the lab is not installed

from lab.remarks.tables import TABLES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "remarks.md"
TABLE = re.compile(r"<!-- remark: (?P<name>[^>]*?) -->\n.*?<!-- end -->", re.S)


def filled(page: str, results: Path = ROOT / "results" / "remarks") -> str:
    """Give the page with its tables filled in again."""
    return TABLE.sub(
        lambda found: f"<!-- remark: {found['name']} -->\n{TABLES[found['name']](results)}<!-- end -->", page
    )


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
