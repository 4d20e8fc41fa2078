"""The data of the report: one or several evaluations as JSON values. The files in `page/` decide how they look."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

import isomargin
from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.measure.comparison import MUST_AGREE, Comparison, compare
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.scores.curves import first_rate
from isomargin.measure.scores.registry import find_score
from isomargin.measure.scores.utility import utility
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import note_on_few_classes
from isomargin.report.examples import ClassExamples
from isomargin.report.gallery_values import gallery_values
from isomargin.report.headline import headline, target_point
from isomargin.report.packing import pack_increments
from isomargin.report.slider_stops import ThresholdStops, threshold_stops

# Scores that the report names.
SHOWN = ("recall@1", "fnir", "misidentified", "opis", "debiased_opis", "epsilon_opis", "far_within_two", "frr", "eer")
SIZES = ("items", "enrolled", "probes")  # columns of the table of classes that say how large a class is
HISTOGRAM = 120  # bins of the distance distributions
SAME_RATE = 1e-4  # two thresholds whose rates differ by at most this count as the same
Examples = Mapping[int | str, ClassExamples]


def contents(
    evaluations: Mapping[str, Evaluation],
    intervals: bool = True,
    examples: Mapping[str, Examples] | None = None,
    draws: int = 1000,
) -> dict[str, Any]:
    """Return everything that the report shows, as JSON values."""
    comparison, hindrance = compared(evaluations, draws) if intervals else (None, None)
    alike = measured_alike(evaluations)
    runs = [
        run_values(name, evaluation, intervals, (examples or {}).get(name), draws)
        for name, evaluation in evaluations.items()
    ]
    return {
        "version": isomargin.__version__,
        "headline": headline(evaluations, comparison),
        "runs": runs,
        "comparison": None if comparison is None else comparison_values(comparison),
        "alike": alike,
        "scores": score_values(evaluations),
        "notes": [] if hindrance is None else [hindrance],
    }


def compared(evaluations: Mapping[str, Evaluation], draws: int) -> tuple[Comparison | None, str | None]:
    """Compare the runs, or say why their differences have no confidence intervals."""
    if len(evaluations) < 2:
        return None, None
    try:
        return compare(evaluations, draws=draws), None
    except InputError as error:
        missing = (
            "The differences have no confidence intervals"
            if measured_alike(evaluations)
            else "There are no differences"
        )
        return None, f"{missing}: {error}."


def measured_alike(evaluations: Mapping[str, Evaluation]) -> bool:
    """Whether all runs were evaluated with the same settings: otherwise their scores cannot be compared."""
    first, *others = (evaluation.settings for evaluation in evaluations.values())
    return all(getattr(first, name) == getattr(other, name) for other in others for name in MUST_AGREE)


def score_values(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, Any]]:
    """Return the title, meaning, direction and number format of each score on the tiles."""
    all_settings = [evaluation.settings for evaluation in evaluations.values()]
    comparisons = {evaluation.comparison for evaluation in evaluations.values()}
    return {
        score.name: {
            "title": ", ".join(dict.fromkeys(score.title_for(settings) for settings in all_settings)),
            "meaning": score.meaning,
            "direction": score.direction,
            "rate": score.unit == "rate",
            "relative": score.relative,
        }
        for score in map(find_score, SHOWN)
        if comparisons <= set(score.comparisons)
    }


def comparison_values(comparison: Comparison) -> list[dict[str, Any]]:
    """Return, for every run except the first, the difference of each score from the first run."""
    return [
        {
            row.score: {
                "difference": asdict(row.difference),
                "change": None if row.change is None else asdict(row.change),
                "certain": row.certain,
                "better": row.better,
            }
            for row in rows
        }
        for rows in comparison.others.values()
    ]


def run_values(
    name: str, evaluation: Evaluation, intervals: bool, examples: Examples | None, draws: int
) -> dict[str, Any]:
    """Return one run as JSON values."""
    stops, point = threshold_stops(evaluation), target_point(evaluation)
    bounds = evaluation.intervals(draws=draws) if intervals and evaluation.class_count > 1 else {}
    if abs(point.frr - evaluation.target.frr) > SAME_RATE:
        bounds.pop("frr", None)  # it belongs to another threshold
    notes = [*evaluation.all_notes, *(note_on_few_classes(evaluation) if bounds else ())]
    labels = [str(label) for label in evaluation.names.tolist()]
    shown = [printable(label) for label in labels]
    settings = evaluation.settings
    return {
        "name": printable(name),
        "scores": evaluation.scores(),
        "target": {"distance": point.distance, "far": point.far, "frr": point.frr},
        "intervals": {score: [bound.low, bound.high, bound.confidence] for score, bound in bounds.items()},
        "notes": notes,
        "settings": {
            "c": settings.c,
            "utility": settings.utility,
            "epsilon": settings.epsilon,
            "target_far": settings.target_far,
            "target_fpir": settings.target_fpir,
            "mean_curve": settings.mean_curve,
            "pairs": settings.pairs,
        },
        "names": shown,
        # Only where they differ: the exported table has the labels unchanged.
        "labels": {index: label for index, label in enumerate(labels) if label != shown[index]},
        "columns": columns(evaluation),
        "thresholds": stops.distances.tolist(),
        "axis": [evaluation.axis.lowest, evaluation.axis.highest],
        "similarity_name": evaluation.axis.similarity_name,
        "presets": [[far, stop] for far, stop in sorted(stops.presets.items())],
        "equal_error": int(np.argmin(np.abs(stops.distances - evaluation.eer_distance))),
        "positives": pack_increments(stops.positives),
        "negatives": pack_increments(stops.negatives),
        "summary": summary(evaluation, stops),
        "distribution": distribution(evaluation, stops),
        "examples": example_values(evaluation, examples or {}),
        "gallery": gallery_values(evaluation, stops),
    }


def columns(evaluation: Evaluation) -> dict[str, list[float | int | None]]:
    """Return the columns of the table of classes that do not depend on the threshold."""
    table = evaluation.per_class
    opis = evaluation.opis
    values = {
        **{name: table[name] for name in SIZES if name in table},
        "positive_pairs": table["positive_pairs"],
        "negative_pairs": table["negative_pairs"],
        "own_threshold": table["far_threshold"],
        "mean_utility": table["mean_utility"],
        "opis_share": table["opis_contribution"] / opis if opis > 0 else table["opis_contribution"],
        "eer": table["eer"],
    }
    values |= {column: table[column] for column in [c for c in table.columns if c.startswith("recall@")][:1]}
    return {name: [rounded(value) for value in column.tolist()] for name, column in values.items()}


def summary(evaluation: Evaluation, stops: ThresholdStops) -> dict[str, list[float]]:
    """Return the curve that OPIS measures deviations from, and the 5th and 95th percentile over classes."""
    settings = evaluation.settings
    positives, negatives = evaluation.counts.positives.totals, evaluation.counts.negatives.totals
    usable = evaluation.with_curve[negatives[evaluation.with_curve] > 0]
    curves = utility_of_counts(
        stops.positives[usable], stops.negatives[usable], positives[usable, None], negatives[usable, None], settings
    )
    mean = curves.mean(axis=0)
    if settings.mean_curve == "pooled":
        # A negative pair is counted in both of its classes; precision needs it once.
        appearances = evaluation.counts.negatives.appearances
        pooled = (stops.positives.sum(axis=0), stops.negatives.sum(axis=0) / appearances)
        mean = utility_of_counts(*pooled, positives.sum(), negatives.sum() / appearances, settings)
    low, high = np.quantile(curves, (0.05, 0.95), axis=0)
    return {
        name: [rounded(value) or 0.0 for value in curve.tolist()]
        for name, curve in {"mean": mean, "low": low, "high": high}.items()
    }


def utility_of_counts(
    accepted_positives: Any, accepted_negatives: Any, positives: Any, negatives: Any, settings: Settings
) -> Floats:
    """Return the utility from the numbers of accepted pairs and of all pairs of both kinds."""
    first = first_rate(settings.utility, accepted_positives, accepted_negatives, negatives)
    return utility(first, accepted_positives / positives, settings.c)


def rounded(value: float | int) -> float | int | None:
    """Round to seven significant digits; keep integers as they are, and return None for NaN."""
    if isinstance(value, int):
        return value
    return None if np.isnan(value) else float(f"{value:.7g}")


def distribution(evaluation: Evaluation, stops: ThresholdStops) -> dict[str, list[float]]:
    """Return the shares of positive and of negative pairs in equal bins of distance."""
    positives, negatives = evaluation.counts.positives, evaluation.counts.negatives
    farthest = max(pairs.pooled_distance_at(pairs.pooled_total) for pairs in (positives, negatives))
    nearest = min(pairs.pooled_distance_at(1) for pairs in (positives, negatives))
    high = min(1.0001 * farthest, evaluation.axis.highest)
    low = min(0.0, nearest, float(stops.distances[0]))
    edges = np.linspace(low, max(high, float(stops.distances[-1])), HISTOGRAM + 1)
    shares = {}
    for kind, pairs in (("positive", positives), ("negative", negatives)):
        within = pairs.pooled_within(edges) / pairs.pooled_total
        shares[kind] = [rounded(share) or 0.0 for share in np.diff(within).tolist()]
        shares[kind][0] += float(within[0])
    return {"edges": edges.tolist(), **shares}


def example_values(evaluation: Evaluation, examples: Examples) -> dict[int, Any]:
    """Return confusions and thumbnails by the index of the class."""
    places = {name: index for index, name in enumerate(evaluation.names.tolist())}
    for name in examples:
        if name not in places:
            raise InputError(f"examples has a class {name!r} that was not evaluated: use classes of the evaluation")
    return {
        places[name]: {
            "confusions": [
                {**asdict(confusion), "name": printable(str(confusion.name))} for confusion in shown.confusions
            ],
            "thumbnails": list(shown.thumbnails),
        }
        for name, shown in examples.items()
    }
