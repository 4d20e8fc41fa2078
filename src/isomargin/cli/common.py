"""What commands share: showing an evaluation, and telling in a sentence what the disk refuses."""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomargin.core.errors import InputError
from isomargin.core.files import check_file
from isomargin.core.text import printable

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.statistics.intervals import Interval
    from isomargin.training.recipe import Recipe


SMALLEST_FAR = 0.01  # that an evaluation looks at unless told otherwise

Labels = Annotated[Path | None, typer.Option(help="A file of labels: .npy, or .txt with one a line.")]
EmbeddingsKey = Annotated[str, typer.Option(help="Name of the embeddings in the file.")]
LabelsKey = Annotated[str, typer.Option(help="Name of the labels in the file.")]


def open_measured(path: Path, labels: Path | None, embeddings_key: str, labels_key: str) -> "Evaluation":
    """Give the evaluation of a run's folder, of a saved evaluation, or of embeddings, which are measured first."""
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.evaluate import evaluate
    from isomargin.measure.evaluation import Evaluation
    from isomargin.thresholds.card import is_card
    from isomargin.training.run_folder import RunFolder

    if path.is_dir():
        if not RunFolder(path).evaluation.is_file():
            raise InputError(f"{path} is a folder without an evaluation.json: give a finished run, or a file")
        path = RunFolder(path).evaluation
    check_file(path)
    if path.suffix == ".json":
        if labels is not None:
            raise InputError(f"{path} is an evaluation, which has its labels: leave --labels out")
        if is_card(path):
            raise InputError(f"{path} is a threshold card, which has no pairs: give embeddings or an evaluation")
        return Evaluation.load(path)
    embeddings = EmbeddingSet.load(path, labels=labels, embeddings_key=embeddings_key, labels_key=labels_key)
    rates = resolvable_rates(embeddings.labels)
    evaluation = without_warnings(evaluate, embeddings.vectors, embeddings.labels, **rates)
    for note in evaluation.all_notes:
        print(printable(f"note: {path}: {note}"), file=sys.stderr)
    return evaluation


def resolvable_rates(labels: Any) -> dict[str, Any]:
    """Give the evaluation's rates: its defaults, or larger ones where there are too few negative pairs for those."""
    import numpy as np

    _, sizes = np.unique(labels, return_counts=True)
    negatives = int((sizes * (len(labels) - sizes)).sum()) // 2
    least = 1 / max(negatives, 1)
    if least <= SMALLEST_FAR:
        return {}
    low = min(least, 0.4)
    return {"far": (low, min(10 * low, 0.9)), "target_far": low}


def source_files(path: Path, labels: Path | None) -> list[Path]:
    """Give the files that `open_measured` reads."""
    from isomargin.io.formats import labels_beside
    from isomargin.training.run_folder import RunFolder

    if path.is_dir():
        return [RunFolder(path).evaluation]
    if labels is None and path.suffix == ".npy":
        labels = labels_beside(path)
    return [path] if labels is None else [path, labels]


def show(
    evaluation: "Evaluation",
    worst: int,
    worst_by: str,
    as_json: bool,
    intervals: "Mapping[str, Interval] | None" = None,
    drawn: str = "",
) -> None:
    """Print for people or for machines; notes go to standard error."""
    from isomargin.cli.tables import as_values, print_evaluation

    for note in evaluation.all_notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    if as_json:
        print(json.dumps(as_values(evaluation, worst, worst_by, intervals), allow_nan=False, indent=1))
    else:
        print_evaluation(evaluation, worst, worst_by, intervals, drawn)


def without_warnings(function: Any, *arguments: Any, **options: Any) -> "Evaluation":
    """Call a function whose notes are shown with its result, so that its warnings would say them twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        evaluation: Evaluation = function(*arguments, **options)
        return evaluation


def check_writable(path: Path | None, suffix: str) -> None:
    """Refuse a name that could not be written, before any work is done."""
    if path is None:
        return
    if path.suffix != suffix:
        raise InputError(f"{path} should end in {suffix}")
    with writing(path):
        if path.is_dir() or not path.parent.is_dir():
            raise InputError(f"{path} cannot be written: there must be a folder {path.parent}, and no folder {path}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk refuses in the block into a sentence that names the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}): choose another place") from error


def print_renderable(*renderables: Any) -> None:
    """Print what rich can, at a fixed width where the output is no terminal."""
    from isomargin.cli.tables import make_console

    console = make_console()
    for each in renderables:
        console.print(each)


def print_plan(recipe: "Recipe") -> None:
    """Print a recipe in full, and what its run would be; notes go to standard error."""
    from isomargin.training.setup import plan

    planned = plan(recipe)
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    print(recipe.to_yaml())
    parts = {"training": planned.train, "evaluation": planned.unseen, "test": planned.test}
    for name, images in parts.items():
        print(f"{name + ':':<12}{len(images):,} images in {len(images.class_names):,} classes")
    batch = recipe.batch.classes * recipe.batch.images_per_class
    print(f"{'model:':<12}{planned.parameters:,} trained parameters, {planned.dimensions} dimensions")
    print(f"{'steps:':<12}{planned.steps:,} of {batch:,} images, {planned.batches_an_epoch:,} an epoch")
