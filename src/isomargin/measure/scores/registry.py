"""The registry of scores: name, title, meaning, unit, direction and bounds of each, and how to read it.

Tables, JSON, confidence intervals, comparisons, training metrics, the report, the lab and the documentation all use
this registry. To add a score, add it here and to ``tests/reference.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from isomargin.core.checks import nearest
from isomargin.core.errors import InputError
from isomargin.core.text import percent
from isomargin.measure.settings import Comparison

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.identification import IdentificationPoint
    from isomargin.measure.settings import Settings

Unit = Literal["squared_utility", "utility", "rate", "ratio"]
"""``squared_utility``: OPIS and scores derived from it, compared in relative terms. ``rate``: a share, printed in
percent and compared in percentage points. ``utility`` and ``ratio``: plain numbers."""
Group = Literal["threshold consistency", "calibration range", "verification", "identification", "retrieval"]
Events = Literal["classes", "pairs of classes", "classes that count", "unknown classes"]


@dataclass(frozen=True)
class Score:
    """What the project knows about one score."""

    name: str
    """The name in JSON, CSV files and loggers."""
    title: str
    """The title shown to people where the settings are unknown."""
    meaning: str
    """One sentence for a reader who sees the score for the first time."""
    group: Group
    """The heading under which the score is shown."""
    unit: Unit
    """The unit, which decides how values and differences are printed."""
    lower_is_better: bool
    """Whether lower values are better."""
    bounds: tuple[float, float]
    """The smallest and the largest value that the score can have by definition."""
    read: Callable[[Evaluation], float]
    """Returns the score of an evaluation; NaN if it is unknown."""
    title_with_settings: str = ""
    """The title where the settings are known; may contain ``{epsilon}``, ``{target_far}``,
    ``{target_frr}`` and ``{target_fpir}``."""
    relative: bool = False
    """Whether differences are quoted as a percentage of the first model's value."""
    events: Events | None = None
    """For rates: the independent units in which an error can occur. If none occurs, their number bounds the rate."""
    own: bool = False
    """Whether this project defined the score, rather than the literature."""
    on_request: bool = False
    """Whether the score is only for comparison with published numbers: it is then left out of tables and `scalars`."""
    comparisons: tuple[Comparison, ...] = get_args(Comparison)
    """The comparisons that have this score; others leave it out of tables and `scalars`."""

    def title_for(self, settings: Settings) -> str:
        """Return the title with the values of the settings.

        >>> from isomargin.measure.settings import Settings
        >>> SCORES["epsilon_opis"].title_for(Settings()), SCORES["frr"].title_for(Settings())
        ('10%-OPIS', 'FRR at FAR 1%')
        """
        names = ("epsilon", "target_far", "target_frr", "target_fpir")
        filled = {name: percent(getattr(settings, name), 6) for name in names}
        return (self.title_with_settings or self.title).format(**filled)

    @property
    def direction(self) -> str:
        """Which direction is better: "lower is better" or "higher is better"."""
        return "lower is better" if self.lower_is_better else "higher is better"

    def text(self, value: float) -> str:
        """Format a value.

        >>> SCORES["eer"].text(0.0383), SCORES["opis"].text(0.00184412), SCORES["debiased_opis"].text(float("nan"))
        ('3.83%', '0.001844', 'unknown')
        """
        if math.isnan(value):
            return "unknown"
        return f"{value:.2%}" if self.unit == "rate" else f"{value:.4f}" if self.unit == "utility" else f"{value:.4g}"

    def difference_text(self, difference: float) -> str:
        """Format the difference of two values, with its sign.

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
_WITHIN_TWO: dict[str, Any] = {
    "group": "threshold consistency",
    "unit": "rate",
    "lower_is_better": False,
    "bounds": (0.0, 1.0),
    "events": "classes that count",
    "own": True,
}
_VERIFICATION: dict[str, Any] = {"group": "verification", "unit": "rate", "bounds": (0.0, 1.0)}
_IDENTIFICATION: dict[str, Any] = {
    "group": "identification",
    "unit": "rate",
    "lower_is_better": True,
    "bounds": (0.0, 1.0),
    "comparisons": ("gallery",),
}
_TRIALS: dict[str, Any] = {
    "group": "verification",
    "unit": "ratio",
    "lower_is_better": True,
    "bounds": (0.0, 1.0),
    "comparisons": ("trials",),
}
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
    "Share of queries with at least one item of their own class among their k nearest neighbours.",
    read=lambda evaluation: math.nan,
    **_RETRIEVAL,
)

_FIXED = (
    Score(
        "opis",
        "OPIS",
        "How much the classes differ in utility at one threshold: the variance over classes, averaged over the "
        "calibration range.",
        read=lambda evaluation: evaluation.opis,
        **_OPIS,
    ),
    Score(
        "printed_opis",
        "OPIS as printed in Algorithm 1",
        "OPIS as the paper's Algorithm 1 prints it: the sum over the grid without its step width, divided by the width "
        "of the calibration range. It grows with the number of grid points.",
        read=lambda evaluation: evaluation.printed_opis,
        on_request=True,
        **{**_OPIS, "bounds": (0.0, math.inf)},
    ),
    Score(
        "debiased_opis",
        "OPIS without item noise",
        "OPIS minus the part that is noise because classes have few items.",
        read=lambda evaluation: evaluation.debiased_opis,
        own=True,
        **{**_OPIS, "bounds": _UNBOUNDED},
    ),
    Score(
        "epsilon_opis",
        "ε-OPIS",
        "Squared difference in utility between the best and the worst share ε of the classes, averaged over the "
        "calibration range.",
        read=lambda evaluation: evaluation.epsilon_opis,
        title_with_settings="{epsilon}-OPIS",
        **_OPIS,
    ),
    Score(
        "relative_opis",
        "OPIS / squared mean disutility",
        "OPIS divided by the squared distance of the mean utility from 1: unlike OPIS, it does not fall when all "
        "classes improve by the same factor.",
        read=lambda evaluation: evaluation.relative_opis,
        own=True,
        **{**_OPIS, "bounds": (0.0, math.inf), "unit": "ratio"},
    ),
    Score(
        "far_threshold_spread",
        "spread of class thresholds at the target FAR",
        "Standard deviation of the thresholds that the classes need for the target FAR, divided by the width of the "
        "calibration range.",
        read=lambda evaluation: evaluation.far_threshold_spread.relative_deviation,
        title_with_settings="spread of class thresholds at FAR {target_far}",
        own=True,
        **{**_OPIS, "bounds": (0.0, math.inf), "unit": "ratio"},
    ),
    Score(
        "frr_threshold_spread",
        "spread of class thresholds at the target FRR",
        "Standard deviation of the thresholds that the classes need for the target FRR, divided by the width of the "
        "calibration range.",
        read=lambda evaluation: evaluation.frr_threshold_spread.relative_deviation,
        title_with_settings="spread of class thresholds at FRR {target_frr}",
        own=True,
        **{**_OPIS, "bounds": (0.0, math.inf), "unit": "ratio"},
    ),
    Score(
        "far_within_two",
        "classes near the target FAR",
        "Share of classes whose FAR lies between half and twice the target, at the pooled threshold for it; classes "
        "with so few pairs that fewer than ten false accepts are expected are left out.",
        read=lambda evaluation: evaluation.far_within_two.share,
        title_with_settings="classes within a factor of two of FAR {target_far}",
        **_WITHIN_TWO,
    ),
    Score(
        "frr_within_two",
        "classes near the target FRR",
        "Share of classes whose FRR lies between half and twice the target, at the pooled threshold for it; classes "
        "with so few pairs that fewer than ten false rejects are expected are left out.",
        read=lambda evaluation: evaluation.frr_within_two.share,
        title_with_settings="classes within a factor of two of FRR {target_frr}",
        **_WITHIN_TWO,
    ),
    Score(
        "mean_utility",
        "mean utility",
        "Utility (by default the harmonic mean of specificity and sensitivity), averaged over classes and over the "
        "calibration range.",
        group="calibration range",
        unit="utility",
        lower_is_better=False,
        bounds=(0.0, 1.0),
        read=lambda evaluation: evaluation.mean_utility,
    ),
    Score(
        "far",
        "FAR at the target threshold",
        "False accept rate: the share of negative pairs that the threshold for the target FAR accepts.",
        lower_is_better=True,
        read=lambda evaluation: evaluation.target.far,
        title_with_settings="FAR at the threshold for {target_far}",
        events="pairs of classes",
        **_VERIFICATION,
    ),
    Score(
        "frr",
        "FRR at the target FAR",
        "False reject rate: the share of positive pairs that the threshold for the target FAR rejects.",
        lower_is_better=True,
        read=lambda evaluation: evaluation.target.frr,
        title_with_settings="FRR at FAR {target_far}",
        events="classes",
        **_VERIFICATION,
    ),
    Score(
        "eer",
        "equal error rate",
        "The error rate at the threshold where the false accept rate equals the false reject rate.",
        lower_is_better=True,
        read=lambda evaluation: evaluation.eer,
        events="pairs of classes",
        **_VERIFICATION,
    ),
    Score(
        "auc",
        "ROC AUC",
        "Area under the ROC curve: the probability that a random positive pair is closer than a random negative pair.",
        lower_is_better=False,
        read=lambda evaluation: evaluation.auc,
        **{**_VERIFICATION, "unit": "utility"},
    ),
    Score(
        "fpir",
        "FPIR at the target threshold",
        "False positive identification rate: the share of unknown probes for which the threshold for the target FPIR "
        "accepts any class.",
        read=lambda evaluation: at_target(evaluation.fpir_target, "fpir"),
        title_with_settings="FPIR at the threshold for {target_fpir}",
        events="unknown classes",
        **_IDENTIFICATION,
    ),
    Score(
        "fnir",
        "FNIR at the target FPIR",
        "False negative identification rate: the share of known probes whose own class the threshold for the target "
        "FPIR does not accept, or does not come first.",
        read=lambda evaluation: at_target(evaluation.fpir_target, "fnir"),
        title_with_settings="FNIR at FPIR {target_fpir}",
        events="classes",
        **_IDENTIFICATION,
    ),
    Score(
        "misidentified",
        "misidentified at the target FPIR",
        "Share of known probes for which another class comes first and is accepted, at the threshold for the target "
        "FPIR.",
        read=lambda evaluation: at_target(evaluation.fpir_target, "misidentified"),
        title_with_settings="misidentified at FPIR {target_fpir}",
        events="classes",
        **_IDENTIFICATION,
    ),
    Score(
        "margin_fnir",
        "FNIR at the target FPIR by margin",
        "FNIR of another rule: no threshold, but the first class is accepted if its similarity exceeds that of the "
        "second by a margin, which is chosen for the target FPIR.",
        read=lambda evaluation: at_target(evaluation.fpir_margin_target, "fnir"),
        title_with_settings="FNIR at FPIR {target_fpir}, by margin alone",
        events="classes",
        own=True,
        **_IDENTIFICATION,
    ),
    Score(
        "min_dcf",
        "minDCF",
        "Least detection cost of any threshold, for a prior and the costs of both errors, divided by the cost of the "
        "better of accepting and rejecting every trial (as NIST normalises it); for trials.",
        read=lambda evaluation: evaluation.min_dcf,
        **_TRIALS,
    ),
    Score(
        "min_cllr",
        "minCllr",
        "Cost of log likelihood ratios in bits, after the best increasing map from scores to ratios (PAV): how well "
        "the scores separate; for trials.",
        read=lambda evaluation: evaluation.min_cllr,
        **_TRIALS,
    ),
    Score(
        "cllr",
        "Cllr of calibrated scores",
        "Cost of log likelihood ratios in bits, after logistic regression that was fitted without the groups of the "
        "trial: how well the scores separate and can be calibrated; for trials.",
        read=lambda evaluation: evaluation.cllr,
        **{**_TRIALS, "bounds": (0.0, math.inf)},
    ),
    Score(
        "r_precision",
        "R-precision",
        "Share of items of the query's class among its R nearest neighbours, where R is the number of other items of "
        "that class, averaged over queries.",
        read=lambda evaluation: evaluation.r_precision,
        **{**_RETRIEVAL, "comparisons": ("all_pairs",)},
    ),
    Score(
        "map_at_r",
        "MAP@R",
        "Average precision among the R nearest neighbours, where R is the number of other items of the query's class, "
        "averaged over queries.",
        read=lambda evaluation: evaluation.map_at_r,
        **{**_RETRIEVAL, "comparisons": ("all_pairs",)},
    ),
)

SCORES: dict[str, Score] = {score.name: score for score in _FIXED}
"""Every score by name, except recall@k, which exists for every k: `find_score` returns those too."""


def at_target(point: IdentificationPoint | None, rate: str) -> float:
    """Return a rate of identification; NaN if there are too few unknown probes."""
    return math.nan if point is None else float(getattr(point, rate))


def find_score(name: str) -> Score:
    """Return a score by its name, including recall@k for any k.

    >>> find_score("recall@5").title, find_score("eer").unit
    ('recall@5', 'rate')
    >>> find_score("opsi")
    Traceback (most recent call last):
    isomargin.InputError: there is no score 'opsi': did you mean 'opis'?
    """
    if match := re.fullmatch(r"recall@(\d+)", name):
        k = int(match[1])
        meaning = _RECALL.meaning.replace("their k nearest", f"their {k} nearest")
        return replace(
            _RECALL,
            name=name,
            title=name,
            meaning=meaning if k > 1 else "Share of queries whose nearest neighbour is of their own class.",
            read=lambda evaluation: evaluation.recall_at_k.get(k, math.nan),
        )
    if name not in SCORES:
        raise InputError(f"there is no score {name!r}: {nearest(name, [*SCORES, 'recall@1'])}")
    return SCORES[name]


def scores_of(evaluation: Evaluation) -> dict[str, Score]:
    """Return the scores that an evaluation has, by name, in the order in which they are shown.

    Scores on request, such as `printed_opis`, are not among them, nor are those of other kinds of comparison, nor
    those over classes if there are none.
    """
    recall = {f"recall@{k}": find_score(f"recall@{k}") for k in evaluation.recall_at_k}
    usual = {
        name: score
        for name, score in SCORES.items()
        if not score.on_request
        and evaluation.comparison in score.comparisons
        and (score.group != "threshold consistency" or evaluation.has_curves)
        and (score.group != "calibration range" or len(evaluation.with_curve) > 0)
    }
    fixed = {name: score for name, score in usual.items() if score.group != "retrieval"}
    ranks = {name: score for name, score in usual.items() if score.group == "retrieval"}
    return {**fixed, **recall, **ranks}
