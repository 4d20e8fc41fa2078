"""Every score, defined once: name, title, unit, better direction, bounds, and how it is read off an Evaluation.

Tables, JSON, intervals, comparisons, training metrics, the report, the lab and the documentation all read this
registry: to add a score, add it here and to ``tests/reference.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from isomargin.core.checks import nearest
from isomargin.core.errors import InputError

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.settings import Settings

Unit = Literal["squared_utility", "utility", "rate", "ratio"]
"""``squared_utility``: OPIS and its kin, compared in percent of each other. ``rate``: a share, printed in percent and
compared in percentage points. ``utility`` and ``ratio``: plain numbers."""
Group = Literal["threshold consistency", "calibration range", "verification", "retrieval"]
Events = Literal["classes", "pairs of classes"]


@dataclass(frozen=True)
class Score:
    """One score."""

    name: str
    """As JSON, CSV files and loggers have it."""
    title: str
    """As people read it where the settings are not at hand."""
    meaning: str
    """One sentence for a reader who sees the score for the first time."""
    group: Group
    unit: Unit
    lower_is_better: bool
    bounds: tuple[float, float]
    """Between which the score lies by definition."""
    read: Callable[[Evaluation], float]
    """Reads the score off an evaluation; NaN where it is unknown."""
    title_with_settings: str = ""
    """The title where they are: ``{epsilon}``, ``{target_far}`` and ``{target_frr}`` stand for them."""
    relative: bool = False
    """Whether a difference is quoted as a percentage of the first model's value."""
    events: Events | None = None
    """For rates: what can each show an error, so that none among so many bounds the rate from above."""
    own: bool = False
    """Whether it is this project's own and not from the literature."""

    def title_for(self, settings: Settings) -> str:
        """Give the title with the settings filled in.

        >>> from isomargin.measure.settings import Settings
        >>> SCORES["epsilon_opis"].title_for(Settings()), SCORES["frr"].title_for(Settings())
        ('10%-OPIS', 'FRR at FAR 1%')
        """
        names = ("epsilon", "target_far", "target_frr")
        filled = {name: f"{100 * getattr(settings, name):g}%" for name in names}
        return (self.title_with_settings or self.title).format(**filled)

    @property
    def direction(self) -> str:
        """Which direction is better, in words."""
        return "lower is better" if self.lower_is_better else "higher is better"

    def text(self, value: float) -> str:
        """Print a value.

        >>> SCORES["eer"].text(0.0383), SCORES["opis"].text(0.00184412), SCORES["debiased_opis"].text(float("nan"))
        ('3.83%', '0.001844', 'unknown')
        """
        if math.isnan(value):
            return "unknown"
        return f"{value:.2%}" if self.unit == "rate" else f"{value:.4f}" if self.unit == "utility" else f"{value:.4g}"

    def difference_text(self, difference: float) -> str:
        """Print a difference of two values, with its sign.

        >>> SCORES["eer"].difference_text(-0.012), SCORES["opis"].difference_text(0.0001)
        ('-1.20 points', '+0.0001')
        """
        return f"{100 * difference:+.2f} points" if self.unit == "rate" else f"{difference:+.2g}"


_UNBOUNDED = (-math.inf, math.inf)
_OPIS: dict[str, Any] = {
    "group": "threshold consistency",
    "unit": "squared_utility",
    "lower_is_better": True,
    "bounds": (0.0, 1.0),
    "relative": True,
}
_VERIFICATION: dict[str, Any] = {"group": "verification", "unit": "rate", "bounds": (0.0, 1.0)}
_RETRIEVAL: dict[str, Any] = {
    "group": "retrieval",
    "unit": "rate",
    "lower_is_better": False,
    "bounds": (0.0, 1.0),
    "events": "classes",
}

_RECALL = Score(
    "recall@k",
    "recall@k",
    "Share of queries with an item of their class among their k nearest others.",
    read=lambda evaluation: math.nan,
    **_RETRIEVAL,
)

_FIXED = (
    Score(
        "opis",
        "OPIS",
        "Variance over classes of the utility at one threshold, averaged over the calibration range.",
        read=lambda evaluation: evaluation.opis,
        **_OPIS,
    ),
    Score(
        "debiased_opis",
        "OPIS without item noise",
        "OPIS without what the noise of few items per class adds to it.",
        read=lambda evaluation: evaluation.debiased_opis,
        own=True,
        **{**_OPIS, "bounds": _UNBOUNDED},
    ),
    Score(
        "epsilon_opis",
        "ε-OPIS",
        "Squared gap in utility between the best and the worst share ε of the classes.",
        read=lambda evaluation: evaluation.epsilon_opis,
        title_with_settings="{epsilon}-OPIS",
        **_OPIS,
    ),
    Score(
        "relative_opis",
        "OPIS / squared mean disutility",
        "OPIS relative to how far the mean utility is from 1: it does not fall when every class merely gets better.",
        read=lambda evaluation: evaluation.relative_opis,
        own=True,
        **{**_OPIS, "bounds": (0.0, math.inf), "unit": "ratio"},
    ),
    Score(
        "far_threshold_spread",
        "spread of class thresholds at the target FAR",
        "Standard deviation over classes of the threshold that each would need for the target FAR, in widths of the "
        "calibration range.",
        read=lambda evaluation: evaluation.far_threshold_spread.relative_deviation,
        title_with_settings="spread of class thresholds at FAR {target_far}",
        own=True,
        **{**_OPIS, "bounds": (0.0, math.inf), "unit": "ratio"},
    ),
    Score(
        "frr_threshold_spread",
        "spread of class thresholds at the target FRR",
        "Standard deviation over classes of the threshold that each would need for the target FRR, in widths of the "
        "calibration range.",
        read=lambda evaluation: evaluation.frr_threshold_spread.relative_deviation,
        title_with_settings="spread of class thresholds at FRR {target_frr}",
        own=True,
        **{**_OPIS, "bounds": (0.0, math.inf), "unit": "ratio"},
    ),
    Score(
        "mean_utility",
        "mean utility",
        "Mean over classes and over the calibration range of the utility, the harmonic mean of specificity and "
        "sensitivity.",
        group="calibration range",
        unit="utility",
        lower_is_better=False,
        bounds=(0.0, 1.0),
        read=lambda evaluation: evaluation.mean_utility,
    ),
    Score(
        "far",
        "FAR at the target threshold",
        "Share of negative pairs that are accepted at the threshold for the target FAR.",
        lower_is_better=True,
        read=lambda evaluation: evaluation.target.far,
        title_with_settings="FAR at the threshold for {target_far}",
        events="pairs of classes",
        **_VERIFICATION,
    ),
    Score(
        "frr",
        "FRR at the target FAR",
        "Share of positive pairs that are rejected at the threshold for the target FAR.",
        lower_is_better=True,
        read=lambda evaluation: evaluation.target.frr,
        title_with_settings="FRR at FAR {target_far}",
        events="classes",
        **_VERIFICATION,
    ),
    Score(
        "eer",
        "equal error rate",
        "The rate at which as large a share of negative pairs is accepted as of positive pairs is rejected.",
        lower_is_better=True,
        read=lambda evaluation: evaluation.eer,
        events="pairs of classes",
        **_VERIFICATION,
    ),
    Score(
        "auc",
        "ROC AUC",
        "Probability that a positive pair is nearer than a negative pair.",
        lower_is_better=False,
        read=lambda evaluation: evaluation.auc,
        **{**_VERIFICATION, "unit": "utility"},
    ),
    Score(
        "r_precision",
        "R-precision",
        "Mean over queries of the share of positives among the R nearest, R being their number.",
        read=lambda evaluation: evaluation.r_precision,
        **_RETRIEVAL,
    ),
    Score(
        "map_at_r",
        "MAP@R",
        "Mean average precision among the R nearest, R being the number of the query's positives.",
        read=lambda evaluation: evaluation.map_at_r,
        **_RETRIEVAL,
    ),
)

SCORES: dict[str, Score] = {score.name: score for score in _FIXED}
"""Every score by its name, except recall@k, which has one per number of neighbours: `find_score` gives those too."""


def find_score(name: str) -> Score:
    """Give a score by its name, also recall@k for any k.

    >>> find_score("recall@5").title, find_score("eer").unit
    ('recall@5', 'rate')
    >>> find_score("opsi")
    Traceback (most recent call last):
    isomargin.InputError: there is no score 'opsi': did you mean 'opis'?
    """
    if match := re.fullmatch(r"recall@(\d+)", name):
        k = int(match[1])
        meaning = _RECALL.meaning.replace("their k nearest", f"their {k} nearest" if k > 1 else "their nearest")
        return replace(
            _RECALL,
            name=name,
            title=name,
            meaning=meaning if k > 1 else "Share of queries whose nearest other item is of their class.",
            read=lambda evaluation: evaluation.recall_at_k.get(k, math.nan),
        )
    if name not in SCORES:
        raise InputError(f"there is no score {name!r}: {nearest(name, [*SCORES, 'recall@1'])}")
    return SCORES[name]


def scores_of(evaluation: Evaluation) -> dict[str, Score]:
    """List the scores that an evaluation has, by name in the order in which they are shown."""
    recall = {f"recall@{k}": find_score(f"recall@{k}") for k in evaluation.recall_at_k}
    fixed = {name: score for name, score in SCORES.items() if score.group != "retrieval"}
    ranks = {name: score for name, score in SCORES.items() if score.group == "retrieval"}
    return {**fixed, **recall, **ranks}
