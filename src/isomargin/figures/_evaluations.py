"""Shared by the figures of evaluations: checks that evaluations are comparable, and densities of distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.measure.settings import COMPARED

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.pairs.distances import ClassDistances

Floats = NDArray[np.float64]
BINS = 100  # bins of a density
OUTLIERS = 1e-4  # share of the pairs on either side that the axis may cut off
DECIDES_OPIS = ("far", "frr", "distances", "c", "utility", "mean_curve")


def check_evaluations(evaluations: Mapping[str, Evaluation]) -> None:
    """Refuse anything but a non-empty mapping of names to evaluations, which compare the same kind of pairs."""
    from isomargin.measure.evaluation import Evaluation

    if not isinstance(evaluations, Mapping) or not all(
        isinstance(evaluation, Evaluation) for evaluation in evaluations.values()
    ):
        kind = type(evaluations).__name__
        raise InputError(f"evaluations by name are needed, such as {{'mine': evaluation}}, and not {kind}")
    if not evaluations:
        raise InputError("there is no evaluation to draw: at least one is needed")
    for name, evaluation in evaluations.items():
        if evaluation.comparison == "trials":
            raise InputError(
                f"{printable(name)} compares {COMPARED['trials']}, which figures cannot show: give one of all pairs"
            )
    (first_name, first), *others = evaluations.items()
    for name, evaluation in others:
        if evaluation.comparison != first.comparison:
            raise InputError(
                f"{printable(first_name)} compares {COMPARED[first.comparison]} and {printable(name)} "
                f"{COMPARED[evaluation.comparison]}: draw a figure of each"
            )


def check_alike(evaluations: Mapping[str, Evaluation], settings: Sequence[str] = DECIDES_OPIS) -> None:
    """Refuse evaluations whose scores cannot be compared, because their settings differ."""
    (first_name, first), *others = evaluations.items()
    for name, evaluation in others:
        for setting in settings:
            expected, actual = getattr(first.settings, setting), getattr(evaluation.settings, setting)
            if expected != actual:
                raise InputError(
                    f"{printable(first_name)} was evaluated with {setting}={expected!r} and {printable(name)} with "
                    f"{setting}={actual!r}: evaluate both with the same settings to compare them"
                )


def distance_title(evaluations: Mapping[str, Evaluation]) -> str:
    """Return the title of an axis of distances: what the pairs are made of."""
    comparisons = {evaluation.comparison for evaluation in evaluations.values()}
    return f"distance between {'a probe and a template' if comparisons == {'gallery'} else 'two embeddings'}"


def shown_distances(evaluations: Mapping[str, Evaluation]) -> tuple[float, float]:
    """Return the ends of an axis that shows nearly all pairs of all evaluations."""
    low, high = 2.0, 0.0
    for evaluation in evaluations.values():
        for pairs in (evaluation.counts.positives, evaluation.counts.negatives):
            total = pairs.pooled_total
            low = min(low, pairs.pooled_distance_at(int(OUTLIERS * total)))
            high = max(high, pairs.pooled_distance_at(total - int(OUTLIERS * total)))
    return max(0.0, low - 0.02), min(2.0, high + 0.02)


def density(pairs: ClassDistances, edges: Floats, which: int | None = None) -> Floats:
    """(bins,) the density of the distances of all pairs, or of the pairs of one class.

    Pairs outside the edges are in no bin, but count in the total.
    """
    within = pairs.pooled_within(edges) if which is None else _one_class(pairs, which).within(edges)[0]
    total = pairs.pooled_total if which is None else int(pairs.totals[which])
    if edges[0] == 0:
        within = np.concatenate([[0.0], within[1:]])  # pairs at distance zero belong in the first bin
    return np.asarray(np.diff(within) / (max(total, 1) * np.diff(edges)))


def _one_class(pairs: ClassDistances, which: int) -> ClassDistances:
    """Return the distances of one class."""
    from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances

    if isinstance(pairs, BinnedDistances):
        return BinnedDistances(pairs.counts[which : which + 1], pairs.reach, 1, pairs.start, pairs.axis)
    distances = pairs.of_class(which)
    return ListedDistances(distances, np.array([0, len(distances)]), 1, pairs.axis)


def draw_densities(axis: Any, positives: Floats, negatives: Floats, edges: Floats) -> None:
    """Draw the densities of positive and negative pairs, which also differ in hatching."""
    from isomargin.figures import style

    kinds = (
        (positives, style.POSITIVE, "solid", "", "same class"),
        (negatives, style.NEGATIVE, style.DASHES[1], "/////", "different classes"),
    )
    for heights, colour, dashes, hatch, name in kinds:
        axis.stairs(heights, edges, fill=True, facecolor=colour, alpha=0.2, lw=0)
        if hatch:
            axis.stairs(heights, edges, fill=True, facecolor="none", edgecolor=colour, hatch=hatch, lw=0, alpha=0.35)
        axis.stairs(heights, edges, color=colour, linestyle=dashes, lw=1.4, label=name)
