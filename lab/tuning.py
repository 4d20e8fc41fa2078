"""Experiments of kind `tuning`: TCM and the class alignment tuned by one rule, on held-out training classes.

The rule: of the settings whose recall@1 is at most `tolerance` below plain training's, the one with the lowest OPIS; if
none is, the one with the highest recall@1. Both are means over seeds.

- The class alignment is tried with every share.
- TCM begins with a grid of margins at one share. As long as the best point has a neighbour that was not tried (one
  step of either margin, or of both, on the ladders of values), its neighbours are tried. So the choice is surrounded by
  worse points, or at an end of a ladder. Then the other shares are tried with the chosen margins; if one of them
  is better, so are the neighbours in one margin at that share.

Points are runs as those of any experiment; what was chosen is written to choices.yaml (`lab.tuned_choices`).

    FOLDER/SETTING/LOSS+tcm-0.9-0.45-0.3/seed-0/    TCM with these margins and share
    FOLDER/SETTING/LOSS+alignment-0.3/seed-0/       class alignment with this share
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.measure.evaluation import Evaluation
from isomargin.training.recipe import Recipe
from isomargin.training.run_folder import RunFolder
from lab.experiment import Plan, Tuning
from lab.jobs import Report
from lab.plan import PlannedRun, result_name
from lab.results_folder import Results
from lab.seed_means import grouped
from lab.training_runs import Train, train_all
from lab.tuned_choices import CHOICES, Chosen, write_choices

PLAIN, TCM, ALIGNMENT = "plain", "tcm", "alignment"
SCORES = ("recall@1", "opis", "debiased_opis", "map_at_r")
FORM = {"name": "class_alignment", "negative_weight": 0, "temperature": 0.3}
"""Of the class alignment, whose share is searched; the experiment `alignment` has chosen it."""
ROUNDING = 1e-12  # a recall that is lower by exactly the tolerance is still within it


@dataclass(frozen=True)
class Point:
    """One thing to try: plain training, or a regularizer with its share."""

    method: str
    share: float | None = None
    positive: float | None = None
    negative: float | None = None

    @property
    def name(self) -> str:
        """Its name among the choices of the axis `training`.

        >>> Point("tcm", 0.3, 0.9, 0.45).name, Point("alignment", 1.0).name, Point("plain").name
        ('tcm-0.9-0.45-0.3', 'alignment-1', 'plain')
        """
        numbers = (self.positive, self.negative, self.share)
        return "-".join([self.method, *(f"{number:g}" for number in numbers if number is not None)])

    @property
    def regularizer(self) -> dict[str, Any] | None:
        """Its regularizer, as in a recipe."""
        if self.method == TCM:
            margins = {"positive_margin": self.positive, "negative_margin": self.negative}
            return {"name": TCM, **margins, "share": self.share}
        return None if self.method == PLAIN else {**FORM, "share": self.share}


@dataclass
class Case:
    """The search in one setting with one loss."""

    setting: str
    choices: dict[str, str]
    runs: Sequence[PlannedRun]
    """Of plain training, one per seed."""
    tuning: Tuning
    scores: dict[Point, dict[str, list[float]]] = field(default_factory=dict)
    """By point and score, one value per seed; nothing for a point that diverged with any seed."""

    def planned(self, points: Iterable[Point]) -> list[PlannedRun]:
        """Plan the runs of points."""
        return [
            run.model_copy(
                update={
                    "choices": {**run.choices, "training": point.name},
                    "recipe": with_regularizer(run.recipe, point),
                }
            )
            for point in points
            for run in self.runs
        ]

    def mean(self, point: Point, score: str) -> float:
        """Average a score over seeds; NaN for a point that diverged."""
        values = self.scores[point].get(score)
        return float(np.mean(values)) if values else math.nan

    def best(self, points: Iterable[Point]) -> Point | None:
        """Choose among points by the rule; None if all of them diverged."""
        known = [point for point in points if self.scores.get(point)]
        floor = self.mean(Point(PLAIN), "recall@1") - self.tuning.tolerance - ROUNDING
        fit = [point for point in known if self.mean(point, "recall@1") >= floor]
        if fit:
            return min(fit, key=lambda point: (self.mean(point, "opis"), -self.mean(point, "recall@1")))
        return max(known, key=lambda point: self.mean(point, "recall@1"), default=None)

    def of(self, method: str) -> list[Point]:
        """List the points of a method that were tried."""
        return [point for point in self.scores if point.method == method]

    def rounds(self) -> Iterator[list[Point]]:
        """Yield what to try next; the scores of all points are known when the next are asked for."""
        tuning = self.tuning
        yield [
            Point(PLAIN),
            *(Point(ALIGNMENT, share) for share in tuning.shares),
            *points_at(tuning.share, product(tuning.start_positive, tuning.start_negative)),
        ]
        while new := self.untried(self.best(self.of(TCM)), diagonal=True):
            yield new
        chosen = self.best(self.of(TCM))
        if chosen is None:
            return
        yield [Point(TCM, share, chosen.positive, chosen.negative) for share in tuning.shares if share != tuning.share]
        better = self.best(self.of(TCM))
        if better is not None and better.share != tuning.share:
            yield self.untried(better, diagonal=False)

    def untried(self, point: Point | None, diagonal: bool) -> list[Point]:
        """List the neighbours of a point on the ladders that were not tried at its share."""
        if point is None:
            return []
        assert point.positive is not None
        assert point.negative is not None
        pairs = [
            (positive, negative)
            for positive in near(self.tuning.positive, point.positive)
            for negative in near(self.tuning.negative, point.negative)
            if diagonal or positive == point.positive or negative == point.negative
        ]
        return [new for new in points_at(point.share, pairs) if new not in self.scores]


def points_at(share: float | None, margins: Iterable[tuple[float, float]]) -> list[Point]:
    """Give TCM with pairs of margins; those whose positive margin is below the negative one are left out."""
    return [Point(TCM, share, positive, negative) for positive, negative in margins if positive >= negative]


def near(ladder: Sequence[float], value: float) -> list[float]:
    """Give the values of a ladder that are at most one step away.

    >>> near((0.3, 0.45, 0.6), 0.6)
    [0.45, 0.6]
    """
    place = ladder.index(value)
    return list(ladder[max(place - 1, 0) : place + 2])


def with_regularizer(recipe: Recipe, point: Point) -> Recipe:
    """Give a recipe with the regularizer of a point."""
    loss = recipe.loss.model_copy(update={"regularizer": point.regularizer})
    return recipe.model_copy(update={"loss": loss, "name": f"{recipe.name} {point.name}"})


def fewest_and_most(tuning: Tuning) -> tuple[int, int]:
    """Count the points that a search tries at least and at most.

    >>> fewest_and_most(Tuning(positive=(0.6, 0.9), negative=(0.5,), start_positive=(0.9,), start_negative=(0.5,)))
    (7, 9)
    """
    start, ladder = (
        len(points_at(None, product(*pair)))
        for pair in ((tuning.start_positive, tuning.start_negative), (tuning.positive, tuning.negative))
    )
    others = 1 + len(tuning.shares) + len(tuning.shares) - 1
    return start + others, ladder + others + min(4, ladder - 1)


def run_tuning(
    plan: Plan, runs: Sequence[PlannedRun], folder: Path, train: Train, jobs: int, report: Report
) -> list[Case]:
    """Search in every setting with every loss, or continue; what can be tried now is trained together."""
    assert plan.tuning is not None
    cases = [Case(setting, dict(choices), group, plan.tuning) for (setting, choices), group in grouped(runs).items()]
    searches = [(case, case.rounds()) for case in cases]
    while searches:
        wanted = [(case, rounds, next(rounds, None)) for case, rounds in searches]
        searches = [(case, rounds) for case, rounds, points in wanted if points is not None]
        tried = [(case, points) for case, _, points in wanted if points]
        planned = [run for case, points in tried for run in case.planned(points)]
        seconds = train_all(planned, folder, train, jobs, report) if planned else {}
        for case, points in tried:
            for point in points:
                case.scores[point] = scores_of(case.planned([point]), folder, seconds)
    return cases


def scores_of(runs: Sequence[PlannedRun], folder: Path, finished: Mapping[Path, Any]) -> dict[str, list[float]]:
    """Read the scores of a point's runs; nothing if one of them has none."""
    if any(run.folder not in finished for run in runs):
        return {}
    scalars = [Evaluation.load(RunFolder(folder / run.folder).evaluation).scalars() for run in runs]
    return {name: [values[name] for values in scalars] for name in SCORES}


def tuning_results(cases: Sequence[Case]) -> Results:
    """Give what was chosen by case and method, every point with every seed, and the recipes of what was chosen."""
    rows, runs, recipes = [], [], {}
    for case in cases:
        plain = Point(PLAIN)
        for method in (TCM, ALIGNMENT):
            chosen = case.best(case.of(method))
            rows.append(table_row(case, method, chosen))
            if chosen is not None:
                run = case.planned([chosen])[0]
                recipes[result_name(case.setting, {**case.choices, "training": method})] = run.recipe
        best = {case.best(case.of(method)) for method in (TCM, ALIGNMENT)}
        for point in (plain, *case.of(ALIGNMENT), *case.of(TCM)):
            for number, run in enumerate(case.runs):
                begin = {"setting": case.setting, **case.choices, "training": point.method, "seed": run.seed}
                scores = {name: values[number] for name, values in case.scores[point].items()}
                runs.append({**begin, **point_values(point), **scores, "chosen": point in best})
    return Results(rows, runs, recipes)


def point_values(point: Point) -> dict[str, float | None]:
    """Give the settings of a point."""
    return {"positive_margin": point.positive, "negative_margin": point.negative, "share": point.share}


def table_row(case: Case, method: str, chosen: Point | None) -> dict[str, Any]:
    """Give a row of table.csv: what was chosen, among how many, and its scores without and with it."""
    begin = {"setting": case.setting, **case.choices, "training": method, "seeds": len(case.runs)}
    begin["points"] = len(case.of(method))
    plain = {f"{name} plain": case.mean(Point(PLAIN), name) for name in SCORES}
    if chosen is None:
        return {**begin, **point_values(Point(method)), **dict.fromkeys(SCORES), **plain}
    scores = {name: case.mean(chosen, name) for name in SCORES}
    return {**begin, **point_values(chosen), **scores, **plain}


def with_earlier(new: Results, before: Results | None) -> Results:
    """Add the rows of an earlier call that are of other settings and losses."""
    if before is None:
        return new

    def key(row: Mapping[str, Any]) -> tuple[str, str]:
        return str(row["setting"]), str(row.get("loss", ""))

    done = {key(row) for row in new.rows}
    names = [f"{setting}-{loss}+" for setting, loss in done]
    recipes = {name: recipe for name, recipe in before.recipes.items() if not name.startswith(tuple(names))}
    return Results(
        [*(row for row in before.rows if key(row) not in done), *new.rows],
        [*(row for row in before.runs if key(row) not in done), *new.runs],
        recipes | new.recipes,
    )


def write_chosen(cases: Sequence[Case], place: Path) -> None:
    """Write what was chosen beside the table; what other calls have chosen in other settings stays."""
    chosen: Chosen = {}
    for case in cases:
        for method in (TCM, ALIGNMENT):
            best = case.best(case.of(method))
            if best is not None and best.regularizer is not None:
                by_loss = chosen.setdefault(case.setting, {}).setdefault(case.choices.get("loss", ""), {})
                by_loss[method] = best.regularizer
    write_choices(chosen, place / CHOICES)
