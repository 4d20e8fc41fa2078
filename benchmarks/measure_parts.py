"""Measure what a part of the pairs costs: the figures that ``simulate_cluster.py`` starts from.

    python benchmarks/measure_parts.py                  # everything, about five minutes on a quiet machine
    python benchmarks/measure_parts.py tiles torch      # some of it

Times are CPU seconds of one thread, the least of several rounds, because other programs share the machine. Counters
have 512 bins, as they do for a million items and more, whatever the number of items here.
"""

import argparse
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import isomargin as im
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.part_files import COMPRESSION, PartFile, save_part
from isomargin.measure.pairs.part_plan import PartPlan, Prepared
from isomargin.measure.pairs.parts import PartCounts, count_cell, count_part, finish_parts, merge_counts
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.pairs.tile_sequence import Cell
from isomargin.measure.pairs.torch_tiles import STRIP, count_pairs_with_torch, strips
from isomargin.measure.parts import assemble
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.item_noise import measure_item_noise

ITEMS = 24_000
TILE = tiles.TILE_ROWS**2
BINS = 512


def cpu_seconds(work: Callable[[], Any], rounds: int = 3) -> float:
    """Return the least CPU time of several rounds."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def save_embeddings(path: Path, items: int, size: int, width: int) -> None:
    """Save items in classes of this size, whose centres are far enough apart for most queries to find their class."""
    generator = np.random.default_rng(0)
    labels = np.arange(items) % (items // size)
    vectors = generator.standard_normal((items // size, 64), dtype=np.float32)[labels]
    vectors = vectors @ (generator.standard_normal((64, width), dtype=np.float32) / 8)
    vectors += 1.2 * generator.standard_normal((items, width), dtype=np.float32)
    im.EmbeddingSet(vectors, labels).save(path)


def prepared_set(folder: Path, items: int, size: int, width: int) -> Prepared:
    """Prepare such items, in a folder of their own."""
    target = folder / f"{items}-{size}-{width}"
    if not target.exists():
        save_embeddings(folder / "items.npy", items, size, width)
        im.prepare(folder / "items.npy", target)
    return Prepared.open(target)


def with_few_bins(plan: PartPlan) -> PartPlan:
    """Return a plan with the bins of a large set."""
    return replace(plan, layout=replace(plan.layout, bins=BINS))


def measure_tiles(folder: Path) -> None:
    """Print the time of a full tile, and of bringing a row into a cell: reading it and its positives."""
    print("\ncounting a cell of two superblocks: CPU time = a x (pairs / 512 squared) + b x rows")
    print("  width  class size  a, ms per tile  b, us per row   bare product, ms per tile")
    for width in (256, 512):
        for size in (5, 50):
            prepared = prepared_set(folder, ITEMS, size, width)
            found = []
            for parts in (3, 15, 78):
                plan = with_few_bins(im.plan_parts(prepared, parts))
                blocks, rows = np.diff(plan.block_edges), np.diff(plan.row_edges)
                cell = Cell(0, 1, 0, int(blocks[0] * blocks[1]))
                seconds = cpu_seconds(lambda plan=plan, cell=cell: count_cell(plan, cell, 1, None))
                found.append((rows[0] * rows[1] / TILE, rows[0] + rows[1], seconds))
            full, moved, seconds = np.array(found).T
            # Relative errors count, so that the small cells decide about b as the large ones do about a.
            design = np.stack([full, moved], axis=1) / seconds[:, None]
            (a, b), *_ = np.linalg.lstsq(design, np.ones(3), rcond=None)
            bare = cpu_seconds(lambda prepared=prepared: products(prepared, 200)) / 200
            print(f"  {width:5} {size:11} {a * 1e3:15.2f} {b * 1e6:14.1f} {bare * 1e3:27.2f}", flush=True)


def measure_counters(folder: Path) -> None:
    """Print what more counters cost a cell."""
    plan = im.plan_parts(prepared_set(folder, ITEMS, 5, 256), 6)
    seconds, size = [], []
    for bins in (BINS, 8 * BINS):
        here = replace(plan, layout=replace(plan.layout, bins=bins))
        cell = Cell(0, 1, 0, int(np.prod(np.diff(plan.block_edges)[:2])))
        seconds.append(cpu_seconds(lambda here=here, cell=cell: count_cell(here, cell, 1, None)))
        size.append(4 * bins * int(plan.class_edges[2]))
    print(f"\ncounters of a cell: {(seconds[1] - seconds[0]) / (size[1] - size[0]) * 1e9:.1f} ns per byte")


def products(prepared: Prepared, number: int) -> None:
    """Multiply so many pairs of blocks."""
    blocks = np.ascontiguousarray(prepared.vectors[: 20 * 512]).reshape(20, 512, -1)
    out = np.empty((512, 512), np.float32)
    for at in range(number):
        np.matmul(blocks[at % 20], blocks[at // 20 % 20].T, out=out)


def measure_sampled(folder: Path) -> None:
    """Print the time per tile of sampled negatives."""
    print("\nsampled negatives, 9,900 items for each block: CPU time per 512 x 512 pairs")
    for width in (256, 512):
        prepared = prepared_set(folder, ITEMS, 5, width)
        plan = with_few_bins(im.plan_parts(prepared, 4, columns=9900))
        rows = int(plan.row_edges[1])
        seconds = cpu_seconds(lambda plan=plan: count_part(plan, 1, threads=1), rounds=2)
        print(f"  {width:5} dimensions {seconds / (rows * 9900 / TILE) * 1e3:6.2f} ms", flush=True)


def bytes_of(counts: PartCounts) -> int:
    """Return the bytes of the arrays of a part."""
    arrays = (array for found in counts.superblocks.values() for array in vars(found).values())
    return sum(array.nbytes for array in arrays if array is not None)


def measure_files(folder: Path) -> None:
    """Print what merging, writing and reading the counts of parts cost, and how far they shrink."""
    prepared = prepared_set(folder, ITEMS, 5, 256)
    plan = with_few_bins(im.plan_parts(prepared, 6))
    counts = [count_part(plan, number, threads=1) for number in (1, 2)]
    size = bytes_of(counts[0])
    merge = cpu_seconds(lambda: merge_counts(plan, *counts), 5) / (size + bytes_of(counts[1]))
    path = save_part(folder, plan, Settings(), counts[0])
    write = cpu_seconds(lambda: save_part(folder, plan, Settings(), counts[0])) / size
    read = cpu_seconds(lambda: PartFile.open(path).counts()) / size
    print(f"\na part of {size / 1e6:.1f} MB: merging {merge * 1e9:.2f} ns per byte of both")
    print(f"  its file has {path.stat().st_size / size:.2f} of the bytes; {times_text(write, read)}")
    one, other = (np.ones(1 << 26, np.uint32) for _ in range(2))
    merge = cpu_seconds(lambda: np.add(one, other, dtype=np.uint32)) / (one.nbytes + other.nbytes)
    print(f"  counters larger than the cache: merging {merge * 1e9:.2f} ns per byte of both")
    print("counters with more pairs, drawn (Poisson) in the shape of these:")
    shape = next(iter(counts[0].superblocks.values())).negatives.sum(axis=0, dtype=np.float64)
    for pairs in (1e3, 1e5, 1e7, 1e9):
        drawn = np.random.default_rng(0).poisson(pairs * shape / shape.sum(), (5000, BINS)).astype(np.uint32)
        file = folder / "counters.zip"
        write = cpu_seconds(lambda drawn=drawn, file=file: write_counters(drawn, file)) / drawn.nbytes
        read = cpu_seconds(lambda file=file: zipfile.ZipFile(file).read("counters")) / drawn.nbytes
        share = file.stat().st_size / drawn.nbytes
        print(f"  {pairs:14,.0f} pairs per class: {share:.2f} of the bytes; {times_text(write, read)}", flush=True)


def write_counters(counters: np.ndarray, file: Path) -> None:
    """Compress counters as the file of a part does."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as archive:
        archive.writestr("counters", counters.tobytes())


def times_text(write: float, read: float) -> str:
    """Return times per byte as text."""
    return f"writing {write * 1e9:.1f} and reading {read * 1e9:.1f} ns per byte"


def measure_prepare(folder: Path) -> None:
    """Print what preparing costs, in memory and through files."""
    print("\npreparing, per byte of vectors in float32")
    for width, memory in ((512, "4GB"), (512, "330MB"), (256, "4GB"), (256, "330MB")):
        save_embeddings(folder / "items.npy", 2 * ITEMS, 5, width)
        size, times = 2 * ITEMS * width * 4, []
        for number in range(2):
            begin = time.perf_counter(), time.process_time()
            im.prepare(folder / "items.npy", folder / f"again-{width}-{memory}-{number}", memory=memory)
            times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        wall, alone = np.array(times).min(axis=0) / size * 1e9
        print(f"  {width} dimensions, --memory {memory}: {alone:.2f} ns of CPU time, {wall:.2f} ns in all", flush=True)


def measure_finish(folder: Path) -> None:
    """Print what assembling merged counts and computing scores cost."""
    print("\nafter merging, CPU time of one thread, 512 bins")
    print("  items   classes  assemble  summary item noise   scores    saving   seconds")
    chosen = Settings()
    for items, size in ((ITEMS, 5), (2 * ITEMS, 5), (2 * ITEMS, 50)):
        prepared = prepared_set(folder, items, size, 256)
        plan = with_few_bins(im.plan_parts(prepared, 1))
        times = finish_times(plan, count_part(plan, 1, threads=1), chosen, folder)
        print(f"  {items:6,} {items // size:8,}" + "".join(f"{value:10.3f}" for value in times), flush=True)


def finish_times(plan: PartPlan, counts: PartCounts, chosen: Settings, folder: Path) -> list[float]:
    """Measure what follows merging, step by step."""
    result = finish_parts(plan, counts.superblocks.__getitem__, counts.large, chosen.k, 1)
    evaluation = assemble(plan, result, chosen, 1)
    steps: list[Callable[[], Any]] = [
        lambda: finish_parts(plan, counts.superblocks.__getitem__, counts.large, chosen.k, 1),
        lambda: summarize(result.counts, chosen),
        lambda: measure_item_noise(plan.prepared.data(), result.counts.negatives, 1),
        lambda: assemble(plan, result, chosen, 1).scores(),  # includes the two steps before
        lambda: evaluation.save(folder / "evaluation.json"),
    ]
    times = [cpu_seconds(step, 2) for step in steps]
    times[3] -= times[1] + times[2]
    return times


def measure_torch(folder: Path) -> None:
    """Print the time of the torch pass on the CPU in units of its product, and the bytes that one core can move."""
    import torch

    torch.set_num_threads(1)
    source = np.ones(1 << 26, np.float32)
    target = np.empty_like(source)
    bandwidth = 2 * source.nbytes / cpu_seconds(lambda: np.copyto(target, source), 5)
    print(f"\nthe torch pass on one core, which copies {bandwidth / 1e9:.1f} GB/s (reading and writing counted)")
    for width in (256, 512):
        data = prepared_set(folder, 8_000, 5, width).data()
        data = replace(data, vectors=np.array(data.vectors))  # not those of the file, which torch cannot write to
        vectors, n = torch.as_tensor(data.vectors), len(data.class_of)

        def product(vectors: Any = vectors, n: int = n) -> None:
            for first, end in strips(n, STRIP):
                vectors[first:end] @ vectors.T

        bare = cpu_seconds(product, 2) / n**2
        for map_at_r in (True, False):
            options = {"k": (1,), "device": "cpu", "map_at_r": map_at_r}
            whole = cpu_seconds(lambda data=data, options=options: count_pairs_with_torch(data, **options), 2) / n**2
            print(
                f"  {width} dimensions, {'with' if map_at_r else 'without'} MAP@R: the pass takes {whole * 1e9:.1f} ns "
                f"per pair, {whole / bare:.1f} times the product; the core could move {(whole - bare) * bandwidth:.0f} "
                "bytes while it counts a pair",
                flush=True,
            )


MEASUREMENTS = {
    "tiles": measure_tiles,
    "counters": measure_counters,
    "sampled": measure_sampled,
    "files": measure_files,
    "prepare": measure_prepare,
    "finish": measure_finish,
    "torch": measure_torch,
}


def main() -> None:
    """Run the measurements that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", nargs="*", choices=[*MEASUREMENTS, []], help="all of them by default")
    with tempfile.TemporaryDirectory() as name:
        for measurement in parser.parse_args().measurements or MEASUREMENTS:
            MEASUREMENTS[measurement](Path(name))


if __name__ == "__main__":
    main()
