"""Speed and memory of the losses, as ratios measured side by side in one run.

    python benchmarks/bench_losses.py            # everything, about ten minutes on 2 cores
    python benchmarks/bench_losses.py --quick    # small batches, to check that it runs

Losses are compared with the plain product of all pairs and its backward pass, a lower bound for any loss of pairs, and
with the losses of the same name in pytorch-metric-learning. All times include forward and backward pass. Rounds are
interleaved and the median ratio is reported, because other programs share the machine. Memory is measured in separate
processes.
"""

import argparse
import inspect
import resource
import statistics
from collections.abc import Callable
from typing import Any

import torch

from isomargin.losses import loss_names, make_loss
from isomargin.losses.registry import REGISTRY
from measuring import (
    GIGABYTE,
    MEGABYTE,
    forget_peak,
    in_a_process,
    memory_available,
    memory_in_use,
    seconds,
    verdict,
)

DIMENSIONS = 512
TOGETHER = ["smooth_ap", "tcm"]


def make_batch(items: int, per_class: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make embeddings around class centres in a subspace of 12 dimensions, shuffled, so that hard pairs occur."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(items) // per_class)[torch.randperm(items, generator=generator)]
    centres = torch.randn(items // per_class + 1, 12, generator=generator)
    centres = centres @ torch.randn(12, DIMENSIONS, generator=generator) / 12**0.5
    embeddings = centres[labels] + 0.5 * torch.randn(items, DIMENSIONS, generator=generator)
    return embeddings.requires_grad_(), labels


def make(config: Any, labels: torch.Tensor) -> torch.nn.Module:
    """Make a loss; a proxy loss gets proxies for every class."""
    if isinstance(config, str) and "num_classes" in inspect.signature(REGISTRY[config]).parameters:
        config = {"name": config, "num_classes": int(labels.max()) + 1, "embedding_size": DIMENSIONS}
    return make_loss(config)


def training_step(loss: Callable[..., torch.Tensor], embeddings: torch.Tensor, labels: torch.Tensor) -> None:
    """Compute a loss and its gradient."""
    embeddings.grad = None
    loss(embeddings, labels).backward()


def plain_product(embeddings: torch.Tensor, by_similarity: torch.Tensor) -> None:
    """Compute all similarities and the gradient of their weighted sum."""
    embeddings.grad = None
    (embeddings @ embeddings.T).backward(by_similarity)


def peak_of_loss(config: Any, items: int, per_class: int) -> tuple[float, float]:
    """In a separate process: the seconds of a step after warm-up, and the peak memory above the input."""
    embeddings, labels = make_batch(items, per_class)
    warm_embeddings, warm_labels = make_batch(64, 4)
    training_step(make(config, warm_labels), warm_embeddings, warm_labels)
    loss = make(config, labels)
    before = memory_in_use("VmRSS")
    forget_peak()
    for _ in range(2):  # like a loop that still holds the value of the previous step
        embeddings.grad = None
        value = loss(embeddings, labels)
        value.backward()
    above = memory_in_use("VmHWM") - before
    return statistics.median(seconds(lambda: training_step(loss, embeddings, labels)) for _ in range(3)), above


def their_loss(name: str, items: int, per_class: int) -> float | None:
    """In a separate process: the seconds of a step in pytorch-metric-learning; None if memory runs out."""
    from pytorch_metric_learning import losses

    embeddings, labels = make_batch(items, per_class)
    labels, order = labels.sort()  # as its SmoothAPLoss requires
    embeddings = embeddings.detach()[order].requires_grad_()
    limit = int(memory_in_use("VmData") + 0.97 * memory_available())
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # raise an error before the system kills a process
    try:
        return seconds(lambda: training_step(getattr(losses, name)(), embeddings, labels))
    except RuntimeError:
        return None


def side_by_side(items: int, rounds: int) -> None:
    """Print the time and memory of losses, and their ratios to the plain product."""
    embeddings, labels = make_batch(items, 4)
    unit = torch.nn.functional.normalize(embeddings.detach()).requires_grad_()
    by_similarity = torch.randn(items, items)
    losses = {"TCM": "tcm", "SmoothAP": "smooth_ap", "SmoothAP + TCM": TOGETHER, "RecallAtK": "recall_at_k"}
    work: dict[str, Callable[[], None]] = {"product": lambda: plain_product(unit, by_similarity)}
    for name, config in losses.items():
        loss = make(config, labels)
        work[name] = lambda loss=loss: training_step(loss, embeddings, labels)
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, step in work.items():
            duration = seconds(step)
            if number:  # the first round is warm-up
                times[name].append(duration)
    print(f"\nn = {items:,}, d = {DIMENSIONS}, 4 per class, forward and backward; median of {rounds} rounds")
    for name, durations in times.items():
        print(f"  {statistics.median(durations) * 1000:8.0f} ms  {name}")
    counts = make("tcm", labels)
    counts(embeddings.detach(), labels)
    positives, negatives = (int(counts.values[name]) for name in ("hard_positives", "hard_negatives"))
    print(f"  with {positives:,} hard positive and {negatives:,} hard negative pairs")
    limits = (
        ("TCM", "product", 2.0),
        ("SmoothAP", "product", 8.0),
        ("RecallAtK", "product", 8.0),
        ("SmoothAP + TCM", "SmoothAP", 1.06),
    )
    for one, other, limit in limits:
        ratios = sorted(a / b for a, b in zip(times[one], times[other], strict=True))
        ratio = statistics.median(ratios)
        quarter = len(ratios) // 4
        print(
            f"  {one} / {other}: {ratio:.3f} ({ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f})   "
            f"at most {limit}: {verdict(ratio <= limit)}"
        )
    for name in ("SmoothAP", "RecallAtK", "SmoothAP + TCM"):
        _, above = in_a_process(peak_of_loss, losses[name], items, 4)
        print(f"  {name}: {above / MEGABYTE:.0f} MB above the input   at most 400: {verdict(above <= 400 * MEGABYTE)}")


def naive_tcm(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """TCM as its formula reads: the sets of similarities, their hard pairs, and the mean of each side."""
    vectors = torch.nn.functional.normalize(embeddings)
    similarities = vectors @ vectors.T
    same = labels[:, None] == labels
    positives, negatives = similarities[same.triu(1)], similarities[(~same).triu(1)]
    positives, negatives = positives[positives <= 0.9], negatives[negatives >= 0.5]
    return (0.9 - positives).sum() / max(len(positives), 1) + (negatives - 0.5).sum() / max(len(negatives), 1)


def small_batches(rounds: int) -> None:
    """Print the time of losses of 64 items, of which most is the overhead of single operations."""
    embeddings, labels = make_batch(64, 4)
    losses = {name: make(name, labels) for name in loss_names() if name != "threshold_penalty"}
    times: dict[str, list[float]] = {name: [] for name in ("naive TCM", *losses)}
    for number in range(rounds + 10):
        for name, loss in {"naive TCM": naive_tcm, **losses}.items():
            duration = seconds(lambda loss=loss: training_step(loss, embeddings, labels))
            if number >= 10:
                times[name].append(duration)
    print(f"\nn = 64, d = {DIMENSIONS}, 4 per class, forward and backward; median of {rounds} rounds")
    for name, durations in times.items():
        print(f"  {statistics.median(durations) * 1e6:8.0f} µs  {name}")
    ratio = statistics.median(a / b for a, b in zip(times["tcm"], times["naive TCM"], strict=True))
    print(f"  TCM / naive TCM: {ratio:.2f}   at most 1.2: {verdict(ratio <= 1.2)}")


def against_theirs(items: int) -> None:
    """Print how much faster losses are than those of pytorch-metric-learning."""
    from pytorch_metric_learning import __version__

    print(f"\ncompared with pytorch-metric-learning {__version__}, one step each in a separate process")
    compare("SmoothAP", "SmoothAPLoss", "smooth_ap", items // 2)
    if not compare("SmoothAP", "SmoothAPLoss", "smooth_ap", items, least=300):
        compare("SmoothAP", "SmoothAPLoss", "smooth_ap", items * 15 // 16, least=300)
    for size in (4000, 3000, 2000, 1500, 1000, 500, 250):
        if size <= 4 * items and compare("TCM", "ThresholdConsistentMarginLoss", "tcm", size):
            break


def compare(title: str, theirs: str, ours: str, items: int, least: float | None = None) -> bool:
    """Print how many times faster our loss is, with 4 items per class; return whether theirs fitted in memory."""
    their_seconds = in_a_process(their_loss, theirs, items, 4)
    our_seconds, above = in_a_process(peak_of_loss, ours, items, 4)
    line = f"  {title}, n = {items:,}: ours {our_seconds * 1000:.1f} ms and {above / MEGABYTE:.0f} MB, theirs "
    if their_seconds is None:
        print(line + f"more than the {memory_available() / GIGABYTE:.0f} GB of memory available", flush=True)
        return False
    times = their_seconds / our_seconds
    line += f"{their_seconds:.2f} s: {times:.0f} times as long"
    print(line + (f"   at least {least:g}: {verdict(times >= least)}" if least else ""), flush=True)
    return True


def large_classes(items: int) -> None:
    """Print the time and memory of losses with 60 items per class."""
    print(f"\nn = {items:,}, 60 per class")
    for name in ("smooth_ap", "recall_at_k", "sup_ap", "triplet", "tcm", "class_alignment"):
        duration, above = in_a_process(peak_of_loss, name, items, 60)
        print(f"  {name:16s} {duration:7.2f} s {above / MEGABYTE:6.0f} MB   within 1 GB: {verdict(above <= GIGABYTE)}")


def growth(sizes: list[int]) -> None:
    """Print how the time and memory of every loss grow with the batch."""
    print("\nhow time and memory above the input grow with n, 4 per class")
    print(f"  {'':20s}" + "".join(f"{f'n = {size:,}':>22s}" for size in sizes))
    for config in [*loss_names(), TOGETHER]:
        cells = ""
        for size in sizes:
            duration, above = in_a_process(peak_of_loss, config, size, 4)
            cells += f"{duration * 1000:11.0f} ms {above / MEGABYTE:5.0f} MB"
        print(f"  {config if isinstance(config, str) else ' + '.join(config):20s}{cells}", flush=True)


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small batches")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    divisor = 4 if arguments.quick else 1
    side_by_side(4000 // divisor, arguments.rounds)
    small_batches(20 * arguments.rounds // divisor)
    against_theirs(1024 // divisor)
    large_classes(3000 // divisor)
    growth([size // divisor for size in (1000, 2000, 4000, 8000)])


if __name__ == "__main__":
    main()
