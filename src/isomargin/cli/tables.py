"""Evaluations as text: a table for people, plain values for machines. No numbers are computed here."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from isomargin.core.json_values import null_for_nan
from isomargin.core.text import LONGEST, PIPED, printable

if TYPE_CHECKING:
    from isomargin.measure.comparison import Comparison
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.statistics.intervals import Interval
    from isomargin.thresholds.transfer import Transfer

SCORES = {
    "opis": "OPIS",
    "debiased_opis": "OPIS without noise",
    "epsilon_opis": "epsilon-OPIS",
    "relative_opis": "OPIS / sq. disutility",
    "mean_utility": "mean utility",
    "eer": "equal error rate",
    "frr": "FRR at the target FAR",
    "r_precision": "R-precision",
    "map_at_r": "MAP@R",
}
"""Names of scores as they are printed, where they differ."""


def print_evaluation(
    evaluation: "Evaluation",
    worst: int = 10,
    worst_by: str = "mean_utility",
    intervals: "Mapping[str, Interval] | None" = None,
    drawn: str = "",
) -> None:
    """Print the scores and the worst classes on standard output."""
    console = make_console()
    console.print(scores_table(evaluation, intervals or {}, drawn))
    if worst > 0:
        console.print()
        console.print(classes_table(evaluation, worst, worst_by))


def make_console() -> Console:
    """Make the console of standard output, at a fixed width where that is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED
    return console


def comparison_table(evaluations: Mapping[str, "Evaluation"]) -> RenderableType:
    """Set evaluations side by side; the change is that of the last against the first."""
    first, *_, last = evaluations.values()
    share = f"{100 * first.settings.epsilon:g}%-OPIS"
    rows: list[tuple[str, Callable[[Evaluation], float], str, bool]] = [
        ("recall@1", lambda each: each.recall_at_k[1], ".2%", False),
        ("MAP@R", lambda each: each.map_at_r, ".2%", False),
        ("OPIS", lambda each: each.opis, ".3e", True),
        (share, lambda each: each.epsilon_opis, ".3e", True),
        ("equal error rate", lambda each: each.eer, ".2%", False),
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("", *evaluations, "change"):
        table.add_column(column, justify="left" if not column else "right")
    for title, score, form, relative in rows:
        values = [score(each) for each in evaluations.values()]
        change = values[-1] / values[0] - 1 if relative else values[-1] - values[0]
        shown = f"{change:+.0%}" if relative else f"{100 * change:+.2f} points"
        table.add_row(title, *(format(each, form) for each in values), shown)
    for title, name in (("FAR of the classes *", "class_far"), ("FRR of the classes *", "class_frr")):
        cells = []
        for each in evaluations.values():
            low, high = np.nanquantile(getattr(each.target, name), (0.05, 0.95))
            cells.append(f"{low:.2%} to {high:.2%}")
        table.add_row(title, *cells)
    data = f"{last.images:,} images in {last.class_count:,} classes that were not trained on"
    below = (
        f"* from the 5% to the 95% quantile of the classes, at the one threshold for FAR {first.settings.target_far:g}"
    )
    return Group(Text(data, style="bold"), table, Text(below, style="dim"))


def scores_table(evaluation: "Evaluation", intervals: "Mapping[str, Interval]", drawn: str) -> RenderableType:
    """Give the scores by what they are about, with the intervals of those that have one."""

    def bounds(name: str, form: str) -> str:
        found = intervals.get(name)
        return f"  ({found.low:{form}} to {found.high:{form}})" if found else ""

    def opis_without_noise() -> str:
        value = evaluation.debiased_opis
        return "unknown" if np.isnan(value) else f"{value:.4g}" + bounds("debiased_opis", ".4g")

    settings, target = evaluation.settings, evaluation.target
    low, high = evaluation.calibration_range
    far_spread, frr_spread = evaluation.far_threshold_spread, evaluation.frr_threshold_spread
    recall = [
        (f"recall@{k}", f"{value:.2%}" + bounds(f"recall@{k}", ".2%")) for k, value in evaluation.recall_at_k.items()
    ]
    ranks = [
        ("R-precision", evaluation.r_precision, bounds("r_precision", ".2%")),
        ("MAP@R", evaluation.map_at_r, bounds("map_at_r", ".2%")),
    ]
    parts = {
        "data": [
            ("images, classes", f"{evaluation.images:,} in {evaluation.class_count:,}"),
            ("positive pairs", f"{evaluation.positive_pairs:,}"),
            ("negative pairs", f"{evaluation.negative_pairs:,}" + sampled(evaluation)),
        ],
        "threshold consistency (lower is better)": [
            ("OPIS", f"{evaluation.opis:.4g}" + bounds("opis", ".4g")),
            ("OPIS without the images' noise", opis_without_noise()),
            (f"{100 * settings.epsilon:g}%-OPIS", f"{evaluation.epsilon_opis:.4g}" + bounds("epsilon_opis", ".4g")),
            ("OPIS / squared mean disutility", f"{evaluation.relative_opis:.4g}" + bounds("relative_opis", ".4g")),
            (f"deviation of class thresholds at FAR {settings.target_far:g}", spread(far_spread)),
            (f"deviation of class thresholds at FRR {settings.target_frr:g}", spread(frr_spread)),
        ],
        "calibration range": [
            ("distance", f"{low:.4f} to {high:.4f}"),
            ("mean utility", f"{evaluation.mean_utility:.4f}" + bounds("mean_utility", ".4f")),
        ],
        "verification": [
            (f"threshold at FAR {settings.target_far:g}", as_threshold(target.distance)),
            ("FAR there", f"{target.far:.2%}" + bounds("far", ".2%")),
            ("FRR there", f"{target.frr:.2%}" + bounds("frr", ".2%")),
            ("equal error rate", f"{evaluation.eer:.2%}" + bounds("eer", ".2%")),
            ("ROC AUC", f"{evaluation.auc:.4f}"),
        ],
        "retrieval": recall + [(name, f"{value:.2%}" + at) for name, value, at in ranks if not np.isnan(value)],
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for title, rows in parts.items():
        table.add_row(Text(title, style="bold"))
        for name, value in rows:
            table.add_row(Text(f"  {name}"), Text(value))
    if not intervals:
        return table
    confidence = next(iter(intervals.values())).confidence
    below = f"in brackets: {confidence:.0%} intervals, had {drawn} been measured"
    return Group(table, Text(below, style="dim"))


def sampled(evaluation: "Evaluation") -> str:
    """Say so if the negatives are a sample."""
    return " (sampled)" if evaluation.settings.pairs == "sampled" else ""


def spread(value: Any) -> str:
    """Give a deviation in distance and in widths of the calibration range."""
    return f"{value.deviation:.4f} ({value.relative_deviation:.2f} of the range)"


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
    table.add_column("class", max_width=28)  # where space is short, this column gives way and not the numbers
    for header in ("images", "FAR", "FRR", "own threshold", "mean utility", "of OPIS", "EER"):
        table.add_column(header, justify="right", no_wrap=True)
    share_of = evaluation.opis if evaluation.opis > 0 else 1.0
    for row in classes.to_dict("records"):
        share = row["opis_contribution"] / share_of
        own = f"{row['far_threshold']:.4f}"
        rates = (f"{row['far']:.3%}", f"{row['frr']:.1%}")
        cells = (f"{row['images']:,}", *rates, own, f"{row['mean_utility']:.3f}", f"{share:.1%}", f"{row['eer']:.1%}")
        name = Text(printable(str(row["class"])[:LONGEST]), no_wrap=True, overflow="ellipsis")
        table.add_row(name, *map(Text, cells))
    target = evaluation.target
    rates = (f"{target.far:.3%}", f"{target.frr:.1%}")
    together = (f"{evaluation.images:,}", *rates, f"{target.distance:.4f}", f"{evaluation.mean_utility:.3f}")
    table.add_row("all classes", *together, "", f"{evaluation.eer:.1%}", style="dim")
    title = f"the {len(classes)} worst classes by {by.replace('_', ' ')}, at the one threshold for FAR {far:g}"
    return Group(Text(title, style="bold"), table)


def transfer_table(transfer: "Transfer") -> RenderableType:
    """Give what one threshold does on several sets, and how that differs from the calibration set."""
    table = Table(box=None, pad_edge=False)
    table.add_column("set", min_width=11, max_width=28)
    for header in ("classes", "FAR", "FRR", "accuracy", "FAR *", "FRR *", "own"):
        table.add_column(header, justify="right", no_wrap=True)
    for place, row in enumerate(transfer.rows):
        rates = (row.far, row.far_difference), (row.frr, row.frr_difference), (row.accuracy, row.accuracy_difference)
        cells = [f"{rate:.2%}" + (f" ({100 * difference:+.2f})" if place else "") for rate, difference in rates]
        worst = (f"{row.worst_class_far:.1%}", f"{row.worst_class_frr:.1%}")
        own = "none" if np.isnan(row.own_distance) else f"{row.own_distance:.4f}"
        name = Text(printable(row.name[:LONGEST]), no_wrap=True, overflow="ellipsis")
        table.add_row(name, f"{row.classes:,}", *cells, *worst, own)
    below = (
        "in brackets: points more than the calibration set's. accuracy: 1 - (FAR + FRR) / 2. *: what a twentieth of "
        "the classes exceed. own: the threshold at which the set would have the calibration set's FAR"
    )
    title = f"one threshold for all: {as_threshold(transfer.distance)}"
    return Group(Text(title, style="bold"), table, Text(below, style="dim"))


def differences_table(comparison: "Comparison", name: str) -> RenderableType:
    """Give a model's scores beside the first model's, and how they differ."""
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for header in (comparison.first, name, "difference", f"{comparison.confidence:.0%} interval", "p"):
        table.add_column(Text(printable(header[:LONGEST])), justify="right")
    for row in comparison.others[name]:
        percent = row.change is None and row.score != "relative_opis" and "opis" not in row.score
        shown = [f"{each:.2%}" if percent else f"{each:.4g}" for each in (row.first, row.other)]
        of = row.change or row.difference
        if row.change is not None:
            cells = [f"{of.value:+.0%}", f"{of.low:+.0%} to {of.high:+.0%}"]
        elif percent:
            cells = [f"{100 * of.value:+.2f} points", f"{100 * of.low:+.2f} to {100 * of.high:+.2f}"]
        else:
            cells = [f"{of.value:+.2g}", f"{of.low:+.2g} to {of.high:+.2g}"]
        style = None if row.certain else "dim"
        table.add_row(
            SCORES.get(row.score, row.score),
            *shown,
            *cells,
            ("≤" if row.p_value <= comparison.least_p_value else "") + f"{row.p_value:.2g}",
            style=style,
        )
    title = f"{comparison.classes:,} classes; the classes drawn anew for both models alike"
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
