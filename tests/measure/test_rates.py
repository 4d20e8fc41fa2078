"""The two thresholds at a false accept rate, compared with all thresholds tried one by one, and where each is used."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isomargin as im
from isomargin.measure.pairs.counts import PairCounts
from isomargin.measure.pairs.distances import ListedDistances
from isomargin.measure.pairs.rates import threshold_at_far
from isomargin.report.headline import target_point
from isomargin.report.slider_stops import threshold_stops

# Multiples of 1/16 are floats and tie often.
some_distances = st.lists(st.integers(1, 32).map(lambda step: step / 16), min_size=1, max_size=12)


def listed(distances):
    return ListedDistances(np.sort(np.array(distances)), np.array([0, len(distances)]), appearances=1)


def rate_at(distances, threshold):
    return Fraction(sum(distance <= threshold for distance in distances), len(distances))


@given(some_distances, st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50))
def test_reached_is_the_first_pair_at_which_the_rate_is_reached(negatives, far):
    counts = PairCounts(listed(negatives), listed(negatives))
    if far * len(negatives) < 1:
        with pytest.raises(im.InputError, match="some_far asks for a false accept rate"):
            threshold_at_far(counts, float(far), "reached", "some_far")
        return
    expected = min(distance for distance in negatives if rate_at(negatives, distance) >= far)
    assert threshold_at_far(counts, float(far), "reached") == expected


@given(some_distances, st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50))
def test_not_exceeded_is_within_the_rate_and_the_next_pair_is_not(negatives, far):
    counts = PairCounts(listed(negatives), listed(negatives))
    if far * len(negatives) < 1:
        with pytest.raises(im.InputError, match="some_far asks for a false accept rate"):
            threshold_at_far(counts, float(far), "not_exceeded", "some_far")
        return
    found = threshold_at_far(counts, float(far), "not_exceeded")
    beyond = min((distance for distance in negatives if distance > found), default=math.inf)
    assert rate_at(negatives, found) <= far < rate_at(negatives, beyond)
    reached = threshold_at_far(counts, float(far), "reached")
    assert not any(min(found, reached) < distance < max(found, reached) for distance in negatives)


@pytest.mark.parametrize("classes", [30, 600])  # listed, binned
def test_scores_use_the_threshold_that_is_reached_and_choices_the_one_that_is_not_exceeded(classes):
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), 8)
    vectors = generator.normal(size=(classes, 16))[labels] + generator.normal(size=(len(labels), 16))
    evaluation = im.evaluate(vectors, labels, target_far=0.0123)
    counts = evaluation.counts
    far, tolerance = (0.0123, 0.01, 0.1), 0 if evaluation.method == "binned" else 1e-12
    used = (evaluation.target.distance, *evaluation.calibration_range)
    assert used == pytest.approx([threshold_at_far(counts, rate, "reached") for rate in far], abs=tolerance)
    chosen = threshold_at_far(counts, 0.0123, "not_exceeded")
    stops = threshold_stops(evaluation)
    assert im.choose_threshold(evaluation, far=0.0123, draws=100).distance == chosen
    assert stops.distances[stops.presets[0.0123]] == chosen
    assert target_point(evaluation).distance == chosen
