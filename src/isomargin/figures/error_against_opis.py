"""Recognition error and OPIS of trained models in one plane: whether TCM lowers one without raising the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isomargin.core.errors import InputError
from isomargin.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TCM = "tcm"
LARGEST = 110.0  # area of the largest batch's marker, in square points
SMALLEST = 14.0
KINDS = ("no regularizer", "with TCM", "with another regularizer")


@dataclass(frozen=True)
class TrainedModel:
    """What the figure shows of a model.

    >>> round(TrainedModel("mine", recall_at_1=0.8, opis=1e-3, base_loss="smooth_ap", batch=256).error, 3)
    0.2
    """

    name: str
    recall_at_1: float
    opis: float
    base_loss: str
    batch: int
    """Images in a batch."""
    regularizer: str = ""
    """Its name, several joined; empty if there was none."""
    twin: str = ""
    """The same text for models that differ in the regularizer alone; empty if nothing is known of it."""

    @property
    def error(self) -> float:
        """The recognition error, 1 − recall@1."""
        return 1 - self.recall_at_1


@style.styled
def error_against_opis(models: Sequence[TrainedModel]) -> Figure:
    """Draw models by 1 − recall@1 and OPIS: the marker is the base loss, its area the batch, filled means TCM.

    Arrows lead from a model to those that differ from it in the regularizer alone. The Pareto front is that of the
    models without a regularizer (of all if every one has one): nothing trained so is better in both.

    >>> figure = error_against_opis([TrainedModel("mine", 0.8, 1e-3, "smooth_ap", 256)])
    >>> figure.axes[0].get_ylabel()
    'OPIS'
    """
    if not models:
        raise InputError("there is no model to draw: at least one is needed")
    bases = list(dict.fromkeys(model.base_loss for model in models))
    legends = [*_legend_of_losses(bases, models), *_legend_of_lines(models), *_legend_of_batches(models)]
    figure, (axis,) = style.panels(width=6.4, height=max(3.6, 0.23 * len(legends) + 0.6))
    largest = max(model.batch for model in models)
    for model in sorted(models, key=lambda each: -each.batch):  # small ones are drawn over large ones
        look = style.look(bases.index(model.base_loss), marker=True)
        edge = {"marker": look["marker"], "edgecolors": look["color"], "linewidths": 1.4}
        face = _face(_kind(model), look["color"])
        axis.scatter(100 * model.error, model.opis, s=_area(model.batch, largest), facecolors=face, **edge, zorder=3)
    _draw_arrows(axis, models)
    _draw_front(axis, models)
    axis.set(xlabel="recognition error, 100 % − recall@1 (%)", ylabel="OPIS")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    axis.margins(0.12)
    axis.legend(handles=legends, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def pareto_front(models: Sequence[TrainedModel]) -> list[TrainedModel]:
    """List the models that no other one beats in both, or in one without losing in the other; the least error first.

    >>> front = pareto_front([TrainedModel("a", 0.9, 3e-3, "x", 1), TrainedModel("b", 0.8, 2e-3, "x", 1),
    ...                       TrainedModel("c", 0.7, 2.5e-3, "x", 1)])
    >>> [model.name for model in front]
    ['a', 'b']
    """
    front: list[TrainedModel] = []
    for model in sorted(models, key=lambda each: (each.error, each.opis)):
        if not front or model.opis < front[-1].opis:
            front.append(model)
    return front


def twins(models: Sequence[TrainedModel]) -> list[tuple[TrainedModel, TrainedModel]]:
    """List each model without a regularizer with those that differ from it in having one."""
    plain = {model.twin: model for model in reversed(models) if model.twin and not model.regularizer}
    return [(plain[model.twin], model) for model in models if model.regularizer and model.twin in plain]


def _draw_arrows(axis: Any, models: Sequence[TrainedModel]) -> None:
    """Lead from models without a regularizer to their twins."""
    largest = max(model.batch for model in models)
    for start, end in twins(models):
        room = {
            "shrinkA": _area(start.batch, largest) ** 0.5 / 2 + 1,
            "shrinkB": _area(end.batch, largest) ** 0.5 / 2 + 1,
        }
        line = {"arrowstyle": "-|>", "color": style.GREY, "lw": 1.0, **room}
        axis.annotate("", (100 * end.error, end.opis), (100 * start.error, start.opis), arrowprops=line, zorder=2)


def _front_of(models: Sequence[TrainedModel]) -> tuple[str, list[TrainedModel]]:
    """Give the front to draw, and what it is called."""
    plain = [model for model in models if not model.regularizer]
    return ("Pareto front, no regularizer", pareto_front(plain)) if plain else ("Pareto front", pareto_front(models))


def _draw_front(axis: Any, models: Sequence[TrainedModel]) -> None:
    """Draw the front as the stairs that it is: between two models nothing is known to be better than either."""
    front = _front_of(models)[1]
    errors, opis = [100 * model.error for model in front], [model.opis for model in front]
    axis.step(errors, opis, where="post", color=style.BLACK, lw=1.0, ls=style.DASHES[2], zorder=1)


def _legend_of_losses(bases: Sequence[str], models: Sequence[TrainedModel]) -> list[Any]:
    """Give the legend's base losses, and what filled markers mean."""
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    for number, name in enumerate(style.labels(bases)):
        look = style.look(number, marker=True)
        handles.append(Line2D([], [], **{**look, "linestyle": "none"}, ms=7, label=name))
    for kind in dict.fromkeys(_kind(model) for model in sorted(models, key=lambda each: KINDS.index(_kind(each)))):
        look = {"marker": "o", "markerfacecolor": _face(kind, style.GREY), "markeredgecolor": style.GREY}
        handles.append(Line2D([], [], ls="none", ms=7, **look, label=kind))
    return handles


def _legend_of_lines(models: Sequence[TrainedModel]) -> list[Any]:
    """Give the legend's front, and its arrow if there are any."""
    from matplotlib.lines import Line2D

    name, front = _front_of(models)
    handles = [Line2D([], [], color=style.BLACK, lw=1.0, ls=style.DASHES[2], label=name)] if len(front) > 1 else []
    if twins(models):
        handles.append(Line2D([], [], color=style.GREY, lw=1.0, marker=">", ms=4, label="the same with a regularizer"))
    return handles


def _legend_of_batches(models: Sequence[TrainedModel]) -> list[Any]:
    """Give the legend's sizes: the smallest batch and the largest."""
    from matplotlib.lines import Line2D

    batches = sorted({model.batch for model in models})
    look: dict[str, Any] = {"ls": "none", "marker": "o", "markerfacecolor": "white", "markeredgecolor": style.GREY}
    return [
        Line2D([], [], ms=_area(batch, batches[-1]) ** 0.5, **look, label=f"batch of {batch:,}")
        for batch in dict.fromkeys((batches[0], batches[-1]))
    ]


def _kind(model: TrainedModel) -> str:
    """Say in the legend's words how a model was regularized."""
    return KINDS[0] if not model.regularizer else KINDS[1] if model.regularizer == TCM else KINDS[2]


def _face(kind: str, colour: str) -> Any:
    """Give the inside of a marker: nothing, all of it, or a pale shade."""
    return {KINDS[0]: "white", KINDS[1]: colour}.get(kind, (colour, 0.35))


def _area(batch: int, largest: int) -> float:
    """Give a marker's area, in proportion to the batch as long as it can be seen."""
    return max(SMALLEST, LARGEST * batch / largest)
