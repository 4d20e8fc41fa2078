"""The command ``evaluate``, which measures embeddings."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from isomargin.cli.common import check_writable, show, writing
from isomargin.cli.galleries import (
    ClassThresholdsFile,
    GalleryFile,
    GalleryLabels,
    GalleryOptions,
    LeaveOneOut,
    Margin,
    Sides,
    TargetFpir,
    TemplateOption,
    evaluate_with_gallery,
)
from isomargin.cli.gallery_parts import evaluate_gallery_in_parts
from isomargin.cli.opening import (
    EmbeddingsKey,
    EqualizerFile,
    Labels,
    LabelsKey,
    NewClasses,
    ReadOptions,
    equalizing,
    open_embeddings,
    read_options,
    shifts_of,
    without_warnings,
)
from isomargin.cli.parts import Memory, Part, PartOptions, Parts, Ray, Work, evaluate_in_parts
from isomargin.cli.trials import (
    CostFalseAccept,
    CostFalseReject,
    Groups,
    LowerIsMoreSimilar,
    MatchAt,
    MatchColumn,
    Prior,
    ScoreColumn,
    TrialOptions,
    Trials,
    measure_trials,
)
from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.io.stores.address import as_path

K = "1,2,4,8,16,32"


def evaluate(
    file: Annotated[
        Path | None,
        typer.Argument(
            parser=as_path,
            help="Embeddings and labels: a .npz, .npy, .parquet, .pt or .safetensors file; a run's folder; a folder or "
            "quoted pattern of .parquet, .npy or .safetensors shards; or the address of a store (docs/stores.md).",
        ),
    ] = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    equalizer: EqualizerFile = None,
    new_classes: NewClasses = False,
    gallery: GalleryFile = None,
    gallery_labels: GalleryLabels = None,
    template: TemplateOption = "mean",
    leave_one_out: LeaveOneOut = False,
    sides: Sides = "both",
    class_thresholds: ClassThresholdsFile = None,
    margin: Margin = 0.0,
    target_fpir: TargetFpir = 5e-2,
    far: Annotated[
        tuple[float, float],
        typer.Option(
            metavar="LOW HIGH",
            help="The calibration range: the thresholds with a false accept rate between these two. OPIS is measured "
            "over this range.",
        ),
    ] = (1e-2, 1e-1),
    frr: Annotated[
        float | None,
        typer.Option(help="Start the calibration range at the threshold with this false reject rate instead."),
    ] = None,
    distances: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="LOW HIGH", help="The calibration range as two distances from 0 to 2, instead of --far and --frr."
        ),
    ] = None,
    grid: Annotated[
        int, typer.Option(help="Number of thresholds in the calibration range at which curves are computed.")
    ] = 101,
    epsilon: Annotated[
        float, typer.Option(help="Share of the classes that epsilon-OPIS takes as the best, and as the worst.")
    ] = 0.1,
    c: Annotated[
        float,
        typer.Option(
            help="Weight of sensitivity in the utility. Above 1, false rejects count more than false accepts."
        ),
    ] = 1.0,
    utility: Annotated[
        str,
        typer.Option(help="The two rates that the utility combines: specificity_sensitivity or precision_recall."),
    ] = "specificity_sensitivity",
    mean_curve: Annotated[
        str,
        typer.Option(
            help="The curve from which OPIS measures deviations: classes for the mean of the classes' curves, pooled "
            "for the curve of all pairs."
        ),
    ] = "classes",
    epsilon_form: Annotated[
        str,
        typer.Option(help="The formula of epsilon-OPIS: f_score, or printed for Eq. 3 as it is printed in the paper."),
    ] = "f_score",
    target_far: Annotated[
        float, typer.Option(help="False accept rate of the one threshold whose effect on each class is shown.")
    ] = 1e-2,
    target_frr: Annotated[
        float,
        typer.Option(help="False reject rate for which each class's own threshold is found, to measure their spread."),
    ] = 5e-2,
    k: Annotated[str, typer.Option(help="Values of k for recall@k, separated by commas.")] = K,
    map_at_r: Annotated[bool, typer.Option(help="Compute R-precision and MAP@R.")] = True,
    pairs: Annotated[
        str,
        typer.Option(
            help="Count all pairs; sampled: random negative pairs of each class, as the paper does; or stratified: a "
            "sample of negatives with a known error, for shards."
        ),
    ] = "all",
    negatives_per_positive: Annotated[
        int, typer.Option(help="Number of negative pairs per positive pair, with --pairs sampled.")
    ] = 10,
    relative_error: Annotated[
        float,
        typer.Option(help="Largest relative standard error of a class's FAR at --target-far, with --pairs stratified."),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the random negative pairs, if they are sampled.")] = 0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compute in float64 and without bins. Several times slower.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Torch device that counts the pairs, such as cuda. By default the CPU.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads. By default one per core.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the evaluation to this .json file, which other commands read faster than embeddings; with "
            "--part, the folder of the parts.",
        ),
    ] = None,
    per_class: Annotated[
        Path | None, typer.Option(help="Write a table with one row per class to this .csv file.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this .html file.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="Number of worst classes to show.")] = 10,
    worst_by: Annotated[
        str,
        typer.Option(help="What makes a class worst: mean_utility, opis_contribution, far, frr or eer."),
    ] = "mean_utility",
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Show confidence intervals of the scores, computed by bootstrap.")
    ] = False,
    resample: Annotated[
        str, typer.Option(help="What the bootstrap resamples: classes, or the items within each class.")
    ] = "classes",
    draws: Annotated[int, typer.Option(help="Number of bootstrap draws, at least 100.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    trials: Trials = None,
    groups: Groups = None,
    score_column: ScoreColumn = None,
    lower_is_more_similar: LowerIsMoreSimilar = False,
    match_column: MatchColumn = None,
    match_at: MatchAt = None,
    prior: Prior = 0.01,
    cost_false_accept: CostFalseAccept = 1.0,
    cost_false_reject: CostFalseReject = 1.0,
    memory: Memory = None,
    part: Part = None,
    work: Work = None,
    ray: Ray = None,
    parts: Parts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measure how consistently one distance threshold works across classes, and how well the embeddings retrieve.

    Rows with the same label form a class. Embeddings need not have length one: they are normalised.
    """
    from isomargin.core.csv_files import write_csv
    from isomargin.measure.class_table import check_worst_by
    from isomargin.measure.evaluate import evaluate as run
    from isomargin.measure.pairs.gallery_prepare import is_prepared_gallery
    from isomargin.measure.settings import UNITS
    from isomargin.measure.statistics.intervals import check_draws, note_on_few_classes

    checks.one_of(resample, "resample", ("classes", "items"))
    check_draws(draws, confidence)
    if resample != "classes" and not intervals:
        raise InputError("--resample needs --intervals: give both, or neither")
    part_options = PartOptions(file, memory, part, work, ray, parts, equalizer, gallery)
    if part is None:
        check_writable(output, ".json")
    for name, given in {"the equalizer": equalizer, "the file of class thresholds": class_thresholds}.items():
        if output is not None and given is not None and output.resolve() == given.resolve():
            raise InputError(f"{output} is {name}: choose another name for --output")
    check_writable(per_class, ".csv")
    check_writable(report, ".html")
    check_worst_by(worst_by)
    prepared = None if file is None or not is_prepared_gallery(file) else file
    gallery_options = GalleryOptions(
        gallery, gallery_labels, template, leave_one_out, sides, margin, class_thresholds, prepared
    )
    gallery_options.check({
        "new_classes": new_classes,
        "exact": exact,
        "device": device is not None,
        "pairs": pairs != "all",
        "resample": resample != "classes",
    })  # fmt: skip
    if gallery_options.wanted and trials is not None:
        raise InputError("--trials is a list of pairs and --gallery a set of templates: give one of the two")
    trial_options = TrialOptions(
        trials,
        groups,
        score_column,
        lower_is_more_similar,
        match_column,
        match_at,
        prior,
        cost_false_accept,
        cost_false_reject,
    )
    trial_options.check(
        file,
        report=report is not None,
        new_classes=new_classes,
        k=k != K,
        pairs=pairs != "all",
        device=device is not None,
        resample=resample != "classes",
    )
    trial_options.check_scores(equalizer=equalizer is not None, labels=bool(labels), distances=distances is not None)
    trial_options.check_kept(per_class)
    settings: dict[str, Any] = {
        "far": far,
        "frr": frr,
        "distances": distances,
        "grid": grid,
        "epsilon": epsilon,
        "c": c,
        "utility": utility,
        "mean_curve": mean_curve,
        "epsilon_form": epsilon_form,
        "target_far": target_far,
        "target_frr": target_frr,
    }
    options, embeddings, shifts = ReadOptions(), None, None
    if part_options.wanted:
        if gallery_options.wanted:
            gallery_options.check_parts({"--equalizer": equalizer is not None})
        part_options.check({
            "--labels": bool(labels),
            "--new-classes": new_classes,
            "--gallery-labels": gallery_labels is not None,
            "--trials": trials is not None,
            "--resample items": resample != "classes",
        })  # fmt: skip
        part_options.check_part({
            "--per-class": per_class is not None,
            "--report": report is not None,
            "--intervals": intervals,
            "--json": as_json,
        })  # fmt: skip
        options = ReadOptions(embeddings_key=embeddings_key, labels_key=labels_key)
        settings |= {"k": whole_numbers(k)}
        if gallery_options.wanted:
            settings |= {"target_fpir": target_fpir}
            found = evaluate_gallery_in_parts(part_options, options, gallery_options, output, threads, settings)
        else:
            settings |= {"map_at_r": map_at_r, "pairs": pairs, "exact": exact, "device": device}
            settings |= {"relative_error": relative_error, "seed": seed}
            found = evaluate_in_parts(part_options, options, output, threads, settings)
        if found is None:
            return
        evaluation = found
    elif file is not None:
        (options,) = read_options([file], labels, embeddings_key, labels_key, equalizer, new_classes)
    if part_options.wanted:
        pass
    elif file is None or trials is not None:
        evaluation = measure_trials(file, options, trial_options, settings)
    elif gallery_options.wanted:
        settings |= {"k": whole_numbers(k), "threads": threads, "target_fpir": target_fpir}
        evaluation = evaluate_with_gallery(open_embeddings(file, options), options, gallery_options, **settings)
    else:
        embeddings = open_embeddings(file, options)
        shifts = shifts_of(file, embeddings, options)
        evaluation = without_warnings(
            run,
            embeddings.vectors,
            embeddings.labels,
            **settings,
            k=whole_numbers(k),
            map_at_r=map_at_r,
            pairs=pairs,
            negatives_per_positive=negatives_per_positive,
            seed=seed,
            exact=exact,
            device=device,
            threads=threads,
            **equalizing(options, shifts),
        )
    bounds = None
    if intervals:
        items = (embeddings.vectors, embeddings.labels) if embeddings is not None and resample == "items" else None
        bounds = evaluation.intervals(draws, confidence, items=items, shifts=shifts)
        for note in note_on_few_classes(evaluation) if resample == "classes" else ():
            print(f"note: {note}", file=sys.stderr)
    if output is not None:
        with writing(output):
            evaluation.save(output)
    if per_class is not None:
        with writing(per_class):
            write_csv(evaluation.per_class, per_class)
    if report is not None and file is not None:
        from isomargin.cli.report import tell_report
        from isomargin.report.sources import Source, report_on

        with writing(report):
            source = Source(evaluation, embeddings, shifts=shifts)
            report_on({file.stem: source}, report)
        tell_report(report)
    kind = UNITS[evaluation.comparison][1]
    varied = f"other {kind} of the same kind" if resample == "classes" else "other items of the same classes"
    if not evaluation.has_classes:
        varied = "other trials of the same kind, because these have no groups"
    words = "FILE" if file is None else " ".join([options.words(file), shlex.join(gallery_options.words())]).strip()
    show(evaluation, worst, worst_by, as_json, bounds, varied, words)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas."""
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError as error:
        raise InputError(f"k is {text!r}: whole numbers separated by commas are needed, such as 1,10,100") from error
