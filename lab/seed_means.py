"""Scores of an experiment's runs: means over seeds with their range, and changes compared with a baseline choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.choices import is_raw
from lab.comparisons import Compared, Comparer
from lab.derived import MAIN, bases
from lab.experiment import Experiment
from lab.kept import Measured
from lab.plan import PlannedRun
from lab.stored_draws import StoredDraws, in_steps

Load = Callable[[PlannedRun], Measured]
"""Opens what is known of a run that has scores."""
Key = tuple[str, tuple[tuple[str, str], ...]]
"""Setting and choices: what runs that differ only in the seed have in common."""


@dataclass(frozen=True)
class RunResult:
    """One run."""

    run: PlannedRun
    scores: dict[str, float]
    """By the names of columns."""
    seconds: float | None
    """That training took; None where it is not known."""


@dataclass(frozen=True)
class Row:
    """Runs that differ only in the seed."""

    setting: str
    choices: dict[str, str]
    results: tuple[RunResult, ...]
    """One per seed."""
    means: dict[str, float]
    """By column, over seeds."""
    deviations: dict[str, float]
    """Standard deviations over seeds; NaN for a single one."""
    lowest: dict[str, float]
    highest: dict[str, float]
    seconds: float | None
    """The mean over seeds."""
    against: str | None
    """The choices it is compared with; None for the baseline itself."""
    comparisons: dict[str, dict[str, Compared]]
    """By the label of the comparison and column; see `lab.derived.bases`."""

    @property
    def seeds(self) -> int:
        """How many runs there are."""
        return len(self.results)


def grouped(runs: Sequence[PlannedRun]) -> dict[Key, list[PlannedRun]]:
    """Group runs that differ only in the seed."""
    groups: dict[Key, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.setting, tuple(run.choices.items())), []).append(run)
    return groups


def make_rows(experiment: Experiment, runs: Sequence[PlannedRun], load: Load) -> list[Row]:
    """Make one row per group of runs that differ only in the seed, compared with the experiment's baseline choice.

    `runs` are those that have scores.
    """
    groups, rows, comparer = grouped(runs), [], Comparer(experiment.columns)
    for (setting, choices), group in groups.items():
        comparisons: dict[str, dict[str, Compared]] = {}
        compared_with = bases(dict(choices), experiment.against)
        for label, base in compared_with.items():
            same = next((found for found in comparisons if compared_with[found] == base), None)
            others = groups.get((setting, tuple(base.items())), [])
            compared = differences_of(others, group, load, comparer) if same is None else comparisons[same]
            if compared:
                comparisons[label] = compared
        results = [RunResult(run, load(run).scores, load(run).seconds) for run in group]
        against = "+".join(compared_with[MAIN].values()) if MAIN in comparisons else None
        rows.append(make_row(results, against, comparisons))
    return rows


def differences_of(
    first: Sequence[PlannedRun], other: Sequence[PlannedRun], load: Load, comparer: Comparer
) -> dict[str, Compared]:
    """Compare two ways of training by the seeds that both have scores for; raw features may be the same for all."""
    here, there = ({run.seed: run for run in runs} for runs in (first, other))
    if len(here) == 1 and is_raw(first[0].choices) and first[0].recipe.evaluation.test:
        here = dict.fromkeys(there, first[0])
    seeds = [seed for seed in here if seed in there]
    if not seeds:
        return {}
    one, two = ([load(runs[seed]) for seed in seeds] for runs in (here, there))
    return comparer.compare(one, two)


def make_row(results: Sequence[RunResult], against: str | None, comparisons: dict[str, dict[str, Compared]]) -> Row:
    """Average the runs of a group."""
    values = {name: [result.scores[name] for result in results] for name in results[0].scores}
    times = [result.seconds for result in results if result.seconds is not None]
    alone = len(results) == 1
    return Row(
        setting=results[0].run.setting,
        choices=results[0].run.choices,
        results=tuple(results),
        means={name: math.fsum(column) / len(column) for name, column in values.items()},
        deviations={name: math.nan if alone else float(np.std(column, ddof=1)) for name, column in values.items()},
        lowest={name: min(column) for name, column in values.items()},
        highest={name: max(column) for name, column in values.items()},
        seconds=math.fsum(times) / len(times) if times else None,
        against=against,
        comparisons=comparisons,
    )


def row_values(row: Row) -> dict[str, Any]:
    """Give a row of table.csv for a group of seeds."""
    values: dict[str, Any] = {"setting": row.setting, **row.choices, "seeds": row.seeds, "seconds": row.seconds}
    for name, mean in row.means.items():
        values |= {name: mean, f"{name} lowest": row.lowest[name], f"{name} highest": row.highest[name]}
        values[f"{name} deviation"] = row.deviations[name]
        for label, compared in row.comparisons.items():
            if name in compared:
                values |= difference_values(name, label, compared[name])
    return values | {"against": row.against}


def difference_values(name: str, label: str, compared: Compared) -> dict[str, Any]:
    """Give the cells of one score's difference: ``opis change``, its ends and its p value.

    Those of other comparisons than the one with `against` have its label: ``opis change from raw``.
    """
    moved, end = compared.difference.change or compared.difference.difference, suffix(label)
    start = f"{name} {compared.kind}{end}"
    p_value = compared.difference.p_value
    return {start: moved.value, f"{start} low": moved.low, f"{start} high": moved.high, f"{name} p{end}": p_value}


def suffix(label: str) -> str:
    """Give what the names of a comparison's columns have behind them.

    >>> suffix(""), suffix("raw")
    ('', ' from raw')
    """
    return f" from {label}" if label else ""


def stored_draws(rows: Sequence[Row]) -> list[StoredDraws]:
    """Give the draws behind every interval of a table."""
    return [
        StoredDraws(
            row.setting,
            tuple(row.choices.values()),
            label,
            name,
            compared.kind,
            compared.least,
            *in_steps(compared.draws),
        )
        for row in rows
        for label, columns in row.comparisons.items()
        for name, compared in columns.items()
        if name in row.means
    ]


def run_values(result: RunResult) -> dict[str, Any]:
    """Give a row of runs.csv."""
    run = result.run
    return {"setting": run.setting, **run.choices, "seed": run.seed, "seconds": result.seconds, **result.scores}


def table_rows(experiment: Experiment, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Give the rows of table.csv: one per group of seeds, or one per seed with the group's mean below."""
    if experiment.rows == "groups":
        return [row_values(row) for row in rows]
    return [
        values
        for row in rows
        for values in (*(run_values(result) for result in row.results), {**row_values(row), "seed": "mean"})
    ]
