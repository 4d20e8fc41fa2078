"""Opening a path as what it is: a file of embeddings, an evaluation, the folder of a run, or a threshold card.

The only place that tells them apart, and the home of the options that say how embeddings are read. It imports no torch.
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

SMALLEST_FAR = 0.01  # that an evaluation measures unless told otherwise

Labels = Annotated[
    list[Path] | None,
    typer.Option(
        help="A file of labels for the embeddings: .npy, or .txt with one label per line. With several files of "
        "embeddings, give it once for all of them or once for each, in order."
    ),
]
EmbeddingsKey = Annotated[str, typer.Option(help="Name of the array, column or tensor that holds the embeddings.")]
LabelsKey = Annotated[str, typer.Option(help="Name of the array, column or tensor that holds the labels.")]

Kind = Literal["embeddings", "evaluation", "run", "card"]


@dataclass(frozen=True)
class ReadOptions:
    """How files of embeddings are read."""

    labels: Path | None = None
    """A file of labels, where the embeddings' own file has none."""
    embeddings_key: str = "embeddings"
    labels_key: str = "labels"


AS_USUAL = ReadOptions()


def kind_of(path: Path) -> Kind:
    """Tell what a path is, by its suffix and for JSON by its content."""
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
    """Give each path its options: labels files go to the files of embeddings, one for all or one for each in order."""
    labels = list(labels or ())
    takers = [path for path in paths if kind_of(path) == "embeddings"]
    if labels and not takers:
        raise InputError(f"{paths[0]} brings its own labels: leave --labels out")
    if len(labels) not in (0, 1, len(takers)):
        raise InputError(
            f"--labels was given {len(labels)} times for {len(takers)} files of embeddings: "
            "give it once for all of them, or once for each"
        )
    files = iter(labels * len(takers) if len(labels) == 1 else labels)
    return [
        ReadOptions(next(files) if labels and path in takers else None, embeddings_key, labels_key) for path in paths
    ]


def open_embeddings(path: Path, options: ReadOptions = AS_USUAL) -> "EmbeddingSet":
    """Read a file of embeddings, or those of a finished run."""
    from isomargin.io.embedding_set import EmbeddingSet

    kind = kind_of(path)
    if kind == "run":
        _refuse_not_evaluated(path)
        if not RunFolder(path).embeddings.is_file():
            raise InputError(f"{path} is a folder without an embeddings.npz: give a finished run, or a file")
        return EmbeddingSet.load(RunFolder(path).embeddings)
    if kind != "embeddings":
        raise InputError(f"{path} holds no embeddings: give the file of embeddings, or a run's folder")
    return EmbeddingSet.load(
        path, labels=options.labels, embeddings_key=options.embeddings_key, labels_key=options.labels_key
    )


def open_evaluation(path: Path, options: ReadOptions = AS_USUAL) -> "Evaluation":
    """Read the evaluation of a run or from a file; embeddings are evaluated first."""
    from isomargin.measure.evaluation import Evaluation

    match kind_of(path):
        case "run":
            _refuse_not_evaluated(path)
            if not RunFolder(path).finished:
                raise InputError(f"{path} is a folder without an evaluation.json: give a finished run, or a file")
            return Evaluation.load(RunFolder(path).evaluation)
        case "evaluation":
            return Evaluation.load(path)
        case "card":
            raise InputError(f"{path} is a threshold card, which has no pairs: give embeddings or an evaluation")
    return evaluate_embeddings(path, open_embeddings(path, options))


def _refuse_not_evaluated(path: Path) -> None:
    if RunFolder(path).not_evaluated.is_file():
        raise InputError(f"{path} was trained on all classes and is not evaluated: give a run that kept classes out")


def open_card(path: Path) -> "ThresholdCard | None":
    """Read a threshold card; None where the path is something else."""
    from isomargin.thresholds.card import ThresholdCard

    return ThresholdCard.load(path) if kind_of(path) == "card" else None


def open_source(path: Path, options: ReadOptions = AS_USUAL) -> "Source":
    """Give what a report is made from: the evaluation, and the embeddings where there are any."""
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
    """Evaluate with default settings, at larger rates where there are few pairs; notes go to standard error."""
    from isomargin.measure.evaluate import evaluate

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


def without_warnings(function: Any, *arguments: Any, **options: Any) -> "Evaluation":
    """Call a function whose notes are shown with its result, so that its warnings would say them twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        evaluation: Evaluation = function(*arguments, **options)
        return evaluation


def short_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Give paths short names of their own: the last parts of each that tell them apart.

    >>> list(short_names([Path("a/embeddings.npz"), Path("b/embeddings.npz")]))
    ['a/embeddings', 'b/embeddings']
    >>> list(short_names([Path("runs/base"), Path("runs/tcm.npz")]))
    ['base', 'tcm']
    """
    whole = [path.resolve() for path in paths]
    for path, resolved in zip(paths, whole, strict=True):
        if whole.count(resolved) > 1:
            raise InputError(f"{path} was given twice: each file is one model or set")
    bare = [path if path.is_dir() or not path.name else path.with_suffix("") for path in whole]
    for parts in range(1, max(len(path.parts) for path in whole) + 1):
        for form in (bare, whole):
            short = ["/".join(path.parts[-parts:]) for path in form]
            if len(set(short)) == len(short):
                return dict(zip(short, paths, strict=True))
    return {str(path): path for path in paths}
