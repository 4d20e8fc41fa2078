"""Evaluate on a Ray cluster: the connection, the number of parts, the journal and the progress of one call.

On a running cluster nothing is started; ``local`` starts a cluster on this machine, which ends with the call. What
runs on it is in ``ray_parts.py``.
"""

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import ray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import locked
from isomargin.core.memory import read_size
from isomargin.core.threads import available_cores
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.gallery_pass import GalleryPass
from isomargin.measure.pairs.gallery_plan import GalleryPlan, plan_gallery
from isomargin.measure.pairs.gallery_prepare import PreparedGallery
from isomargin.measure.pairs.neighbour_files import PATTERN, NeighbourFile
from isomargin.measure.pairs.neighbour_parts import NeighbourPlan, number_of_tiles, plan_neighbours
from isomargin.measure.pairs.neighbours import Singles
from isomargin.measure.pairs.part_files import PartFile
from isomargin.measure.pairs.part_plan import PartPlan, plan_for
from isomargin.measure.pairs.prepare import Prepared
from isomargin.measure.pairs.row_shifts import RowShifts
from isomargin.measure.pairs.tiles import PassResult
from isomargin.measure.ray_galleries import GalleryJournal, compare_on_ray
from isomargin.measure.ray_neighbours import NeighbourJournal, find_on_ray
from isomargin.measure.ray_parts import AnyPlan, Journal, Report, count_on_ray, places
from isomargin.measure.settings import Settings

PATIENCE = 60  # seconds in which nodes of a running cluster may still join
REACHED = 5  # seconds in which an address has to answer
PARTS_PER_PLACE = 3  # so that all places have work until shortly before the end
LOCAL = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
"""Settings of a cluster on this machine. Ray's workers have a low priority by default, unlike this process."""
Plan = TypeVar("Plan")
REPORTED_HERE = "RAY_IGNORE_UNHANDLED_ERRORS"  # Ray prints a traceback for each result of a failed part otherwise
OOM_RETRIES = "RAY_task_oom_retries"  # Ray repeats without end what is killed because the node's memory is full


def count(
    prepared: Prepared,
    settings: Settings,
    cluster: str,
    parts: int | None,
    memory: str | int,
    threads: int | None,
    folder: Path | None,
    progress: Callable[..., None] | None,
    details: bool,
    shifts: RowShifts | None = None,
) -> tuple[PartPlan, PassResult]:
    """Count all parts of prepared embeddings on a cluster; ``folder`` keeps those that are done."""
    cores, size = 1 if threads is None else checks.whole(threads, "threads"), read_size(memory)
    kept = None if folder is None else parts_kept_in(folder)
    check_kept(parts, kept, folder)
    with connected(cluster):
        room = wait_for_places(cores, size, cluster)
        plan = plan_on(prepared, size, settings, parts or kept, room, shifts)
        report = reporter(plan, progress, details)
        if folder is None:
            return plan, count_on_ray(plan, settings.k, None, cores, report)
        with journal_in(folder, settings) as journal:
            return plan, count_on_ray(plan, settings.k, journal, cores, report)


def find(
    prepared: Prepared,
    settings: dict[str, Any],
    cluster: str,
    parts: int | None,
    memory: str | int,
    threads: int | None,
    folder: Path | None,
    progress: Callable[..., None] | None,
    details: bool,
    finish: Callable[[NeighbourPlan, Callable[[int], Singles]], Any],
) -> Any:
    """Find the neighbours of all rows on a cluster; return what ``finish`` makes of the plan and the merged lists.

    ``settings`` are those of an equalizer. The folder keeps parts that are done.
    """
    cores, size = 1 if threads is None else checks.whole(threads, "threads"), read_size(memory)
    kept = None if folder is None else neighbours_kept_in(folder)
    check_kept(parts, kept, folder)
    with connected(cluster):
        room = wait_for_places(cores, size, cluster)
        plan = neighbour_plan_on(prepared, size, settings, parts or kept, room)
        report = reporter(plan, progress, details)
        if folder is None:
            return find_on_ray(plan, None, cores, report, finish)
        with journal_in(folder, settings, NeighbourJournal) as journal:
            return find_on_ray(plan, journal, cores, report, finish)


def compare(
    prepared: PreparedGallery,
    settings: tuple[Settings, float],
    cluster: str,
    parts: int | None,
    memory: str | int,
    threads: int | None,
    folder: Path | None,
    progress: Callable[..., None] | None,
    details: bool,
) -> tuple[GalleryPlan, GalleryPass]:
    """Count all parts of a prepared gallery on a cluster; ``settings`` are those of the evaluation, and the margin."""
    cores, size = 1 if threads is None else checks.whole(threads, "threads"), read_size(memory)
    kept = None if folder is None else parts_kept_in(folder)
    check_kept(parts, kept, folder)
    with connected(cluster):
        room = wait_for_places(cores, size, cluster)
        plan = gallery_plan_on(prepared, size, parts or kept, room)
        report = reporter(plan, progress, details)
        if folder is None:
            return plan, compare_on_ray(plan, None, cores, report)
        with journal_in(folder, settings, GalleryJournal) as journal:
            return plan, compare_on_ray(plan, journal, cores, report)


def check_kept(parts: int | None, kept: int | None, folder: Path | None) -> None:
    """Refuse another number of parts than that of the parts in the folder."""
    if parts is not None and kept is not None and parts != kept:
        raise InputError(f"parts is {parts}, but {folder} has parts of {kept}: leave it out, or choose another folder")


# ----- the cluster


@contextmanager
def connected(cluster: str) -> Iterator[None]:
    """Connect this process to a cluster: ``"auto"``, an address, or ``"local"`` for one of its own on this machine.

    A connection that the process has already is used, and stays.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault(OOM_RETRIES, "3")
    os.environ.setdefault(REPORTED_HERE, "1")
    ending = signal.getsignal(signal.SIGTERM)
    try:
        if cluster == "local":
            for name, value in LOCAL.items():
                os.environ.setdefault(name, value)
            own = {"num_cpus": available_cores(), "include_dashboard": False}
            ray.init("local", log_to_driver=False, logging_level=logging.ERROR, **own)
        else:
            ray.init(cluster, log_to_driver=False, logging_level=logging.ERROR)
    except (RuntimeError, ValueError, OSError) as error:
        words = " ".join(str(error).split())[:200]
        remedy = "start one with ray start --head, or use local for this machine alone"
        if cluster not in ("auto", "local"):  # Ray looks for its token by itself only if it looks for the cluster
            remedy = "if it has a token, set RAY_AUTH_MODE=token, or give auto on one of its nodes"
        raise InputError(f"there is no connection to the Ray cluster {cluster!r} ({words}): {remedy}") from error
    if callable(ending) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ending)  # Ray's prints where the process is, and hides how a command ends
    try:
        yield
    finally:
        ray.shutdown()


def check_address(cluster: str) -> None:
    """Refuse an address at which nothing answers. Ray would wait for minutes, and then end the process."""
    if not isinstance(cluster, str):
        raise InputError(f"the Ray cluster is {cluster!r}: auto, local or an address such as 10.0.0.1:6379 is needed")
    if cluster in ("auto", "local") or ray.is_initialized():
        return
    if "://" in cluster:
        raise InputError(
            f"the Ray cluster {cluster!r} is the address of a Ray client: run the command on a node of the cluster, "
            "with ray job submit for example, and give auto"
        )
    host, _, port = cluster.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"the Ray cluster is {cluster!r}: auto, local or an address such as 10.0.0.1:6379 is needed")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {cluster} ({error.strerror or error}): check the address, which ray start "
            "--head prints"
        ) from error


def wait_for_places(threads: int, memory: int, cluster: str) -> int:
    """Return how many parts can be counted at a time. If no node is large enough, wait for one, and then refuse."""
    deadline = time.monotonic() + (0 if cluster == "local" else PATIENCE)
    while not (found := places(threads, memory)):
        if time.monotonic() >= deadline:
            raise InputError(
                f"no node of the Ray cluster has {threads} CPUs and {memory / 1e9:.3g} GB of memory for a part: use a "
                "smaller memory, or fewer threads"
            )
        time.sleep(0.5)
    return found


# ----- the plan and the journal


def plan_on(
    prepared: Prepared, memory: int, settings: Settings, parts: int | None, room: int, shifts: RowShifts | None = None
) -> PartPlan:
    """Plan so many parts; by default several for each place, and at most one pair of superblocks for each part."""
    if parts is not None:
        return plan_for(prepared, parts, memory, settings, shifts)
    sampled, blocks = settings.pairs == "stratified", -(-len(prepared.vectors) // tiles.TILE_ROWS)
    most = blocks if sampled else blocks * (blocks + 1) // 2
    plan = plan_for(prepared, min(PARTS_PER_PLACE * room, most), memory, settings, shifts)
    cells = plan.superblocks if sampled else plan.superblocks * (plan.superblocks + 1) // 2
    if cells <= plan.parts:
        return plan
    return plan_for(prepared, min(cells, plan.tiles), memory, settings, shifts)


def neighbour_plan_on(
    prepared: Prepared, memory: int, settings: dict[str, Any], parts: int | None, room: int
) -> NeighbourPlan:
    """Plan so many parts; by default several for each place, and more if the lists of a part would not fit."""
    sizes = {name: settings[name] for name in ("neighbours", "skip")}
    if parts is not None:
        return plan_neighbours(prepared, parts, memory=memory, **sizes)
    most = number_of_tiles(len(prepared.vectors))
    return plan_until_it_fits(lambda parts: plan_neighbours(prepared, parts, memory=memory, **sizes), room, most)


def gallery_plan_on(prepared: PreparedGallery, memory: int, parts: int | None, room: int) -> GalleryPlan:
    """Plan so many parts; by default several for each place, and more if the counts of a part would not fit."""
    if parts is not None:
        return plan_gallery(prepared, parts, memory=memory)
    blocks = [-(-len(rows) // tiles.TILE_ROWS) for rows in (prepared.probes, prepared.rows)]
    most = blocks[0] * min(blocks[1], len(prepared.names))
    return plan_until_it_fits(lambda parts: plan_gallery(prepared, parts, memory=memory), room, most)


def plan_until_it_fits(plan: Callable[[int], Plan], room: int, most: int) -> Plan:
    """Plan several parts for each place; more if those need too much memory, fewer if there are not so many blocks."""
    wanted = min(PARTS_PER_PLACE * room, most)
    more = [wanted * 2**times for times in range((most // wanted).bit_length())]
    fewer = [wanted // 2**times for times in range(1, wanted.bit_length())]
    refusals = {}
    for parts in (*more, most, *fewer):
        try:
            return plan(parts)
        except InputError as error:
            refusals[parts] = error
    raise refusals[most]  # so many parts need least memory


def neighbours_kept_in(folder: Path) -> int | None:
    """Return into how many parts the plan of the neighbours in a folder divides the pairs; None if it has none."""
    first = next(iter(sorted(folder.glob(PATTERN))), None)
    return None if first is None else int(NeighbourFile.open(first).header["parts"])


def parts_kept_in(folder: Path) -> int | None:
    """Return into how many parts the plan of the files in a folder divides the pairs; None if it has no such files."""
    first = next(iter(sorted(folder.glob("part-*.npz"))), None)
    return None if first is None else int(PartFile.open(first).header["parts"])


@contextmanager
def journal_in(folder: Path, settings: Any, kind: type[Journal] = Journal) -> Iterator[Journal]:
    """Use a folder as the journal, alone."""
    with locked(folder, wait=False) as free:
        if not free:
            raise InputError(f"{folder} is in use by another evaluation: wait until it ends, or choose another folder")
        for left_behind in folder.glob(".journal-*"):  # by a call that was killed
            left_behind.unlink(missing_ok=True)
        mark = folder / f".journal-{secrets.token_hex(8)}"
        mark.touch()
        try:
            yield kind(folder.resolve(), settings, mark.name)
        finally:
            mark.unlink(missing_ok=True)


# ----- progress


def reporter(plan: AnyPlan, progress: Callable[..., None] | None, details: bool) -> Report | None:
    """Turn a function that takes the share of the work done, and a text with ``details``, into one that takes parts."""
    if progress is None:
        return None
    pairs, begin = pairs_of(plan), time.monotonic()

    def report(done: int, known: int) -> None:
        share = done / plan.parts
        if not details:
            progress(share)
            return
        progress(share, progress_text(done, known, plan.parts, pairs, time.monotonic() - begin))

    return report


def pairs_of(plan: AnyPlan) -> int:
    """Return how many pairs are counted."""
    if isinstance(plan, GalleryPlan):
        return plan.data.comparisons
    n = len(plan.prepared.vectors)
    return n * (n - 1) // 2 if plan.columns is None else n * plan.columns


def progress_text(done: int, known: int, parts: int, pairs: int, seconds: float) -> str:
    """Say how many parts are done, how fast pairs are counted and how long the rest will take.

    >>> progress_text(10, 2, 64, 64_000_000, 4.0)
    '10 of 64 parts, 2.0 million pairs/s, 0:00:27 left'
    >>> progress_text(2, 2, 64, 64_000_000, 4.0)
    '2 of 64 parts'
    """
    text = f"{done:,} of {parts:,} parts"
    if done <= known:  # those were in the journal
        return text
    speed = (done - known) / seconds
    left = timedelta(seconds=round((parts - done) / speed))
    return f"{text}, {pairs / parts * speed / 1e6:,.1f} million pairs/s, {left} left"
