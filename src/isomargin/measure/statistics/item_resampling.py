"""Confidence intervals for other items of the same classes: items are resampled within each class.

``intervals.py`` covers other classes and works from the stored counts. This module covers other items of the same
classes, so it has to visit every pair again to know which items it belongs to.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.measure.pairs.axis import similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import ClassSortedVectors, Shifts, sort_by_class
from isomargin.measure.scores.consistency import epsilon_factor, epsilon_groups
from isomargin.measure.scores.curves import first_rate, share
from isomargin.measure.scores.registry import find_score
from isomargin.measure.scores.utility import utility
from isomargin.measure.scores.within_two import has_enough_pairs, is_within_two
from isomargin.measure.statistics.class_rates import frr_target, with_negatives_resampled
from isomargin.measure.statistics.intervals import Interval, check_draws, score_values

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

TILE = 1024  # items whose similarities to as many others are held at a time
AT_ONCE = 1 << 24  # values of the drawn curves that are held at a time


def item_intervals(
    evaluation: "Evaluation",
    embeddings: Any,
    labels: Any,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    shifts: Shifts | None = None,
) -> dict[str, Interval]:
    """Compute confidence intervals for the scores by bootstrap over the items of each class.

    The intervals say how much the scores would vary with other items of the same classes; the classes and the
    calibration range stay the same. Both items of a pair are resampled, so to first order the deviation of a class's
    sensitivity, and of the pooled FAR, is twice that of the items' own rates. (Both items of a class of two have the
    same rate, so such a class appears to have no uncertainty.) Resampling noisy items adds their noise to OPIS a second
    time; the bounds are shifted back by its mean.

    Args:
        evaluation: the evaluation whose scores get intervals.
        embeddings: the embeddings that were evaluated.
        labels: their labels.
        draws: number of bootstrap draws, at least 100.
        confidence: confidence level of the intervals.
        seed: seed of the random draws.
        shifts: what the equalizer added to the similarities, if they were equalized.

    Returns:
        Intervals by name: ``opis``, ``debiased_opis`` (if known), ``epsilon_opis``, ``far_within_two`` and
        ``frr_within_two`` (if known), ``mean_utility``, ``far`` and ``frr`` at the pooled threshold for the target FAR,
        and ``recall@k`` for each k.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(30), 8)
    >>> vectors = generator.normal(size=(30, 16))[labels] + 0.8 * generator.normal(size=(240, 16))
    >>> bounds = item_intervals(im.evaluate(vectors, labels), vectors, labels)
    >>> bounds["opis"].low < bounds["opis"].value < bounds["opis"].high
    True
    """
    check_draws(draws, confidence)
    if (evaluation.equalizer is None) != (shifts is None):
        kind = "plain" if shifts is not None else "equalized"
        raise InputError(
            f"the evaluation has {kind} similarities: give shifts only for equalized ones, and always then"
        )
    data = sort_by_class(embeddings, labels, shifts=shifts)
    if not np.array_equal(data.names, evaluation.names) or not np.array_equal(data.sizes, evaluation.sizes):
        raise InputError("the embeddings are not those that were evaluated: the classes or their sizes differ")
    values = score_values(evaluation)
    drawn = draw_scores(evaluation, data, draws, np.random.default_rng(seed))
    if "debiased_opis" in values:
        drawn["debiased_opis"] = drawn["opis"]
    tails = (1 - confidence) / 2, (1 + confidence) / 2
    found = {}
    for name, scores in drawn.items():
        low, high = values[name] + np.quantile(scores - scores.mean(), tails)
        least, most = find_score(name).bounds
        found[name] = Interval(values[name], max(float(low), least), min(float(high), most), confidence)
    return found


def draw_scores(
    evaluation: "Evaluation", data: ClassSortedVectors, draws: int, generator: np.random.Generator
) -> dict[str, Floats]:
    """(draws,) by name: the scores with items resampled within their classes."""
    levels = np.append(evaluation.curves.distances, [evaluation.target.distance, frr_target(evaluation).distance])
    item_sensitivity, item_far = item_rates(data, levels)
    step = max(1, AT_ONCE // (len(data.sizes) * len(levels)))
    parts = []
    for first in range(0, draws, step):
        number = min(step, draws - first)
        shape = (number, len(data.sizes), len(levels))
        sensitivity, far = np.empty(shape, np.float32), np.empty(shape, np.float32)
        for i, (start, end) in enumerate(zip(data.starts, data.ends, strict=True)):
            weights = draw_items(generator, number, int(end - start))
            mean = item_sensitivity[start:end].mean(axis=0)
            sensitivity[:, i] = np.clip(mean + 2 * (weights @ item_sensitivity[start:end] - mean), 0.0, 1.0)
            far[:, i] = weights @ item_far[start:end]
        parts.append(scores_of(evaluation, sensitivity, far) | recall(evaluation, number, generator))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def draw_items(generator: np.random.Generator, draws: int, items: int) -> NDArray[np.float32]:
    """(draws, items) share of each item in a sample of the same size, drawn with replacement."""
    chosen = generator.integers(0, items, (draws, items)) + items * np.arange(draws)[:, None]
    counts = np.bincount(chosen.ravel(), minlength=draws * items).reshape(draws, items)
    return (counts / items).astype(np.float32)


def scores_of(
    evaluation: "Evaluation", sensitivity: NDArray[np.float32], far: NDArray[np.float32]
) -> dict[str, Floats]:
    """(draws,) scores from (draws, classes, grid + 2) rates; the last two are at the thresholds for FAR and for FRR."""
    settings, with_curve, counts = evaluation.settings, evaluation.curves.classes, evaluation.counts
    negatives, positives = counts.negatives.totals, counts.positives.totals
    drawn = (far[:, :, -2] @ negatives) / negatives.sum()
    measured = evaluation.target.far
    scores = {
        "far": np.clip(measured + 2 * (drawn - measured), 0.0, 1.0),  # both items of a pair are resampled
        "frr": 1 - (sensitivity[:, :, -2] @ positives) / positives.sum(),
        **near_targets(evaluation, far[:, :, -2], 1 - sensitivity[:, :, -1]),
    }
    second, accepted = sensitivity[:, with_curve, :-2].astype(float), far[:, with_curve, :-2].astype(float)
    totals = negatives[with_curve, None]
    first = first_rate(settings.utility, second * positives[with_curve, None], accepted * totals, totals)
    curves = utility(first, second, settings.c)
    middle = curves.mean(axis=1, keepdims=True)
    if settings.mean_curve == "pooled":
        middle = evaluation.curves.mean_utility
    scores["opis"] = np.square(curves - middle).mean(axis=(1, 2))
    scores["mean_utility"] = curves.mean(axis=(1, 2))
    groups = np.empty(len(curves))
    factor = epsilon_factor(settings.epsilon_form, settings.c)
    for i, means in enumerate(curves.mean(axis=2)):
        worst, best = (
            utility(first[i, group].mean(axis=0), second[i, group].mean(axis=0), settings.c)
            for group in epsilon_groups(means, settings.epsilon)
        )
        groups[i] = np.square(factor * (worst - best)).mean()
    scores["epsilon_opis"] = groups
    return scores


def near_targets(evaluation: "Evaluation", far: NDArray[np.float32], frr: NDArray[np.float32]) -> dict[str, Floats]:
    """(draws,) by name: share of the classes near each target, from (draws, classes) rates at the thresholds for it.

    The threshold would follow the pooled rate of a draw. Rates are scaled so that the pooled rate stays the same.
    """
    settings, counts, with_curve = evaluation.settings, evaluation.counts, evaluation.curves.classes
    scores = {}
    for name, target, rates, pairs, measured in (
        ("far_within_two", settings.target_far, far, counts.negatives.totals, evaluation.target.far),
        ("frr_within_two", settings.target_frr, frr, counts.positives.totals, frr_target(evaluation).frr),
    ):
        counted = with_curve[has_enough_pairs(pairs[with_curve], target)]
        if len(counted):
            scale = share(measured * pairs.sum(), rates @ pairs)
            scores[name] = is_within_two(rates[:, counted] * scale[:, None], target).mean(axis=1)
    if "far_within_two" in scores:
        scores["far_within_two"] = with_negatives_resampled(scores["far_within_two"], evaluation.far_within_two.share)
    return scores


def recall(evaluation: "Evaluation", draws: int, generator: np.random.Generator) -> dict[str, Floats]:
    """(draws,) recall@k: resampling the items of a class makes the number of its hits binomial."""
    ranks = evaluation.ranks
    has_queries = ranks.queries > 0
    queries = ranks.queries[has_queries]
    return {
        f"recall@{k}": generator.binomial(queries, hits[has_queries] / queries, (draws, len(queries))).sum(axis=1)
        / queries.sum()
        for k, hits in zip(ranks.k, ranks.hits.T, strict=True)
    }


def item_rates(data: ClassSortedVectors, distances: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(n, levels) sensitivity and (n, levels) FAR of each item: the shares of its positives and negatives accepted."""
    from isomargin.measure.pairs.count_kernels import count_levels

    order = np.argsort(distances, kind="stable")
    nearest_first = similarity_of(distances[order]).astype(data.vectors.dtype)
    n, class_of = len(data.class_of), data.class_of
    positives, negatives = (np.zeros((n, len(distances)), np.int64) for _ in range(2))
    for start, end in zip(data.starts, data.ends, strict=True):
        itself = np.arange(start, end)
        for first in range(start, end, TILE):
            rows = slice(first, min(first + TILE, end))
            similarity = data.similarity(rows, slice(start, end))
            count_levels(similarity, nearest_first, itself[rows.start - start :], itself, positives[rows])
    part = np.empty((TILE, len(distances)), np.int64)
    for top in range(0, n, TILE):
        rows = slice(top, min(top + TILE, n))
        for left in range(0, n, TILE):
            columns = slice(left, min(left + TILE, n))
            counts = part[: rows.stop - rows.start]
            counts[:] = 0
            similarity = data.similarity(rows, columns)
            count_levels(similarity, nearest_first, class_of[rows], class_of[columns], counts)
            negatives[rows] += counts
    sizes = data.sizes[class_of][:, None]
    back = np.argsort(order)
    return (
        share(positives.astype(float), sizes - 1)[:, back].astype(np.float32),
        share(negatives.astype(float), n - sizes)[:, back].astype(np.float32),
    )
