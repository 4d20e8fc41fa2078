"""Small files of text and JSON, written atomically."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from isomargin.core.files import atomic_write


def write_text(path: Path, text: str) -> None:
    """Write a file of text, atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Any) -> None:
    """Write JSON that a person can read, atomically; NaN as null."""
    write_text(path, json.dumps(without_nan(values), indent=1, allow_nan=False) + "\n")


def without_nan(values: Any) -> Any:
    """Put None in NaN's place, at any depth.

    >>> without_nan({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(values, dict):
        return {name: without_nan(each) for name, each in values.items()}
    if isinstance(values, list | tuple):
        return [without_nan(each) for each in values]
    return None if isinstance(values, float) and math.isnan(values) else values
