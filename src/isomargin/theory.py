"""The paper's analysis: Gaussian utility curves, bounds on OPIS, and conversion between cosine margin and L2 distance.

Use it for the curves and bounds of an assumed model and to choose margins; to measure embeddings, use
`isomargin.measure`. Where a formula printed in the paper is wrong, `form="corrected"` (the default) gives the correct
one and `form="printed"` the printed one, to compare with published numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.measure.scores.utility import utility

FloatArray = NDArray[np.float64]
Form = Literal["corrected", "printed"]

OPIS_LOWER_BOUND = 0.0
"""OPIS is a variance, so it is at least 0; it is 0 if the utility curves of all classes coincide in the range."""

# Keeps standardized distances below 2e100, so that the squares inside log_ndtr are finite.
_LEAST_DEVIATION = 1e-100
_LEAST_GRID = 10


@dataclass(frozen=True)
class GaussianClass:
    """A class whose positive pairs and negative pairs each have normally distributed L2 distances.

    With t_pos = (d − μ_pos)/(√2 σ_pos) and t_neg = (d − μ_neg)/(√2 σ_neg), the rates at the threshold d are
    TP = (1 + erf t_pos)/2, FN = 1 − TP, FP = (1 + erf t_neg)/2 and TN = 1 − FP. They are computed as tails of the
    normal distribution function instead of 1 ± erf, so that even a rate of 1e-300 is accurate. As in the paper, the
    normal distributions are not truncated to [0, 2].

    Every method takes distances in [0, 2] of any shape and returns a float64 array of that shape.

    >>> gaussian_class = GaussianClass(
    ...     positive_mean=0.6, positive_deviation=0.15, negative_mean=1.3, negative_deviation=0.1
    ... )
    >>> gaussian_class.utility([0.8, 1.0, 1.2]).round(4)
    array([0.9522, 0.9974, 0.9138])
    >>> GaussianClass(1.3, 0.1, 0.6, 0.15)
    Traceback (most recent call last):
    isomargin.InputError: positive_mean is 1.3 and negative_mean is 0.6: 0 < positive_mean < ... < 2 is needed
    """

    positive_mean: float
    """μ_pos: mean distance of the positive pairs, in (0, μ_neg)."""
    positive_deviation: float
    """σ_pos: standard deviation of the distances of positive pairs, above 0."""
    negative_mean: float
    """μ_neg: mean distance of the negative pairs, in (μ_pos, 2)."""
    negative_deviation: float
    """σ_neg: standard deviation of the distances of negative pairs, above 0."""

    def __post_init__(self) -> None:
        positive_mean = checks.number(self.positive_mean, "positive_mean")
        negative_mean = checks.number(self.negative_mean, "negative_mean")
        if not 0.0 < positive_mean < negative_mean < 2.0:
            raise InputError(
                f"positive_mean is {positive_mean} and negative_mean is {negative_mean}: "
                "0 < positive_mean < negative_mean < 2 is needed"
            )
        for name in ("positive_deviation", "negative_deviation"):
            deviation = checks.number(getattr(self, name), name)
            if deviation < _LEAST_DEVIATION:
                raise InputError(f"{name} is {deviation}: a number above 0 (at least {_LEAST_DEVIATION}) is needed")

    def sensitivity(self, distance: ArrayLike) -> FloatArray:
        """ψ(d) = (1 + erf t_pos)/2: the share of positive pairs at a distance ≤ d, as in the paper.

        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).sensitivity([0.6, 0.75]).round(4)
        array([0.5   , 0.8413])
        """
        from scipy.special import ndtr

        return np.asarray(ndtr(self._positive_score(distance)), dtype=np.float64)

    def specificity(self, distance: ArrayLike) -> FloatArray:
        """φ(d) = (1 − erf t_neg)/2: the share of negative pairs at a distance > d, as in the paper.

        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).specificity([1.2, 1.3]).round(4)
        array([0.8413, 0.5   ])
        """
        from scipy.special import ndtr

        return np.asarray(ndtr(-self._negative_score(distance)), dtype=np.float64)

    def precision(self, distance: ArrayLike, negatives_per_positive: float = 1.0) -> FloatArray:
        """TP/(TP + r·FP): the share of positive pairs among all pairs at a distance ≤ d.

        The paper's (1 + erf t_pos)/(2 + erf t_pos + erf t_neg) is the case r = 1 of as many negative pairs as positive
        pairs. This is rarely the case (the paper samples 10 negatives per positive), hence `negatives_per_positive`.
        The odds are computed from logarithms, so that the ratio is correct even where TP and FP both underflow.

        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).precision([1.0, 1.3]).round(4)
        array([0.9986, 0.6667])
        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).precision([1.0, 1.3], negatives_per_positive=10).round(4)
        array([0.9866, 0.1667])
        """
        from scipy.special import expit, log_ndtr

        ratio = checks.above_zero(negatives_per_positive, "negatives_per_positive")
        log_odds = log_ndtr(self._positive_score(distance)) - log_ndtr(self._negative_score(distance)) - math.log(ratio)
        return np.asarray(expit(log_odds), dtype=np.float64)

    def recall(self, distance: ArrayLike) -> FloatArray:
        """(1 + erf t_pos)/2: the same as `sensitivity`, under the name that goes with precision.

        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).recall([0.6, 0.75]).round(4)
        array([0.5   , 0.8413])
        """
        return self.sensitivity(distance)

    def utility(self, distance: ArrayLike, c: float = 1.0) -> FloatArray:
        """U_roc(d): the `utility_score` of specificity and sensitivity.

        At c = 1 this is the paper's (1 + erf t_pos)(1 − erf t_neg)/(2 + erf t_pos − erf t_neg). The paper calls the
        curve concave; it is single-peaked (1/U is convex), but convex in its tails.

        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).utility([0.6, 1.0, 1.3]).round(4)
        array([0.6667, 0.9974, 0.6667])
        """
        return utility_score(self.specificity(distance), self.sensitivity(distance), c)

    def precision_recall_utility(
        self, distance: ArrayLike, c: float = 1.0, negatives_per_positive: float = 1.0
    ) -> FloatArray:
        """U_pr(d): the `utility_score` of precision and recall, with r = `negatives_per_positive`.

        At c = 1 and r = 1 this is the paper's 2(1 + erf t_pos)/(4 + erf t_pos + erf t_neg), the F1 score.

        >>> GaussianClass(0.6, 0.15, 1.3, 0.1).precision_recall_utility([0.6, 1.0, 1.3]).round(4)
        array([0.6667, 0.9974, 0.8   ])
        """
        return utility_score(self.precision(distance, negatives_per_positive), self.recall(distance), c)

    def left_part_utility(self, distance: ArrayLike, form: Form = "corrected") -> FloatArray:
        """2(1 + erf t_pos)/(3 + erf t_pos), which both U_roc and U_pr approach left of the negative pairs at c = 1.

        It follows from erf t_neg → −1, and is an overestimate: U_roc is at least 1 − FP times this curve, and U_pr (for
        as many negatives as positives) at least 1/(1 + FP) times. The paper prints 2/(3 + erf t_pos), without the
        factor 1 + erf t_pos in the numerator, so the printed curve falls where utility rises; `form="printed"` gives
        it.

        >>> gaussian_class = GaussianClass(0.6, 0.15, 1.3, 0.1)
        >>> gaussian_class.left_part_utility([0.3, 0.6, 0.9]).round(4)
        array([0.0445, 0.6667, 0.9885])
        >>> gaussian_class.utility([0.3, 0.6, 0.9]).round(4)
        array([0.0445, 0.6667, 0.9885])
        >>> gaussian_class.left_part_utility([0.3, 0.6, 0.9], form="printed").round(4)
        array([0.9778, 0.6667, 0.5058])
        """
        sensitivity = self.sensitivity(distance)
        # With ψ = (1 + erf t_pos)/2, the denominator 3 + erf t_pos is 2(1 + ψ).
        numerator = 1.0 if _is_printed(form) else 2.0 * sensitivity
        return np.asarray(numerator / (1.0 + sensitivity), dtype=np.float64)

    def _positive_score(self, distance: ArrayLike) -> FloatArray:
        """√2·t_pos, in the shape of `distance`."""
        return np.asarray((_distances(distance) - self.positive_mean) / self.positive_deviation)

    def _negative_score(self, distance: ArrayLike) -> FloatArray:
        """√2·t_neg, in the shape of `distance`."""
        return np.asarray((_distances(distance) - self.negative_mean) / self.negative_deviation)


def utility_score(specificity: ArrayLike, sensitivity: ArrayLike, c: float = 1.0) -> FloatArray:
    """U = (1 + c²)φψ/(c²φ + ψ), Eq. 1 of the paper, after checking the arguments.

    φ and ψ are rates in [0, 1]; their shapes broadcast, and the result has the broadcast shape.

    >>> utility_score([1.0, 0.5, 0.0], [0.5, 0.5, 0.0]).round(4)
    array([0.6667, 0.5   , 0.    ])
    """
    weight = checks.above_zero(c, "c")
    phi = _within("specificity", specificity, 0.0, 1.0, "rates")
    psi = _within("sensitivity", sensitivity, 0.0, 1.0, "rates")
    try:
        phi, psi = np.broadcast_arrays(phi, psi)
    except ValueError:
        raise InputError(
            f"specificity has shape {phi.shape}, sensitivity has shape {psi.shape}: shapes that broadcast are needed"
        ) from None
    return utility(phi, psi, weight)


def opis(
    classes: Sequence[GaussianClass], calibration_range: tuple[float, float], grid: int = 101, c: float = 1.0
) -> float:
    """OPIS of Gaussian classes: the mean over T classes and N distances of (U_i(d) − Ū(d))².

    Ū is the mean of the class curves, and the N = `grid` distances are evenly spaced over `calibration_range` =
    (d_min, d_max), ends included. This is Eq. 2. Algorithm 1 divides a sum over the grid by d_max − d_min without
    multiplying by the grid step, so its result is N/(d_max − d_min) times larger.

    >>> tight, loose = GaussianClass(0.5, 0.1, 1.3, 0.1), GaussianClass(0.8, 0.1, 1.3, 0.1)
    >>> opis([tight, tight], (0.8, 1.2))
    0.0
    >>> round(opis([tight, loose], (0.8, 1.2)), 5)
    0.00285
    """
    if len(classes) == 0:
        raise InputError("classes is empty: at least one Gaussian class is needed")
    checks.whole(grid, "grid", _LEAST_GRID)
    d_min, d_max = _calibration_range(calibration_range)
    distances = np.linspace(d_min, d_max, grid)  # (grid,)
    utility = np.stack([gaussian_class.utility(distances, c) for gaussian_class in classes])  # (classes, grid)
    return float(utility.var(axis=0).mean())


def absolute_upper_bound(perfect_share: float, form: Form = "corrected") -> float:
    """α(1 − α): the OPIS if a share α of the classes has utility 1 throughout the range and the others have utility 0.

    It is the largest variance that utilities in [0, 1] with mean α can have; at α = 1/2 it reaches its maximum of 0.25.
    The paper prints 2α(1 − α), which is twice that variance: the mean squared difference between two classes instead of
    between a class and the mean. `form="printed"` gives it.

    >>> absolute_upper_bound(0.5)
    0.25
    >>> absolute_upper_bound(0.5, form="printed")
    0.5
    """
    alpha = _share("perfect_share", perfect_share)
    return (2.0 if _is_printed(form) else 1.0) * alpha * (1.0 - alpha)


def realistic_upper_bound(
    perfect_share: float, calibration_range: tuple[float, float], form: Form = "corrected"
) -> float:
    """α(1 − α) times the mean over [d_min, d_max] of (1 − d(1 − d/2))²: OPIS of perfect classes mixed with random ones.

    A share α of the classes has utility 1. The others have distances uniform on [0, 2], hence sensitivity d/2,
    specificity 1 − d/2 and (at c = 1) utility d(1 − d/2). With u = d − 1 from a to b, 1 − d(1 − d/2) = (1 + u²)/2, and
    the mean of its square is (1 + 2/3·(a² + ab + b²) + 1/5·(a⁴ + a³b + a²b² + ab³ + b⁴))/4.

    The paper uses 1 − d/2 where the mean utility is d(1 − d/2), and prints
    α(1 − α)/3·(d_max² + d_min² + d_max·d_min). This is about four times too large in the paper's example, and exceeds
    the absolute bound α(1 − α) if the mean of d² exceeds 1. `form="printed"` gives it.

    >>> f"{realistic_upper_bound(0.1, (0.8, 1.2)):.2e}"
    '2.31e-02'
    >>> f"{realistic_upper_bound(0.1, (0.8, 1.2), form='printed'):.2e}"
    '9.12e-02'
    """
    alpha = _share("perfect_share", perfect_share)
    d_min, d_max = _calibration_range(calibration_range)
    if _is_printed(form):
        return alpha * (1.0 - alpha) / 3.0 * (d_max**2 + d_min**2 + d_max * d_min)
    a, b = d_min - 1.0, d_max - 1.0
    mean_square = (a**2 + a * b + b**2) / 3.0  # of u over [a, b]
    mean_fourth_power = (a**4 + a**3 * b + a**2 * b**2 + a * b**3 + b**4) / 5.0
    return alpha * (1.0 - alpha) * (1.0 + 2.0 * mean_square + mean_fourth_power) / 4.0


def distance_from_margin(margin: ArrayLike) -> FloatArray:
    """d = √(2 − 2m): the L2 distance between unit-norm embeddings with cosine similarity m.

    Takes margins in [−1, 1] of any shape and returns distances in [0, 2] of that shape. As in the paper's main text.

    >>> distance_from_margin([1.0, 0.9, 0.5, -1.0]).round(4)
    array([0.    , 0.4472, 1.    , 2.    ])
    """
    return np.asarray(np.sqrt(2.0 - 2.0 * _margins("margin", margin)), dtype=np.float64)


def margin_from_distance(distance: ArrayLike, form: Form = "corrected") -> FloatArray:
    """m = 1 − d²/2: the cosine similarity of unit-norm embeddings at L2 distance d.

    Takes distances in [0, 2] of any shape and returns margins in [−1, 1] of that shape. The paper's appendix prints
    √(2 − d²)/2 by mistake: it is not the inverse of the main text's d = √(2 − 2m), and it is undefined beyond d = √2.
    `form="printed"` gives it.

    >>> margin_from_distance([0.0, 1.0, 2.0])
    array([ 1. ,  0.5, -1. ])
    >>> margin_from_distance(1.0, form="printed")
    array(0.5)
    >>> margin_from_distance([0.0], form="printed").round(4)
    array([0.7071])
    """
    if _is_printed(form):
        distances = _within("distance", distance, 0.0, math.sqrt(2.0), "distances of the printed form")
        # The square of the double nearest to √2 is slightly above 2.
        return np.asarray(np.sqrt(np.maximum(2.0 - distances**2, 0.0)) / 2.0, dtype=np.float64)
    return np.asarray(1.0 - _distances(distance) ** 2 / 2.0, dtype=np.float64)


def calibration_range_from_margins(positive_margin: float, negative_margin: float) -> tuple[float, float]:
    """(d_min, d_max) = (√(2 − 2m⁺), √(2 − 2m⁻)): the range of distances on which TCM with these margins acts.

    As in the paper's main text. m⁺ must exceed m⁻, or the range would be empty.

    >>> d_min, d_max = calibration_range_from_margins(positive_margin=0.9, negative_margin=0.5)
    >>> round(d_min, 4), round(d_max, 4)
    (0.4472, 1.0)
    """
    positive = checks.number(positive_margin, "positive_margin")
    negative = checks.number(negative_margin, "negative_margin")
    _margins("positive_margin", positive)
    _margins("negative_margin", negative)
    if not negative < positive:
        raise InputError(
            f"positive_margin is {positive} and negative_margin is {negative}: "
            "a positive margin above the negative one is needed"
        )
    return float(distance_from_margin(positive)), float(distance_from_margin(negative))


def margins_from_calibration_range(
    calibration_range: tuple[float, float], form: Form = "corrected"
) -> tuple[float, float]:
    """(m⁺, m⁻) = (1 − d_min²/2, 1 − d_max²/2): the margins of TCM that match a calibration range (d_min, d_max).

    They are a starting point: distances shift between training and test, so the paper tunes the margins from there.
    Its appendix prints √(2 − d²)/2 for both by mistake (see `margin_from_distance`); `form="printed"` gives it.

    >>> positive_margin, negative_margin = margins_from_calibration_range((0.8, 1.2))
    >>> round(positive_margin, 4), round(negative_margin, 4)
    (0.68, 0.28)
    """
    d_min, d_max = _calibration_range(calibration_range)
    return float(margin_from_distance(d_min, form)), float(margin_from_distance(d_max, form))


def _is_printed(form: str) -> bool:
    """Whether the printed form is requested; anything except the two forms is refused."""
    if form not in get_args(Form):
        raise InputError(f'form is {form!r}: "corrected" or "printed" is needed')
    return form == "printed"


def _as_floats(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` as a float64 array of the same shape."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {value!r}: a number or an array of numbers is needed") from None


def _share(name: str, value: ArrayLike) -> float:
    """Return `value` as one float in [0, 1]."""
    number = checks.number(value, name)
    if not 0.0 <= number <= 1.0:
        raise InputError(f"{name} is {number}: a share in [0, 1] is needed")
    return number


def _within(name: str, value: ArrayLike, low: float, high: float, what: str) -> FloatArray:
    """Return `value` as a float64 array of the same shape; values outside [low, high], such as NaN, are refused."""
    array = _as_floats(name, value)
    outside = ~((array >= low) & (array <= high))
    if outside.any():
        raise InputError(f"{name} contains {float(array[outside][0])}: {what} in [{low:g}, {high:g}] are needed")
    return array


def _distances(distance: ArrayLike) -> FloatArray:
    """Return `distance` as a float64 array of the same shape, with values in [0, 2]."""
    return _within("distance", distance, 0.0, 2.0, "L2 distances of unit-norm embeddings")


def _margins(name: str, margin: ArrayLike) -> FloatArray:
    """Return `margin` as a float64 array of the same shape, with values in [−1, 1]."""
    return _within(name, margin, -1.0, 1.0, "cosine margins")


def _calibration_range(calibration_range: tuple[float, float]) -> tuple[float, float]:
    """Return (d_min, d_max) as two floats with 0 ≤ d_min < d_max ≤ 2."""
    ends = _as_floats("calibration_range", calibration_range)
    if ends.shape != (2,):
        raise InputError(f"calibration_range has shape {ends.shape}: two distances (d_min, d_max) are needed")
    d_min, d_max = float(ends[0]), float(ends[1])
    if not 0.0 <= d_min < d_max <= 2.0:
        raise InputError(f"calibration_range is ({d_min}, {d_max}): 0 <= d_min < d_max <= 2 is needed")
    return d_min, d_max
