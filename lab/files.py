"""Small files of text, JSON and CSV, written atomically."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isomargin.core.files import atomic_write


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write indented JSON atomically; NaN becomes null."""
    write_text(path, json.dumps(without_nan(values), indent=1, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows by the names of their columns atomically; a value that is missing, None or NaN is left empty.

    Numbers are written with all their digits, so that `read_csv` gives them back exactly.
    """
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(without_nan(dict(row)) for row in rows)
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read what `write_csv` has written: every value as text, empty where there is none.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_csv(Path(folder) / "a.csv", [{"loss": "a, b", "opis": 0.1 + 0.2}, {"loss": "c", "eer": math.nan}])
    ...     read_csv(Path(folder) / "a.csv")
    [{'loss': 'a, b', 'opis': '0.30000000000000004', 'eer': ''}, {'loss': 'c', 'opis': '', 'eer': ''}]
    """
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def without_nan(values: Any) -> Any:
    """Replace NaN with None, at any depth.

    >>> without_nan({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(values, dict):
        return {name: without_nan(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [without_nan(value) for value in values]
    return None if isinstance(values, float) and math.isnan(values) else values
