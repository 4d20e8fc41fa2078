"""The theory against references that share none of its code: quadrature, simulation, brute force, the paper."""

import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import integrate, stats

from isomargin import theory
from isomargin.core.errors import InputError
from isomargin.theory import GaussianClass

TYPICAL = GaussianClass(positive_mean=0.6, positive_deviation=0.15, negative_mean=1.3, negative_deviation=0.1)
WIDE = GaussianClass(positive_mean=0.9, positive_deviation=0.3, negative_mean=1.2, negative_deviation=0.25)
CURVES = (
    "sensitivity",
    "specificity",
    "precision",
    "recall",
    "utility",
    "precision_recall_utility",
    "left_part_utility",
)
DISTANCES = np.linspace(0.0, 2.0, 41)  # (41,)

shares = st.floats(0.0, 1.0)
shares_above_0 = st.floats(1e-6, 1.0)
distances = st.floats(0.0, 2.0)
margins = st.floats(-1.0, 1.0)
deviations = st.floats(0.01, 1.0)


@st.composite
def gaussian_classes(draw):
    positive_mean, negative_mean = sorted(draw(st.tuples(st.floats(0.01, 1.99), st.floats(0.01, 1.99))))
    assume(negative_mean - positive_mean > 1e-9)
    return GaussianClass(positive_mean, draw(deviations), negative_mean, draw(deviations))


@st.composite
def calibration_ranges(draw):
    d_min, d_max = sorted(draw(st.tuples(distances, distances)))
    assume(d_max - d_min > 1e-3)
    return d_min, d_max


def density_share(mean, deviation, low, high):
    """The share of a normal distribution between two distances, by quadrature of its density."""

    def density(x):
        return math.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))

    return integrate.quad(density, low, high, epsabs=1e-13, epsrel=1e-13, points=[min(max(mean, low), high)])[0]


def paper_utility(gaussian_class, distance):
    """U_roc with erf, letter for letter."""
    erf_positive, erf_negative = paper_erfs(gaussian_class, distance)
    return (1 + erf_positive) * (1 - erf_negative) / (2 + erf_positive - erf_negative)


def paper_erfs(gaussian_class, distance):
    t_positive = (distance - gaussian_class.positive_mean) / (math.sqrt(2) * gaussian_class.positive_deviation)
    t_negative = (distance - gaussian_class.negative_mean) / (math.sqrt(2) * gaussian_class.negative_deviation)
    return math.erf(t_positive), math.erf(t_negative)


class TestGaussianClass:
    @pytest.mark.parametrize("gaussian_class", [TYPICAL, WIDE])
    def test_sensitivity_and_specificity_are_integrals_of_the_densities(self, gaussian_class):
        low = gaussian_class.positive_mean - 12 * gaussian_class.positive_deviation
        high = gaussian_class.negative_mean + 12 * gaussian_class.negative_deviation
        for distance in (0.3, 0.8, 1.0, 1.25, 1.5):
            positive = density_share(gaussian_class.positive_mean, gaussian_class.positive_deviation, low, distance)
            negative = density_share(gaussian_class.negative_mean, gaussian_class.negative_deviation, distance, high)
            assert float(gaussian_class.sensitivity(distance)) == pytest.approx(positive, abs=1e-12)
            assert float(gaussian_class.specificity(distance)) == pytest.approx(negative, abs=1e-12)

    def test_tails_keep_their_digits(self):
        narrow = GaussianClass(1.0, 0.03, 1.5, 0.02)
        # 33 and 25 standard deviations out, where 1 ± erf is exactly 0.
        np.testing.assert_allclose(narrow.sensitivity(0.01), stats.norm.cdf(0.01, 1.0, 0.03), rtol=1e-12)
        np.testing.assert_allclose(narrow.specificity(2.0), stats.norm.sf(2.0, 1.5, 0.02), rtol=1e-12)
        assert 0 < narrow.sensitivity(0.01) < 1e-230
        assert 0 < narrow.specificity(2.0) < 1e-130

    def test_precision_is_defined_where_both_counts_underflow(self):
        gaussian_class = GaussianClass(1.0, 0.01, 1.1, 0.011)
        distance = 0.5  # 50 and 54.5 standard deviations out
        log_odds = stats.norm.logcdf(distance, 1.0, 0.01) - stats.norm.logcdf(distance, 1.1, 0.011)
        assert gaussian_class.sensitivity(distance) == 0.0
        assert float(gaussian_class.precision(distance)) == pytest.approx(1 / (1 + math.exp(-log_odds)), rel=1e-12)
        # Equal deviations far out: the odds are the ratio of the tails' Mills approximations, over the pairs' ratio.
        near = GaussianClass(1.0, 0.01, 1.0 + 1e-6, 0.01)
        z = (0.5 - 1.0) / 0.01
        odds = math.exp(-z * 1e-4) / 1e6  # density ratio; the Mills ratios differ by 1e-4/50
        assert float(near.precision(0.5, negatives_per_positive=1e6)) == pytest.approx(odds / (1 + odds), rel=1e-5)

    def test_the_least_deviation_gives_a_step_without_warnings(self):
        step = GaussianClass(0.5, 1e-100, 1.0, 1e-100)
        np.testing.assert_array_equal(step.sensitivity([0.0, 0.4, 0.6, 2.0]), [0, 0, 1, 1])
        np.testing.assert_array_equal(step.specificity([0.0, 0.9, 1.1, 2.0]), [1, 1, 0, 0])
        assert np.isfinite(step.precision(DISTANCES)).all()
        np.testing.assert_array_equal(step.utility([0.4, 0.7, 1.1]), [0, 1, 0])
        np.testing.assert_allclose(step.precision_recall_utility([0.4, 0.7, 1.1]), [0, 1, 2 / 3], rtol=1e-15)

    @pytest.mark.parametrize("gaussian_class", [TYPICAL, WIDE])
    def test_curves_are_the_papers_formulas_with_erf(self, gaussian_class):
        for distance in np.linspace(0.5, 1.5, 21):
            erf_positive, erf_negative = paper_erfs(gaussian_class, distance)
            precision = (1 + erf_positive) / (2 + erf_positive + erf_negative)
            f_score = 2 * (1 + erf_positive) / (4 + erf_positive + erf_negative)
            assert float(gaussian_class.recall(distance)) == pytest.approx((1 + erf_positive) / 2, rel=1e-12)
            assert float(gaussian_class.precision(distance)) == pytest.approx(precision, rel=1e-12)
            assert float(gaussian_class.utility(distance)) == pytest.approx(
                paper_utility(gaussian_class, distance), rel=1e-12
            )
            assert float(gaussian_class.precision_recall_utility(distance)) == pytest.approx(f_score, rel=1e-12)

    def test_curves_agree_with_counting_simulated_pairs(self):
        random = np.random.default_rng(20240501)
        positives = random.normal(WIDE.positive_mean, WIDE.positive_deviation, 200_000)
        negatives = random.normal(WIDE.negative_mean, WIDE.negative_deviation, 1_000_000)  # 5 a positive
        for distance in (0.7, 0.9, 1.1, 1.3):
            true_positives, false_positives = (positives <= distance).sum(), (negatives <= distance).sum()
            sensitivity, specificity = true_positives / len(positives), (negatives > distance).mean()
            precision = true_positives / (true_positives + false_positives)
            # Standard errors are at most 1.2e-3 for a share of the positives.
            assert float(WIDE.sensitivity(distance)) == pytest.approx(sensitivity, abs=5e-3)
            assert float(WIDE.specificity(distance)) == pytest.approx(specificity, abs=2.5e-3)
            assert float(WIDE.precision(distance, negatives_per_positive=5)) == pytest.approx(precision, abs=5e-3)
            assert float(WIDE.utility(distance, c=2.0)) == pytest.approx(
                5 * specificity * sensitivity / (4 * specificity + sensitivity), abs=5e-3
            )
            false_negatives = len(positives) - true_positives
            f_score = 5 * true_positives / (5 * true_positives + 4 * false_negatives + false_positives)
            assert float(WIDE.precision_recall_utility(distance, c=2.0, negatives_per_positive=5)) == pytest.approx(
                f_score, abs=5e-3
            )

    @given(gaussian_classes(), st.lists(distances, min_size=2, max_size=20))
    def test_sensitivity_rises_and_specificity_falls_with_distance(self, gaussian_class, some_distances):
        ordered, rounding = np.sort(some_distances), np.spacing(1.0)  # between distances that differ by their last bit
        assert (np.diff(gaussian_class.sensitivity(ordered)) >= -rounding).all()
        assert (np.diff(gaussian_class.specificity(ordered)) <= rounding).all()
        assert gaussian_class.sensitivity(gaussian_class.positive_mean) == 0.5
        assert gaussian_class.specificity(gaussian_class.negative_mean) == 0.5

    @given(gaussian_classes(), distances, st.floats(0.1, 10.0), st.floats(0.01, 100.0))
    def test_every_curve_stays_within_0_and_1(self, gaussian_class, distance, c, ratio):
        for curve in (
            gaussian_class.precision(distance, ratio),
            gaussian_class.utility(distance, c),
            gaussian_class.precision_recall_utility(distance, c, ratio),
            gaussian_class.left_part_utility(distance),
        ):
            assert 0.0 <= float(curve) <= 1.0

    @given(gaussian_classes(), distances)
    def test_utility_is_unchanged_when_distances_are_mirrored(self, gaussian_class, distance):
        # d → 2 − d makes sensitivity of specificity and the reverse, and at c = 1 the two weigh the same.
        mirrored = GaussianClass(
            2.0 - gaussian_class.negative_mean,
            gaussian_class.negative_deviation,
            2.0 - gaussian_class.positive_mean,
            gaussian_class.positive_deviation,
        )
        # A distance 200 deviations out has no digits to compare, hence the absolute part.
        np.testing.assert_allclose(
            mirrored.utility(2.0 - distance), gaussian_class.utility(distance), rtol=1e-10, atol=1e-13
        )

    @pytest.mark.parametrize("gaussian_class", [TYPICAL, WIDE])
    def test_utility_is_single_peaked_and_its_inverse_convex(self, gaussian_class):
        utility = gaussian_class.utility(np.linspace(0.3, 1.6, 200))
        assert (np.diff(1.0 / utility, n=2) > 0).all()
        assert not (np.diff(utility, n=2) <= 0).all()
        assert (np.diff(np.sign(np.diff(utility))) != 0).sum() == 1

    @given(gaussian_classes(), distances)
    def test_left_part_bounds_both_utilities_as_documented(self, gaussian_class, distance):
        left_part = float(gaussian_class.left_part_utility(distance))
        utility = float(gaussian_class.utility(distance))
        precision_recall = float(gaussian_class.precision_recall_utility(distance))
        false_positives = stats.norm.cdf(distance, gaussian_class.negative_mean, gaussian_class.negative_deviation)
        assert left_part * (1 - false_positives) * (1 - 1e-12) <= utility <= left_part * (1 + 1e-12)
        assert left_part / (1 + false_positives) * (1 - 1e-12) <= precision_recall <= left_part * (1 + 1e-12)

    def test_left_part_is_close_and_the_printed_form_is_not(self):
        left = np.linspace(0.2, 0.9, 15)
        left_part = TYPICAL.left_part_utility(left)
        np.testing.assert_allclose(left_part, TYPICAL.utility(left), rtol=1e-4)
        np.testing.assert_allclose(left_part, TYPICAL.precision_recall_utility(left), rtol=1e-4)
        for distance, value in zip(left, TYPICAL.left_part_utility(left, form="printed"), strict=True):
            erf_positive, _ = paper_erfs(TYPICAL, distance)
            assert value == pytest.approx(2 / (3 + erf_positive), rel=1e-13)
            assert float(TYPICAL.left_part_utility(distance)) == pytest.approx(
                2 * (1 + erf_positive) / (3 + erf_positive), rel=1e-12
            )

    @pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3)])
    @pytest.mark.parametrize("curve", CURVES)
    def test_every_curve_returns_a_float64_array_of_the_shape_it_got(self, curve, shape):
        for distance in (np.ones(shape, np.float32), np.ones(shape, np.int64)):
            values = getattr(TYPICAL, curve)(distance)
            assert isinstance(values, np.ndarray)
            assert values.dtype == np.float64
            assert values.shape == shape
        assert getattr(TYPICAL, curve)(1).shape == ()

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ((1.3, 0.1, 0.6, 0.1), r"positive_mean is 1.3 and negative_mean is 0.6: 0 < positive_mean < negative_mean"),
            ((0.6, 0.1, 0.6, 0.1), "positive_mean is 0.6 and negative_mean is 0.6"),
            ((0.0, 0.1, 0.6, 0.1), "positive_mean is 0.0"),
            ((0.6, 0.1, 2.0, 0.1), "negative_mean is 2.0"),
            ((0.6, 0.0, 1.3, 0.1), "positive_deviation is 0.0: a number above 0"),
            ((0.6, 0.1, 1.3, -0.1), "negative_deviation is -0.1: a number above 0"),
            ((math.nan, 0.1, 1.3, 0.1), "positive_mean is nan: a finite number is needed"),
            ((0.6, math.inf, 1.3, 0.1), "positive_deviation is inf: a finite number is needed"),
            ((0.6, "wide", 1.3, 0.1), "positive_deviation is 'wide': a finite number"),
            (([0.6, 0.7], 0.1, 1.3, 0.1), r"positive_mean is \[0.6, 0.7\]: a finite number is needed"),
        ],
    )
    def test_impossible_classes_are_refused(self, fields, sentence):
        with pytest.raises(InputError, match=sentence):
            GaussianClass(*fields)

    @pytest.mark.parametrize("distance", [-1e-9, 2.0 + 1e-9, math.nan, math.inf, [0.5, 3.0]])
    def test_distances_outside_the_sphere_are_refused(self, distance):
        for curve in CURVES:
            with pytest.raises(InputError, match=r"distance contains .*: L2 distances .* in \[0, 2\] are needed"):
                getattr(TYPICAL, curve)(distance)

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_weights_that_are_not_positive_are_refused(self, bad):
        with pytest.raises(InputError, match="c is"):
            TYPICAL.utility(1.0, c=bad)
        with pytest.raises(InputError, match="negatives_per_positive is"):
            TYPICAL.precision_recall_utility(1.0, negatives_per_positive=bad)


class TestUtilityScore:
    @given(shares_above_0, shares_above_0, st.floats(0.01, 100.0))
    def test_it_is_equation_1_in_exact_arithmetic(self, specificity, sensitivity, c):
        phi, psi, weight = Fraction(specificity), Fraction(sensitivity), Fraction(c) ** 2
        exact = (1 + weight) * phi * psi / (weight * phi + psi)
        assert float(theory.utility_score(specificity, sensitivity, c)) == pytest.approx(float(exact), rel=1e-14)

    @given(shares, shares, st.floats(0.01, 100.0))
    @example(1.0, 1.0, 0.2919035248538893)  # the two weights add up to a little less than 1
    def test_it_lies_between_the_two_shares_for_every_weight(self, specificity, sensitivity, c):
        utility = float(theory.utility_score(specificity, sensitivity, c))
        smaller, larger = sorted((specificity, sensitivity))
        assert utility == 0.0 if smaller == 0.0 else smaller <= utility <= larger

    @given(shares, shares)
    @example(0.0, 0.0)
    @example(5e-324, 1.0)
    def test_it_is_symmetric_at_equal_weights(self, specificity, sensitivity):
        utility = float(theory.utility_score(specificity, sensitivity))
        assert utility == float(theory.utility_score(sensitivity, specificity))

    def test_products_that_underflow_do_not_matter(self):
        assert float(theory.utility_score(1e-200, 3e-200)) == pytest.approx(1.5e-200, rel=1e-15)

    def test_an_extreme_weight_leaves_one_share(self):
        assert float(theory.utility_score(0.2, 0.7, c=1e200)) == pytest.approx(0.7, rel=1e-15)
        assert float(theory.utility_score(0.2, 0.7, c=1e-200)) == pytest.approx(0.2, rel=1e-15)

    def test_shapes_broadcast(self):
        assert theory.utility_score(np.ones((2, 1)), np.ones(3)).shape == (2, 3)
        assert theory.utility_score(0.5, 0.5).shape == ()

    def test_bad_shares_and_shapes_are_refused(self):
        with pytest.raises(InputError, match=r"specificity contains 1.5: rates in \[0, 1\] are needed"):
            theory.utility_score([0.5, 1.5], 0.5)
        with pytest.raises(InputError, match="sensitivity contains nan"):
            theory.utility_score(0.5, math.nan)
        with pytest.raises(InputError, match=r"specificity has shape \(2,\), sensitivity has shape \(3,\)"):
            theory.utility_score([0.5, 0.5], [0.5, 0.5, 0.5])


class TestOpis:
    def test_it_is_the_mean_squared_deviation_from_the_mean_curve(self):
        classes = [TYPICAL, WIDE, GaussianClass(0.4, 0.2, 1.4, 0.1)]
        squares = []
        for step in range(11):
            utility = [paper_utility(gaussian_class, 0.8 + 0.04 * step) for gaussian_class in classes]
            mean = sum(utility) / 3
            squares += [(value - mean) ** 2 for value in utility]
        assert theory.opis(classes, (0.8, 1.2), grid=11) == pytest.approx(sum(squares) / 33, rel=1e-12)

    def test_a_fine_grid_approaches_the_integral(self):
        def squared_half_difference(distance):
            return ((paper_utility(TYPICAL, distance) - paper_utility(WIDE, distance)) / 2) ** 2

        integral = integrate.quad(squared_half_difference, 0.7, 1.3, epsrel=1e-12)[0] / 0.6
        assert theory.opis([TYPICAL, WIDE], (0.7, 1.3), grid=20_001) == pytest.approx(integral, rel=1e-3)

    def test_c_reaches_the_utilities(self):
        other = (TYPICAL.utility(np.linspace(0.8, 1.2, 101), c=3.0), WIDE.utility(np.linspace(0.8, 1.2, 101), c=3.0))
        assert theory.opis([TYPICAL, WIDE], (0.8, 1.2), c=3.0) == pytest.approx(
            float(np.mean((other[0] - other[1]) ** 2) / 4), rel=1e-12
        )

    @given(st.lists(gaussian_classes(), min_size=1, max_size=5), calibration_ranges())
    def test_it_lies_between_the_bounds_and_is_0_for_equal_classes(self, classes, calibration_range):
        assert theory.OPIS_LOWER_BOUND <= theory.opis(classes, calibration_range) <= 0.25
        assert theory.opis(classes[:1] * 4, calibration_range) == pytest.approx(theory.OPIS_LOWER_BOUND, abs=1e-30)

    def test_bad_input_is_refused(self):
        with pytest.raises(InputError, match="classes is empty"):
            theory.opis([], (0.8, 1.2))
        with pytest.raises(InputError, match="grid is 9: a whole number of at least 10 is needed"):
            theory.opis([TYPICAL], (0.8, 1.2), grid=9)
        with pytest.raises(InputError, match=r"calibration_range is \(1.2, 0.8\)"):
            theory.opis([TYPICAL], (1.2, 0.8))


class TestBounds:
    @pytest.mark.parametrize("perfect_classes", [0, 1, 3, 10, 19, 20])
    def test_absolute_bound_is_the_variance_of_a_mix_of_0_and_1(self, perfect_classes):
        utility = [1.0] * perfect_classes + [0.0] * (20 - perfect_classes)
        mean = sum(utility) / 20
        variance = sum((value - mean) ** 2 for value in utility) / 20
        assert theory.absolute_upper_bound(perfect_classes / 20) == pytest.approx(variance, rel=1e-13, abs=1e-16)

    @given(st.lists(shares, min_size=1, max_size=20))
    def test_no_utilities_of_that_mean_vary_more_than_the_absolute_bound(self, utility):
        mean = min(math.fsum(utility) / len(utility), 1.0)
        assert np.var(utility) <= theory.absolute_upper_bound(mean) + 1e-15

    def test_absolute_bound_peaks_at_one_half(self):
        assert theory.absolute_upper_bound(0.5) == 0.25
        assert theory.absolute_upper_bound(0.5, form="printed") == 0.5
        assert theory.absolute_upper_bound(0.1, form="printed") == pytest.approx(0.18, rel=1e-15)
        assert max(theory.absolute_upper_bound(share) for share in np.linspace(0, 1, 101)) == 0.25

    def test_realistic_bound_has_the_figures_of_the_papers_example(self):
        assert f"{theory.realistic_upper_bound(0.1, (0.8, 1.2)):.2e}" == "2.31e-02"
        assert f"{theory.realistic_upper_bound(0.1, (0.8, 1.2), form='printed'):.2e}" == "9.12e-02"

    @given(shares, calibration_ranges())
    def test_realistic_bound_is_the_integrated_variance_of_perfect_and_random_classes(self, alpha, calibration_range):
        d_min, d_max = calibration_range

        def variance(distance):
            sensitivity, specificity = distance / 2, 1 - distance / 2
            random_utility = 2 * sensitivity * specificity / (sensitivity + specificity)
            mean = alpha + (1 - alpha) * random_utility
            return alpha * (1 - mean) ** 2 + (1 - alpha) * (random_utility - mean) ** 2

        reference = integrate.quad(variance, d_min, d_max, epsabs=0, epsrel=1e-12)[0] / (d_max - d_min)
        assert theory.realistic_upper_bound(alpha, calibration_range) == pytest.approx(reference, rel=1e-10, abs=1e-15)

    @given(shares, calibration_ranges())
    def test_printed_realistic_bound_is_the_mean_square_distance_and_the_corrected_one_below_the_absolute(
        self, alpha, calibration_range
    ):
        d_min, d_max = calibration_range
        mean_square = integrate.quad(np.square, d_min, d_max, epsabs=0, epsrel=1e-12)[0] / (d_max - d_min)
        printed = theory.realistic_upper_bound(alpha, calibration_range, form="printed")
        assert printed == pytest.approx(alpha * (1 - alpha) * mean_square, rel=1e-10, abs=1e-300)
        corrected = theory.realistic_upper_bound(alpha, calibration_range)
        assert corrected <= theory.absolute_upper_bound(alpha) * (1 + 1e-15)
        assert corrected >= theory.absolute_upper_bound(alpha) / 4 * (1 - 1e-15)

    def test_realistic_bound_is_reached_by_simulated_classes(self):
        random = np.random.default_rng(7)
        grid = np.linspace(0.8, 1.2, 401)
        drawn = np.sort(random.uniform(0.0, 2.0, 1_000_000))
        sensitivity = np.searchsorted(drawn, grid, side="right") / len(drawn)
        random_utility = 2 * sensitivity * (1 - sensitivity)
        utility = np.vstack([np.ones((1, 401)), np.tile(random_utility, (9, 1))])  # (10 classes, grid)
        simulated = ((utility - utility.mean(axis=0)) ** 2).mean()
        assert theory.realistic_upper_bound(0.1, (0.8, 1.2)) == pytest.approx(simulated, rel=1e-3)

    @pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, "half", [0.1, 0.2]])
    def test_shares_outside_0_and_1_are_refused(self, alpha):
        with pytest.raises(InputError, match="perfect_share"):
            theory.absolute_upper_bound(alpha)
        with pytest.raises(InputError, match="perfect_share"):
            theory.realistic_upper_bound(alpha, (0.8, 1.2))

    @pytest.mark.parametrize(
        "calibration_range", [(1.2, 0.8), (1.0, 1.0), (-0.1, 1.0), (1.0, 2.1), (math.nan, 1.0), (0.8, 1.0, 1.2), 0.8]
    )
    def test_ranges_that_are_not_ranges_are_refused(self, calibration_range):
        with pytest.raises(InputError, match="calibration_range"):
            theory.realistic_upper_bound(0.1, calibration_range)
        with pytest.raises(InputError, match="calibration_range"):
            theory.margins_from_calibration_range(calibration_range)


class TestMargins:
    @given(margins)
    def test_margin_survives_the_way_through_distance(self, margin):
        assert float(theory.margin_from_distance(theory.distance_from_margin(margin))) == pytest.approx(
            margin, rel=0, abs=1e-15
        )

    @given(distances)
    def test_distance_survives_the_way_through_margin(self, distance):
        # 1 − d²/2 rounds small squares away, so it is the square that comes back within an absolute error.
        back = float(theory.distance_from_margin(theory.margin_from_distance(distance)))
        assert back**2 == pytest.approx(distance**2, rel=0, abs=2e-15)

    def test_both_agree_with_unit_vectors_in_the_plane(self):
        for angle in np.linspace(0.0, math.pi, 13):
            cosine = math.cos(angle)
            distance = math.dist((1.0, 0.0), (cosine, math.sin(angle)))
            assert float(theory.distance_from_margin(cosine)) == pytest.approx(distance, rel=1e-14)
            assert float(theory.margin_from_distance(min(distance, 2.0))) == pytest.approx(cosine, abs=1e-15)

    @given(st.tuples(margins, margins))
    def test_margin_pairs_survive_the_way_through_a_range(self, pair):
        negative_margin, positive_margin = sorted(pair)
        assume(positive_margin - negative_margin > 1e-6)
        calibration_range = theory.calibration_range_from_margins(positive_margin, negative_margin)
        assert calibration_range[0] < calibration_range[1]
        back = theory.margins_from_calibration_range(calibration_range)
        assert back == pytest.approx((positive_margin, negative_margin), rel=0, abs=1e-15)

    def test_the_papers_margins_give_its_range(self):
        assert theory.calibration_range_from_margins(0.9, 0.5) == pytest.approx((math.sqrt(0.2), 1.0), rel=1e-15)
        assert theory.margins_from_calibration_range((0.8, 1.2)) == pytest.approx((0.68, 0.28), rel=1e-14)

    def test_printed_margin_is_the_appendix_letter(self):
        for distance in (0.0, 0.8, 1.0, 1.2, math.sqrt(2)):
            letter = math.sqrt(max(2 - distance**2, 0)) / 2
            assert float(theory.margin_from_distance(distance, form="printed")) == pytest.approx(letter, rel=1e-15)
        assert theory.margins_from_calibration_range((0.8, 1.2), form="printed") == pytest.approx(
            (math.sqrt(1.36) / 2, math.sqrt(0.56) / 2), rel=1e-14
        )
        with pytest.raises(InputError, match=r"distance contains 1.5: distances of the printed form in \[0, 1.41421\]"):
            theory.margin_from_distance(1.5, form="printed")

    def test_arrays_keep_their_shape(self):
        assert theory.distance_from_margin(np.zeros((2, 3), np.float32)).shape == (2, 3)
        assert theory.margin_from_distance([0.0, 1.0]).dtype == np.float64
        for scalar in (theory.distance_from_margin(0.5), theory.margin_from_distance(1)):
            assert isinstance(scalar, np.ndarray)
            assert scalar.shape == ()

    def test_values_outside_the_domain_are_refused(self):
        with pytest.raises(InputError, match=r"margin contains 1.1: cosine margins in \[-1, 1\] are needed"):
            theory.distance_from_margin([0.5, 1.1])
        with pytest.raises(InputError, match="margin contains nan"):
            theory.distance_from_margin(math.nan)
        with pytest.raises(InputError, match=r"distance contains -0.1: L2 distances .* in \[0, 2\] are needed"):
            theory.margin_from_distance(-0.1)
        with pytest.raises(InputError, match="margin is 'far': a number or an array of numbers is needed"):
            theory.distance_from_margin("far")
        with pytest.raises(InputError, match=r"positive_margin is 0.5 and negative_margin is 0.9"):
            theory.calibration_range_from_margins(0.5, 0.9)
        with pytest.raises(InputError, match=r"positive_margin is 0.5 and negative_margin is 0.5"):
            theory.calibration_range_from_margins(0.5, 0.5)
        with pytest.raises(InputError, match=r"negative_margin contains -1.5"):
            theory.calibration_range_from_margins(0.5, -1.5)


def test_an_unknown_form_is_refused_everywhere():
    for call in (
        lambda form: theory.absolute_upper_bound(0.5, form=form),
        lambda form: theory.realistic_upper_bound(0.5, (0.8, 1.2), form=form),
        lambda form: theory.margin_from_distance(1.0, form=form),
        lambda form: theory.margins_from_calibration_range((0.8, 1.2), form=form),
        lambda form: TYPICAL.left_part_utility(1.0, form=form),
    ):
        with pytest.raises(InputError, match='form is \'paper\': "corrected" or "printed" is needed'):
            call("paper")


def test_importing_the_module_does_not_import_scipy():
    program = "import sys, isomargin.theory; sys.exit(any(name.startswith('scipy') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
