"""Compare the simulation of a cluster with real parts: two workers on this machine, one process per part.

    python benchmarks/check_simulation.py                           # 120,000 items in 16 parts, about two minutes
    python benchmarks/check_simulation.py --items 60000 --parts 64

Each worker runs `isomargin evaluate --part` again and again, with one thread. What a process takes to start is measured
first, by asking for a part that is there already; everything else is predicted from `Costs`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cluster_costs import Costs, Job, work_of
from measure_parts import save_embeddings
from measuring import seconds
from simulate_cluster import Cluster, simulate

MEMORY = 4e9


def count_part(folder: Path, number: int, parts: int) -> float:
    """Count a part in a process of its own, and return how long it took."""
    command = [sys.executable, "-m", "isomargin", "evaluate", folder / "prepared", "--part", f"{number}/{parts}"]
    options = ["--threads", 1, "--memory", f"{MEMORY / 1e9:g}GB", "--output", folder / "parts"]
    begin = time.perf_counter()
    subprocess.run([*map(str, command), *map(str, options)], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> None:
    """Count, predict and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=120_000)
    parser.add_argument("--class-size", type=int, default=5)
    parser.add_argument("--width", type=int, choices=(256, 512), default=256)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    import isomargin as im

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_embeddings(folder / "items.npy", chosen.items, chosen.class_size, chosen.width)
        im.prepare(folder / "items.npy", folder / "prepared")
        count_part(folder, 1, chosen.parts)
        start = min(count_part(folder, 1, chosen.parts) for _ in range(2))
        for path in (folder / "parts").iterdir():
            path.unlink()
        with ThreadPoolExecutor(chosen.workers) as pool:
            one = [pool.submit(count_part, folder, number, chosen.parts) for number in range(1, chosen.parts + 1)]
            measured = seconds(lambda: [part.result() for part in one])
    job, costs = Job(chosen.items, chosen.class_size, chosen.width), Costs()
    work = work_of(job, chosen.parts, MEMORY, costs)
    parts = tuple(replace(part, core_seconds=part.core_seconds + start) for part in work.parts)
    alone = Cluster(1, chosen.workers, 1, coordination=0.0, start=0.0, slow_down=0.0, failures=0.0)
    local = replace(alone, network=1e12, storage=1e12)  # everything is in memory
    predicted = simulate(replace(work, parts=parts), local, costs, 0).seconds
    longest, predicted_longest = max(part.result() for part in one), max(part.core_seconds for part in parts)
    print(f"{chosen.items:,} items of {chosen.width} dimensions, {chosen.parts} parts, {chosen.workers} workers")
    print(f"  a process starts in {start:.2f} s")
    print(f"  all parts: predicted {predicted:.1f} s, measured {measured:.1f} s, {measured / predicted:.2f} times that")
    print(f"  the longest part: predicted {predicted_longest:.1f} s, measured {longest:.1f} s")


if __name__ == "__main__":
    main()
