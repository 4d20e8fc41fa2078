"""The command ``report``, which writes an HTML report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from isomargin.cli.common import check_writable, writing
from isomargin.cli.opening import (
    EmbeddingsKey,
    EqualizerFile,
    Labels,
    LabelsKey,
    NewClasses,
    open_source,
    read_options,
    short_names,
)
from isomargin.core.errors import InputError
from isomargin.io.stores.address import as_path
from isomargin.training.run_folder import RunFolder


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=as_path,
            metavar="RUN...",
            help="What to report on: the folder of a run, an evaluation.json, or a file of embeddings. With several, "
            "the report compares the others with the first.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The .html file to write. By default report.html in the run's folder if one run is given, else in the "
            "current folder.",
        ),
    ] = None,
    labels: Labels = None,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
    equalizer: EqualizerFile = None,
    new_classes: NewClasses = False,
    title: Annotated[str | None, typer.Option(help="Title of the report. By default the names of the runs.")] = None,
    intervals: Annotated[bool, typer.Option(help="Show confidence intervals of the scores.")] = True,
    confusions: Annotated[
        bool, typer.Option(help="Show which other classes the worst classes are confused with. Needs the embeddings.")
    ] = True,
    thumbnails: Annotated[
        int,
        typer.Option(min=0, help="Number of worst classes for which small images of confused items are shown."),
    ] = 0,
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images for --thumbnails, if they were moved since training.")
    ] = None,
) -> None:
    """Write an HTML report with curves, the worst classes, and a threshold that you can drag.

    The report is one file that opens offline and can be mailed. With several runs it shows them side by side and
    compares the others with the first.
    """
    from isomargin.report.sources import report_on

    if images is not None and not thumbnails:
        raise InputError("--images needs --thumbnails, the number of classes to show images of: give both, or neither")
    if thumbnails and not confusions:
        raise InputError("--thumbnails shows confusions, but --no-confusions leaves them out: give one of them")
    path = output or (RunFolder(runs[0]).report if len(runs) == 1 and runs[0].is_dir() else Path("report.html"))
    check_writable(path, ".html")
    options = read_options(runs, labels, embeddings_key, labels_key, equalizer, new_classes)
    named = zip(short_names(runs).items(), options, strict=True)
    sources = {name: open_source(run, run_options) for (name, run), run_options in named}
    with writing(path):
        report_on(
            sources,
            path,
            title=title,
            intervals=intervals,
            confusions=confusions,
            thumbnails=thumbnails,
            images=images,
        )
    tell_report(path)


def tell_report(path: Path) -> None:
    """Print where the report is, and how large it is."""
    print(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser", file=sys.stderr)
