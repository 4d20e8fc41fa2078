"""The command that writes the page to look at."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from isomargin.cli.common import check_writable, writing
from isomargin.cli.opening import EmbeddingsKey, Labels, LabelsKey, open_source, read_options, short_names
from isomargin.core.errors import InputError
from isomargin.training.run_folder import RunFolder


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="A run's folder, an evaluation.json or a file of embeddings."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The .html file to write; report.html unless given, within the run if it is one."
        ),
    ] = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    title: Annotated[str | None, typer.Option(help="Of the page; the runs' names unless given.")] = None,
    intervals: Annotated[bool, typer.Option(help="Within what bounds the scores may be believed.")] = True,
    confusions: Annotated[bool, typer.Option(help="Which classes are taken for the worst ones.")] = True,
    thumbnails: Annotated[
        int, typer.Option(min=0, help="Put small images of so many of the worst classes into the page.")
    ] = 0,
    images: Annotated[Path | None, typer.Option(help="Where the images are, if they have moved.")] = None,
) -> None:
    """Write one page to look at: curves, worst classes, and a threshold to drag. It opens offline and can be mailed.

    With several runs it holds them side by side, the first being what others are held against.
    """
    from isomargin.report.sources import report_on

    if images is not None and not thumbnails:
        raise InputError("--images says where pictures are, and none were asked for: give --thumbnails too")
    if thumbnails and not confusions:
        raise InputError("--thumbnails shows confusions, and --no-confusions leaves them out: give one of them")
    place = output or (RunFolder(runs[0]).report if len(runs) == 1 and runs[0].is_dir() else Path("report.html"))
    check_writable(place, ".html")
    options = read_options(runs, labels, embeddings_key, labels_key)
    named = zip(short_names(runs).items(), options, strict=True)
    sources = {name: open_source(path, how) for (name, path), how in named}
    with writing(place):
        report_on(
            sources,
            place,
            title=title,
            intervals=intervals,
            confusions=confusions,
            thumbnails=thumbnails,
            images=images,
        )
    tell_report(place)


def tell_report(path: Path) -> None:
    """Say where the page is, and how large."""
    print(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser", file=sys.stderr)
