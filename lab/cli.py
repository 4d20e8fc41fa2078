"""``python -m lab``: the command that runs the paper's experiments."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from isomargin.cli.running import run_app
from isomargin.cli.training import Devices
from isomargin.core.errors import InputError

ALL = "all"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command; turn bad input into one sentence and exit code 2."""
    run_app(app, "lab")


@app.command()
def run(
    name: Annotated[
        str | None, typer.Argument(help="Of the experiment, or all; --list has them.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="small, paper, or toy to try it out.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; the experiment's own unless given.")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Where a data set is, such as cub=FOLDER; may be repeated."),
    ] = None,
    settings: Annotated[str | None, typer.Option(help="Only these of the experiment's settings, with commas.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=CHOICE,…",
            help="Only these choices, such as loss=arcface, and those they are held against; may be repeated.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the runs, which experiments share.")] = Path("runs/lab"),
    results: Annotated[
        Path | None,
        typer.Option(help="Folder that tables are written to: results, of other scales than small results/SCALE."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs to train at the same time, with a share of the cores.")] = 1,
    devices: Devices = 1,
    list_them: Annotated[bool, typer.Option("--list", help="Say what experiments there are.")] = False,
) -> None:
    """Run an experiment of the paper, or go on with it, and write its table.

    `python -m lab base-losses --data cub=FOLDER` trains what is missing, a folder a run, and writes
    results/base-losses/table.md, .tex and .csv, with a row a run, the recipes and figures. The same command again goes
    on. `python -m lab all` runs one experiment after the other. With --settings or --only a part is run, and its
    rows are put to those of other parts that are in the table already; not so times and ranks, which are of one call.
    """
    from lab.experiment import as_scale
    from lab.run_experiment import run_experiment

    if list_them:
        print(listing())
        return
    if name is None:
        raise InputError("the name of an experiment is needed, `python -m lab NAME`: see --list")
    if any(os.environ.get(each, "1") != "1" for each in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")):
        raise InputError(
            "the lab starts the processes of every run by itself: start it without torchrun, with --devices"
        )
    wanted, failed = as_scale(scale), []
    results = results or Path("results" if wanted == "small" else f"results/{wanted}")
    chosen = None if settings is None else [each.strip() for each in settings.split(",") if each.strip()]
    if name == ALL and (chosen is not None or only):
        raise InputError("--settings and --only are of one experiment: leave them out to run all")
    part: dict[str, list[str]] = {}
    for axis, choices in map(choices_of, only or []):
        part.setdefault(axis, []).extend(choices)
    places = dict(place(each) for each in data or [])
    wanted_names = with_scale(wanted) if name == ALL else [name]
    for each in wanted_names:
        if name == ALL:
            print(f"\n## {each}\n", flush=True)
        try:
            run_experiment(
                each,
                output,
                results,
                scale=wanted,
                seeds=seeds,
                data=places,
                settings=chosen,
                only=part,
                jobs=jobs,
                devices=devices,
                report=lambda sentence: print(sentence, file=sys.stderr, flush=True),
            )
        except InputError as error:
            if name != ALL:
                raise
            failed.append(f"{each}: {error}")
            print(f"note: {failed[-1]}", file=sys.stderr, flush=True)
            continue
        print((results / each / "table.md").read_text(encoding="utf-8"), end="", flush=True)
        print(f"written to {results / each}", file=sys.stderr)
    if failed:
        raise InputError(f"{len(failed)} of {len(wanted_names)} experiments could not be run", failed)


def with_scale(scale: str) -> list[str]:
    """Name the experiments that have a scale."""
    from lab.experiment import experiment_names, load_experiment

    return [each for each in experiment_names() if scale in load_experiment(each).plans]


def listing() -> str:
    """Name every experiment with what it is, the paper's table or figure, and what each scale needs."""
    from lab.experiment import experiment_names, load_experiment

    lines = []
    for name in experiment_names():
        experiment = load_experiment(name)
        lines += [name, f"  {experiment.title}", *([f"  {experiment.paper}"] if experiment.paper else [])]
        for scale, plan in experiment.plans.items():
            lines.append(f"  {scale}: {' '.join(plan.needs.split()) or 'needs nothing'}")
    return "\n".join(lines)


def choices_of(text: str) -> tuple[str, list[str]]:
    """Read which choices of an axis are wanted.

    >>> choices_of("loss=arcface, smooth_ap")
    ('loss', ['arcface', 'smooth_ap'])
    >>> choices_of("arcface")
    Traceback (most recent call last):
    isomargin.InputError: --only 'arcface' names no axis: AXIS=CHOICE is needed, such as loss=arcface
    """
    axis, listed = (each.strip() for each in text.partition("=")[::2])
    choices = [each.strip() for each in listed.split(",") if each.strip()]
    if not (axis and choices):
        raise InputError(f"--only {text!r} names no axis: AXIS=CHOICE is needed, such as loss=arcface")
    return axis, choices


def place(text: str) -> tuple[str, Path]:
    """Read where a data set is.

    >>> place("cub")
    Traceback (most recent call last):
    isomargin.InputError: --data 'cub' is no place: NAME=FOLDER is needed, such as cub=data/CUB
    """
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise InputError(f"--data {text!r} is no place: NAME=FOLDER is needed, such as cub=data/CUB")
    if not Path(folder).exists():
        raise InputError(f"--data {text!r}: {folder} does not exist: check the path")
    return name, Path(folder).resolve()
