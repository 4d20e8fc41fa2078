"""The slider's stops and the counts behind them, against ``Evaluation.at`` and a reader of LEB128 of its own."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isomargin as im
from isomargin.report.packing import pack_increments
from isomargin.report.slider_stops import threshold_stops

SETTINGS = {
    "listed": {},
    "sampled": {"pairs": "sampled"},
    "another target": {"target_far": 0.03, "far": (0.02, 0.2)},
}


def drawn(classes=30, images=9, seed=0):
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    widths = np.linspace(0.3, 1.2, classes)[labels, None]
    return generator.normal(size=(classes, 16))[labels] + widths * generator.normal(size=(len(labels), 16)), labels


@pytest.fixture(scope="module", params=[*SETTINGS, "binned"])
def evaluation(request):
    if request.param == "binned":
        return im.evaluate(*drawn(classes=600, images=8))  # over 4,096 rows pairs are counted in bins
    return im.evaluate(*drawn(), **SETTINGS[request.param])


def test_at_every_stop_the_counts_are_those_of_the_evaluation(evaluation):
    stops = threshold_stops(evaluation)
    positives, negatives = evaluation.counts.positives.totals, evaluation.counts.negatives.totals
    for stop in range(0, len(stops.distances), 13):
        point = evaluation.at(float(stops.distances[stop]))
        assert stops.negatives[:, stop] / negatives == pytest.approx(point.class_far, abs=1e-9)
        assert 1 - stops.positives[:, stop] / positives == pytest.approx(point.class_frr, abs=1e-9)
        assert stops.negatives[:, stop].sum() / negatives.sum() == pytest.approx(point.far, abs=1e-9)


def test_presets_are_the_thresholds_that_the_command_chooses(evaluation):
    stops = threshold_stops(evaluation)
    assert evaluation.settings.target_far in stops.presets
    for far, stop in stops.presets.items():
        assert stops.distances[stop] == im.choose_threshold(evaluation, far=far).distance


def test_rates_that_the_data_cannot_tell_are_no_presets():
    with pytest.warns(UserWarning, match="noise"):
        small = im.evaluate(*drawn(classes=6, images=4), far=(0.01, 0.1))  # 240 negative pairs
    assert sorted(threshold_stops(small).presets) == [0.01, 0.05, 0.1]


def test_stops_ascend_and_cover_the_calibration_range(evaluation):
    stops = threshold_stops(evaluation)
    low, high = evaluation.calibration_range
    assert (np.diff(stops.distances) > 0).all()
    assert stops.distances[0] < low + 1e-3
    assert stops.distances[-1] > high - 1e-3
    assert ((stops.distances >= low) & (stops.distances <= high)).sum() > 10
    for place in (low, high, evaluation.eer_distance):
        assert np.abs(stops.distances - place).min() < 1e-4
    for far in (0.02, 0.03, 0.05, 0.1, 0.5):
        assert im.choose_threshold(evaluation, far=far).distance in stops.distances


def unpacked(text, rows, columns):
    """Read LEB128 one byte at a time."""
    values, current, shift = [], 0, 0
    for byte in base64.b64decode(text):
        current |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(current)
            current, shift = 0, 0
    return np.cumsum(np.array(values, dtype=object).reshape(rows, columns), axis=1)


@given(st.lists(st.lists(st.integers(0, 2**60), min_size=3, max_size=3), min_size=1, max_size=5))
def test_packed_counts_come_back_whole(increments):
    counts = np.cumsum(np.array(increments, np.int64), axis=1)
    assert (unpacked(pack_increments(counts), *counts.shape) == counts).all()
