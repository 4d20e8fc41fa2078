"""The command ``adapt``, which fits a linear adapter and says whether to use it."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isomargin.cli.common import print_renderable, writing
from isomargin.cli.opening import EmbeddingsKey, Labels, LabelsKey, open_embeddings, read_options
from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.io.stores.address import as_path

if TYPE_CHECKING:
    from isomargin.training.adapt_result import AdaptResult


def adapt(
    file: Annotated[
        Path,
        typer.Argument(
            parser=as_path,
            help="Embeddings and labels: a .npz, .npy, .parquet, .pt or .safetensors file, a run's folder, or the "
            "address of a store (docs/stores.md).",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write the adapter to, if it is recommended.")
    ] = Path("adapter"),
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    dimensions: Annotated[
        int | None, typer.Option(min=2, help="Dimensions of the adapted vectors. By default 64, 128 or 256, as chosen.")
    ] = None,
    refit: Annotated[
        bool, typer.Option(help="Fit the adapter on all classes in the end; otherwise keep the one that was judged.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split of the classes and of the training.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Fit a linear layer to frozen embeddings, and compare it with using them as they are.

    Trains on 60% of the classes, chooses settings on 20%, and compares the raw embeddings, an equalizer, the adapter
    and both on the other 20%. The adapter is written only if it is recommended.
    """
    from isomargin.training.adapt import DIMENSIONS, fit_adapter

    check_folder(output)
    (options,) = read_options([file], labels, embeddings_key, labels_key)
    embeddings = open_embeddings(file, options)
    sizes = DIMENSIONS if dimensions is None else (dimensions,)
    result = fit_adapter(embeddings.vectors, embeddings.labels, dimensions=sizes, seed=seed, refit=refit)
    for note in result.notes:
        print(printable(f"note: {note}"), file=sys.stderr)
    written = result.recommended.startswith("adapter")
    if written:
        with writing(output):
            result.adapter.save(output)
    if as_json:
        print(json.dumps({**result.as_values(), "written_to": str(output) if written else None}, indent=1))
        return
    from isomargin.cli.tables import candidates_table

    print_renderable(candidates_table(result))
    print(f"\n{result.recommendation}")
    print(next_step(result, output))


def check_folder(output: Path) -> None:
    """Refuse a folder that cannot be written, before anything is trained; a new one is made only in the end."""
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file: give a folder for the adapter with --output")
    there = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "cannot be written" if there.is_dir() else "is a file"
        raise InputError(f"{output} cannot be made, because {there} {reason}: choose another folder for --output")


def next_step(result: "AdaptResult", output: Path) -> str:
    """Return what to do with the recommendation."""
    from isomargin.training.adapt_result import ALL_CLASSES

    name = printable(str(output))
    if result.recommended == "raw":
        return f"Nothing was written to {name}."
    if result.recommended == "equalizer":
        return f"Next: im.Equalizer().fit(index), with the vectors that you search. Nothing was written to {name}."
    lines = [f"Written to {name}. Next: adapted = im.Adapter.load({name!r}).transform(embeddings)"]
    if result.adapter.equalizer is not None:
        lines.append(
            "and im.Equalizer().fit(adapted), with the adapted vectors that you search. If these are the rows of this "
            "file, the folder has it already."
        )
    if result.adapter.record["trained_on"] == ALL_CLASSES:
        lines.append(
            "The adapter in the folder was fitted on all classes, which leaves none to judge it on: the scores are "
            "those of the same settings without the classes of the table."
        )
    return "\n".join(lines)
