"""The utility curves U_roc and U_pr of classes with normally distributed distances; needs no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.theory import GaussianClass

DISTANCES = np.linspace(0.0, 2.0, 401)
TYPICAL = ((0.6, 0.15, 1.3, 0.1), (0.8, 0.15, 1.3, 0.1), (0.6, 0.25, 1.3, 0.1), (0.8, 0.15, 1.1, 0.15))


@style.styled
def gaussian_curves(classes: Sequence[GaussianClass] | None = None, negatives_per_positive: float = 1.0) -> Figure:
    """Draw both utilities of each Gaussian class against the threshold, with the densities behind them.

    Parameters
    ----------
    classes: the classes to draw, one panel per class. By default four typical classes.
    negatives_per_positive: the ratio that U_pr depends on. The formula of the paper has as many negatives as positives.

    >>> from isomargin.theory import GaussianClass
    >>> gaussian_curves([GaussianClass(0.6, 0.15, 1.3, 0.1)]).axes[0].get_title(loc="left")
    'μ⁺ 0.6, σ⁺ 0.15,  μ⁻ 1.3, σ⁻ 0.1'
    """
    from isomargin.theory import GaussianClass

    shown = [GaussianClass(*parameters) for parameters in TYPICAL] if classes is None else list(classes)
    if not shown or not all(isinstance(shown_class, GaussianClass) for shown_class in shown):
        raise InputError("classes holds no Gaussian classes: make them with isomargin.theory.GaussianClass")
    columns = min(2, len(shown))
    figure, axes = style.panels(-(-len(shown) // columns), columns, width=3.6 if columns > 1 else 4.8, height=2.3)
    for axis, gaussian_class in zip(axes, shown, strict=False):
        _draw_panel(axis, gaussian_class, negatives_per_positive)
    for axis in axes[len(shown) :]:
        axis.remove()
    for axis in axes[max(0, len(shown) - columns) : len(shown)]:
        axis.set_xlabel("threshold (distance)")
        axis.tick_params(labelbottom=True)
    figure.supylabel("utility", fontsize=9)
    style.legend_below(figure, axes[0].get_legend_handles_labels()[0])
    return figure


def _draw_panel(axis: Any, gaussian_class: GaussianClass, negatives_per_positive: float) -> None:
    """Draw the two curves of a class over its two densities, which are scaled to half the height of the panel."""
    sides = (
        (gaussian_class.positive_mean, gaussian_class.positive_deviation, style.POSITIVE, None, "same class"),
        (gaussian_class.negative_mean, gaussian_class.negative_deviation, style.NEGATIVE, "////", "different classes"),
    )
    narrowest = min(deviation for _, deviation, *_ in sides)
    for mean, deviation, colour, hatch, name in sides:
        bell = narrowest / deviation * np.exp(-0.5 * np.square((DISTANCES - mean) / deviation)) / 2
        look = {"facecolor": colour, "edgecolor": colour, "alpha": 0.18, "lw": 0, "hatch": hatch}
        axis.fill_between(DISTANCES, bell, label=f"distances, {name}", **look)
    curves = (
        (gaussian_class.utility(DISTANCES), {"color": style.BLACK, "lw": 2.2}, "$U_{roc}$: specificity, sensitivity"),
        (
            gaussian_class.precision_recall_utility(DISTANCES, negatives_per_positive=negatives_per_positive),
            {"color": style.ORANGE, "ls": style.DASHES[1]},
            "$U_{pr}$: precision, recall",
        ),
    )
    for values, look, name in curves:
        axis.plot(DISTANCES, values, **look, label=name)
    axis.set(xlim=(0, 2), ylim=(0, 1.03))
    axis.set_title(
        f"μ⁺ {gaussian_class.positive_mean:g}, σ⁺ {gaussian_class.positive_deviation:g},  "
        f"μ⁻ {gaussian_class.negative_mean:g}, σ⁻ {gaussian_class.negative_deviation:g}"
    )
