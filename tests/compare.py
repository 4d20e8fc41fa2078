"""Holding an Evaluation against the definitional reference, score by score, with one tolerance."""

from types import SimpleNamespace
from typing import Any

import numpy as np

import isomargin as im

CLASS_COLUMNS = {
    "far": "class_far_at_target",
    "frr": "class_frr_at_target",
    "far_threshold": "class_far_distance",
    "frr_threshold": "class_frr_distance",
    "eer": "class_eer",
    "auc": "class_auc",
    "opis_contribution": "opis_contribution",
    "mean_utility": "class_mean_utility",
    "r_precision": "class_r_precision",
    "map_at_r": "class_map_at_r",
    "positive_pairs": "class_positive_pairs",
    "negative_pairs": "class_negative_pairs",
}
CURVES = {
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "precision": "precision",
    "utility": "utility",
    "mean_utility": "mean_curve",
    "pooled_far": "far",
    "pooled_frr": "frr",
}


def scores_of(evaluation: im.Evaluation) -> dict[str, Any]:
    spreads = {"far": evaluation.far_threshold_spread, "frr": evaluation.frr_threshold_spread}
    return {
        "positive_pairs": evaluation.positive_pairs,
        "negative_pairs": evaluation.negative_pairs,
        "calibration_range": evaluation.calibration_range,
        "opis": evaluation.opis,
        "epsilon_opis": evaluation.epsilon_opis,
        "relative_opis": evaluation.relative_opis,
        "mean_utility": evaluation.mean_utility,
        "eer": evaluation.eer,
        "eer_distance": evaluation.eer_distance,
        "auc": evaluation.auc,
        "recall_at_k": list(evaluation.recall_at_k.values()),
        "r_precision": evaluation.r_precision,
        "map_at_r": evaluation.map_at_r,
        "target_distance": evaluation.target.distance,
        "far_at_target": evaluation.target.far,
        "frr_at_target": evaluation.target.frr,
        **{f"{name}_spread": spread.deviation for name, spread in spreads.items()},
        **{f"{name}_quantiles": list(spread.quantiles.values()) for name, spread in spreads.items()},
        **{f"{name}_relative_spread": spread.relative_deviation for name, spread in spreads.items()},
    }


def expected_scores(reference: SimpleNamespace) -> dict[str, Any]:
    spreads = {"far": reference.far_distance_spread, "frr": reference.frr_distance_spread}
    own = {
        **{f"{name}_spread": spread.std for name, spread in spreads.items()},
        **{f"{name}_quantiles": spread.quantiles for name, spread in spreads.items()},
        **{f"{name}_relative_spread": spread.relative_std for name, spread in spreads.items()},
        "recall_at_k": list(reference.recall_at_k.values()),
    }
    return own | {name: value for name, value in vars(reference).items() if name not in own}


def assert_scores_agree(evaluation: im.Evaluation, reference: SimpleNamespace, tolerance: float) -> None:
    """Every score of the whole set within this relative tolerance."""
    expected = expected_scores(reference)
    for name, value in scores_of(evaluation).items():
        # Rounding similarities, as both must to see ties, moves distances by 1e-11, and with them their spread.
        smallest = 2e-11 if "spread" in name else 1e-14
        np.testing.assert_allclose(value, expected[name], rtol=tolerance, atol=smallest, err_msg=name)
    assert_shares_agree(evaluation, reference, exact=tolerance <= 1e-9)


def assert_shares_agree(evaluation: im.Evaluation, reference: SimpleNamespace, exact: bool) -> None:
    """The classes near a target rate are the same ones, except those that pairs counted in bins leave undecided."""
    for name in ("far_within_two", "frr_within_two"):
        found, expected = getattr(evaluation, name), getattr(reference, name)
        assert (found.classes, found.left_out) == (expected.classes, expected.left_out), name
        undecided = 0.0 if exact or not expected.classes else expected.undecided
        np.testing.assert_allclose(found.share, expected.share, rtol=0, atol=undecided + 1e-12, err_msg=name)


def assert_classes_agree(evaluation: im.Evaluation, reference: SimpleNamespace, tolerance: float) -> None:
    """Every class's every value and curve within this relative tolerance."""
    np.testing.assert_array_equal(evaluation.names, reference.classes)
    np.testing.assert_array_equal(evaluation.curves.classes, reference.curve_index)
    for name, other in CLASS_COLUMNS.items():
        expected = getattr(reference, other)
        if name == "mean_utility" and len(expected) < len(evaluation.names):
            expected = np.full(len(evaluation.names), np.nan)
            expected[reference.curve_index] = reference.class_mean_utility
        actual = evaluation.per_class[name].to_numpy(np.float64)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-12, err_msg=name)
    for name, other in CURVES.items():
        actual = getattr(evaluation.curves, name)
        np.testing.assert_allclose(actual, getattr(reference, other), rtol=tolerance, atol=1e-12, err_msg=name)


def mean_class_errors(evaluation: im.Evaluation, reference: SimpleNamespace) -> dict[str, float]:
    """Mean over classes (and grid) of the absolute error of rates and distances; of contributions, relative to OPIS."""
    pairs: dict[str, Any] = {
        name: (evaluation.per_class[name], getattr(reference, other)) for name, other in CLASS_COLUMNS.items()
    }
    pairs |= {
        f"curve {name}": (getattr(evaluation.curves, name), getattr(reference, other)) for name, other in CURVES.items()
    }
    errors = {}
    for name, (actual, expected) in pairs.items():
        actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
        unit = reference.opis / len(reference.curve_index) if name == "opis_contribution" else 1.0
        errors[name] = float(np.nanmean(np.abs(actual - expected)) / unit)
    return errors


def clusters(
    images: int, classes: int, dimensions: int = 24, noise: float = 0.8, singles: int = 0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows around class centres, of unequal spread and number, in random order; some classes of one image."""
    generator = np.random.default_rng(seed)
    many = np.concatenate([np.arange(classes).repeat(2), generator.integers(0, classes, images - 2 * classes)])
    labels = np.concatenate([many, classes + np.arange(singles)])
    centres = generator.normal(size=(classes + singles, dimensions))
    spread = noise * (0.5 + generator.random((classes + singles, 1)))
    rows = centres[labels] + spread[labels] * generator.normal(size=(len(labels), dimensions))
    order = generator.permutation(len(labels))
    return rows[order], labels[order]
