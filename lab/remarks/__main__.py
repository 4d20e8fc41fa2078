"""``python -m lab.remarks NAME``: run one of the experiments, or continue it, and write results/remarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from isomargin.cli.running import run_app
from isomargin.core.errors import InputError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
NAMES = ("margins", "label-noise", "shift", "floor")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help=f"Name of the experiment: {', '.join(NAMES)}.", show_default=False)],
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FILE", help="Frozen features with labels, for label-noise and shift; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, help="Number of seeds of label-noise and shift.")] = 5,
    output: Annotated[Path, typer.Option(help="Folder of what has been computed.")] = Path("runs/remarks"),
    results: Annotated[Path, typer.Option(help="Folder of all results.")] = Path("results"),
) -> None:
    """Examine one of the paper's remarks. The same command again continues."""
    if name not in NAMES:
        raise InputError(f"{name!r} is not one of the experiments: {', '.join(NAMES)}")
    if name == "margins":
        from lab.remarks import margin_grids

        margin_grids.run(results)
        return
    if name == "floor":
        from lab.remarks import floor

        floor.run(output, results / "remarks")
        return
    import torch

    from lab.remarks import label_noise, shift

    torch.set_num_threads(1)
    files = read_files(name, data or [])
    (label_noise if name == "label-noise" else shift).run(files, seeds, output, results / "remarks")


def read_files(name: str, entries: list[str]) -> dict[str, Path]:
    """Return the files of features by the names of the data sets."""
    found = {}
    for entry in entries:
        data, _, file = entry.partition("=")
        if not file:
            raise InputError(f"--data is {entry!r}: a name and a file are needed, such as cub=cub.npz")
        found[data] = Path(file)
    if not found:
        raise InputError(f"{name} needs features: give --data NAME=FILE, such as --data cub=cub.npz")
    return found


if __name__ == "__main__":
    run_app(app, "lab.remarks", sys.argv[1:] or ["--help"])
