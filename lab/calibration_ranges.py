"""OPIS of an experiment's runs for several ranges of false accept rates: whether the order of models depends on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from lab.experiment import Experiment
from lab.files import write_text
from lab.plan import PlannedRun
from lab.seed_means import Load, grouped
from lab.tables import as_csv, as_markdown, shown, signs

Range = tuple[float, float]


@dataclass(frozen=True)
class RangeTable:
    """One setting's models in every range."""

    setting: str
    choices: list[dict[str, str]]
    own: Range
    """The range that the runs were evaluated with, which the others are held against."""
    opis: dict[Range, list[float]]
    """By range, each model's, in the mean over seeds."""

    def ranks(self, of: Range) -> list[int]:
        """Give each model's place, the lowest OPIS being 1; equals share the better one."""
        from scipy.stats import rankdata

        return [int(each) for each in rankdata(self.opis[of], method="min")]

    def tau(self, of: Range) -> float:
        """Give Kendall's tau between the order in a range and that in the runs' own; NaN if there is no order."""
        from scipy.stats import kendalltau

        if len(self.choices) < 2:
            return math.nan
        return float(kendalltau(self.opis[of], self.opis[self.own]).statistic)


def make_range_tables(
    experiment: Experiment, runs: Sequence[PlannedRun], load: Load, report: Callable[[str], None]
) -> list[RangeTable]:
    """Answer for every range of an experiment, by setting; ranges without pairs enough are told and left out."""
    groups, tables = grouped(runs), []
    for setting in dict.fromkeys(run.setting for run in runs):
        models = {choices: group for (name, choices), group in groups.items() if name == setting}
        first = load(next(iter(models.values()))[0].folder)
        own: Range = (float(first.settings.far[0]), float(first.settings.far[1]))
        opis: dict[Range, list[float]] = {each: [] for each in dict.fromkeys((*experiment.ranges, own))}
        for group in models.values():
            for far in list(opis):
                try:
                    values = [load(run.folder).with_settings(far=far).opis for run in group]
                except InputError as error:
                    report(f"note: {setting} has no OPIS from {far[0]:g} to {far[1]:g}, {error}")
                    del opis[far]
                else:
                    opis[far].append(float(np.mean(values)))
        tables.append(RangeTable(setting, [dict(choices) for choices in models], own, opis))
    return tables


def tau_cell(tau: float) -> str:
    """Write Kendall's tau, which there may be none of.

    >>> tau_cell(-1 / 3), tau_cell(math.nan)
    ('−0.33', '–')
    """
    return "–" if math.isnan(tau) else signs(f"{tau:.2f}")


def write_ranges(tables: Sequence[RangeTable], place: Path) -> None:
    """Write ranges.md, with OPIS and rank of each model in each range and Kendall's tau below, and ranges.csv."""
    parts = [
        "OPIS ×1e-3 (rank) by the range of false accept rates, and the order's Kendall τ to that of the runs' own.\n"
    ]
    numbers: list[dict[str, Any]] = []
    for table in tables:
        axes = list(table.choices[0])
        heads = ["setting", *axes, *(f"{low:g} to {high:g}" for low, high in table.opis)]
        ranks = {each: table.ranks(each) for each in table.opis}
        lines = [
            [table.setting, *chosen.values()]
            + [f"{shown('opis', opis[number])} ({ranks[each][number]})" for each, opis in table.opis.items()]
            for number, chosen in enumerate(table.choices)
        ]
        to_own = f"τ to {table.own[0]:g} to {table.own[1]:g}"
        lines.append([to_own, *[""] * len(axes), *(tau_cell(table.tau(each)) for each in table.opis)])
        parts.append(as_markdown(heads, lines))
        for each, opis in table.opis.items():
            numbers += [
                {"setting": table.setting, **chosen, "low": each[0], "high": each[1], "opis": opis[number]}
                | {"rank": ranks[each][number], "tau": table.tau(each)}
                for number, chosen in enumerate(table.choices)
            ]
    write_text(place / "ranges.md", "\n".join(parts))
    write_text(place / "ranges.csv", as_csv(numbers))
