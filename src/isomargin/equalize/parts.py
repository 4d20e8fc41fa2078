"""Fit equalizers to sets larger than memory, or on many machines, in parts whose lists of neighbours merge.

``plan_neighbours`` divides the search, ``find_neighbours`` does one part anywhere, and ``merge_neighbours`` turns the
lists of all parts into an equalizer. ``fit_equalizer`` does everything. ``docs/scale.md`` is the page for users.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.extras import import_or_explain
from isomargin.core.memory import map_new_array
from isomargin.core.progress import progress_bar
from isomargin.equalize import saving
from isomargin.equalize.equalizer import Equalizer
from isomargin.measure.pairs.neighbour_files import NeighbourFolder
from isomargin.measure.pairs.neighbour_parts import (
    FoundNeighbours,
    NeighbourPlan,
    collect,
    find_on_disk,
    merge_all_found,
    plan_neighbours,
)
from isomargin.measure.pairs.neighbours import Singles
from isomargin.measure.pairs.prepare import MEMORY, Prepared, is_prepared, prepare
from isomargin.measure.parts import check_parts, prepare_once


def fit_equalizer(
    source: Any,
    output: str | os.PathLike[str],
    *,
    memory: str | int = MEMORY,
    work: str | os.PathLike[str] | None = None,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
    threads: int | None = None,
    progress: Callable[[float], None] | Literal["auto"] | None = None,
    cluster: str | None = None,
    parts: int | None = None,
    **settings: Any,
) -> Equalizer:
    """Fit an equalizer to a folder or pattern of files, or a file larger than memory, and write it to a file.

    The neighbours are those that `Equalizer.fit` finds for the same rows sorted by class, bit for bit. Nothing is
    chosen or judged: choose the settings with `isomargin.EqualizerCV` on a sample of the classes.

    Args:
        source: a folder or pattern of `.parquet`, `.npy` or `.safetensors` files, one such file, a list of them, or a
            folder that `isomargin.prepare` wrote.
        output: the .json file to write. Beside it, a .safetensors file takes 4 bytes for each number of the embeddings
            and for each of the skip + neighbours similarities of a row, and twice the latter while it is made.
        memory: memory to use, such as ``"4GB"``; on a cluster, of each part.
        work: a folder that is created for the sorted embeddings; a temporary one by default. With ``cluster``, finished
            parts are kept there as well: after a failure, the same call goes on from them.
        embeddings_key: name of the column or tensor that holds the embeddings.
        labels_key: name of the column or tensor that holds the labels, by which the rows are sorted.
        threads: number of CPU threads, by default one per core; on a cluster those of each part, by default 1.
        progress: a function that is called with the share of the work done; ``"auto"`` shows a progress bar on a
            terminal after two seconds.
        cluster: search on a Ray cluster: its address, ``"auto"`` for the one that this machine belongs to, or
            ``"local"`` to start one on this machine. A connection that Ray has already is used.
        parts: number of parts on a cluster; by default 3 for each part that can be searched at the same time, or more
            if that needs too much memory.
        settings: ``neighbours``, ``skip``, ``weight`` and ``method`` of `isomargin.Equalizer`.

    Returns:
        The equalizer, whose reference stays in the file.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for shard in range(3):
    ...         labels = generator.integers(0, 20, 400)
    ...         vectors = np.eye(20)[labels] + generator.normal(size=(400, 20))
    ...         im.EmbeddingSet(vectors, labels).save(f"{name}/{shard}.npy")
    ...     equalizer = im.fit_equalizer(name, f"{name}/equalizer.json", memory="2GB", skip=60)
    ...     im.evaluate_shards(f"{name}/*.npy", memory="2GB", equalizer=equalizer).equalizer["own_class"]
    'in_reference'
    """
    equalizer, target = checked_equalizer(settings), checked_target(output)
    bar: AbstractContextManager[Any] = (
        progress_bar("finding neighbours", details=cluster is not None) if progress == "auto" else nullcontext(progress)
    )
    keys = {"embeddings_key": embeddings_key, "labels_key": labels_key}
    check_parts(parts, cluster)
    with tempfile.TemporaryDirectory() as temporary, bar as report:
        if cluster is not None:
            on_cluster = import_or_explain("isomargin.measure.on_cluster")
            on_cluster.check_address(cluster)
            prepared = prepare_once(source, Path(temporary if work is None else work), memory, **keys)
            kept, details = None if work is None else Path(work), progress == "auto"

            def finish(plan: NeighbourPlan, lists: Callable[[int], Singles]) -> Equalizer:
                return equalizer_of_lists(equalizer, plan, lists, target)

            found: Equalizer = on_cluster.find(
                prepared, equalizer.settings(), cluster, parts, memory, threads, kept, report, details, finish
            )
            return found
        if isinstance(source, str | Path) and is_prepared(Path(source)):
            prepared = Prepared.open(source)
        else:
            folder = Path(temporary) / "prepared" if work is None else Path(work)
            prepared = prepare(source, folder, memory=memory, **keys)
        sizes = {"neighbours": equalizer.neighbours, "skip": equalizer.skip}
        plan = plan_neighbours(prepared, memory=memory, on_disk=True, **sizes)
        with lists_beside(target, plan) as nearest:
            find_on_disk(plan, nearest, threads, report)
            return finished(equalizer, plan, nearest, target)


def merge_neighbours(
    plan: NeighbourPlan, parts: Iterable[FoundNeighbours], output: str | os.PathLike[str], **settings: Any
) -> Equalizer:
    """Merge what all parts have found, in any order, into an equalizer, and write it to a file.

    The neighbours are those of one search in the same rows, bit for bit on the same kind of processor.

    Args:
        plan: the plan of the parts.
        parts: what `isomargin.find_neighbours` returned for each of them.
        output: the .json file to write; a .safetensors file with the reference goes beside it.
        settings: ``neighbours`` and ``skip`` of the plan, and ``weight`` and ``method`` of `isomargin.Equalizer`.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(1500) % 30
    >>> vectors = generator.normal(size=(30, 16))[labels] + generator.normal(size=(1500, 16))
    >>> with tempfile.TemporaryDirectory() as name:
    ...     im.EmbeddingSet(vectors, labels).save(f"{name}/items.npy")
    ...     plan = im.plan_neighbours(im.prepare(f"{name}/items.npy", f"{name}/prepared"), parts=3)
    ...     lists = [im.find_neighbours(plan, number) for number in (3, 1, 2)]
    ...     equalizer = im.merge_neighbours(plan, lists, f"{name}/equalizer.json")
    >>> in_memory = im.Equalizer().fit(vectors[np.argsort(labels, kind="stable")])
    >>> bool((equalizer.offsets_ == in_memory.offsets_).all())
    True
    """
    equalizer, target = checked_equalizer(settings), checked_target(output)
    if min(equalizer.skip + equalizer.neighbours, len(plan.prepared.vectors) - 1) != plan.length:
        raise InputError("neighbours or skip is not that of the plan of the parts: use the same")
    return equalizer_of_lists(equalizer, plan, merge_all_found(plan, parts).lists.__getitem__, target)


def merge_neighbour_files(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    prepared: str | os.PathLike[str] | None = None,
) -> Equalizer:
    """Merge the files of all parts in a folder into an equalizer, and write it to a file.

    Args:
        folder: the folder that `isomargin equalize --part` wrote to.
        output: the .json file to write.
        prepared: where the prepared embeddings are, if they were moved since.
    """
    target = checked_target(output)
    found = NeighbourFolder.open(Path(folder), None if prepared is None else Path(prepared))
    return equalizer_of_lists(checked_equalizer(found.settings), found.plan, found.lists, target)


def checked_equalizer(settings: dict[str, Any]) -> Equalizer:
    """Return an equalizer with these settings, checked before any work is done."""
    if unknown := sorted(set(settings) - {"neighbours", "skip", "weight", "method"}):
        raise InputError(
            f"{unknown[0]} is not a setting of an equalizer: neighbours, skip, weight and method are its settings"
        )
    equalizer = Equalizer(**settings)
    equalizer.check_settings()
    return equalizer


def checked_target(output: str | os.PathLike[str]) -> Path:
    """Return the file to write, checked before any work is done."""
    path = Path(output)
    saving.check_place(path, "equalizer")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written because the folder {path.parent} does not exist: create it first")
    return path


@contextmanager
def lists_beside(target: Path, plan: NeighbourPlan) -> Iterator[Singles]:
    """Yield an array for the lists of all rows, in a temporary file beside the equalizer."""
    shape = len(plan.prepared.vectors), plan.length
    with tempfile.TemporaryDirectory(prefix=".neighbours-", dir=target.parent) as folder:
        yield map_new_array(f"{folder}/nearest.npy", np.float32, shape)


def equalizer_of_lists(
    equalizer: Equalizer, plan: NeighbourPlan, lists: Callable[[int], Singles], target: Path
) -> Equalizer:
    """Collect the merged lists of all superblocks, fit the equalizer by them, and write it."""
    with lists_beside(target, plan) as nearest:
        collect(plan, lists, nearest)
        return finished(equalizer, plan, nearest, target)


def finished(equalizer: Equalizer, plan: NeighbourPlan, nearest: Singles, target: Path) -> Equalizer:
    """Fit the equalizer by the lists, write it, and return it as it is read from the file."""
    equalizer.with_neighbours(plan.prepared.vectors, nearest, None).save(target)
    return Equalizer.load(target, mapped=True)
