"""The figures of an experiment, drawn from its runs: one file per figure and setting, FIGURE-SETTING.png."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.training.run_folder import RunFolder
from lab.experiment import Experiment, ExperimentFigure
from lab.plan import PlannedRun, fits

if TYPE_CHECKING:
    from isomargin.figures.registry import FigureKind

ALL_SEEDS = ("error_against_opis",)  # figures whose runs are points: they show the spread of the seeds too
MOST_POINTS = 30  # with more, a reader could not tell which points belong together


def draw_figures(
    experiment: Experiment,
    planned: Sequence[PlannedRun],
    finished: Sequence[PlannedRun],
    folder: Path,
    place: Path,
    report: Callable[[str], None],
) -> None:
    """Draw every figure of an experiment for every setting; report what cannot be drawn.

    Args:
        experiment: the experiment.
        planned: all its runs.
        finished: those that have scores.
        folder: the folder of all runs.
        place: the folder that the figures are written to.
        report: called with a sentence on each figure that cannot be drawn, or not with all runs.
    """
    drawn: set[Path] = set()
    with_scores = {run.folder for run in finished}
    for wanted in experiment.figures:
        for setting in dict.fromkeys(run.setting for run in planned):
            path = file_of(wanted.figure, setting, place, drawn)
            drawn.add(path)
            fitting = [run for run in planned if run.setting == setting and fits(run.choices, wanted.runs)]
            try:
                shown = draw_figure(wanted, [run for run in fitting if run.folder in with_scores], folder, path)
            except InputError as error:
                path.unlink(missing_ok=True)  # an earlier one would be taken for this one
                report(f"note: {path.name} is not drawn, {error}")
                continue
            left_out = dict.fromkeys(run.variant for run in fitting if run.variant not in shown)
            if left_out:
                report(f"note: {path.name} leaves out {', '.join(left_out)}: no scores with the seed that is shown")


def file_of(figure: str, setting: str, place: Path, drawn: set[Path]) -> Path:
    """Name the file of a figure; if an experiment has it several times, from the second on with a number.

    >>> file_of("teaser", "toy", Path(), {Path("teaser-toy.png")})
    PosixPath('teaser-toy-2.png')
    """
    name, number = f"{figure}-{setting}", 1
    path = place / f"{name}.png"
    while path in drawn:
        number += 1
        path = place / f"{name}-{number}.png"
    return path


def draw_figure(wanted: ExperimentFigure, runs: Sequence[PlannedRun], folder: Path, path: Path) -> set[str]:
    """Draw one figure of runs with one seed, or with all seeds if it can show them; give the choices it shows."""
    from isomargin.figures.registry import find_figure
    from isomargin.figures.style import save

    kind = find_figure(wanted.figure)
    check_options(kind, wanted.options)
    if not runs:
        raise InputError("none of its runs has scores")
    if not (kind.name in ALL_SEEDS and len(runs) <= MOST_POINTS):
        runs = of_one_seed(runs)
    sources = read_sources(kind, dict(zip(names_of(runs), (folder / run.folder for run in runs), strict=True)))
    figure: Any = kind.draw(*sources, **wanted.options)
    save(figure, path)
    return {run.variant for run in runs}


def check_options(kind: FigureKind, options: dict[str, Any]) -> None:
    """Refuse options that a figure's function does not take."""
    source = () if kind.source == "nothing" else (None,)
    try:
        inspect.signature(kind.draw).bind(*source, **options)
    except TypeError as error:
        raise InputError(f"its options are {options}, which it does not take ({error})") from error


def of_one_seed(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Select the runs of the smallest seed that all choices have scores for, or that most choices have.

    >>> runs = [PlannedRun.model_construct(setting="a", choices={"loss": loss}, seed=seed)
    ...         for loss, seed in (("x", 0), ("x", 1), ("x", 2), ("y", 1), ("y", 2))]
    >>> [(run.variant, run.seed) for run in of_one_seed(runs)]
    [('x', 1), ('y', 1)]
    """
    by_seed: dict[int, list[PlannedRun]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    return max((by_seed[seed] for seed in sorted(by_seed)), key=len)


def names_of(runs: Sequence[PlannedRun]) -> list[str]:
    """Name runs by the choices that differ between them; a single run by all its choices.

    >>> runs = [PlannedRun.model_construct(setting="a", choices={"loss": "x", "training": training}, seed=0)
    ...         for training in ("plain", "tcm")]
    >>> names_of(runs), names_of(runs[:1])
    (['plain', 'tcm'], ['x plain'])
    """
    axes = [axis for axis in runs[0].choices if len({run.choices.get(axis) for run in runs}) > 1]
    seeds = len({run.seed for run in runs}) > 1
    names = []
    for run in runs:
        parts = [run.choices[axis] for axis in axes or run.choices]
        names.append(" ".join([*parts, f"seed {run.seed}"] if seeds else parts) or run.setting)
    return names


def read_sources(kind: FigureKind, runs: dict[str, Path]) -> tuple[Any, ...]:
    """Open what a figure is drawn from: its one argument, if it has any."""
    from isomargin.cli.figure_inputs import read_metrics, read_models
    from isomargin.cli.opening import open_embeddings

    match kind.source:
        case "nothing":
            return ()
        case "models":
            return (read_models(runs),)
        case "metrics":
            return ({name: read_metrics(path) for name, path in runs.items()},)
        case "embeddings":
            return ({name: open_embeddings(path) for name, path in runs.items()},)
        case "evaluations":
            return ({name: Evaluation.load(RunFolder(path).evaluation) for name, path in runs.items()},)
        case "search":
            raise InputError("it shows a search, not runs: experiments of kind margins draw it by themselves")
