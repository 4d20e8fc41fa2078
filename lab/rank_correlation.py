"""How the error and OPIS of an experiment's runs are ranked, which the paper's Figure 3 shows as a front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lab.choices import is_derived
from lab.score_text import signs

LEAST = 3  # runs; two are always ranked perfectly


def rank_sentences(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Give Spearman's rank correlation of error and OPIS over the trained runs of each setting, from rows of runs.csv.

    >>> runs = [{"setting": "a", "training": "plain", "recall@1": f"{0.5 + at / 100}", "opis": f"{opis}"}
    ...         for at, opis in ((1, 3), (2, 2), (3, 1))]
    >>> print(rank_sentences(runs)[0])
    a: Spearman's rank correlation of 1 − recall@1 and OPIS is +1.00 over all 3 trained models.
    """
    sentences = []
    for setting in dict.fromkeys(run["setting"] for run in runs):
        here = [run for run in runs if run["setting"] == setting and not is_derived(run)]
        groups = {f"all {len(here)} trained models": here}
        trainings = list(dict.fromkeys(run.get("training", "") for run in here))
        if len(trainings) > 1:
            for training in trainings:
                some = [run for run in here if run.get("training") == training]
                groups[f"the {len(some)} with {training}"] = some
                shortest = here[0].get("length")  # in which models have hardly begun to learn
                trained = [run for run in some if run.get("length") != shortest]
                if shortest and len(trained) < len(some):
                    groups[f"the {len(trained)} of these that are not {shortest}"] = trained
        found = {which: spearman(group) for which, group in groups.items() if len(group) >= LEAST}
        parts = [f"{value:+.2f} over {which}" for which, value in found.items() if not math.isnan(value)]
        if parts:
            listed = signs(", ".join(parts))
            sentences.append(f"{setting}: Spearman's rank correlation of 1 − recall@1 and OPIS is {listed}.")
    return sentences


def spearman(runs: Sequence[Mapping[str, str]]) -> float:
    """Compute the rank correlation of error and OPIS; positive where the models that err less are more consistent.

    NaN where all models have the same error or OPIS.
    """
    from scipy.stats import spearmanr

    errors, opis = ([factor * float(run[name]) for run in runs] for name, factor in (("recall@1", -1), ("opis", 1)))
    if len(set(errors)) == 1 or len(set(opis)) == 1:
        return math.nan
    return float(spearmanr(errors, opis).statistic)
