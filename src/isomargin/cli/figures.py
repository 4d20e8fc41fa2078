"""The command that draws figures."""

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

if TYPE_CHECKING:
    from isomargin.figures.registry import FigureKind


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Of the figure; --list has them.", show_default=False)
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="A run's folder, an evaluation.json, or embeddings.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write: .svg, .pdf or .png.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Say what figures there are, and what each needs.")] = False,
    classes: Annotated[
        str | None, typer.Option(help="Of teaser: names of classes, with commas; three that say most unless given.")
    ] = None,
    far: Annotated[
        float | None, typer.Option(help="Of teaser: the false accept rate; the evaluation's target unless given.")
    ] = None,
    ranges: Annotated[
        str | None,
        typer.Option(help="Of calibration_ranges: pairs of false accept rates, such as 0.001-0.01,0.01-0.1."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Of recall_over_epochs: the column of metrics.csv; recall@1 unless given.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Of margins_grid: how much recall@1 the search might lose; 0.01 unless given.")
    ] = None,
    gaussian: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBERS",
            help="Of gaussian_curves: mean and deviation of friends' and strangers' distances; may be repeated.",
        ),
    ] = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
) -> None:
    """Draw a figure of the paper from saved runs, as SVG, PDF or PNG.

    `isomargin figure --list` says what there is; `isomargin figure utility_curves runs/a runs/b -o curves.pdf` draws.
    """
    from isomargin.figures.registry import find_figure
    from isomargin.figures.style import check_output, save

    if list_them:
        print(listing())
        return
    if name is None or output is None:
        raise InputError("a figure's name and a file are needed, `isomargin figure NAME RUN... -o FILE`: see --list")
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
    how = read_options(runs, labels, embeddings_key, labels_key) if takes_embeddings and runs else []
    sources = read_sources(kind, runs or [], how)
    drawn: Any = kind.draw(*sources, **options)
    with writing(output):
        save(drawn, output)
    print(f"written to {output}", file=sys.stderr)


def listing() -> str:
    """Name every figure, what it shows and what it needs."""
    from isomargin.figures.registry import FIGURES, NEEDS

    blocks = (f"{kind.name}\n  {kind.shows}\n  needs {NEEDS[kind.source]}" for kind in FIGURES.values())
    return "\n".join(blocks)


def chosen_options(kind: "FigureKind", given: dict[str, tuple[str, str, Any]]) -> dict[str, Any]:
    """Give the options that were given by the names of the figure's arguments; refuse those of other figures."""
    from isomargin.figures.registry import FIGURES

    options = {}
    for option, (argument, source, value) in given.items():
        if value is None:
            continue
        if argument not in kind.options or source != kind.source:
            takers = [each.name for each in FIGURES.values() if argument in each.options and each.source == source]
            raise InputError(f"{option} belongs to {' and '.join(takers)}, not to {kind.name}: leave it out")
        options[argument] = value
    return options


def read_sources(kind: "FigureKind", paths: list[Path], options: list[ReadOptions]) -> tuple[Any, ...]:
    """Open what a figure is drawn from: its one argument, or none."""
    from isomargin.cli.figure_inputs import read_metrics, read_models, read_search
    from isomargin.figures.registry import NEEDS

    if kind.source == "nothing":
        if paths:
            raise InputError(f"{kind.name} is drawn from formulas alone: leave {paths[0]} out")
        return ()
    if not paths:
        raise InputError(f"{kind.name} needs {NEEDS[kind.source]}: none was given")
    if kind.source == "search":
        if len(paths) > 1:
            raise InputError(f"{kind.name} shows one search, and {len(paths)} were given: leave all but one out")
        return (read_search(paths[0]),)
    by_name = short_names(paths)
    if kind.source == "models":
        return (read_models(by_name),)
    if kind.source == "metrics":
        return ({name: read_metrics(path) for name, path in by_name.items()},)
    opened = open_embeddings if kind.source == "embeddings" else open_evaluation
    return ({name: opened(path, how) for (name, path), how in zip(by_name.items(), options, strict=True)},)


def split_names(text: str) -> list[str]:
    """Read names with commas between them."""
    return [each.strip() for each in text.split(",") if each.strip()]


def read_ranges(text: str) -> list[tuple[float, float]]:
    """Read pairs of rates.

    >>> read_ranges("0.001-0.01, 1e-2-1e-1")
    [(0.001, 0.01), (0.01, 0.1)]
    """
    import re

    rate = r"\s*(\d*\.?\d+(?:[eE][-+]?\d+)?)\s*"
    pairs = [re.fullmatch(f"{rate}-{rate}", each) for each in text.split(",")]
    if not all(pairs):
        raise InputError(f"ranges is {text!r}: pairs of false accept rates are needed, such as 0.001-0.01,0.01-0.1")
    return [(float(pair[1]), float(pair[2])) for pair in pairs if pair]


def read_gaussian(texts: list[str]) -> list[Any]:
    """Read Gaussian classes, four numbers each."""
    from isomargin.theory import GaussianClass

    read = [numbers(each, "gaussian") for each in texts]
    for text, four in zip(texts, read, strict=True):
        if len(four) != 4:
            raise InputError(
                f"gaussian is {text!r}: four numbers are needed, mean and deviation of both kinds of pairs"
            )
    return [GaussianClass(*four) for four in read]
