"""The commands that check whether a card still holds, and that keep canaries for it."""

import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from isomargin.cli.common import check_writable, writing
from isomargin.cli.galleries import GalleryLabels, GalleryOptions, open_class_thresholds, read_enrolled
from isomargin.cli.opening import EmbeddingsKey, EqualizerFile, ReadOptions, kind_of, open_card, open_equalizer
from isomargin.core.errors import InputError, MissingLabelsError
from isomargin.core.text import printable
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.thresholds.canaries import CanaryComparison
    from isomargin.thresholds.card import ThresholdCard

AGAINST = {"either": "either", "same": "same_classes", "new": "new_classes"}
CardFile = Annotated[Path, typer.Argument(help="The card that `isomargin threshold --output` wrote.")]


def check(
    card: CardFile,
    file: Annotated[
        Path,
        typer.Argument(parser=as_path, help="New embeddings, with or without labels: a sample of production."),
    ],
    canaries: Annotated[
        Path | None,
        typer.Option(
            parser=as_path,
            help="The items of the canaries, embedded again: tells a changed model from new data.",
        ),
    ] = None,
    kept_canaries: Annotated[
        Path | None,
        typer.Option(help="The file that `isomargin canaries` wrote. By default CARD.canaries.npz beside the card."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="How far from one the cosine of an unchanged canary may be.", show_default="0.001"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The name of the model in use: it must be that of the card.")
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            help="What new items should be: same (other items of the card's classes, in the same mix), new (items of "
            "new classes of the same kind), or either."
        ),
    ] = "either",
    classes: Annotated[
        int | None,
        typer.Option(help="Number of classes among the new items, if they are new. By default as many as the card's."),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of a false alarm.")] = 0.05,
    labels: Annotated[
        Path | None, typer.Option(help="File of labels, if the file of embeddings has none: .npy or .txt.")
    ] = None,
    unlabelled: Annotated[bool, typer.Option("--unlabelled", help="Leave the labels of the file aside.")] = False,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: Annotated[
        str | None, typer.Option(help="Name of the labels in the file. By default labels, if there are any.")
    ] = None,
    equalizer: EqualizerFile = None,
    gallery: Annotated[
        Path | None,
        typer.Option(
            parser=as_path,
            help="File of enrolled items with labels, for the card of a gallery: the new embeddings are probes.",
        ),
    ] = None,
    gallery_labels: GalleryLabels = None,
    class_thresholds: Annotated[
        Path | None, typer.Option(help="The class thresholds of the card's gallery, if the card was made with them.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="What a probe is compared with: it must be what the card says, the default.")
    ] = None,
    sides: Annotated[
        str | None, typer.Option(help="Where the equalizer is applied: it must be what the card says, the default.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="The margin between two classes: it must be the card's, the default.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Number of bootstrap resamples of the classes, with labels.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check whether a card still holds for new data. Exit code 0: it holds; 1: it does not; 2: bad input.

    Without labels, the distances of random pairs, or of probes and the templates of a gallery, are compared with those
    of the card's own set. With labels, the realised error rates decide.
    """
    from isomargin.thresholds.checking import Against, check_card

    if against not in AGAINST:
        raise InputError(f"--against is {against!r}: one of {', '.join(AGAINST)} is needed")
    if unlabelled and (labels is not None or labels_key is not None):
        raise InputError("--unlabelled leaves labels aside: leave out --labels and --labels-key")
    if canaries is None and (kept_canaries is not None or tolerance is not None):
        raise InputError("--kept-canaries and --tolerance belong to --canaries: give the canaries embedded again")
    opened = the_card(card)
    check_gallery_options(opened, gallery, gallery_labels, {"template": template, "sides": sides, "margin": margin})
    equalizes = None if equalizer is None else open_equalizer(equalizer)
    enrolled = read_enrolled(
        ReadOptions(None, embeddings_key, labels_key or "labels"), GalleryOptions(gallery, gallery_labels)
    )
    vectors, its_labels, ids = read_new(file, embeddings_key, labels_key, labels, unlabelled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        moved = None
        if canaries is not None:
            kept = kept_canaries or beside(card)
            moved = compare_canaries(opened, kept, canaries, embeddings_key, tolerance, equalizes)
        result = check_card(
            opened,
            vectors,
            its_labels,
            gallery=enrolled,
            canaries=moved,
            model=model,
            against=cast(Against, AGAINST[against]),
            classes=classes,
            level=level,
            equalizer=equalizes,
            class_thresholds=open_class_thresholds(class_thresholds),
            ids=ids if equalizes is not None and comparable(equalizes, ids) else None,
            draws=draws,
            seed=seed,
        )
    for warning in caught:
        print(printable(f"note: {warning.message}"), file=sys.stderr)
    print(json.dumps(result.as_values(), allow_nan=False, indent=1) if as_json else result.summary())
    raise typer.Exit(0 if result.holds else 1)


def canaries(
    file: Annotated[Path, typer.Argument(parser=as_path, help="The embeddings that the card was made from.")],
    card: Annotated[Path, typer.Option(help="The card that `isomargin threshold --output` wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The .npz file to write. By default CARD.canaries.npz beside the card."),
    ] = None,
    items: Annotated[int, typer.Option(help="Number of canaries.")] = 300,
    embeddings_key: EmbeddingsKey = "embeddings",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice.")] = 0,
) -> None:
    """Keep the embeddings of a few hundred items beside a card, to embed the same items again later.

    `isomargin check --canaries` then tells a changed model from changed data.
    """
    from isomargin.thresholds.canaries import Canaries

    place = beside(card) if output is None else output
    check_writable(place, ".npz")
    if place.resolve() == file.resolve():
        raise InputError(f"{place} is what the canaries are drawn from: choose another name for --output")
    opened = the_card(card)
    vectors, _, ids = read_new(file, embeddings_key, None, None, True)
    chosen = Canaries.choose(opened, vectors, ids, items, seed)
    with writing(place):
        chosen.save(place)
    kind = "by their ids" if ids is not None else "by the numbers of their rows, because the file has no ids"
    needed = needed_options(opened)
    print(f"{len(chosen.ids):,} canaries written to {place}, named {kind}")
    print(
        f"Later: embed the same items again, save them with their ids, and run\n"
        f"  isomargin check {card} NEW.npz{needed} --canaries AGAIN.npz"
    )


def snippet(
    card: CardFile,
    engine: Annotated[
        str, typer.Argument(help="The search engine: faiss, qdrant, lancedb, chroma, pgvector, milvus or redis.")
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            help="How it compares: cosine, inner_product or l2.", show_default="cosine; inner_product for faiss"
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The collection, table or index that is searched.")] = "items",
    equalizer: Annotated[
        str | None,
        typer.Option(
            help="The saved equalizer, for the card of equalized similarities.", show_default="equalizer.json"
        ),
    ] = None,
) -> None:
    """Print the few lines of Python that apply a card's threshold in a search engine, on the engine's own scale."""
    print(the_card(card).snippet(engine, metric=metric, name=name, equalizer=equalizer), end="")


def needed_options(card: "ThresholdCard") -> str:
    """Return the options that a check of this card needs, with names in place of files."""
    from isomargin.thresholds.same_shifts import parts_of

    parts = parts_of(card.equalizer)
    needed = {
        " --gallery GALLERY.npz": card.comparison == "gallery",
        " --equalizer EQUALIZER.json": "equalizer" in parts,
        " --class-thresholds THRESHOLDS.json": "class_thresholds" in parts,
    }
    return "".join(option for option, wanted in needed.items() if wanted)


def beside(card: Path) -> Path:
    """Return where the canaries of a card lie."""
    return card.with_suffix(".canaries.npz")


def the_card(path: Path) -> "ThresholdCard":
    """Read a card, and refuse anything else."""
    found = open_card(path)
    if found is None:
        raise InputError(
            f"{path} is not a threshold card: give the .json file that `isomargin threshold --output` wrote"
        )
    return found


def check_gallery_options(
    card: "ThresholdCard", gallery: Path | None, labels: Path | None, rule: dict[str, str | float | None]
) -> None:
    """Refuse a card of another comparison, and another way to compare probes with the gallery than the card's."""
    from isomargin.thresholds.checking import check_comparison

    check_comparison(card, gallery is not None)
    for name, given in {"gallery-labels": labels, **rule}.items():
        if given is not None and gallery is None:
            raise InputError(f"--{name} concerns a gallery: give --gallery, or leave it out")
    for name, given in rule.items():
        known = (card.gallery or {}).get(name)
        if given is not None and given != known:
            raise InputError(
                f"--{name} is {given}, but the card was measured with {known}: leave it out, or make another card with "
                f"`isomargin threshold PROBES --gallery GALLERY --{name} {given} --output card.json`"
            )


def read_new(
    path: Path, embeddings_key: str, labels_key: str | None, labels: Path | None, unlabelled: bool
) -> tuple[Any, Any, Any]:
    """Read embeddings with their ids, and their labels if the file has them; None stands for what it does not have."""
    from isomargin.cli.opening import open_embeddings
    from isomargin.io.formats import read_vectors

    if kind_of(path) not in ("embeddings", "run"):
        raise InputError(f"{path} contains no embeddings: give a file of embeddings, or the folder of a run")
    options = ReadOptions(labels, embeddings_key, labels_key or "labels")
    if path.is_dir() or not unlabelled:
        try:
            found = open_embeddings(path, options)
        except MissingLabelsError:
            if labels_key is not None:
                raise
        else:
            return found.vectors, None if unlabelled else found.labels, found.ids
    vectors, ids = read_vectors(path, embeddings_key)
    return vectors, None, ids


def comparable(equalizer: Any, ids: Any) -> bool:
    """Return whether an equalizer has ids of the same type to compare these with."""
    known = equalizer.ids_
    return known is not None and ids is not None and (known.dtype.kind == "U") == (ids.dtype.kind == "U")


def compare_canaries(
    card: "ThresholdCard",
    kept: Path,
    again: Path,
    embeddings_key: str,
    tolerance: float | None,
    equalizer: Any,
) -> "CanaryComparison":
    """Read the canaries of a card and those embedded again, and compare them."""
    from isomargin.thresholds.canaries import TOLERANCE, Canaries

    if not kept.is_file():
        raise InputError(f"{kept} does not exist: write it with `isomargin canaries`, or name it with --kept-canaries")
    canaries = Canaries.load(kept)
    vectors, _, ids = read_new(again, embeddings_key, None, None, True)
    try:
        return canaries.compare(card, vectors, ids, TOLERANCE if tolerance is None else tolerance, equalizer)
    except InputError as error:
        raise InputError(f"{again}: {error}") from error
