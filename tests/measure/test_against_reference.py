"""Every score against the definitional reference, which shares no code with the package."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import assert_classes_agree, assert_scores_agree, clusters, mean_class_errors
from isomargin.data.glyphs import load_glyphs
from isomargin.measure import evaluate as evaluate_module
from isomargin.measure.pairs import exact
from reference import reference

K = (1, 2, 4, 8)
EXACT = 1e-9
BINNED = 3e-4  # what half a pair is of the 2,000 that the target FAR accepts of a thousand images' pairs
OMNIGLOT = Path(__file__).parents[3] / "shared" / "data" / "omniglot28.npz"


def check(rows, labels, **choices):
    """Compare the exact count and the one for large sets, whatever the size, with the reference; give the latter."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", UserWarning)
        precise = im.evaluate(rows, labels, k=K, exact=True, **choices)
        patch.setattr(evaluate_module, "SMALL", 0)
        found = im.evaluate(rows, labels, k=K, **choices)
    if "mean_curve" in choices:
        choices["mean"] = choices.pop("mean_curve")
    expected = reference(rows, labels, k=K, **choices)
    assert precise.method == "exact"
    assert_scores_agree(precise, expected, EXACT)
    assert_classes_agree(precise, expected, EXACT)
    assert_scores_agree(found, expected, BINNED if found.method == "binned" else EXACT)
    if found.method == "binned":
        # One class's rate moves by a whole pair where that pair lies within a bin of the threshold, and of a small
        # class's few pairs that is more than 1e-4: not each class's values are held to it, but their mean error is.
        errors = mean_class_errors(found, expected)
        assert max(errors.values()) < 1e-4, errors
    return found


def test_rendered_letters():
    test = load_glyphs("test", draws=1)
    some = test.labels < 80
    pixels = test.images[some].reshape(some.sum(), -1).astype(np.float32)
    components = np.linalg.eigh(np.cov(pixels.T))[1][:, -64:]
    rows = ((pixels - pixels.mean(axis=0)) @ components).astype(np.float32)
    assert check(rows, np.array(test.class_names)[test.labels[some]]).method == "binned"


@pytest.mark.skipif(not OMNIGLOT.exists(), reason=f"Omniglot is not at {OMNIGLOT.name} in shared/data")
def test_omniglot_pixels():
    with np.load(OMNIGLOT) as file:
        testing = np.flatnonzero(~file["background"])[:60]
        which = np.isin(file["label"], testing)
        images, labels = file["images"][which], file["class_name"][file["label"][which]]
    pixels = images.reshape(len(images), -1).astype(np.float32)
    assert check(pixels - pixels.mean(axis=0), labels).method == "binned"


@pytest.mark.parametrize(
    ("images", "classes", "singles"),
    [(1300, 2, 0), (900, 17, 5), (1000, 60, 40), (1500, 600, 100)],
)
def test_generated_sets_of_two_to_hundreds_of_classes(images, classes, singles):
    rows, labels = clusters(images, classes, singles=singles, noise=1.2 if classes < 20 else 0.7)
    assert check(rows, labels).method == "binned"


@pytest.mark.parametrize(("images", "classes", "singles"), [(12, 3, 1), (60, 5, 0)])
def test_tiny_sets(images, classes, singles):
    rows, labels = clusters(images, classes, dimensions=8, singles=singles)
    few = {"far": (0.1, 0.5), "target_far": 0.1} if images < 20 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = im.evaluate(rows, labels, k=K, **few)
    expected = reference(rows, labels, k=K, **few)
    assert_scores_agree(found, expected, EXACT)
    assert_classes_agree(found, expected, EXACT)


def test_up_to_a_number_of_pairs_sets_are_counted_exactly(monkeypatch):
    monkeypatch.setattr(evaluate_module, "SMALL", 1000)
    rows, labels = clusters(46, 4, dimensions=8)
    assert im.evaluate(rows[:45], labels[:45]).method == "exact"  # 990 pairs
    assert im.evaluate(rows, labels).method == "binned"  # 1,035


@pytest.mark.parametrize("kept", [0, 1 << 25])
@pytest.mark.parametrize("rows_at_once", [5, 40])
def test_classes_in_groups_give_the_exact_scores_whether_distances_are_kept_or_not(rows_at_once, kept, monkeypatch):
    rows, labels = clusters(400, 30, singles=4)
    monkeypatch.setattr(exact, "GROUP_BYTES", 8 * len(rows) * rows_at_once)
    monkeypatch.setattr(exact, "KEPT_DISTANCES", kept)
    with pytest.warns(UserWarning, match="single item"):
        found = im.evaluate(rows, labels, k=K)
    expected = reference(rows, labels, k=K)
    assert_scores_agree(found, expected, EXACT)
    assert_classes_agree(found, expected, EXACT)


def test_duplicates_inside_and_across_classes():
    rows, labels = clusters(1200, 60)
    rows[:100], labels[:50] = rows[100:200], labels[100:150]
    assert check(rows, labels).method == "binned"


def test_distances_that_repeat_are_counted_exactly_whatever_the_size():
    generator = np.random.default_rng(1)
    rows = generator.integers(-1, 2, (900, 6)).astype(np.float64)
    rows[(rows == 0).all(axis=1)] = 1
    labels = generator.integers(0, 20, 900)
    assert check(rows, labels).method == "exact"


def test_binary_codes_have_exact_ties():
    generator = np.random.default_rng(2)
    centres = generator.choice([-1.0, 1.0], (30, 16))
    labels = generator.integers(0, 30, 600)
    rows = centres[labels] * np.where(generator.random((600, 16)) < 0.15, -1, 1)
    check(rows, labels)


@pytest.mark.parametrize(
    "choices",
    [
        {"far": (1e-3, 5e-2)},
        {"frr": 0.5, "far": (1e-2, 3e-1)},
        {"distances": (0.9, 1.3)},
        {"grid": 11},
        {"epsilon": 0.25},
        {"epsilon": 1.0},
        {"c": 2.0},
        {"utility": "precision_recall"},
        {"utility": "precision_recall", "mean_curve": "pooled", "c": 0.5},
        {"mean_curve": "pooled", "c": 2.0},
        {"epsilon_form": "printed"},
        {"target_far": 0.05, "target_frr": 0.2},
    ],
    ids=str,
)
def test_every_setting_on_both_paths(choices):
    assert check(*clusters(800, 40, singles=10), **choices).method == "binned"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(3, 6), st.integers(1, 4), st.booleans())
def test_any_small_set_agrees_with_the_reference(seed, classes, dimensions, levels, lattice):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 9, classes)
    sizes[0] = max(sizes[0], 2)
    labels = generator.permutation(np.repeat(np.arange(classes), sizes))
    rows = generator.normal(size=(len(labels), dimensions))
    if lattice:
        rows = generator.integers(-levels, levels + 1, rows.shape).astype(np.float64)
        rows[(rows == 0).all(axis=1), 0] = 1
    negatives = (len(labels) ** 2 - (sizes**2).sum()) // 2
    choices = {"far": (max(0.05, 1 / negatives), 0.97), "target_far": max(0.2, 1 / negatives), "grid": 13}
    # Rounding similarities to 11 decimals moves a distance of 0.01 by 5e-10: only repeated ones are rounded so.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reference.SIMILARITY_DECIMALS", 11 if lattice else 14)
        expected = reference(rows, labels, k=K, **choices)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if expected.calibration_range[0] == expected.calibration_range[1]:
            with pytest.raises(im.InputError, match="calibration range is empty"):
                im.evaluate(rows, labels, k=K, **choices)
            return
        found = im.evaluate(rows, labels, k=K, **choices)
    # Of a pair that is as far as a threshold within the range, to all digits, rounding decides whether it is accepted.
    thresholds = np.linspace(*expected.calibration_range, 13)[1:-1]
    normalised = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distances = np.sqrt(np.maximum(2 - 2 * normalised @ normalised.T, 0))
    assume(np.abs(distances[:, :, None] - thresholds).min() > 1e-9)
    assert_scores_agree(found, expected, EXACT)
    assert_classes_agree(found, expected, EXACT)
