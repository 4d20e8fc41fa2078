"""What fitting an adapter results in: the adapter, how it compares with doing nothing, and which of the two to use.

Four candidates are compared on classes that were used neither for training nor for choosing settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from isomargin.core.json_values import null_for_nan
from isomargin.equalize.adapter import Adapter
from isomargin.measure.comparison import Comparison, Difference
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores.registry import find_score
from isomargin.training.linear_layer import LayerSettings

Candidate = Literal["raw", "equalizer", "adapter", "adapter + equalizer"]
CANDIDATES: tuple[Candidate, ...] = get_args(Candidate)
SHOWN = ("recall@1", "eer", "frr", "opis", "far_threshold_spread")
"""The scores by which the candidates are compared."""
LEVEL = 0.05  # of significance; with very few classes p values are larger than intervals suggest
WORST = 0.1  # the share of the classes with the lowest utility that must not lose
ALL_CLASSES = "all classes"

WHAT_TO_DO: dict[Candidate, str] = {
    "raw": "keep the raw embeddings",
    "equalizer": "keep the raw embeddings and use an equalizer",
    "adapter": "use the adapter",
    "adapter + equalizer": "use the adapter with an equalizer",
}


@dataclass(frozen=True)
class Look:
    """Settings that were tried, and what they led to on the selection classes."""

    settings: LayerSettings
    frr: float
    """FRR at FAR 1% of the selection classes."""


@dataclass(frozen=True, eq=False)
class AdaptResult:
    """The result of `isomargin.fit_adapter`."""

    adapter: Adapter
    """The adapter, fitted on all classes unless `refit` was False; with an equalizer if that is recommended."""
    recommended: Candidate
    """The candidate to use; `recommend` says how it is found."""
    evaluations: Mapping[str, Evaluation]
    """Every candidate on the judgement classes."""
    comparison: Comparison
    """How the candidates differ from the raw embeddings."""
    settings: LayerSettings
    """The chosen settings."""
    search: tuple[Look, ...]
    """What was tried to choose them."""
    classes: Mapping[str, int]
    """Number of classes for ``training``, ``selection`` and ``judgement``, and of those ``left_out``."""
    notes: tuple[str, ...] = ()
    """What the user should know about the data and the comparison."""

    @property
    def recommendation(self) -> str:
        """One sentence: what to do, and why."""
        title = find_score("frr").title_for(self.evaluations["raw"].settings)
        if self.recommended == "raw":
            return (
                f"Recommended: {WHAT_TO_DO['raw']}, because nothing lowers {title} significantly without harm to "
                "recall@1 or to the worst classes."
            )
        row = difference(self.comparison, self.recommended, "frr")
        ends = " to ".join(f"{100 * end:+.1f}" for end in (row.difference.low, row.difference.high))
        return (
            f"Recommended: {WHAT_TO_DO[self.recommended]}, which lowers {title} from {row.first:.1%} to "
            f"{row.other:.1%} ({self.comparison.confidence:.0%} interval of the change {ends} points)."
        )

    def as_values(self) -> dict[str, Any]:
        """Return everything except the weights as JSON values."""
        return {
            "recommended": self.recommended,
            "recommendation": self.recommendation,
            **self.adapter.record,
            "comparison": self.comparison.as_values(),
            "search": [{**asdict(look.settings), "frr": look.frr} for look in self.search],
            "notes": list(self.notes),
        }


def recommend(evaluations: Mapping[str, Evaluation], comparison: Comparison) -> Candidate:
    """Return the candidate to use: the lowest FRR at FAR 1% among those that lower it significantly and do no harm.

    If there is none, the raw embeddings are recommended. Where nothing helps, each of the three candidates looks
    significantly better in 2.5% of cases, so one of them is recommended by chance in at most 7.5%; in more with fewer
    than 20 judgement classes, whose intervals are too narrow.
    """
    usable: dict[Candidate, float] = {}
    for name in CANDIDATES[1:]:
        row = difference(comparison, name, "frr")
        significant = row.certain and row.p_value <= LEVEL
        if row.better and significant and not harms(name, evaluations, comparison):
            usable[name] = row.other
    return min(usable, key=lambda name: usable[name], default="raw")


def harms(name: str, evaluations: Mapping[str, Evaluation], comparison: Comparison) -> bool:
    """Return whether a candidate has a significantly worse recall@1, or a worse OPIS at the cost of some classes.

    OPIS is low where all classes are equally bad, and rises when some of them improve more than others. That alone is
    no harm: the worst tenth of the classes must have lost utility as well.
    """
    recall, opis = (difference(comparison, name, score) for score in ("recall@1", "opis"))
    less_consistent = opis.certain and not opis.better
    worst_lose = worst_utility(evaluations[name]) < worst_utility(evaluations["raw"])
    return (recall.certain and not recall.better) or (less_consistent and worst_lose)


def worst_utility(evaluation: Evaluation) -> float:
    """Return the mean utility that the worst tenth of the classes do not exceed."""
    return float(np.quantile(evaluation.curves.class_mean_utility, WORST))


def difference(comparison: Comparison, name: str, score: str) -> Difference:
    """Return how one score of a candidate differs from that of the raw embeddings."""
    return next(row for row in comparison.others[name] if row.score == score)


def scores_of_candidates(evaluations: Mapping[str, Evaluation]) -> dict[str, dict[str, float | None]]:
    """Return the scores that are shown of each candidate, as JSON values."""
    return {
        candidate: {name: null_for_nan(find_score(name).read(evaluation)) for name in SHOWN}
        for candidate, evaluation in evaluations.items()
    }
