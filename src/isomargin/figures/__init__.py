"""Static figures of evaluations, runs and theory. Each is a function that returns a matplotlib Figure.

`save` writes a figure as SVG, PDF or PNG. `isomargin figure NAME RUN... -o FILE` draws one from saved runs and writes
it. Each module has the name of its function.
"""

from isomargin.core.extras import require

require("matplotlib")

from isomargin.figures.calibration_ranges import calibration_ranges
from isomargin.figures.distance_distributions import distance_distributions
from isomargin.figures.embeddings_2d import embeddings_2d
from isomargin.figures.error_against_opis import TrainedModel, error_against_opis
from isomargin.figures.gaussian_curves import gaussian_curves
from isomargin.figures.margins_grid import margins_grid
from isomargin.figures.recall_over_epochs import recall_over_epochs
from isomargin.figures.registry import FIGURES, FigureKind, find_figure
from isomargin.figures.style import save
from isomargin.figures.teaser import teaser
from isomargin.figures.utility_curves import utility_curves

__all__ = [
    "FIGURES",
    "FigureKind",
    "TrainedModel",
    "calibration_ranges",
    "distance_distributions",
    "embeddings_2d",
    "error_against_opis",
    "find_figure",
    "gaussian_curves",
    "margins_grid",
    "recall_over_epochs",
    "save",
    "teaser",
    "utility_curves",
]
