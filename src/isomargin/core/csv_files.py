"""Tables as CSV files that spreadsheets and pandas read alike, whatever the names in them.

Text is always in double quotes, numbers never are. Text that a spreadsheet would run as a formula gets an apostrophe in
front, as OWASP advises.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from isomargin.core.files import atomic_write

if TYPE_CHECKING:
    import pandas

# Apostrophes in front count too, so that no two names become the same text.
FORMULA = re.compile(r"'*([\s\0]*[=+\-@＝＋－＠]|[\t\r\n\0])")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


def write_csv(table: "pandas.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write a table without its index atomically, in UTF-8. NaN becomes an empty field."""
    rows = [list(table.columns), *table.itertuples(index=False, name=None)]
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        file.writelines(",".join(map(csv_field, row)) + "\n" for row in rows)


def csv_field(value: Any) -> str:
    r"""Write one value as a field.

    >>> [csv_field(value) for value in ("cat", "=1+1", "-5", "a\rb", 0.5, float("nan"))]
    ['"cat"', '"\'=1+1"', '"-5"', '"a\rb"', '0.5', '']
    """
    if not isinstance(value, str):
        return "" if value is None or value != value else str(value)
    harmless = NUMBER.fullmatch(value) or not FORMULA.match(value)
    text = value if harmless else f"'{value}"
    return '"' + text.replace('"', '""') + '"'
