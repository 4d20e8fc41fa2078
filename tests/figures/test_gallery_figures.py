"""The figures of galleries: probes and templates in place of pairs of items."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from test_figures import steps

import isomargin as im
from isomargin import figures
from isomargin.figures import style


@pytest.fixture(scope="module")
def gallery():
    generator = np.random.default_rng(2)
    centres, enrolled = generator.normal(size=(12, 8)), np.repeat(np.arange(10), 4)
    labels = np.concatenate([np.repeat(np.arange(9), 6), [9], np.repeat([10, 11], 6)])  # class 9 has a single probe
    items, probes = (centres[of] + 0.7 * generator.normal(size=(len(of), 8)) for of in (enrolled, labels))
    evaluation = im.evaluate_gallery(items, enrolled, probes, labels, target_fpir=0.1, progress=None)
    return items, enrolled, probes, labels, evaluation


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_distances_are_those_of_probes_to_the_means_of_classes(gallery):
    items, enrolled, probes, labels, evaluation = gallery
    axis = figures.distance_distributions({"door": evaluation}).axes[0]
    assert axis.get_xlabel() == "distance between a probe and a template"
    means = unit(np.stack([unit(items[enrolled == each]).mean(axis=0) for each in range(10)]))
    apart = np.linalg.norm(unit(probes)[:, None] - means[None], axis=2)
    own = labels[:, None] == np.arange(10)
    for colour, distances in ((style.POSITIVE, apart[own]), (style.NEGATIVE, apart[~own])):
        drawn = steps(axis, colour)
        counts, _ = np.histogram(distances, drawn.edges)
        np.testing.assert_allclose(drawn.values * np.diff(drawn.edges) * len(distances), counts, atol=1e-9)


def test_classes_with_two_known_probes_have_a_curve(gallery):
    axis = figures.utility_curves({"door": gallery[-1]}).axes[0]
    assert len(next(each for each in axis.collections if isinstance(each, LineCollection)).get_segments()) == 9
    assert [axis.get_xlabel() for axis in figures.teaser({"door": gallery[-1]}).axes][-1] == (
        "distance between a probe and a template"
    )


@pytest.mark.parametrize("name", ["utility_curves", "teaser", "calibration_ranges", "distance_distributions"])
def test_a_gallery_and_all_pairs_are_not_drawn_together(gallery, evaluations, name):
    runs = {"a": evaluations["a"], "door": gallery[-1]}
    with pytest.raises(im.InputError, match="a compares all pairs of items and door probes with the templates"):
        figures.FIGURES[name].draw(runs)
