"""The commands that train."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isomargin.cli.common import print_plan, print_renderable, show, writing
from isomargin.cli.running import STOPPED
from isomargin.core.errors import InputError, StoppedElsewhereError

if TYPE_CHECKING:
    from isomargin.measure.comparison import Difference
    from isomargin.measure.evaluation import Evaluation

Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SETTING=VALUE]...", help="Changes of the recipe, such as optimizer.learning_rate=1e-3."),
]
Devices = Annotated[int, typer.Option(min=1, help="Processes on this machine; not needed under torchrun.")]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[
    str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed or 64-true; by default that of the recipe.")
]
Workers = Annotated[
    int | None, typer.Option(min=0, help="Processes that decode image files; by default the number of cores, up to 8.")
]
SkipBadImages = Annotated[
    bool, typer.Option("--skip-bad-images", help="Leave out image files that cannot be decoded, and count them.")
]
BY_PAIRS = ("opis", "debiased_opis", "epsilon_opis", "frr", "eer")  # the scores that depend on which pairs are counted
JUDGED = ("recall@1", "eer", "frr", "opis")  # the scores by which a model is compared with frozen features
CheckImages = Annotated[bool, typer.Option(help="Decode every image file before training.")]


def train(
    recipe: Annotated[str, typer.Argument(help="A .yaml file, a recipe's name, or with --resume a run's folder.")],
    changes: Changes = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the run; by default runs/NAME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run where it stopped.")] = False,
    resume_or_start: Annotated[
        bool,
        typer.Option(
            "--resume-or-start",
            help="Continue the run if it was started, and start it otherwise: for launchers that give the same command "
            "again.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the full recipe, the sizes of the data and the steps; do not train."),
    ] = False,
    devices: Devices = 1,
    accelerator: Accelerator = "auto",
    precision: Precision = None,
    workers: Workers = None,
    skip_bad_images: SkipBadImages = False,
    check_images: CheckImages = True,
    all_classes: Annotated[
        bool, typer.Option("--all-classes", help="Train a final model on the test classes too; evaluate nothing.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which to keep the outputs of frozen stages for other runs (for recipes with "
            "augmentation.views); by default they are deleted at the end."
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write an HTML report, report.html, into the run's folder.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the evaluation as JSON instead of tables.")] = False,
) -> None:
    """Train an embedding model by a recipe and evaluate it on classes that it was not trained on.

    Ctrl-C and a request to end save and stop. The run's folder holds recipe.yaml, metrics.csv, checkpoints/,
    tensorboard/, embeddings.npz and evaluation.json.
    """
    from isomargin.training.recipe import load_recipe, shipped_recipes
    from isomargin.training.run_folder import RunFolder

    if resume and not Path(recipe).exists() and recipe not in shipped_recipes():
        raise InputError(f"{recipe} does not exist: --resume needs the folder of a run, or its recipe")
    more = as_changes(skip_bad_images, precision) + (["all_classes=true"] if all_classes else [])
    resolved = load_recipe(recipe, [*(changes or []), *more])
    if resolved.all_classes and (report or as_json):
        raise InputError("a run with all_classes has no evaluation: leave --report and --json out")
    is_run = Path(recipe).is_dir()
    folder = output or (Path(recipe) if is_run else Path("runs") / resolved.name)
    if resume and not RunFolder(folder).recipe.is_file():
        raise InputError(f"there is no run in {folder} to resume: leave --resume out to start one there")
    if is_run and not (resume or resume_or_start) and output is None:
        raise InputError(f"{recipe} is a run: continue it with --resume, or give the folder of a new run with --output")
    if dry_run:
        print_plan(resolved)
        return
    from isomargin.training.devices import first_process
    from isomargin.training.loop import train as run

    with resumable(f"isomargin train {shlex.quote(str(folder))} --resume"):
        evaluation = run(
            resolved,
            folder,
            resume=resume or resume_or_start,
            devices=devices,
            accelerator=accelerator,
            workers=workers,
            check_images=check_images,
            cache=cache,
        )
    if first_process():
        if evaluation is not None:
            show(evaluation, 10, "mean_utility", as_json, source=shlex.quote(str(folder)))
            for pairs in resolved.evaluation.pairs[1:]:
                show_other_pairs(RunFolder(folder).evaluation_of(pairs), as_json)
            compare_with_raw(RunFolder(folder).raw_evaluation, evaluation, as_json)
        print(f"\nwritten to {folder}", file=sys.stderr)
        if report:
            write_page({folder.resolve().name: folder}, RunFolder(folder).report)


def show_other_pairs(path: Path, as_json: bool) -> None:
    """Print the scores that depend on which pairs are counted, from the second kind of pairs of a recipe."""
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.scores.registry import find_score

    evaluation = Evaluation.load(path)
    settings, scores = evaluation.settings, evaluation.scalars()
    kind = "all pairs"
    if settings.pairs == "sampled":
        kind = f"{settings.negatives_per_positive} sampled negative pairs per positive pair, seed {settings.seed}"
    values = [f"{find_score(name).title_for(settings)} {find_score(name).text(scores[name])}" for name in BY_PAIRS]
    print(f"\nBy {kind}: {', '.join(values)} ({path})", file=sys.stderr if as_json else sys.stdout)


def compare_with_raw(raw: Path, evaluation: "Evaluation", as_json: bool) -> None:
    """Print the scores of the frozen features, if there are any, beside those of the model that was trained on them."""
    if not raw.is_file():
        return
    from isomargin.cli.tables import differences_table
    from isomargin.measure.comparison import compare
    from isomargin.measure.evaluation import Evaluation

    compared = compare({"frozen features": Evaluation.load(raw), "trained": evaluation})
    if not as_json:
        print_renderable("", differences_table(compared, "trained"))
    print(training_verdict(compared.others["trained"]), file=sys.stderr if as_json else sys.stdout)


def training_verdict(rows: "tuple[Difference, ...]") -> str:
    """Say in one sentence where a trained model is significantly worse than the features that it started from."""
    from isomargin.measure.scores.registry import find_score

    judged = [row for row in rows if row.score in JUDGED]
    worse = [find_score(row.score).title for row in judged if row.certain and not row.better]
    better = [find_score(row.score).title for row in judged if row.certain and row.better]
    if worse:
        also = f"; better in {', '.join(better)}" if better else ""
        return f"The trained model is significantly WORSE than the frozen features in {', '.join(worse)}{also}."
    if better:
        return (
            f"The trained model is significantly better than the frozen features in {', '.join(better)}, worse in none."
        )
    return "The trained model does not differ significantly from the frozen features: they may be used as they are."


def tune(
    recipe: Annotated[str, typer.Argument(help="A .yaml file or a recipe's name.")],
    changes: Changes = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the runs; by default runs/NAME-tune.")] = None,
    positive: Annotated[str, typer.Option(help="Positive margins, separated by commas.")] = "0.8,0.85,0.9,0.95",
    negative: Annotated[str, typer.Option(help="Negative margins, separated by commas.")] = "0.3,0.4,0.5,0.6",
    weights: Annotated[
        str | None, typer.Option(help="Weights of TCM, separated by commas; by default that of the recipe.")
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the training classes to hold out and compare on.")] = 0.1,
    tolerance: Annotated[float, typer.Option(help="How far recall@1 may be below the best of the grid.")] = 0.01,
    baseline: Annotated[bool, typer.Option(help="Train without TCM too, for comparison.")] = True,
    accelerator: Accelerator = "auto",
    precision: Precision = None,
    workers: Workers = None,
    skip_bad_images: SkipBadImages = False,
    check_images: CheckImages = True,
) -> None:
    """Search TCM's margins as the paper does: train on 90% of the training classes, score on the other 10%.

    Picks the lowest OPIS among the runs whose recall@1 is within the tolerance of the best, and writes a recipe with
    these margins. The test classes are not used. The same command again continues where it stopped.
    """
    from isomargin.training.recipe import load_recipe
    from isomargin.training.tune import tune as search
    from isomargin.training.tuned import tune_table

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("tune trains one run after another in one process: start it without torchrun")
    resolved = load_recipe(recipe, [*(changes or []), *as_changes(skip_bad_images, precision)])
    folder = output or Path("runs") / f"{resolved.name}-tune"
    with resumable("the same command"):
        tuned = search(
            resolved,
            folder,
            positive_margins=numbers(positive, "positive"),
            negative_margins=numbers(negative, "negative"),
            weights=None if weights is None else numbers(weights, "weights"),
            held_out=held_out,
            tolerance=tolerance,
            baseline=baseline,
            report=lambda line: print(line, file=sys.stderr, flush=True),
            accelerator=accelerator,
            workers=workers,
            check_images=check_images,
        )
    from isomargin.figures import margins_grid, save

    with writing(folder):
        save(margins_grid(tuned.rows, tolerance), folder / "tune.png")
    print_renderable(tune_table(tuned))
    print(f"\nwritten to {folder}: tune.csv, tune.png, and tuned.yaml with the picked margins", file=sys.stderr)


def write_page(runs: dict[str, Path], place: Path) -> None:
    """Write the report of finished runs."""
    from isomargin.cli.opening import open_source
    from isomargin.cli.report import tell_report
    from isomargin.report.sources import report_on

    sources = {name: open_source(run) for name, run in runs.items()}
    with writing(place):
        report_on(sources, place)
    tell_report(place)


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Say how to continue where training was stopped, and end with the exit code of an interruption."""
    try:
        yield
    except KeyboardInterrupt as stop:
        from isomargin.training.devices import first_process

        if first_process():
            again = " before anything was saved: give the same command again"
            how = f": continue with `{command}`" if str(stop) else again
            print(f"\n{str(stop) or 'stopped'}{how}", file=sys.stderr)
        sys.exit(STOPPED)
    except StoppedElsewhereError as stop:  # that process says why
        raise typer.Exit(2) from stop


def as_changes(skip_bad_images: bool, precision: str | None) -> list[str]:
    """Return options that change the result as changes of the recipe, which is saved with the run."""
    changes = ["skip_bad_images=true"] if skip_bad_images else []
    return changes if precision is None else [*changes, f"precision={precision}"]


def numbers(text: str, name: str) -> list[float]:
    """Read numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{name} is {text!r}: numbers separated by commas are needed") from error
