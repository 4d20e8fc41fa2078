"""Count the parts of a plan on a Ray cluster: one task per part, and trees of tasks that merge their counts.

Ray places tasks, moves their results and repeats what fails; this module says what the tasks are and how many may wait.
Workers map the prepared embeddings into memory where they see the folder; elsewhere the rows come through Ray's object
store, from the driver's node. The files of finished parts, in a folder, are the journal.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from isomargin.core.errors import InputError
from isomargin.core.text import listed_numbers
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.gallery_plan import GalleryPlan
from isomargin.measure.pairs.gallery_prepare import PreparedGallery, is_prepared_gallery
from isomargin.measure.pairs.neighbour_parts import NeighbourPlan
from isomargin.measure.pairs.part_files import PartFile, already_counted, name_of, save_part
from isomargin.measure.pairs.part_plan import PartPlan
from isomargin.measure.pairs.parts import (
    PartCounts,
    SuperblockCounts,
    count_part,
    finish_parts,
    merge_superblocks,
    narrowed,
)
from isomargin.measure.pairs.prepare import Prepared, is_prepared
from isomargin.measure.pairs.tiles import PassResult

AnyPlan = PartPlan | NeighbourPlan | GalleryPlan
SEES = {Prepared: is_prepared, PreparedGallery: is_prepared_gallery}
"""Whether this process sees a folder, by the class of what was prepared there."""

RETRIES = 3  # of a part whose worker or node dies, or whose files cannot be read or written
FAILED_PARTS = 3  # after so many failed parts, no others are started
FAN_IN = 4  # counts of a superblock that are merged at a time
IN_FLIGHT = 2  # parts that run or wait, per place to run
SENT_BYTES = 16 << 20  # rows sent at a time to a node that does not see the folder
SECONDS = 1.0  # between looks at the nodes

Report = Callable[[int, int], None]
"""Is called with the number of parts that are done, and how many of them were in the journal already."""


# ----- what is sent to workers


class RowsElsewhere:
    """A file of vectors that this node does not see: tasks on the driver's node, which does, read the rows."""

    def __init__(self, path: Path, shape: tuple[int, int], kind: str, node: str) -> None:
        self.path, self.shape, self.dtype = path, shape, np.dtype(kind)
        self.read = ray.remote(read_rows).options(num_cpus=0, max_retries=RETRIES, scheduling_strategy=on(node))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        wanted = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        found = np.empty((len(wanted), self.shape[1]), self.dtype)
        step = max(1, SENT_BYTES // (self.dtype.itemsize * self.shape[1]))
        for first in range(0, len(wanted), step):  # one after the other, so that the object store may be small
            piece = wanted[first : first + step]
            sent = slice(int(piece[0]), int(piece[-1]) + 1) if isinstance(rows, slice) else piece
            found[first : first + step] = ray.get(self.read.remote(self.path, sent))
        return found


def read_rows(path: Path, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
    """Read some rows of a file, on the driver's node."""
    return np.ascontiguousarray(np.load(path, mmap_mode="r", allow_pickle=False)[rows])


@dataclass(frozen=True)
class SentPlan:
    """A plan without the vectors, for workers on any node."""

    digest: str
    """The plan's digest."""
    node: str
    """The driver's node, which sees the folder of the embeddings."""
    mapped: dict[str, tuple[str, tuple[int, int], str]]
    """By the field that maps them: file in the folder, shape and type of vectors."""
    kind_of_prepared: Any
    """The class of the prepared folder."""
    prepared: dict[str, Any]
    """Fields of the prepared folder without the vectors."""
    kind: type
    """The class of the plan."""
    plan: dict[str, Any]
    """Fields of the plan without the embeddings."""

    @classmethod
    def of(cls, plan: AnyPlan, node: str) -> "SentPlan":
        """Take the vectors out of a plan."""
        prepared, whole = (
            {field.name: getattr(source, field.name) for field in fields(source)} for source in (plan.prepared, plan)
        )
        mapped = {}
        for name, file in plan.prepared.mapped.items():
            vectors = prepared.pop(name)
            mapped[name] = file, vectors.shape, vectors.dtype.str
        del whole["prepared"]
        prepared["folder"] = prepared["folder"].resolve()
        return cls(plan.digest, node, mapped, type(plan.prepared), prepared, type(plan), whole)

    def open(self) -> Any:
        """Return the plan, with vectors that are read from the folder or, where it is not seen, from its node."""
        folder: Path = self.prepared["folder"]
        key = self.digest, folder, self.node
        if key not in _plans:
            kind = self.kind_of_prepared
            local = kind.open(folder) if SEES[kind](folder) else None
            elsewhere = local is None or local.digest != self.prepared["digest"]
            if elsewhere:
                rows = {name: RowsElsewhere(folder / at[0], *at[1:], self.node) for name, at in self.mapped.items()}
                local = kind(**rows, **self.prepared)
            plan = self.kind(prepared=local, **self.plan)
            vars(plan)["digest"] = self.digest  # known already
            if elsewhere and isinstance(plan, PartPlan) and plan.strips:
                raise InputError(
                    "the queries of classes of more than 512 items are ranked from complete rows, and a worker does "
                    f"not see {folder}: prepare the embeddings on storage that all nodes share, or leave out map_at_r"
                )
            _plans.clear()
            _plans[key] = plan
        return _plans[key]


_plans: dict[tuple[str, Path, str], AnyPlan] = {}
"""The plan that this worker took a part of last."""


@dataclass(frozen=True)
class Journal:
    """The folder of the files of finished parts."""

    folder: Path
    """The folder."""
    settings: Any
    """The settings of the evaluation or of the equalizer, which the files hold."""
    mark: str
    """Name of a file in it, by which a worker knows that it sees the same folder."""

    def seen(self) -> bool:
        """Whether this process sees the folder."""
        return (self.folder / self.mark).exists()

    def has(self, plan: Any, number: int) -> bool:
        """Whether a part is in the journal; the file of another plan is refused."""
        return already_counted(self.folder, plan, self.settings, number)


class Counted(NamedTuple):
    """What the driver learns of a part that is done."""

    large: dict[int, Floats]
    """Ranks of queries of large classes."""
    kept: bool
    """Whether its file is in the journal."""


# ----- tasks


def count_or_read(sent: SentPlan, journal: Journal | None, number: int, threads: int) -> list[Any]:
    """Count a part and write it into the journal; or read it from there, if an earlier attempt came that far.

    Returns:
        `Counted`, and the counts of each superblock that the part touches, in order.
    """
    plan = sent.open()
    keeps = journal is not None and journal.seen()
    if keeps and journal is not None and journal.has(plan, number):
        counts = PartFile.open(journal.folder / name_of(plan, number)).counts()
    else:
        counts = count_part(plan, number, threads=threads)
        narrow = {superblock: narrowed(found) for superblock, found in counts.superblocks.items()}
        counts = replace(counts, superblocks=narrow)
        if keeps and journal is not None:
            save_part(journal.folder, plan, journal.settings, counts)
    return [Counted(counts.large, keeps), *(found for _, found in sorted(counts.superblocks.items()))]


def save_here(
    sent: SentPlan, journal: Journal, number: int, superblocks: list[int], counted: Counted, *found: SuperblockCounts
) -> None:
    """Write a part into the journal, on the driver's node, because its worker does not see the folder."""
    counts = PartCounts(sent.digest, (number,), dict(zip(superblocks, found, strict=True)), counted.large)
    save_part(journal.folder, sent.open(), journal.settings, counts)


def merge_some(sent: SentPlan, superblock: int, *counts: SuperblockCounts) -> list[Any]:
    """Merge counts of one superblock. Returns None, which the driver waits for, and the merged counts."""
    plan, merged = sent.open(), counts[0]
    for found in counts[1:]:
        merged = merge_superblocks(plan, superblock, merged, writable(found))
    return [None, narrowed(merged)]


def writable(counts: SuperblockCounts) -> SuperblockCounts:
    """Copy the ranks, because arrays in the object store are read-only and kernels are compiled for the others."""
    return replace(counts, alive=counts.alive.copy(), between=counts.between.copy())


@dataclass(frozen=True)
class Tasks:
    """What is done on the cluster for a plan of one kind."""

    count: Callable[..., list[Any]]
    """Returns `Counted`, and what a part has found for each superblock that it touches."""
    save: Callable[..., None]
    """Writes a part into the journal, on the driver's node."""
    merge: Callable[..., list[Any]]
    """Returns None, and what several parts have found for one superblock, merged."""


COUNTING = Tasks(count_or_read, save_here, merge_some)


def on(node: str) -> NodeAffinitySchedulingStrategy:
    """Run a task on this node."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


# ----- the driver


class Run:
    """One run over all parts: what is in flight, what waits to be merged, and what has failed."""

    def __init__(self, plan: AnyPlan, journal: Journal | None, threads: int, tasks: Tasks) -> None:
        self.plan, self.journal, self.threads = plan, journal, threads
        node = ray.get_runtime_context().get_node_id()
        self.sent = ray.put(SentPlan.of(plan, node))
        self.sent_journal = ray.put(journal)
        tried = {"max_retries": RETRIES, "retry_exceptions": [OSError, MemoryError]}
        self.anywhere = {"num_cpus": threads, "memory": plan.memory, **tried}
        self.here = {"num_cpus": min(1, cores_of(node)), "scheduling_strategy": on(node), **tried}
        self.count = ray.remote(tasks.count)
        self.save = ray.remote(tasks.save).options(**self.here)
        self.merge = ray.remote(tasks.merge).options(num_cpus=1, num_returns=2, **tried)
        self.touched = {number: plan.touched_by(number) for number in plan.numbers}
        self.left = Counter(superblock for found in self.touched.values() for superblock in found)
        self.waiting: list[list[list[Any]]] = [[] for _ in range(plan.superblocks)]  # by height of their tree
        self.counting: dict[Any, tuple[int, list[Any]]] = {}  # the parts in flight: number, counts by superblock
        self.others: dict[Any, str] = {}  # merges, and parts that are being saved
        self.large: dict[int, Floats] = {}
        self.failed: dict[int, str] = {}
        self.done = 0

    def count_all(self, report: Report | None) -> None:
        """Count all parts; those in the journal come first, and are read."""
        plan, journal = self.plan, self.journal
        there = [number for number in plan.numbers if journal is not None and journal.has(plan, number)]
        known = set(there)
        to_start = iter([*there, *(number for number in plan.numbers if number not in known)])
        more, limit, looked = True, 0, 0.0
        while more or self.counting or self.others:
            if time.monotonic() - looked > SECONDS:  # nodes come and go
                limit, looked = IN_FLIGHT * max(1, places(self.threads, plan.memory)), time.monotonic()
            while more and len(self.counting) < limit and len(self.others) < 2 * limit:
                number = next(to_start, None)
                if number is None or len(self.failed) >= FAILED_PARTS:
                    more = False
                else:
                    self.start(number, read=number in known)
            pending = [*self.counting, *self.others]
            if pending:
                ended, _ = ray.wait(pending, num_returns=len(pending), timeout=0, fetch_local=False)
                for task in ended or ray.wait(pending, timeout=SECONDS, fetch_local=False)[0]:
                    self.finish(task)
            if report is not None:
                report(self.done, min(self.done, len(known)))
            if self.failed and journal is None:  # nothing would be kept
                break
        self.check_failed()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *exception: object) -> None:
        for task in [*self.counting, *self.others]:
            ray.cancel(task, force=True)

    def start(self, number: int, read: bool) -> None:
        """Submit a part."""
        options = self.here if read else self.anywhere
        task = self.count.options(num_returns=1 + len(self.touched[number]), **options)
        counted, *counts = task.remote(self.sent, self.sent_journal, number, self.threads)
        self.counting[counted] = number, counts

    def finish(self, task: Any) -> None:
        """Take note of what has ended: a part, a merge, or a part that was saved."""
        if task in self.others:
            what = self.others.pop(task)
            try:
                ray.get(task)
            except RayError as error:
                raise InputError(f"{what} failed {RETRIES + 1} times ({reason(error)}){self.advice()}") from error
            return
        number, counts = self.counting.pop(task)
        try:
            counted: Counted = ray.get(task)
        except RayError as error:
            self.failed[number] = reason(error)
            return
        self.large |= counted.large
        if self.journal is not None and not counted.kept:
            saved = self.save.remote(self.sent, self.sent_journal, number, self.touched[number], task, *counts)
            self.others[saved] = f"saving part {number}"
        for superblock, found in zip(self.touched[number], counts, strict=True):
            self.left[superblock] -= 1
            self.add(superblock, found, 0)
        self.done += 1

    def add(self, superblock: int, counts: Any, height: int) -> None:
        """Let counts wait for others of the same superblock, and merge them when there are enough, or no more come."""
        heights = self.waiting[superblock]
        heights.extend([] for _ in range(height + 1 - len(heights)))
        heights[height].append(counts)
        all_here = self.left[superblock] == 0
        together = [found for same in heights for found in same] if all_here else heights[height]
        if len(together) < (2 if all_here else FAN_IN):
            return
        done, merged = self.merge.remote(self.sent, superblock, *together)
        self.others[done] = f"merging superblock {superblock}"
        if all_here:
            self.waiting[superblock] = [[merged]]
        else:
            heights[height] = []
            self.add(superblock, merged, height + 1)

    def take(self, superblock: int) -> Any:
        """Return the merged counts of a superblock, and let go of them."""
        ((found,),) = (same for same in self.waiting[superblock] if same)
        self.waiting[superblock] = []
        try:
            return ray.get(found)
        except RayError as error:
            raise InputError(f"the counts of a superblock were lost ({reason(error)}){self.advice()}") from error

    def advice(self) -> str:
        """Say what is kept and what to do."""
        if self.journal is None:
            return ": give a folder as work, and what is done is kept there"
        return f": what is done is kept in {self.journal.folder}, and the same call goes on from there"

    def check_failed(self) -> None:
        """Raise one sentence if parts have failed."""
        if self.failed:
            number, why = next(iter(self.failed.items()))
            times = f" {RETRIES + 1} times" if why.startswith("its worker") else ""
            raise InputError(
                f"part {listed_numbers(sorted(self.failed))} of {self.plan.parts} failed{times} "
                f"({'' if len(self.failed) == 1 else f'part {number}: '}{why}){self.advice()}"
            )


def count_on_ray(
    plan: PartPlan, k: Sequence[int], journal: Journal | None, threads: int, report: Report | None
) -> PassResult:
    """Count all parts of a plan on the cluster that this process is connected to, and assemble their counts.

    Of the counts, this process holds those of all classes once, and those of one superblock in addition.
    """
    with Run(plan, journal, threads, COUNTING) as run:
        run.count_all(report)
        return finish_parts(plan, lambda superblock: writable(run.take(superblock)), run.large, k)


def cores_of(node: str) -> float:
    """Return the number of cores of a node on which tasks may run; that of a head node is often 0."""
    return float(sum(found["Resources"].get("CPU", 0) for found in ray.nodes() if found["NodeID"] == node))


def places(threads: int, memory: int) -> int:
    """Return how many parts the nodes that are there now can count at the same time."""
    found = 0
    for node in ray.nodes():
        if node["Alive"]:
            cores, room = (node["Resources"].get(name, 0) for name in ("CPU", "memory"))
            found += int(min(cores // threads, room // memory))
    return found


def reason(error: RayError) -> str:
    """Say in a few words why a task failed."""
    if isinstance(error, RayTaskError):
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, InputError):
            return str(cause)
        return f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
    if isinstance(error, OutOfMemoryError):
        return "its worker ran out of memory: use a smaller memory, or more parts"
    if isinstance(error, WorkerCrashedError):
        return "its worker died"
    return f"its worker or its node was lost, {type(error).__name__}"
