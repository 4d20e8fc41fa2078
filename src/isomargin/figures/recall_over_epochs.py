"""A score over the epochs of training, one line per run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.figures import style

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@style.styled
def recall_over_epochs(metrics: Mapping[str, pandas.DataFrame], column: str = "recall@1") -> Figure:
    """Draw one column of the metrics of runs over the epochs.

    Parameters
    ----------
    metrics: the tables of metrics.csv by the names to show.
    column: the column to draw.

    >>> import pandas
    >>> figure = recall_over_epochs({"mine": pandas.DataFrame({"epoch": [1, 2], "recall@1": [0.7, 0.8]})})
    >>> figure.axes[0].get_ylabel()
    'recall@1'
    """
    if not metrics:
        raise InputError("there are no metrics to draw: those of at least one run are needed")
    for name, table in metrics.items():
        for needed in ("epoch", column):
            if needed not in table.columns:
                known = checks.nearest(needed, [str(title) for title in table.columns])
                raise InputError(f"the metrics of {printable(name)} have no column {needed!r}: {known}")
            if table[needed].dtype.kind not in "iuf":
                raise InputError(f"the column {needed!r} of {printable(name)} holds no numbers: choose another")
    figure, (axis,) = style.panels(width=6.2, height=3.2)
    for number, (name, table) in enumerate(zip(style.labels(list(metrics)), metrics.values(), strict=True)):
        points = table[["epoch", column]].dropna()
        axis.plot(points["epoch"].to_numpy(), points[column].to_numpy(), **style.look(number, marker=True), label=name)
    axis.set(xlabel="epoch", ylabel=style.label(column))
    if axis.get_xlim()[1] > 2:  # otherwise the ticks are fractions of an epoch
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
