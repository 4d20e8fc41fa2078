"""The headline of the report: what the threshold does to the classes of a run, or how runs differ."""

from collections.abc import Mapping

import numpy as np

from isomargin.core.text import percent, printable
from isomargin.measure.comparison import Comparison
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.operating_point import OperatingPoint
from isomargin.measure.scores.registry import find_score
from isomargin.report.slider_stops import resolved, resolved_fpir
from isomargin.thresholds.threshold_choice import class_utility

MOST = 3  # runs that fit into one line
NAMED = ("opis", "fnir", "frr", "recall@1")  # scores named in the headline


def target_point(evaluation: Evaluation) -> OperatingPoint:
    """Return the rates at the threshold that `isomargin threshold` chooses, whose FAR never exceeds the target.

    If no threshold has such a small FAR, it is the threshold of the evaluation, whose FAR exceeds the target.
    """
    distance = resolved(evaluation.counts, evaluation.settings.target_far)
    return evaluation.target if distance is None else evaluation.at(distance)


def opening_point(evaluation: Evaluation) -> OperatingPoint:
    """Return the rates at the threshold at which the report opens: for a gallery's target FPIR, else the target FAR."""
    distance = resolved_fpir(evaluation, evaluation.settings.target_fpir)
    return target_point(evaluation) if distance is None else evaluation.at(distance)


def headline(evaluations: Mapping[str, Evaluation], comparison: Comparison | None) -> str:
    """Summarize the runs in one line."""
    if comparison is not None:
        names = list(comparison.others)
        more = f" See below for {len(names) - MOST} more runs." if len(names) > MOST else ""
        return printable(" ".join(compared_with(comparison, name) for name in names[:MOST])) + more
    if len(evaluations) > 1:
        listed = list(evaluations.items())[: MOST + 1]
        return "; ".join(f"{printable(name)}: OPIS {evaluation.opis:.3g}" for name, evaluation in listed) + "."
    (evaluation,) = evaluations.values()
    return of_one(evaluation)


def of_one(evaluation: Evaluation) -> str:
    """Say how much the rates differ between classes at the target threshold, and which class is served worst."""
    point = opening_point(evaluation)
    far, frr = (rates[~np.isnan(rates)] for rates in (point.class_far, point.class_frr))
    ends = (0.05, 0.95) if min(len(far), len(frr)) >= 20 else (0.0, 1.0)
    classes = "most classes" if ends[0] > 0 else "the classes"
    (low_far, high_far), (low_frr, high_frr) = np.quantile(far, ends), np.quantile(frr, ends)
    worst = int(np.nanargmin(class_utility(evaluation.counts, evaluation.settings, point)))
    gallery = evaluation.identification
    if gallery is not None:
        found = gallery.at(point.distance)
        rate = f"an FPIR of {percent(found.fpir)}" if gallery.unknown else f"a FAR of {percent(point.far)}"
        return (
            f"At the threshold for {rate} (distance {point.distance:.4f}), {found.fnir:.2%} of the known probes are "
            f"missed ({found.misidentified:.2%} are identified as another class); {classes} accept {low_far:.2%} to "
            f"{high_far:.2%} of other probes and reject {low_frr:.2%} to {high_frr:.2%} of their own; "
            f"{printable(str(evaluation.names[worst]))} is served worst."
        )
    return (
        f"At the threshold for a FAR of {percent(point.far)} (distance {point.distance:.4f}), {classes} accept "
        f"{low_far:.2%} to {high_far:.2%} of their negative pairs and reject {low_frr:.2%} to {high_frr:.2%} of their "
        f"positive pairs; {printable(str(evaluation.names[worst]))} is served worst."
    )


def compared_with(comparison: Comparison, name: str) -> str:
    """Say how a run differs from the first run."""
    rows = {row.score: row for row in comparison.others[name] if row.score in NAMED}
    significant = [comparison.phrase(find_score(score).title, row) for score, row in rows.items() if row.certain]
    others = [find_score(score).title for score, row in rows.items() if not row.certain]
    if not significant:
        listed = " or ".join([", ".join(others[:-1]), others[-1]] if len(others) > 1 else others)
        return (
            f"{name} and {comparison.first} do not differ significantly in {listed} "
            f"({comparison.confidence:.0%} confidence intervals)."
        )
    rest = f"; no significant difference in {', '.join(others)}" if others else ""
    return f"{name} compared with {comparison.first}: {'; '.join(significant)}{rest}."
