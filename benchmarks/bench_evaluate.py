"""Speed and memory of ``evaluate``, as ratios measured side by side in one run.

    python benchmarks/bench_evaluate.py            # everything, about ten minutes on 2 cores
    python benchmarks/bench_evaluate.py --quick    # a tenth of the pairs, to check that it runs

``evaluate`` is compared with the bare product of the upper triangle (the same tiles without any further work, at the
fastest tile size) and with the exact search that recall@k usually comes from, IndexFlatIP of faiss with k = 32. The
sizes are those of the test halves of Stanford Online Products and iNaturalist-2018. Fitting an equalizer is compared
with the bare product too, and evaluating with its offsets with evaluating without. The pass in torch operations is
compared with torch's bare product of all rows, both on one thread of the CPU, and how often it would wait for a GPU is
counted on a simulated device. Rounds are interleaved and the median ratio is reported, because other programs share the
machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))  # has the simulated device
from measuring import GIGABYTE, forget_peak, in_a_process, memory_in_use, seconds, verdict

PRODUCTS = (60_502, 11_316)  # items, classes
SPECIES = (136_093, 2_452)
DIMENSIONS = 512
TORCH_ITEMS, TORCH_CLASSES = 12_000, 2_244  # classes of the same size as those of the products


def make_embeddings(items: int, classes: int, dimensions: int = DIMENSIONS) -> tuple[np.ndarray, np.ndarray]:
    """Make unit vectors around random class centres; class sizes vary, with at least two items per class."""
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.arange(classes).repeat(2), generator.integers(0, classes, items - 2 * classes)])
    centres = generator.standard_normal((classes, 64), dtype=np.float32)
    spread = (0.5 + generator.random(classes, dtype=np.float32))[labels, None]
    mixing = generator.standard_normal((64, dimensions), dtype=np.float32) / 8
    vectors = centres[labels] @ mixing
    vectors += 1.5 * spread * generator.standard_normal((items, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, labels


def bare_product(vectors: np.ndarray, tile_rows: int) -> None:
    """Compute all tiles of the upper triangle, one thread per tile, and do nothing with them."""
    blocks = [slice(first, min(first + tile_rows, len(vectors))) for first in range(0, len(vectors), tile_rows)]
    tiles = [(rows, columns) for i, rows in enumerate(blocks) for columns in blocks[i:]]
    scratch = threading.local()

    def work(tile: tuple[slice, slice]) -> None:
        if not hasattr(scratch, "out"):
            scratch.out = np.empty(tile_rows * tile_rows, np.float32)
        shape = tuple(side.stop - side.start for side in tile)
        out = scratch.out[: shape[0] * shape[1]].reshape(shape)
        np.matmul(vectors[tile[0]], vectors[tile[1]].T, out=out)

    with threadpool_limits(1), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, tiles))


def search_with_faiss(vectors: np.ndarray) -> None:
    """Find the 32 nearest neighbours of every vector."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    index.search(vectors, 32)


def side_by_side(items: int, classes: int, rounds: int) -> None:
    """Print the time of evaluate, of the bare product and of faiss, and their ratios."""
    import isomargin as im

    vectors, labels = make_embeddings(items, classes)
    im.evaluate(vectors[:6000], labels[:6000] % 50)  # compiles the code, or loads it from the cache
    tile_rows = min((512, 1024, 2048), key=lambda rows: seconds(lambda: bare_product(vectors[:16384], rows)))
    times: dict[str, list[float]] = {name: [] for name in ("product", "evaluate", "faiss", "fit", "equalized")}
    equalizer = im.Equalizer().fit(vectors[:6000])  # compiles the code
    for _ in range(rounds):
        times["product"].append(seconds(lambda: bare_product(vectors, tile_rows)))
        times["evaluate"].append(seconds(lambda: im.evaluate(vectors, labels).scores()))
        times["faiss"].append(seconds(lambda: search_with_faiss(vectors)))
        times["fit"].append(seconds(lambda: equalizer.fit(vectors)))
        times["equalized"].append(seconds(lambda: im.evaluate(vectors, labels, equalizer=equalizer).scores()))
    print(f"\n{items:,} items, {DIMENSIONS} dimensions, {classes:,} classes; median of {rounds} rounds")
    for name, what in (
        ("product", f"bare product of the upper triangle, tiles of {tile_rows}"),
        ("evaluate", "evaluate, all scores including R-precision and MAP@R"),
        ("faiss", "faiss IndexFlatIP, k = 32"),
        ("fit", "Equalizer().fit, the neighbours ranked 31 to 130 of every row"),
        ("equalized", "evaluate with the fitted equalizer"),
    ):
        print(f"  {statistics.median(times[name]):8.2f} s  {what}")
    for name, other, limit in (
        ("evaluate", "product", 1.5),
        ("evaluate", "faiss", 0.35),
        ("fit", "product", 1.6),
        ("equalized", "evaluate", 1.1),
    ):
        ratio = statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))
        print(f"  {name:9s} / {other:8s} {ratio:6.3f}   at most {limit}: {verdict(ratio <= limit)}")
    ratio = statistics.median(a / b for a, b in zip(times["product"], times["faiss"], strict=True))
    print(f"  product   / faiss    {ratio:6.3f}   a lower bound for any count of all pairs")


def measure_alone(path: str) -> tuple[float, float, float]:
    """In a separate process: time of evaluate, its peak memory above the embeddings, and that of the whole process."""
    import isomargin as im

    warm_vectors, warm_labels = make_embeddings(6000, 50, 16)
    im.evaluate(warm_vectors, warm_labels).scores()
    with np.load(path) as file:
        vectors, labels = file["embeddings"], file["labels"]
    before = memory_in_use("VmRSS")
    forget_peak()
    duration = seconds(lambda: im.evaluate(vectors, labels).scores())
    return duration, memory_in_use("VmHWM") - before, memory_in_use("VmHWM")


def alone(items: int, classes: int) -> tuple[float, float, float]:
    """Run `measure_alone` on embeddings of this size."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "embeddings.npz")
        vectors, labels = make_embeddings(items, classes)
        np.savez(path, embeddings=vectors, labels=labels)
        del vectors
        return in_a_process(measure_alone, path)


def scaling(items: int, classes: int) -> None:
    """Print how time and memory grow with the number of items."""
    print("\ntime grows as n squared, memory as n (each size in a separate process)")
    print("    items  classes   seconds ns per pair   peak above embeddings KB per row")
    for part in (8, 4, 2, 1):
        n = items // part
        duration, above, _ = alone(n, classes // part)
        pairs = n * (n - 1) / 2
        print(
            f"  {n:7,} {classes // part:8,} {duration:9.2f} {duration / pairs * 1e9:11.2f} "
            f"{above / GIGABYTE:20.2f} GB {above / n / 1000:10.1f}"
        )
    print(f"  at most 1.5 GB above the embeddings: {verdict(above <= 1.5 * GIGABYTE)}")


def large(items: int, classes: int) -> None:
    """Print the time and memory of evaluate on a large set."""
    duration, above, peak = alone(items, classes)
    print(f"\n{items:,} items, {DIMENSIONS} dimensions, {classes:,} classes")
    peaks = f"{peak / GIGABYTE:.2f} GB ({above / GIGABYTE:.2f} above embeddings)"
    print(f"  {duration:.1f} s, peak of the whole process {peaks}")
    print(f"  within 4 GB: {verdict(peak <= 4 * GIGABYTE)}")


def torch_pass(rounds: int) -> None:
    """Print the CPU time of the pass in torch operations, relative to torch's bare product, and how often it waits."""
    import torch

    from isomargin.measure.pairs.inputs import sort_by_class
    from isomargin.measure.pairs.torch_tiles import STRIP, count_pairs_with_torch, strips

    data = sort_by_class(*make_embeddings(TORCH_ITEMS, TORCH_CLASSES))
    vectors = torch.as_tensor(data.vectors)

    def bare() -> None:
        for first, last in strips(len(vectors), STRIP):
            vectors[first:last] @ vectors.T

    def count() -> None:
        count_pairs_with_torch(data, k=(1, 2, 4, 8, 16, 32), device="cpu")

    torch.set_num_threads(1)
    times = [(cpu_time(bare), cpu_time(count)) for _ in range(rounds + 1)][1:]  # the first round loads the libraries
    ratio = statistics.median(counting / product for product, counting in times)
    print(f"\n{TORCH_ITEMS:,} items in torch operations, one thread; median CPU time of {rounds} rounds")
    print(f"  {statistics.median(product for product, _ in times):8.2f} s  bare product of all rows")
    print(f"  {statistics.median(counting for _, counting in times):8.2f} s  the pass, {ratio:.3f} times that")
    few, many = (count_waits(cells) for cells in (STRIP, 1 << 16))
    print(f"  the host waits for the device {few} times with one strip of rows and {many} times with many")


def cpu_time(work: Callable[[], object]) -> float:
    """Return how much CPU time the work takes in this process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def count_waits(cells: int) -> int:
    """Return how often the host waits for a device that counts 1,000 items in strips of so many similarities."""
    from fake_device import FakeDevice
    from isomargin.measure.pairs import torch_tiles
    from isomargin.measure.pairs.inputs import sort_by_class

    data, usual = sort_by_class(*make_embeddings(1_000, 187, 16)), torch_tiles.STRIP
    torch_tiles.STRIP = cells
    try:
        with FakeDevice() as device:
            torch_tiles.count_pairs_with_torch(data, k=(1,), device="meta")
    finally:
        torch_tiles.STRIP = usual
    return len(device.waits)


def start_up() -> None:
    """Print how long the import and the command line take to start."""
    print("\nstart-up, best of 5")
    commands = {
        "import isomargin": ([sys.executable, "-c", "import isomargin"], 1.5),
        "isomargin --help": ([sys.executable, "-m", "isomargin", "--help"], 1.0),
    }
    for name, (command, limit) in commands.items():
        best = min(
            seconds(lambda command=command: subprocess.run(command, check=True, capture_output=True)) for _ in range(5)
        )
        print(f"  {best:6.2f} s  {name}   under {limit} s: {verdict(best < limit)}")


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the pairs")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    divisor = 3 if arguments.quick else 1
    start_up()
    side_by_side(PRODUCTS[0] // divisor, PRODUCTS[1] // divisor, arguments.rounds)
    in_a_process(torch_pass, arguments.rounds)
    scaling(PRODUCTS[0] // divisor, PRODUCTS[1] // divisor)
    large(SPECIES[0] // divisor, SPECIES[1] // divisor)


if __name__ == "__main__":
    main()
