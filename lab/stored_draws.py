"""The draws behind an experiment's intervals and p values: RESULTS/NAME/differences.npz.

Of every comparison and column the draws are stored in ascending order, as whole multiples of a step: a 2,048th of their
range, so that about one KB holds 5,000 of them. Rounding moves no draw to the other side of zero, so that p values come
out exactly; the ends of intervals come out within a step.

    keys       (comparisons,) JSON: setting, choices, label of the comparison, column, kind, least p value
    steps      (comparisons,) the step of each
    first      (comparisons,) the lowest draw, in steps
    gaps_N     (N - 1, comparisons with N draws) by how many steps each draw exceeds the one before it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.measure.pairs.distances import Floats

DIFFERENCES = "differences.npz"
STEPS = 2048  # in the range of the draws


@dataclass(frozen=True, eq=False)
class StoredDraws:
    """The draws of one column of one comparison."""

    setting: str
    choices: tuple[str, ...]
    """Of the row that is compared, in the order of the axes."""
    label: str
    """Which of the row's comparisons it is: empty for the one with `against`, else as in `lab.derived`."""
    column: str
    kind: str
    """``change`` or ``difference``."""
    least: float
    """The smallest p value that this number of draws and classes can give."""
    step: float
    draws: NDArray[np.int32]
    """(draws,) ascending, in steps."""

    @property
    def values(self) -> Floats:
        """(draws,) ascending."""
        return np.asarray(self.draws * self.step, np.float64)

    @property
    def key(self) -> tuple[str, ...]:
        """The setting and choices of its row."""
        return (self.setting, *self.choices)


def in_steps(draws: Floats) -> tuple[float, NDArray[np.int32]]:
    """Sort draws and write them in steps; only zero becomes zero.

    >>> step, drawn = in_steps(np.array([0.5, -1e-9, 0.0, -0.5]))
    >>> step, drawn.tolist()
    (0.00048828125, [-1024, -1, 0, 1024])
    """
    spread = float(np.ptp(draws)) or float(np.abs(draws).max()) or 1.0
    step = spread / STEPS
    numbers = np.rint(draws / step)
    numbers = np.where((numbers == 0) & (draws != 0), np.sign(draws), numbers)
    return step, np.sort(numbers).astype(np.int32)


def write_draws(stored: Sequence[StoredDraws], folder: Path) -> None:
    """Write draws atomically, or delete the file where there are none."""
    path = folder / DIFFERENCES
    if not stored:
        path.unlink(missing_ok=True)
        return
    keys = [
        json.dumps([row.setting, row.choices, row.label, row.column, row.kind, row.least], ensure_ascii=False)
        for row in stored
    ]
    gaps: dict[int, list[NDArray[np.int32]]] = {}
    for row in stored:
        gaps.setdefault(len(row.draws), []).append(np.diff(row.draws))
    arrays: dict[str, Any] = {f"gaps_{number}": as_small(np.stack(parts)) for number, parts in gaps.items()}
    numbers = np.array([len(row.draws) for row in stored], np.int32)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            keys=np.array(keys),
            steps=np.array([row.step for row in stored], np.float64),
            first=np.array([row.draws[0] for row in stored], np.int32),
            numbers=numbers,
            **arrays,
        )


def as_small(gaps: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Give gaps, none of which is larger than the range, in the smallest type that holds them."""
    return np.asarray(gaps, np.min_scalar_type(int(gaps.max(initial=0))))


def read_draws(folder: Path) -> list[StoredDraws] | None:
    """Read the draws of an experiment's results; None where it has none."""
    path = folder / DIFFERENCES
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        stored, used = [], dict.fromkeys(set(arrays["numbers"].tolist()), 0)
        for key, step, first, number in zip(
            *(arrays[name].tolist() for name in ("keys", "steps", "first", "numbers")), strict=True
        ):
            gaps = arrays[f"gaps_{number}"][used[number]]
            used[number] += 1
            draws = np.concatenate([[first], first + np.cumsum(gaps, dtype=np.int64)]).astype(np.int32)
            setting, choices, label, column, kind, least = json.loads(key)
            stored.append(StoredDraws(setting, tuple(choices), label, column, kind, least, step, draws))
        return stored
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise InputError(f"{path} cannot be read as stored draws ({error}): run the experiment again") from error
