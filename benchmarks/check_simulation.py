"""Compare the simulation of a cluster with real parts: two workers on this machine, one process per part.

    python benchmarks/check_simulation.py                           # 120,000 items in 16 parts, about two minutes
    python benchmarks/check_simulation.py --items 60000 --parts 64

Each worker runs `isomargin evaluate --part` again and again, with one thread. What a process takes to start is measured
first, with a part of a thousand items; everything else is predicted from `Costs`. CPU time is compared too,
because other programs may share the machine: from the parts' CPU times follows the wall time that the workers would
take alone.
"""

import argparse
import heapq
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import isomargin as im
from cluster_costs import Costs, Job, work_of
from measure_parts import save_embeddings
from measuring import seconds
from simulate_cluster import Cluster, simulate

MEMORY = 4e9
FAR = ("--far", "0.01", "0.1", "--target-far", "0.01")


def prepare_items(folder: Path, items: int, class_size: int, width: int) -> Path:
    """Prepare so many items in a new folder, and return it."""
    folder.mkdir()
    save_embeddings(folder / "items.npy", items, class_size, width)
    im.prepare(folder / "items.npy", folder / "prepared")
    return folder


def count_part(folder: Path, number: int, parts: int) -> float:
    """Count a part in a process of its own, and return the CPU time that it took."""
    command = [sys.executable, "-m", "isomargin", "evaluate", folder / "prepared", "--part", f"{number}/{parts}"]
    options = ["--threads", 1, "--memory", f"{MEMORY / 1e9:g}GB", "--output", folder / "parts", *FAR]
    process = subprocess.Popen(
        [*map(str, command), *map(str, options)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"part {number} ended with exit code {process.returncode}")
    return used.ru_utime + used.ru_stime


def scheduled(times: Sequence[float], workers: int) -> float:
    """Return how long workers take that are never kept waiting, each taking the next part when it is free."""
    free = [0.0] * workers
    for taken in times:
        heapq.heapreplace(free, free[0] + taken)
    return max(free)


def main() -> None:
    """Count, predict and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=120_000)
    parser.add_argument("--class-size", type=int, default=5)
    parser.add_argument("--width", type=int, choices=(256, 512), default=256)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        few = prepare_items(Path(name) / "few", 1000, chosen.class_size, chosen.width)
        start = min(count_part(few, number, 3) for number in (1, 2, 3))
        folder = prepare_items(Path(name) / "all", chosen.items, chosen.class_size, chosen.width)
        with ThreadPoolExecutor(chosen.workers) as pool:
            counted = [pool.submit(count_part, folder, number, chosen.parts) for number in range(1, chosen.parts + 1)]
            wall = seconds(lambda: [part.result() for part in counted])
    job, costs = Job(chosen.items, chosen.class_size, chosen.width), Costs()
    work = work_of(job, chosen.parts, MEMORY, costs)
    parts = tuple(replace(part, core_seconds=part.core_seconds + start) for part in work.parts)
    alone = Cluster(1, chosen.workers, 1, coordination=0.0, start=0.0, slow_down=0.0, failures=0.0)
    local = replace(alone, network=1e12, storage=1e12)  # everything is in memory
    predicted = simulate(replace(work, parts=parts), local, costs, 0).seconds
    times = [part.result() for part in counted]
    print(f"{chosen.items:,} items of {chosen.width} dimensions, {chosen.parts} parts, {chosen.workers} workers")
    print(f"  a process starts in {start:.2f} s of CPU time")
    for what, expected, found in (
        ("CPU time of all parts", sum(part.core_seconds for part in parts), sum(times)),
        ("longest part, CPU time", max(part.core_seconds for part in parts), max(times)),
        ("wall time of a machine with nothing else to do", predicted, scheduled(times, chosen.workers)),
        ("wall time here", predicted, wall),
    ):
        print(f"  {what}: predicted {expected:.1f} s, measured {found:.1f} s, {found / expected:.2f} times that")


if __name__ == "__main__":
    main()
