"""The command ``class-thresholds``, which finds a threshold for each enrolled class of a gallery."""

import json
import shlex
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from isomargin.cli.common import check_writable, print_renderable, writing
from isomargin.cli.equalizing import print_written
from isomargin.cli.opening import EmbeddingsKey, Labels, LabelsKey, kind_of, open_embeddings, read_options
from isomargin.core.errors import InputError
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.equalize.class_thresholds import ClassThresholds

NEXT = """\
Next, with probes of enrolled and of unknown classes:
  isomargin evaluate PROBES --gallery {file}{template} --class-thresholds {output}
docs/class-thresholds.md says how to serve them in a vector engine."""
KEEP = """\
Next, with probes of enrolled and of unknown classes:
  isomargin evaluate PROBES --gallery {file}{template}
The file was written all the same: it has the common threshold for every class."""


def class_thresholds(
    file: Annotated[
        Path,
        typer.Argument(parser=as_path, help="File of enrolled items and labels, or a run's folder: the gallery."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The .json file to write; a .safetensors file with the templates goes beside it."
        ),
    ] = Path("class-thresholds.json"),
    template: Annotated[
        str,
        typer.Option(
            help="What a probe is compared with. mean: the mean of a class's unit vectors, scaled to length one; max "
            "or each: the best of its items."
        ),
    ] = "mean",
    fpir: Annotated[float, typer.Option(help="The false positive identification rate to choose at.")] = 0.05,
    unknowns: Annotated[
        str,
        typer.Option(
            help="Which unknown probes to expect. random: of classes like the enrolled ones; related: of another kind, "
            "such as requests out of scope; both: either."
        ),
    ] = "both",
    confidence: Annotated[
        float, typer.Option(help="Confidence level of the interval of the gain, which must lie above 0.")
    ] = 0.8,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the division of classes into folds.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Find a threshold for each enrolled class, so that unknown probes are rejected at a lower cost.

    Everything is computed from the gallery. Whether it helps is judged with whole classes left out as unknown probes;
    if it does not, every class keeps the common threshold.
    """
    from isomargin.equalize import saving
    from isomargin.equalize.class_thresholds import ClassThresholds

    check_writable(output, ".json")
    check_writable(saving.beside(output), ".safetensors")
    for source in (file, *(labels or ())):
        kind_of(source)  # refuses a path that does not exist
        if source.resolve() in (output.resolve(), saving.beside(output).resolve()):
            raise InputError(f"{source} would be replaced by the class thresholds: choose another name for --output")
    saving.check_place(output, "class thresholds")
    (options,) = read_options([file], labels, embeddings_key, labels_key)
    gallery = open_embeddings(file, options)
    settings = {"fpir": fpir, "template": template, "unknowns": unknowns, "confidence": confidence, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a refusal, which is printed
        found = ClassThresholds(**cast(Any, settings)).fit(gallery.vectors, gallery.labels)
    with writing(output):
        found.save(output)
    if as_json:
        print(json.dumps(as_values(found), allow_nan=False, indent=1))
    else:
        print_thresholds(found, options.words(file), output)
    print_written(output)


def as_values(found: "ClassThresholds") -> dict[str, Any]:
    """Return the settings, the verdict and the thresholds as JSON values."""
    verdict = found.verdict_
    judged = (
        None if verdict is None else {**asdict(verdict), "worth_it": verdict.worth_it, "sentence": verdict.sentence}
    )
    limits = dict(zip(map(str, found.classes_.tolist()), found.thresholds_.tolist(), strict=True))
    return {
        "class_thresholds": found.record(),
        "verdict": judged,
        "thresholds": limits,
        "candidates": found.scores_.to_dict("records"),
    }


def print_thresholds(found: "ClassThresholds", file: str, output: Path) -> None:
    """Print the verdict, the range of the thresholds, and what to do next; ``file`` is what the gallery is read by."""
    from rich.text import Text

    from isomargin.core.text import shortened

    lines = [] if found.verdict_ is None else [found.verdict_.sentence]
    if found.offsets_.any():
        low, high = int(found.offsets_.argmin()), int(found.offsets_.argmax())
        ends = [f"{found.thresholds_[i]:.3f} ({shortened(str(found.classes_[i]))})" for i in (low, high)]
        lines.append(
            f"A probe is accepted from a similarity of {ends[0]} to {ends[1]}, depending on the class; the common "
            f"threshold is {found.threshold_:.3f}."
        )
        lines.append(f"Chosen: {found.mix_.words}.")
    else:
        lines.append(f"Every class keeps the common threshold, {found.threshold_:.3f}.")
    template = "" if found.template == "mean" else f" --template {found.template}"
    next_step = NEXT if found.offsets_.any() else KEEP
    lines.append("\n" + next_step.format(file=file, output=shlex.quote(str(output)), template=template))
    print_renderable(*map(Text, lines))
