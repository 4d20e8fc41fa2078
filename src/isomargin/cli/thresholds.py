"""The commands that choose thresholds and compare models."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from isomargin.cli.common import check_writable, print_renderable, writing
from isomargin.cli.galleries import (
    ClassThresholdsFile,
    GalleryFile,
    GalleryLabels,
    GalleryOptions,
    LeaveOneOut,
    Margin,
    Sides,
    TemplateOption,
    open_class_thresholds,
    open_gallery,
)
from isomargin.cli.opening import (
    EmbeddingsKey,
    EqualizerFile,
    Labels,
    LabelsKey,
    NewClasses,
    files_read,
    open_card,
    open_evaluation,
    open_source,
    read_options,
    short_names,
    source_of,
)
from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

Far = Annotated[float | None, typer.Option(help="Choose the largest threshold with at most this false accept rate.")]
Frr = Annotated[float | None, typer.Option(help="Choose the smallest threshold with at most this false reject rate.")]
Fpir = Annotated[
    float | None,
    typer.Option(
        help="For a gallery: choose the largest threshold with at most this false positive identification rate."
    ),
]
BestUtility = Annotated[bool, typer.Option("--best-utility", help="Choose the threshold with the best pooled utility.")]
Cost = Annotated[
    tuple[float, float, float] | None,
    typer.Option(
        metavar="ACCEPT REJECT PRIOR",
        help="Choose the threshold with the lowest cost: cost of a false accept, cost of a false reject, and the "
        "expected share of matching pairs in production.",
    ),
]
Distance = Annotated[float | None, typer.Option(help="Describe this L2 distance instead of choosing a threshold.")]
Cosine = Annotated[float | None, typer.Option(help="Describe this cosine similarity instead of choosing a threshold.")]
Score = Annotated[float | None, typer.Option(help="Describe this score instead, for trials that were given as scores.")]
Draws = Annotated[int, typer.Option(help="Number of bootstrap resamples of the classes.")]
Confidence = Annotated[float, typer.Option(help="Confidence level of the intervals.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def threshold(
    file: Annotated[
        Path,
        typer.Argument(
            parser=as_path,
            help="Embeddings (a file or the address of a store), an evaluation.json, or a run's folder.",
        ),
    ],
    far: Far = None,
    frr: Frr = None,
    fpir: Fpir = None,
    best_utility: BestUtility = False,
    cost: Cost = None,
    distance: Distance = None,
    cosine: Cosine = None,
    score: Score = None,
    unseen: Annotated[
        bool,
        typer.Option("--unseen", help="Promise --far, --frr or --fpir for the mean over unseen classes."),
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="Promise --far, --frr or --fpir for each unseen class, except with this probability."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="Also map similarity to probability: platt, isotonic or temperature."),
    ] = None,
    prior: Annotated[
        float | None, typer.Option(help="Share of matching pairs that --calibrate assumes. Default: 0.5.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the card to this .json file, and its summary to a .txt file next to it."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A name of the model that made the embeddings, which `isomargin check` compares.")
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
    margin: Margin = 0.0,
    class_thresholds: ClassThresholdsFile = None,
    draws: Draws = 1000,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Choose one threshold for production, with confidence intervals and what it does to each class.

    By default, the threshold is chosen for a false accept rate of 1%.
    """
    from isomargin.core.files import atomic_writes
    from isomargin.thresholds.calibrate import Method
    from isomargin.thresholds.calibrate import calibrate as fit
    from isomargin.thresholds.card import make_card
    from isomargin.thresholds.choose import choose_threshold
    from isomargin.thresholds.conformal import promise_threshold

    (options,) = read_options([file], labels, embeddings_key, labels_key, equalizer, new_classes)
    gallery_options = GalleryOptions(gallery, gallery_labels, template, leave_one_out, sides, margin, class_thresholds)
    gallery_options.check({"new_classes": new_classes})
    sources = [*files_read(file, options), *(path for path in (gallery, gallery_labels) if path is not None)]
    if output is not None:
        check_card_place(output, [*sources, *(path for path in (equalizer, class_thresholds) if path is not None)])
    if prior is not None and calibrate is None:
        raise InputError("--prior belongs to --calibrate: give both, or --cost for a threshold by prior")
    if unseen and delta is not None:
        raise InputError("--unseen promises the mean over unseen classes, --delta each class by itself: give one")
    target = wanted(far, frr, best_utility, cost, distance if score is None else score, cosine, fpir)
    if score is not None and distance is not None:
        raise InputError("--distance and --score were given: a threshold is one of them")
    about: dict[str, Any]
    if gallery_options.wanted:
        evaluation, probes, enrolled = open_gallery(file, options, gallery_options)
        about = {"embeddings": probes, "gallery": enrolled, "equalizer": options.equalizer}
        about["class_thresholds"] = open_class_thresholds(class_thresholds)
    else:
        opened = open_source(file, options, notes=False)
        evaluation, about = opened.evaluation, {"embeddings": opened.embeddings, "shifts": opened.shifts}
    check_cosine(cosine, evaluation)
    check_scale(distance, score, evaluation)
    if score is not None:
        target = {"distance": evaluation.axis.shown(score)}
    interval: dict[str, Any] = {"draws": draws, "confidence": confidence, "seed": seed}
    if unseen or delta is not None:
        if not set(target) <= {"far", "frr", "fpir"}:
            raise InputError("only a rate can be promised: give --far or --frr, or --fpir for a gallery")
        choice = promise_threshold(evaluation, **target, delta=delta, **interval)
    else:
        choice = choose_threshold(evaluation, **target, **interval)
    calibration = None if calibrate is None else fit(evaluation, cast(Method, calibrate), prior=prior)
    card = make_card(
        choice,
        evaluation,
        source=[source_of(path, about["gallery"] if path == gallery else about["embeddings"]) for path in sources],
        calibration=calibration,
        model=model,
        **about,
    )
    if output is not None:
        with writing(output), atomic_writes(output, output.with_suffix(".txt")) as (as_file, as_text):
            card.save(as_file)
            as_text.write_text(card.summary() + "\n", encoding="utf-8")
    print(json.dumps(card.as_values(), allow_nan=False, indent=1) if as_json else card.summary())
    if output is not None:
        print(f"\nwritten to {output} and {output.with_suffix('.txt').name}", file=sys.stderr)


def transfer(
    calibration: Annotated[
        Path,
        typer.Argument(
            parser=as_path,
            help="The set to choose the threshold on: embeddings, an evaluation.json, a run, or a card.",
        ),
    ],
    others: Annotated[
        list[Path],
        typer.Argument(parser=as_path, help="The sets that the threshold is applied to."),
    ],
    far: Far = None,
    frr: Frr = None,
    best_utility: BestUtility = False,
    cost: Cost = None,
    distance: Distance = None,
    cosine: Cosine = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    equalizer: EqualizerFile = None,
    new_classes: NewClasses = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the table to this .csv file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Apply one threshold to other sets: does it still have the rates that it was chosen for?

    This is the One-Threshold-for-All protocol. A card brings its own threshold.
    """
    from isomargin.cli.tables import transfer_table
    from isomargin.core.csv_files import write_csv
    from isomargin.thresholds.choose import choose_threshold
    from isomargin.thresholds.transfer import CALIBRATION, transfer_card, transfer_threshold

    check_writable(output, ".csv")
    given = [far, frr, cost, distance, cosine, best_utility or None]
    card = open_card(calibration)
    if card is not None and any(each is not None for each in given):
        raise InputError(f"{calibration} is a card, which brings its own threshold: leave the other options out")
    first, *options = read_options([calibration, *others], labels, embeddings_key, labels_key, equalizer, new_classes)
    sets = {
        f"{name} (applied)" if name == CALIBRATION else name: open_evaluation(path, how)
        for (name, path), how in zip(short_names(others).items(), options, strict=True)
    }
    if card is not None:
        result = transfer_card(card, sets)
    else:
        chosen_on = open_evaluation(calibration, first)
        check_cosine(cosine, chosen_on)
        check_scale(distance, None, chosen_on)
        choice = choose_threshold(chosen_on, **wanted(far, frr, best_utility, cost, distance, cosine))
        result = transfer_threshold(choice.distance, chosen_on, sets)
    if output is not None:
        with writing(output):
            write_csv(result.table, output)
    if as_json:
        print(json.dumps(result.as_values(), allow_nan=False, indent=1))
    else:
        print_renderable(transfer_table(result))


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(parser=as_path, help="Two or more models on the same classes, compared with the first."),
    ],
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    draws: Draws = 1000,
    confidence: Confidence = 0.95,
    seed: Seed = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the table to this .csv file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare models on the same classes: which scores differ significantly?

    Each model is a file of embeddings, an evaluation.json or the folder of a run. Intervals and p-values come from a
    paired bootstrap over classes.
    """
    from isomargin.cli.tables import differences_table
    from isomargin.core.csv_files import write_csv
    from isomargin.measure.comparison import compare as run
    from isomargin.measure.statistics.intervals import check_draws

    check_writable(output, ".csv")
    check_draws(draws, confidence)
    options = read_options(files, labels, embeddings_key, labels_key)
    models = zip(short_names(files).items(), options, strict=True)
    evaluations = {name: open_evaluation(path, how) for (name, path), how in models}
    comparison = run(evaluations, draws=draws, confidence=confidence, seed=seed)
    for note in comparison.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    if output is not None:
        with writing(output):
            write_csv(comparison.table, output)
    if as_json:
        print(json.dumps(comparison.as_values(), allow_nan=False, indent=1))
        return
    for name in comparison.others:
        print_renderable(differences_table(comparison, name))
        print(printable(comparison.sentence(name)))


def wanted(
    far: float | None,
    frr: float | None,
    best_utility: bool,
    cost: tuple[float, float, float] | None,
    distance: float | None,
    cosine: float | None,
    fpir: float | None = None,
) -> dict[str, Any]:
    """Give the one target that was asked for, a false accept rate of 1% where none was."""
    from isomargin.core import checks

    given: dict[str, Any] = {"far": far, "frr": frr, "cost": cost, "distance": distance, "fpir": fpir}
    given = {name: value for name, value in given.items() if value is not None}
    if best_utility:
        given["utility"] = "best"
    if cosine is not None:
        if distance is not None:
            raise InputError("--distance and --cosine are the same thing twice: give one of them")
        given["distance"] = (2 - 2 * checks.cosine(cosine, "cosine")) ** 0.5
    if len(given) > 1:
        names = {"utility": "best-utility", "distance": "distance" if cosine is None else "cosine"}
        options = " and ".join(f"--{names.get(name, name)}" for name in given)
        raise InputError(f"{options} were given: a threshold is chosen for one of them")
    return given or {"far": 0.01}


def check_scale(distance: float | None, score: float | None, evaluation: "Evaluation") -> None:
    """Refuse a distance as the threshold of scores that were given, and a score as the threshold of distances."""
    if distance is not None and not evaluation.axis.has_similarities:
        raise InputError("--distance is one between embeddings, but these trials have scores: give --score")
    if score is not None and evaluation.axis.has_similarities:
        raise InputError("--score is for trials that were given as scores, but these have distances: give --distance")


def check_cosine(cosine: float | None, evaluation: "Evaluation") -> None:
    """Refuse a cosine as the threshold of shifted similarities or of scores, which are something else."""
    if cosine is not None and not evaluation.axis.has_similarities:
        raise InputError("--cosine is a similarity of embeddings, but these trials have scores: give --score")
    if cosine is not None and evaluation.equalizer is not None:
        raise InputError(
            f"--cosine is a plain similarity, but these pairs have another, {evaluation.axis.similarity_name}: give "
            "--distance, on its own axis"
        )


def check_card_place(output: Path, sources: list[Path]) -> None:
    """Refuse a card, or its summary beside it, that could not be written or would take the place of its own source."""
    check_writable(output, ".json")
    summary = output.with_suffix(".txt")
    check_writable(summary, ".txt")
    for written in (output, summary):
        if any(written.resolve() == source.resolve() for source in sources):
            raise InputError(f"{written} is what the threshold is measured on: choose another name for --output")
