"""The scores of an evaluation as plain numbers, for loggers, and as JSON values, for files and ``--json``."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isomargin.core.json_values import null_for_nan
from isomargin.measure.pairs.axis import L2, ScoreAxis
from isomargin.measure.scores.consistency import ThresholdSpread
from isomargin.measure.scores.registry import scores_of

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.identification import IdentificationPoint

INTEGERS = ("classes", "items", "positive_pairs", "negative_pairs")


def scalars(evaluation: "Evaluation") -> dict[str, float]:
    """Return every score and size as a flat dictionary of floats; NaN for unknown scores."""
    low, high = evaluation.calibration_range
    axis, target, eer = evaluation.axis, evaluation.target.distance, evaluation.eer_distance
    sizes = {
        "classes": evaluation.class_count,
        "items": evaluation.items,
        "positive_pairs": evaluation.positive_pairs,
        "negative_pairs": evaluation.negative_pairs,
    }
    scores = {name: score.read(evaluation) for name, score in scores_of(evaluation).items()}
    if axis.has_similarities:
        distances = {"d_min": low, "d_max": high, "target_distance": target, "eer_distance": eer}
    else:
        distances = {"target_score": axis.shown(target), "eer_score": axis.shown(eer)}
    return {name: float(value) for name, value in {**sizes, **scores, **distances}.items()}


def as_json(evaluation: "Evaluation") -> dict[str, Any]:
    """Return the scores as JSON values: `scalars`, and scores of more than one number."""
    plain = {
        name: int(value) if name in INTEGERS else null_for_nan(value) for name, value in scalars(evaluation).items()
    }
    axis, point = evaluation.axis, evaluation.target
    target = {"distance" if axis.has_similarities else "score": axis.shown(point.distance)}
    values = {
        **plain,
        "calibration_range": [axis.shown(end) for end in evaluation.calibration_range],
        "target": {**target, "far": point.far, "frr": point.frr},
    }
    if evaluation.trials is None:
        values["recall_at_k"] = {str(k): value for k, value in evaluation.recall_at_k.items()}
    if evaluation.identification is not None:
        values["identification"] = identification_values(evaluation)
    if not evaluation.has_curves:
        return values
    return {
        **values,
        "printed_opis": evaluation.printed_opis,
        "class_thresholds": {
            "far": spread_values(evaluation.far_threshold_spread, axis),
            "frr": spread_values(evaluation.frr_threshold_spread, axis),
        },
        "within_two": {"far": evaluation.far_within_two.as_values(), "frr": evaluation.frr_within_two.as_values()},
    }


def identification_values(evaluation: "Evaluation") -> dict[str, Any]:
    """Return the sizes of a gallery, and its thresholds for the target FPIR."""
    gallery = evaluation.gallery
    return {
        "template": gallery.template,
        "enrolled": int(gallery.enrolled.sum()),
        "known_probes": gallery.known,
        "unknown_probes": gallery.unknown,
        "target": point_values(evaluation.fpir_target),
        "margin_target": point_values(evaluation.fpir_margin_target),
    }


def point_values(point: "IdentificationPoint | None") -> dict[str, float] | None:
    """Return a threshold or margin and its rates."""
    if point is None:
        return None
    names = ("distance", "margin", "fpir", "fnir", "misidentified")
    return {name: float(getattr(point, name)) for name in names}


def spread_values(spread: ThresholdSpread, axis: ScoreAxis = L2) -> dict[str, Any]:
    """Return a spread as JSON values; the quantiles of the thresholds as they are shown, strictest first."""
    shown = {q: axis.shown(distance) for q, distance in spread.quantiles.items()}
    return {
        name: {str(q): v for q, v in value.items()} if isinstance(value, dict) else value
        for name, value in {**asdict(spread), "quantiles": shown}.items()
    }
