"""Format evaluations, transfers, comparisons and adapters as tables for people and as JSON values for programs.

No scores are computed here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from isomargin.core.json_values import null_for_nan
from isomargin.core.text import PARAGRAPH, percent, printable, shortened
from isomargin.measure.pairs.axis import ScoreAxis, similarity_of
from isomargin.measure.scores.registry import find_score, scores_of
from isomargin.measure.settings import TEMPLATE_WORDS, UNITS, of_groups

if TYPE_CHECKING:
    from isomargin.measure.comparison import Comparison, Difference
    from isomargin.measure.diagnosis import Finding
    from isomargin.measure.evaluation import Evaluation
    from isomargin.measure.pairs.trial_counts import TrialDetails
    from isomargin.measure.scores.registry import Score
    from isomargin.measure.statistics.intervals import Interval
    from isomargin.thresholds.transfer import Transfer
    from isomargin.training.adapt_result import AdaptResult

UNLIMITED = 10_000  # columns if the output is a pipe or a file, which have no width


def print_evaluation(
    evaluation: "Evaluation",
    worst: int = 10,
    worst_by: str = "mean_utility",
    intervals: "Mapping[str, Interval] | None" = None,
    resampled: str = "",
) -> None:
    """Print the scores and the worst classes to standard output."""
    console = make_console()
    console.print(scores_table(evaluation, intervals or {}, resampled))
    if worst > 0 and evaluation.has_curves:
        console.print()
        console.print(classes_table(evaluation, worst, worst_by))


def print_diagnosis(findings: "Sequence[Finding]") -> None:
    """Print what an evaluation shows and what to do about it to standard output, below its tables."""
    console = make_console()
    if findings:
        console.print()
        console.print(Text("diagnosis", style="bold"))
    for finding in findings:
        console.print(Constrain(Text(finding.sentence), PARAGRAPH))
        if finding.remedy:
            console.print(Text(printable(f"  {finding.remedy}")))


def make_console() -> Console:
    """Return the console of standard output; if that is not a terminal, tables are as wide as they need to be."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = UNLIMITED
    return console


def paragraph(text: str) -> RenderableType:
    """Return a paragraph of text below a table, wrapped even if the output is not a terminal."""
    return Constrain(Text(text, style="dim"), PARAGRAPH)


def scores_table(evaluation: "Evaluation", intervals: "Mapping[str, Interval]", resampled: str) -> RenderableType:
    """Return a table of the scores by group, with confidence intervals if there are any."""
    settings, axis = evaluation.settings, evaluation.axis
    ends = "{:.4f} to {:.4f}".format(*map(axis.shown, evaluation.calibration_range))
    groups: dict[str, list[tuple[str, str]]] = {
        "data": data_rows(evaluation),
        "threshold consistency": [],
        "calibration range": [("distance" if axis.has_similarities else "score", ends)],
        "verification": [
            (
                f"threshold for FAR {percent(settings.target_far, 6)}",
                as_threshold(evaluation.target.distance, axis),
            )
        ],
        "identification": identification_rows(evaluation),
        "retrieval": [],
    }
    for name, score in scores_of(evaluation).items():
        value = score.read(evaluation)
        if np.isnan(value) and score.group in ("retrieval", "identification"):
            continue
        found = intervals.get(name)
        bounds = f"  ({score.text(found.low)} to {score.text(found.high)})" if found else ""
        groups[score.group] += [
            (
                score.title_for(settings) + costs(name, evaluation),
                score.text(value) + widths(name, evaluation) + bounds,
            ),
            *chance_rows(score, evaluation),
        ]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for title, rows in groups.items():
        if not rows:
            continue
        better = " (lower is better, except for shares of classes)" if title == "threshold consistency" else ""
        table.add_row(Text(of_groups(title + better, evaluation.comparison), style="bold"))
        for name, text in rows:
            table.add_row(Text(f"  {of_groups(name, evaluation.comparison)}"), Text(text))
    if not intervals:
        return table
    confidence = next(iter(intervals.values())).confidence
    below = f"in brackets: {confidence:.0%} confidence intervals for {resampled}"
    return Group(table, paragraph(below))


def data_rows(evaluation: "Evaluation") -> list[tuple[str, str]]:
    """Return the rows about what was compared."""
    equalized = [] if evaluation.equalizer is None else [("similarities", equalized_by(evaluation.equalizer))]
    gallery = evaluation.identification
    if gallery is None:
        return [
            data_row(evaluation),
            ("positive pairs", f"{evaluation.positive_pairs:,}"),
            ("negative pairs", f"{evaluation.negative_pairs:,}" + sampled(evaluation)),
            *equalized,
        ]
    enrolled = f"{int(gallery.enrolled.sum()):,} items in {evaluation.class_count:,} classes"
    labels = len(np.unique(gallery.unknown_names))
    unknown = f"{gallery.unknown:,}" + (f" in {labels:,} classes" if labels > 1 else ", all with one label")
    left_out = ", without the probe" if gallery.leave_one_out else ""
    return [
        ("enrolled", enrolled),
        ("template", TEMPLATE_WORDS[gallery.template] + left_out),
        ("known probes", f"{gallery.known:,} in {int((evaluation.sizes > 0).sum()):,} classes"),
        ("unknown probes", unknown if gallery.unknown else "none"),
        ("comparisons with the own class", f"{evaluation.positive_pairs:,}"),
        ("comparisons with other classes", f"{evaluation.negative_pairs:,}"),
        *equalized,
    ]


def identification_rows(evaluation: "Evaluation") -> list[tuple[str, str]]:
    """Return the rows about the threshold for the target FPIR; none if the evaluation is not of a gallery."""
    point, by_margin = evaluation.fpir_target, evaluation.fpir_margin_target
    if point is None or by_margin is None:
        return []
    target = percent(evaluation.settings.target_fpir, 6)
    also = f", margin {point.margin:g}" if point.margin else ""
    return [
        (
            f"threshold for FPIR {target}",
            as_threshold(point.distance, evaluation.axis) + also,
        ),
        (f"margin alone for FPIR {target}", f"similarity {by_margin.margin:.4f} above the second class"),
    ]


def data_row(evaluation: "Evaluation") -> tuple[str, str]:
    """Return how many items, or trials, there are in how many classes, or groups."""
    units, groups = UNITS[evaluation.comparison]
    if not evaluation.has_classes:
        return units, f"{evaluation.items:,}"
    return f"{units}, {groups}", f"{evaluation.items:,} in {evaluation.class_count:,}"


def widths(name: str, evaluation: "Evaluation") -> str:
    """Return the unit of a spread of thresholds, and its value as a distance; an empty text for other scores."""
    if name not in ("far_threshold_spread", "frr_threshold_spread"):
        return ""
    return f" of the range ({getattr(evaluation, name).deviation:.4f})"


def costs(name: str, evaluation: "Evaluation") -> str:
    """Return the prior and the costs of minDCF, or what Cllr left out; an empty text for other scores."""
    details = evaluation.trials
    if details is None or name not in ("min_dcf", "cllr"):
        return ""
    if name == "cllr":
        return f" ({details.folds} held out)"
    return f" (prior {percent(details.prior)}, costs {details.cost_false_accept:g} and {details.cost_false_reject:g})"


def equalized_by(equalizer: Mapping[str, Any]) -> str:
    """Describe an equalizer, class thresholds, or both in a few words."""
    shifted = "shifted by class thresholds" if "class_thresholds" in equalizer else ""
    if "neighbours" not in equalizer:
        return shifted
    first, last = equalizer["skip"] + 1, equalizer["skip"] + equalizer["neighbours"]
    new = ", classes as new" if equalizer.get("own_class") == "left_out" and equalizer["method"] == "local" else ""
    side = {"template": ", templates alone", "probe": ", probes alone"}.get(equalizer.get("sides", ""), "")
    return f"equalized by neighbours {first} to {last}{new}{side}" + (f"; {shifted}" if shifted else "")


def chance_rows(score: "Score", evaluation: "Evaluation") -> list[tuple[str, str]]:
    """Return the rows below a share of classes near a target: what chance would leave, and how many do not count."""
    if score.name not in ("far_within_two", "frr_within_two"):
        return []
    found = getattr(evaluation, score.name)
    left_out = f"{found.left_out:,} of {found.classes + found.left_out:,}"
    return [("  if only chance differed", score.text(found.expected)), ("  classes left out, too few pairs", left_out)]


def sampled(evaluation: "Evaluation") -> str:
    """Return a remark if the negative pairs are a sample; else an empty text."""
    return "" if evaluation.settings.pairs == "all" else " (sampled)"


def as_threshold(distance: float, axis: ScoreAxis) -> str:
    """Format a distance with the similarity that it corresponds to, or as a score if scores were given.

    >>> as_threshold(1.0, ScoreAxis("l2_distance", 0.0, 2.0)), as_threshold(-0.75, ScoreAxis("similarity_score", -1, 0))
    ('distance 1.0000 (cosine 0.5000)', 'score at least 0.7500')
    """
    if not axis.has_similarities:
        return f"score at {'least' if axis.name == 'similarity_score' else 'most'} {axis.shown(distance):.4f}"
    return f"distance {distance:.4f} ({axis.similarity_name} {similarity_of(distance):.4f})"


def classes_table(evaluation: "Evaluation", number: int, by: str) -> RenderableType:
    """Return a table of the worst classes with their error rates at the target threshold, and of all classes."""
    classes = evaluation.worst_classes(number, by)
    far = f"FAR {percent(evaluation.settings.target_far, 6)}"
    table = Table(box=None, pad_edge=False)
    gallery = evaluation.identification
    units, groups = UNITS[evaluation.comparison]
    one = "group" if groups == "groups" else "class"
    table.add_column(one)  # on a narrow terminal, this column is cut instead of the numbers
    items = (units,) if gallery is None else ("enrolled", "probes")
    added = () if gallery is None or not gallery.unknown else ("of false positives",)
    for header in (*items, "FAR", "FRR", "own threshold", "mean utility", "of OPIS", "EER", *added):
        table.add_column(header, justify="right", no_wrap=True)
    share_of = evaluation.opis if evaluation.opis > 0 else 1.0
    for row in classes.to_dict("records"):
        share = row["opis_contribution"] / share_of
        threshold, mean_utility = f"{row['far_threshold']:.4f}", f"{row['mean_utility']:.3f}"
        rates = (f"{row['far']:.3%}", f"{row['frr']:.1%}")
        sizes = [f"{row[column]:,}" for column in (("items",) if gallery is None else ("enrolled", "probes"))]
        caused = [f"{row['false_positive_share']:.1%}" for _ in added]
        cells = (*sizes, *rates, threshold, mean_utility, f"{share:.1%}", f"{row['eer']:.1%}", *caused)
        name = Text(shortened(str(row["class"])), no_wrap=True, overflow="ellipsis")
        table.add_row(name, *map(Text, cells))
    target = evaluation.target
    rates = (f"{target.far:.3%}", f"{target.frr:.1%}")
    threshold = f"{evaluation.axis.shown(target.distance):.4f}"
    sizes = [f"{evaluation.items:,}"] if gallery is None else [f"{gallery.enrolled.sum():,}", f"{gallery.known:,}"]
    pooled = (*sizes, *rates, threshold, f"{evaluation.mean_utility:.3f}")
    table.add_row(f"all {groups}", *pooled, "", f"{evaluation.eer:.1%}", style="dim")
    words = by.upper() if by in ("far", "frr", "eer") else by.replace("_", " ")
    worst = f"the worst {one}" if len(classes) == 1 else f"the {len(classes)} worst {groups}"
    title = f"{worst} by {words}, at the one threshold for {far}"
    below = f"own threshold: where the {one} itself has {far}. of OPIS: the {one}'s share of OPIS"
    if added:
        below += ". of false positives: of the accepted unknown probes, those for which the class comes first"
    return Group(Text(title, style="bold"), table, paragraph(below))


def transfer_table(transfer: "Transfer") -> RenderableType:
    """Return a table of the error rates at one threshold on several sets, compared with the calibration set."""
    table = Table(box=None, pad_edge=False)
    table.add_column("set", min_width=11)
    for header in ("classes", "FAR", "FRR", "accuracy", "FAR *", "FRR *", "own"):
        table.add_column(of_groups(header, transfer.comparison), justify="right", no_wrap=True)
    for place, row in enumerate(transfer.rows):
        rates = (row.far, row.far_difference), (row.frr, row.frr_difference), (row.accuracy, row.accuracy_difference)
        cells = [f"{rate:.2%}" + (f" ({100 * difference:+.2f})" if place else "") for rate, difference in rates]
        worst = (f"{row.worst_class_far:.1%}", f"{row.worst_class_frr:.1%}")
        own_threshold = "none" if np.isnan(row.own_distance) else f"{transfer.axis.shown(row.own_distance):.4f}"
        name = Text(shortened(row.name), no_wrap=True, overflow="ellipsis")
        table.add_row(name, f"{row.classes:,}", *cells, *worst, own_threshold)
    below = (
        "in brackets: the difference from the calibration set in percentage points. accuracy: 1 - (FAR + FRR) / 2. "
        "*: the rate that one class in twenty exceeds. own: the threshold at which the set has the FAR of the "
        "calibration set"
    )
    below = of_groups(below, transfer.comparison)
    title = f"one threshold for all: {as_threshold(transfer.distance, transfer.axis)}"
    return Group(Text(title, style="bold"), table, paragraph(below))


def differences_table(comparison: "Comparison", name: str) -> RenderableType:
    """Return a table of a model's scores, the first model's scores, and their differences."""
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
    title = of_groups(f"{comparison.classes:,} classes, paired bootstrap over classes", comparison.compared)
    return Group(Text(title, style="bold"), table)


def candidates_table(result: "AdaptResult") -> RenderableType:
    """Return a table of the candidates' scores on the judgement classes, with their changes from the raw embeddings."""
    from isomargin.training.adapt_result import CANDIDATES, SHOWN

    raw, comparison = result.evaluations["raw"], result.comparison
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for candidate in CANDIDATES:
        table.add_column(candidate, justify="right", no_wrap=True)
    for score in map(find_score, SHOWN):
        values = [score.read(result.evaluations[candidate]) for candidate in CANDIDATES]
        table.add_row(score.title_for(raw.settings), *map(score.text, values))
        rows = [{row.score: row for row in comparison.others[candidate]} for candidate in CANDIDATES[1:]]
        if all(score.name in row for row in rows):
            table.add_row("", "", *(change_text(row[score.name]) for row in rows))
        elif values[0] > 0:  # resampled classes have no spread of thresholds, so there is no interval
            table.add_row("", "", *(f"{value / values[0] - 1:+.0%}  " for value in values[1:]))
    chosen_on = result.classes["selection"]
    title = f"{raw.items:,} items of {raw.class_count:,} classes whose labels were used for nothing else"
    below = (
        f"below each score: the change from raw, {comparison.confidence:.0%} interval (paired bootstrap over classes). "
        f"*: significant. The adapter was trained on {result.classes['training'] + chosen_on:,} other classes, its "
        f"settings were chosen on {chosen_on:,} of them"
    )
    return Group(Text(title, style="bold"), table, paragraph(below))


def change_text(row: "Difference") -> str:
    """Format a change with its interval: relative for OPIS and its kin, in percentage points for rates."""
    interval = row.change or row.difference
    digits, unit = (0, "%") if row.change else (1, "")
    value, low, high = (f"{100 * number:+.{digits}f}{unit}" for number in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high}){'*' if row.certain else ' '}"


def as_values(
    evaluation: "Evaluation",
    worst: int = 10,
    worst_by: str = "mean_utility",
    intervals: "Mapping[str, Interval] | None" = None,
) -> dict[str, Any]:
    """Return the scores, the settings and the worst classes as JSON values, and the intervals if there are any."""
    records = evaluation.worst_classes(worst if evaluation.has_curves else 0, worst_by).to_dict("records")
    plain = [{name: as_plain(value) for name, value in row.items()} for row in records]
    bounds = {} if intervals is None else {"intervals": {name: asdict(found) for name, found in intervals.items()}}
    return {
        "scores": evaluation.scores(),
        **bounds,
        "settings": asdict(evaluation.settings),
        "method": evaluation.method,
        "comparison": evaluation.comparison,
        **({} if evaluation.trials is None else {"trials": trial_values(evaluation.trials)}),
        "equalizer": evaluation.equalizer,
        "notes": list(evaluation.all_notes),
        "worst_classes": plain,
    }


def trial_values(details: "TrialDetails") -> dict[str, Any]:
    """Return the choices of an evaluation of trials as JSON values; Cllr is among the scores."""
    return {name: value for name, value in asdict(details).items() if name != "cllr"}


def as_plain(value: Any) -> Any:
    """Convert a numpy scalar to a Python value, and NaN to None."""
    return null_for_nan(value.item() if isinstance(value, np.generic) else value)
