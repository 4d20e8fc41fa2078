"""Recognition error against OPIS of trained models: does TCM lower one without raising the other?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isomargin.core.errors import InputError
from isomargin.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TCM = "tcm"
LARGEST = 110.0  # area of the marker of the largest batch, in square points
SMALLEST = 14.0
KINDS = ("no regularizer", "with TCM", "with another regularizer")


@dataclass(frozen=True)
class TrainedModel:
    """A trained model as the figure shows it.

    >>> round(TrainedModel("mine", recall_at_1=0.8, opis=1e-3, base_loss="smooth_ap", batch=256).error, 3)
    0.2
    """

    name: str
    recall_at_1: float
    opis: float
    base_loss: str
    batch: int
    """Items per batch."""
    regularizer: str = ""
    """Name of the regularizer, or several names joined; empty if there is none."""
    twin: str = ""
    """A text that models share if they differ only in the regularizer; empty if unknown."""

    @property
    def error(self) -> float:
        """The recognition error, 1 − recall@1."""
        return 1 - self.recall_at_1


@style.styled
def error_against_opis(models: Sequence[TrainedModel]) -> Figure:
    """Draw models by 1 − recall@1 and OPIS: marker and colour show the base loss, area the batch size, filling TCM.

    Arrows lead from a model to the models that differ from it only in the regularizer. The Pareto front is that of the
    models without a regularizer, or of all models if every one has a regularizer.

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
    for model in sorted(models, key=lambda model: -model.batch):  # small markers over large ones
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
    """List the models that no other model beats in one score while being as good in the other; lowest error first.

    >>> front = pareto_front([TrainedModel("a", 0.9, 3e-3, "x", 1), TrainedModel("b", 0.8, 2e-3, "x", 1),
    ...                       TrainedModel("c", 0.7, 2.5e-3, "x", 1)])
    >>> [model.name for model in front]
    ['a', 'b']
    """
    front: list[TrainedModel] = []
    for model in sorted(models, key=lambda model: (model.error, model.opis)):
        if not front or model.opis < front[-1].opis:
            front.append(model)
    return front


def twins(models: Sequence[TrainedModel]) -> list[tuple[TrainedModel, TrainedModel]]:
    """Pair each model without a regularizer with the models that differ from it only in having one."""
    plain = {model.twin: model for model in reversed(models) if model.twin and not model.regularizer}
    return [(plain[model.twin], model) for model in models if model.regularizer and model.twin in plain]


def _draw_arrows(axis: Any, models: Sequence[TrainedModel]) -> None:
    """Draw arrows from models without a regularizer to their twins."""
    largest = max(model.batch for model in models)
    for start, end in twins(models):
        room = {
            "shrinkA": _area(start.batch, largest) ** 0.5 / 2 + 1,
            "shrinkB": _area(end.batch, largest) ** 0.5 / 2 + 1,
        }
        line = {"arrowstyle": "-|>", "color": style.GREY, "lw": 1.0, **room}
        axis.annotate("", (100 * end.error, end.opis), (100 * start.error, start.opis), arrowprops=line, zorder=2)


def _front_of(models: Sequence[TrainedModel]) -> tuple[str, list[TrainedModel]]:
    """Return the name and the models of the front to draw."""
    plain = [model for model in models if not model.regularizer]
    return ("Pareto front, no regularizer", pareto_front(plain)) if plain else ("Pareto front", pareto_front(models))


def _draw_front(axis: Any, models: Sequence[TrainedModel]) -> None:
    """Draw the front as a step function."""
    front = _front_of(models)[1]
    errors, opis = [100 * model.error for model in front], [model.opis for model in front]
    axis.step(errors, opis, where="post", color=style.BLACK, lw=1.0, ls=style.DASHES[2], zorder=1)


def _legend_of_losses(bases: Sequence[str], models: Sequence[TrainedModel]) -> list[Any]:
    """Return the legend entries for base losses and for filled markers."""
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    for number, name in enumerate(style.labels(bases)):
        look = style.look(number, marker=True)
        handles.append(Line2D([], [], **{**look, "linestyle": "none"}, ms=7, label=name))
    for kind in dict.fromkeys(_kind(model) for model in sorted(models, key=lambda model: KINDS.index(_kind(model)))):
        look = {"marker": "o", "markerfacecolor": _face(kind, style.GREY), "markeredgecolor": style.GREY}
        handles.append(Line2D([], [], ls="none", ms=7, **look, label=kind))
    return handles


def _legend_of_lines(models: Sequence[TrainedModel]) -> list[Any]:
    """Return the legend entries for the front and, if there are any, for arrows."""
    from matplotlib.lines import Line2D

    name, front = _front_of(models)
    handles = [Line2D([], [], color=style.BLACK, lw=1.0, ls=style.DASHES[2], label=name)] if len(front) > 1 else []
    if twins(models):
        handles.append(Line2D([], [], color=style.GREY, lw=1.0, marker=">", ms=4, label="the same with a regularizer"))
    return handles


def _legend_of_batches(models: Sequence[TrainedModel]) -> list[Any]:
    """Return the legend entries for the smallest and the largest batch."""
    from matplotlib.lines import Line2D

    batches = sorted({model.batch for model in models})
    look: dict[str, Any] = {"ls": "none", "marker": "o", "markerfacecolor": "white", "markeredgecolor": style.GREY}
    return [
        Line2D([], [], ms=_area(batch, batches[-1]) ** 0.5, **look, label=f"batch of {batch:,}")
        for batch in dict.fromkeys((batches[0], batches[-1]))
    ]


def _kind(model: TrainedModel) -> str:
    """Return the legend entry for the regularizer of a model."""
    return KINDS[0] if not model.regularizer else KINDS[1] if model.regularizer == TCM else KINDS[2]


def _face(kind: str, colour: str) -> Any:
    """Return the fill of a marker: none, full, or a pale shade."""
    return {KINDS[0]: "white", KINDS[1]: colour}.get(kind, (colour, 0.35))


def _area(batch: int, largest: int) -> float:
    """Return the area of a marker: proportional to the batch, but large enough to be seen."""
    return max(SMALLEST, LARGEST * batch / largest)
