"""OPIS of an experiment's runs for several calibration ranges: does the order of the models depend on the range?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from lab.experiment import Experiment
from lab.plan import PlannedRun
from lab.score_text import score_text, tau_text
from lab.seed_means import Load, grouped
from lab.table_text import Table

Range = tuple[float, float]
ABOVE = (
    "OPIS ×1e-3 (rank) by the range of false accept rates. Kendall's τ compares the order of the models with the order "
    "in the range that the runs were evaluated with."
)


@dataclass(frozen=True)
class RangeScores:
    """OPIS of one setting's models in every range."""

    setting: str
    choices: list[dict[str, str]]
    evaluated: Range
    """The range that the runs were evaluated with, which the others are compared with."""
    opis: dict[Range, list[float]]
    """By range, one value per model: the mean over seeds."""

    def ranks(self, far: Range) -> list[int]:
        """Rank the models, the lowest OPIS first; equal models share the better rank."""
        from scipy.stats import rankdata

        return [int(rank) for rank in rankdata(self.opis[far], method="min")]

    def tau(self, far: Range) -> float:
        """Compute Kendall's tau between the order in a range and that in the evaluated range; NaN for one model."""
        from scipy.stats import kendalltau

        if len(self.choices) < 2:
            return math.nan
        return float(kendalltau(self.opis[far], self.opis[self.evaluated]).statistic)


def score_ranges(
    experiment: Experiment, runs: Sequence[PlannedRun], load: Load, report: Callable[[str], None]
) -> list[RangeScores]:
    """Compute OPIS in every range of an experiment, by setting; ranges with too few pairs are reported and left out."""
    groups, scores = grouped(runs), []
    for setting in dict.fromkeys(run.setting for run in runs):
        models = {choices: group for (name, choices), group in groups.items() if name == setting}
        first = load(next(iter(models.values()))[0]).evaluation
        evaluated: Range = (float(first.settings.far[0]), float(first.settings.far[1]))
        opis: dict[Range, list[float]] = {far: [] for far in dict.fromkeys((*experiment.ranges, evaluated))}
        for group in models.values():
            for far in list(opis):
                try:
                    values = [load(run).evaluation.with_settings(far=far).opis for run in group]
                except InputError as error:
                    report(f"note: {setting} has no OPIS from {far[0]:g} to {far[1]:g}: {error}")
                    del opis[far]
                else:
                    opis[far].append(float(np.mean(values)))
        scores.append(RangeScores(setting, [dict(choices) for choices in models], evaluated, opis))
    return scores


def range_rows(scores: Sequence[RangeScores]) -> list[dict[str, Any]]:
    """Give the rows of ranges.csv: OPIS and rank of each model in each range, and Kendall's tau of the range."""
    return [
        {"setting": scored.setting, **chosen, "low": low, "high": high, "opis": opis[number]}
        | {"rank": scored.ranks((low, high))[number], "tau": scored.tau((low, high))}
        | {"tau against low": scored.evaluated[0], "tau against high": scored.evaluated[1]}
        for scored in scores
        for (low, high), opis in scored.opis.items()
        for number, chosen in enumerate(scored.choices)
    ]


def range_tables(rows: Sequence[Mapping[str, str]]) -> list[Table]:
    """Make tables from the rows of ranges.csv, one per setting: OPIS with ranks, and Kendall's tau below."""
    tables: list[Table] = []
    for setting in dict.fromkeys(row["setting"] for row in rows):
        here = [row for row in rows if row["setting"] == setting]
        axes = list(here[0])[1 : list(here[0]).index("low")]
        ranges = {f"{float(row['low']):g} to {float(row['high']):g}": row for row in here}
        lines: dict[tuple[str, ...], list[str]] = {}
        for row in here:
            begin = (setting, *(row[axis] for axis in axes))
            lines.setdefault(begin, [*begin]).append(f"{score_text(row, 'opis')} ({row['rank']})")
        tau_head = f"τ with {float(here[0]['tau against low']):g} to {float(here[0]['tau against high']):g}"
        taus = [tau_text(float(row["tau"] or math.nan)) for row in ranges.values()]
        body = [*lines.values(), [tau_head, *[""] * len(axes), *taus]]
        tables.append(Table(["setting", *axes, *ranges], body, before="" if tables else ABOVE))
    return tables
