"""What commands share: showing an evaluation, and telling in a sentence what the disk refuses."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
) -> None:
    """Print for people or for machines; notes go to standard error."""
    from isomargin.cli.tables import as_values, print_evaluation

    for note in evaluation.all_notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    if as_json:
        print(json.dumps(as_values(evaluation, worst, worst_by, intervals), allow_nan=False, indent=1))
    else:
        print_evaluation(evaluation, worst, worst_by, intervals, resampled)


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
    """Print what rich can, as wide as it needs to be where the output is not a terminal."""
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
        if images is None:
            print(f"{name + ':':<12}none, all classes are trained on")
        else:
            print(f"{name + ':':<12}{len(images):,} images in {len(images.class_names):,} classes")
    batch = recipe.batch.classes * recipe.batch.images_per_class
    print(f"{'model:':<12}{planned.parameters:,} trained parameters, {planned.dimensions} dimensions")
    print(f"{'steps:':<12}{planned.steps:,} of {batch:,} images, {planned.batches_an_epoch:,} an epoch")
