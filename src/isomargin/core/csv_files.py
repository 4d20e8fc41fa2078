"""Write tables as CSV files that are safe to open in a spreadsheet, whatever names they contain.

Text is always quoted, numbers never. Text that a spreadsheet would run as a formula gets a leading apostrophe, as OWASP
recommends.
"""

import os
import re
from typing import TYPE_CHECKING, Any

from isomargin.core.files import atomic_write

if TYPE_CHECKING:
    import pandas

# Leading apostrophes are escaped too, so that two names never become the same text.
FORMULA = re.compile(r"'*([\s\0]*[=+\-@＝＋－＠]|[\t\r\n\0])")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


def write_csv(table: "pandas.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write a table atomically in UTF-8, without its index. NaN becomes an empty field."""
    rows = [list(table.columns), *table.itertuples(index=False, name=None)]
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        file.writelines(",".join(map(csv_field, row)) + "\n" for row in rows)


def csv_field(value: Any) -> str:
    r"""Convert a value to a CSV field.

    >>> [csv_field(value) for value in ("cat", "=1+1", "-5", "a\rb", 0.5, float("nan"))]
    ['"cat"', '"\'=1+1"', '"-5"', '"a\rb"', '0.5', '']
    """
    if not isinstance(value, str):
        return "" if value is None or value != value else str(value)
    harmless = NUMBER.fullmatch(value) or not FORMULA.match(value)
    text = value if harmless else f"'{value}"
    return '"' + text.replace('"', '""') + '"'
