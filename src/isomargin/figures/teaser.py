"""Why one threshold is not enough: each class, or each set, needs its own d* for the same false accept rate."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.figures import style
from isomargin.figures._evaluations import (
    check_evaluations,
    density,
    distance_title,
    draw_densities,
    shown_distances,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.measure.evaluation import Evaluation


BINS = 60  # fewer than for all pairs, because a class has few pairs


@dataclass(frozen=True)
class _Panel:
    """One panel: all pairs of an evaluation, or the pairs of one class."""

    name: str
    evaluation: Evaluation
    which: int | None
    """Index of the class; None for all pairs."""

    @property
    def threshold(self) -> float:
        """The threshold d* for the target FAR."""
        if self.which is None:
            return self.evaluation.target.distance
        return float(self.evaluation.summary.class_far_distance[self.which])

    def densities(self, edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the densities of the positive and of the negative pairs."""
        counts = self.evaluation.counts
        return density(counts.positives, edges, self.which), density(counts.negatives, edges, self.which)


@style.styled
def teaser(
    evaluations: Mapping[str, Evaluation], classes: Sequence[object] | None = None, far: float | None = None
) -> Figure:
    """Draw the distances of positive and negative pairs, with the threshold d* that each row needs for the same FAR.

    Parameters
    ----------
    evaluations: evaluations by the names to show. For one evaluation, a few of its classes are drawn; for several, all
        pairs of each. With `classes`, several evaluations have one column each.
    classes: the classes to draw. By default those of one evaluation with the lowest, the median and the highest d*.
    far: the false accept rate. By default the target of the evaluation.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> [axis.get_title(loc="left") for axis in teaser({"mine": evaluation}, classes=[2, 3], far=0.1).axes][1]
    '3: d* = 1.034'
    """
    check_evaluations(evaluations)
    if far is not None:
        evaluations = {name: evaluation.with_settings(target_far=far) for name, evaluation in evaluations.items()}
    named = list(zip(style.labels(list(evaluations)), evaluations.values(), strict=True))
    if classes is None and len(named) > 1:
        columns = [("", [_Panel(name, evaluation, None) for name, evaluation in named])]
    else:
        columns = [(name if len(named) > 1 else "", _class_panels(evaluation, classes)) for name, evaluation in named]
    rows = len(columns[0][1])
    figure, axes = style.panels(rows, len(columns), width=4.4 if len(columns) > 1 else 5.4, height=1.5)
    edges = np.linspace(*shown_distances(evaluations), BINS + 1)
    all_panels = [panel for _, panels in columns for panel in panels]
    highest = max(float(heights.max()) for panel in all_panels for heights in panel.densities(edges))
    axes[0].set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * highest))
    for number, (name, panels) in enumerate(columns):
        _draw_column(axes[number :: len(columns)], panels, edges, name)
    figure.supylabel("density", fontsize=9)
    style.legend_below(figure, axes[0].get_legend_handles_labels()[0])
    return figure


def _draw_column(axes: Sequence[Any], panels: Sequence[_Panel], edges: NDArray[np.float64], title: str) -> None:
    """Draw panels below each other, with the range from the lowest to the highest d* shaded in all of them."""
    thresholds = [panel.threshold for panel in panels]
    low, high = min(thresholds), max(thresholds)
    rates = {panel.evaluation.settings.target_far for panel in panels}
    at_far = f"d* for FAR {rates.pop():.3g}" if len(rates) == 1 else "d* for the target FAR of the set"
    for axis, panel in zip(axes, panels, strict=True):
        axis.axvspan(low, high, color=style.RANGE, alpha=0.35, lw=0, zorder=0, label="from lowest to highest d*")
        draw_densities(axis, *panel.densities(edges), edges)
        axis.axvline(panel.threshold, color=style.BLACK, lw=1.8, label=at_far)
        axis.set_title(f"{panel.name}: d* = {panel.threshold:.3f}", pad=3)
    differ = f"thresholds differ by {high - low:.3f}" if len(panels) > 1 else ""
    head = ": ".join(part for part in (title, differ) if part)
    axes[0].set_title(f"{head}\n{axes[0].get_title(loc='left')}".lstrip("\n"), pad=3)
    axes[-1].set_xlabel(distance_title({panel.name: panel.evaluation for panel in panels}))


def _class_panels(evaluation: Evaluation, classes: Sequence[object] | None) -> list[_Panel]:
    """List the panels of the given classes, or of the three extreme ones."""
    chosen = _extreme_classes(evaluation) if classes is None else [_find(evaluation, name) for name in classes]
    if not chosen:
        raise InputError("classes is empty: name at least one, or leave it out")
    names = style.labels([evaluation.names[which] for which in chosen])
    return [_Panel(name, evaluation, which) for name, which in zip(names, chosen, strict=True)]


def _extreme_classes(evaluation: Evaluation) -> list[int]:
    """Find the classes with the lowest, the median and the highest own threshold."""
    usable = evaluation.curves.classes  # those with positive and negative pairs
    ordered = usable[np.argsort(evaluation.summary.class_far_distance[usable], kind="stable")]
    return [int(ordered[place]) for place in sorted({0, (len(ordered) - 1) // 2, len(ordered) - 1})]


def _find(evaluation: Evaluation, name: object) -> int:
    """Find a class by its printed name; refuse one without positive or negative pairs."""
    known = [str(label) for label in evaluation.names]
    wanted = str(name)
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1) or known[:1]
        hint = f"there are {len(known):,}, such as {close[0]!r}"
        raise InputError(f"there is no class {printable(wanted)!r}: {printable(hint)}")
    which = known.index(wanted)
    if not (evaluation.counts.positives.totals[which] and evaluation.counts.negatives.totals[which]):
        raise InputError(f"the class {printable(wanted)!r} has too few pairs for a distribution: choose another")
    return which
