"""Definitional reference for the measures of threshold inconsistency, written for certainty rather than speed.

Every pair's distance is computed once, in float64, and every share is a count of sorted distances over a whole
number of pairs: no bins, no interpolation, no sampling. It shares no code with the package it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from types import SimpleNamespace

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SIMILARITY_DECIMALS = 11
UTILITY_DECIMALS = 12
COUNT_SLACK = 1e-9
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
ROWS_AT_A_TIME = 1000
THRESHOLDS_AT_A_TIME = 4_000_000


# --- Distances --------------------------------------------------------------------------------------------------------


def unit_rows(embeddings: ArrayLike) -> Floats:
    rows = np.asarray(embeddings).astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1))
    if not np.all(np.isfinite(lengths)) or np.any(lengths == 0):
        raise ValueError("every embedding must be finite and different from zero")
    return rows / lengths[:, None]


def distance_from_similarity(similarity: Floats) -> Floats:
    # Rounding comes first, so that similarities which differ by rounding only give the same distance.
    return np.sqrt(np.maximum(0.0, 2.0 - 2.0 * np.round(similarity, SIMILARITY_DECIMALS)))


def signed_distances(similarity: Floats) -> Floats:
    """Distances of similarities that may exceed 1, where they are negative."""
    squared = 2.0 - 2.0 * np.round(similarity, SIMILARITY_DECIMALS)
    return np.where(squared < 0, -np.sqrt(np.abs(squared)), np.sqrt(np.abs(squared)))


def distance_matrix(unit: Floats) -> Floats:
    """All distances. Exactly symmetric: a pair is computed once and written to both of its places."""
    count = len(unit)
    distances = np.empty((count, count))
    for start in range(0, count, ROWS_AT_A_TIME):
        stop = min(start + ROWS_AT_A_TIME, count)
        block = distance_from_similarity(unit[start:stop] @ unit[start:].T)
        square = np.triu(block[:, : stop - start], 1)
        block[:, : stop - start] = square + square.T
        distances[start:stop, start:] = block
        distances[start:, start:stop] = block.T
    return distances


# --- Pairs ------------------------------------------------------------------------------------------------------------


def above_diagonal(square: Floats) -> Floats:
    return square[np.triu_indices(len(square), 1)]


def class_positives(distances: Floats, start: int, stop: int) -> Floats:
    """Sorted distances of the unordered pairs with both ends in the class, whose rows are start to stop."""
    return np.sort(above_diagonal(distances[start:stop, start:stop]))


def class_negatives(distances: Floats, start: int, stop: int) -> Floats:
    """Sorted distances of the pairs with exactly one end in the class."""
    return np.sort(np.concatenate([distances[start:stop, :start].ravel(), distances[start:stop, stop:].ravel()]))


def pooled_positives(distances: Floats, bounds: list[tuple[int, int]]) -> Floats:
    return np.sort(np.concatenate([above_diagonal(distances[start:stop, start:stop]) for start, stop in bounds]))


def pooled_negatives(distances: Floats, bounds: list[tuple[int, int]]) -> Floats:
    """Each negative pair once: a class against the classes after it."""
    pooled = np.empty(sum((stop - start) * (len(distances) - stop) for start, stop in bounds))
    filled = 0
    for start, stop in bounds:
        block = distances[start:stop, stop:].ravel()
        pooled[filled : filled + block.size] = block
        filled += block.size
    pooled.sort()
    return pooled


# --- Counts and operating points --------------------------------------------------------------------------------------


def count_within(sorted_distances: Floats, thresholds: ArrayLike) -> Integers:
    """Number of pairs with distance <= threshold."""
    return np.searchsorted(sorted_distances, thresholds, side="right")


def count_nearer(sorted_distances: Floats, thresholds: ArrayLike) -> Integers:
    """Number of pairs with distance < threshold."""
    return np.searchsorted(sorted_distances, thresholds, side="left")


def false_accept_rate(negatives: Floats, thresholds: ArrayLike) -> Floats:
    return count_within(negatives, thresholds) / len(negatives)


def false_reject_rate(positives: Floats, thresholds: ArrayLike) -> Floats:
    return (len(positives) - count_within(positives, thresholds)) / len(positives)


def distance_at_far(negatives: Floats, rate: float) -> float:
    """Smallest distance of a negative pair at which at least `rate` of them are accepted."""
    # Whole counts: rate * pairs may land a rounding error above the whole number that is meant.
    needed = max(1, ceil(rate * len(negatives) - COUNT_SLACK))
    return float(negatives[needed - 1])


def distance_at_frr(positives: Floats, rate: float) -> float:
    """Smallest distance of a positive pair at which at most `rate` of them are rejected."""
    rejected = floor(rate * len(positives) + COUNT_SLACK)
    needed = max(1, len(positives) - rejected)
    return float(positives[needed - 1])


def calibration_range(
    positives: Floats,
    negatives: Floats,
    far: tuple[float, float],
    frr: float | None,
    distances: tuple[float, float] | None,
) -> tuple[float, float]:
    if distances is not None:
        lower, upper = float(distances[0]), float(distances[1])
    else:
        lower = distance_at_far(negatives, far[0]) if frr is None else distance_at_frr(positives, frr)
        upper = distance_at_far(negatives, far[1])
    if lower > upper:
        raise ValueError(f"the calibration range is empty: it would start at {lower} and end at {upper}")
    return lower, upper


def even_grid(lower: float, upper: float, count: int) -> Floats:
    grid = np.linspace(lower, upper, count)
    grid[-1] = upper
    return grid


# --- Curves -----------------------------------------------------------------------------------------------------------


def share(part: ArrayLike, whole: ArrayLike) -> Floats:
    """part / whole, 0 where the whole is 0."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    return np.divide(part, whole, out=np.zeros(np.broadcast_shapes(part.shape, whole.shape)), where=whole != 0)


def ratio(numerator: float, denominator: float) -> float:
    """Numerator over denominator, NaN where that has no value."""
    return float(numerator / denominator) if denominator != 0 else float("nan")


def f_score(phi: Floats, psi: Floats, c: float, form: str = "f_score") -> Floats:
    factor = {"f_score": 1.0 + c * c, "printed": 1.0}[form]
    return share(factor * phi * psi, c * c * phi + psi)


def curves(positives: Floats, negatives: Floats, grid: Floats, c: float, utility: str) -> SimpleNamespace:
    true_accepts = count_within(positives, grid)
    false_accepts = count_within(negatives, grid)
    result = SimpleNamespace(
        sensitivity=true_accepts / len(positives),
        specificity=(len(negatives) - false_accepts) / len(negatives),
        precision=share(true_accepts, true_accepts + false_accepts),
    )
    result.psi = result.sensitivity
    result.phi = {"specificity_sensitivity": result.specificity, "precision_recall": result.precision}[utility]
    result.utility = f_score(result.phi, result.psi, c)
    return result


def stack(all_curves: list[SimpleNamespace], name: str) -> Floats:
    return np.stack([getattr(one, name) for one in all_curves])


def group_size(epsilon: float, class_count: int) -> int:
    return max(1, floor(epsilon * class_count + 0.5))


def epsilon_groups(mean_utility: Floats, epsilon: float) -> tuple[Integers, Integers]:
    """Rows of the worst and of the best classes; equal utilities stay in the order of the classes."""
    # Means that are equal on paper may differ in their last bits, which must not decide the order.
    order = np.argsort(np.round(mean_utility, UTILITY_DECIMALS), kind="stable")
    size = group_size(epsilon, len(order))
    return order[:size], order[-size:]


def epsilon_opis(phi: Floats, psi: Floats, worst: Integers, best: Integers, c: float, form: str) -> float:
    worst_utility = f_score(phi[worst].mean(axis=0), psi[worst].mean(axis=0), c, form)
    best_utility = f_score(phi[best].mean(axis=0), psi[best].mean(axis=0), c, form)
    return float(np.mean((worst_utility - best_utility) ** 2))


def spread(values: Floats, width: float) -> SimpleNamespace:
    quantiles = np.quantile(values, QUANTILES)
    return SimpleNamespace(
        std=float(np.std(values)),
        quantiles=quantiles,
        relative_std=ratio(float(np.std(values)), width),
        relative_quantiles=np.array([ratio(quantile, width) for quantile in quantiles]),
    )


def near_target(errors: Sequence[int], pairs: Sequence[int], target: float) -> SimpleNamespace:
    """Share of the classes whose error rate is within a factor of two of the target, where ten errors are expected."""
    counted = [(error, pair) for error, pair in zip(errors, pairs, strict=True) if target * pair >= 10 - COUNT_SLACK]
    near = [(target / 2) * pair - COUNT_SLACK <= error <= 2 * target * pair + COUNT_SLACK for error, pair in counted]
    # A class within two pairs of half or twice the target may fall on either side if its pairs are not counted exactly.
    close = [min(abs(error - target / 2 * pair), abs(error - 2 * target * pair)) < 2 for error, pair in counted]
    return SimpleNamespace(
        share=ratio(sum(near), len(counted)),
        classes=len(counted),
        left_out=len(pairs) - len(counted),
        undecided=ratio(sum(close), len(counted)),
    )


# --- Verification -----------------------------------------------------------------------------------------------------


def distinct_distances(positives: Floats, negatives: Floats) -> Floats:
    merged = np.concatenate([positives, negatives])
    merged.sort(kind="stable")  # two sorted runs: a stable sort only has to merge them
    first = np.ones(len(merged), dtype=bool)
    first[1:] = merged[1:] != merged[:-1]
    return merged[first]


def equal_error(positives: Floats, negatives: Floats) -> tuple[float, float]:
    """Rate at which the ROC curve, straight between its points, has FAR = FRR; and the distance of the point after."""
    far_before, gap_before = 0.0, -1.0  # the threshold below every pair
    thresholds = distinct_distances(positives, negatives)
    for start in range(0, len(thresholds), THRESHOLDS_AT_A_TIME):
        chunk = thresholds[start : start + THRESHOLDS_AT_A_TIME]
        far = np.append(far_before, count_within(negatives, chunk) / len(negatives))
        frr = 1.0 - count_within(positives, chunk) / len(positives)
        gap = np.append(gap_before, far[1:] - frr)  # rises with every threshold
        if gap[-1] >= 0:
            return float(np.interp(0.0, gap, far)), float(chunk[np.argmax(gap[1:] >= 0)])
        far_before, gap_before = far[-1], gap[-1]
    raise AssertionError("at the largest distance nothing is rejected")


def area_under_curve(positives: Floats, negatives: Floats) -> float:
    """Probability that a positive pair is nearer than a negative one, ties counting half."""
    farther = len(negatives) - count_within(negatives, positives)
    tied = count_within(negatives, positives) - count_nearer(negatives, positives)
    return float(np.sum(2 * farther + tied)) / (2 * len(positives) * len(negatives))


# --- Retrieval --------------------------------------------------------------------------------------------------------


def positive_ranks(distances: Floats, start: int, stop: int) -> Integers:
    """For each query of the class, the ranks (from 1) of its positives among all other rows.

    Positives come before negatives at equal distance, so the j-th nearest positive has rank j plus the number of
    negatives strictly nearer than it.
    """
    block = distances[start:stop]
    negatives = np.sort(np.concatenate([block[:, :start], block[:, stop:]], axis=1), axis=1)
    ranks = np.empty((stop - start, stop - start - 1), dtype=np.int64)
    for query in range(stop - start):
        positives = np.sort(np.delete(block[query, start:stop], query))
        ranks[query] = 1 + np.arange(len(positives)) + count_nearer(negatives[query], positives)
    return ranks


def class_retrieval(ranks: Integers, k: Sequence[int]) -> SimpleNamespace:
    """Hits, R-precision and average precision at R of each query, from the ranks of its R positives."""
    positive_count = ranks.shape[1]
    found = ranks <= positive_count
    precision_at_positive = np.arange(1, positive_count + 1) / ranks
    return SimpleNamespace(
        hits={bound: ranks[:, 0] <= bound for bound in k},
        r_precision=found.sum(axis=1) / positive_count,
        map_at_r=np.where(found, precision_at_positive, 0.0).sum(axis=1) / positive_count,
    )


def over_queries(values: list[NDArray]) -> float:
    return float(np.mean(np.concatenate(values)))


# --- All together -----------------------------------------------------------------------------------------------------


def class_bounds(sizes: Integers) -> list[tuple[int, int]]:
    stops = np.cumsum(sizes)
    return [(int(stop - size), int(stop)) for size, stop in zip(sizes, stops, strict=True)]


def by_class(values: Sequence[float], curve: Integers, class_count: int) -> Floats:
    """One value per class, NaN for the classes without a curve."""
    result = np.full(class_count, np.nan)
    result[curve] = values
    return result


def measure_class(
    distances: Floats, bounds: tuple[int, int], grid: Floats, settings: SimpleNamespace, target_distance: float
) -> SimpleNamespace:
    positives, negatives = class_positives(distances, *bounds), class_negatives(distances, *bounds)
    result = SimpleNamespace(
        positive_pairs=len(positives),
        negative_pairs=len(negatives),
        far=float(false_accept_rate(negatives, target_distance)),
        far_distance=distance_at_far(negatives, settings.target_far),
    )
    if len(positives):
        result.curves = curves(positives, negatives, grid, settings.c, settings.utility)
        result.frr = float(false_reject_rate(positives, target_distance))
        result.frr_distance = distance_at_frr(positives, settings.target_frr)
        result.eer, result.eer_distance = equal_error(positives, negatives)
        result.auc = area_under_curve(positives, negatives)
        result.retrieval = class_retrieval(positive_ranks(distances, *bounds), settings.k)
    return result


def inconsistency(
    class_curves: list[SimpleNamespace], pooled: SimpleNamespace, settings: SimpleNamespace
) -> SimpleNamespace:
    utility, phi, psi = (stack(class_curves, name) for name in ("utility", "phi", "psi"))
    mean_curve = {"classes": utility.mean(axis=0), "pooled": pooled.utility}[settings.mean]
    squares = (utility - mean_curve) ** 2
    opis = float(squares.mean())
    class_mean_utility = utility.mean(axis=1)
    worst, best = epsilon_groups(class_mean_utility, settings.epsilon)
    return SimpleNamespace(
        opis=opis,
        contribution=squares.mean(axis=1) / len(utility),
        relative_opis=ratio(opis, float(np.mean((1.0 - mean_curve) ** 2))),
        mean_curve=mean_curve,
        class_mean_utility=class_mean_utility,
        epsilon_opis=epsilon_opis(phi, psi, worst, best, settings.c, settings.epsilon_form),
        worst=worst,
        best=best,
    )


def reference(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    far: tuple[float, float] = (1e-2, 1e-1),
    frr: float | None = None,
    distances: tuple[float, float] | None = None,
    grid: int = 101,
    epsilon: float = 0.1,
    c: float = 1.0,
    utility: str = "specificity_sensitivity",
    mean: str = "classes",
    epsilon_form: str = "f_score",
    target_far: float = 0.01,
    target_frr: float = 0.05,
    k: Sequence[int] = (1, 2, 4, 8),
    similarities: ArrayLike | None = None,
) -> SimpleNamespace:
    """Everything the evaluation reports; of a symmetric (n, n) matrix of similarities instead of cosines, if given.

    Fields named `class_...` and `opis_contribution` hold one value per entry of `classes`, NaN where a class has none.
    The curves `sensitivity`, `specificity`, `precision` and `utility` have one row per entry of `curve_index`.
    """
    settings = SimpleNamespace(
        epsilon=epsilon,
        c=c,
        utility=utility,
        mean=mean,
        epsilon_form=epsilon_form,
        target_far=target_far,
        target_frr=target_frr,
        k=tuple(k),
    )
    classes, class_of_row, sizes = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    if len(classes) < 2 or sizes.max() < 2:
        raise ValueError("there must be a positive and a negative pair")
    # Rows of a class side by side, so that a class is a slice.
    order = np.argsort(class_of_row, kind="stable")
    if similarities is None:
        matrix = distance_matrix(unit_rows(embeddings)[order])
    else:
        matrix = signed_distances(np.asarray(similarities, dtype=np.float64)[np.ix_(order, order)])
    bounds = class_bounds(sizes)
    positives, negatives = pooled_positives(matrix, bounds), pooled_negatives(matrix, bounds)

    lower, upper = calibration_range(positives, negatives, far, frr, distances)
    points = even_grid(lower, upper, grid)
    target_distance = distance_at_far(negatives, target_far)
    eer, eer_distance = equal_error(positives, negatives)

    per_class = [measure_class(matrix, bound, points, settings, target_distance) for bound in bounds]
    curve_index = np.flatnonzero(sizes >= 2)
    with_curve = [per_class[index] for index in curve_index]
    class_curves = [one.curves for one in with_curve]
    retrievals = [one.retrieval for one in with_curve]
    pooled = curves(positives, negatives, points, c, utility)
    scores = inconsistency(class_curves, pooled, settings)

    def spread_out(values: Sequence[float]) -> Floats:
        return by_class(values, curve_index, len(classes))

    frr_target_distance = distance_at_frr(positives, target_frr)
    rejected = [
        len(own) - int(count_within(own, frr_target_distance))
        for own in (class_positives(matrix, *bounds[index]) for index in curve_index)
    ]
    accepted = [int(count_within(class_negatives(matrix, *bounds[index]), target_distance)) for index in curve_index]

    class_far_distance = np.array([one.far_distance for one in per_class])
    class_frr_distance = spread_out([one.frr_distance for one in with_curve])
    return SimpleNamespace(
        classes=classes,
        sizes=sizes,
        curve_index=curve_index,
        curve_classes=classes[curve_index],
        # pairs
        positive_pairs=len(positives),
        negative_pairs=len(negatives),
        class_positive_pairs=np.array([one.positive_pairs for one in per_class]),
        class_negative_pairs=np.array([one.negative_pairs for one in per_class]),
        positive_distances=positives,
        negative_distances=negatives,
        # range and curves
        calibration_range=(lower, upper),
        grid=points,
        far=false_accept_rate(negatives, points),
        frr=false_reject_rate(positives, points),
        sensitivity=stack(class_curves, "sensitivity"),
        specificity=stack(class_curves, "specificity"),
        precision=stack(class_curves, "precision"),
        utility=stack(class_curves, "utility"),
        pooled_sensitivity=pooled.sensitivity,
        pooled_specificity=pooled.specificity,
        pooled_precision=pooled.precision,
        pooled_utility=pooled.utility,
        mean_curve=scores.mean_curve,
        # inconsistency
        opis=scores.opis,
        opis_contribution=spread_out(scores.contribution),
        relative_opis=scores.relative_opis,
        mean_utility=float(scores.class_mean_utility.mean()),
        class_mean_utility=spread_out(scores.class_mean_utility),
        epsilon_opis=scores.epsilon_opis,
        worst_classes=curve_index[scores.worst],
        best_classes=curve_index[scores.best],
        # operating points
        target_distance=target_distance,
        far_at_target=float(false_accept_rate(negatives, target_distance)),
        frr_at_target=float(false_reject_rate(positives, target_distance)),
        class_far_at_target=np.array([one.far for one in per_class]),
        class_frr_at_target=spread_out([one.frr for one in with_curve]),
        class_far_distance=class_far_distance,
        class_frr_distance=class_frr_distance,
        far_distance_spread=spread(class_far_distance[curve_index], upper - lower),
        frr_distance_spread=spread(class_frr_distance[curve_index], upper - lower),
        far_within_two=near_target(accepted, [one.negative_pairs for one in with_curve], target_far),
        frr_within_two=near_target(rejected, [one.positive_pairs for one in with_curve], target_frr),
        # verification
        eer=eer,
        eer_distance=eer_distance,
        class_eer=spread_out([one.eer for one in with_curve]),
        class_eer_distance=spread_out([one.eer_distance for one in with_curve]),
        auc=area_under_curve(positives, negatives),
        class_auc=spread_out([one.auc for one in with_curve]),
        # retrieval
        recall_at_k={bound: over_queries([one.hits[bound] for one in retrievals]) for bound in settings.k},
        class_recall_at_k={bound: spread_out([one.hits[bound].mean() for one in retrievals]) for bound in settings.k},
        r_precision=over_queries([one.r_precision for one in retrievals]),
        class_r_precision=spread_out([one.r_precision.mean() for one in retrievals]),
        map_at_r=over_queries([one.map_at_r for one in retrievals]),
        class_map_at_r=spread_out([one.map_at_r.mean() for one in retrievals]),
    )
