"""What the figures of evaluations share: checks that they can stand side by side, and densities of their distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.text import printable

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.pairs.distances import ClassDistances

Floats = NDArray[np.float64]
BINS = 100  # of a density
OUTLIERS = 1e-4  # share of the pairs on either side that the axis need not show
DECIDES_OPIS = ("far", "frr", "distances", "c", "utility", "mean_curve")


def check_evaluations(evaluations: Mapping[str, Evaluation]) -> None:
    """Refuse what is no evaluations by name."""
    from isomargin.measure.evaluation import Evaluation

    if not isinstance(evaluations, Mapping) or not all(isinstance(each, Evaluation) for each in evaluations.values()):
        kind = type(evaluations).__name__
        raise InputError(f"evaluations by name are needed, such as {{'mine': evaluation}}, and not {kind}")
    if not evaluations:
        raise InputError("there is no evaluation to draw: at least one is needed")


def check_alike(evaluations: Mapping[str, Evaluation], settings: Sequence[str] = DECIDES_OPIS) -> None:
    """Refuse evaluations whose scores cannot be compared, because they were asked for differently."""
    (first_name, first), *others = evaluations.items()
    for name, each in others:
        for setting in settings:
            one, other = getattr(first.settings, setting), getattr(each.settings, setting)
            if one != other:
                raise InputError(
                    f"{printable(first_name)} was evaluated with {setting}={one!r} and {printable(name)} with "
                    f"{setting}={other!r}: evaluate them alike, or their scores cannot be compared"
                )


def shown_distances(evaluations: Mapping[str, Evaluation]) -> tuple[float, float]:
    """Give the ends of an axis that shows nearly all pairs of all evaluations."""
    low, high = 2.0, 0.0
    for each in evaluations.values():
        for pairs in (each.counts.positives, each.counts.negatives):
            total = pairs.pooled_total
            low = min(low, pairs.pooled_distance_at(int(OUTLIERS * total)))
            high = max(high, pairs.pooled_distance_at(total - int(OUTLIERS * total)))
    return max(0.0, low - 0.02), min(2.0, high + 0.02)


def density(pairs: ClassDistances, edges: Floats, which: int | None = None) -> Floats:
    """(bins,) the share of the pairs, of all classes or of one, in each bin, over the bin's width.

    What lies before the first edge or beyond the last is in no bin, but counts in the share.
    """
    within = pairs.pooled_within(edges) if which is None else _one_class(pairs, which).within(edges)[0]
    total = pairs.pooled_total if which is None else int(pairs.totals[which])
    if edges[0] == 0:
        within = np.concatenate([[0.0], within[1:]])  # pairs of no distance at all are in the first bin
    return np.asarray(np.diff(within) / (max(total, 1) * np.diff(edges)))


def _one_class(pairs: ClassDistances, which: int) -> ClassDistances:
    """Give the distances of one class alone."""
    from isomargin.measure.pairs.distances import BinnedDistances, ListedDistances

    if isinstance(pairs, BinnedDistances):
        return BinnedDistances(pairs.counts[which : which + 1], pairs.reach, 1)
    own = pairs.of_class(which)
    return ListedDistances(own, np.array([0, len(own)]), 1)


def draw_densities(axis: Any, positives: Floats, negatives: Floats, edges: Floats) -> None:
    """Draw how far pairs of the same class and of different classes are apart, told apart by hatching too."""
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
