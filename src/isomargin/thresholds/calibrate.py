"""Post-hoc calibration: one map for all classes from similarity to the probability that a pair is a match.

Platt's sigmoid, isotonic regression and temperature scaling, fitted to the counts of an Evaluation. The map is
monotone, so it changes no ranking: it says what a similarity means, but makes no threshold hold for more classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.pairs.axis import distance_of, similarity_of
from isomargin.measure.pairs.distances import Floats
from isomargin.thresholds.calibration_error import (
    CalibrationErrors,
    ErrorSummary,
    Points,
    Probability,
    as_similarity,
    check_pairs,
    class_errors,
    gather_points,
    group_errors,
    named_values,
    zero_to_one,
)

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

Method = Literal["platt", "isotonic", "temperature"]
Parameters = Mapping[str, float | tuple[float, ...]]

PARAMETERS = {
    "platt": ("slope", "intercept"),
    "temperature": ("temperature", "centre"),
    "isotonic": ("similarity", "probability"),
}
BINS = 15  # bins of probability of the errors that calibrate reports
BALANCED = 0.5
HOTTEST = 1e6  # a temperature at which the probability no longer depends on the similarity
ROUNDING = 1e-2  # by how much half-precision similarities may exceed their bounds
COSINES = (-1.0, 1.0)


def log_odds(share: float) -> float:
    """Compute log(p / (1 - p))."""
    return math.log(share) - math.log1p(-share)


# ----- the map


@dataclass(frozen=True)
class Calibration:
    """A monotone map from similarity, plain or equalized, to the probability of a match. Made by ``calibrate``.

    - platt: p = sigmoid(slope · s + intercept)
    - temperature: p = sigmoid((s - centre) / temperature + log(prior / (1 - prior)))
    - isotonic: linear between knots (similarity, probability), constant outside them

    >>> calibration = Calibration("platt", 0.5, {"slope": 10.0, "intercept": -4.0})
    >>> calibration([0.2, 0.4, 0.6]).round(4)
    array([0.1192, 0.5   , 0.8808])
    >>> round(calibration.similarity_at(0.9), 4)
    0.6197
    >>> round(calibration.with_prior(0.01)(0.4), 4)
    0.01
    """

    method: Method
    """``"platt"``, ``"isotonic"`` or ``"temperature"``."""
    prior: float
    """Share of matches among the pairs for which the probabilities hold."""
    parameters: Parameters
    """Parameters of the method, by the names above."""
    errors_before: ErrorSummary | None = None
    """Errors of (1 + s) / 2 as a probability, on the same classes; None if unknown."""
    errors_after: ErrorSummary | None = None
    """Errors on classes on which the map was not fitted; None if unknown for this prior."""
    similarities: tuple[float, float] = COSINES
    """The smallest and the largest similarity: of cosines, or of equalized similarities."""

    def __post_init__(self) -> None:
        checks.one_of(self.method, "method", get_args(Method))
        checks.share(self.prior, "prior")
        check_bounds(self.similarities)
        check_parameters(self.method, self.parameters, self.similarities)

    def __call__(self, similarity: ArrayLike) -> Any:
        """Compute the probability of a match at similarities: an array of the same shape, or a number."""
        values, (low, high) = as_numbers(similarity, "similarity"), self.similarities
        inside = (values >= low - ROUNDING) & (values <= high + ROUNDING)
        if not np.all(inside):  # NaN too
            kind = "cosine" if self.similarities == COSINES else "equalized"
            wrong = values[~inside][0]
            raise InputError(f"similarity has {wrong}: {kind} similarities from {low:g} to {high:g} are needed")
        result = self._probability(values)
        return result if result.ndim else float(result)

    def _probability(self, similarity: Floats) -> Floats:
        from scipy.special import expit

        if self.method == "isotonic":
            return np.asarray(np.clip(np.interp(similarity, *self._knots), 0.0, 1.0))
        slope, intercept = self._line
        return np.asarray(expit(slope * similarity + intercept))

    @cached_property
    def _line(self) -> tuple[float, float]:
        values: Any = self.parameters
        if self.method == "platt":
            return float(values["slope"]), float(values["intercept"])
        slope = 1 / values["temperature"]
        return slope, log_odds(self.prior) - slope * values["centre"]

    @cached_property
    def _knots(self) -> tuple[Floats, Floats]:
        return np.array(self.parameters["similarity"]), np.array(self.parameters["probability"])

    def probability_at_distance(self, distance: ArrayLike) -> Any:
        """Compute the probability of a match at distances d: that at s = 1 - d²/2, or 1 + d²/2 for d below zero.

        >>> Calibration("platt", 0.5, {"slope": 10.0, "intercept": -5.0}).probability_at_distance(1.0)
        0.5
        """
        values, (low, high) = as_numbers(distance, "distance"), self.similarities
        nearest, farthest = distance_of(high), distance_of(low)
        inside = (values >= nearest) & (values <= farthest + ROUNDING)
        if not np.all(inside):
            kind = "distances between unit vectors" if self.similarities == COSINES else "equalized distances"
            wrong = values[~inside][0]
            raise InputError(f"distance has {wrong}: {kind} from {nearest:g} to {farthest:g} are needed")
        return self(np.maximum(as_similarity(values), low))

    def similarity_at(self, probability: float) -> float:
        """Find the smallest similarity with at least this probability, by bisection; the least if every one has it.

        A probability that no similarity reaches is refused.
        """
        wanted = checks.number(probability, "probability")
        if not 0 < wanted <= 1:
            raise InputError(f"probability is {probability}: a number above 0 and at most 1 is needed")
        low, high = self.similarities
        if self(low) >= wanted:
            return low
        if self(high) < wanted:
            raise InputError(
                f"no similarity has a probability of {wanted:g}: the largest is {self(high):.6g}, at similarity "
                f"{high:g} (for a prior of {self.prior:g})"
            )
        for _ in range(60):  # more than the precision of a float near 1
            middle = (low + high) / 2
            low, high = (low, middle) if self(middle) >= wanted else (middle, high)
        return high

    def with_prior(self, prior: float) -> Calibration:
        """Return the same map for another share of matches.

        By Bayes' rule, logit p' = logit p + logit prior' - logit prior, provided that the similarities of positive
        pairs and those of negative pairs have the same distributions as before. For isotonic, this is exactly the fit
        with that prior, at the knots. For platt and temperature, such a fit agrees within sampling error if the pairs
        follow the model, and is better if they do not. The errors are dropped, because they hold for the old prior.
        """
        from scipy.special import expit, logit

        shift = log_odds(checks.share(prior, "prior")) - log_odds(self.prior)
        parameters = self.parameters
        if self.method == "platt":
            slope, intercept = self._line
            parameters = {"slope": slope, "intercept": intercept + shift}
        elif self.method == "isotonic":
            moved = np.maximum.accumulate(expit(logit(self._knots[1]) + shift))  # in spite of rounding
            parameters = {**self.parameters, "probability": tuple(moved.tolist())}
        return replace(self, prior=float(prior), parameters=parameters, errors_before=None, errors_after=None)

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values, which ``from_values`` reads without loss.

        >>> Calibration("platt", 0.5, {"slope": 10.0, "intercept": -4.0}).as_values()["parameters"]
        {'slope': 10.0, 'intercept': -4.0}
        """
        parameters = {
            name: [float(entry) for entry in value] if isinstance(value, tuple) else float(value)
            for name, value in self.parameters.items()
        }
        errors = {
            name: None if summary is None else summary.as_values()
            for name, summary in (("errors_before", self.errors_before), ("errors_after", self.errors_after))
        }
        bounds = {"similarities": [float(bound) for bound in self.similarities]}
        return {"method": self.method, "prior": float(self.prior), "parameters": parameters, **errors, **bounds}

    @classmethod
    def from_values(cls, values: Any) -> Calibration:
        """Convert from the JSON values of ``as_values``; anything else is refused."""
        plain = {"similarities": list(COSINES), **values} if isinstance(values, dict) else values  # as it was always
        checked = named_values(plain, "calibration", list(cls.__dataclass_fields__))
        method: Any = checks.one_of(checked["method"], "method", get_args(Method))
        given = named_values(checked["parameters"], f"parameters of {method}", PARAMETERS[method])
        errors = {
            name: None if checked[name] is None else ErrorSummary.from_values(checked[name], name)
            for name in ("errors_before", "errors_after")
        }
        parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        bounds: Any = checked["similarities"]
        bounds = tuple(bounds) if isinstance(bounds, list) else bounds
        return cls(method, checks.share(checked["prior"], "prior"), parameters, **errors, similarities=bounds)


def check_bounds(similarities: Any) -> None:
    """Refuse bounds that are not two numbers, ascending."""
    if not isinstance(similarities, tuple) or len(similarities) != 2:
        raise InputError(f"similarities is {similarities!r}: the smallest and the largest are needed")
    low, high = (checks.number(bound, "similarities") for bound in similarities)
    if not low < high:
        raise InputError(f"similarities is {similarities!r}: the smallest and the largest are needed")


def as_numbers(values: ArrayLike, name: str) -> Floats:
    """Convert to an array of float64; anything but numbers is refused."""
    try:
        found = np.asarray(values)
        if found.dtype.kind not in "fiu":
            raise ValueError
    except ValueError as error:
        raise InputError(f"{name} is not an array of numbers: one array or list of numbers is needed") from error
    return found.astype(np.float64)


def check_parameters(method: str, parameters: Any, similarities: tuple[float, float]) -> None:
    """Refuse parameters of a map that is not increasing."""
    name = f"parameters of {method}"
    values = named_values(parameters, name, PARAMETERS[method])
    if method == "platt":
        checks.at_least_zero(values["slope"], "slope")
        checks.number(values["intercept"], "intercept")
    elif method == "temperature":
        checks.above_zero(values["temperature"], "temperature")
        low, high = similarities
        if not low <= checks.number(values["centre"], "centre") <= high:
            raise InputError(f"centre is {values['centre']}: a similarity from {low:g} to {high:g} is needed")
    else:
        for parameter in PARAMETERS[method]:
            if not isinstance(values[parameter], tuple) or not values[parameter]:
                raise InputError(f"{parameter} of the knots is {values[parameter]!r}: a list of numbers is needed")
        similarity = [checks.number(value, "similarity of a knot") for value in values["similarity"]]
        probability = [zero_to_one(value, "probability of a knot") for value in values["probability"]]
        if len(similarity) != len(probability):
            raise InputError(
                f"the knots have {len(similarity)} similarities and {len(probability)} probabilities: "
                "one probability per similarity is needed"
            )
        if np.any(np.diff(similarity) <= 0) or np.any(np.diff(probability) < 0):
            raise InputError("the knots do not increase: similarities must increase, and probabilities not decrease")


# ----- fits


@dataclass(frozen=True)
class Evidence:
    """Weighted positive and negative pairs, the input of a fit."""

    similarity: Floats
    """(points,)."""
    matched: NDArray[np.bool_]
    """(points,) whether the pairs are positive."""
    weight: Floats
    """(points,) those of positive pairs sum to the prior, those of negative pairs to the rest."""
    target: Floats
    """(points,) Platt's targets: (N + 1) / (N + 2) for N positive pairs, 1 / (N + 2) for N negative pairs."""
    prior: float
    """Share of matches."""


def gather_evidence(positives: Points, negatives: Points, groups: Sequence[int], prior: float) -> Evidence:
    """Add up the pairs of these groups of classes, and weight them to the prior."""
    parts: list[tuple[Floats, NDArray[np.bool_], Floats, Floats]] = []
    for points, share, matches in ((positives, prior, True), (negatives, 1 - prior, False)):
        weight = points.weight[list(groups)].sum(axis=0)
        occupied, pairs = weight > 0, weight.sum() / points.appearances
        size, target = int(occupied.sum()), ((pairs if matches else 0) + 1) / (pairs + 2)
        weighted = weight[occupied] * (share / weight.sum())
        parts.append((points.similarity[occupied], np.full(size, matches), weighted, np.full(size, target)))
    similarity, matched, weights, targets = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Evidence(similarity, matched, weights, targets, prior)


def fit_platt(evidence: Evidence) -> Parameters:
    """Fit sigmoid(a s + b), a >= 0, to Platt's smoothed targets by maximum likelihood, without a penalty."""
    from sklearn.linear_model import LogisticRegression

    similarity, weight, target = evidence.similarity, evidence.weight, evidence.target
    mean = float(weight @ similarity)
    deviation = math.sqrt(float(weight @ np.square(similarity - mean)))
    flat = {"slope": 0.0, "intercept": log_odds(float(weight @ target))}
    if deviation < 1e-9:  # all similarities are equal
        return flat
    scaled = (similarity - mean) / deviation
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    # A target between 0 and 1 is one pair of each kind, with the weights of the target.
    model.fit(
        np.concatenate([scaled, scaled])[:, None],
        np.repeat([1, 0], len(scaled)),
        sample_weight=np.concatenate([weight * target, weight * (1 - target)]),
    )
    slope = float(model.coef_[0, 0]) / deviation
    if slope <= 0:  # the likelihood is concave: no positive slope is better than 0
        return flat
    return {"slope": slope, "intercept": float(model.intercept_[0]) - slope * mean}


def fit_temperature(evidence: Evidence) -> Parameters:
    """Fit T in sigmoid((s - s0)/T + logit prior) to Platt's targets by maximum likelihood; s0 is where FAR = FRR.

    The derivative of the likelihood with respect to 1/T decreases, so it has one root.
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    centre = equal_error_similarity(evidence)
    offset, weight, target = evidence.similarity - centre, evidence.weight, evidence.target
    weighted, shift = weight * offset, log_odds(evidence.prior)

    def slope(inverse: float) -> float:
        return float(weighted @ (target - expit(inverse * offset + shift)))

    least = 1 / HOTTEST
    if slope(least) <= 0:  # matches are not more similar than other pairs
        return {"temperature": HOTTEST, "centre": centre}
    most = 1.0
    while slope(most) > 0:  # ends, because no target is 0 or 1: a steep sigmoid exceeds them
        most *= 2
    return {"temperature": 1 / float(brentq(slope, least, most, xtol=1e-12, rtol=1e-14)), "centre": centre}


def equal_error_similarity(evidence: Evidence) -> float:
    """Find the similarity at which FAR first reaches FRR, midway between that pair and the next less similar one.

    Every threshold between the two accepts the same pairs. If similarity separates the positive from the negative
    pairs, that is the whole gap between them, and a sigmoid should not be centred on its edge.
    """
    order = np.argsort(-evidence.similarity, kind="stable")
    descending = evidence.similarity[order]
    rate = evidence.weight / np.where(evidence.matched, evidence.prior, 1 - evidence.prior)
    reached = np.cumsum(rate[order]) >= 1 - 1e-12  # FAR + (1 - FRR) >= 1
    last = np.append(descending[1:] < descending[:-1], True)  # equally similar pairs are accepted together
    at = int(np.argmax(reached & last))
    return float(np.clip(descending[at : at + 2].mean(), -1, 1))


def fit_isotonic(evidence: Evidence) -> Parameters:
    """Fit an increasing map by least squares, which is maximum likelihood too; its knots end the constant pieces."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(increasing=True, out_of_bounds="clip")
    model.fit(evidence.similarity, evidence.matched.astype(np.float64), sample_weight=evidence.weight)
    similarity, probability = model.X_thresholds_.astype(np.float64), np.clip(model.y_thresholds_, 0.0, 1.0)
    return {"similarity": tuple(similarity.tolist()), "probability": tuple(probability.astype(np.float64).tolist())}


FITS = {"platt": fit_platt, "isotonic": fit_isotonic, "temperature": fit_temperature}


# ----- calibrating an evaluation


def calibrate(
    evaluation: Evaluation,
    method: Method = "platt",
    *,
    prior: float | None = None,
    folds: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Fit a map from similarity to the probability of a match, and compute its errors on held-out classes.

    The similarity is the cosine, or the equalized similarity if the evaluation has an equalizer.

    Pairs are pooled: every positive pair has the same weight, and so has every negative pair, so large classes count
    more. The weights of the positive pairs sum to ``prior``, those of the negative pairs to the rest.

    Platt's targets, (N + 1)/(N + 2) for positive and 1/(N + 2) for negative pairs, keep the slope finite if similarity
    separates the two. The isotonic map has no such safeguard: outside the pairs it has seen it gives 0 or 1. Maps never
    decrease: where more similar pairs match less often, they are constant.

    The errors are cross-fitted. Classes are divided into folds. For each fold, the map is fitted on the pairs of the
    other classes and evaluated on those of the fold, and the errors of the folds are averaged. Both contain the
    negative pairs between the two, which counts per class cannot separate. The returned map is fitted on all classes.

    Args:
        evaluation: the pairs.
        method: ``"platt"``: a sigmoid with two parameters. ``"temperature"``: a sigmoid centred where FAR = FRR, of
            which only the width is fitted (a cosine similarity is not a logit, so its zero must be chosen).
            ``"isotonic"``: any increasing map; it needs thousands of pairs of each kind.
        prior: share of matches among the pairs in production, 0.5 by default. The share in the data (0.5% of all pairs,
            say) follows from its numbers of items and classes and says nothing about production.
            ``Calibration.with_prior`` changes it later.
        folds: number of groups of classes; by default 5, or the number of classes if that is smaller.
        seed: seed of the random folds.

    >>> import isomargin as im
    >>> rows = np.random.default_rng(0).normal(size=(120, 8)) + 2 * np.eye(8)[np.arange(120) % 6]
    >>> calibration = calibrate(im.evaluate(rows, np.arange(120) % 6), "platt")
    >>> calibration([0.0, 0.5, 0.9]).round(2)
    array([0.39, 0.72, 0.89])
    >>> calibration.errors_after.ece < calibration.errors_before.ece
    True
    """
    checks.one_of(method, "method", get_args(Method))
    if not evaluation.axis.has_similarities:
        raise InputError(
            "a calibration maps similarities of embeddings, and these trials have scores of another kind: fit a map to "
            "the scores themselves, for example by logistic regression"
        )
    if not evaluation.has_classes:
        raise InputError("these trials have no groups, and calibrating holds out whole groups: give groups")
    share = BALANCED if prior is None else checks.share(prior, "prior")
    counts = evaluation.counts
    check_pairs(counts)
    both = (counts.positives.totals > 0) & (counts.negatives.totals > 0)
    folds = min(5, max(2, int(both.sum()))) if folds is None else checks.whole(folds, "folds", least=2)
    fold_of = deal(both, folds, checks.whole(seed, "seed", least=0))
    positives = gather_points(counts.positives, fold_of, folds)
    negatives = gather_points(counts.negatives, fold_of, folds)

    bounds = (similarity_of(evaluation.axis.highest), similarity_of(evaluation.axis.lowest))

    def fit(groups: Sequence[int]) -> Calibration:
        parameters = FITS[method](gather_evidence(positives, negatives, groups, share))
        return Calibration(method, share, parameters, similarities=bounds)

    held_out = [fit([group for group in range(folds) if group != fold]) for fold in range(folds)]
    line = {"similarity": COSINES, "probability": (0.0, 1.0)}
    uncalibrated = Calibration("isotonic", share, line, similarities=bounds)

    def judge(maps: Sequence[Probability]) -> ErrorSummary:
        by_fold = [group_errors(positives, negatives, fold, maps[fold], share, BINS) for fold in range(folds)]
        by_class = class_errors(counts, maps, fold_of, share, BINS)
        ece, mce, adaptive = (float(error) for error in np.mean(by_fold, axis=0))
        return CalibrationErrors(share, BINS, ece, mce, adaptive, evaluation.names, *by_class).summary

    return replace(fit(range(folds)), errors_before=judge([uncalibrated] * folds), errors_after=judge(held_out))


def deal(both: NDArray[np.bool_], folds: int, seed: int) -> NDArray[np.int64]:
    """(classes,) the fold of each class; classes with pairs of both kinds are divided evenly, and so are the others.

    >>> np.bincount(deal(np.ones(7, bool), folds=3, seed=0)).tolist()
    [3, 2, 2]
    """
    if both.sum() < folds:
        few = int(both.sum())
        remedy = f"use folds={few} or fewer" if few >= 2 else "evaluate at least two such classes"
        raise InputError(
            f"folds is {folds}, but only {few} of the {len(both)} classes have both positive and negative pairs, and "
            f"each fold needs one: {remedy}"
        )
    generator = np.random.default_rng(seed)
    fold_of = np.empty(len(both), np.int64)
    for members in (np.flatnonzero(both), np.flatnonzero(~both)):
        fold_of[generator.permutation(members)] = np.arange(len(members)) % folds
    return fold_of
