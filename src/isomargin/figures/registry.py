"""The figures by name: what each shows, what it is drawn from, and which options it takes.

A new figure is a module with a function of its name, and an entry here; the tests draw every entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.figures.calibration_ranges import calibration_ranges
from isomargin.figures.distance_distributions import distance_distributions
from isomargin.figures.embeddings_2d import embeddings_2d
from isomargin.figures.error_against_opis import error_against_opis
from isomargin.figures.gaussian_curves import gaussian_curves
from isomargin.figures.margins_grid import margins_grid
from isomargin.figures.recall_over_epochs import recall_over_epochs
from isomargin.figures.teaser import teaser
from isomargin.figures.utility_curves import utility_curves

Source = Literal["evaluations", "models", "metrics", "search", "embeddings", "nothing"]

NEEDS: dict[Source, str] = {
    "evaluations": "runs, evaluations or embeddings, one or more",
    "models": "folders of finished runs, with recipe.yaml and evaluation.json",
    "metrics": "folders of runs with metrics.csv",
    "search": "the folder of one search by `isomargin tune`",
    "embeddings": "runs or files of embeddings, of two dimensions and few classes",
    "nothing": "no run",
}


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be asked for by name.

    >>> FigureKind(gaussian_curves, "nothing", "curves").name
    'gaussian_curves'
    """

    draw: Callable[..., object]
    """Gives the matplotlib Figure. Its first argument is what `source` says: a mapping by the names to show for
    evaluations, metrics and embeddings, a list for models and a search; none for nothing."""
    source: Source
    """What it is drawn from."""
    shows: str
    """A line on what it shows."""
    options: tuple[str, ...] = ()
    """The command's options that it takes, by the names of its own arguments."""

    @property
    def name(self) -> str:
        """Under which it is asked for: that of its function."""
        return self.draw.__name__


_ALL = (
    FigureKind(
        utility_curves,
        "evaluations",
        "utility against the threshold, a line a class, a panel a run, with the calibration range and OPIS",
    ),
    FigureKind(
        teaser,
        "evaluations",
        "distances of classes of one run, or of several runs, each with its own threshold for the same FAR",
        ("classes", "far"),
    ),
    FigureKind(
        error_against_opis,
        "models",
        "recognition error against OPIS, without and with TCM, by base loss and batch size",
    ),
    FigureKind(
        embeddings_2d,
        "embeddings",
        "embeddings of two dimensions on their circle: each class's density and compactness",
    ),
    FigureKind(margins_grid, "search", "OPIS and recall@1 over TCM's two margins, as heat maps", ("tolerance",)),
    FigureKind(
        gaussian_curves,
        "nothing",
        "the utility curves U_roc and U_pr of classes whose distances are normally distributed",
        ("classes",),
    ),
    FigureKind(
        calibration_ranges,
        "evaluations",
        "OPIS for several calibration ranges, and the rank of each run in each of them",
        ("ranges",),
    ),
    FigureKind(
        distance_distributions,
        "evaluations",
        "how far apart pairs of the same class and of different classes are, a row a run",
    ),
    FigureKind(
        recall_over_epochs, "metrics", "recall@1, or another column of metrics.csv, over the epochs", ("column",)
    ),
)
FIGURES: dict[str, FigureKind] = {kind.name: kind for kind in _ALL}


def find_figure(name: str) -> FigureKind:
    """Find a figure by its name, with hyphens or underscores.

    >>> find_figure("utility-curves").source
    'evaluations'
    >>> find_figure("utility_curve")
    Traceback (most recent call last):
    isomargin.InputError: there is no figure 'utility_curve': did you mean 'utility_curves'?
    """
    kind = FIGURES.get(name.replace("-", "_"))
    if kind is None:
        raise InputError(f"there is no figure {name!r}: {checks.nearest(name, list(FIGURES))}")
    return kind
