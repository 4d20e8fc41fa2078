r"""Scores of a detector, as speaker and language recognition report them: minDCF, Cllr and minCllr.

minDCF is the least cost of decisions by one threshold. Cllr judges scores as log likelihood ratios, so it also judges
how well they are calibrated. Each function takes the values of the positive and the negative pairs.
"""

import numpy as np
from numpy.typing import NDArray

from isomargin.measure.pairs.distances import Floats

FOLDS = 5
MOST_STEPS = 100  # of Newton's method; it takes about ten
CONVERGED = 1e-12


def detection_costs(far: Floats, frr: Floats, prior: float, false_accept: float, false_reject: float) -> Floats:
    r"""Normalised detection cost of each pair of rates, as NIST's speaker recognition evaluations define it.

    .. math:: \frac{C_\mathrm{fr}\, \pi\, \mathrm{FRR} + C_\mathrm{fa} (1 - \pi) \mathrm{FAR}}
        {\min(C_\mathrm{fr}\, \pi,\; C_\mathrm{fa} (1 - \pi))}

    The divisor is the cost of the better of two systems that know nothing: one rejects every pair, one accepts it.

    >>> float(detection_costs(np.array(0.001), np.array(0.1), 0.01, 1, 1))
    0.199
    """
    reject, accept = false_reject * prior, false_accept * (1 - prior)
    return np.asarray((reject * frr + accept * far) / min(reject, accept))


def min_dcf(positives: Floats, negatives: Floats, prior: float, false_accept: float, false_reject: float) -> float:
    """Return the least normalised detection cost of any threshold, at most 1.

    Args:
        positives: (pairs,) distances of the positive pairs, ascending.
        negatives: (pairs,) distances of the negative pairs, ascending.
        prior: share of positive pairs to expect.
        false_accept: cost of a false accept.
        false_reject: cost of a false reject.

    >>> min_dcf(np.array([0.1, 0.2, 0.6]), np.array([0.5, 0.7, 0.8, 0.9]), 0.5, 1, 1)
    0.25
    """
    # Between two positive pairs, the least cost is at the first of them: further on only FAR rises.
    thresholds = np.unique(positives)
    far = np.searchsorted(negatives, thresholds, side="right") / len(negatives)
    frr = 1 - np.searchsorted(positives, thresholds, side="right") / len(positives)
    return float(min(1.0, detection_costs(far, frr, prior, false_accept, false_reject).min()))


def cllr(positives: Floats, negatives: Floats) -> float:
    r"""Cost of log likelihood ratios (Brümmer and du Preez, 2006), in bits.

    .. math:: \frac12 \Bigl(\frac1{N_+} \sum_{+} \log_2 (1 + 1/\mathrm{LR})
        + \frac1{N_-} \sum_{-} \log_2 (1 + \mathrm{LR})\Bigr)

    It is 0 if every ratio is certain and right, and 1 if all of them are 1, which says nothing.

    Args:
        positives: (pairs,) natural logarithms of the likelihood ratios of the positive pairs.
        negatives: (pairs,) those of the negative pairs.

    >>> cllr(np.zeros(3), np.zeros(5)), round(cllr(np.array([np.log(3)]), np.array([-np.log(3)])), 4)
    (1.0, 0.415)
    """
    cost = np.logaddexp(0, -positives).mean() + np.logaddexp(0, negatives).mean()
    return float(cost / 2 / np.log(2))


def min_cllr(positives: Floats, negatives: Floats) -> float:
    """Return the Cllr after the best increasing map from scores to likelihood ratios, found by pooling violators (PAV).

    The map is fitted to the same pairs, so it shows how well the scores separate and not how well they are calibrated.

    Args:
        positives: (pairs,) distances of the positive pairs, ascending.
        negatives: (pairs,) distances of the negative pairs, ascending.

    >>> min_cllr(np.array([0.1, 0.2]), np.array([0.3, 0.4])), min_cllr(np.array([0.5]), np.array([0.5]))
    (0.0, 1.0)
    """
    from scipy.optimize import isotonic_regression

    values = np.union1d(positives, negatives)
    matched, others = (
        np.diff(np.searchsorted(pairs, values, side="right"), prepend=0) for pairs in (positives, negatives)
    )
    number = matched + others
    probability = isotonic_regression(matched / number, weights=number, increasing=False).x
    with np.errstate(divide="ignore"):
        ratio = np.log(probability) - np.log1p(-probability) - np.log(len(positives) / len(negatives))
    # A value without pairs of one kind adds nothing for that kind, however certain it is.
    costs = [
        np.sum(pairs[pairs > 0] * np.logaddexp(0, sign * ratio[pairs > 0])) / pairs.sum()
        for pairs, sign in ((matched, -1), (others, 1))
    ]
    return float(sum(costs) / 2 / np.log(2))


# ----- calibrating by logistic regression


def fit_log_ratios(similarity: Floats, same: NDArray[np.bool_]) -> tuple[float, float]:
    """Fit the slope and the intercept of log likelihood ratios by logistic regression.

    The positive pairs have half of the weight, the negative pairs the other half. The targets are Platt's,
    (N + 1)/(N + 2) and 1/(N + 2), so that the slope stays finite if a threshold separates the two kinds. If more
    similar pairs match less often, both are 0.

    >>> slope, intercept = fit_log_ratios(np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, True, False, True]))
    >>> slope > 0, abs(intercept + 2.5 * slope) < 1e-9
    (True, True)
    """
    number, others = int(same.sum()), int((~same).sum())
    weight = np.where(same, 0.5 / number, 0.5 / others)
    target = np.where(same, (number + 1) / (number + 2), 1 / (others + 2))
    mean = float(weight @ similarity)
    deviation = float(np.sqrt(weight @ np.square(similarity - mean)))
    if deviation == 0:
        return 0.0, 0.0
    scaled = (similarity - mean) / deviation
    found = newton(scaled, target, weight)
    slope = float(found[1]) / deviation
    return (slope, float(found[0]) - slope * mean) if slope > 0 else (0.0, 0.0)


def newton(scaled: Floats, target: Floats, weight: Floats) -> Floats:
    """(2,) intercept and slope of the logistic regression with the largest likelihood, by Newton's method."""
    from scipy.special import expit

    def loss(at: Floats) -> float:
        log_odds = at[0] + at[1] * scaled
        return float(weight @ (np.logaddexp(0, log_odds) - target * log_odds))

    at = np.zeros(2)
    here = loss(at)
    for _ in range(MOST_STEPS):
        probability = expit(at[0] + at[1] * scaled)
        missing, curvature = weight * (target - probability), weight * probability * (1 - probability)
        gradient = np.array([missing.sum(), missing @ scaled])
        across = curvature @ scaled
        step = np.linalg.solve(
            np.array([[curvature.sum(), across], [across, curvature @ np.square(scaled)]]) + 1e-14 * np.eye(2), gradient
        )
        while (there := loss(at + step)) > here and np.abs(step).max() > CONVERGED:
            step /= 2
        if not np.abs(step).max() > CONVERGED:
            break
        at, here = at + step, there
    return at


def cross_fitted_cllr(similarity: Floats, same: NDArray[np.bool_], fold_of: NDArray[np.int64]) -> float:
    """Return the Cllr of calibrated scores: each pair by a map fitted without the folds that the pair belongs to.

    Args:
        similarity: (pairs,) scores, higher for more similar pairs.
        same: (pairs,) whether the pair is positive.
        fold_of: (pairs, m) the folds that each pair belongs to: two if it belongs to groups of two folds.

    Returns:
        The cost; NaN if some map would have no positive or no negative pair to be fitted on.
    """
    ratios = np.empty(len(similarity))
    for folds in np.unique(np.sort(fold_of, axis=1), axis=0):
        held_out = (np.sort(fold_of, axis=1) == folds).all(axis=1)
        rest = ~np.isin(fold_of, folds).any(axis=1)
        if not same[rest].any() or same[rest].all():
            return float("nan")
        slope, intercept = fit_log_ratios(similarity[rest], same[rest])
        ratios[held_out] = slope * similarity[held_out] + intercept
    return cllr(ratios[same], ratios[~same])


def folds_of_pairs(similarity: Floats, same: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(pairs, 1) folds of single pairs, with as many positive and negative pairs in each; the order does not matter."""
    fold_of = np.empty((len(similarity), 1), np.int64)
    for kind in (same, ~same):
        members = np.flatnonzero(kind)
        members = members[np.argsort(similarity[members], kind="stable")]
        fold_of[np.random.default_rng(0).permutation(members), 0] = np.arange(len(members)) % FOLDS
    return fold_of


def folds_of_groups(groups: int) -> NDArray[np.int64]:
    """(groups,) the fold of each group.

    >>> np.bincount(folds_of_groups(12)).tolist()
    [3, 3, 2, 2, 2]
    """
    fold_of = np.empty(groups, np.int64)
    fold_of[np.random.default_rng(0).permutation(groups)] = np.arange(groups) % FOLDS
    return fold_of
