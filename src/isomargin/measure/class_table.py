"""The table of classes: one row per class with its error rates, and the classes that one threshold serves worst."""

from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.measure.pairs.distances import Floats

if TYPE_CHECKING:
    import pandas

    from isomargin.measure.evaluation import Evaluation

WORST_IS_LOWEST = {"mean_utility": True, "opis_contribution": False, "far": False, "frr": False, "eer": False}


def class_table(evaluation: "Evaluation") -> "pandas.DataFrame":
    """Return a table with one row per class.

    Values that need a positive pair are NaN for classes without one. The columns are:

    - ``class``: the label.
    - ``items`` (of a group of trials, the trials), ``positive_pairs``, ``negative_pairs``: how many the class has. For
      a gallery, ``enrolled`` and ``probes`` in place of ``items``; a pair is a probe and a template.
    - ``far``, ``frr``: error rates of the class at the pooled threshold for the target FAR.
    - ``far_threshold``, ``frr_threshold``: the distances (or given scores) at which the class itself would have the
      target FAR and FRR.
    - ``mean_utility``: utility averaged over the calibration range.
    - ``opis_contribution``: the part of OPIS that comes from the class; the parts add up to OPIS.
    - ``eer``, ``auc``: equal error rate and area under the ROC curve of the class's pairs.
    - ``false_positive_share``, for a gallery: of the unknown probes that the pooled threshold for the target FAR
      accepts, those for which the class comes first.
    - ``recall@k`` for each k, ``r_precision``, ``map_at_r``: retrieval with the items of the class as queries.
    """
    import pandas

    curves, ranks, summary = evaluation.curves, evaluation.ranks, evaluation.summary

    def of_curves(values: Floats) -> Floats:
        by_class = np.full(evaluation.class_count, np.nan)
        by_class[curves.classes] = values
        return by_class

    gallery = evaluation.identification
    if gallery is None:
        sizes: dict[str, Any] = {"items": evaluation.sizes}
    else:
        sizes = {"enrolled": gallery.enrolled, "probes": evaluation.sizes}
    queries = np.where(ranks.queries > 0, ranks.queries, np.nan)
    columns: dict[str, Any] = {
        "class": evaluation.names,
        **sizes,
        "positive_pairs": evaluation.counts.positives.totals,
        "negative_pairs": evaluation.counts.negatives.totals,
        "far": evaluation.target.class_far,
        "frr": evaluation.target.class_frr,
        "far_threshold": evaluation.axis.shown(summary.class_far_distance),
        "frr_threshold": evaluation.axis.shown(summary.class_frr_distance),
        "mean_utility": of_curves(curves.class_mean_utility),
        "opis_contribution": of_curves(curves.squared_deviations / len(curves.classes)),
        "eer": summary.class_eer,
        "auc": summary.class_auc,
    }
    if gallery is not None:
        columns["false_positive_share"] = gallery.at(summary.target_distance).false_positive_share
    for k, hits in zip(ranks.k, ranks.hits.T, strict=True):
        columns[f"recall@{k}"] = hits / queries
    if ranks.r_precision is not None and ranks.average_precision is not None:
        columns["r_precision"] = ranks.r_precision / queries
        columns["map_at_r"] = ranks.average_precision / queries
    return pandas.DataFrame(columns)


def worst_rows(table: "pandas.DataFrame", number: int, by: str) -> "pandas.DataFrame":
    """Return the worst rows of a table of classes, the worst first."""
    check_worst_by(by)
    if not (isinstance(number, int) and number >= 0):
        raise InputError(f"number is {number!r}: a whole number of classes is needed")
    return table.dropna(subset=[by]).sort_values(by, ascending=WORST_IS_LOWEST[by], kind="stable").head(number)


def check_worst_by(by: str) -> None:
    """Refuse a column by which classes cannot be ranked."""
    if by not in WORST_IS_LOWEST:
        raise InputError(f"worst by {by!r} is not available: choose from {', '.join(WORST_IS_LOWEST)}")
