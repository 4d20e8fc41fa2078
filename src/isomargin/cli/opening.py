"""Open a path given on the command line: a file of embeddings, an evaluation, the folder of a run or a threshold card.

This is the only module that tells them apart. It also defines the options for reading embeddings. It does not import
torch.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from isomargin.core.errors import InputError
from isomargin.core.files import check_file
from isomargin.core.text import printable
from isomargin.training.run_folder import RunFolder

if TYPE_CHECKING:
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.evaluation import Evaluation
    from isomargin.report.sources import Source
    from isomargin.thresholds.card import ThresholdCard

SMALLEST_FAR = 0.01  # the smallest rate among the default settings of an evaluation

Labels = Annotated[
    list[Path] | None,
    typer.Option(
        help="File of labels, if the file of embeddings has none: .npy, or .txt with one label per line. With several "
        "files of embeddings, give it once for all of them, or once per file in the same order."
    ),
]
EmbeddingsKey = Annotated[
    str, typer.Option(help="Name of the array, column or tensor in the file that holds the embeddings.")
]
LabelsKey = Annotated[str, typer.Option(help="Name of the array, column or tensor in the file that holds the labels.")]

Kind = Literal["embeddings", "evaluation", "run", "card"]


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file of embeddings."""

    labels: Path | None = None
    """A file of labels, if the file of embeddings has none."""
    embeddings_key: str = "embeddings"
    """Name of the array, column or tensor that holds the embeddings."""
    labels_key: str = "labels"
    """Name of the array, column or tensor that holds the labels."""


AS_USUAL = ReadOptions()


def kind_of(path: Path) -> Kind:
    """Return what a path is, by its suffix and, for JSON, by its content."""
    from isomargin.thresholds.card import is_card

    if path.is_dir():
        return "run"
    check_file(path)
    if path.suffix != ".json":
        return "embeddings"
    return "card" if is_card(path) else "evaluation"


def read_options(
    paths: Sequence[Path], labels: Sequence[Path] | None, embeddings_key: str, labels_key: str
) -> list[ReadOptions]:
    """Return the options of each path; only files of embeddings take labels, one file for all or one for each."""
    labels = list(labels or ())
    unlabelled = [path for path in paths if kind_of(path) == "embeddings"]
    if labels and not unlabelled:
        raise InputError(f"{paths[0]} contains its own labels: leave out --labels")
    if len(labels) not in (0, 1, len(unlabelled)):
        raise InputError(
            f"--labels was given {len(labels)} times for {len(unlabelled)} files of embeddings: "
            "give it once for all of them, or once for each"
        )
    files = iter(labels * len(unlabelled) if len(labels) == 1 else labels)
    return [
        ReadOptions(next(files) if labels and path in unlabelled else None, embeddings_key, labels_key)
        for path in paths
    ]


def open_embeddings(path: Path, options: ReadOptions = AS_USUAL) -> "EmbeddingSet":
    """Read a file of embeddings, or the embeddings of a finished run."""
    from isomargin.io.embedding_set import EmbeddingSet

    kind = kind_of(path)
    if kind == "run":
        _refuse_not_evaluated(path)
        if not RunFolder(path).embeddings.is_file():
            raise InputError(
                f"{path} is a folder without an embeddings.npz: give the folder of a finished run, or a file"
            )
        return EmbeddingSet.load(RunFolder(path).embeddings)
    if kind != "embeddings":
        raise InputError(f"{path} contains no embeddings: give a file of embeddings, or the folder of a run")
    return EmbeddingSet.load(
        path, labels=options.labels, embeddings_key=options.embeddings_key, labels_key=options.labels_key
    )


def open_evaluation(path: Path, options: ReadOptions = AS_USUAL) -> "Evaluation":
    """Read the evaluation of a run or of a file; embeddings are evaluated."""
    from isomargin.measure.evaluation import Evaluation

    match kind_of(path):
        case "run":
            _refuse_not_evaluated(path)
            if not RunFolder(path).finished:
                raise InputError(
                    f"{path} is a folder without an evaluation.json: give the folder of a finished run, or a file"
                )
            return Evaluation.load(RunFolder(path).evaluation)
        case "evaluation":
            return Evaluation.load(path)
        case "card":
            raise InputError(f"{path} is a threshold card, which has no pairs: give embeddings, an evaluation or a run")
    return evaluate_embeddings(path, open_embeddings(path, options))


def _refuse_not_evaluated(path: Path) -> None:
    if RunFolder(path).not_evaluated.is_file():
        raise InputError(f"{path} was trained on all classes and is not evaluated: give a run with classes held out")


def open_card(path: Path) -> "ThresholdCard | None":
    """Read a threshold card; None if the path is something else."""
    from isomargin.thresholds.card import ThresholdCard

    return ThresholdCard.load(path) if kind_of(path) == "card" else None


def open_source(path: Path, options: ReadOptions = AS_USUAL) -> "Source":
    """Read what a report shows: the evaluation, and the embeddings if there are any."""
    from isomargin.report.sources import Source

    kind = kind_of(path)
    if kind == "embeddings":
        embeddings = open_embeddings(path, options)
        return Source(evaluate_embeddings(path, embeddings), embeddings)
    evaluation = open_evaluation(path, options)
    if kind == "run" and RunFolder(path).embeddings.is_file():
        return Source(evaluation, open_embeddings(path), path)
    return Source(evaluation, None, path if kind == "run" else None)


def files_read(path: Path, options: ReadOptions) -> list[Path]:
    """List the files that `open_evaluation` reads."""
    from isomargin.io.formats import labels_beside

    if path.is_dir():
        return [RunFolder(path).evaluation]
    labels = options.labels
    if labels is None and path.suffix == ".npy":
        labels = labels_beside(path)
    return [path] if labels is None else [path, labels]


def evaluate_embeddings(path: Path, embeddings: "EmbeddingSet") -> "Evaluation":
    """Evaluate with the default settings, or at larger rates if there are few pairs; notes go to standard error."""
    from isomargin.measure.evaluate import evaluate

    rates = resolvable_rates(embeddings.labels)
    evaluation = without_warnings(evaluate, embeddings.vectors, embeddings.labels, **rates)
    for note in evaluation.all_notes:
        print(printable(f"note: {path}: {note}"), file=sys.stderr)
    return evaluation


def resolvable_rates(labels: Any) -> dict[str, Any]:
    """Return rates for an evaluation if there are too few negative pairs for the default ones; else nothing."""
    import numpy as np

    _, sizes = np.unique(labels, return_counts=True)
    negatives = int((sizes * (len(labels) - sizes)).sum()) // 2
    least = 1 / max(negatives, 1)
    if least <= SMALLEST_FAR:
        return {}
    low = min(least, 0.4)
    return {"far": (low, min(10 * low, 0.9)), "target_far": low}


def without_warnings(function: Any, *arguments: Any, **options: Any) -> "Evaluation":
    """Call a function without its warnings, because they repeat the notes that are printed with its result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        evaluation: Evaluation = function(*arguments, **options)
        return evaluation


def short_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Return short, distinct names for paths: the last parts of each that tell them apart.

    >>> list(short_names([Path("a/embeddings.npz"), Path("b/embeddings.npz")]))
    ['a/embeddings', 'b/embeddings']
    >>> list(short_names([Path("runs/base"), Path("runs/tcm.npz")]))
    ['base', 'tcm']
    """
    full = [path.resolve() for path in paths]
    for path, resolved in zip(paths, full, strict=True):
        if full.count(resolved) > 1:
            raise InputError(f"{path} was given twice: give each model or set once")
    bare = [path if path.is_dir() or not path.name else path.with_suffix("") for path in full]
    for parts in range(1, max(len(path.parts) for path in full) + 1):
        for form in (bare, full):
            short = ["/".join(path.parts[-parts:]) for path in form]
            if len(set(short)) == len(short):
                return dict(zip(short, paths, strict=True))
    return {str(path): path for path in paths}
