"""Options and reading for galleries: probes in one file, enrolled items in another."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomargin.cli.common import writing
from isomargin.cli.opening import (
    EmbeddingsKey,
    Labels,
    LabelsKey,
    ReadOptions,
    kind_of,
    open_embeddings,
    rates_for,
    read_options,
    without_warnings,
)
from isomargin.core.errors import InputError
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.equalize.class_thresholds import ClassThresholds
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.evaluation import Evaluation

GalleryFile = Annotated[
    Path | None,
    typer.Option(
        "--gallery",
        parser=as_path,
        help="File of enrolled items with labels; to evaluate, also a folder or quoted pattern of shards. The "
        "embeddings are then probes, which are compared with the templates of the enrolled classes; probes of other "
        "classes are unknown.",
    ),
]
GalleryLabels = Annotated[
    Path | None, typer.Option(help="File of labels of the gallery, if its file has none: .npy or .txt.")
]
TemplateOption = Annotated[
    str,
    typer.Option(
        "--template",
        help="With --gallery: what a probe is compared with. mean: the mean of a class's unit vectors, scaled to "
        "length one; max: the best of its items; each: every item by itself.",
    ),
]
LeaveOneOut = Annotated[
    bool,
    typer.Option(
        "--leave-one-out",
        help="The embeddings are a gallery, and each item a probe that is compared with its own class without itself.",
    ),
]
Sides = Annotated[
    str,
    typer.Option(
        help="With --gallery and --equalizer: both to equalize probes and templates (for verification), template for "
        "templates alone (for identification), probe for probes alone (for identification, beside --class-thresholds)."
    ),
]
ClassThresholdsFile = Annotated[
    Path | None,
    typer.Option(
        "--class-thresholds",
        help="With --gallery: class thresholds that `isomargin class-thresholds` wrote for this gallery. Similarities "
        "are measured minus the offset of the class.",
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        help="With --gallery: accept the first class only if its similarity exceeds that of the second by this much."
    ),
]
TargetFpir = Annotated[
    float,
    typer.Option(help="With --gallery: false positive identification rate at which FNIR is shown."),
]


@dataclass(frozen=True)
class GalleryOptions:
    """The gallery that probes are compared with, and how."""

    gallery: Path | None = None
    """File of enrolled items; None if one is left out."""
    labels: Path | None = None
    """Its file of labels, if it has none."""
    template: str = "mean"
    """What a probe is compared with."""
    leave_one_out: bool = False
    """Whether the embeddings are the gallery, and its items the probes."""
    sides: str = "both"
    """Where an equalizer's shifts are added."""
    margin: float = 0.0
    """By how much the first class must exceed the second."""
    class_thresholds: Path | None = None
    """File of class thresholds of the gallery."""
    prepared: Path | None = None
    """A folder of a gallery that was prepared with its probes, instead of the others."""

    @property
    def wanted(self) -> bool:
        """Whether there is a gallery at all."""
        return self.gallery is not None or self.leave_one_out or self.prepared is not None

    def check(self, changed: dict[str, bool]) -> None:
        """Refuse options that do not go together; ``changed`` says which options of pairs were given."""
        if not self.wanted:
            given = {
                "--gallery-labels": self.labels is not None,
                "--template": self.template != "mean",
                "--sides": self.sides != "both",
                "--margin": self.margin != 0,
                "--class-thresholds": self.class_thresholds is not None,
            }
            if unused := [name for name, value in given.items() if value]:
                raise InputError(f"{unused[0]} concerns a gallery: give --gallery or --leave-one-out, or leave it out")
            return
        given = {
            "--gallery": self.gallery is not None,
            "--leave-one-out": self.leave_one_out,
            "--template": self.template != "mean",
        }
        if self.prepared is not None and (unused := [name for name, value in given.items() if value]):
            raise InputError(
                f"{self.prepared} is a gallery that was prepared with its probes and templates: leave out {unused[0]}"
            )
        if self.gallery is not None and self.leave_one_out:
            raise InputError("--leave-one-out takes the enrolled items as probes: leave it out, or leave out --gallery")
        if given_names := [name for name, value in changed.items() if value]:
            option = given_names[0].replace("_", "-")
            raise InputError(f"--{option} concerns pairs of items and not a gallery: leave it out")

    def check_parts(self, given: dict[str, bool]) -> None:
        """Refuse what shifts similarities, if the comparisons are counted in parts; ``given`` says what else does."""
        shifting = {
            **given,
            "--class-thresholds": self.class_thresholds is not None,
            "--sides": self.sides != "both",
        }
        if found := [name for name, value in shifting.items() if value]:
            raise InputError(
                f"{found[0]} cannot be used with a gallery in parts (shards, --memory, --part or --ray), which count "
                "plain similarities: leave it out, or give files that fit into memory"
            )

    def words(self) -> list[str]:
        """Return these options as words of a command line."""
        words = [] if self.gallery is None else ["--gallery", str(self.gallery)]
        words += [] if self.labels is None else ["--gallery-labels", str(self.labels)]
        words += ["--leave-one-out"] if self.leave_one_out else []
        words += [] if self.class_thresholds is None else ["--class-thresholds", str(self.class_thresholds)]
        return words + ([] if self.template == "mean" else ["--template", self.template])


def read_enrolled(options: ReadOptions, gallery: GalleryOptions) -> "EmbeddingSet | None":
    """Read the file of enrolled items; None if one is left out."""
    if gallery.gallery is None:
        return None
    return open_embeddings(gallery.gallery, ReadOptions(gallery.labels, options.embeddings_key, options.labels_key))


def open_class_thresholds(path: Path | None) -> "ClassThresholds | None":
    """Read class thresholds from their file; None without one."""
    from isomargin.equalize.class_thresholds import ClassThresholds

    return None if path is None else ClassThresholds.load(path)


def evaluate_with_gallery(
    embeddings: "EmbeddingSet",
    options: ReadOptions,
    gallery: GalleryOptions,
    enrolled: "EmbeddingSet | None" = None,
    **settings: Any,
) -> "Evaluation":
    """Evaluate embeddings as probes of a gallery, or as a gallery whose items are left out one at a time.

    ``enrolled`` is the gallery, if it was read already.
    """
    from isomargin.measure.gallery import evaluate_gallery

    how: dict[str, Any] = {
        "template": gallery.template,
        "equalizer": options.equalizer,
        "sides": gallery.sides,
        "class_thresholds": open_class_thresholds(gallery.class_thresholds),
        "margin": gallery.margin,
        **settings,
    }
    if gallery.leave_one_out:
        return without_warnings(evaluate_gallery, embeddings.vectors, embeddings.labels, leave_one_out=True, **how)
    enrolled = read_enrolled(options, gallery) if enrolled is None else enrolled
    assert enrolled is not None
    return without_warnings(
        evaluate_gallery, enrolled.vectors, enrolled.labels, embeddings.vectors, embeddings.labels, **how
    )


def open_gallery(
    path: Path, options: ReadOptions, gallery: GalleryOptions
) -> "tuple[Evaluation, EmbeddingSet, EmbeddingSet | None]":
    """Evaluate a file of probes with a gallery, with the default settings, or at larger rates if probes are few.

    Returns the evaluation, the probes, and the enrolled items; None if one is left out.
    """
    if kind_of(path) not in ("embeddings", "run"):
        raise InputError(f"{path} has no embeddings to compare with a gallery: give a file of embeddings")
    probes, enrolled = open_embeddings(path, options), read_enrolled(options, gallery)
    items = probes if enrolled is None else enrolled
    rates = rates_for(len(probes.labels) * (len(set(items.labels.tolist())) - 1))
    return evaluate_with_gallery(probes, options, gallery, enrolled, **rates), probes, enrolled


def templates(
    file: Annotated[Path, typer.Argument(parser=as_path, help="File of enrolled items with labels.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write: .npz, .parquet, .pt or .safetensors.")
    ] = Path("templates.npz"),
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
) -> None:
    """Write one template per class of a gallery: the mean of its unit vectors, scaled to length one.

    These are the vectors that `evaluate --gallery` compares probes with, to put into an index or to equalize
    (`isomargin equalize templates.npz --unlabelled`).
    """
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.pairs.gallery_inputs import make_templates

    (options,) = read_options([file], labels, embeddings_key, labels_key)
    items = open_embeddings(file, options)
    if output.resolve() == file.resolve():
        raise InputError(f"{output} is the gallery: choose another name for --output")
    vectors, names = make_templates(items.vectors, items.labels)
    with writing(output):
        EmbeddingSet(vectors, names, names).save(output)
    print(f"{len(names):,} templates of {len(items.labels):,} items, written to {output}")
