"""What came of an experiment: a row a run, means over seeds with intervals, and differences held against a choice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isomargin.files import atomic_write
from isomargin.lab.experiment import Experiment, PlannedRun
from isomargin.measure.comparison import Difference
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.seeds import SPREAD, compare_seeds


@dataclass(frozen=True)
class RunResult:
    """One run."""

    run: PlannedRun
    scores: dict[str, float]
    """By the names of columns."""
    seconds: float | None
    """Of its training; None where it was trained elsewhere."""


@dataclass(frozen=True)
class Row:
    """Runs that differ in the seed alone."""

    setting: str
    choices: dict[str, str]
    means: dict[str, float]
    """By column, over seeds."""
    lowest: dict[str, float]
    highest: dict[str, float]
    seeds: int
    seconds: float | None
    """In the mean."""
    against: str | None
    """Which choice it is held against; None for that one itself."""
    differences: dict[str, Difference]
    """By column, to the row that it is held against."""


def scores_of(evaluation: Evaluation) -> dict[str, float]:
    """Give the scores that tables have, by the names of columns."""
    scores = {
        "opis": evaluation.opis,
        "debiased_opis": evaluation.debiased_opis,
        "epsilon_opis": evaluation.epsilon_opis,
        "relative_opis": evaluation.relative_opis,
        "mean_utility": evaluation.mean_utility,
        "eer": evaluation.eer,
        "map_at_r": evaluation.map_at_r,
        SPREAD: evaluation.far_threshold_spread.relative_deviation,
    }
    return scores | {f"recall@{k}": value for k, value in evaluation.recall_at_k.items()}


def make_rows(
    experiment: Experiment, results: Sequence[RunResult], evaluations: Mapping[Path, Evaluation]
) -> list[Row]:
    """Put runs that differ in the seed alone together, and hold each group against the one it is compared with.

    `evaluations` are by the runs' folders, as `PlannedRun.folder` gives them.
    """
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[RunResult]] = {}
    for result in results:
        groups.setdefault((result.run.setting, tuple(result.run.choices.items())), []).append(result)
    rows = []
    for (setting, choices), group in groups.items():
        chosen = dict(choices)
        base = {**chosen, **{axis: choice for axis, choice in experiment.against.items() if axis in chosen}}
        others = groups.get((setting, tuple(base.items())))
        differences = {}
        if others is not None and base != chosen:
            number = min(len(group), len(others))
            pairs = [[evaluations[each.run.folder] for each in some[:number]] for some in (others, group)]
            differences = {each.score: each for each in compare_seeds(pairs[0], pairs[1])}
        rows.append(make_row(setting, chosen, group, "+".join(base.values()) if differences else None, differences))
    return rows


def make_row(
    setting: str,
    choices: dict[str, str],
    group: Sequence[RunResult],
    against: str | None,
    differences: dict[str, Difference],
) -> Row:
    """Average the runs of a group."""
    names = list(group[0].scores)
    values = {name: [each.scores[name] for each in group] for name in names}
    times = [each.seconds for each in group if each.seconds is not None]
    return Row(
        setting=setting,
        choices=choices,
        means={name: math.fsum(each) / len(each) for name, each in values.items()},
        lowest={name: min(each) for name, each in values.items()},
        highest={name: max(each) for name, each in values.items()},
        seeds=len(group),
        seconds=math.fsum(times) / len(times) if times else None,
        against=against,
        differences=differences,
    )


def row_values(row: Row) -> dict[str, Any]:
    """Give a row flat, for a CSV or JSON file."""
    values: dict[str, Any] = {"setting": row.setting, **row.choices, "seeds": row.seeds, "seconds": row.seconds}
    for name, mean in row.means.items():
        values |= {name: mean, f"{name} lowest": row.lowest[name], f"{name} highest": row.highest[name]}
        if name in row.differences:
            difference = row.differences[name]
            of = difference.change or difference.difference
            kind = "change" if difference.change else "difference"
            values |= {f"{name} {kind}": of.value, f"{name} {kind} low": of.low, f"{name} {kind} high": of.high}
            values[f"{name} p"] = difference.p_value
    return values


def write_json(path: Path, values: Any) -> None:
    """Write JSON that a person can read, whole or not at all; NaN as null."""
    text = json.dumps(without_nan(values), indent=1, allow_nan=False) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
