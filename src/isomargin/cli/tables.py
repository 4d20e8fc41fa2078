"""Evaluations as text: a table for people, plain values for machines. No numbers are computed here."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from isomargin.core.json_values import null_for_nan
from isomargin.core.text import PARAGRAPH, shortened
from isomargin.measure.scores.registry import find_score, scores_of

if TYPE_CHECKING:
    from isomargin.measure.comparison import Comparison
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.statistics.intervals import Interval
    from isomargin.thresholds.transfer import Transfer

UNLIMITED = 10_000  # columns of a pipe, which has no width of its own


def print_evaluation(
    evaluation: "Evaluation",
    worst: int = 10,
    worst_by: str = "mean_utility",
    intervals: "Mapping[str, Interval] | None" = None,
    resampled: str = "",
) -> None:
    """Print the scores and the worst classes on standard output."""
    console = make_console()
    console.print(scores_table(evaluation, intervals or {}, resampled))
    if worst > 0:
        console.print()
        console.print(classes_table(evaluation, worst, worst_by))


def make_console() -> Console:
    """Make the console of standard output; where that is not a terminal, tables are as wide as they need to be."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    return console


def paragraph(text: str) -> RenderableType:
    """Give text to read below a table, broken into lines wherever it is printed."""
    return Constrain(Text(text, style="dim"), PARAGRAPH)


def scores_table(evaluation: "Evaluation", intervals: "Mapping[str, Interval]", resampled: str) -> RenderableType:
    """Give the scores by what they are about, with the intervals of those that have one."""
    settings = evaluation.settings
    groups: dict[str, list[tuple[str, str]]] = {
        "data": [
            ("items, classes", f"{evaluation.items:,} in {evaluation.class_count:,}"),
            ("positive pairs", f"{evaluation.positive_pairs:,}"),
            ("negative pairs", f"{evaluation.negative_pairs:,}" + sampled(evaluation)),
        ],
        "threshold consistency": [],
        "calibration range": [("distance", "{:.4f} to {:.4f}".format(*evaluation.calibration_range))],
        "verification": [
            (f"threshold for FAR {100 * settings.target_far:g}%", as_threshold(evaluation.target.distance))
        ],
        "retrieval": [],
    }
    for name, score in scores_of(evaluation).items():
        value = score.read(evaluation)
        if np.isnan(value) and score.group == "retrieval":
            continue
        found = intervals.get(name)
        bounds = f"  ({score.text(found.low)} to {score.text(found.high)})" if found else ""
        groups[score.group].append((score.title_for(settings), score.text(value) + widths(name, evaluation) + bounds))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for title, rows in groups.items():
        better = " (lower is better)" if title == "threshold consistency" else ""
        table.add_row(Text(title + better, style="bold"))
        for name, text in rows:
            table.add_row(Text(f"  {name}"), Text(text))
    if not intervals:
        return table
    confidence = next(iter(intervals.values())).confidence
    below = f"in brackets: {confidence:.0%} confidence intervals, had {resampled} been measured"
    return Group(table, paragraph(below))


def widths(name: str, evaluation: "Evaluation") -> str:
    """Say in what unit a spread of thresholds is, and what it is in distance; nothing for other scores."""
    spreads = {
        "far_threshold_spread": evaluation.far_threshold_spread,
        "frr_threshold_spread": evaluation.frr_threshold_spread,
    }
    return f" of the range ({spreads[name].deviation:.4f})" if name in spreads else ""


def sampled(evaluation: "Evaluation") -> str:
    """Say so if the negatives are a sample."""
    return " (sampled)" if evaluation.settings.pairs == "sampled" else ""


def as_threshold(distance: float) -> str:
    """Give a distance with the cosine similarity it stands for.

    >>> as_threshold(1.0)
    'distance 1.0000 (cosine 0.5000)'
    """
    return f"distance {distance:.4f} (cosine {1 - distance**2 / 2:.4f})"


def classes_table(evaluation: "Evaluation", number: int, by: str) -> RenderableType:
    """Give the worst classes with what the one threshold does to them, and what it does on the whole."""
    classes = evaluation.worst_classes(number, by)
    far = evaluation.settings.target_far
    table = Table(box=None, pad_edge=False)
    table.add_column("class")  # where a terminal is narrow, this column gives way and not the numbers
    for header in ("items", "FAR", "FRR", "own threshold", "mean utility", "of OPIS", "EER"):
        table.add_column(header, justify="right", no_wrap=True)
    share_of = evaluation.opis if evaluation.opis > 0 else 1.0
    for row in classes.to_dict("records"):
        share = row["opis_contribution"] / share_of
        own = f"{row['far_threshold']:.4f}"
        rates = (f"{row['far']:.3%}", f"{row['frr']:.1%}")
        cells = (f"{row['items']:,}", *rates, own, f"{row['mean_utility']:.3f}", f"{share:.1%}", f"{row['eer']:.1%}")
        name = Text(shortened(str(row["class"])), no_wrap=True, overflow="ellipsis")
        table.add_row(name, *map(Text, cells))
    target = evaluation.target
    rates = (f"{target.far:.3%}", f"{target.frr:.1%}")
    together = (f"{evaluation.items:,}", *rates, f"{target.distance:.4f}", f"{evaluation.mean_utility:.3f}")
    table.add_row("all classes", *together, "", f"{evaluation.eer:.1%}", style="dim")
    title = f"the {len(classes)} worst classes by {by.replace('_', ' ')}, at the one threshold for FAR {far:g}"
    return Group(Text(title, style="bold"), table)


def transfer_table(transfer: "Transfer") -> RenderableType:
    """Give what one threshold does on several sets, and how that differs from the calibration set."""
    table = Table(box=None, pad_edge=False)
    table.add_column("set", min_width=11)
    for header in ("classes", "FAR", "FRR", "accuracy", "FAR *", "FRR *", "own"):
        table.add_column(header, justify="right", no_wrap=True)
    for place, row in enumerate(transfer.rows):
        rates = (row.far, row.far_difference), (row.frr, row.frr_difference), (row.accuracy, row.accuracy_difference)
        cells = [f"{rate:.2%}" + (f" ({100 * difference:+.2f})" if place else "") for rate, difference in rates]
        worst = (f"{row.worst_class_far:.1%}", f"{row.worst_class_frr:.1%}")
        own = "none" if np.isnan(row.own_distance) else f"{row.own_distance:.4f}"
        name = Text(shortened(row.name), no_wrap=True, overflow="ellipsis")
        table.add_row(name, f"{row.classes:,}", *cells, *worst, own)
    below = (
        "in brackets: points more than the calibration set's. accuracy: 1 - (FAR + FRR) / 2. *: what a twentieth of "
        "the classes exceed. own: the threshold at which the set would have the calibration set's FAR"
    )
    title = f"one threshold for all: {as_threshold(transfer.distance)}"
    return Group(Text(title, style="bold"), table, paragraph(below))


def differences_table(comparison: "Comparison", name: str) -> RenderableType:
    """Give a model's scores beside the first model's, and how they differ."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for header in (comparison.first, name, "difference", f"{comparison.confidence:.0%} interval", "p"):
        table.add_column(Text(shortened(header)), justify="right")
    for row in comparison.others[name]:
        score = find_score(row.score)
        if row.change is not None:
            cells = [f"{row.change.value:+.0%}", f"{row.change.low:+.0%} to {row.change.high:+.0%}"]
        else:
            ends = (score.difference_text(end) for end in (row.difference.low, row.difference.high))
            cells = [score.difference_text(row.difference.value), " to ".join(ends).replace(" points", "")]
        style = None if row.certain else "dim"
        table.add_row(
            score.title,
            *(score.text(value) for value in (row.first, row.other)),
            *cells,
            ("≤" if row.p_value <= comparison.least_p_value else "") + f"{row.p_value:.2g}",
            style=style,
        )
    title = f"{comparison.classes:,} classes, resampled alike for both models"
    return Group(Text(title, style="bold"), table)


def as_values(
    evaluation: "Evaluation",
    worst: int = 10,
    worst_by: str = "mean_utility",
    intervals: "Mapping[str, Interval] | None" = None,
) -> dict[str, Any]:
    """Give the scores, the settings and the worst classes as JSON values, and the intervals where there are any."""
    records = evaluation.worst_classes(worst, worst_by).to_dict("records")
    plain = [{name: as_plain(value) for name, value in row.items()} for row in records]
    known = {} if intervals is None else {"intervals": {name: asdict(each) for name, each in intervals.items()}}
    return {
        "scores": evaluation.scores(),
        **known,
        "settings": asdict(evaluation.settings),
        "method": evaluation.method,
        "notes": list(evaluation.all_notes),
        "worst_classes": plain,
    }


def as_plain(value: Any) -> Any:
    """Turn a numpy scalar into Python's, NaN into None."""
    return null_for_nan(value.item() if isinstance(value, np.generic) else value)
