"""Checks of settings: each returns the value, or raises a sentence that says what was expected and what came."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from isomargin.core.errors import InputError


def number(value: Any, name: str) -> float:
    """Return a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        hint = " (YAML takes 1e-3 for text: write 1.0e-3)" if isinstance(value, str) and "e-" in value else ""
        raise InputError(f"{name} is {value!r}: a finite number is needed{hint}")
    return float(value)


def at_least_zero(value: Any, name: str) -> float:
    """Return a finite number of at least 0."""
    if number(value, name) < 0:
        raise InputError(f"{name} is {value}: at least 0 is needed")
    return float(value)


def above_zero(value: Any, name: str) -> float:
    """Return a finite number above 0."""
    if number(value, name) <= 0:
        raise InputError(f"{name} is {value}: a number above 0 is needed")
    return float(value)


def temperature(value: Any, name: str) -> float:
    """Return a number from 1e-4 to 100. Outside that range float32 cannot tell similarities apart."""
    if not 1e-4 <= number(value, name) <= 100:
        raise InputError(f"{name} is {value}: a number from 0.0001 to 100 is needed")
    return float(value)


def cosine(value: Any, name: str) -> float:
    """Return a number from -1 to 1."""
    if not -1 <= number(value, name) <= 1:
        raise InputError(f"{name} is {value}: a cosine similarity from -1 to 1 is needed")
    return float(value)


def whole(value: Any, name: str, least: int = 1, most: int | None = None) -> int:
    """Return a whole number of at least `least` and, if given, at most `most`."""
    usable = isinstance(value, Integral) and not isinstance(value, bool)
    if not usable or int(value) < least or (most is not None and int(value) > most):
        bounds = f"of at least {least}" if most is None else f"from {least:,} to {most:,}"
        raise InputError(f"{name} is {value!r}: a whole number {bounds} is needed")
    return int(value)


def share(value: Any, name: str) -> float:
    """Return a number above 0 and below 1."""
    if not 0 < number(value, name) < 1:
        raise InputError(f"{name} is {value}: a number above 0 and below 1 is needed")
    return float(value)


def one_of(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is {value!r}: one of {', '.join(map(repr, choices))} is needed")
    return str(value)


def truth(value: Any, name: str) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InputError(f"{name} is {value!r}: True or False is needed")
    return value


def margins(positive_margin: Any, negative_margin: Any) -> tuple[float, float]:
    """Return two cosine margins, of which the positive one is not below the negative one."""
    positive, negative = cosine(positive_margin, "positive_margin"), cosine(negative_margin, "negative_margin")
    if positive < negative:
        raise InputError(
            f"positive_margin is {positive} and negative_margin {negative}: positive pairs should be more similar "
            "than negative pairs, so the positive margin cannot be below the negative one"
        )
    return positive, negative


def distance(value: Any, name: str) -> float:
    """Return a distance between unit vectors, from 0 to 2."""
    if not 0 <= number(value, name) <= 2:
        raise InputError(f"{name} is {value}: a distance between unit vectors from 0 to 2 is needed")
    return float(value)


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the name that was probably meant, or list the known names.

    >>> nearest("smoth", ["smooth", "tcm"]), nearest("x", ["smooth", "tcm"])
    ("did you mean 'smooth'?", 'known are smooth, tcm')
    """
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known) or 'none'}"
