"""Two-dimensional embeddings on their circle: what is drawn against directions, spreads and densities by definition."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from scipy import stats

from isomargin.core.errors import InputError
from isomargin.figures import style
from isomargin.figures.embeddings_2d import circle_classes, embeddings_2d, grid_angles, spread_out
from isomargin.io.embedding_set import EmbeddingSet


def on_circle(angles, labels, lengths=None):
    """Embeddings at these angles, of any lengths."""
    lengths = np.ones(len(angles)) if lengths is None else lengths
    return EmbeddingSet(np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], axis=1), labels)


def some_classes(count=4, seed=0, images=300):
    """Classes around the circle, one of them across the ray at which angles begin again."""
    generator = np.random.default_rng(seed)
    labels = np.repeat([f"class {number}" for number in range(count)], images)
    centres = np.repeat(np.pi + 2 * np.pi * np.arange(count) / count, images)
    angles = centres + generator.normal(size=len(labels)) * np.repeat(generator.uniform(0.05, 0.4, count), images)
    return on_circle(angles, labels, generator.uniform(0.1, 9, len(labels))), angles


def test_directions_and_spreads_are_those_of_the_definition_whatever_the_lengths():
    embeddings, angles = some_classes()
    for label, found in circle_classes(embeddings).items():
        own = angles[embeddings.labels == label]
        expected = stats.circmean(own, high=np.pi, low=-np.pi)
        assert math.remainder(found.direction - expected, 2 * np.pi) == pytest.approx(0, abs=1e-9)
        apart = [math.dist((math.cos(a), math.sin(a)), (math.cos(expected), math.sin(expected))) for a in own]
        assert found.spread == pytest.approx(np.sqrt(np.mean(np.square(apart))), rel=1e-9)
        assert found.length == pytest.approx(math.hypot(np.cos(own).mean(), np.sin(own).mean()))


def test_a_density_is_a_kernel_estimate_around_the_circle():
    embeddings, angles = some_classes()
    for label, found in circle_classes(embeddings).items():
        own = angles[embeddings.labels == label]
        unwrapped = found.direction + np.array([math.remainder(a - found.direction, 2 * np.pi) for a in own])
        quartiles = np.quantile(unwrapped, (0.25, 0.75))
        bandwidth = 0.9 * min(unwrapped.std(), np.ptp(quartiles) / 1.34) * len(own) ** -0.2
        # scipy's estimate knows of no circle, so the embeddings are laid beside themselves on either side.
        rolled = np.concatenate([unwrapped + turn * 2 * np.pi for turn in (-1, 0, 1)])
        expected = 3 * stats.gaussian_kde(rolled, bandwidth / rolled.std(ddof=1))(grid_angles())
        np.testing.assert_allclose(found.density, expected, atol=0.01 * expected.max())
        assert found.density.sum() * 2 * np.pi / len(found.density) == pytest.approx(1)


def test_one_embedding_or_equal_ones_have_no_spread_and_opposite_ones_the_most():
    found = circle_classes(on_circle(np.array([1, 2, 2, 0, np.pi]), ["one", "same", "same", "far", "far"]))
    assert found["one"].spread == pytest.approx(0, abs=1e-7)
    assert found["same"].spread == pytest.approx(0, abs=1e-7)
    assert found["far"].spread == pytest.approx(math.sqrt(2))
    assert all(np.isfinite(each.density).all() and each.density.max() > 0 for each in found.values())


def drawn_line(axis, colour, width):
    """The points (n, 2) of the line of that colour and width."""
    (line,) = [each for each in axis.lines if each.get_color() == colour and each.get_linewidth() == width]
    return np.stack(line.get_data(), axis=1)


def test_the_panel_shows_each_class_with_its_arrow_bar_density_and_spread():
    embeddings, angles = some_classes()
    axis = embeddings_2d({"mine": embeddings}).axes[0]
    texts = {text.get_text() for text in axis.texts if text.get_text()}
    arrows = {each.arrow_patch.get_edgecolor(): each.xy for each in axis.texts if not each.get_text()}
    areas = {patch.get_facecolor()[:3]: patch.get_xy() for patch in axis.patches}
    highest = []
    for number, label in enumerate(np.unique(embeddings.labels)):
        own = angles[embeddings.labels == label]
        colour = style.look(number)["color"]
        mean = np.array([np.cos(own).mean(), np.sin(own).mean()])
        spread = math.sqrt(2 - 2 * math.hypot(*mean))
        assert f"{label}\n{spread:.3f}" in texts
        np.testing.assert_allclose(arrows[to_rgba(colour)], mean, atol=1e-9)
        bar = drawn_line(axis, colour, 2.4)
        unit = bar / np.linalg.norm(bar, axis=1, keepdims=True)
        ends = np.linalg.norm(unit[[0, -1]] - mean / math.hypot(*mean), axis=1)
        np.testing.assert_allclose(ends, spread, atol=1e-9)
        radii = np.linalg.norm(areas[to_rgba(colour)[:3]], axis=1)
        assert radii.min() == pytest.approx(1)
        peak = areas[to_rgba(colour)[:3]][radii.argmax()]
        assert math.dist(peak / radii.max(), mean / math.hypot(*mean)) < spread
        highest.append((radii.max() - 1) * spread)
    # A normal density is the higher the narrower it is.
    np.testing.assert_allclose(highest, np.mean(highest), rtol=0.25)


def test_the_title_has_the_mean_spread_and_the_distance_of_the_nearest_classes():
    angles = np.array([3.0, 3.1, -3.0, -2.9, 0.0, 0.2])
    spread = math.sqrt(2 - 2 * math.cos(0.1)), math.sqrt(2 - 2 * math.cos(0.05))
    mean = (spread[1] * 2 + spread[0]) / 3
    gap = 2 * math.sin((2 * math.pi - 2.95 - 3.05) / 2)
    axis = embeddings_2d({"mine": on_circle(angles, [1, 1, 2, 2, 3, 3])}).axes[0]
    assert axis.get_title(loc="left") == f"mine\nmean spread {mean:.3f}, nearest classes {gap:.3f} apart"
    alone = embeddings_2d({"mine": on_circle(angles[:2], [1, 1])}).axes[0]
    assert alone.get_title(loc="left") == f"mine\nmean spread {spread[1]:.3f}"


def test_a_class_has_its_colour_in_all_panels_and_densities_one_scale():
    wide, _ = some_classes(seed=0)
    narrow = on_circle(np.repeat([0.0, 2.0], 50) + np.tile(np.linspace(-0.01, 0.01, 50), 2), ["class 1", "x"] * 50)
    narrow = EmbeddingSet(narrow.vectors, np.repeat(["class 1", "x"], 50))
    figure = embeddings_2d({"wide": wide, "narrow": narrow})
    assert len(figure.axes) == 2
    tops = [max(np.linalg.norm(patch.get_xy(), axis=1).max() for patch in axis.patches) for axis in figure.axes]
    assert tops[0] < 1.2 < tops[1]
    colours = [[patch.get_facecolor()[:3] for patch in axis.patches] for axis in figure.axes]
    assert to_rgba(style.look(1)["color"])[:3] in colours[0]
    assert to_rgba(style.look(1)["color"])[:3] in colours[1]
    assert to_rgba(style.look(4)["color"])[:3] in colours[1]


def test_names_are_pushed_apart_until_there_is_room_between_them():
    generator = np.random.default_rng(0)
    for count in (2, 5, 10, 20):
        angles = np.sort(generator.normal(3.0, 0.1, count))
        places = np.array(spread_out(angles.tolist(), 0.3))
        gaps = np.diff(places, append=places[0] + 2 * np.pi)
        assert gaps.min() > 0.3 - 1e-3
    assert spread_out([0.0, 1.0], 0.3) == [0.0, 1.0]
    assert min(np.diff(spread_out([0.1 * number for number in range(40)], 1.0))) > 0.1


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64, torch.bfloat16])
def test_any_numbers_and_labels_are_drawn(kind):
    vectors = 10 * some_classes()[0].vectors
    vectors = torch.tensor(vectors).to(kind) if isinstance(kind, torch.dtype) else vectors.astype(kind)
    embeddings_2d({"mine": EmbeddingSet(vectors[::7] + 1, np.arange(len(vectors))[::7] % 3)})


def test_hostile_names_are_drawn_without_a_warning(tmp_path):
    names = ["$x_", "<b>", "\x1b[2J", "y" * 300, "汉字", "🙂", "_a"]
    embeddings = on_circle(np.arange(14.0), np.repeat(names, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        style.save(embeddings_2d({"$": embeddings}), tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000


def test_what_cannot_be_drawn_is_told_in_a_sentence():
    good, _ = some_classes()
    with pytest.raises(InputError, match=r"b\\x1b has embeddings of 3 dimensions: this figure shows those of 2"):
        embeddings_2d({"a": good, "b\x1b": EmbeddingSet(np.eye(3), [1, 1, 2])})
    with pytest.raises(InputError, match="there are 21 classes: there is room for 20"):
        embeddings_2d({"a": on_circle(np.arange(21.0), range(21))})
    with pytest.raises(InputError, match="a: rows 1 of embeddings are zero vectors"):
        embeddings_2d({"a": EmbeddingSet(np.array([[1.0, 0.0], [0.0, 0.0]]), [1, 1])})
    with pytest.raises(InputError, match=re.escape("embeddings is a EmbeddingSet: sets of embeddings by name")):
        embeddings_2d(good)
    with pytest.raises(InputError, match="at least one set"):
        embeddings_2d({})


def test_labels_of_two_kinds_stand_side_by_side():
    one, other = on_circle(np.array([0.0, 1.0]), [1, 2]), on_circle(np.array([0.0, 1.0]), ["1", "b"])
    figure = embeddings_2d({"numbers": one, "words": other})
    assert len(figure.axes[1].patches) == 2
