"""Fitting an equalizer in parts: what ``equalize`` and ``merge`` do with sets larger than memory."""

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomargin.cli.common import writing
from isomargin.cli.opening import ReadOptions
from isomargin.cli.parts import MEMORY, PartOptions
from isomargin.cli.running import ending_cleanly, telling_what_ray_repeats
from isomargin.core.errors import InputError
from isomargin.core.progress import progress_bar
from isomargin.core.text import printable

if TYPE_CHECKING:
    from isomargin.equalize.equalizer import Equalizer

NOT_JUDGED = (
    "In parts nothing is chosen or judged: let isomargin equalize choose the settings on a sample of the classes, and "
    "evaluate with and without --equalizer before you rely on it."
)


@ending_cleanly()
def equalize_in_parts(
    options: PartOptions, reading: ReadOptions, output: Path, threads: int | None, settings: dict[str, Any]
) -> "Equalizer | None":
    """Fit an equalizer to shards and write it; or find the neighbours of one part, write them, and return None."""
    from isomargin.equalize.parts import checked_equalizer, checked_target, fit_equalizer

    checked_equalizer(settings)
    if options.part is not None:
        find_one(options, reading, output, threads, settings)
        return None
    checked_target(output)
    with (
        notes(),
        writing(output if options.work is None else options.work),
        telling_what_ray_repeats() if options.ray is not None else nullcontext(),
    ):
        return fit_equalizer(
            options.source,
            output,
            memory=options.memory or MEMORY,
            work=options.work,
            embeddings_key=reading.embeddings_key,
            labels_key=reading.labels_key,
            threads=threads,
            progress="auto",
            cluster=options.ray,
            parts=options.parts,
            **settings,
        )


def find_one(
    options: PartOptions, reading: ReadOptions, output: Path, threads: int | None, settings: dict[str, Any]
) -> None:
    """Find the neighbours of one part and write them to the folder ``output``, unless they are there already."""
    from isomargin.equalize.parts import checked_equalizer
    from isomargin.measure.pairs.neighbour_files import already_found, name_of, save_found
    from isomargin.measure.pairs.neighbour_parts import find_neighbours, plan_neighbours
    from isomargin.measure.parts import prepare_once

    number, parts = options.numbers()
    if output.suffix == ".json" or (output.exists() and not output.is_dir()):
        raise InputError(f"{output} is not a folder: with --part, --output is the folder of the parts")
    memory, chosen = options.memory or MEMORY, checked_equalizer(settings).settings()
    with writing(output):
        keys = {"embeddings_key": reading.embeddings_key, "labels_key": reading.labels_key}
        prepared = prepare_once(options.source, output, memory, **keys)
        sizes = {name: chosen[name] for name in ("neighbours", "skip")}
        plan = plan_neighbours(prepared, parts, memory=memory, **sizes)
        output.mkdir(parents=True, exist_ok=True)
        if already_found(output, plan, chosen, number):
            print(
                f"note: {output / name_of(plan, number)} is there already and was not searched again", file=sys.stderr
            )
            return
        begin = time.monotonic()
        with progress_bar(f"finding neighbours, part {number} of {parts}") as report:
            found = find_neighbours(plan, number, threads=threads, progress=report)
        path = save_found(output, plan, chosen, found)
    print(f"part {number} of {parts}: {path}, found in {time.monotonic() - begin:.1f} s")


def has_neighbours(folder: Path) -> bool:
    """Whether a folder has the neighbours that parts found; one with parts of an evaluation as well is refused."""
    from isomargin.measure.pairs.neighbour_files import PATTERN

    if not any(folder.glob(PATTERN)):
        return False
    if any(folder.glob("part-*.npz")):
        raise InputError(f"{folder} has parts of an evaluation and of an equalizer: move one of them to another folder")
    return True


def merge_to_equalizer(folder: Path, output: Path | None, prepared: Path | None) -> "Equalizer":
    """Merge the neighbours that all parts found into an equalizer, and write it."""
    from isomargin.equalize.parts import merge_neighbour_files

    if output is None:
        raise InputError(f"{folder} has the neighbours for an equalizer: say where to write it with --output")
    with notes(), writing(output):
        return merge_neighbour_files(folder, output, prepared=prepared)


@contextmanager
def notes() -> Iterator[None]:
    """Print warnings in the block as notes on standard error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print(printable(f"note: {warning.message}"), file=sys.stderr)
