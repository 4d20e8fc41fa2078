"""``python -m lab``: run the paper's experiments, and show their results."""

import os
import sys
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from isomargin.cli.running import run_app
from isomargin.cli.training import Devices
from isomargin.core.errors import InputError

ALL = "all"
app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run the paper's experiments, and show their results. `python -m lab NAME` is short for "
    "`python -m lab run NAME`.",
)
Results = Annotated[Path | None, typer.Option(help="Folder of all results; results/SCALE for other scales than small.")]


def main() -> None:
    """Run the command; turn bad input into one sentence and exit code 2."""
    arguments = sys.argv[1:] or ["--help"]
    if arguments[0] not in ("run", "tables", "recipe", "check", "--help"):
        arguments.insert(0, "run")
    run_app(app, "lab", arguments)


@app.command()
def run(
    name: Annotated[
        str | None, typer.Argument(help="Name of the experiment, or all; see --list.", show_default=False)
    ] = None,
    scale: Annotated[str, typer.Option(help="small, paper, or toy to try it out.")] = "small",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many; the experiment's own number unless given.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Where a data set is, such as cub=FOLDER; may be repeated."),
    ] = None,
    settings: Annotated[
        str | None, typer.Option(help="Only these of the experiment's settings, separated by commas.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=CHOICE,…",
            help="Only these choices, such as loss=arcface, and those they are compared with; may be repeated.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the runs, which experiments share.")] = Path("runs/lab"),
    results: Results = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs to train at the same time, each with a share of the cores.")
    ] = 1,
    devices: Devices = 1,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and what they need.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="Only count the runs of each setting.")] = False,
) -> None:
    """Run an experiment of the paper, or continue it, and write its results.

    `python -m lab base-losses --data cub=FOLDER` trains the runs that are missing, one folder per run, and writes
    runs.csv, table.csv, differences.npz, recipes.yaml and figures into results/base-losses. The same command again
    continues. `python -m lab all` runs every experiment. With --settings or --only a part of an experiment is run, and
    its rows are merged into those that are already there, except for times and ranks, which can only be compared
    within one call.
    """
    from lab.experiment import as_scale
    from lab.run_experiment import count_runs, run_experiment
    from lab.tables import tables_text

    if list_them:
        print(listing())
        return
    if name is None:
        raise InputError("the name of an experiment is needed, `python -m lab NAME`: see --list")
    if dry:
        for experiment in with_scale(as_scale(scale)) if name == ALL else [name]:
            print("\n".join([experiment, *(f"  {line}" for line in count_runs(experiment, as_scale(scale), seeds))]))
        return
    if any(os.environ.get(variable, "1") != "1" for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")):
        raise InputError("the lab starts the processes of every run itself: start it without torchrun, with --devices")
    if name == ALL and (settings is not None or only):
        raise InputError("--settings and --only are for one experiment: leave them out to run all")
    wanted_scale, failed = as_scale(scale), []
    place = results or default_results(scale)
    run_one = partial(
        run_experiment,
        folder=output,
        results=place,
        scale=wanted_scale,
        seeds=seeds,
        data=dict(read_data(text) for text in data or []),
        settings=None if settings is None else [part.strip() for part in settings.split(",") if part.strip()],
        only=read_only(only or []),
        jobs=jobs,
        devices=devices,
        report=tell,
    )
    names = with_scale(scale) if name == ALL else [name]
    for experiment in names:
        if name == ALL:
            print(f"\n## {experiment}\n", flush=True)
        try:
            run_one(experiment)
        except InputError as error:
            if name != ALL:
                raise
            failed.append(f"{experiment}: {error}")
            tell(f"note: {failed[-1]}")
            continue
        print(tables_text(experiment, place), end="", flush=True)
        tell(f"written to {place / experiment}")
    if failed:
        raise InputError(f"{len(failed)} of {len(names)} experiments could not be run", failed)


@app.command()
def tables(
    name: Annotated[str, typer.Argument(help="Name of the experiment, or all.")],
    form: Annotated[str, typer.Option("--format", help="markdown or latex.")] = "markdown",
    results: Annotated[Path, typer.Option(help="Folder of all results.")] = Path("results"),
) -> None:
    """Print the tables of an experiment's results, made from its CSV files.

    Markdown has notes and the paper's own numbers below the table; LaTeX has the tables alone.
    """
    from lab.tables import as_format, tables_text

    wanted = as_format(form)
    names = sorted(path.parent.name for path in results.glob("*/table.csv")) if name == ALL else [name]
    for experiment in names:
        if name == ALL:
            print(f"\n## {experiment}\n" if wanted == "markdown" else f"% {experiment}")
        print(tables_text(experiment, results, wanted), end="")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="Name of the experiment, or all.")],
    results: Annotated[Path, typer.Option(help="Folder of all results.")] = Path("results"),
) -> None:
    """Compute every mean, interval and p value of table.csv again, from runs.csv and the stored draws.

    Says what differs, and which experiments have no stored draws.
    """
    from lab.checking import check_results
    from lab.experiment import experiment_names

    found = [path.parent.name for path in sorted(results.glob("*/table.csv"))]
    names = [experiment for experiment in found if experiment in experiment_names()] if name == ALL else [name]
    faulty = []
    for experiment in names:
        checked = check_results(experiment, results)
        print(checked.text(), flush=True)
        faulty += [experiment] if checked.faults else []
    if faulty:
        raise InputError(f"{', '.join(faulty)}: table.csv does not follow from what is stored beside it")


@app.command()
def recipe(
    name: Annotated[str, typer.Argument(help="Name of the experiment.")],
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Setting and choices, as in recipes.yaml.")],
    results: Annotated[Path, typer.Option(help="Folder of all results.")] = Path("results"),
) -> None:
    """Print the recipe of a run in full, as `isomargin train` takes it."""
    from isomargin.core.files import check_file
    from lab.results_folder import RECIPES, read_recipes

    path = results / name / RECIPES
    check_file(path)
    recipes = read_recipes(path)
    if run_name not in recipes:
        close = get_close_matches(run_name, recipes, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "its keys are the names"
        raise InputError(f"{path} has no recipe {run_name!r}: {hint}")
    print(recipes[run_name].to_yaml(), end="")


def tell(sentence: str) -> None:
    """Print a sentence on the progress."""
    print(sentence, file=sys.stderr, flush=True)


def default_results(scale: str) -> Path:
    """Give the folder of results: that of the repository for the scale small."""
    return Path("results" if scale == "small" else f"results/{scale}")


def with_scale(scale: str) -> list[str]:
    """List the experiments that have a scale."""
    from lab.experiment import experiment_names, load_experiment

    return [name for name in experiment_names() if scale in load_experiment(name).plans]


def listing() -> str:
    """List every experiment with its title, the paper's table or figure, and what each scale needs."""
    from lab.experiment import experiment_names, load_experiment

    lines = []
    for name in experiment_names():
        experiment = load_experiment(name)
        lines += [name, f"  {experiment.title}", *([f"  {experiment.paper}"] if experiment.paper else [])]
        for scale, plan in experiment.plans.items():
            lines.append(f"  {scale}: {' '.join(plan.needs.split()) or 'needs nothing'}")
    return "\n".join(lines)


def read_only(texts: list[str]) -> dict[str, list[str]]:
    """Read which choices of each axis are wanted.

    >>> read_only(["loss=arcface, smooth_ap", "training=tcm", "loss=proxy_nca"])
    {'loss': ['arcface', 'smooth_ap', 'proxy_nca'], 'training': ['tcm']}
    >>> read_only(["arcface"])
    Traceback (most recent call last):
    isomargin.InputError: --only 'arcface' names no axis: AXIS=CHOICE is needed, such as loss=arcface
    """
    wanted: dict[str, list[str]] = {}
    for text in texts:
        axis, listed = (part.strip() for part in text.partition("=")[::2])
        choices = [choice.strip() for choice in listed.split(",") if choice.strip()]
        if not (axis and choices):
            raise InputError(f"--only {text!r} names no axis: AXIS=CHOICE is needed, such as loss=arcface")
        wanted.setdefault(axis, []).extend(choices)
    return wanted


def read_data(text: str) -> tuple[str, Path]:
    """Read where a data set is.

    >>> read_data("cub")
    Traceback (most recent call last):
    isomargin.InputError: --data 'cub' names no folder: NAME=FOLDER is needed, such as cub=data/CUB
    """
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise InputError(f"--data {text!r} names no folder: NAME=FOLDER is needed, such as cub=data/CUB")
    if not Path(folder).exists():
        raise InputError(f"--data {text!r}: {folder} does not exist: check the path")
    return name, Path(folder).resolve()
