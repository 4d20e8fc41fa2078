"""Why one threshold is not enough: each class, or each set, has its own d* for the same false accept rate."""

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
from isomargin.figures._evaluations import check_evaluations, density, draw_densities, shown_distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.measure.evaluation import Evaluation


BINS = 60  # fewer than of all pairs: a class has few


@dataclass(frozen=True)
class _Panel:
    """What one panel shows: all pairs of an evaluation, or those of one class."""

    name: str
    evaluation: Evaluation
    which: int | None
    """The class's index; None for all pairs."""

    @property
    def threshold(self) -> float:
        """Its own d*, for the target FAR."""
        if self.which is None:
            return self.evaluation.target.distance
        return float(self.evaluation.summary.class_far_distance[self.which])

    def densities(self, edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of its positive and of its negative pairs."""
        counts = self.evaluation.counts
        return density(counts.positives, edges, self.which), density(counts.negatives, edges, self.which)


@style.styled
def teaser(
    evaluations: Mapping[str, Evaluation], classes: Sequence[object] | None = None, far: float | None = None
) -> Figure:
    """Draw distances of same and of different classes with the threshold d* that each row needs for the same FAR.

    Parameters
    ----------
    evaluations: by the names to show. Of one, classes are drawn; of several, all pairs of each, or the same classes of
        each in a column of its own.
    classes: which to draw; of one evaluation, those with the lowest, the median and the highest d* if not given.
    far: the false accept rate; the evaluation's own target if not given.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> [axis.get_title(loc="left") for axis in teaser({"mine": evaluation}, classes=[2, 3], far=0.1).axes][1]
    '3: d* = 1.034'
    """
    check_evaluations(evaluations)
    if far is not None:
        evaluations = {name: each.with_settings(target_far=far) for name, each in evaluations.items()}
    named = list(zip(style.labels(list(evaluations)), evaluations.values(), strict=True))
    if classes is None and len(named) > 1:
        columns = [("", [_Panel(name, each, None) for name, each in named])]
    else:
        columns = [(name if len(named) > 1 else "", _class_panels(each, classes)) for name, each in named]
    rows = len(columns[0][1])
    figure, axes = style.panels(rows, len(columns), width=4.4 if len(columns) > 1 else 5.4, height=1.5)
    edges = np.linspace(*shown_distances(evaluations), BINS + 1)
    every = [panel for _, panels in columns for panel in panels]
    highest = max(float(heights.max()) for panel in every for heights in panel.densities(edges))
    axes[0].set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * highest))
    for number, (name, panels) in enumerate(columns):
        _draw_column(axes[number :: len(columns)], panels, edges, name)
    figure.supylabel("density", fontsize=9)
    style.legend_below(figure, axes[0].get_legend_handles_labels()[0])
    return figure


def _draw_column(axes: Sequence[Any], panels: Sequence[_Panel], edges: NDArray[np.float64], title: str) -> None:
    """Draw panels under each other, and the stretch between the lowest and the highest d* through all of them."""
    thresholds = [panel.threshold for panel in panels]
    low, high = min(thresholds), max(thresholds)
    rates = {panel.evaluation.settings.target_far for panel in panels}
    at_far = f"d* for FAR {rates.pop():.3g}" if len(rates) == 1 else "d* for the set's own target FAR"
    for axis, panel in zip(axes, panels, strict=True):
        axis.axvspan(low, high, color=style.RANGE, alpha=0.35, lw=0, zorder=0, label="from lowest to highest d*")
        draw_densities(axis, *panel.densities(edges), edges)
        axis.axvline(panel.threshold, color=style.BLACK, lw=1.8, label=at_far)
        axis.set_title(f"{panel.name}: d* = {panel.threshold:.3f}", pad=3)
    differ = f"thresholds differ by {high - low:.3f}" if len(panels) > 1 else ""
    head = ": ".join(part for part in (title, differ) if part)
    axes[0].set_title(f"{head}\n{axes[0].get_title(loc='left')}".lstrip("\n"), pad=3)
    axes[-1].set_xlabel("distance of two embeddings")


def _class_panels(evaluation: Evaluation, classes: Sequence[object] | None) -> list[_Panel]:
    """List the panels of the classes asked for, or of three that say most."""
    chosen = _extreme_classes(evaluation) if classes is None else [_find(evaluation, each) for each in classes]
    if not chosen:
        raise InputError("classes is empty: name at least one, or leave it out")
    names = style.labels([evaluation.names[which] for which in chosen])
    return [_Panel(name, evaluation, which) for name, which in zip(names, chosen, strict=True)]


def _extreme_classes(evaluation: Evaluation) -> list[int]:
    """Find the classes whose own threshold is the lowest, the median and the highest, fewer where there are fewer."""
    able = evaluation.curves.classes  # those with pairs of both kinds
    ordered = able[np.argsort(evaluation.summary.class_far_distance[able], kind="stable")]
    return [int(ordered[place]) for place in sorted({0, (len(ordered) - 1) // 2, len(ordered) - 1})]


def _find(evaluation: Evaluation, name: object) -> int:
    """Find a class by its name as it is printed; refuse one without pairs of both kinds."""
    known = [str(each) for each in evaluation.names]
    wanted = str(name)
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1) or known[:1]
        some = f"there are {len(known):,}, such as {close[0]!r}"
        raise InputError(f"there is no class {printable(wanted)!r}: {printable(some)}")
    which = known.index(wanted)
    if not (evaluation.counts.positives.totals[which] and evaluation.counts.negatives.totals[which]):
        raise InputError(f"the class {printable(wanted)!r} has too few images for a distribution: choose another")
    return which
