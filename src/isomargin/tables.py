"""Evaluations as text: a table for people, plain values for machines. No numbers are computed here."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from isomargin.measure.serial import null_for_nan

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

PIPED = 88  # columns; a pipe has no width of its own
LONGEST = 100  # characters of a name that are looked at: many may share one column


def print_evaluation(evaluation: "Evaluation", worst: int = 10, worst_by: str = "mean_utility") -> None:
    """Print the scores and the worst classes on standard output."""
    console = make_console()
    console.print(scores_table(evaluation))
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


def scores_table(evaluation: "Evaluation") -> RenderableType:
    """Give the scores by what they are about."""
    settings, target = evaluation.settings, evaluation.target
    low, high = evaluation.calibration_range
    far_spread, frr_spread = evaluation.far_threshold_spread, evaluation.frr_threshold_spread
    recall = [(f"recall@{k}", f"{value:.2%}") for k, value in evaluation.recall_at_k.items()]
    ranks = [("R-precision", evaluation.r_precision), ("MAP@R", evaluation.map_at_r)]
    parts = {
        "data": [
            ("images, classes", f"{evaluation.images:,} in {evaluation.class_count:,}"),
            ("positive pairs", f"{evaluation.positive_pairs:,}"),
            ("negative pairs", f"{evaluation.negative_pairs:,}" + sampled(evaluation)),
        ],
        "threshold consistency (lower is better)": [
            ("OPIS", f"{evaluation.opis:.4g}"),
            (f"{100 * settings.epsilon:g}%-OPIS", f"{evaluation.epsilon_opis:.4g}"),
            ("OPIS / squared mean disutility", f"{evaluation.relative_opis:.4g}"),
            (f"deviation of class thresholds at FAR {settings.target_far:g}", spread(far_spread)),
            (f"deviation of class thresholds at FRR {settings.target_frr:g}", spread(frr_spread)),
        ],
        "calibration range": [
            ("distance", f"{low:.4f} to {high:.4f}"),
            ("mean utility", f"{evaluation.mean_utility:.4f}"),
        ],
        "verification": [
            (f"threshold at FAR {settings.target_far:g}", as_threshold(target.distance)),
            ("FRR there", f"{target.frr:.2%}"),
            ("equal error rate", f"{evaluation.eer:.2%}"),
            ("ROC AUC", f"{evaluation.auc:.4f}"),
        ],
        "retrieval": recall + [(name, f"{value:.2%}") for name, value in ranks if not np.isnan(value)],
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for title, rows in parts.items():
        table.add_row(Text(title, style="bold"))
        for name, value in rows:
            table.add_row(Text(f"  {name}"), Text(value))
    return table


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


def printable(name: str) -> str:
    """Make a class's name safe to print: control characters could rewrite the terminal.

    >>> printable("cat\\x1b[2J")
    'cat\\\\x1b[2J'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name) if name.strip() else repr(name)


def as_values(evaluation: "Evaluation", worst: int = 10, worst_by: str = "mean_utility") -> dict[str, Any]:
    """Give the scores, the settings and the worst classes as JSON values."""
    records = evaluation.worst_classes(worst, worst_by).to_dict("records")
    plain = [{name: as_plain(value) for name, value in row.items()} for row in records]
    return {
        "scores": evaluation.scores(),
        "settings": asdict(evaluation.settings),
        "method": evaluation.method,
        "notes": list(evaluation.notes),
        "worst_classes": plain,
    }


def as_plain(value: Any) -> Any:
    """Turn a numpy scalar into Python's, NaN into None."""
    return null_for_nan(value.item() if isinstance(value, np.generic) else value)
