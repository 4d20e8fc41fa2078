"""What the figures show: the drawn artists' data against the same numbers by their definitions."""

import re

import numpy as np
import pandas
import pytest
from by_hand import distance_at_far, opis_by_hand, pair_distances, tuned_run, utility_by_hand
from matplotlib.collections import LineCollection
from scipy import stats

from isomargin import figures
from isomargin.core.errors import InputError
from isomargin.figures import TrainedModel, style
from isomargin.figures.error_against_opis import twins
from isomargin.theory import GaussianClass

DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def title(axis):
    return axis.get_title(loc="left")


def legend_texts(holder):
    return [text.get_text() for text in holder.get_texts()]


def steps(axis, colour):
    """The heights of the outline of that colour."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import StepPatch

    outlines = [each for each in axis.patches if isinstance(each, StepPatch) and not each.get_fill()]
    return next(each.get_data() for each in outlines if each.get_edgecolor() == to_rgba(colour))


# utility_curves


def test_utility_curves_are_those_of_the_definition(sets, evaluations):
    figure = figures.utility_curves(evaluations)
    assert len(figure.axes) == len(sets)
    for axis, made in zip(figure.axes, sets.values(), strict=True):
        lines = next(each for each in axis.collections if isinstance(each, LineCollection)).get_segments()
        assert len(lines) == 6
        by_hand = [utility_by_hand(made, which, lines[which][:, 0]) for which in range(6)]
        np.testing.assert_allclose([line[:, 1] for line in lines], by_hand, atol=1e-12)
        mean = next(each for each in axis.lines if len(each.get_xdata()) > 2)
        np.testing.assert_allclose(mean.get_ydata(), np.mean(by_hand, axis=0), atol=1e-12)


def test_utility_curves_mark_the_calibration_range_and_name_opis(sets, evaluations):
    figure = figures.utility_curves(evaluations)
    for axis, (name, made) in zip(figure.axes, sets.items(), strict=True):
        first, second = title(axis).split("\n")
        digits, exponent = second.removeprefix("OPIS ").split("×10")
        assert first == name
        shown = float(f"{digits}e{exponent.translate(DIGITS)}")
        assert shown == pytest.approx(opis_by_hand(made, (0.01, 0.1)), rel=6e-3)
        negatives = pair_distances(made)[1]
        ends = [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 2]
        np.testing.assert_allclose(ends, [distance_at_far(negatives, far) for far in (0.01, 0.1)], atol=1e-6)


def test_utility_curves_have_the_same_axes_and_those_asked_for(evaluations):
    figure = figures.utility_curves(evaluations, distances=(0.25, 1.5))
    assert {axis.get_xlim() for axis in figure.axes} == {(0.25, 1.5)}
    assert len({axis.get_ylim() for axis in figure.axes}) == 1


def test_evaluations_that_were_asked_differently_are_not_compared(evaluations):
    other = {"a": evaluations["a"], "b\x1b": evaluations["b"].with_settings(far=(0.1, 0.2))}
    sentence = re.escape(r"a was evaluated with far=(0.01, 0.1) and b\x1b with far=(0.1, 0.2): evaluate both with")
    with pytest.raises(InputError, match=sentence):
        figures.utility_curves(other)
    figures.distance_distributions(other)  # which shows no score that depends on it


@pytest.mark.parametrize(
    "draw", [figures.utility_curves, figures.teaser, figures.distance_distributions, figures.calibration_ranges]
)
def test_what_is_no_evaluations_by_name_is_refused(draw, evaluations):
    with pytest.raises(
        InputError, match=r"evaluations by name are needed, such as {'mine': evaluation}, and not Evaluation"
    ):
        draw(evaluations["a"])
    with pytest.raises(InputError, match="there is no evaluation to draw"):
        draw({})


# distance_distributions


def test_densities_are_shares_of_the_pairs(sets, evaluations):
    figure = figures.distance_distributions(evaluations)
    assert len(figure.axes) == len(sets)
    for axis, (name, made) in zip(figure.axes, sets.items(), strict=True):
        for colour, distances in zip((style.POSITIVE, style.NEGATIVE), pair_distances(made), strict=True):
            heights, edges, _ = steps(axis, colour)
            counted = np.histogram(distances, edges)[0]
            np.testing.assert_allclose(heights, counted / len(distances) / np.diff(edges), atol=1e-9)
            assert heights.max() < axis.get_ylim()[1]
        positives, negatives = pair_distances(made)
        thresholds = np.sort(np.concatenate([positives, negatives]))
        gap = [abs((negatives <= each).mean() - (positives > each).mean()) for each in thresholds]
        near = (negatives <= thresholds[np.argmin(gap)]).mean()
        assert title(axis).startswith(f"{name}: equal error rate ")
        assert float(title(axis).split()[-1].rstrip("%")) / 100 == pytest.approx(near, abs=0.005)
    assert legend_texts(figure.legends[0]) == ["same class", "different classes"]
    assert len({axis.get_xlim() for axis in figure.axes}) == 1


# teaser


def test_the_teaser_shows_the_classes_with_the_lowest_median_and_highest_threshold(sets, evaluations):
    figure = figures.teaser({"a": evaluations["a"]}, far=0.1)
    own = np.array([distance_at_far(pair_distances(sets["a"], which)[1], 0.1) for which in range(6)])
    order = np.argsort(own)
    expected = [order[0], order[2], order[5]]
    titles = [title(axis).split("\n")[-1] for axis in figure.axes]
    assert titles == [f"{which}: d* = {own[which]:.3f}" for which in expected]
    assert title(figure.axes[0]).startswith(f"thresholds differ by {own.max() - own.min():.3f}\n")
    for axis, which in zip(figure.axes, expected, strict=True):
        assert axis.lines[0].get_xdata()[0] == pytest.approx(own[which], abs=1e-6)
        heights, edges, _ = steps(axis, style.NEGATIVE)
        negatives = pair_distances(sets["a"], which)[1]
        np.testing.assert_allclose(
            heights, np.histogram(negatives, edges)[0] / len(negatives) / np.diff(edges), atol=1e-9
        )


def test_the_teaser_of_several_sets_has_a_row_each_with_its_pooled_threshold(sets, evaluations):
    figure = figures.teaser(evaluations, far=0.05)
    own = [distance_at_far(pair_distances(made)[1], 0.05) for made in sets.values()]
    expected = [f"{name}: d* = {threshold:.3f}" for name, threshold in zip(sets, own, strict=True)]
    assert [title(axis).split("\n")[-1] for axis in figure.axes] == expected
    assert "d* for FAR 0.05" in legend_texts(figure.legends[0])


def test_the_teaser_of_named_classes_has_a_column_a_set(sets, evaluations):
    figure = figures.teaser(evaluations, classes=["4", 1], far=0.05)
    assert len(figure.axes) == 2 * len(sets)
    shown = np.array([float(title(axis).split("= ")[-1]) for axis in figure.axes]).reshape(2, len(sets))
    for column, made in enumerate(sets.values()):
        own = [distance_at_far(pair_distances(made, which)[1], 0.05) for which in (4, 1)]
        np.testing.assert_allclose(shown[:, column], own, atol=6e-4)
    assert [title(axis).split(":")[0] for axis in figure.axes[:3]] == list(sets)
    one_class = figures.teaser(evaluations, classes=[1])
    assert [title(axis).split(":")[0] for axis in one_class.axes] == ["a\n1", "b\n1", "c\n1"]


def test_the_teaser_refuses_classes_that_are_not_there(evaluations):
    with pytest.raises(InputError, match="there is no class '17': there are 6, such as '1'"):
        figures.teaser({"a": evaluations["a"]}, classes=["17"])
    with pytest.raises(InputError, match="classes is empty"):
        figures.teaser({"a": evaluations["a"]}, classes=[])


# calibration_ranges


def test_calibration_ranges_show_opis_and_ranks_by_definition(sets, evaluations):
    ranges = [(0.005, 0.05), (0.01, 0.1), (0.1, 0.4)]
    left, right = figures.calibration_ranges(evaluations, ranges).axes
    by_hand = np.array([[opis_by_hand(made, far) for far in ranges] for made in sets.values()])
    np.testing.assert_allclose([line.get_ydata() for line in left.lines], by_hand, rtol=1e-4)
    ranks = [[1 + sum(other < own for other in column) for own in column] for column in by_hand.T]
    np.testing.assert_array_equal([line.get_ydata() for line in right.lines], np.transpose(ranks))
    assert [text.get_text() for text in right.texts] == list(sets)
    assert [text.get_position() for text in right.texts] == [(7, 0)] * 3
    assert right.yaxis_inverted()


def test_calibration_ranges_are_those_that_there_are_pairs_for(evaluations):
    few = evaluations["a"]  # 2,160 negative pairs
    assert len(figures.calibration_ranges({"a": few}).axes[0].get_xticks()) == 5
    with pytest.raises(InputError, match="the smallest rate above zero"):
        figures.calibration_ranges({"a": few}, [(1e-6, 1e-2)])
    with pytest.raises(InputError, match="ranges is empty"):
        figures.calibration_ranges({"a": few}, [])


# recall_over_epochs


def test_recall_over_epochs_draws_each_runs_column(evaluations):
    tables = {
        "one": pandas.DataFrame({"epoch": [1, 2, 3], "recall@1": [0.1, np.nan, 0.3], "opis": [3, 2, 1]}),
        "two": pandas.DataFrame({"epoch": [2, 4], "recall@1": [0.2, 0.4], "opis": [6, 5]}),
    }
    (axis,) = figures.recall_over_epochs(tables).axes
    assert [line.get_xydata().tolist() for line in axis.lines] == [[[1, 0.1], [3, 0.3]], [[2, 0.2], [4, 0.4]]]
    assert legend_texts(axis.get_legend()) == ["one", "two"]
    (other,) = figures.recall_over_epochs(tables, column="opis").axes
    assert other.lines[1].get_ydata().tolist() == [6, 5]
    assert other.get_ylabel() == "opis"
    with pytest.raises(InputError, match=r"the metrics of one have no column 'recal@1': did you mean 'recall@1'\?"):
        figures.recall_over_epochs(tables, column="recal@1")
    with pytest.raises(InputError, match="the column 'name' of one holds no numbers"):
        figures.recall_over_epochs({"one": pandas.DataFrame({"epoch": [1], "name": ["x"]})}, column="name")
    with pytest.raises(InputError, match="there are no metrics to draw"):
        figures.recall_over_epochs({})


# error_against_opis


MODELS = [
    TrainedModel("one", 0.90, 3e-3, "proxy_nca", 256, "", "p256"),
    TrainedModel("one tcm", 0.91, 2e-3, "proxy_nca", 256, "tcm", "p256"),
    TrainedModel("two", 0.80, 2.5e-3, "proxy_nca", 64, "", "p64"),
    TrainedModel("three", 0.85, 4e-3, "smooth_ap", 128, "", "s128"),
    TrainedModel("three other", 0.85, 1e-3, "smooth_ap", 128, "contrastive", "s128"),
    TrainedModel("four tcm", 0.70, 1e-3, "smooth_ap", 128, "tcm", "alone"),
]


def test_error_against_opis_places_models_by_error_and_opis():
    (axis,) = figures.error_against_opis(MODELS).axes
    drawn = {tuple(np.round(each.get_offsets()[0], 9)): each for each in axis.collections}
    assert set(drawn) == {(round(100 - 100 * model.recall_at_1, 9), round(model.opis, 9)) for model in MODELS}
    by_name = {model.name: drawn[round(100 - 100 * model.recall_at_1, 9), round(model.opis, 9)] for model in MODELS}
    assert by_name["one"].get_sizes()[0] == pytest.approx(4 * by_name["two"].get_sizes()[0])
    for model in MODELS:
        hollow = by_name[model.name].get_facecolor()[0].tolist() == [1, 1, 1, 1]
        assert hollow == (model.regularizer == "")
    edges = {name: tuple(each.get_edgecolor()[0]) for name, each in by_name.items()}
    assert edges["one"] == edges["two"] == edges["one tcm"] != edges["three"]
    assert edges["three"] == edges["four tcm"]
    shapes = {name: len(each.get_paths()[0].vertices) for name, each in by_name.items()}
    assert shapes["one"] == shapes["two"] == shapes["one tcm"] != shapes["three"] == shapes["four tcm"]
    assert by_name["four tcm"].get_facecolor()[0, 3] == 1 > by_name["three other"].get_facecolor()[0, 3]


def test_error_against_opis_joins_models_that_differ_in_the_regularizer_alone():
    (axis,) = figures.error_against_opis(MODELS).axes
    ends = {(start.name, end.name) for start, end in twins(MODELS)}
    assert ends == {("one", "one tcm"), ("three", "three other")}
    arrows = [(text.get_position(), text.xy) for text in axis.texts]
    assert [(np.round(start, 6).tolist(), np.round(end, 6).tolist()) for start, end in arrows] == [
        ([10, 3e-3], [9, 2e-3]),
        ([15, 4e-3], [15, 1e-3]),
    ]


def test_the_pareto_front_is_of_models_that_nothing_beats():
    random = np.random.default_rng(0)
    models = [TrainedModel(str(number), *random.random(2).round(1), "a", 8) for number in range(40)]
    (axis,) = figures.error_against_opis(models).axes
    front = {tuple(point) for point in np.round(axis.lines[0].get_xydata(), 6).tolist()}
    places = [(1 - model.recall_at_1, model.opis) for model in models]

    def beaten(error, opis):
        return any(e <= error and o <= opis and (e, o) != (error, opis) for e, o in places)

    assert front == {(round(100 * error, 6), round(opis, 6)) for error, opis in places if not beaten(error, opis)}


def test_error_against_opis_explains_what_it_shows_and_no_more():
    (axis,) = figures.error_against_opis(MODELS).axes
    assert legend_texts(axis.get_legend()) == [
        "proxy_nca",
        "smooth_ap",
        "no regularizer",
        "with TCM",
        "with another regularizer",
        "Pareto front, no regularizer",
        "the same with a regularizer",
        "batch of 64",
        "batch of 256",
    ]
    (alone,) = figures.error_against_opis(MODELS[:1]).axes
    assert legend_texts(alone.get_legend()) == ["proxy_nca", "no regularizer", "batch of 256"]
    with pytest.raises(InputError, match="there is no model to draw"):
        figures.error_against_opis([])


# margins_grid


def test_the_margins_grid_has_each_runs_scores_in_its_cell():
    rows = [
        tuned_run(recall=0.9, opis=5e-3),
        tuned_run(0.9, 0.5, 1.0, recall=0.85, opis=2e-3, picked=True),
        tuned_run(0.9, 0.3, 1.0, recall=0.70, opis=1e-3),
        tuned_run(0.8, 0.5, 1.0, recall=0.855, opis=float("nan")),
    ]
    figure = figures.margins_grid(rows, tolerance=0.01)
    opis, recall = figure.axes
    assert title(opis) == "OPIS in $10^{-3}$ (without TCM 5.00)"
    assert title(recall) == "recall@1 in % (without TCM 90.00)"
    np.testing.assert_allclose(opis.images[0].get_array().filled(np.nan), [[np.nan, np.nan], [1.0, 2.0]])
    np.testing.assert_allclose(recall.images[0].get_array().filled(np.nan), [[np.nan, 85.5], [70.0, 85.0]])
    assert [tick.get_text() for tick in opis.get_xticklabels()] == ["0.3", "0.5"]
    assert [tick.get_text() for tick in opis.get_yticklabels()] == ["0.8", "0.9"]
    assert {text.get_text() for text in recall.texts} == {"85.00", "(70.00)", "85.50"}
    assert [patch.get_xy() for patch in recall.patches] == [(0.5, 0.5)]
    assert "recall@1 below 84.00%" in figure.get_supxlabel()


def test_the_margins_grid_has_two_maps_a_weight():
    rows = [tuned_run(0.9, 0.5, weight) for weight in (1.0, 5.0)]
    figure = figures.margins_grid(rows)
    assert [title(axis) for axis in figure.axes[1::2]] == ["recall@1 in %, weight 1", "recall@1 in %, weight 5"]
    with pytest.raises(InputError, match="no runs with margins"):
        figures.margins_grid([tuned_run()])


# gaussian_curves


def test_gaussian_curves_are_the_papers():
    parameters = [(0.6, 0.15, 1.3, 0.1), (0.7, 0.2, 1.2, 0.15), (0.8, 0.1, 1.4, 0.2)]
    figure = figures.gaussian_curves([GaussianClass(*each) for each in parameters], negatives_per_positive=10)
    assert len(figure.axes) == 3
    for axis, (positive, own, negative, other) in zip(figure.axes, parameters, strict=True):
        roc, pr = axis.lines
        distances = roc.get_xdata()
        recall, far = stats.norm.cdf(distances, positive, own), stats.norm.cdf(distances, negative, other)
        np.testing.assert_allclose(roc.get_ydata(), 2 * recall * (1 - far) / (1 + recall - far), atol=1e-9)
        np.testing.assert_allclose(pr.get_ydata(), 2 * recall / (1 + recall + 10 * far), atol=1e-9)
    assert len(figures.gaussian_curves().axes) == 4
    with pytest.raises(InputError, match="classes holds no Gaussian classes"):
        figures.gaussian_curves([])
