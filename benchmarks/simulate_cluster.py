"""Simulate counting in parts on a cluster, with stragglers and failures: wall time, network and memory.

    python benchmarks/simulate_cluster.py                            # the tables of docs/scale.md, some minutes
    python benchmarks/simulate_cluster.py --items 1e7 --nodes 64     # one line; see --help for what can be changed

Workers take the parts of the project's own plan one after the other, read what is not in their node's page cache, and
merge the counts of each superblock in a tree, as tasks of Ray do. ``check_simulation.py`` compares the simulation with
real parts.
"""

import argparse
import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from cluster_costs import TILE, Costs, Job, Work, duration, finish_seconds, prepare_seconds, size_text, work_of
from isomargin.measure.pairs import tiles

FAN_IN = 4  # counts of a superblock that are merged at a time
ATTEMPTS = 8  # slow-downs that are drawn for each part


@dataclass(frozen=True)
class Cluster:
    """The machines, and what goes wrong with them."""

    nodes: int
    cores: int = 32
    threads: int = 4
    """Cores of a worker, which counts one part at a time."""
    memory: float = 16e9
    """Bytes of a worker."""
    cache: float = 64e9
    """Bytes of a node in which files that were read stay."""
    network: float = 1.25e9
    """Bytes per second into a node: 10 Gbit/s."""
    storage: float = 10e9
    """Bytes per second out of the shared storage, for all nodes together."""
    coordination: float = 5e-3
    """Seconds of the driver for a part or a merge, which it handles one after the other."""
    start: float = 3.0
    """Seconds until a worker is ready."""
    slow_down: float = 0.25
    """Each part takes exp(s z) times as long, with z normal and this s: 1 in 100 takes 1.8 times as long."""
    failures: float = 1e-3
    """Failures per node and hour: a node fails about every six weeks."""
    detection: float = 30.0
    """Seconds until the parts of a failed node are started elsewhere."""
    absence: float = 300.0
    """Seconds until a failed node is back."""

    @property
    def workers(self) -> int:
        """Number of parts that are counted at a time."""
        return self.nodes * (self.cores // self.threads)


# ----- the simulation


@dataclass
class Outcome:
    """What happened in one run."""

    seconds: float = 0.0
    network: float = 0.0
    into_driver: float = 0.0
    attempts: int = 0
    counted: Counter[int] = field(default_factory=Counter)
    """By part: in the merged counts of how many superblocks it is."""
    lost_seconds: float = 0.0
    """Time of workers for what was lost."""


class Simulation:
    """One run: workers, queues and the events that are to come."""

    def __init__(
        self,
        work: Work,
        cluster: Cluster,
        costs: Costs,
        generator: np.random.Generator,
        failures: Sequence[tuple[float, int]],
    ) -> None:
        self.work, self.cluster, self.costs = work, cluster, costs
        per_node = cluster.cores // cluster.threads
        self.node_of = [worker // per_node for worker in range(cluster.workers)]
        spread = generator.standard_normal((len(work.parts), ATTEMPTS)) if cluster.slow_down else None
        self.factors = None if spread is None else np.exp(cluster.slow_down * spread)  # by part and attempt
        self.free = deque(sorted(range(cluster.workers), key=lambda worker: worker % per_node))  # spread over the nodes
        self.epoch = [0] * cluster.nodes  # counts a node's failures: what was started before has been lost
        self.back = [0.0] * cluster.nodes
        self.caches: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(cluster.nodes)]
        self.held = [0.0] * cluster.nodes
        self.card_free = [0.0] * cluster.nodes
        self.storage_free = self.driver_free = 0.0
        self.parts = deque(range(len(work.parts)))
        self.merges: deque[tuple[int, int, list[tuple[int, ...]]]] = deque()
        self.total = Counter(superblock for part in work.parts for superblock in part.touched)
        self.left = Counter(self.total)
        self.waiting: list[list[list[tuple[int, ...]]]] = [[] for _ in work.count_bytes]
        self.merged: dict[int, tuple[int, ...]] = {}
        self.tried = [0] * len(work.parts)
        self.running: dict[int, tuple[float, Any]] = {}  # by worker: since when, and what
        self.events: list[tuple[float, int, str, Any]] = []
        self.sequence = 0
        self.outcome = Outcome()
        for time, node in failures:
            self.push(time, "failure", node)

    def push(self, time: float, kind: str, what: Any) -> None:
        """Note what will happen."""
        heapq.heappush(self.events, (time, self.sequence, kind, what))
        self.sequence += 1

    def run(self) -> Outcome:
        """Return what happened once all counts are merged and with the driver."""
        now = self.cluster.start
        while len(self.merged) < len(self.left):
            self.assign(now)
            now, _, kind, what = heapq.heappop(self.events)
            getattr(self, kind)(max(now, self.cluster.start), what)
            now = max(now, self.cluster.start)
        size = self.work.merged_bytes
        self.outcome.seconds = now + size / self.cluster.network
        self.outcome.into_driver = size
        self.outcome.network += size
        for found in self.merged.values():
            self.outcome.counted.update(found)
        return self.outcome

    def assign(self, now: float) -> None:
        """Give free workers something to do: merges first, so that few counts wait."""
        while self.free and (self.merges or self.parts):
            worker = self.free.popleft()
            node = self.node_of[worker]
            begin = self.driver_free = max(self.driver_free, now) + self.cluster.coordination
            if self.merges:
                task: Any = self.merges.popleft()
                size = self.work.count_bytes[task[0]] * len(task[2])
                away = size * (1 - 1 / self.cluster.nodes)
                end = self.transfer(node, begin, away, stored=False) + self.costs.merge * size
            else:
                task = self.parts.popleft()
                end = self.count(node, begin, task)
            self.running[worker] = begin, task
            self.push(end, "done", (worker, self.epoch[node]))

    def count(self, node: int, begin: float, number: int) -> float:
        """Return when a part that begins now will be done."""
        part, tried = self.work.parts[number], self.tried[number]
        self.tried[number] += 1
        self.outcome.attempts += 1
        needed = part.sampled_bytes + sum(self.work.vector_bytes[i] for i in part.read if not self.cached(node, i))
        arrived = self.transfer(node, begin, needed, stored=True)
        factor = 1.0 if self.factors is None else float(self.factors[number, tried % ATTEMPTS])
        left = sum(self.work.count_bytes[superblock] for superblock in part.touched)
        self.outcome.network += self.costs.file_share * left
        return arrived + factor * (part.core_seconds / self.cluster.threads + self.costs.write * left)

    def cached(self, node: int, superblock: int) -> bool:
        """Whether a node has the vectors of a superblock; they are afterwards there, and the oldest ones may not be."""
        found, size = self.caches[node], self.work.vector_bytes[superblock]
        known = superblock in found
        if known:
            found.move_to_end(superblock)
        else:
            found[superblock] = size
            self.held[node] += size
            while self.held[node] > self.cluster.cache and found:
                self.held[node] -= found.popitem(last=False)[1]
        return known

    def transfer(self, node: int, begin: float, size: float, stored: bool) -> float:
        """Return when so many bytes are on a node. Its network card and the storage serve one request at a time."""
        if not size:
            return begin
        self.outcome.network += size
        end = self.card_free[node] = max(self.card_free[node], begin) + size / self.cluster.network
        if stored:
            self.storage_free = max(self.storage_free, begin) + size / self.cluster.storage
            end = max(end, self.storage_free)
        return end

    # ----- events

    def done(self, now: float, what: tuple[int, int]) -> None:
        """A worker has done its task, unless its node has failed since."""
        worker, epoch = what
        if epoch != self.epoch[self.node_of[worker]]:
            return
        _, task = self.running.pop(worker)
        self.free.append(worker)
        if isinstance(task, int):
            for superblock in self.work.parts[task].touched:
                self.left[superblock] -= 1
                self.add(superblock, (task,), 0)
        else:
            superblock, height, together = task
            self.add(superblock, tuple(part for found in together for part in found), height)

    def add(self, superblock: int, counts: tuple[int, ...], height: int) -> None:
        """Let counts wait for others of their superblock; the last ones are merged however few they are."""
        heights = self.waiting[superblock]
        heights.extend([] for _ in range(height + 1 - len(heights)))
        heights[height].append(counts)
        if self.left[superblock] == 0:
            there = [found for same in heights for found in same]
            if sum(map(len, there)) < self.total[superblock]:
                return  # others are being merged
            if len(there) == 1:
                self.merged[superblock] = there[0]
            else:
                self.merges.append((superblock, height + 1, there))
                self.waiting[superblock] = []
        elif len(heights[height]) == FAN_IN:
            self.merges.append((superblock, height + 1, heights[height]))
            heights[height] = []

    def failure(self, now: float, node: int) -> None:
        """A node fails: what it did is lost, and what it had read. Finished counts are kept by the journal."""
        if self.back[node] > now:
            return  # it is not there
        self.epoch[node] += 1
        self.back[node] = now + self.cluster.absence
        self.caches[node].clear()
        self.held[node] = 0.0
        own = [worker for worker, where in enumerate(self.node_of) if where == node]
        self.free = deque(worker for worker in self.free if self.node_of[worker] != node)
        lost = [self.running.pop(worker) for worker in own if worker in self.running]
        self.outcome.lost_seconds += sum(max(0.0, now - begin) for begin, _ in lost)
        self.push(now + self.cluster.detection, "again", [task for _, task in lost])
        self.push(self.back[node] + self.cluster.start, "returned", (own, self.epoch[node]))

    def again(self, now: float, tasks: list[Any]) -> None:
        """Lost tasks wait for a worker again, before all others."""
        for task in tasks:
            (self.parts if isinstance(task, int) else self.merges).appendleft(task)

    def returned(self, now: float, what: tuple[list[int], int]) -> None:
        """The workers of a node are there again, unless it has failed in the meantime."""
        workers, epoch = what
        if epoch == self.epoch[self.node_of[workers[0]]]:
            self.free.extend(workers)


def draw_failures(cluster: Cluster, horizon: float, generator: np.random.Generator) -> list[tuple[float, int]]:
    """Draw when nodes fail until a time."""
    number = generator.poisson(cluster.failures * cluster.nodes * horizon / 3600)
    times = generator.uniform(0, horizon, number)
    return sorted(zip(times.tolist(), generator.integers(0, cluster.nodes, number).tolist(), strict=True))


def simulate(work: Work, cluster: Cluster, costs: Costs, seed: int) -> Outcome:
    """Simulate one run."""
    generator = np.random.default_rng(seed)
    horizon = 20 * (cluster.start + 60 + work.core_seconds / (cluster.workers * cluster.threads))
    return Simulation(work, cluster, costs, generator, draw_failures(cluster, horizon, generator)).run()


# ----- tables


def line(cells: Sequence[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    job: Job
    cluster: Cluster
    work: Work
    outcomes: tuple[Outcome, ...]

    def quantile(self, share: float) -> float:
        """Return a quantile of the wall time over the repetitions."""
        return float(np.quantile([outcome.seconds for outcome in self.outcomes], share))

    def text(self, costs: Costs) -> str:
        """Return the line."""
        network = np.median([outcome.network for outcome in self.outcomes])
        before = prepare_seconds(self.job, self.cluster.memory, self.cluster.network, costs)
        after = finish_seconds(self.job, self.cluster.network, costs)
        cells = (
            f"{self.job.items / 1e6:g} million",
            f"{self.cluster.nodes}",
            f"{len(self.work.parts):,}",
            duration(before),
            f"{duration(self.quantile(0.5))} ({duration(self.quantile(0.95))})",
            duration(after),
            size_text(float(network)),
            size_text(self.work.merged_bytes),
            size_text(self.work.worker_memory),
            size_text(self.work.driver_memory),
        )
        return line(cells)


COLUMNS = (
    "items", "nodes", "parts", "prepare", "count and merge (95%)", "scores", "network", "into the driver", "a worker",
    "the driver",
)  # fmt: skip


def choose_parts(job: Job, cluster: Cluster, costs: Costs) -> Work:
    """Try several numbers of parts for each worker, and return the work with the shortest run without failures."""
    blocks = job.items // tiles.TILE_ROWS
    most = blocks if job.columns is not None else blocks * (blocks + 1) // 2
    steady = replace(cluster, failures=0.0)
    wanted = {min(most, max(1, round(factor * cluster.workers))) for factor in (1 / 16, 1 / 4, 1, 4, 8)}
    works = [work_of(job, parts, cluster.memory, costs) for parts in sorted(wanted)]
    return min(works, key=lambda work: simulate(work, steady, costs, 0).seconds)


def simulate_all(job: Job, cluster: Cluster, costs: Costs, repetitions: int) -> Row:
    """Choose the number of parts, and simulate several runs."""
    work = choose_parts(job, cluster, costs)
    outcomes = tuple(simulate(work, cluster, costs, seed) for seed in range(1, repetitions + 1))
    once = {number: len(part.touched) for number, part in enumerate(work.parts)}
    assert all(outcome.counted == once for outcome in outcomes)
    return Row(job, cluster, work, outcomes)


def largest_counted(cluster: Cluster, width: int, seconds: float, costs: Costs) -> float:
    """Return how many items have so few pairs that all cores count them in this time."""
    return math.sqrt(2 * TILE * seconds * cluster.nodes * cluster.cores / costs.tile[width])


def print_limits(cluster: Cluster, costs: Costs) -> None:
    """Print up to how many items all pairs are counted within an hour and within a night."""
    columns = ("nodes", "256 dimensions, an hour", "10 hours", "512 dimensions, an hour", "10 hours")
    print("\n" + line(columns) + "\n" + line(["---"] * len(columns)))
    for nodes in (1, 8, 64, 512):
        here = replace(cluster, nodes=nodes)
        found = [largest_counted(here, width, hours * 3600, costs) for width in (256, 512) for hours in (1, 10)]
        print(line([str(nodes), *(f"{value / 1e6:.1f} million" for value in found)]))


# ----- a GPU

GPUS = {  # published peaks: float32 operations per second without tensor cores, bytes per second, bytes of memory
    "A100 80 GB": (19.5e12, 2.039e12, 80e9),
    "H100 SXM": (66.9e12, 3.35e12, 80e9),
}


def print_gpus(jobs: Sequence[Job], costs: Costs) -> None:
    """Print estimates for the torch pass on one GPU, which computes both halves of the product."""
    columns = ("items", "GPU", "product", "by the ratio on a core", "by the memory's bandwidth", "memory")
    print("\n" + line(columns) + "\n" + line(["---"] * len(columns)))
    for job in jobs:
        for name, (operations, bandwidth, memory) in GPUS.items():
            pairs, classes = job.items**2, job.items // job.class_size
            product = pairs * 2 * job.width / operations
            counting = pairs * costs.torch_bytes / bandwidth
            needed = job.vector_bytes + 8 * classes * tiles.number_of_bins(classes, job.items)
            times = (product, product * costs.torch_ratio[job.width], product + counting)
            fits = "" if needed < 0.9 * memory else ": does not fit"
            print(line([f"{job.items / 1e6:g} million", name, *map(duration, times), size_text(needed) + fits]))


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=float, nargs="*", default=[1e6, 1e7, 1e8])
    parser.add_argument("--nodes", type=int, nargs="*", default=[8, 64, 512])
    parser.add_argument("--class-size", type=int, default=20)
    parser.add_argument("--width", type=int, choices=(256, 512), default=512)
    parser.add_argument("--no-map-at-r", action="store_true")
    parser.add_argument("--columns", type=int, help="sampled items for each block, instead of all pairs")
    parser.add_argument("--repetitions", type=int, default=9)
    changed = [field.name for field in fields(Cluster) if field.name != "nodes"]
    for name in changed:
        standard = getattr(Cluster(1), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(standard), default=standard)
    chosen, costs = vars(parser.parse_args()), Costs()
    cluster = Cluster(1, **{field.name: chosen[field.name] for field in fields(Cluster) if field.name in changed})
    jobs = [
        Job(int(items), chosen["class_size"], chosen["width"], not chosen["no_map_at_r"], chosen["columns"])
        for items in chosen["items"]
    ]
    print(line(COLUMNS) + "\n" + line(["---"] * len(COLUMNS)))
    for job in jobs:
        for nodes in chosen["nodes"]:
            row = simulate_all(job, replace(cluster, nodes=nodes), costs, chosen["repetitions"])
            print(row.text(costs), flush=True)
    print_limits(cluster, costs)
    print_gpus(jobs, costs)


if __name__ == "__main__":
    main()
