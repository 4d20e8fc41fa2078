"""The commands that measure."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from isomargin.cli.common import check_writable, show, writing
from isomargin.cli.opening import (
    EmbeddingsKey,
    Labels,
    LabelsKey,
    open_embeddings,
    read_options,
    without_warnings,
)
from isomargin.core import checks
from isomargin.core.errors import InputError


def evaluate(
    file: Annotated[Path, typer.Argument(help="Embeddings: .npz, .npy, .parquet, .pt or .safetensors.")],
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    far: Annotated[
        tuple[float, float],
        typer.Option(metavar="LOW HIGH", help="False accept rates at the ends of the calibration range."),
    ] = (1e-2, 1e-1),
    frr: Annotated[float | None, typer.Option(help="Start the range at this false reject rate instead.")] = None,
    distances: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="The range itself, in distance, in place of --far and --frr."),
    ] = None,
    grid: Annotated[int, typer.Option(help="Distances in the range at which curves are evaluated.")] = 101,
    epsilon: Annotated[float, typer.Option(help="Share of the classes in the groups of epsilon-OPIS.")] = 0.1,
    c: Annotated[float, typer.Option(help="Weight of sensitivity in the utility.")] = 1.0,
    utility: Annotated[
        str, typer.Option(help="specificity_sensitivity or precision_recall.")
    ] = "specificity_sensitivity",
    mean_curve: Annotated[str, typer.Option(help="Deviations from the mean of the classes, or pooled.")] = "classes",
    epsilon_form: Annotated[str, typer.Option(help="f_score, or printed as in the paper's Eq. 3.")] = "f_score",
    target_far: Annotated[float, typer.Option(help="False accept rate that class thresholds are compared at.")] = 1e-2,
    target_frr: Annotated[float, typer.Option(help="False reject rate that they are compared at.")] = 5e-2,
    k: Annotated[str, typer.Option(help="Numbers of neighbours for recall@k, with commas.")] = "1,2,4,8,16,32",
    map_at_r: Annotated[bool, typer.Option(help="R-precision and MAP@R.")] = True,
    pairs: Annotated[str, typer.Option(help="all, or sampled as in the paper.")] = "all",
    negatives_per_positive: Annotated[int, typer.Option(help="Of the sampled protocol.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the sampled protocol.")] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="Float64 products and exact quantiles; slower.")] = False,
    device: Annotated[str | None, typer.Option(help="A torch device, such as cuda.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores unless given.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the evaluation to this .json file.")] = None,
    per_class: Annotated[Path | None, typer.Option(help="Write the table of all classes to this .csv file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page to look at to this .html file.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst classes to show.")] = 10,
    worst_by: Annotated[
        str, typer.Option(help="Worst by mean_utility, opis_contribution, far, frr, eer.")
    ] = "mean_utility",
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Print confidence intervals of the scores, by bootstrap over classes.")
    ] = False,
    resample: Annotated[
        str, typer.Option(help="What the bootstrap resamples: classes, or the items within each class.")
    ] = "classes",
    draws: Annotated[int, typer.Option(help="Bootstrap draws.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure threshold consistency, verification and retrieval of embeddings.

    Vectors need not have length one: they are normalised. A class is whatever rows share a label.
    """
    from isomargin.core.csv_files import write_csv
    from isomargin.measure.class_table import check_worst_by
    from isomargin.measure.evaluate import evaluate as run
    from isomargin.measure.statistics.intervals import check_draws, note_on_few_classes

    checks.one_of(resample, "resample", ("classes", "items"))
    check_draws(draws, confidence)
    if resample != "classes" and not intervals:
        raise InputError("--resample belongs to --intervals: give both")
    check_writable(output, ".json")
    check_writable(per_class, ".csv")
    check_writable(report, ".html")
    check_worst_by(worst_by)
    (options,) = read_options([file], labels, embeddings_key, labels_key)
    embeddings = open_embeddings(file, options)
    evaluation = without_warnings(
        run,
        embeddings.vectors,
        embeddings.labels,
        far=far,
        frr=frr,
        distances=distances,
        grid=grid,
        epsilon=epsilon,
        c=c,
        utility=utility,
        mean_curve=mean_curve,
        epsilon_form=epsilon_form,
        target_far=target_far,
        target_frr=target_frr,
        k=whole_numbers(k),
        map_at_r=map_at_r,
        pairs=pairs,
        negatives_per_positive=negatives_per_positive,
        seed=seed,
        exact=exact,
        device=device,
        threads=threads,
    )
    bounds = None
    if intervals:
        items = (embeddings.vectors, embeddings.labels) if resample == "items" else None
        bounds = evaluation.intervals(draws, confidence, items=items)
        for note in note_on_few_classes(evaluation) if resample == "classes" else ():
            print(f"note: {note}", file=sys.stderr)
    if output is not None:
        with writing(output):
            evaluation.save(output)
    if per_class is not None:
        with writing(per_class):
            write_csv(evaluation.per_class, per_class)
    if report is not None:
        from isomargin.cli.report import tell_report
        from isomargin.report.sources import Source, report_on

        with writing(report):
            report_on({file.stem: Source(evaluation, embeddings)}, report)
        tell_report(report)
    show(evaluation, worst, worst_by, as_json, bounds, f"other {resample} of the same kind")


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(int(each) for each in text.split(",") if each.strip())
    except ValueError as error:
        raise InputError(
            f"k is {text!r}: whole numbers with commas between them are needed, such as 1,10,100"
        ) from error
