"""``evaluate``: from embeddings and labels to an ``Evaluation``. Chooses how pairs are counted, and has it done."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np

from isomargin.core import checks
from isomargin.core.progress import progress_bar
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.exact import ExactPass, fits
from isomargin.measure.pairs.inputs import OTHER_LENGTHS, ClassSortedVectors, sort_by_class
from isomargin.measure.pairs.rates import pairs_at_far
from isomargin.measure.pairs.sampled import REPEATED, repeated_share, sample_pairs, sampled_pairs
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.pairs.tiles import PassResult, count_pairs
from isomargin.measure.pairs.torch_tiles import count_pairs_with_torch
from isomargin.measure.settings import EpsilonForm, MeanCurve, Pairs, Settings, Utility
from isomargin.measure.statistics.item_noise import measure_item_noise

SMALL = 1 << 23  # pairs up to which the exact count takes about a second
FLAT = 3  # dimensions in which thousands of unit vectors crowd
NARROW = 1 / 4  # a reach of distances below which float32 products are too coarse
SAME = 1 / 512  # a reach below which float64 products are


def evaluate(
    embeddings: Any,
    labels: Any,
    *,
    far: tuple[float, float] = (1e-2, 1e-1),
    frr: float | None = None,
    distances: tuple[float, float] | None = None,
    grid: int = 101,
    epsilon: float = 0.1,
    c: float = 1.0,
    utility: Utility = "specificity_sensitivity",
    mean_curve: MeanCurve = "classes",
    epsilon_form: EpsilonForm = "f_score",
    target_far: float = 1e-2,
    target_frr: float = 5e-2,
    k: Iterable[int] = (1, 2, 4, 8, 16, 32),
    map_at_r: bool = True,
    pairs: Pairs = "all",
    negatives_per_positive: int = 10,
    seed: int = 0,
    exact: bool = False,
    device: str | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | Literal["auto"] | None = "auto",
) -> Evaluation:
    r"""Measure how consistent one distance threshold is across classes, and how well the embeddings retrieve.

    With unit vectors, L2 distance d and cosine similarity s are tied by :math:`d^2 = 2 - 2s`. For each class i,
    sensitivity :math:`\psi_i(d)` is the share of its positive pairs at most d apart, specificity
    :math:`\varphi_i(d)` the share of its negative pairs farther apart, and utility
    :math:`U_i = (1 + c^2)\varphi_i\psi_i / (c^2\varphi_i + \psi_i)`. OPIS is the variance of :math:`U_i(d)` over
    classes, averaged over a grid of distances in the calibration range.

    All pairs are counted in one pass, at the cost of their float32 product and less than half more; the scores of the
    set agree with a definitional computation to 1e-4. A single class's values do so in the mean: a pair nearer to a
    threshold than a bin is wide (2e-5 to 1e-3) may count on either side of it. Sets of up to 4,096 embeddings
    (unless a device is asked for), and embeddings whose distances repeat or are very small or of two or three
    dimensions, are counted exactly in any case. Memory above the embeddings' own: one float32
    copy, at most 268 MB of counters (classes x bins; twice where large classes have many positives) and at most 4 KB a
    row.

    Args:
        embeddings: (n, d) numpy array (memory-mapped or not), torch tensor or nested list; float16, bfloat16, float32,
            float64 or integers. Rows need not have length one: each is divided by its length.
        labels: n labels, integers or text.
        far: pooled false accept rates at the ends of the calibration range.
        frr: the range starts instead where the pooled false reject rate has come down to this.
        distances: the range itself, in place of far and frr.
        grid: number of distances in the range.
        epsilon: share of the classes in the groups of epsilon-OPIS.
        c: weight of sensitivity in the utility.
        utility: ``"specificity_sensitivity"`` or ``"precision_recall"``.
        mean_curve: OPIS measures deviations from the ``"classes"``' mean curve, or from the ``"pooled"`` one.
        epsilon_form: ``"f_score"``, or ``"printed"`` for epsilon-OPIS with the utility as the paper prints it.
        target_far: false accept rate whose pooled threshold is held against each class's own.
        target_frr: false reject rate for the same comparison.
        k: numbers of neighbours for recall@k.
        map_at_r: whether R-precision and MAP@R are wanted; they cost extra only for classes of over 512 images.
        pairs: ``"all"``, or ``"sampled"``: the paper's protocol for large sets, all positives and random negatives.
        negatives_per_positive: of the sampled protocol.
        seed: of the sampled protocol.
        exact: float64 products and exact quantiles, several times slower.
        device: a torch device such as ``"cuda"`` for the pass in torch operations.
        threads: number of threads, all cores unless given.
        progress: called with the share done; ``"auto"`` shows a bar on a terminal after two seconds.

    >>> import numpy as np
    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(["cat", "dog", "owl", "yak"], 20)
    >>> centres = np.repeat(generator.normal(size=(4, 16)), 20, axis=0)
    >>> evaluation = im.evaluate(centres + generator.normal(size=(80, 16)), labels)
    >>> round(evaluation.opis, 4), round(evaluation.recall_at_k[1], 4)
    (0.0184, 0.975)
    >>> evaluation.worst_classes(1)["class"].item()
    'dog'
    """
    settings = Settings.from_values(
        far=far,
        frr=frr,
        distances=distances,
        grid=grid,
        epsilon=epsilon,
        c=c,
        utility=utility,
        mean_curve=mean_curve,
        epsilon_form=epsilon_form,
        target_far=target_far,
        target_frr=target_frr,
        k=k,
        map_at_r=map_at_r,
        pairs=pairs,
        negatives_per_positive=negatives_per_positive,
        seed=seed,
        exact=exact,
        device=device,
    )
    if threads is not None:
        checks.whole(threads, "threads")
    bar: AbstractContextManager[Any] = progress_bar("counting pairs") if progress == "auto" else nullcontext(progress)
    with bar as report:
        evaluation = run(embeddings, labels, settings, threads, report)
    for note in evaluation.all_notes:
        if OTHER_LENGTHS not in note:  # which changes no score, and is what most models give
            warnings.warn(note, UserWarning, stacklevel=2)
    return evaluation


def run(
    embeddings: Any,
    labels: Any,
    settings: Settings,
    threads: int | None,
    progress: Callable[[float], None] | None,
) -> Evaluation:
    """Count the pairs in the way that suits them, and answer."""
    data = sort_by_class(embeddings, labels)
    check_rates(data, settings)
    exactly, reason = count_exactly_because(data, settings)
    method: Literal["exact", "binned"] = "exact"
    if exactly:
        data = sort_by_class(embeddings, labels, dtype=float)
    if settings.pairs == "sampled":
        passes = ExactPass(data, settings, threads, progress) if exactly else None
        ranks = passes.ranks_alone() if passes else count(data, settings, threads, progress).ranks
        counts = sample_pairs(data, settings.negatives_per_positive, settings.seed)
        summary = summarize(counts, settings)
    elif exactly:
        counts, ranks, summary = ExactPass(data, settings, threads, progress).run()
    else:
        method = "binned"
        counts, ranks = count(data, settings, threads, progress)
        summary = summarize(counts, settings)
    noise = measure_item_noise(data, counts.negatives, threads)
    notes = (*data.notes, *reason)
    return Evaluation(settings, data.names, data.sizes, counts, ranks, summary, method, noise, notes)


def check_labels(labels: Any, far: tuple[float, float]) -> None:
    """Refuse labels that no embeddings could be evaluated with at these rates: for before the embeddings are made.

    >>> check_labels([0, 0, 1, 1], far=(0.01, 0.1))
    Traceback (most recent call last):
    isomargin.InputError: far asks for a false accept rate of 0.01, but with 4 negative pairs the smallest ...
    """
    data = sort_by_class(np.ones((len(labels), 1), np.float32), labels)
    check_rates(data, Settings(far=far, target_far=max(far[0], 0.5)))


def check_rates(data: ClassSortedVectors, settings: Settings) -> None:
    """Refuse rates that so many pairs cannot resolve, before the pairs are counted."""
    sizes, n = data.sizes, len(data.class_of)
    if settings.pairs == "all":
        negatives = int((sizes * (n - sizes)).sum()) // 2
    else:
        negatives = int(sampled_pairs(sizes, settings.negatives_per_positive).sum())
    pairs_at_far(settings.target_far, negatives, "target_far")
    if settings.distances is None:
        pairs_at_far(settings.far[1 if settings.frr is not None else 0], negatives, "far")


def count(
    data: ClassSortedVectors, settings: Settings, threads: int | None, progress: Callable[[float], None] | None
) -> PassResult:
    """One pass over all pairs, by the compiled kernels or on a torch device."""
    if settings.device is None:
        return count_pairs(data, k=settings.k, map_at_r=settings.map_at_r, threads=threads, progress=progress)
    return count_pairs_with_torch(
        data, k=settings.k, map_at_r=settings.map_at_r, device=settings.device, progress=progress
    )


def count_exactly_because(data: ClassSortedVectors, settings: Settings) -> tuple[bool, tuple[str, ...]]:
    """Whether to count exactly, and what the user should know about that."""
    n = len(data.class_of)
    if data.reach < SAME:
        return settings.exact or fits(data), (
            f"all embeddings are within {data.reach:.2g} of each other, too close to measure well: "
            "subtract their mean before normalising them",
        )
    if settings.exact or (settings.device is None and n * (n - 1) // 2 <= SMALL):
        return True, ()
    if data.reach < NARROW:
        what = "all embeddings lie very close together"
    elif repeated_share(data) > REPEATED:
        what = "distances repeat"
    elif data.vectors.shape[1] <= FLAT:
        what = f"in {data.vectors.shape[1]} dimensions neighbours are closer than float32 can tell apart"
    else:
        return False, ()
    if fits(data):
        return True, (f"{what}, so pairs are counted exactly on the CPU, which takes longer",)
    return False, (f"{what}, and the classes are too large for the exact count: scores, recall too, are less accurate",)
