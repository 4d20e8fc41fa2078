"""How scores and their changes are written in tables."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isomargin.measure.scores.registry import SCORES, Score, find_score
from isomargin.measure.settings import Settings

FACTORS = {"squared_utility": 1e3, "rate": 100.0}
"""By unit, what scores are multiplied by before they are written; other units are written as they are."""
SUFFIXES = {"squared_utility": " ×1e-3", "rate": " %"}
NOTHING = "–"


def score_of(column: str) -> Score | None:
    """Give the score that a column holds; None where it holds something else, such as seconds."""
    return find_score(column) if column in SCORES or column.startswith("recall@") else None


def title(column: str) -> str:
    """Name a column, with its unit.

    >>> title("opis"), title("epsilon_opis"), title("recall@1"), title("calibration_low")
    ('OPIS ×1e-3', '10%-OPIS ×1e-3', 'recall@1 %', 'calibration_low')
    """
    score = score_of(column)
    return column if score is None else score.title_for(Settings()) + SUFFIXES.get(score.unit, "")


def unit(column: str) -> float:
    """Give the factor that a column is multiplied by before it is written.

    >>> unit("opis"), unit("recall@1"), unit("far_threshold_spread")
    (1000.0, 100.0, 1.0)
    """
    score = score_of(column)
    return 1.0 if score is None else FACTORS.get(score.unit, 1.0)


def score_text(row: Mapping[str, str], name: str, score: str | None = None) -> str:
    """Write the value of a column in the unit of a score, by default the score of that name; a dash where it is empty.

    >>> row = {"opis": "0.0018436", "recall@1": "0.98067", "opis deviation": "0.00012", "eer": ""}
    >>> score_text(row, "opis"), score_text(row, "recall@1"), score_text(row, "opis deviation", "opis")
    ('1.84', '98.07', '0.12')
    >>> score_text(row, "eer")
    '–'
    """
    if not row.get(name):
        return NOTHING
    factor = unit(score or name)
    digits = ".2f" if factor == 100 else ".3g"
    return signs(f"{factor * float(row[name]):{digits}}")


def change_text(row: Mapping[str, str], score: str, compared: str = "") -> str:
    """Write how a score has changed, with its interval; nothing where a row has no change.

    `compared` is what the columns of another comparison than the usual one have behind them, such as ``" from raw"``.

    OPIS and its variants change by a percentage, shares by percentage points. Times have the range of a few
    measurements in place of an interval.

    >>> change_text({"opis change": "-0.3", "opis change low": "-0.4", "opis change high": "-0.1"}, "opis")
    '−30% (−40 to −10)'
    >>> points = {"": "-0.001", " low": "-0.002", " high": "-0.0005"}
    >>> change_text({f"recall@1 difference{part}": value for part, value in points.items()}, "recall@1")
    '−0.10 (−0.20 to −0.05)'
    >>> change_text({f"debiased_opis difference{part}": value for part, value in points.items()}, "debiased_opis")
    '−1.00 (−2.00 to −0.50)'
    >>> change_text({"loss change": "0.02", "loss change lowest": "-0.01", "loss change highest": "0.031"}, "loss")
    '+2.0% (−1.0 to +3.1)'
    """
    for kind, ends, factor, form in (
        ("change", (" lowest", " highest"), 100.0, "{:+.1f}% ({:+.1f} to {:+.1f})"),
        ("change", (" low", " high"), 100.0, "{:+.0f}% ({:+.0f} to {:+.0f})"),
        ("difference", (" low", " high"), unit(score), "{:+.2f} ({:+.2f} to {:+.2f})"),
    ):
        texts = [row.get(f"{score} {kind}{compared}{part}", "") for part in ("", *ends)]
        if all(texts):
            return signs(form.format(*(factor * float(text) for text in texts)))
    return ""


def signs(text: str) -> str:
    """Write minus signs in place of hyphens."""
    return text.replace("-", "−")


def tau_text(tau: float) -> str:
    """Write Kendall's tau; a dash where there is none.

    >>> tau_text(-1 / 3), tau_text(math.nan)
    ('−0.33', '–')
    """
    return NOTHING if math.isnan(tau) else signs(f"{tau:.2f}")
