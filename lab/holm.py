"""Holm's correction of p values for a family of comparisons."""

from __future__ import annotations

from collections.abc import Sequence

LEVEL = 0.05


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number, by Holm (1979).

    The chance that any of them falls below a level although nothing differs is then at most that level, however they
    depend on each other. The smallest is multiplied by their number, the next by one less, and so on; none falls below
    one that is smaller.

    >>> [round(p, 4) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda number: p_values[number])
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, number in enumerate(order):
        largest = max(largest, (len(p_values) - place) * p_values[number])
        corrected[number] = min(largest, 1.0)
    return corrected
