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
from reference import reference

K = (1, 2, 4, 8)
DEFAULT = 1e-4
EXACT = 1e-9
OMNIGLOT = Path(__file__).parents[3] / "shared" / "data" / "omniglot28.npz"


def check(rows, labels, *, default=DEFAULT, exact=True, **choices):
    """Hold the default and the exact count against the reference; give the default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = im.evaluate(rows, labels, k=K, **choices)
        precise = im.evaluate(rows, labels, k=K, exact=True, **choices) if exact else None
    if "mean_curve" in choices:
        choices["mean"] = choices.pop("mean_curve")
    expected = reference(rows, labels, k=K, **choices)
    assert_scores_agree(found, expected, default)
    if precise is not None:
        assert precise.method == "exact"
        assert_scores_agree(precise, expected, EXACT)
        assert_classes_agree(precise, expected, EXACT)
    if found.method == "binned":
        # One class's rate moves by a whole pair where that pair lies within a bin of the threshold, and of a small
        # class's few pairs that is more than 1e-4: not each class's values are held to it, but their mean error is.
        errors = mean_class_errors(found, expected)
        assert max(errors.values()) < DEFAULT, errors
    return found


def test_rendered_letters():
    test = load_glyphs("test", draws=2)
    pixels = test.images.reshape(len(test.images), -1).astype(np.float32)
    components = np.linalg.eigh(np.cov(pixels.T))[1][:, -64:]
    rows = ((pixels - pixels.mean(axis=0)) @ components).astype(np.float32)
    assert check(rows, np.array(test.class_names)[test.labels]).method == "binned"


@pytest.mark.skipif(not OMNIGLOT.exists(), reason=f"Omniglot is not at {OMNIGLOT.name} in shared/data")
def test_omniglot_pixels():
    with np.load(OMNIGLOT) as file:
        testing = np.flatnonzero(~file["background"])[:300]
        which = np.isin(file["label"], testing)
        images, labels = file["images"][which], file["class_name"][file["label"][which]]
    pixels = images.reshape(len(images), -1).astype(np.float32)
    assert check(pixels - pixels.mean(axis=0), labels).method == "binned"


@pytest.mark.parametrize(
    ("images", "classes", "singles"),
    [(4300, 2, 0), (4500, 17, 5), (5000, 150, 100), (7000, 3000, 300)],
)
def test_generated_sets_of_two_to_three_thousand_classes(images, classes, singles):
    rows, labels = clusters(images, classes, singles=singles, noise=1.2 if classes < 20 else 0.7)
    assert check(rows, labels, exact=classes < 3000).method == "binned"


@pytest.mark.parametrize(("images", "classes", "singles"), [(12, 3, 1), (60, 5, 0), (700, 40, 13), (2500, 100, 0)])
def test_small_sets_are_counted_exactly_by_default(images, classes, singles):
    rows, labels = clusters(images, classes, dimensions=8, singles=singles)
    few = {"far": (0.1, 0.5), "target_far": 0.1} if images < 20 else {}
    assert check(rows, labels, default=EXACT, **few).method == "exact"


def test_duplicates_inside_and_across_classes():
    rows, labels = clusters(4800, 120)
    rows[:300], labels[:150] = rows[300:600], labels[300:450]
    assert check(rows, labels).method == "binned"


@pytest.mark.parametrize(("images", "classes"), [(900, 20), (4600, 100)])
def test_distances_that_repeat_are_counted_exactly_whatever_the_size(images, classes):
    generator = np.random.default_rng(1)
    rows = generator.integers(-1, 2, (images, 6)).astype(np.float64)
    rows[(rows == 0).all(axis=1)] = 1
    labels = generator.integers(0, classes, images)
    assert check(rows, labels, default=EXACT, exact=False).method == "exact"


def test_binary_codes_have_exact_ties():
    generator = np.random.default_rng(2)
    centres = generator.choice([-1.0, 1.0], (30, 16))
    labels = generator.integers(0, 30, 600)
    rows = centres[labels] * np.where(generator.random((600, 16)) < 0.15, -1, 1)
    check(rows, labels, default=EXACT)


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
        {"mean_curve": "pooled"},
        {"epsilon_form": "printed"},
        {"target_far": 0.05, "target_frr": 0.2},
    ],
    ids=str,
)
def test_every_setting_on_both_paths(choices, monkeypatch):
    rows, labels = clusters(1500, 60, singles=10)
    check(rows, labels, default=EXACT, **choices)
    monkeypatch.setattr(evaluate_module, "SMALL", 0)
    assert check(rows, labels, default=5e-4, exact=False, **choices).method == "binned"


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
