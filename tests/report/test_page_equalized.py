"""The report of equalized similarities, whose distances may be negative: its data by definition, and its page."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import isomargin as im
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.report.contents import contents
from isomargin.report.examples import class_examples
from isomargin.report.slider_stops import threshold_stops
from isomargin.report.sources import Source, examples_of
from isomargin.report.write import write_report


@pytest.fixture(scope="module")
def equalized():
    """Pairs of similar classes, half of them crowded, with an equalizer: many similarities are above 1."""
    generator = np.random.default_rng(0)
    labels = np.array([f"class {number:02}" for number in range(24)])[generator.permutation(np.arange(144) % 24)]
    numbers = np.unique(labels, return_inverse=True)[1]
    crowded = np.where(np.arange(12) < 6, 0.5, 2.0)[:, None]
    centres = 1.5 * np.eye(10)[0] + crowded * generator.normal(size=(12, 10))
    rows = centres[numbers // 2] + 0.35 * generator.normal(size=(144, 10))
    equalizer = im.Equalizer(30, 12, 1.0).fit(rows)
    shifts = equalizer.shifts(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        evaluation = im.evaluate(rows, labels, equalizer=equalizer)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    squared = 2 - 2 * (unit @ unit.T + shifts.values + shifts.values[:, None])
    distances = np.where(squared < 0, -1, 1) * np.sqrt(np.abs(squared))
    assert (distances[labels[:, None] != labels] < 0).sum() > 10
    return SimpleNamespace(rows=rows, labels=labels, shifts=shifts, evaluation=evaluation, distances=distances)


def test_stops_are_within_the_axis_and_count_the_pairs_of_the_definition(equalized):
    stops, evaluation = threshold_stops(equalized.evaluation), equalized.evaluation
    assert (np.diff(stops.distances) > 0).all()
    assert stops.distances[0] < 0
    assert evaluation.axis.lowest <= stops.distances[0]
    assert stops.distances[-1] <= evaluation.axis.highest
    names, upper = evaluation.names, np.triu(np.ones((144, 144), bool), 1)
    for stop in range(0, len(stops.distances), 11):
        # A stop may be the very distance of a pair, which rounding puts on either side here.
        near = [equalized.distances <= stops.distances[stop] + aside for aside in (-1e-9, 1e-9)]
        for index in (0, 13):
            own = equalized.labels == names[index]
            counts = [[(each & upper)[np.ix_(own, own)].sum(), each[np.ix_(own, ~own)].sum()] for each in near]
            assert counts[0][0] <= stops.positives[index, stop] <= counts[1][0]
            assert counts[0][1] <= stops.negatives[index, stop] <= counts[1][1]


def test_the_page_is_told_the_axis_and_shows_all_distances(equalized):
    evaluation = equalized.evaluation
    (run,) = contents({"equalized": evaluation}, intervals=False)["runs"]
    assert run["axis"] == [evaluation.axis.lowest, evaluation.axis.highest]
    assert run["similarity_name"] == "equalized similarity"
    assert run["distribution"]["edges"][0] <= equalized.distances[~np.eye(144, dtype=bool)].min() < 0
    for kind in ("positive", "negative"):
        assert sum(run["distribution"][kind]) == pytest.approx(1, abs=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plain = im.evaluate(equalized.rows, equalized.labels)
    (run,) = contents({"plain": plain}, intervals=False)["runs"]
    assert run["axis"] == [0, 2]
    assert run["distribution"]["edges"][0] == 0
    assert run["similarity_name"] == "cosine"


@pytest.mark.parametrize("distance", [-0.05, 0.5])
def test_confusions_are_those_of_equalized_similarities(equalized, distance):
    embeddings = EmbeddingSet(equalized.rows, equalized.labels)
    names = equalized.evaluation.names.tolist()
    found = class_examples(embeddings, names, distance, confusions=24, shifts=equalized.shifts)
    accepted = 0
    for name in names:
        own = equalized.labels == name
        expected = {}
        for other in names:
            pairs = equalized.distances[np.ix_(own, equalized.labels == other)]
            if other != name and (pairs <= distance).any():
                expected[other] = (int((pairs <= distance).sum()), pairs.min())
        confusions = found[name].confusions
        counts = {other: count for other, (count, _) in expected.items()}
        assert {each.name: each.pairs for each in confusions} == counts
        for each in confusions:
            assert each.nearest == pytest.approx(expected[each.name][1], abs=1e-6)
        assert [each.pairs for each in confusions] == sorted((each.pairs for each in confusions), reverse=True)
        accepted += sum(each.pairs for each in confusions)
    assert accepted > 0
    with pytest.raises(im.InputError, match="an equalized distance from"):
        class_examples(embeddings, names, equalized.evaluation.axis.lowest - 1, shifts=equalized.shifts)


def test_without_the_equalizer_the_confusions_are_unknown(equalized):
    embeddings = EmbeddingSet(equalized.rows, equalized.labels)
    assert examples_of("run", Source(equalized.evaluation, embeddings)) == {}
    known = examples_of("run", Source(equalized.evaluation, embeddings, shifts=equalized.shifts))
    assert set(known) == set(equalized.evaluation.names.tolist())


def test_thresholds_below_zero_are_shown_typed_and_limited(equalized, show, tmp_path):
    evaluation = equalized.evaluation
    write_report(evaluation, tmp_path / "report.html", intervals=False)
    tab = show(SimpleNamespace(path=tmp_path / "report.html"))
    axis = evaluation.axis
    tab.drawn()
    (lowest,) = tab.script("() => [document.getElementById('plot-distances').layout.xaxis.range[0]]")
    assert lowest <= equalized.distances[~np.eye(144, dtype=bool)].min() < 0
    tab.type_threshold("-0.3")
    point = tab.operating()
    assert point["distance"] == pytest.approx(-0.3, abs=0.03)
    assert point["similarity"] == pytest.approx(1 + point["distance"] ** 2 / 2, abs=1e-9)
    assert point["far"] == pytest.approx(evaluation.at(point["distance"]).far)
    assert tab.find("#threshold-value").input_value().startswith("−0.")
    tab.choose_unit("similarity")
    tab.type_threshold("1.02")
    assert tab.distance() == pytest.approx(-0.2, abs=0.03)
    before = tab.operating()
    tab.choose_unit("distance")
    for text in (f"{axis.lowest - 0.01}", f"{axis.highest + 0.01}"):
        tab.type_threshold(text)
        assert tab.attribute("#threshold-value", "aria-invalid") == "true"
        limits = f"a distance from {axis.lowest} to {axis.highest}".replace("-", "−")
        assert limits in tab.text("#asked")
        assert tab.operating() == before
