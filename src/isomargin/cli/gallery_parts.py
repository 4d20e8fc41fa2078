"""Galleries in parts, on the command line: those larger than memory, and one part of their comparisons."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isomargin.cli.common import writing
from isomargin.cli.galleries import GalleryOptions
from isomargin.cli.opening import ReadOptions
from isomargin.cli.parts import MEMORY, PartOptions, count_unless_there, folder_of_parts
from isomargin.cli.running import ending_cleanly, telling_what_ray_repeats

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation


@ending_cleanly()
def evaluate_gallery_in_parts(
    options: PartOptions,
    reading: ReadOptions,
    gallery: GalleryOptions,
    output: Path | None,
    threads: int | None,
    settings: dict[str, Any],
) -> "Evaluation | None":
    """Evaluate a gallery of shards in this process; or count one part, write it, and return None."""
    from isomargin.measure.gallery_parts import evaluate_gallery_shards

    if options.part is not None:
        count_one(options, reading, gallery, output, threads, settings)
        return None
    with (
        writing(options.work) if options.work is not None else nullcontext(),
        telling_what_ray_repeats() if options.ray is not None else nullcontext(),
    ):
        return evaluate_gallery_shards(
            **sources(options.source, reading, gallery),
            margin=gallery.margin,
            memory=options.memory or MEMORY,
            work=options.work,
            threads=threads,
            progress="auto",
            cluster=options.ray,
            parts=options.parts,
            **settings,
        )


def sources(source: Path | None, reading: ReadOptions, gallery: GalleryOptions) -> dict[str, Any]:
    """Return where gallery and probes are, and how to read them."""
    found: dict[str, Any] = {"embeddings_key": reading.embeddings_key, "labels_key": reading.labels_key}
    if gallery.prepared:
        return found | {"gallery": source}
    found |= {"template": gallery.template, "leave_one_out": gallery.leave_one_out}
    if gallery.leave_one_out:
        return found | {"gallery": source}
    return found | {"gallery": gallery.gallery, "probes": source}


def count_one(
    options: PartOptions,
    reading: ReadOptions,
    gallery: GalleryOptions,
    output: Path | None,
    threads: int | None,
    settings: dict[str, Any],
) -> None:
    """Count one part and write it to the folder ``output``."""
    from isomargin.measure.gallery import check_rates
    from isomargin.measure.gallery_parts import gallery_part_settings, prepare_gallery_once
    from isomargin.measure.identification import check_margin
    from isomargin.measure.pairs.gallery_part_files import save_gallery_part
    from isomargin.measure.pairs.gallery_parts import count_gallery_part
    from isomargin.measure.pairs.gallery_plan import plan_gallery
    from isomargin.measure.pairs.part_files import already_counted, name_of

    number, parts = options.numbers()
    folder = folder_of_parts(output)
    checked, margin = gallery_part_settings(**settings), check_margin(gallery.margin)
    memory = options.memory or MEMORY
    with writing(folder):
        prepared = prepare_gallery_once(folder=folder, memory=memory, **sources(options.source, reading, gallery))
        check_rates(prepared.data(), checked)
        plan = plan_gallery(prepared, parts, memory=memory)
        folder.mkdir(parents=True, exist_ok=True)

        def count(report: Any) -> None:
            counts = count_gallery_part(plan, number, threads=threads, progress=report)
            save_gallery_part(folder, plan, checked, margin, counts)

        there = already_counted(folder, plan, checked, number, margin=margin)
        count_unless_there(folder / name_of(plan, number), there, f"part {number} of {parts}", count)


def prepare_with_gallery(
    source: Path, folder: Path, gallery: GalleryOptions, memory: str, embeddings_key: str, labels_key: str
) -> None:
    """Sort a gallery and its probes by class into a folder."""
    from isomargin.measure.pairs.gallery_prepare import prepare_gallery

    reading = ReadOptions(embeddings_key=embeddings_key, labels_key=labels_key)
    with writing(folder):
        how = {"probes": None, **sources(source, reading, gallery)}
        prepared = prepare_gallery(folder=folder, memory=memory, **how)
    for note in prepared.notes:
        print(f"note: {note}", file=sys.stderr)
    n, width = prepared.probes.shape
    items, classes = int(prepared.enrolled.sum()), len(prepared.names)
    print(f"{folder}: {n:,} probes of {width} dimensions, {items:,} enrolled items in {classes:,} classes")
