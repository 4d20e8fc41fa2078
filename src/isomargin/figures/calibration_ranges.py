"""OPIS for several calibration ranges, and the rank of each model: does the order depend on the range?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.figures import style
from isomargin.figures._evaluations import check_alike, check_evaluations

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.measure.evaluation import Evaluation

RANGES = ((1e-3, 1e-2), (1e-3, 5e-2), (1e-2, 5e-2), (1e-2, 1e-1), (5e-2, 2e-1))


@style.styled
def calibration_ranges(
    evaluations: Mapping[str, Evaluation], ranges: Sequence[tuple[float, float]] | None = None
) -> Figure:
    """Draw OPIS for several calibration ranges, one line per model, and next to it the ranks, the lowest OPIS first.

    Parameters
    ----------
    evaluations: evaluations by the names to show.
    ranges: pairs of false accept rates. By default five ranges from 0.001 to 0.2, if there are enough pairs for them.

    >>> import isomargin as im
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> left, right = calibration_ranges({"mine": evaluation}, ranges=[(0.01, 0.1), (0.1, 0.2)]).axes
    >>> left.get_ylabel(), [tick.get_text() for tick in right.get_xticklabels()]
    ('OPIS', ['0.01\\nto 0.1', '0.1\\nto 0.2'])
    """
    check_evaluations(evaluations)
    check_alike(evaluations, ("c", "utility", "mean_curve"))
    chosen = _resolvable(evaluations) if ranges is None else list(ranges)
    if not chosen:
        raise InputError("ranges is empty: at least one pair of false accept rates is needed")
    opis = np.array([[model.with_settings(far=far).opis for far in chosen] for model in evaluations.values()])
    names = style.labels(list(evaluations))
    height = max(2.8, 0.24 * len(names) + 1.2)
    figure, (left, right) = style.panels(1, 2, width=4.4, height=height, same_axes=False)
    ranks = rank(opis)
    for number, name in enumerate(names):
        look = style.look(number, marker=True)
        left.plot(opis[number], **look)
        right.plot(ranks[number], **look)
        end = (len(chosen) - 1, ranks[number, -1])
        beside = {
            "xytext": (7, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontsize": 8,
            "annotation_clip": False,
        }
        right.annotate(name, end, color=look["color"], **beside)
    if (opis > 0).all():
        left.set_yscale("log")
    left.set(ylabel="OPIS")
    left.set_title("OPIS")
    right.set(ylabel="rank", yticks=range(1, len(names) + 1), ylim=(len(names) + 0.5, 0.5))
    right.set_title("rank (1 is the lowest OPIS)")
    for axis in (left, right):
        _label_ranges(axis, chosen)
    return figure


def rank(opis: NDArray[np.float64]) -> NDArray[np.int64]:
    """(models, ranges) the rank of each model in each range; the lowest OPIS has rank 1, ties keep the given order.

    >>> rank(np.array([[3e-3, 1e-3], [2e-3, 2e-3]])).tolist()
    [[2, 1], [1, 2]]
    """
    order = np.argsort(opis, axis=0, kind="stable")
    return np.asarray(np.argsort(order, axis=0, kind="stable") + 1)


def _resolvable(evaluations: Mapping[str, Evaluation]) -> list[tuple[float, float]]:
    """Return the ranges that every evaluation can resolve; if there is none, the range of the first evaluation."""
    resolvable = [far for far in RANGES if all(_has(evaluation, far) for evaluation in evaluations.values())]
    return resolvable or [next(iter(evaluations.values())).settings.far]


def _has(evaluation: Evaluation, far: tuple[float, float]) -> bool:
    """Whether there are enough pairs for a range, and its ends are different distances."""
    try:
        evaluation.with_settings(far=far)
    except InputError:
        return False
    return True


def _label_ranges(axis: Any, ranges: Sequence[tuple[float, float]]) -> None:
    """Label the axis with the ranges."""
    axis.set_xticks(range(len(ranges)), [f"{low:g}\nto {high:g}" for low, high in ranges])
    axis.set_xlim(-0.3, len(ranges) - 0.7)
    axis.set_xlabel("false accept rates of the calibration range")
