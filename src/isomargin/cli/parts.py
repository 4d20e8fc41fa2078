"""Evaluating in parts: the options of ``evaluate`` for sets larger than memory, and the commands around them."""

import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isomargin.cli.common import check_writable, show, writing
from isomargin.cli.galleries import GalleryOptions, LeaveOneOut, TemplateOption
from isomargin.cli.opening import EmbeddingsKey, LabelsKey, ReadOptions, open_equalizer
from isomargin.cli.running import ending_cleanly, telling_what_ray_repeats
from isomargin.core.errors import InputError
from isomargin.core.memory import read_size
from isomargin.core.progress import progress_bar
from isomargin.io.stores.address import StoreAddress
from isomargin.training.run_folder import RunFolder

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.pairs.prepare import Prepared
    from isomargin.measure.pairs.row_shifts import RowShifts

MEMORY = "4GB"

Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help=f"Count in parts that need at most this memory, such as {MEMORY}, for sets larger than memory. Folders "
        f"and patterns of shards are always counted in this way, with {MEMORY} by default.",
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="NUMBER/PARTS",
        help="Count one part of the pairs only, such as 3/64, and write it to the folder --output; `isomargin merge` "
        "merges all parts.",
    ),
]
GallerySource = Annotated[
    Path | None,
    typer.Option(
        "--gallery", help="The enrolled items of a gallery, in the same forms. The embeddings are its probes."
    ),
]
Work = Annotated[
    Path | None,
    typer.Option(
        "--work",
        help="Create this folder for the sorted embeddings of shards. By default a temporary one is used. With --ray, "
        "finished parts are kept there too, and the same command goes on from them after a failure.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="auto|ADDRESS|local",
        help="Count the parts on a Ray cluster: the one that this machine belongs to, the one at an address, or one "
        "that is started on this machine. --memory and --threads are then those of each part, by default 4GB and 1.",
    ),
]
Parts = Annotated[
    int | None,
    typer.Option(
        "--parts",
        min=1,
        help="Number of parts, with --ray. By default 3 for each that can be counted at a time.",
    ),
]


@dataclass(frozen=True)
class PartOptions:
    """The options for counting in parts."""

    source: Path | None
    """The embeddings."""
    memory: str | None
    """Memory to use."""
    part: str | None
    """The part to count."""
    work: Path | None
    """Where sorted embeddings go, and finished parts with a cluster."""
    ray: str | None = None
    """The Ray cluster."""
    parts: int | None = None
    """Number of parts on it."""
    equalizer: Path | None = None
    """What equalizes similarities."""
    gallery: Path | None = None
    """The gallery, if the embeddings are probes."""

    @property
    def wanted(self) -> bool:
        """Whether to count in parts: an option asks for it, or the source has shards."""
        options = (self.memory, self.part, self.work, self.ray, self.parts)
        asked = any(option is not None for option in options)
        return asked or any(source is not None and has_shards(source) for source in (self.source, self.gallery))

    def check(self, given: Mapping[str, bool]) -> None:
        """Refuse options that cannot be used with parts; ``given`` says which of them were given."""
        if self.source is None:
            raise InputError(
                "--memory, --part, --work, --ray and --parts need embeddings: give a folder, a pattern or a file"
            )
        for source in (self.source, self.gallery):
            if isinstance(source, StoreAddress):
                raise InputError(
                    f"{source} is a vector store, not read in parts: leave out shards, --memory, --part and --ray"
                )
        if self.parts is not None and self.ray is None:
            raise InputError("--parts is for --ray: give a cluster, or count parts one by one with --part")
        if self.part is not None and self.ray is not None:
            raise InputError("--part counts one part here and --ray all parts on a cluster: give one of the two")
        read_size(self.memory or MEMORY, "--memory")
        reasons = {
            "--labels": "put the labels of X.npy beside it, in X.labels.npy or X.labels.txt",
            "--gallery-labels": "put the labels of X.npy beside it, in X.labels.npy or X.labels.txt",
        }
        for option in (option for option, is_given in given.items() if is_given):
            reason = reasons.get(option, "leave it out, or give one file that fits into memory")
            raise InputError(f"{option} cannot be used with shards, --memory, --part or --ray: {reason}")

    def check_part(self, given: Mapping[str, bool]) -> None:
        """Refuse what a single part cannot give."""
        if self.part is None:
            return
        self.numbers()
        if self.work is not None:
            raise InputError("--work cannot be used with --part: prepare the embeddings with isomargin prepare")
        for option in (option for option, is_given in given.items() if is_given):
            raise InputError(f"{option} needs all parts: give it to isomargin merge, or to a command on its result")

    def numbers(self) -> tuple[int, int]:
        """Return the number of the part and of all parts."""
        found = re.fullmatch(r"([0-9]+)/([0-9]+)", self.part or "")
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise InputError(f"--part is {self.part!r}: a part of all parts is needed, such as 3/64, counted from 1")
        return int(found[1]), int(found[2])


def has_shards(source: Path) -> bool:
    """Whether a path is a pattern, a folder of prepared embeddings, or a folder of shards that is not a run's."""
    from isomargin.io.shards import is_pattern, shards_in
    from isomargin.measure.pairs.gallery_prepare import is_prepared_gallery
    from isomargin.measure.pairs.prepare import is_prepared

    if isinstance(source, StoreAddress):
        return False  # its question mark is not one of a pattern
    if is_pattern(str(source)):
        return True
    if not source.is_dir() or RunFolder(source).recipe.is_file():
        return False
    return is_prepared(source) or is_prepared_gallery(source) or bool(shards_in(source))


@ending_cleanly()
def evaluate_in_parts(
    options: PartOptions, reading: ReadOptions, output: Path | None, threads: int | None, settings: dict[str, Any]
) -> "Evaluation | None":
    """Evaluate shards in this process; or count one part, write it, and return None."""
    from isomargin.measure.parts import evaluate_shards

    memory = options.memory or MEMORY
    if options.part is not None:
        count_one(options, reading, output, threads, settings)
        return None
    keys = {"embeddings_key": reading.embeddings_key, "labels_key": reading.labels_key}
    with (
        writing(options.work) if options.work is not None else nullcontext(),
        telling_what_ray_repeats() if options.ray is not None else nullcontext(),
    ):
        return evaluate_shards(
            options.source,
            memory=memory,
            work=options.work,
            threads=threads,
            progress="auto",
            cluster=options.ray,
            parts=options.parts,
            equalizer=None if options.equalizer is None else open_equalizer(options.equalizer, mapped=True),
            **keys,
            **settings,
        )


def count_one(
    options: PartOptions, reading: ReadOptions, output: Path | None, threads: int | None, settings: dict[str, Any]
) -> None:
    """Count one part and write it to the folder ``output``; a part that is already there is left as it is."""
    from isomargin.equalize.saving import read_values
    from isomargin.measure.evaluate import check_rates
    from isomargin.measure.pairs.part_files import already_counted, name_of, save_part
    from isomargin.measure.pairs.part_plan import plan_for
    from isomargin.measure.pairs.parts import count_part
    from isomargin.measure.parts import part_settings, prepare_once

    number, parts = options.numbers()
    output = folder_of_parts(output)
    checked = part_settings(**settings)
    memory = options.memory or MEMORY
    digest = "" if options.equalizer is None else read_values(options.equalizer, "equalizer")["digest"]
    with writing(output):
        keys = {"embeddings_key": reading.embeddings_key, "labels_key": reading.labels_key}
        prepared = prepare_once(options.source, output, memory, **keys)
        shifts = None if options.equalizer is None else shifts_of_parts(prepared, options.equalizer, digest, output)
        check_rates(prepared.data(None if shifts is None else shifts.shifts), checked)
        plan = plan_for(prepared, parts, memory, checked, shifts)
        output.mkdir(parents=True, exist_ok=True)
        path = output / name_of(plan, number)
        count_unless_there(
            path,
            already_counted(output, plan, checked, number),
            f"part {number} of {parts}",
            lambda report: save_part(output, plan, checked, count_part(plan, number, threads=threads, progress=report)),
        )


def folder_of_parts(output: Path | None) -> Path:
    """Return the folder of the parts, and refuse what is none."""
    if output is None:
        raise InputError("--part needs a folder for the parts: give it with --output")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file: with --part, --output is the folder of the parts")
    return output


def count_unless_there(path: Path, there: bool, name: str, count: Callable[[Any], object]) -> None:
    """Count a part into its file and say so; a part that is there already is left as it is."""
    if there:
        print(f"note: {path} is there already and was not counted again", file=sys.stderr)
        return
    begin = time.monotonic()
    with progress_bar(f"counting {name}") as report:
        count(report)
    print(f"{name}: {path}, counted in {time.monotonic() - begin:.1f} s")


def shifts_of_parts(prepared: "Prepared", equalizer: Path, digest: str, output: Path) -> "RowShifts":
    """Open the shifts in the folder of the parts; only the first part has to read the equalizer's reference."""
    from isomargin.measure.pairs.row_shifts import shifts_once

    return shifts_once(prepared, output, digest, lambda: open_equalizer(equalizer, mapped=True))


@ending_cleanly()
def prepare(
    source: Annotated[
        Path, typer.Argument(help="A folder or quoted pattern of .parquet, .npy or .safetensors shards, or one file.")
    ],
    folder: Annotated[Path, typer.Argument(help="The folder to create.")],
    gallery: GallerySource = None,
    template: TemplateOption = "mean",
    leave_one_out: LeaveOneOut = False,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory to use.")] = MEMORY,
    embeddings_key: EmbeddingsKey = "embeddings",
    labels_key: LabelsKey = "labels",
) -> None:
    """Sort embeddings by class into a folder of unit vectors, from which parts are counted.

    With --gallery, the embeddings are probes, and the folder has the templates of the gallery as well.
    """
    from isomargin.cli.gallery_parts import prepare_with_gallery
    from isomargin.measure.pairs.prepare import prepare as run

    options = GalleryOptions(gallery, template=template, leave_one_out=leave_one_out)
    options.check({})
    if options.wanted:
        prepare_with_gallery(source, folder, options, memory, embeddings_key, labels_key)
        return
    with writing(folder):
        prepared = run(source, folder, memory=memory, embeddings_key=embeddings_key, labels_key=labels_key)
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    n, width = prepared.vectors.shape
    print(f"{folder}: {n:,} items of {width} dimensions in {len(prepared.sizes):,} classes")


@ending_cleanly()
def merge(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder that `isomargin evaluate --part` or `isomargin equalize --part` wrote to."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the evaluation, or the equalizer, to this .json file.")
    ] = None,
    prepared: Annotated[
        Path | None, typer.Option(help="Where the prepared embeddings are, if they were moved since.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads. By default one per core.")] = None,
    worst: Annotated[int, typer.Option(min=0, help="Number of worst classes to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Merge the counts of all parts into an evaluation, or the neighbours that they found into an equalizer.

    Missing, doubled and foreign parts are refused by name.
    """
    from isomargin.cli.equalizing import report_unlabelled
    from isomargin.cli.equalizing_parts import NOT_JUDGED, has_neighbours, merge_to_equalizer
    from isomargin.measure.gallery_parts import merge_gallery_files
    from isomargin.measure.pairs.gallery_part_files import has_gallery_parts
    from isomargin.measure.parts import merge_files

    check_writable(output, ".json")
    if has_neighbours(folder):
        equalizer = merge_to_equalizer(folder, output, prepared)
        assert output is not None
        report_unlabelled(equalizer, output, as_json, NOT_JUDGED)
        return
    if has_gallery_parts(folder):
        evaluation = merge_gallery_files(folder, prepared)
    else:
        evaluation = merge_files(folder, prepared=prepared, threads=threads)
    if output is not None:
        with writing(output):
            evaluation.save(output)
    show(evaluation, worst, "mean_utility", as_json)
