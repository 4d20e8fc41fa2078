"""Evaluate galleries larger than memory, or on many machines, in parts: ``gallery.py`` for ``parts.py``.

``prepare_gallery`` sorts gallery and probes into a folder, ``plan_gallery`` divides their comparisons,
``count_gallery_part`` counts one part anywhere, and ``merge_gallery_parts`` turns all parts into an evaluation.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from isomargin.core.errors import InputError
from isomargin.core.extras import import_or_explain
from isomargin.core.files import locked
from isomargin.core.progress import progress_bar
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.gallery import assemble, check_rates
from isomargin.measure.identification import check_margin
from isomargin.measure.pairs.gallery_inputs import Template
from isomargin.measure.pairs.gallery_part_files import GalleryPartFolder
from isomargin.measure.pairs.gallery_parts import (
    GalleryPartCounts,
    count_gallery_part,
    finish_gallery,
    merge_all_gallery_parts,
)
from isomargin.measure.pairs.gallery_pass import GalleryPass
from isomargin.measure.pairs.gallery_plan import GalleryPlan, plan_gallery
from isomargin.measure.pairs.gallery_prepare import (
    PreparedGallery,
    check_sources,
    fingerprint_of,
    is_prepared_gallery,
    open_sources,
    prepare_gallery,
)
from isomargin.measure.pairs.prepare import MEMORY
from isomargin.measure.parts import PREPARED, check_parts, part_settings
from isomargin.measure.settings import Settings

K = (1, 5, 10)


def evaluate_gallery_shards(
    gallery: Any,
    probes: Any = None,
    *,
    template: Template | None = None,
    leave_one_out: bool = False,
    margin: float = 0.0,
    memory: str | int = MEMORY,
    work: str | os.PathLike[str] | None = None,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
    threads: int | None = None,
    progress: Callable[[float], None] | Literal["auto"] | None = None,
    cluster: str | None = None,
    parts: int | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a gallery and probes larger than memory, in this process or on a Ray cluster.

    Comparisons are always counted in bins, in float32.

    Args:
        gallery: the enrolled items: a folder or pattern of `.parquet`, `.npy` or `.safetensors` files, one such file, a
            list of them; or a folder that `isomargin.prepare_gallery` wrote, with its probes.
        probes: the probes, in the same forms; None if one is left out, or with a prepared gallery.
        template: what a probe is compared with, as in `isomargin.evaluate_gallery`; by default ``"mean"``, or that of a
            prepared gallery.
        leave_one_out: take the enrolled items as probes, each compared with its own class without itself.
        margin: a second rule for identification, as in `isomargin.evaluate_gallery`.
        memory: memory to use, such as ``"4GB"``; on a cluster, of each part.
        work: a folder that is created for the sorted embeddings; a temporary one by default. With ``cluster``, finished
            parts are kept there as well: after a failure, the same call goes on from them.
        embeddings_key: name of the column or tensor that holds the embeddings.
        labels_key: name of the column or tensor that holds the labels.
        threads: number of CPU threads, by default one per core; on a cluster those of each part, by default 1.
        progress: as in `isomargin.evaluate_shards`.
        cluster: count parts on a Ray cluster, as in `isomargin.evaluate_shards`.
        parts: number of parts on a cluster; by default 3 for each part that can be counted at the same time.
        settings: the other settings of `isomargin.evaluate_gallery`, without equalizer and class thresholds.

    >>> import isomargin as im
    >>> import numpy as np
    >>> generator = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for part, items in (("gallery", 100), ("probes", 900)):
    ...         labels = generator.integers(0, 20 if part == "gallery" else 30, items)
    ...         vectors = np.eye(30)[labels] + generator.normal(size=(items, 30))
    ...         im.EmbeddingSet(vectors, labels).save(f"{name}/{part}.npy")
    ...     im.evaluate_gallery_shards(f"{name}/gallery.npy", f"{name}/probes.npy", memory="2GB").gallery.known
    610
    """
    checked = gallery_part_settings(**settings)
    check_margin(margin)
    check_parts(parts, cluster)
    bar: AbstractContextManager[Any] = (
        progress_bar("comparing", details=cluster is not None) if progress == "auto" else nullcontext(progress)
    )
    how: dict[str, Any] = {"leave_one_out": leave_one_out, "memory": memory}
    how |= {"embeddings_key": embeddings_key, "labels_key": labels_key}
    with tempfile.TemporaryDirectory() as temporary, bar as report:
        if cluster is not None:
            on_cluster = import_or_explain("isomargin.measure.on_cluster")
            on_cluster.check_address(cluster)
            folder, kept = Path(temporary if work is None else work), None if work is None else Path(work)
            prepared = prepare_gallery_once(gallery, probes, folder=folder, template=template, **how)
            check_rates(prepared.data(), checked)
            chosen, details = (checked, float(margin)), progress == "auto"
            plan, result = on_cluster.compare(prepared, chosen, cluster, parts, memory, threads, kept, report, details)
            return evaluation_of(plan, result, checked, margin)
        folder = Path(temporary) / PREPARED if work is None else Path(work)
        prepared = opened(gallery, probes, template, leave_one_out) or prepare_gallery(
            gallery, probes, folder, template=template or "mean", **how
        )
        check_rates(prepared.data(), checked)
        plan = plan_gallery(prepared, 1, memory=memory)
        counts = count_gallery_part(plan, 1, threads=threads, progress=report)
        return merge_gallery_parts(plan, [counts], margin=margin, **settings)


def opened(gallery: Any, probes: Any, template: Template | None, leave_one_out: bool) -> PreparedGallery | None:
    """Open a gallery that is prepared already, with its probes; None if it is not."""
    if not isinstance(gallery, str | Path) or not is_prepared_gallery(Path(gallery)):
        check_sources(probes, leave_one_out)
        return None
    if probes is not None or leave_one_out:
        raise InputError(
            f"{gallery} is a gallery that was prepared with its probes: leave out probes and leave_one_out"
        )
    found = PreparedGallery.open(gallery)
    if template not in (None, found.template):
        raise InputError(f"template is {template!r}, but {gallery} was prepared for {found.template!r}: leave it out")
    return found


def prepare_gallery_once(
    gallery: Any,
    probes: Any = None,
    *,
    folder: Path,
    template: Template | None = None,
    leave_one_out: bool = False,
    memory: str | int = MEMORY,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
) -> PreparedGallery:
    """Open a prepared gallery; another one is prepared in the folder of the parts, by whoever comes first."""
    if (found := opened(gallery, probes, template, leave_one_out)) is not None:
        return found
    target, chosen = folder / PREPARED, template or "mean"
    keys = {"embeddings_key": embeddings_key, "labels_key": labels_key}
    sources = open_sources(gallery, probes, **keys)  # before any folder is created
    if not is_prepared_gallery(target):
        with locked(folder, wait=True):
            if not is_prepared_gallery(target):
                return prepare_gallery(
                    gallery, probes, target, template=chosen, leave_one_out=leave_one_out, memory=memory, **keys
                )
    prepared = PreparedGallery.open(target)
    if prepared.sources != fingerprint_of(sources, chosen):
        raise InputError(
            f"{target} was prepared from other files or for other templates, or the files have changed since: choose "
            "another folder for the parts"
        )
    return prepared


def merge_gallery_parts(
    plan: GalleryPlan, parts: Iterable[GalleryPartCounts], *, margin: float = 0.0, **settings: Any
) -> Evaluation:
    """Merge the counts of all parts of a gallery, in any order, into an evaluation.

    The counts are those of one pass over all comparisons with the same tiles, bit for bit on the same kind of
    processor.

    Args:
        plan: the plan of the parts.
        parts: what `isomargin.count_gallery_part` returned for each of them.
        margin: a second rule for identification, as in `isomargin.evaluate_gallery`.
        settings: the other settings of `isomargin.evaluate_gallery`, without equalizer and class thresholds.

    >>> import isomargin as im
    >>> import numpy as np
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(600) % 30
    >>> vectors = generator.normal(size=(30, 16))[labels] + generator.normal(size=(600, 16))
    >>> with tempfile.TemporaryDirectory() as name:
    ...     im.EmbeddingSet(vectors[:100], labels[:100] % 20).save(f"{name}/gallery.npy")
    ...     im.EmbeddingSet(vectors[100:], labels[100:]).save(f"{name}/probes.npy")
    ...     prepared = im.prepare_gallery(f"{name}/gallery.npy", f"{name}/probes.npy", f"{name}/prepared")
    ...     plan = im.plan_gallery(prepared, parts=2)
    ...     evaluation = im.merge_gallery_parts(plan, [im.count_gallery_part(plan, number) for number in (2, 1)])
    >>> exact = im.evaluate_gallery(vectors[:100], labels[:100] % 20, vectors[100:], labels[100:])
    >>> abs(evaluation.at_fpir(0.1).fnir - exact.at_fpir(0.1).fnir) < 1e-3
    True
    """
    checked = gallery_part_settings(**settings)
    check_margin(margin)
    merged = merge_all_gallery_parts(plan, parts)
    return evaluation_of(plan, finish_gallery(plan, merged.superblocks.__getitem__), checked, margin)


def gallery_part_settings(**settings: Any) -> Settings:
    """Check the settings of a gallery's evaluation in parts."""
    checked = part_settings(**{"k": K, **settings, "map_at_r": False})
    if checked.pairs != "all":
        raise InputError(f"pairs is {checked.pairs!r}, but a gallery has no pairs of items: leave it out")
    return checked


def evaluation_of(plan: GalleryPlan, result: GalleryPass, settings: Settings, margin: float) -> Evaluation:
    """Turn the counts of all comparisons into an evaluation."""
    check_rates(plan.data, settings)
    return assemble(plan.data, result, settings, margin, plan.prepared.leave_one_out, None, exactly=False)


def merge_gallery_files(folder: Path, prepared: Path | None = None) -> Evaluation:
    """Merge the files of all parts of a gallery in a folder into an evaluation."""
    found = GalleryPartFolder.open(folder, prepared)
    return evaluation_of(found.plan, finish_gallery(found.plan, found.section), found.settings, found.margin)
