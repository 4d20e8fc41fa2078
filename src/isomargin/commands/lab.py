"""The command that runs the paper's experiments."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from isomargin.errors import InputError


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Of the experiment; --list has them.", show_default=False)] = None,
    scale: Annotated[str, typer.Option(help="small, paper, or toy to try it out.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; the experiment's own unless given.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Where a data set is, such as cub=FOLDER; may be repeated."),
    ] = None,
    settings: Annotated[str | None, typer.Option(help="Only these of the experiment's settings, with commas.")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the runs, which experiments share.")] = Path("runs/lab"),
    results: Annotated[Path, typer.Option(help="Folder that tables are written to.")] = Path("results"),
    list_them: Annotated[bool, typer.Option("--list", help="Say what experiments there are.")] = False,
) -> None:
    """Run an experiment of the paper, or go on with it, and write its table.

    `isomargin reproduce base-losses --data cub=FOLDER` trains what is missing, a folder a run, and writes
    results/base-losses/table.md, .tex and .csv, with a row a run and the recipes. The same command again goes on.
    """
    from isomargin.lab.experiment import as_scale, experiment_names, load_experiment
    from isomargin.lab.reproduce import reproduce as run

    if list_them:
        for each in experiment_names():
            experiment = load_experiment(each)
            needs = [f"  {which}: {plan.needs}" for which, plan in experiment.plans.items() if plan.needs]
            print(
                "\n".join(
                    [each, f"  {experiment.title}", *([f"  {experiment.paper}"] if experiment.paper else []), *needs]
                )
            )
        return
    if name is None:
        raise InputError("the name of an experiment is needed, `isomargin reproduce NAME`: see --list")
    run(
        name,
        output,
        results,
        scale=as_scale(scale),
        seeds=seeds,
        data=dict(place(each) for each in data or []),
        settings=None if settings is None else [each.strip() for each in settings.split(",") if each.strip()],
        report=lambda sentence: print(sentence, file=sys.stderr, flush=True),
    )
    print((results / name / "table.md").read_text(encoding="utf-8"), end="")
    print(f"written to {results / name}", file=sys.stderr)


def place(text: str) -> tuple[str, Path]:
    """Read where a data set is.

    >>> place("cub")
    Traceback (most recent call last):
    isomargin.errors.InputError: --data 'cub' is no place: NAME=FOLDER is needed, such as cub=data/CUB
    """
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise InputError(f"--data {text!r} is no place: NAME=FOLDER is needed, such as cub=data/CUB")
    if not Path(folder).exists():
        raise InputError(f"--data {text!r}: {folder} does not exist: check the path")
    return name, Path(folder).resolve()
