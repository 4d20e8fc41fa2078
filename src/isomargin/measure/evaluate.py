"""``evaluate``, the main entry point: from embeddings and labels to an ``Evaluation``.

It checks the input, chooses how to count the pairs (in bins or exactly, on the CPU or on a torch device), counts them,
and issues notes about the input as warnings.
"""

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.extras import import_or_explain
from isomargin.core.progress import progress_bar
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.distances import ListedDistances
from isomargin.measure.pairs.exact import ExactPass, fits
from isomargin.measure.pairs.inputs import OTHER_LENGTHS, ClassSortedVectors, Shifts, sort_by_class
from isomargin.measure.pairs.rates import pairs_at_far
from isomargin.measure.pairs.sampled import REPEATED, repeated_share, sample_pairs, sampled_pairs
from isomargin.measure.pairs.stratified import columns_for
from isomargin.measure.pairs.summary import summarize
from isomargin.measure.pairs.tiles import PassResult, count_pairs
from isomargin.measure.pairs.torch_tiles import count_pairs_with_torch
from isomargin.measure.settings import EpsilonForm, MeanCurve, Pairs, Settings, Utility
from isomargin.measure.statistics.item_noise import measure_item_noise

SMALL = 1 << 23  # up to this many pairs, the exact count takes about a second
FLAT = 3  # in this many dimensions or fewer, neighbours among thousands of unit vectors are too close for float32
NARROW = 1 / 4  # if all distances are below this, float32 products are too coarse
SAME = 1 / 512  # if all distances are below this, float64 products are too coarse as well


class EqualizesSimilarity(Protocol):
    """What an evaluation needs of an equalizer; `isomargin.Equalizer` is one."""

    def shifts(self, embeddings: Any, ids: Any = None, new_classes: Any = None) -> Shifts:
        """Return what is added to the similarity of a pair by each of its rows.

        ``new_classes`` are labels, one per row: rows of the same class are then not neighbours of each other.
        """

    def record(self, new_classes: bool = False) -> dict[str, Any]:
        """Return settings and digest as JSON values."""


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
    equalizer: "EqualizesSimilarity | None" = None,
    ids: Any = None,
    new_classes: bool = False,
    cluster: str | None = None,
    threads: int | None = None,
    progress: Callable[[float], None] | Literal["auto"] | None = "auto",
) -> Evaluation:
    r"""Measure how consistently one distance threshold works across classes, and how well the embeddings retrieve.

    A threshold d accepts every pair of items at most d apart. Embeddings are scaled to unit length, so L2 distance d
    and cosine similarity s are related by :math:`d^2 = 2 - 2s`. For each class i:

    - Sensitivity :math:`\psi_i(d)` is the share of its positive pairs (two items of the class) that d accepts.
    - Specificity :math:`\varphi_i(d)` is the share of its negative pairs (one item of the class, one of another class)
      that d rejects.
    - Utility combines the two: :math:`U_i = (1 + c^2)\varphi_i\psi_i / (c^2\varphi_i + \psi_i)`.

    OPIS is the variance of :math:`U_i(d)` over classes, averaged over the thresholds of the calibration range. It is 0
    if one threshold serves all classes equally well. The calibration range holds the thresholds that one might use: by
    default those with a false accept rate from 1% to 10% over all pairs.

    **Accuracy.** All pairs are counted in one pass over a float32 product. The scores of the set agree with a
    computation by their definitions to 1e-4. The values of a single class agree on average: a pair closer to a
    threshold than the width of a bin (2e-5 to 1e-3) may be counted on either side of it. Pairs are counted exactly in
    float64 if there are at most 4,096 embeddings (and no device is given), if distances repeat or are all very small,
    or if the embeddings have at most three dimensions.

    **Cost.** The pass takes less than 1.5 times as long as the float32 product alone. Memory in addition to the
    embeddings: one float32 copy, at most 268 MB of counters (twice that if large classes have many positive pairs), and
    at most 4 KB per row.

    Args:
        embeddings: (n, d) numpy array (memory-mapped or not), torch tensor or nested list; float16, bfloat16, float32,
            float64 or integers. Rows need not have length one: each is divided by its length.
        labels: n labels, integers or text. Rows with the same label form a class.
        far: the calibration range, given as the pooled false accept rates at its two ends.
        frr: if given, the calibration range starts where the pooled false reject rate falls to this value instead.
        distances: the calibration range as two distances (from 0 to 2 without an equalizer); replaces ``far`` and
            ``frr``.
        grid: number of evenly spaced distances in the calibration range at which curves are evaluated.
        epsilon: share of the classes in the best group, and in the worst group, of epsilon-OPIS.
        c: weight of sensitivity in the utility; above 1, false rejects count more than false accepts.
        utility: the two rates to combine: ``"specificity_sensitivity"`` or ``"precision_recall"``.
        mean_curve: the curve from which OPIS measures deviations: ``"classes"`` for the mean of the classes' curves, or
            ``"pooled"`` for the curve of all pairs.
        epsilon_form: utility of the groups in epsilon-OPIS: ``"f_score"``, or ``"printed"`` for the formula as printed
            in the paper, without the factor 1 + c².
        target_far: false accept rate of the single threshold whose effect on each class is reported.
        target_frr: false reject rate for which each class's own threshold is found, to measure their spread.
        k: values of k for recall@k.
        map_at_r: whether to compute R-precision and MAP@R; they take extra time only for classes of over 512 items.
        pairs: ``"all"``, or ``"sampled"`` for the paper's protocol for large sets: all positive pairs, and random
            negative pairs of each class.
        negatives_per_positive: number of negative pairs drawn per positive pair, if pairs are sampled.
        seed: seed of the random numbers, if pairs are sampled.
        exact: use float64 products and exact quantiles in any case; several times slower.
        device: a torch device such as ``"cuda"`` that counts the pairs; by default compiled code on the CPU does.
        equalizer: a fitted `isomargin.Equalizer`, to measure equalized similarities instead of cosines.
        ids: n names of the rows, by which the equalizer recognises rows of its reference.
        new_classes: measure classes as if they were not in the equalizer's reference yet: rows of the same class are
            left out of each row's neighbours. The rows must be those of the reference.
        cluster: count the pairs in parts on a Ray cluster: its address, ``"auto"`` for the one that this machine
            belongs to, or ``"local"`` to start one on this machine. Pairs are then counted in bins in any case. Use
            `evaluate_shards` for embeddings in files, and to say how much memory a part may use.
        threads: number of CPU threads; by default one per core, and one for each part on a cluster.
        progress: a function that is called with the share of the work done; ``"auto"`` shows a progress bar on a
            terminal after two seconds, and None shows nothing.

    Returns:
        An `Evaluation` with every score, one row per class, confidence intervals and more. Its notes about the input,
        such as classes of a single item, are also issued as warnings.

    Raises:
        InputError: if the embeddings, labels or settings cannot be evaluated; the message says how to fix it.

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
    if settings.pairs == "stratified":
        raise InputError("pairs is 'stratified', which is counted in parts: call evaluate_shards, or give --memory")
    if threads is not None:
        checks.whole(threads, "threads")
    if equalizer is None and (new_classes or ids is not None):
        raise InputError("new_classes and ids concern the neighbours of an equalizer: give one, or leave them out")
    if equalizer is not None and not hasattr(equalizer, "shifts"):
        hint = ", such as the equalizer_ of EqualizerCV" if hasattr(equalizer, "fit") else ""
        raise InputError(
            f"equalizer is of type {type(equalizer).__name__}: a fitted isomargin.Equalizer is needed{hint}"
        )
    if cluster is not None:
        evaluation = run_on_cluster(
            embeddings, labels, settings, cluster, threads, progress, equalizer, ids, new_classes
        )
    else:
        bar: AbstractContextManager[Any] = (
            progress_bar("counting pairs") if progress == "auto" else nullcontext(progress)
        )
        with bar as report:
            evaluation = run(embeddings, labels, settings, threads, report, equalizer, ids, new_classes)
    for note in evaluation.all_notes:
        if OTHER_LENGTHS not in note:  # it changes no score, and concerns most models
            warnings.warn(note, UserWarning, stacklevel=2)
    return evaluation


def run(
    embeddings: Any,
    labels: Any,
    settings: Settings,
    threads: int | None,
    progress: Callable[[float], None] | None,
    equalizer: "EqualizesSimilarity | None" = None,
    ids: Any = None,
    new_classes: bool = False,
) -> Evaluation:
    """Choose how to count the pairs, count them, and assemble the evaluation."""
    shifts = None if equalizer is None else equalizer.shifts(embeddings, ids, labels if new_classes else None)
    data = sort_by_class(embeddings, labels, shifts=shifts, threads=threads)
    check_rates(data, settings)
    exactly, method_notes = count_exactly_because(data, settings)
    method: Literal["exact", "binned"] = "exact"
    if exactly:
        data = sort_by_class(embeddings, labels, float, shifts, threads)
    if settings.pairs == "sampled":
        passes = ExactPass(data, settings, threads, progress) if exactly else None
        ranks = passes.ranks_alone() if passes else count(data, settings, threads, progress).ranks
        counts = sample_pairs(data, settings.negatives_per_positive, settings.seed)
        method = "exact" if isinstance(counts.negatives, ListedDistances) else "binned"
        summary = summarize(counts, settings)
    elif exactly:
        counts, ranks, summary = ExactPass(data, settings, threads, progress).run()
    else:
        method = "binned"
        counts, ranks = count(data, settings, threads, progress)
        summary = summarize(counts, settings)
    noise = measure_item_noise(data, counts.negatives, threads)
    notes = (*data.notes, *method_notes, *(() if shifts is None else shifts.notes))
    record = record_of(equalizer, shifts, new_classes)
    return Evaluation(settings, data.names, data.sizes, counts, ranks, summary, method, noise, notes, record)


def run_on_cluster(
    embeddings: Any,
    labels: Any,
    settings: Settings,
    cluster: str,
    threads: int | None,
    progress: Callable[[float], None] | Literal["auto"] | None,
    equalizer: "EqualizesSimilarity | None",
    ids: Any,
    new_classes: bool,
) -> Evaluation:
    """Check settings and input before anything is sent to a cluster; count the pairs there."""
    from isomargin.measure import parts  # which imports this module

    settings = parts.check_part_settings(settings)
    import_or_explain("isomargin.measure.on_cluster").check_address(cluster)
    shifts = None if equalizer is None else equalizer.shifts(embeddings, ids, labels if new_classes else None)
    data = sort_by_class(embeddings, labels, shifts=shifts)
    check_rates(data, settings)
    record = record_of(equalizer, shifts, new_classes)
    return parts.evaluate_on_cluster(data, settings, cluster, threads, progress, shifts, record)


def record_of(
    equalizer: "EqualizesSimilarity | None", shifts: Shifts | None, new_classes: bool
) -> dict[str, Any] | None:
    """Return the equalizer's record, with what its shifts tell of the rows."""
    record = None if equalizer is None else equalizer.record(new_classes)
    if record is not None and shifts is not None and shifts.own_class is not None:
        record["own_class"] = shifts.own_class
    return record


def check_labels(labels: Any, far: tuple[float, float], **choices: Any) -> None:
    """Refuse labels that cannot be evaluated at these rates, whatever the embeddings; call it before computing them.

    ``choices`` are further settings of `evaluate`, such as ``pairs``.

    >>> check_labels([0, 0, 1, 1], far=(0.01, 0.1))
    Traceback (most recent call last):
    isomargin.InputError: far asks for a false accept rate of 0.01, but with 4 negative pairs the smallest ...
    """
    data = sort_by_class(np.ones((len(labels), 1), np.float32), labels)
    check_rates(data, Settings.from_values(**{**choices, "far": far, "target_far": max(far[0], 0.5)}))


def check_rates(data: ClassSortedVectors, settings: Settings) -> None:
    """Refuse rates that are too small for the number of pairs, before the pairs are counted."""
    sizes, n = data.sizes, len(data.class_of)
    if settings.pairs == "all":
        negatives = int((sizes * (n - sizes)).sum()) // 2
    elif settings.pairs == "stratified":
        negatives = n * columns_for(settings.target_far, settings.relative_error)
    else:
        negatives = int(sampled_pairs(sizes, settings.negatives_per_positive).sum())
    pairs_at_far(settings.target_far, negatives, "target_far")
    if settings.distances is not None:
        data.axis.check_range(settings.distances)
    else:
        pairs_at_far(settings.far[1 if settings.frr is not None else 0], negatives, "far")


def count(
    data: ClassSortedVectors, settings: Settings, threads: int | None, progress: Callable[[float], None] | None
) -> PassResult:
    """Count all pairs in one pass, with the compiled kernels or on a torch device."""
    if settings.device is None:
        return count_pairs(data, k=settings.k, map_at_r=settings.map_at_r, threads=threads, progress=progress)
    return count_pairs_with_torch(
        data, k=settings.k, map_at_r=settings.map_at_r, device=settings.device, progress=progress
    )


def count_exactly_because(data: ClassSortedVectors, settings: Settings) -> tuple[bool, tuple[str, ...]]:
    """Return whether to count exactly, and notes for the user about that choice."""
    n = len(data.class_of)
    if note := note_on_closeness(data):
        return settings.exact or fits(data), note
    if settings.exact or (settings.device is None and n * (n - 1) // 2 <= SMALL):
        return True, ()
    reason = why_bins_are_coarse(data)
    if reason is None:
        return False, ()
    if fits(data):
        return True, (f"{reason}: pairs are counted exactly on the CPU, which takes longer",)
    return False, (f"{reason}, and the classes are too large to count exactly: all scores are less accurate",)


def note_on_closeness(data: ClassSortedVectors) -> tuple[str, ...]:
    """Return a note if all embeddings are so close together that no count is accurate."""
    if data.reach >= SAME:
        return ()
    return (
        f"all embeddings are within {data.reach:.2g} of each other, too close for accurate scores: "
        "subtract their mean before normalising them",
    )


def why_bins_are_coarse(data: ClassSortedVectors) -> str | None:
    """Return why float32 products in bins are not accurate for these embeddings; None if they are."""
    if data.reach < NARROW:
        return "all embeddings are very close together"
    if repeated_share(data) > REPEATED:
        return "many pairs have the same distance"
    if data.vectors.shape[1] <= FLAT:
        return f"in {data.vectors.shape[1]} dimensions, neighbours are too close for float32 to tell apart"
    return None
