"""Scores of an experiment's runs: means over seeds with their range, and changes compared with a baseline choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.measure.comparison import Difference
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores import registry
from isomargin.measure.seed_comparison import compare_seeds
from lab.experiment import Experiment
from lab.plan import PlannedRun, base_of

Load = Callable[[Path], Evaluation]
"""Opens the evaluation of a run by `PlannedRun.folder`."""
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
    differences: dict[str, Difference]
    """By column, from the row that it is compared with."""

    @property
    def seeds(self) -> int:
        """How many runs there are."""
        return len(self.results)


def scores_of(evaluation: Evaluation) -> dict[str, float]:
    """Give every score of an evaluation, and the calibration range, by column."""
    low, high = evaluation.calibration_range
    scores = {name: score.read(evaluation) for name, score in registry.scores_of(evaluation).items()}
    return {**scores, "calibration_low": low, "calibration_high": high}


def grouped(runs: Sequence[PlannedRun]) -> dict[Key, list[PlannedRun]]:
    """Group runs that differ only in the seed."""
    groups: dict[Key, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.setting, tuple(run.choices.items())), []).append(run)
    return groups


def make_rows(
    experiment: Experiment, runs: Sequence[PlannedRun], load: Load, seconds: Mapping[Path, float | None]
) -> list[Row]:
    """Make one row per group of runs that differ only in the seed, compared with the experiment's baseline choice.

    `runs` are those that have scores; `seconds` is by their folders.
    """
    groups, rows = grouped(runs), []
    for (setting, choices), group in groups.items():
        chosen = dict(choices)
        base = base_of(chosen, experiment.against)
        others = groups.get((setting, tuple(base.items())), [])
        differences = {} if base == chosen else differences_of(others, group, load)
        results = [RunResult(run, scores_of(load(run.folder)), seconds.get(run.folder)) for run in group]
        rows.append(make_row(results, "+".join(base.values()) if differences else None, differences))
    return rows


def differences_of(first: Sequence[PlannedRun], other: Sequence[PlannedRun], load: Load) -> dict[str, Difference]:
    """Compare two ways of training by the seeds that both have scores for."""
    here, there = ({run.seed: run.folder for run in runs} for runs in (first, other))
    seeds = [seed for seed in here if seed in there]
    if not seeds:
        return {}
    one, two = ([load(folders[seed]) for seed in seeds] for folders in (here, there))
    return {difference.score: difference for difference in compare_seeds(one, two)}


def make_row(results: Sequence[RunResult], against: str | None, differences: dict[str, Difference]) -> Row:
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
        differences=differences,
    )


def row_values(row: Row) -> dict[str, Any]:
    """Give a row of table.csv for a group of seeds."""
    values: dict[str, Any] = {"setting": row.setting, **row.choices, "seeds": row.seeds, "seconds": row.seconds}
    for name, mean in row.means.items():
        values |= {name: mean, f"{name} lowest": row.lowest[name], f"{name} highest": row.highest[name]}
        values[f"{name} deviation"] = row.deviations[name]
        if name in row.differences:
            difference = row.differences[name]
            moved = difference.change or difference.difference
            kind = "change" if difference.change else "difference"
            values |= {
                f"{name} {kind}": moved.value,
                f"{name} {kind} low": moved.low,
                f"{name} {kind} high": moved.high,
            }
            values[f"{name} p"] = difference.p_value
    return values | {"against": row.against}


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
