"""The cost of a Ray cluster: evaluating with two workers compared with one process, and coordination per part.

    python benchmarks/bench_ray.py             # everything, about eight minutes on 2 cores
    python benchmarks/bench_ray.py --ratio     # two workers compared with one process
    python benchmarks/bench_ray.py --parts     # coordination per part
    python benchmarks/bench_ray.py --quick     # a ninth of the pairs and at most 100 parts, to check that it runs

All times are without the start of the cluster and of its workers, which come first. One process counts with as many
threads as there are workers. What coordination costs is the CPU time of the whole evaluation on the cluster, that of
Ray's own processes included, less the CPU time of the same parts one after the other in one process without Ray.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray

import isomargin as im
from bench_evaluate import DIMENSIONS, PRODUCTS, make_embeddings
from isomargin.core.threads import available_cores
from isomargin.measure.on_cluster import connected
from isomargin.measure.pairs.part_plan import PartPlan, plan_for
from isomargin.measure.pairs.parts import merge_counts
from isomargin.measure.pairs.prepare import Prepared
from isomargin.measure.settings import Settings
from measuring import cpu_seconds, seconds, verdict

MEMORY = "2GB"
LIMIT = 1.2
SMALL = (24_000, 100, 16)  # items, classes and dimensions whose 1,000 parts are counted in little time
PARTS = (1, 10, 100, 1000)


def prepared_in(folder: Path, items: int, classes: int, dimensions: int = DIMENSIONS) -> Prepared:
    """Write embeddings of this size, sorted by class."""
    vectors, labels = make_embeddings(items, classes, dimensions)
    np.save(folder / f"{items}.npy", vectors)
    np.save(folder / f"{items}.labels.npy", labels)
    return im.prepare(folder / f"{items}.npy", folder / f"prepared-{items}")


def on_cluster(
    prepared: Prepared, parts: int | None = None, work: Path | None = None, **settings: Any
) -> im.Evaluation:
    """Evaluate on the cluster that this process is connected to."""
    return im.evaluate_shards(prepared.folder, memory=MEMORY, cluster="auto", parts=parts, work=work, **settings)


def ratio(prepared: Prepared, folder: Path, rounds: int) -> None:
    """Print the times of one process, of the cluster, and of the cluster with a journal, and their ratios."""
    vectors, labels = np.asarray(prepared.vectors), np.repeat(np.arange(len(prepared.sizes)), prepared.sizes)
    times: dict[str, list[float]] = {name: [] for name in ("evaluate", "shards", "cluster", "journal")}
    for number in range(rounds):
        times["evaluate"].append(seconds(lambda: im.evaluate(vectors, labels).scores()))
        times["shards"].append(seconds(lambda: im.evaluate_shards(prepared.folder, memory="4GB").scores()))
        times["cluster"].append(seconds(lambda: on_cluster(prepared).scores()))
        work = folder / f"work-{number}"
        times["journal"].append(seconds(lambda work=work: on_cluster(prepared, work=work).scores()))
    print(
        f"\n{len(labels):,} items, {DIMENSIONS} dimensions, {len(prepared.sizes):,} classes; median of {rounds} rounds"
    )
    for name, what in (
        ("evaluate", f"evaluate, one process with {available_cores()} threads"),
        ("shards", "evaluate_shards, the same from prepared embeddings"),
        ("cluster", f"evaluate_shards on a cluster of {available_cores()} workers"),
        ("journal", "the same, with finished parts kept in a folder"),
    ):
        print(f"  {statistics.median(times[name]):8.2f} s  {what}")
    for name, other, limit in (
        ("cluster", "evaluate", LIMIT),
        ("cluster", "shards", LIMIT),
        ("journal", "evaluate", None),
    ):
        found = statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))
        judged = "" if limit is None else f"   at most {limit}: {verdict(found <= limit)}"
        print(f"  {name:8s} / {other:8s} {found:6.3f}{judged}")


def coordination(prepared: Prepared, most: int) -> None:
    """Print what coordination costs per part, and how it grows with the number of parts."""
    workers = available_cores()
    began = cpu_seconds(), time.perf_counter()
    time.sleep(5)
    idle = (cpu_seconds() - began[0]) / (time.perf_counter() - began[1])
    print(f"\n{len(prepared.vectors):,} items: parts in one process, one thread, and on a cluster of {workers} workers")
    print(f"CPU time, without what Ray's processes take when idle ({idle * 1e3:.0f} ms per second)")
    print("   parts   one process       cluster    coordination per part")
    for parts in (parts for parts in PARTS if parts <= most):
        plan = plan_for(prepared, parts, MEMORY, Settings(map_at_r=False))

        def one_by_one(plan: PartPlan = plan) -> None:
            merged = im.count_part(plan, 1, threads=1)
            for number in plan.numbers[1:]:
                merged = merge_counts(plan, merged, im.count_part(plan, number, threads=1))
            im.merge_parts(plan, [merged], map_at_r=False).scores()

        if parts == PARTS[0]:  # for the first time, compiled code is loaded
            one_by_one()
            on_cluster(prepared, parts, map_at_r=False).scores()
        alone = cpu_of(one_by_one, idle)
        together = cpu_of(lambda parts=parts: on_cluster(prepared, parts, map_at_r=False).scores(), idle)
        cost = (together - alone) / parts
        print(f"  {parts:6,} {alone:11.2f} s {together:11.2f} s {cost * 1e3:17.1f} ms", flush=True)


def cpu_of(work: Callable[[], object], idle: float) -> float:
    """Return the CPU time of the work in this process and in those of Ray, less what Ray takes when idle."""
    began = cpu_seconds()
    duration = seconds(work)
    return cpu_seconds() - began - idle * duration


def empty_tasks(most: int) -> None:
    """Print what Ray itself takes for tasks that do nothing."""
    nothing = ray.remote(lambda: None)
    for count in (count for count in PARTS if count <= most):
        taken = min(seconds(lambda count=count: ray.get([nothing.remote() for _ in range(count)])) for _ in range(3))
        print(f"  {count:6,} empty tasks {taken / count * 1e3:6.2f} ms each")


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratio", action="store_true", help="only two workers compared with one process")
    parser.add_argument("--parts", action="store_true", help="only coordination per part")
    parser.add_argument("--quick", action="store_true", help="a ninth of the pairs and at most 100 parts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=PARTS[-1], help="largest number of parts")
    arguments = parser.parse_args()
    divisor, most = (3, min(100, arguments.most)) if arguments.quick else (1, arguments.most)
    with tempfile.TemporaryDirectory() as name, connected("local"):
        folder = Path(name)
        small = prepared_in(folder, SMALL[0] // divisor, SMALL[1] // divisor, SMALL[2])
        on_cluster(small, 4)  # starts the workers, which import and compile
        if arguments.ratio or not arguments.parts:
            ratio(prepared_in(folder, PRODUCTS[0] // divisor, PRODUCTS[1] // divisor), folder, arguments.rounds)
        if arguments.parts or not arguments.ratio:
            coordination(small, most)
            empty_tasks(most)


if __name__ == "__main__":
    main()
