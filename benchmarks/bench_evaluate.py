"""Speed and memory of ``evaluate``, as ratios measured side by side in one run.

    python benchmarks/bench_evaluate.py            # everything, some ten minutes on 2 cores
    python benchmarks/bench_evaluate.py --quick    # a tenth of the pairs, to see that it runs

Held against: the bare product of the upper triangle (the same tiles with nothing done to them, in the fastest tile
size) and the exact search that recall@k usually comes from, faiss's IndexFlatIP with k = 32. Sizes are those of the
test halves of Stanford Online Products and of iNaturalist-2018. Rounds are interleaved and the median ratio is
reported, because other programs share the machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from measuring import GIGABYTE, forget_peak, in_a_process, memory_in_use, seconds, verdict

PRODUCTS = (60_502, 11_316)  # images, classes
SPECIES = (136_093, 2_452)
DIMENSIONS = 512


def make_embeddings(images: int, classes: int, dimensions: int = DIMENSIONS) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around random class centres; class sizes vary, each has at least two images."""
    generator = np.random.default_rng(0)
    labels = np.concatenate([np.arange(classes).repeat(2), generator.integers(0, classes, images - 2 * classes)])
    centres = generator.standard_normal((classes, 64), dtype=np.float32)
    spread = (0.5 + generator.random(classes, dtype=np.float32))[labels, None]
    mixing = generator.standard_normal((64, dimensions), dtype=np.float32) / 8
    vectors = centres[labels] @ mixing
    vectors += 1.5 * spread * generator.standard_normal((images, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, labels


def bare_product(vectors: np.ndarray, tile_rows: int) -> None:
    """Take all tiles of the upper triangle, one thread a tile, and do nothing with them."""
    blocks = [slice(first, min(first + tile_rows, len(vectors))) for first in range(0, len(vectors), tile_rows)]
    tiles = [(one, other) for i, one in enumerate(blocks) for other in blocks[i:]]
    scratch = threading.local()

    def work(tile: tuple[slice, slice]) -> None:
        if not hasattr(scratch, "out"):
            scratch.out = np.empty(tile_rows * tile_rows, np.float32)
        shape = tuple(each.stop - each.start for each in tile)
        out = scratch.out[: shape[0] * shape[1]].reshape(shape)
        np.matmul(vectors[tile[0]], vectors[tile[1]].T, out=out)

    with threadpool_limits(1), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, tiles))


def search_with_faiss(vectors: np.ndarray) -> None:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    index.search(vectors, 32)


def side_by_side(images: int, classes: int, rounds: int) -> None:
    import isomargin as im

    vectors, labels = make_embeddings(images, classes)
    im.evaluate(vectors[:6000], labels[:6000] % 50)  # compiles, or reads what was compiled
    tile_rows = min((512, 1024, 2048), key=lambda rows: seconds(lambda: bare_product(vectors[:16384], rows)))
    times: dict[str, list[float]] = {"product": [], "evaluate": [], "faiss": []}
    for _ in range(rounds):
        times["product"].append(seconds(lambda: bare_product(vectors, tile_rows)))
        times["evaluate"].append(seconds(lambda: im.evaluate(vectors, labels).scores()))
        times["faiss"].append(seconds(lambda: search_with_faiss(vectors)))
    print(f"\n{images:,} images, {DIMENSIONS} dimensions, {classes:,} classes; median of {rounds} rounds")
    for name, what in (
        ("product", f"bare product of the upper triangle, tiles of {tile_rows}"),
        ("evaluate", "evaluate, every score, R-precision and MAP@R included"),
        ("faiss", "faiss IndexFlatIP, k = 32"),
    ):
        print(f"  {statistics.median(times[name]):8.2f} s  {what}")
    for other, limit in (("product", 1.5), ("faiss", 0.35)):
        ratio = statistics.median(a / b for a, b in zip(times["evaluate"], times[other], strict=True))
        print(f"  evaluate / {other:8s} {ratio:6.3f}   at most {limit}: {verdict(ratio <= limit)}")
    ratio = statistics.median(a / b for a, b in zip(times["product"], times["faiss"], strict=True))
    print(f"  product  / faiss    {ratio:6.3f}   what no count of all pairs can go below")


def measure_alone(path: str) -> tuple[float, float, float]:
    """In a process of its own: seconds of evaluate, its peak memory above the embeddings, and of the whole process."""
    import isomargin as im

    warm_vectors, warm_labels = make_embeddings(6000, 50, 16)
    im.evaluate(warm_vectors, warm_labels).scores()
    with np.load(path) as file:
        vectors, labels = file["embeddings"], file["labels"]
    before = memory_in_use("VmRSS")
    forget_peak()
    took = seconds(lambda: im.evaluate(vectors, labels).scores())
    return took, memory_in_use("VmHWM") - before, memory_in_use("VmHWM")


def alone(images: int, classes: int) -> tuple[float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "embeddings.npz")
        vectors, labels = make_embeddings(images, classes)
        np.savez(path, embeddings=vectors, labels=labels)
        del vectors
        return in_a_process(measure_alone, path)


def scaling(images: int, classes: int) -> None:
    print("\ntime grows as n squared, memory as n (each size in a process of its own)")
    print("   images  classes   seconds   ns a pair   peak above embeddings   KB a row")
    for part in (8, 4, 2, 1):
        n = images // part
        took, above, _ = alone(n, classes // part)
        pairs = n * (n - 1) / 2
        print(
            f"  {n:7,} {classes // part:8,} {took:9.2f} {took / pairs * 1e9:11.2f} "
            f"{above / GIGABYTE:20.2f} GB {above / n / 1000:10.1f}"
        )
    print(f"  at most 1.5 GB above the embeddings: {verdict(above <= 1.5 * GIGABYTE)}")


def large(images: int, classes: int) -> None:
    took, above, peak = alone(images, classes)
    print(f"\n{images:,} images, {DIMENSIONS} dimensions, {classes:,} classes")
    print(
        f"  {took:.1f} s, peak of the whole process {peak / GIGABYTE:.2f} GB ({above / GIGABYTE:.2f} above embeddings)"
    )
    print(f"  within 4 GB: {verdict(peak <= 4 * GIGABYTE)}")


def start_up() -> None:
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the pairs")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    divisor = 3 if arguments.quick else 1
    start_up()
    side_by_side(PRODUCTS[0] // divisor, PRODUCTS[1] // divisor, arguments.rounds)
    scaling(PRODUCTS[0] // divisor, PRODUCTS[1] // divisor)
    large(SPECIES[0] // divisor, SPECIES[1] // divisor)


if __name__ == "__main__":
    main()
