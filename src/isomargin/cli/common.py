"""Helpers that several commands share: printing results, and reporting files that cannot be written."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomargin.core.errors import InputError
from isomargin.core.text import printable

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.statistics.intervals import Interval
    from isomargin.training.recipe import Recipe


def show(
    evaluation: "Evaluation",
    worst: int,
    worst_by: str,
    as_json: bool,
    intervals: "Mapping[str, Interval] | None" = None,
    resampled: str = "",
    source: str = "FILE",
) -> None:
    """Print an evaluation and a diagnosis, as tables or as JSON; notes go to standard error.

    ``source`` is how commands name the embeddings: a path, quoted for a shell, and the options with which it was read.
    """
    from isomargin.cli.tables import as_values, print_diagnosis, print_evaluation
    from isomargin.measure.diagnosis import FILE, diagnose

    for note in evaluation.all_notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    findings = [replace(found, remedy=found.remedy.replace(FILE, source)) for found in diagnose(evaluation)]
    if as_json:
        values = as_values(evaluation, worst, worst_by, intervals) | {
            "diagnosis": [asdict(found) for found in findings]
        }
        print(json.dumps(values, allow_nan=False, indent=1))
    else:
        print_evaluation(evaluation, worst, worst_by, intervals, resampled)
        print_diagnosis(findings)


def check_writable(path: Path | None, suffix: str) -> None:
    """Refuse a path that cannot be written, before any work is done."""
    if path is None:
        return
    if path.suffix != suffix:
        raise InputError(f"{path} should end in {suffix}")
    with writing(path):
        if path.is_dir() or not path.parent.is_dir():
            reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise InputError(f"{path} cannot be written, because {reason}: choose another file")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the file system in the block into a sentence that names the path."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error  # numpy gives no errno where it cannot write all of an array
        raise InputError(f"{path} cannot be written ({why}): choose another place") from error


def print_renderable(*renderables: Any) -> None:
    """Print rich renderables; if the output is not a terminal, they are as wide as they need to be."""
    from isomargin.cli.tables import make_console

    console = make_console()
    for renderable in renderables:
        console.print(renderable)


def print_plan(recipe: "Recipe") -> None:
    """Print a recipe in full, and the sizes of its data, model and training; notes go to standard error."""
    from isomargin.training.setup import plan

    planned = plan(recipe)
    for note in planned.notes:
        print(f"note: {note}", file=sys.stderr)
    print(recipe.to_yaml())
    parts = {"training": planned.train, "evaluation": planned.unseen, "test": planned.test}
    for name, items in parts.items():
        if items is None:
            print(f"{name + ':':<12}none, because all classes are used for training")
        else:
            print(f"{name + ':':<12}{len(items):,} items in {len(items.class_names):,} classes")
    batch = recipe.batch.classes * recipe.batch.images_per_class
    print(f"{'model:':<12}{planned.parameters:,} trained parameters, {planned.dimensions} dimensions")
    print(f"{'steps:':<12}{planned.steps:,} of {batch:,} items, {planned.batches_an_epoch:,} per epoch")
