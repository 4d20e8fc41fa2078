"""Check an experiment's table against what it was made from: `python -m lab check NAME`.

Means, ranges and deviations follow from runs.csv; intervals and p values from the draws in differences.npz. Both are
computed here by their definitions, with no code of the computation that wrote the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isomargin.core.errors import InputError
from lab.choices import is_raw
from lab.derived import bases
from lab.experiment import Experiment, load_experiment
from lab.files import read_csv
from lab.results_folder import RUNS, TABLE
from lab.stored_draws import DIFFERENCES, StoredDraws, read_draws

COMPARED = re.compile(r"(?P<score>.+) (?P<kind>change|difference)(?: from (?P<label>raw|unequalized|equalized))?")
ROUNDING = 1e-9
CONFIDENCE = 0.95
Row = Mapping[str, str]


@dataclass(frozen=True)
class Checked:
    """What a check has found."""

    name: str
    numbers: int
    """How many were computed again."""
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Say what was checked, and list what differs."""
        found = f"{len(self.faults)} differ" if self.faults else "all are as they should be"
        checked = f"{self.name}: {self.numbers:,} numbers computed again, {found}" if self.numbers else ""
        return "\n".join([*([checked] if checked else []), *self.notes, *(f"  {fault}" for fault in self.faults)])


def check_results(name: str, results: Path) -> Checked:
    """Compute every mean, interval and p value of an experiment's table again."""
    experiment, folder = load_experiment(name), results / name
    for file in (TABLE, RUNS):
        if not (folder / file).is_file():
            raise InputError(f"{folder} has no {file}: run the experiment first, or choose other --results")
    if experiment.kind != "training":
        return Checked(name, 0, (), (f"{name}: an experiment of kind {experiment.kind} has no intervals to check",))
    rows = [row for row in read_csv(folder / TABLE) if row.get("seed", "mean") == "mean"]
    runs = read_csv(folder / RUNS)
    draws = read_draws(folder)
    has_intervals = any(COMPARED.fullmatch(column) and row[column] for row in rows for column in row)
    notes = []
    if has_intervals and draws is None:
        notes.append(f"{name}: has no {DIFFERENCES}, so its intervals and p values cannot be checked: run it again")
    axes = [axis for axis in (rows[0] if rows else ()) if any(axis in plan.axes for plan in experiment.plans.values())]
    table = TableCheck(experiment, axes, runs, draws)
    found = [fault for row in rows for fault in table.check(row)]
    return Checked(name, len(found), tuple(fault for fault in found if fault), tuple(notes))


class TableCheck:
    """Checks the rows of one table; every number that is computed again yields an empty text, or what differs."""

    def __init__(
        self, experiment: Experiment, axes: Sequence[str], runs: Sequence[Row], draws: Sequence[StoredDraws] | None
    ) -> None:
        self.experiment, self.axes, self.has_draws = experiment, axes, draws is not None
        self.runs: dict[tuple[str, ...], list[Row]] = {}
        for run in runs:
            self.runs.setdefault((run["setting"], *(run[axis] for axis in axes)), []).append(run)
        self.draws = {(row.key, row.label, row.column): row for row in draws or ()}

    def check(self, row: Row) -> Iterator[str]:
        """Check one row."""
        key = (row["setting"], *(row[axis] for axis in self.axes))
        where = " ".join(key)
        group = self.runs.get(key, [])
        if len(group) != int(row["seeds"]):
            yield f"{where}: {row['seeds']} seeds, and {RUNS} has {len(group)} runs"
            return
        for column in row:
            if f"{column} lowest" in row and row[column]:
                values = [float(run[column]) for run in group if run[column]]
                yield from self.same(f"{where}: {column}", row[column], float(np.mean(values)))
                yield from self.same(f"{where}: {column} lowest", row[f"{column} lowest"], min(values))
                yield from self.same(f"{where}: {column} highest", row[f"{column} highest"], max(values))
                if len(values) > 1:
                    deviation = float(np.std(values, ddof=1))
                    yield from self.same(f"{where}: {column} deviation", row[f"{column} deviation"], deviation)
            found = COMPARED.fullmatch(column)
            if found and row[column]:
                yield from self.check_difference(row, key, column, found["score"], found["kind"], found["label"] or "")

    def check_difference(
        self, row: Row, key: tuple[str, ...], column: str, score: str, kind: str, label: str
    ) -> Iterator[str]:
        """Check one difference: its value, the ends of its interval, and its p value."""
        where = f"{' '.join(key)}: {column}"
        value = self.difference(key, label, score, kind)
        yield from self.same(where, row[column], value)
        if not self.has_draws:
            return
        stored = self.draws.get((key, label, score))
        if stored is None or stored.kind != kind:
            yield f"{where}: no draws of it are stored"
            return
        low, high = np.quantile(stored.values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        yield from self.same(f"{where} low", row[f"{column} low"], min(float(low), value), stored.step)
        yield from self.same(f"{where} high", row[f"{column} high"], max(float(high), value), stored.step)
        p_column = f"{score} p{column.partition(kind)[2]}"
        yield from self.same(f"{' '.join(key)}: {p_column}", row[p_column], p_value(stored, value))

    def difference(self, key: tuple[str, ...], label: str, score: str, kind: str) -> float:
        """Compute a difference of means over the seeds that both rows have; NaN where there is nothing to compare."""
        choices = dict(zip(self.axes, key[1:], strict=True))
        base = bases(choices, self.experiment.against).get(label)
        if base is None:
            return math.nan
        here, there = (
            {run["seed"]: float(run[score]) for run in self.runs.get(which, []) if run[score]}
            for which in (key, (key[0], *base.values()))
        )
        if is_raw(base) and len(there) == 1:
            there = dict.fromkeys(here, next(iter(there.values())))
        seeds = [seed for seed in here if seed in there]
        if not seeds:
            return math.nan
        now, before = (math.fsum(values[seed] for seed in seeds) / len(seeds) for values in (here, there))
        return now / before - 1 if kind == "change" else now - before

    def same(self, where: str, stored: str, computed: float, tolerance: float = 0.0) -> Iterator[str]:
        """Yield nothing more than that a number was compared, or how it differs."""
        value = float(stored) if stored else math.nan
        allowed = tolerance + ROUNDING * max(abs(value), abs(computed), 1e-6)
        if abs(value - computed) <= allowed:
            yield ""
        else:
            yield f"{where} is {value:.6g}, and {computed:.6g} follows from what is stored"


def p_value(stored: StoredDraws, value: float) -> float:
    """Compute the two-sided p value of stored draws: twice the share on the smaller side of zero."""
    number = len(stored.draws)
    if stored.draws[0] == stored.draws[-1]:
        return 1.0 if value == 0 else stored.least
    below = (np.count_nonzero(stored.draws < 0) + np.count_nonzero(stored.draws <= 0)) / 2
    smaller = min(below, number - below) / number
    return max(min(max(2 * smaller, 1 / number), 1.0), stored.least)
