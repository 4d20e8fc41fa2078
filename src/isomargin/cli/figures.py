"""The command ``figure``, which draws the figures of the paper."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomargin.cli.common import check_writable, writing
from isomargin.cli.opening import (
    EmbeddingsKey,
    Labels,
    LabelsKey,
    ReadOptions,
    open_embeddings,
    open_evaluation,
    read_options,
    short_names,
)
from isomargin.cli.training import numbers
from isomargin.core.errors import InputError
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.figures.registry import FigureKind


def figure(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Name of the figure to draw. --list shows all names.", show_default=False),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            parser=as_path,
            metavar="RUN",
            help="What to draw: the folder of a run, an evaluation.json, or a file of embeddings. --list shows what "
            "each figure needs.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write: .svg, .pdf or .png.")
    ] = None,
    list_figures: Annotated[
        bool, typer.Option("--list", help="List all figures, with what each shows and what it needs, and exit.")
    ] = False,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Only for teaser: names of the classes to show, separated by commas. By default the classes with the "
            "smallest, the median and the largest threshold."
        ),
    ] = None,
    far: Annotated[
        float | None,
        typer.Option(
            help="Only for teaser: the false accept rate of the thresholds. By default the target of the evaluation."
        ),
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(help="Only for calibration_ranges: ranges of false accept rates, such as 0.001-0.01,0.01-0.1."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Only for recall_over_epochs: the column of metrics.csv to draw. By default recall@1."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Only for margins_grid: the loss of recall@1 that the search allowed. By default 0.01."),
    ] = None,
    gaussian: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBERS",
            help="Only for gaussian_curves: a class as four numbers separated by commas, the mean and the standard "
            "deviation of the distances of its positive pairs, then of its negative pairs. Repeat it for more classes.",
        ),
    ] = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
) -> None:
    """Draw a figure of the paper from your runs, as SVG, PDF or PNG.

    For example, `isomargin figure utility_curves runs/a runs/b -o curves.pdf` draws the utility curves of two runs.
    """
    from isomargin.figures.registry import find_figure
    from isomargin.figures.style import check_output, save

    if list_figures:
        print(listing())
        return
    if name is None or output is None:
        raise InputError(
            "the name of a figure and an output file are needed, as in `isomargin figure NAME RUN... -o FILE`: --list "
            "shows all figures"
        )
    kind = find_figure(name)
    check_writable(output, check_output(output).suffix)
    given = {
        "--classes": ("classes", "evaluations", None if classes is None else split_names(classes)),
        "--far": ("far", "evaluations", far),
        "--ranges": ("ranges", "evaluations", None if ranges is None else read_ranges(ranges)),
        "--column": ("column", "metrics", column),
        "--tolerance": ("tolerance", "search", tolerance),
        "--gaussian": ("classes", "nothing", read_gaussian(gaussian) if gaussian else None),
    }
    options = chosen_options(kind, given)
    takes_embeddings = kind.source in ("embeddings", "evaluations")
    reading = read_options(runs, labels, embeddings_key, labels_key) if takes_embeddings and runs else []
    sources = read_sources(kind, runs or [], reading)
    drawn: Any = kind.draw(*sources, **options)
    with writing(output):
        save(drawn, output)
    print(f"written to {output}", file=sys.stderr)


def listing() -> str:
    """Return the name of every figure, what it shows and what it needs."""
    from isomargin.figures.registry import FIGURES, NEEDS

    blocks = (f"{kind.name}\n  {kind.shows}\n  needs {NEEDS[kind.source]}" for kind in FIGURES.values())
    return "\n".join(blocks)


def chosen_options(kind: "FigureKind", given: dict[str, tuple[str, str, Any]]) -> dict[str, Any]:
    """Return the given options by the names of the figure's arguments; options of other figures are refused."""
    from isomargin.figures.registry import FIGURES

    options = {}
    for option, (argument, source, value) in given.items():
        if value is None:
            continue
        if argument not in kind.options or source != kind.source:
            takers = [other.name for other in FIGURES.values() if argument in other.options and other.source == source]
            raise InputError(f"{option} is for {' and '.join(takers)}, not for {kind.name}: leave it out")
        options[argument] = value
    return options


def read_sources(kind: "FigureKind", paths: list[Path], options: list[ReadOptions]) -> tuple[Any, ...]:
    """Open the paths and return the positional arguments of the figure's function: one, or none."""
    from isomargin.cli.figure_inputs import read_metrics, read_models, read_search
    from isomargin.figures.registry import NEEDS

    if kind.source == "nothing":
        if paths:
            raise InputError(f"{kind.name} is drawn from formulas and takes no runs: leave out {paths[0]}")
        return ()
    if not paths:
        raise InputError(f"{kind.name} needs {NEEDS[kind.source]}: none was given")
    if kind.source == "search":
        if len(paths) > 1:
            raise InputError(f"{kind.name} shows one search, but {len(paths)} were given: give one of them")
        return (read_search(paths[0]),)
    by_name = short_names(paths)
    if kind.source == "models":
        return (read_models(by_name),)
    if kind.source == "metrics":
        return ({name: read_metrics(path) for name, path in by_name.items()},)
    open_path = open_embeddings if kind.source == "embeddings" else open_evaluation
    named = zip(by_name.items(), options, strict=True)
    return ({name: open_path(path, path_options) for (name, path), path_options in named},)


def split_names(text: str) -> list[str]:
    """Read names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_ranges(text: str) -> list[tuple[float, float]]:
    """Read ranges of rates separated by commas.

    >>> read_ranges("0.001-0.01, 1e-2-1e-1")
    [(0.001, 0.01), (0.01, 0.1)]
    """
    import re

    rate = r"\s*(\d*\.?\d+(?:[eE][-+]?\d+)?)\s*"
    pairs = [re.fullmatch(f"{rate}-{rate}", part) for part in text.split(",")]
    if not all(pairs):
        raise InputError(f"ranges is {text!r}: ranges of false accept rates are needed, such as 0.001-0.01,0.01-0.1")
    return [(float(pair[1]), float(pair[2])) for pair in pairs if pair]


def read_gaussian(texts: list[str]) -> list[Any]:
    """Read Gaussian classes from four numbers each."""
    from isomargin.theory import GaussianClass

    parameters = [numbers(text, "gaussian") for text in texts]
    for text, four in zip(texts, parameters, strict=True):
        if len(four) != 4:
            raise InputError(
                f"gaussian is {text!r}: four numbers are needed, the mean and the standard deviation of the distances "
                "of positive pairs and of negative pairs"
            )
    return [GaussianClass(*four) for four in parameters]
