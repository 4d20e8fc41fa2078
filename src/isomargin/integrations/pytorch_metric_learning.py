"""Threshold consistency in the testers of pytorch-metric-learning: an accuracy calculator, and a hook that logs."""

from collections.abc import Callable
from functools import cache
from typing import Any

from isomargin.integrations._packages import prepare

prepare("pytorch_metric_learning")

from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from isomargin.core.errors import InputError
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.gallery import evaluate_gallery
from isomargin.measure.scores.registry import find_score
from isomargin.measure.settings import Settings

__all__ = ["ThresholdConsistencyCalculator", "logging_hook"]

GALLERY_SETTINGS = ("pairs", "negatives_per_positive", "seed", "exact", "device", "map_at_r")


class ThresholdConsistencyCalculator(AccuracyCalculator):
    """An `AccuracyCalculator` that also returns OPIS, ε-OPIS and other scores of `isomargin.evaluate`.

    It adds ``opis``, ``epsilon_opis``, ``debiased_opis``, ``far_within_two``, ``frr_within_two``, ``eer`` and ``frr``,
    which is the FRR at the target FAR; `include` and `exclude` choose among these and the library's own. Pairs are
    compared once for all of them: those of all queries or, if the references are other items, those of each query with
    each reference.

    Args:
        settings: settings of `isomargin.evaluate` as a dictionary, such as ``{"far": (1e-3, 1e-2)}``.
        threads: number of CPU threads; by default one per core.
        arguments: those of `AccuracyCalculator`.
    """

    def __init__(
        self, *arguments: Any, settings: dict[str, Any] | None = None, threads: int | None = None, **others: Any
    ) -> None:
        Settings.from_values(**(settings or {}))
        self.settings, self.threads = settings or {}, threads
        super().__init__(*arguments, **others)

    def _get_accuracy(self, function_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Compute the scores, with an evaluation that is made when the first of them asks for it."""
        found: dict[str, Any] = super()._get_accuracy(
            function_dict, evaluation=cache(lambda: self.evaluate(**kwargs)), **kwargs
        )
        return found

    def evaluate(
        self, query: Any, query_labels: Any, reference: Any, reference_labels: Any, ref_includes_query: bool, **_: Any
    ) -> Evaluation:
        """Evaluate the queries, or their comparison with other references."""
        settings = {"k": (1,), **self.settings, "threads": self.threads, "progress": None}
        query_labels, reference_labels = query_labels.flatten(), reference_labels.flatten()
        if not ref_includes_query:
            unused = [name for name in GALLERY_SETTINGS if name in settings]
            if unused:
                raise InputError(
                    f"{', '.join(unused)} cannot be set if the references are not the queries: leave it out"
                )
            return evaluate_gallery(reference, reference_labels, query, query_labels, template="each", **settings)
        if len(reference) > len(query):
            raise InputError(
                f"the references are the {len(query):,} queries and {len(reference) - len(query):,} other items: "
                "threshold consistency needs references that are the queries, or only other items; exclude its scores"
            )
        return evaluate(query, query_labels, **{"map_at_r": False, **settings})

    def calculate_opis(self, evaluation: Any, **_: Any) -> float:
        """Return OPIS."""
        return find_score("opis").read(evaluation())

    def calculate_epsilon_opis(self, evaluation: Any, **_: Any) -> float:
        """Return ε-OPIS."""
        return find_score("epsilon_opis").read(evaluation())

    def calculate_debiased_opis(self, evaluation: Any, **_: Any) -> float:
        """Return OPIS without item noise."""
        return find_score("debiased_opis").read(evaluation())

    def calculate_far_within_two(self, evaluation: Any, **_: Any) -> float:
        """Return the share of classes whose FAR is within a factor of two of the target."""
        return find_score("far_within_two").read(evaluation())

    def calculate_frr_within_two(self, evaluation: Any, **_: Any) -> float:
        """Return the share of classes whose FRR is within a factor of two of the target."""
        return find_score("frr_within_two").read(evaluation())

    def calculate_frr(self, evaluation: Any, **_: Any) -> float:
        """Return the pooled false reject rate at the target FAR."""
        return find_score("frr").read(evaluation())

    def calculate_eer(self, evaluation: Any, **_: Any) -> float:
        """Return the equal error rate."""
        return find_score("eer").read(evaluation())


def logging_hook(log: Callable[[str, float, int], Any], prefix: str = "") -> Callable[[Any], None]:
    """Return an ``end_of_testing_hook`` for a tester, which logs every number of every split.

    Args:
        log: a function of name, value and epoch, such as ``SummaryWriter(...).add_scalar``.
        prefix: what stands before the names.

    >>> from types import SimpleNamespace
    >>> tester = SimpleNamespace(all_accuracies={"val": {"epoch": 3, "opis_level0": 0.002}})
    >>> logging_hook(print)(tester)
    val/opis_level0 0.002 3
    """

    def hook(tester: Any) -> None:
        for split, accuracies in tester.all_accuracies.items():
            for name, value in accuracies.items():
                if name != "epoch" and isinstance(value, int | float):
                    log(f"{prefix}{split}/{name}", value, accuracies["epoch"])

    return hook
