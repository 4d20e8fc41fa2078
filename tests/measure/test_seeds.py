"""Means over seeds held against each other: against plain loops, and where the truth is known."""

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.seed_comparison import FAR_SPREAD, FRR_SPREAD, SeedScores, compare_seeds, weights_by_seed
from isomargin.measure.statistics.resampling import draw_weights


def drawn(seed, spread=0.3, width=0.6):
    generator, labels = np.random.default_rng(seed), np.repeat(np.arange(30), 8)
    widths = np.linspace(1 - spread, 1 + spread, 30)[labels, None]
    centres = np.random.default_rng(99).normal(size=(30, 16))[labels]
    return im.evaluate(centres + width * widths * generator.normal(size=(240, 16)), labels)


@pytest.fixture(scope="module")
def ways():
    return [drawn(seed) for seed in range(3)], [drawn(seed, width=0.4) for seed in range(3, 6)]


def test_differences_are_those_of_the_means(ways):
    first, other = ways
    rows = {row.score: row for row in compare_seeds(first, other)}
    for name, score in (("opis", lambda each: each.opis), ("recall@1", lambda each: each.recall_at_k[1])):
        a, b = (np.mean([score(each) for each in way]) for way in ways)
        assert rows[name].first == pytest.approx(a)
        assert rows[name].difference.value == pytest.approx(b - a)
    assert rows["opis"].change.value == pytest.approx(rows["opis"].other / rows["opis"].first - 1)
    for name in (FAR_SPREAD, FRR_SPREAD):
        spreads = [np.mean([getattr(each, name).relative_deviation for each in way]) for way in ways]
        assert rows[name].change.value == pytest.approx(spreads[1] / spreads[0] - 1)


@pytest.mark.parametrize(("name", "column"), [(FAR_SPREAD, "far_threshold"), (FRR_SPREAD, "frr_threshold")])
def test_spreads_of_drawn_classes_are_those_of_their_thresholds(ways, name, column):
    evaluation = ways[0][0]
    thresholds, able = evaluation.per_class[column].to_numpy(), evaluation.curves.classes
    weights = draw_weights(evaluation.counts.positives.totals > 0, 20, 0)
    low, high = evaluation.calibration_range
    expected = [np.repeat(thresholds[able], times[able]).std() / (high - low) for times in weights]
    assert SeedScores(evaluation, weights).drawn[name] == pytest.approx(expected)


def test_with_one_seed_it_is_compare(ways):
    (first, *_), (other, *_) = ways
    expected = {row.score: row for row in im.compare({"a": first, "b": other}).others["b"]}
    for row in compare_seeds([first], [other]):
        if row.score not in (FAR_SPREAD, FRR_SPREAD):
            assert row == expected[row.score]


def test_a_way_is_not_different_from_itself(ways):
    for row in compare_seeds(ways[0], ways[0]):
        assert row.difference.low == row.difference.high == 0
        assert row.p_value == 1


def test_seeds_that_disagree_widen_the_interval():
    alike = [drawn(0, width=0.5)] * 4
    apart = [drawn(0, width=width) for width in (0.3, 0.4, 0.6, 0.7)]
    narrow, wide = (
        next(row for row in compare_seeds(alike, way) if row.score == "mean_utility").difference
        for way in ([drawn(1, width=0.5)] * 4, apart)
    )
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_as_many_seeds_are_needed(ways):
    with pytest.raises(im.InputError, match="but 3 and 2 were given"):
        compare_seeds(ways[0], ways[1][:2])


def with_names(evaluation_seed, start, width):
    generator, labels = np.random.default_rng(evaluation_seed), np.repeat(np.arange(start, start + 30), 8)
    centres = np.random.default_rng(start).normal(size=(30, 16))[labels - start]
    return im.evaluate(centres + width * generator.normal(size=(240, 16)), labels)


def test_seeds_may_have_classes_of_their_own_which_are_then_drawn_by_themselves():
    first, other = ([with_names(seed, 10 * seed, width) for seed in range(3)] for width in (0.6, 0.4))
    rows = {row.score: row for row in compare_seeds(first, other)}
    assert rows["opis"].change.high < 0
    assert rows["opis"].first == pytest.approx(np.mean([each.opis for each in first]))
    apart, together = weights_by_seed(first, other, 5, 0), weights_by_seed([first[0]] * 3, [other[0]] * 3, 5, 0)
    assert len({each.tobytes() for each in apart}) == 3
    assert len({each.tobytes() for each in together}) == 1


def test_a_seed_is_only_held_against_its_own_classes():
    first, other = ([with_names(seed, 10 * seed, width) for seed in range(2)] for width in (0.6, 0.4))
    with pytest.raises(im.InputError, match="model 0 lacks"):
        compare_seeds(first, other[::-1])
