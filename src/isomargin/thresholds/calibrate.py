"""Post-hoc calibration: from cosine similarity to the probability that a pair is a match, by one map for all classes.

Platt's sigmoid, isotonic regression and temperature scaling, fitted to an Evaluation's counts. The map is monotone, so
it changes no ranking: it says what a similarity means, and makes no threshold hold for more classes.
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
BINS = 15  # of probability, in the errors that calibrate reports
BALANCED = 0.5
HOTTEST = 1e6  # a temperature at which similarity says nothing any more
ROUNDING = 1e-2  # by which half-precision similarities may leave [-1, 1]


def log_odds(share: float) -> float:
    """log(p / (1 - p))."""
    return math.log(share) - math.log1p(-share)


# ----- the map


@dataclass(frozen=True)
class Calibration:
    """A monotone map from cosine similarity to the probability of a match. Made by ``calibrate``.

    - platt: p = sigmoid(slope · s + intercept)
    - temperature: p = sigmoid((s - centre) / temperature + log(prior / (1 - prior)))
    - isotonic: straight between knots (similarity, probability), and as at the nearest knot outside them

    >>> calibration = Calibration("platt", 0.5, {"slope": 10.0, "intercept": -4.0})
    >>> calibration([0.2, 0.4, 0.6]).round(4)
    array([0.1192, 0.5   , 0.8808])
    >>> round(calibration.similarity_at(0.9), 4)
    0.6197
    >>> round(calibration.with_prior(0.01)(0.4), 4)
    0.01
    """

    method: Method
    """Which of the three."""
    prior: float
    """Share of matches among the pairs that the probabilities are for."""
    parameters: Parameters
    """The method's numbers, by the names above."""
    errors_before: ErrorSummary | None = None
    """Errors of (1 + s) / 2 taken for a probability, on the same classes; None if not judged."""
    errors_after: ErrorSummary | None = None
    """Errors on classes that the map was not fitted on; None if not judged at this prior."""

    def __post_init__(self) -> None:
        checks.one_of(self.method, "method", get_args(Method))
        checks.share(self.prior, "prior")
        check_parameters(self.method, self.parameters)

    def __call__(self, similarity: ArrayLike) -> Any:
        """Probability of a match at each cosine similarity: an array of the same shape, or a number for a number."""
        values = as_numbers(similarity, "similarity")
        if not np.all(np.abs(values) <= 1 + ROUNDING):  # NaN too
            wrong = values[~(np.abs(values) <= 1 + ROUNDING)][0]
            raise InputError(f"similarity holds {wrong}: cosine similarities from -1 to 1 are needed")
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
        """Probability of a match of unit vectors so far apart, d from 0 to 2: that at s = 1 - d²/2.

        >>> Calibration("platt", 0.5, {"slope": 10.0, "intercept": -5.0}).probability_at_distance(1.0)
        0.5
        """
        values = as_numbers(distance, "distance")
        if not np.all((values >= 0) & (values <= 2 + ROUNDING)):
            wrong = values[~((values >= 0) & (values <= 2 + ROUNDING))][0]
            raise InputError(f"distance holds {wrong}: distances of unit vectors from 0 to 2 are needed")
        return self(np.maximum(as_similarity(values), -1.0))

    def similarity_at(self, probability: float) -> float:
        """Give the smallest similarity with at least this probability (-1 if every one has), found by halving.

        Refused where no similarity reaches it.
        """
        wanted = checks.number(probability, "probability")
        if not 0 < wanted <= 1:
            raise InputError(f"probability is {probability}: a number above 0 and at most 1 is needed")
        low, high = -1.0, 1.0
        if self(low) >= wanted:
            return low
        if self(high) < wanted:
            raise InputError(
                f"no similarity has a probability of {wanted:g}: the largest, at similarity 1, is {self(high):.6g} "
                f"(for a share of matches of {self.prior:g})"
            )
        for _ in range(60):  # beyond what a float near 1 resolves
            middle = (low + high) / 2
            low, high = (low, middle) if self(middle) >= wanted else (middle, high)
        return high

    def with_prior(self, prior: float) -> Calibration:
        """Give the same map for another share of matches: log-odds move by that of the prior.

        logit p' = logit p + logit prior' - logit prior: Bayes' rule, as long as matches among themselves and others
        among themselves are as similar as before. For isotonic, shifted at its knots, it is exactly what a fit with
        that prior gives. For platt and temperature such a fit agrees to within sampling error where the pairs follow
        the model, and is better where they do not. Errors are not carried over: they were those of the other prior.
        """
        from scipy.special import expit, logit

        shift = log_odds(checks.share(prior, "prior")) - log_odds(self.prior)
        parameters = self.parameters
        if self.method == "platt":
            slope, intercept = self._line
            parameters = {"slope": slope, "intercept": intercept + shift}
        elif self.method == "isotonic":
            moved = np.maximum.accumulate(expit(logit(self._knots[1]) + shift))  # rounding must not make it fall
            parameters = {**self.parameters, "probability": tuple(moved.tolist())}
        return replace(self, prior=float(prior), parameters=parameters, errors_before=None, errors_after=None)

    def as_values(self) -> dict[str, Any]:
        """Give JSON values, which ``from_values`` reads back without loss.

        >>> Calibration("platt", 0.5, {"slope": 10.0, "intercept": -4.0}).as_values()["parameters"]
        {'slope': 10.0, 'intercept': -4.0}
        """
        parameters = {
            name: [float(each) for each in value] if isinstance(value, tuple) else float(value)
            for name, value in self.parameters.items()
        }
        errors = {
            name: None if each is None else each.as_values()
            for name, each in (("errors_before", self.errors_before), ("errors_after", self.errors_after))
        }
        return {"method": self.method, "prior": float(self.prior), "parameters": parameters, **errors}

    @classmethod
    def from_values(cls, values: Any) -> Calibration:
        """Make a calibration of JSON values, refused with a sentence where they are none."""
        checked = named_values(values, "calibration", list(cls.__dataclass_fields__))
        method: Any = checks.one_of(checked["method"], "method", get_args(Method))
        given = named_values(checked["parameters"], f"parameters of {method}", PARAMETERS[method])
        errors = {
            name: None if checked[name] is None else ErrorSummary.from_values(checked[name], name)
            for name in ("errors_before", "errors_after")
        }
        parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        return cls(method, checks.share(checked["prior"], "prior"), parameters, **errors)


def as_numbers(values: ArrayLike, name: str) -> Floats:
    """Return an array of float64, refused where these are no numbers."""
    try:
        found = np.asarray(values)
        if found.dtype.kind not in "fiu":
            raise ValueError
    except ValueError as error:
        raise InputError(f"{name} is no array of numbers: give numbers, in one array or list") from error
    return found.astype(np.float64)


def check_parameters(method: str, parameters: Any) -> None:
    """Refuse parameters that are not those of a rising map."""
    name = f"parameters of {method}"
    values = named_values(parameters, name, PARAMETERS[method])
    if method == "platt":
        checks.at_least_zero(values["slope"], "slope")
        checks.number(values["intercept"], "intercept")
    elif method == "temperature":
        checks.above_zero(values["temperature"], "temperature")
        checks.cosine(values["centre"], "centre")
    else:
        for each in PARAMETERS[method]:
            if not isinstance(values[each], tuple) or not values[each]:
                raise InputError(f"{each} of the knots is {values[each]!r}: a list of numbers is needed")
        similarity = [checks.number(each, "similarity of a knot") for each in values["similarity"]]
        probability = [zero_to_one(each, "probability of a knot") for each in values["probability"]]
        if len(similarity) != len(probability):
            raise InputError(
                f"the knots have {len(similarity)} similarities and {len(probability)} probabilities: "
                "one probability a similarity is needed"
            )
        if np.any(np.diff(similarity) <= 0) or np.any(np.diff(probability) < 0):
            raise InputError("the knots do not rise: similarities must ascend, and probabilities must not fall")


# ----- fits


@dataclass(frozen=True)
class Evidence:
    """Weighted pairs of both kinds, as a fit takes them."""

    similarity: Floats
    """(points,)."""
    matched: NDArray[np.bool_]
    """(points,) whether the pairs are positive."""
    weight: Floats
    """(points,) positive ones sum to the prior, negative ones to the rest."""
    target: Floats
    """(points,) Platt's: (N + 1) / (N + 2) for N positive pairs, 1 / (N + 2) for N negative ones."""
    prior: float
    """Share of matches."""


def gather_evidence(positives: Points, negatives: Points, groups: Sequence[int], prior: float) -> Evidence:
    """Add up the pairs of these groups of classes, and weigh them to the prior."""
    parts: list[tuple[Floats, NDArray[np.bool_], Floats, Floats]] = []
    for points, share, matches in ((positives, prior, True), (negatives, 1 - prior, False)):
        weight = points.weight[list(groups)].sum(axis=0)
        some, pairs = weight > 0, weight.sum() / points.appearances
        size, target = int(some.sum()), ((pairs if matches else 0) + 1) / (pairs + 2)
        weighted = weight[some] * (share / weight.sum())
        parts.append((points.similarity[some], np.full(size, matches), weighted, np.full(size, target)))
    similarity, matched, weights, targets = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Evidence(similarity, matched, weights, targets, prior)


def fit_platt(evidence: Evidence) -> Parameters:
    """Maximum likelihood of sigmoid(a s + b), a >= 0, to Platt's smoothed targets, without any penalty."""
    from sklearn.linear_model import LogisticRegression

    similarity, weight, target = evidence.similarity, evidence.weight, evidence.target
    mean = float(weight @ similarity)
    deviation = math.sqrt(float(weight @ np.square(similarity - mean)))
    flat = {"slope": 0.0, "intercept": log_odds(float(weight @ target))}
    if deviation < 1e-9:  # no two similarities differ
        return flat
    scaled = (similarity - mean) / deviation
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    # A target between 0 and 1 is a pair of each kind, weighted to it.
    model.fit(
        np.concatenate([scaled, scaled])[:, None],
        np.repeat([1, 0], len(scaled)),
        sample_weight=np.concatenate([weight * target, weight * (1 - target)]),
    )
    slope = float(model.coef_[0, 0]) / deviation
    if slope <= 0:  # the likelihood is concave: where it falls at 0, no positive slope is better
        return flat
    return {"slope": slope, "intercept": float(model.intercept_[0]) - slope * mean}


def fit_temperature(evidence: Evidence) -> Parameters:
    """Maximum likelihood of T in sigmoid((s - s0)/T + logit prior), s0 being where FAR = FRR, to Platt's targets.

    The derivative of the likelihood by 1/T falls, so that its one root is found by halving.
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    centre = equal_error_similarity(evidence)
    offset, weight, target = evidence.similarity - centre, evidence.weight, evidence.target
    weighted, shift = weight * offset, log_odds(evidence.prior)

    def slope(inverse: float) -> float:
        return float(weighted @ (target - expit(inverse * offset + shift)))

    least = 1 / HOTTEST
    if slope(least) <= 0:  # similarity tells nothing, or the contrary
        return {"temperature": HOTTEST, "centre": centre}
    most = 1.0
    while slope(most) > 0:  # no target is 0 or 1, so that a steep enough sigmoid is too sure of every pair
        most *= 2
    return {"temperature": 1 / float(brentq(slope, least, most, xtol=1e-12, rtol=1e-14)), "centre": centre}


def equal_error_similarity(evidence: Evidence) -> float:
    """Threshold at which FAR first reaches FRR, midway between the pair that is there and the next less similar one.

    Every threshold between the two accepts the same pairs; where similarity separates matches from others, that is the
    whole gap, and a sigmoid should not be centred on its edge.
    """
    order = np.argsort(-evidence.similarity, kind="stable")
    descending = evidence.similarity[order]
    rate = evidence.weight / np.where(evidence.matched, evidence.prior, 1 - evidence.prior)
    reached = np.cumsum(rate[order]) >= 1 - 1e-12  # FAR + (1 - FRR) >= 1
    last = np.append(descending[1:] < descending[:-1], True)  # equally similar pairs are accepted together
    at = int(np.argmax(reached & last))
    return float(np.clip(descending[at : at + 2].mean(), -1, 1))


def fit_isotonic(evidence: Evidence) -> Parameters:
    """Least squares among rising maps, which is maximum likelihood too; kept are the ends of its level pieces."""
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
    """Fit a map from cosine similarity to the probability of a match, and judge it on classes left out.

    Pairs are pooled: every positive pair weighs the same, and so does every negative one, so that large classes count
    by their pairs. All positives together weigh ``prior``, all negatives the rest.

    Platt's targets, (N + 1)/(N + 2) for a match and 1/(N + 2) for another pair, keep the slope finite where similarity
    separates the two; the isotonic map has no such caution, and says 0 and 1 beyond the pairs it has seen. Maps do not
    fall: where more similar pairs match less often, they are level.

    The errors it carries are cross-fitted. Classes are dealt into folds; for each the map is fitted on the other
    classes' pairs and judged on its own, and the folds' errors are averaged. The negative pairs between the two are
    seen by both, which counts by class cannot undo. The map itself is fitted on all classes.

    Args:
        evaluation: the pairs.
        method: ``"platt"``: a sigmoid of two parameters. ``"temperature"``: one that is centred where FAR = FRR, its
            width alone being fitted (a cosine similarity is no logit, so that the place of its zero has to be chosen).
            ``"isotonic"``: any rising map; it needs thousands of pairs of each kind.
        prior: share of matches among the pairs that production will see; 0.5 unless given. The data's own share is an
            artefact of how many images and classes it has (0.5% of all pairs, say) and says nothing about production.
            ``Calibration.with_prior`` changes it later.
        folds: groups of classes; 5, or as many as there are classes if those are fewer.
        seed: of the draw of the folds.

    >>> import isomargin as im
    >>> rows = np.random.default_rng(0).normal(size=(120, 8)) + 2 * np.eye(8)[np.arange(120) % 6]
    >>> calibration = calibrate(im.evaluate(rows, np.arange(120) % 6), "platt")
    >>> calibration([0.0, 0.5, 0.9]).round(2)
    array([0.39, 0.72, 0.89])
    >>> calibration.errors_after.ece < calibration.errors_before.ece
    True
    """
    checks.one_of(method, "method", get_args(Method))
    share = BALANCED if prior is None else checks.share(prior, "prior")
    counts = evaluation.counts
    check_pairs(counts)
    both = (counts.positives.totals > 0) & (counts.negatives.totals > 0)
    folds = min(5, max(2, int(both.sum()))) if folds is None else checks.whole(folds, "folds", least=2)
    fold_of = deal(both, folds, checks.whole(seed, "seed", least=0))
    positives = gather_points(counts.positives, fold_of, folds)
    negatives = gather_points(counts.negatives, fold_of, folds)

    def fit(groups: Sequence[int]) -> Calibration:
        return Calibration(method, share, FITS[method](gather_evidence(positives, negatives, groups, share)))

    held_out = [fit([group for group in range(folds) if group != fold]) for fold in range(folds)]
    uncalibrated = Calibration("isotonic", share, {"similarity": (-1.0, 1.0), "probability": (0.0, 1.0)})

    def judge(maps: Sequence[Probability]) -> ErrorSummary:
        by_fold = [group_errors(positives, negatives, fold, maps[fold], share, BINS) for fold in range(folds)]
        by_class = class_errors(counts, maps, fold_of, share, BINS)
        ece, mce, adaptive = (float(each) for each in np.mean(by_fold, axis=0))
        return CalibrationErrors(share, BINS, ece, mce, adaptive, evaluation.names, *by_class).summary

    return replace(fit(range(folds)), errors_before=judge([uncalibrated] * folds), errors_after=judge(held_out))


def deal(both: NDArray[np.bool_], folds: int, seed: int) -> NDArray[np.int64]:
    """(classes,) the fold of each class; those with pairs of both kinds are dealt evenly, and so are the others.

    >>> np.bincount(deal(np.ones(7, bool), folds=3, seed=0)).tolist()
    [3, 2, 2]
    """
    if both.sum() < folds:
        few = int(both.sum())
        mend = f"give folds={few} or fewer" if few >= 2 else "evaluate at least two such classes"
        raise InputError(
            f"folds is {folds}, but only {few} of the {len(both)} classes have both positive and negative pairs, and "
            f"each fold needs one to judge the calibration on: {mend}"
        )
    generator = np.random.default_rng(seed)
    fold_of = np.empty(len(both), np.int64)
    for members in (np.flatnonzero(both), np.flatnonzero(~both)):
        fold_of[generator.permutation(members)] = np.arange(len(members)) % folds
    return fold_of
