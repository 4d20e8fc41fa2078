"""Evaluate embeddings larger than memory, or on many machines, in parts whose counts add up.

``prepare`` sorts the embeddings by class into a folder, ``plan_parts`` divides their pairs, ``count_part`` counts one
part anywhere, and ``merge_parts`` turns the counts of all parts into an evaluation. ``docs/scale.md`` is the page for
users.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.extras import import_or_explain
from isomargin.core.files import locked
from isomargin.core.progress import progress_bar
from isomargin.io.shards import open_shards
from isomargin.measure.evaluate import check_rates, note_on_closeness, why_bins_are_coarse
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.inputs import ClassSortedVectors, Shifts
from isomargin.measure.pairs.part_files import PartFolder
from isomargin.measure.pairs.part_plan import PartPlan, plan_for
from isomargin.measure.pairs.parts import PartCounts, count_part, finish_parts, merge_all
from isomargin.measure.pairs.prepare import MEMORY, Prepared, is_prepared, prepare, prepare_sorted
from isomargin.measure.pairs.row_shifts import EqualizesRows, RowShifts, check_equalizer, row_shifts, shifts_once
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.pairs.tiles import PassResult
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import measure_item_noise

PREPARED = "prepared"  # in the folder of the parts, if the embeddings were not prepared before


def evaluate_shards(
    source: Any,
    *,
    memory: str | int = MEMORY,
    work: str | os.PathLike[str] | None = None,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
    threads: int | None = None,
    progress: Callable[[float], None] | Literal["auto"] | None = None,
    cluster: str | None = None,
    parts: int | None = None,
    equalizer: EqualizesRows | RowShifts | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a folder or pattern of files, or a file larger than memory, in this process or on a Ray cluster.

    Pairs are always counted in bins, so that scores agree with those of `isomargin.evaluate` to 1e-4.

    Args:
        source: a folder or pattern of `.parquet`, `.npy` or `.safetensors` files, one such file, a list of them, or a
            folder that `isomargin.prepare` wrote.
        memory: memory to use, such as ``"4GB"``; on a cluster, of each part.
        work: a folder that is created for the sorted embeddings; a temporary one by default. With ``cluster``, finished
            parts are kept there as well: after a failure, the same call goes on from them.
        embeddings_key: name of the column or tensor that holds the embeddings.
        labels_key: name of the column or tensor that holds the labels.
        threads: number of CPU threads, by default one per core; on a cluster those of each part, by default 1.
        progress: a function that is called with the share of the work done; ``"auto"`` shows a progress bar on a
            terminal after two seconds.
        cluster: count parts on a Ray cluster: its address, ``"auto"`` for the one that this machine belongs to, or
            ``"local"`` to start one on this machine. A connection that Ray has already is used.
        parts: number of parts on a cluster; by default 3 for each part that can be counted at the same time.
        equalizer: a fitted `isomargin.Equalizer`, to measure equalized similarities instead of cosines. It recognises
            the rows that it was fitted on, in any order.
        settings: the settings of `isomargin.evaluate`, except for ``exact``, ``device`` and the paper's sampled
            pairs. With ``pairs="stratified"``, negatives are sampled so that the FAR of each class has a relative
            standard error of at most ``relative_error`` at ``target_far``; retrieval scores are then left out.

    >>> import isomargin as im
    >>> import numpy as np
    >>> generator = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for shard in range(3):
    ...         labels = generator.integers(0, 20, 400)
    ...         vectors = np.eye(20)[labels] + generator.normal(size=(400, 20))
    ...         im.EmbeddingSet(vectors, labels).save(f"{name}/{shard}.npy")
    ...     im.evaluate_shards(name, memory="2GB").items
    1200
    """
    checked = part_settings(**settings)
    check_parts(parts, cluster)
    if equalizer is not None:
        check_equalizer(equalizer)
    bar: AbstractContextManager[Any] = (
        progress_bar("counting pairs", details=cluster is not None) if progress == "auto" else nullcontext(progress)
    )
    keys = {"embeddings_key": embeddings_key, "labels_key": labels_key}
    with tempfile.TemporaryDirectory() as temporary, bar as report:
        if cluster is not None:
            on_cluster = import_or_explain("isomargin.measure.on_cluster")
            on_cluster.check_address(cluster)
            prepared = prepare_once(source, Path(temporary if work is None else work), memory, **keys)
            kept = None if work is None else Path(work)
            shifts = shifts_for(prepared, equalizer, kept)
            check_rates(prepared.data(None if shifts is None else shifts.shifts), checked)
            details = progress == "auto"
            plan, result = on_cluster.count(
                prepared, checked, cluster, parts, memory, threads, kept, report, details, shifts
            )
            return assemble(plan, result, checked, None)
        if isinstance(source, str | Path) and is_prepared(Path(source)):
            prepared = Prepared.open(source)
        else:
            folder = Path(temporary) / "prepared" if work is None else Path(work)
            prepared = prepare(source, folder, memory=memory, **keys)
        shifts = shifts_for(prepared, equalizer, None)
        check_rates(prepared.data(None if shifts is None else shifts.shifts), checked)
        plan = plan_for(prepared, 1, memory, checked, shifts)
        counts = count_part(plan, 1, threads=threads, progress=report)
        return merge_parts(plan, [counts], threads=threads, **settings)


def evaluate_on_cluster(
    data: ClassSortedVectors,
    settings: Settings,
    cluster: str,
    threads: int | None,
    progress: Callable[..., None] | Literal["auto"] | None,
    shifts: Shifts | None,
    record: dict[str, Any] | None,
) -> Evaluation:
    """Evaluate vectors in memory on a Ray cluster, by way of a temporary folder.

    ``shifts`` are those of the rows as they came, with the record of their equalizer.
    """
    with tempfile.TemporaryDirectory() as temporary:
        prepared, known = prepare_sorted(data, Path(temporary)), None
        if shifts is not None and data.shifts is not None and record is not None:
            known = RowShifts(prepared.digest, replace(shifts, values=data.shifts), record)
        how: dict[str, Any] = {"threads": threads, "progress": progress, "memory": MEMORY}
        return evaluate_shards(prepared.folder, cluster=cluster, equalizer=known, **how, **vars(settings))


def check_parts(parts: int | None, cluster: str | None) -> None:
    """Refuse a number of parts that is none, or that nothing uses."""
    if parts is not None:
        checks.whole(parts, "parts")
        if cluster is None:
            raise InputError(
                f"parts is {parts}, but all parts are counted in this process: give cluster, or leave it out"
            )


def shifts_for(
    prepared: Prepared, equalizer: EqualizesRows | RowShifts | None, folder: Path | None
) -> RowShifts | None:
    """Find the shifts of all rows; with a folder for parts, they are kept there."""
    if equalizer is None or folder is None or isinstance(equalizer, RowShifts):
        return None if equalizer is None else row_shifts(prepared, equalizer)
    return shifts_once(prepared, folder, equalizer.record()["digest"], lambda: equalizer)


def prepare_once(
    source: Any, folder: Path, memory: str | int, *, embeddings_key: str = "embeddings", labels_key: str = "labels"
) -> Prepared:
    """Open prepared embeddings; others are prepared in the folder of the parts, by whoever comes first."""
    if isinstance(source, str | Path) and is_prepared(Path(source)):
        return Prepared.open(source)
    target = folder / PREPARED
    shards = open_shards(source, embeddings_key, labels_key)  # before any folder is created
    if not is_prepared(target):
        with locked(folder, wait=True):
            if not is_prepared(target):
                return prepare(source, target, memory=memory, embeddings_key=embeddings_key, labels_key=labels_key)
    prepared = Prepared.open(target)
    if prepared.sources != shards.fingerprint():
        raise InputError(
            f"{target} was prepared from other files, or they have changed since: choose another folder for the parts"
        )
    return prepared


def merge_parts(
    plan: PartPlan, parts: Iterable[PartCounts], *, threads: int | None = None, **settings: Any
) -> Evaluation:
    """Merge the counts of all parts, in any order, into an evaluation.

    The counts are those of one pass over all pairs with the same tiles, bit for bit on the same kind of processor.

    Args:
        plan: the plan of the parts.
        parts: what `isomargin.count_part` returned for each of them.
        threads: number of CPU threads; by default one per core.
        settings: the settings of `isomargin.evaluate`, except for ``exact``, ``device`` and the paper's sampled
            pairs. With ``pairs="stratified"``, negatives are sampled so that the FAR of each class has a relative
            standard error of at most ``relative_error`` at ``target_far``; retrieval scores are then left out.

    >>> import isomargin as im
    >>> import numpy as np
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(1500) % 30
    >>> vectors = generator.normal(size=(30, 16))[labels] + generator.normal(size=(1500, 16))
    >>> with tempfile.TemporaryDirectory() as name:
    ...     im.EmbeddingSet(vectors, labels).save(f"{name}/items.npy")
    ...     plan = im.plan_parts(im.prepare(f"{name}/items.npy", f"{name}/prepared"), parts=3)
    ...     evaluation = im.merge_parts(plan, [im.count_part(plan, number) for number in (3, 1, 2)])
    >>> abs(evaluation.opis - im.evaluate(vectors, labels).opis) < 1e-4
    True
    """
    checked = part_settings(**{"map_at_r": plan.map_at_r, **settings})
    if plan_for(plan.prepared, plan.parts, plan.memory, checked, plan.equalizer).digest != plan.digest:
        raise InputError(
            "map_at_r, pairs, relative_error, target_far or seed is not that of the plan of the parts: use the same"
        )
    merged = merge_all(plan, parts)
    return assemble(
        plan, finish_parts(plan, merged.superblocks.__getitem__, merged.large, checked.k, threads), checked, threads
    )


def merge_files(
    folder: str | os.PathLike[str],
    *,
    prepared: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> Evaluation:
    """Merge the files of all parts in a folder into an evaluation.

    Args:
        folder: the folder that `isomargin evaluate --part` wrote to.
        prepared: where the prepared embeddings are, if they were moved since.
        threads: number of CPU threads; by default one per core.
    """
    found = PartFolder.open(Path(folder), None if prepared is None else Path(prepared))
    result = finish_parts(found.plan, found.superblock, found.large(), found.settings.k, threads)
    return assemble(found.plan, result, found.settings, threads)


def part_settings(**settings: Any) -> Settings:
    """Check the settings of an evaluation in parts."""
    return check_part_settings(Settings.from_values(**settings))


def check_part_settings(checked: Settings) -> Settings:
    """Refuse settings that parts do not take; scores that a sample has not are left out."""
    if checked.exact:
        raise InputError("exact needs all embeddings in memory, and parts are counted in bins: leave it out")
    if checked.device is not None:
        raise InputError(f"device is {checked.device!r}, but parts are counted on the CPU: leave it out")
    if checked.pairs == "sampled":
        raise InputError(
            "pairs is 'sampled', but parts count all pairs, or stratified ones with a known error: use these"
        )
    return replace(checked, k=(), map_at_r=False) if checked.pairs == "stratified" else checked


def assemble(plan: PartPlan, result: PassResult, settings: Settings, threads: int | None) -> Evaluation:
    """Turn the counts of all pairs into an evaluation; the noise of items is measured here, from a sample of them."""
    data = plan.data()
    check_rates(data, settings)
    notes = note_on_closeness(data)
    if plan.columns is not None:
        notes = (
            f"negative pairs are a sample (seed {plan.seed}): each class is compared with {plan.columns:,} random "
            f"items, so that its FAR has a relative standard error of at most {settings.relative_error:.3g} at FAR "
            f"{settings.target_far:.3g}; there are no retrieval scores",
        )
    elif not notes and (reason := why_bins_are_coarse(data)) is not None:
        notes = (f"{reason}, and parts are counted in bins: all scores are less accurate",)
    summary = summarize(result.counts, settings)
    noise = measure_item_noise(data, result.counts.negatives, threads)
    return Evaluation(
        settings,
        data.names,
        data.sizes,
        result.counts,
        result.ranks,
        summary,
        "binned",
        noise,
        (*data.notes, *notes, *(() if plan.shifts is None else plan.shifts.notes)),
        None if plan.equalizer is None else plan.equalizer.record,
    )
