"""Open a path given on the command line: embeddings, evaluations, runs, cards, equalizers and class thresholds.

This is the only module that tells them apart. It also defines the options for reading embeddings. It does not import
torch.
"""

import shlex
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
from isomargin.io.stores.address import StoreAddress
from isomargin.training.run_folder import RunFolder

if TYPE_CHECKING:
    from isomargin.equalize.equalizer import Equalizer
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.pairs.inputs import Shifts
    from isomargin.report.sources import Source
    from isomargin.thresholds.card import SourceFile, ThresholdCard

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

EqualizerFile = Annotated[
    Path | None,
    typer.Option(
        "--equalizer",
        help="Equalizer that `isomargin equalize` wrote: similarities are equalized before they are measured.",
    ),
]
NewClasses = Annotated[
    bool,
    typer.Option(
        "--new-classes",
        help="With --equalizer: measure every class as if it were not in the equalizer's reference yet.",
    ),
]

Kind = Literal["embeddings", "evaluation", "run", "card", "equalizer", "class thresholds"]


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file of embeddings."""

    labels: Path | None = None
    """A file of labels, if the file of embeddings has none."""
    embeddings_key: str = "embeddings"
    """Name of the array, column or tensor that holds the embeddings."""
    labels_key: str = "labels"
    """Name of the array, column or tensor that holds the labels."""
    equalizer: "Equalizer | None" = None
    """What equalizes the similarities of embeddings."""
    new_classes: bool = False
    """Whether classes are measured as if they were not in the equalizer's reference."""

    def words(self, path: Path) -> str:
        """Return the path and these options as words of a command line.

        >>> ReadOptions(Path("my labels.txt")).words(Path("a.npy"))
        "a.npy --labels 'my labels.txt'"
        """
        words = [str(path)]
        words += [] if self.labels is None else ["--labels", str(self.labels)]
        words += [] if self.embeddings_key == "embeddings" else ["--embeddings-key", self.embeddings_key]
        words += [] if self.labels_key == "labels" else ["--labels-key", self.labels_key]
        return shlex.join(words)


AS_USUAL = ReadOptions()


def kind_of(path: Path) -> Kind:
    """Return what a path is, by its suffix and, for JSON, by its content."""
    from isomargin.equalize.saving import is_of_kind
    from isomargin.thresholds.card import is_card

    if isinstance(path, StoreAddress):
        path.check()
        return "embeddings"
    if path.is_dir():
        return "run"
    check_file(path)
    if path.suffix != ".json":
        return "embeddings"
    if is_of_kind(path, "equalizer"):
        return "equalizer"
    if is_of_kind(path, "class thresholds"):
        return "class thresholds"
    return "card" if is_card(path) else "evaluation"


def read_options(
    paths: Sequence[Path],
    labels: Sequence[Path] | None,
    embeddings_key: str,
    labels_key: str,
    equalizer: Path | None = None,
    new_classes: bool = False,
) -> list[ReadOptions]:
    """Return the options of each path; only files of embeddings take labels, one file for all or one for each."""
    labels = list(labels or ())
    if new_classes and equalizer is None:
        raise InputError("--new-classes concerns the reference of an equalizer: give --equalizer, or leave it out")
    if equalizer is not None and all(kind_of(path) in ("evaluation", "card") for path in paths):
        raise InputError(f"{paths[0]} has counts, which cannot be equalized any more: give the embeddings")
    loaded = None if equalizer is None else open_equalizer(equalizer)
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
        ReadOptions(
            next(files) if labels and path in unlabelled else None, embeddings_key, labels_key, loaded, new_classes
        )
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

    kind = kind_of(path)
    if options.equalizer is not None and kind in ("embeddings", "run"):
        return evaluate_embeddings(path, open_embeddings(path, options), options)
    match kind:
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
        case "equalizer":
            raise InputError(
                f"{path} is an equalizer: give embeddings, an evaluation or a run; evaluate, threshold, transfer and "
                "report take it with --equalizer"
            )
        case "class thresholds":
            raise InputError(
                f"{path} has class thresholds: give embeddings, an evaluation or a run; evaluate takes it with "
                "--gallery and --class-thresholds"
            )
    return evaluate_embeddings(path, open_embeddings(path, options), options)


def _refuse_not_evaluated(path: Path) -> None:
    if RunFolder(path).not_evaluated.is_file():
        raise InputError(f"{path} was trained on all classes and is not evaluated: give a run with classes held out")


def open_card(path: Path) -> "ThresholdCard | None":
    """Read a threshold card; None if the path is something else."""
    from isomargin.thresholds.card import ThresholdCard

    return ThresholdCard.load(path) if kind_of(path) == "card" else None


def open_equalizer(path: Path, mapped: bool = False) -> "Equalizer":
    """Read an equalizer; with ``mapped``, its reference stays in the file."""
    from isomargin.equalize.equalizer import Equalizer

    return Equalizer.load(path, mapped)


def open_source(path: Path, options: ReadOptions = AS_USUAL, notes: bool = True) -> "Source":
    """Read what a report shows: the evaluation, and the embeddings if there are any.

    Without ``notes`` those of the evaluation are not printed, because what is made from it has them.
    """
    from isomargin.report.sources import Source

    kind = kind_of(path)
    if kind == "embeddings":
        embeddings = open_embeddings(path, options)
        shifts = shifts_of(path, embeddings, options)
        return Source(evaluate_embeddings(path, embeddings, options, shifts, notes), embeddings, shifts=shifts)
    if kind == "run" and RunFolder(path).embeddings.is_file():
        if options.equalizer is None:
            return Source(open_evaluation(path, options), open_embeddings(path), path)
        embeddings = open_embeddings(path)
        shifts = shifts_of(path, embeddings, options)
        return Source(evaluate_embeddings(path, embeddings, options, shifts, notes), embeddings, path, shifts)
    return Source(open_evaluation(path, options), None, path if kind == "run" else None)


def files_read(path: Path, options: ReadOptions) -> list[Path]:
    """List the files that `open_evaluation` reads."""
    from isomargin.io.formats import labels_beside

    if path.is_dir():
        return [RunFolder(path).evaluation if options.equalizer is None else RunFolder(path).embeddings]
    labels = options.labels
    if labels is None and path.suffix == ".npy":
        labels = labels_beside(path)
    return [path] if labels is None else [path, labels]


def source_of(path: Path, embeddings: "EmbeddingSet | None") -> "SourceFile":
    """Return what a card records about a path: the file, or for a store its address with what was read."""
    return path if embeddings is None or not isinstance(path, StoreAddress) else (str(path), embeddings)


@dataclass(frozen=True)
class WithKnownShifts:
    """An equalizer whose shifts of one set are known already, so that neighbours are searched only once."""

    equalizer: "Equalizer"
    """The equalizer."""
    known: "Shifts"
    """The shifts of the set."""

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> "Shifts":
        """Return the known shifts."""
        return self.known

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return the settings and the digest of the equalizer."""
        return self.equalizer.record(new_classes)


def shifts_of(path: Path, embeddings: "EmbeddingSet", options: ReadOptions) -> "Shifts | None":
    """Return what the equalizer adds to the similarities of these embeddings; None without an equalizer.

    Its warnings become notes on standard error.
    """
    if options.equalizer is None:
        return None
    labels = embeddings.labels if options.new_classes else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        shifts = options.equalizer.shifts(embeddings.vectors, known_ids(embeddings, options), labels)
    for warning in caught:
        print(printable(f"note: {path}: {warning.message}"), file=sys.stderr)
    return shifts


def known_ids(embeddings: "EmbeddingSet", options: ReadOptions) -> Any:
    """Return the ids of embeddings if the equalizer has some of their type to compare them with."""
    known, ids = None if options.equalizer is None else options.equalizer.ids_, embeddings.ids
    return None if known is None or ids is None or (known.dtype.kind == "U") != (ids.dtype.kind == "U") else ids


def equalizing(options: ReadOptions, shifts: "Shifts | None") -> dict[str, Any]:
    """Return the arguments of `evaluate` that concern the equalizer."""
    if options.equalizer is None or shifts is None:
        return {}
    return {"equalizer": WithKnownShifts(options.equalizer, shifts), "new_classes": options.new_classes}


def evaluate_embeddings(
    path: Path,
    embeddings: "EmbeddingSet",
    options: ReadOptions = AS_USUAL,
    shifts: "Shifts | None" = None,
    notes: bool = True,
) -> "Evaluation":
    """Evaluate with the default settings, or at larger rates if there are few pairs.

    ``shifts`` are those of `shifts_of`, if they are known already. The notes of the evaluation go to standard error,
    unless ``notes`` is false.
    """
    from isomargin.measure.evaluate import evaluate

    rates = resolvable_rates(embeddings.labels)
    known = shifts_of(path, embeddings, options) if shifts is None else shifts
    evaluation = without_warnings(
        evaluate, embeddings.vectors, embeddings.labels, **rates, **equalizing(options, known)
    )
    for note in evaluation.all_notes if notes else ():
        print(printable(f"note: {path}: {note}"), file=sys.stderr)
    return evaluation


def resolvable_rates(labels: Any) -> dict[str, Any]:
    """Return rates for an evaluation if there are too few negative pairs for the default ones; else nothing."""
    import numpy as np

    _, sizes = np.unique(labels, return_counts=True)
    return rates_for(int((sizes * (len(labels) - sizes)).sum()) // 2)


def rates_for(negatives: int) -> dict[str, Any]:
    """Return rates for an evaluation with this many negative pairs, if the default ones need more; else nothing."""
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
