"""The figures by name: what each shows, what it needs, and which options it takes.

To add a figure, add a module with a function of the same name, and an entry here. The tests draw every entry.
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
    "evaluations": "one or more runs, evaluations or files of embeddings",
    "models": "folders of finished runs, with recipe.yaml and evaluation.json",
    "metrics": "folders of runs with metrics.csv",
    "search": "the folder of one search by `isomargin tune`",
    "embeddings": "runs or files of embeddings, with two dimensions and few classes",
    "nothing": "no run",
}


@dataclass(frozen=True)
class FigureKind:
    """A figure that can be selected by name.

    >>> FigureKind(gaussian_curves, "nothing", "curves").name
    'gaussian_curves'
    """

    draw: Callable[..., object]
    """Returns the matplotlib Figure. Its first argument depends on `source`: a mapping by the names to show for
    evaluations, metrics and embeddings; a list for models and a search; no argument for nothing."""
    source: Source
    """What the figure is drawn from."""
    shows: str
    """What the figure shows, in one line."""
    options: tuple[str, ...] = ()
    """Command-line options that it takes, by the names of the arguments of `draw`."""

    @property
    def name(self) -> str:
        """Name of the figure: that of its function."""
        return self.draw.__name__


_ALL = (
    FigureKind(
        utility_curves,
        "evaluations",
        "utility against the threshold, one line per class and one panel per run, with the calibration range and OPIS",
    ),
    FigureKind(
        teaser,
        "evaluations",
        "distances of a few classes of one run, or of several runs, each with its own threshold for the same FAR",
        ("classes", "far"),
    ),
    FigureKind(
        error_against_opis,
        "models",
        "recognition error against OPIS with and without TCM, by base loss and batch size",
    ),
    FigureKind(
        embeddings_2d,
        "embeddings",
        "two-dimensional embeddings on the unit circle: density and compactness of each class",
    ),
    FigureKind(margins_grid, "search", "heat maps of OPIS and recall@1 over the two margins of TCM", ("tolerance",)),
    FigureKind(
        gaussian_curves,
        "nothing",
        "the utility curves U_roc and U_pr of classes with normally distributed distances",
        ("classes",),
    ),
    FigureKind(
        calibration_ranges,
        "evaluations",
        "OPIS and rank of each run for several calibration ranges",
        ("ranges",),
    ),
    FigureKind(
        distance_distributions,
        "evaluations",
        "distances of positive and negative pairs, one row per run",
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
