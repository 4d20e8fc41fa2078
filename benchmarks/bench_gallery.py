"""Speed and memory of ``evaluate_gallery``, as ratios measured side by side in one run.

    python benchmarks/bench_gallery.py            # about ten minutes on 2 cores
    python benchmarks/bench_gallery.py --quick    # a twentieth of the comparisons, to check that it runs

``evaluate_gallery`` is compared with the bare float32 product of probes and rows of the gallery: the same tiles without
any further work. Rounds are interleaved and the median ratio is reported, because other programs share the machine.
"""

import argparse
import os
import statistics
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

from measuring import GIGABYTE, forget_peak, in_a_process, memory_in_use, seconds, verdict

DIMENSIONS = 512
TILE = 512
MOST = 1.5  # times the bare product


def make_items(labels: np.ndarray, seed: int) -> np.ndarray:
    """Make unit vectors around random class centres."""
    centres = np.random.default_rng(0).standard_normal((int(labels.max()) + 1, 64), dtype=np.float32)
    generator = np.random.default_rng(seed)
    vectors = centres[labels] @ (np.random.default_rng(1).standard_normal((64, DIMENSIONS), dtype=np.float32) / 8)
    vectors += 1.5 * generator.standard_normal(vectors.shape, dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def bare_product(rows: np.ndarray, probes: np.ndarray) -> None:
    """Compute all tiles, one thread per block of probes, and do nothing with them."""
    scratch = threading.local()

    def work(first: int) -> None:
        if not hasattr(scratch, "out"):
            scratch.out = np.empty(TILE * TILE, np.float32)
        block = probes[first : first + TILE]
        for begin in range(0, len(rows), TILE):
            part = rows[begin : begin + TILE]
            out = scratch.out[: len(part) * len(block)].reshape(len(part), len(block))
            np.matmul(part, block.T, out=out)

    with threadpool_limits(1), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, range(0, len(probes), TILE)))


def side_by_side(template: str, probes: int, enrolled: int, classes: int, rounds: int) -> None:
    """Print the time of evaluate_gallery and of the bare product, their ratio, and the peak memory."""
    import isomargin as im

    warnings.simplefilter("ignore")
    labels, of_probes = np.arange(enrolled) % classes, np.arange(probes) % (classes + classes // 4)
    gallery, vectors = make_items(labels, 2), make_items(of_probes, 3)
    few = slice(0, 4 * TILE)
    im.evaluate_gallery(gallery[few], labels[few] % 64, vectors[few], of_probes[few] % 80, template=template)
    rows = im.make_templates(gallery, labels)[0] if template == "mean" else gallery
    compiled = slice(0, max(2, (1 << 23) * 2 // len(rows)))
    im.evaluate_gallery(gallery, labels, vectors[compiled], of_probes[compiled], template=template)  # in tiles
    times: dict[str, list[float]] = {"product": [], "evaluate": []}
    forget_peak()
    before = memory_in_use("VmRSS")

    def evaluate() -> None:
        im.evaluate_gallery(gallery, labels, vectors, of_probes, template=template, progress=None).scores()

    for _ in range(rounds):
        times["product"].append(seconds(lambda: bare_product(rows, vectors)))
        times["evaluate"].append(seconds(evaluate))
    ratios = [one / other for one, other in zip(times["evaluate"], times["product"], strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"\n{template}: {probes:,} probes, {enrolled:,} enrolled items in {classes:,} classes, {DIMENSIONS} dimensions"
    )
    print(f"  bare product      {statistics.median(times['product']):8.1f} s")
    print(f"  evaluate_gallery  {statistics.median(times['evaluate']):8.1f} s, {ratio:.2f} times that", end="")
    print(f" ({min(ratios):.2f} to {max(ratios):.2f}); at most {MOST}: {verdict(ratio <= MOST)}")
    print(f"  peak memory above the embeddings {(memory_in_use('VmHWM') - before) / GIGABYTE:.2f} GB")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer probes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    fewer = 20 if options.quick else 1
    for template, probes, enrolled, classes in (
        ("mean", 100_000, 20_000, 20_000),
        ("max", 20_000, 200_000, 20_000),
        ("each", 20_000, 200_000, 20_000),
    ):
        in_a_process(side_by_side, template, probes // fewer, enrolled, classes, options.rounds)


if __name__ == "__main__":
    main()
