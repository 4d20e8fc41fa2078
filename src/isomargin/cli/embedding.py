"""The command ``embed``: with the model of a run, or with one that people use as it is."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from isomargin.cli.common import writing
from isomargin.cli.running import STOPPED
from isomargin.cli.training import Changes, SkipBadImages, Workers
from isomargin.core.errors import InputError
from isomargin.core.text import shortened

SHOWN = 5  # images that could not be decoded


def embed(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run; leave it out with --model.")] = None,
    changes: Changes = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:NAME",
            help="A model as it is: timm:NAME for images, st:NAME (sentence-transformers) for text, clip:NAME for "
            "either. A folder in which a model was saved can stand for its name.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="A folder of class folders to embed or, for a run of vectors, a file of embeddings; by default the "
            "data of the run. With --model any folder of images."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="With --model: texts to embed, one per line of a .txt file, or a .csv, .tsv or .parquet."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write: .npz, .npy, .parquet, .pt or .safetensors. With --model a folder for shards of "
            "parquet.",
            show_default="embeddings.npz, with --model embeddings",
        ),
    ] = None,
    part: Annotated[str, typer.Option(help="Of the data of the run: all, train or test.")] = "all",
    text_column: Annotated[str | None, typer.Option(help="Column of texts.", show_default="text")] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Column of labels.", show_default="label, if there is one")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of ids.", show_default="id, or the row")] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="For timm: lite (from its pip package) or a file.", show_default="those of the hub"),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="With --model: float16, float32, or auto for float16 where the device is a GPU.")
    ] = "auto",
    shard: Annotated[int, typer.Option(min=1, help="With --model: items per file.")] = 10_000,
    skip_bad_images: SkipBadImages = False,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Items to embed at a time.", show_default="256, with --model 64")
    ] = None,
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    workers: Workers = None,
) -> None:
    """Embed data with the model of a run or with one that people use, with labels and ids in the order of the data.

    `isomargin embed runs/cub-lite0 --images photos --output photos.npz`, then `isomargin evaluate photos.npz`.
    To embed another data set, change the recipe: `data.name=cub data.root=FOLDER`.

    `isomargin embed --model st:all-MiniLM-L6-v2 --text requests.tsv -o requests` writes shards into a folder; the same
    command again continues where it stopped.
    """
    if model is None:
        given = {
            "--text": text,
            "--text-column": text_column,
            "--label-column": label_column,
            "--id-column": id_column,
            "--weights": weights,
            "--skip-bad-images": skip_bad_images or None,
        }
        if unused := [name for name, value in given.items() if value is not None]:
            raise InputError(f"{unused[0]} belongs to --model, a model as it is: give one, or leave it out")
        if run is None:
            raise InputError("there is nothing to embed with: give the folder of a run, or --model")
        by_run(run, changes or [], images, part, output or Path("embeddings.npz"), batch or 256, device, workers)
        return
    if run is not None or part != "all":
        raise InputError("--model stands for a run: leave out the run, its changes and --part")
    if (images is None) == (text is None):
        raise InputError("--model embeds images or text: give one of --images and --text")
    columns = {"text_column": text_column, "label_column": label_column, "id_column": id_column}
    if text is None and (named := [name for name, value in columns.items() if value is not None]):
        raise InputError(f"--{named[0].replace('_', '-')} names a column of --text: leave it out")
    by_model(
        model,
        images,
        text,
        tuple(columns.values()),
        output or Path("embeddings"),
        {"weights": weights, "device": device, "precision": precision},
        {"batch": batch or 64, "shard": shard, "skip_bad": skip_bad_images, "workers": workers},
    )


def by_run(
    run: Path,
    changes: list[str],
    images: Path | None,
    part: str,
    output: Path,
    batch: int,
    device: str,
    workers: int | None,
) -> None:
    """Embed with the model of a run."""
    from isomargin.core.progress import progress_bar
    from isomargin.training.embed import embed_by_run

    with progress_bar("embedding") as report:
        embeddings = embed_by_run(run, changes, images, part, output, batch, device, workers, report)
    if embeddings.ids is not None and output.suffix == ".npy":
        print(f"note: {output} has no place for the items' ids: write another format to keep them", file=sys.stderr)
    print(f"{len(embeddings.labels):,} embeddings written to {output}", file=sys.stderr)


def by_model(
    model: str,
    images: Path | None,
    text: Path | None,
    columns: tuple[str | None, ...],
    output: Path,
    opening: dict[str, Any],
    how: dict[str, Any],
) -> None:
    """Embed with a model as it is, into shards; tell how to continue where it is interrupted."""
    from isomargin.core.extras import require
    from isomargin.core.progress import progress_bar

    require("torch")
    from isomargin.models.encoders import open_encoder
    from isomargin.training.embed import default_workers
    from isomargin.training.embed_items import list_images, list_texts
    from isomargin.training.embed_shards import embed_shards

    if images is not None:
        items = list_images(images)
    else:
        assert text is not None
        items = list_texts(text, *columns)
    encoder = open_encoder(model, items.what, **opening)
    how["workers"] = default_workers() if how["workers"] is None else how["workers"]
    try:
        with writing(output), progress_bar("embedding") as report:
            done = embed_shards(encoder, items, output, report=report, **how)
    except KeyboardInterrupt:
        print(f"\nstopped: the same command continues with the shards in {output}", file=sys.stderr)
        sys.exit(STOPPED)
    if done.left_out:
        names = ", ".join(shortened(name) for name in done.left_out[:SHOWN])
        print(f"note: {len(done.left_out):,} images could not be decoded, such as {names}", file=sys.stderr)
    kept = f", {done.resumed:,} of which were there already" if done.resumed else ""
    plural = "shard" if done.shards == 1 else "shards"
    print(f"{done.items:,} embeddings in {done.shards:,} {plural}{kept}, written to {output}", file=sys.stderr)
