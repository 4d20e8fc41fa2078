"""A threshold card as text: about forty lines for a person, safe to print and to paste."""

from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from isomargin.core.text import PARAGRAPH, percent, printable, shortened
from isomargin.measure.settings import TEMPLATE_WORDS, UNITS, of_groups
from isomargin.thresholds.conversions import UNIT_VECTORS_ONLY
from isomargin.thresholds.threshold_choice import QUANTILES

if TYPE_CHECKING:
    from isomargin.thresholds.card import ThresholdCard

SHOWN = 3  # classes per list in a summary; the card has more
NAME = 40  # columns of a name on the same line as its values


SERVING = {
    "both": "To serve it: index the vectors of Equalizer.transform_reference by inner product (not cosine), find r(x) "
    "by a first search with transform_neighbour_queries, search with transform_queries, and accept what "
    "inner_product_thresholds says; docs/equalize-serving.md has the steps.",
    "template": "Templates alone are equalized. To serve it: index the vectors of Equalizer.transform_reference by "
    "inner product (not cosine), search with transform_queries, add half the constant to the inner product, and accept "
    "what is at least the equalized similarity above.",
    "probe": "Probes alone are equalized. To serve it: add Equalizer.shifts(probes).values to the cosines, one value "
    "per probe, and accept what is at least the equalized similarity above.",
}
"""How equalized similarities are served, by the side that is equalized."""
FLOAT32 = "Engines, and counts of large sets, are in float32: pairs within 3e-6 may go either way."


def summary(card: "ThresholdCard") -> str:
    """Summarise a card in about forty lines of at most 88 columns, safe to print."""
    return "\n".join(
        [
            *wrapped(f"Threshold for {card.target}", ""),
            *threshold_lines(card),
            *gallery_lines(card.gallery),
            "",
            *measured_lines(card),
            *worst_lines(card),
            *(promise_lines(card.promise, card.comparison) if has_classes(card) else []),
            *calibration_lines(card.calibration),
            *([] if card.model is None else wrapped(f"Model: {card.model}", "")),
        ]
    )


def wrapped(text: str, indent: str = "  ", mark: str = "") -> list[str]:
    """Escape a text and break it into indented lines, the first of which starts with a mark."""
    width = PARAGRAPH - len(indent) - len(mark)
    lines = [line.plain.rstrip() for line in Text(printable(text)).wrap(Console(), width)]
    return [indent + (" " * len(mark) if i else mark) + line for i, line in enumerate(lines)]


def padded(text: str, width: int) -> str:
    """Escape a text and make it exactly `width` columns wide.

    >>> padded("cat\\n", 8), padded("hippopotamus", 5)
    ('cat\\\\n   ', 'hipp…')
    """
    return set_cell_size(shortened(text, width), width)


def named_line(name: str, values: str) -> list[str]:
    """Format a name and its values on one line, or on several if the name is too long.

    >>> named_line("cat", "  2.2%")
    ['  cat                                       2.2%']
    """
    shown = shortened(name)
    if cell_len(shown) <= NAME:
        return [f"  {padded(shown, NAME)}{values}"]
    return [*wrapped(shown), f"  {'':{NAME}}{values}"]


def threshold_lines(card: "ThresholdCard") -> list[str]:
    """Format the threshold in every convention."""
    width = max(map(len, card.threshold))
    lines = [
        f"  {name:<{width}}  accept when {padded(card.accept_when[name], 8)}  {card.threshold[name]:.9f}"
        + ("  unit vectors only" if name in UNIT_VECTORS_ONLY else "")
        for name in card.threshold
    ]
    if "score" in card.threshold:
        return lines
    if card.equalizer is not None:
        return [*lines, *equalizer_lines(card.equalizer)]
    return [
        *lines,
        *wrapped("Unit vectors only: divide each vector by its length first (not needed for cosines)."),
        *wrapped(FLOAT32),
    ]


def gallery_lines(gallery: dict[str, Any] | None) -> list[str]:
    """Say that scores are of a probe and a template, and how templates are made; nothing for other comparisons."""
    if gallery is None:
        return []
    left_out = ", without the probe" if gallery["leave_one_out"] else ""
    lines = wrapped(
        f"Scores are of a probe and a template: {TEMPLATE_WORDS[gallery['template']]}{left_out}. "
        "They are not those of two items."
    )
    if gallery["margin"]:
        lines += wrapped(
            f"The first class is accepted only if its similarity exceeds that of the second by {gallery['margin']:g}."
        )
    return lines


def identification_lines(gallery: dict[str, Any] | None) -> list[str]:
    """Format FPIR, FNIR and misidentification."""
    if gallery is None:
        return []
    lines = []
    for name, probes in (("fpir", "unknown_probes"), ("fnir", "known_probes")):
        rate = gallery[name]
        if rate is not None:
            interval = f"{percent(rate['low'])} to {percent(rate['high'])}"
            lines.append(
                f"  {name.upper()} {percent(rate['value'])} ({percent(rate['confidence'])} interval {interval}), "
                f"{gallery[probes]:,} {probes.replace('_', ' ')}"
            )
    return [*lines, f"  {percent(gallery['misidentified'])} of the known probes misidentified"]


def equalizer_lines(equalizer: dict[str, Any]) -> list[str]:
    """Format the equalizer and class thresholds, and how a pair is compared with the threshold in production."""
    lines = []
    if thresholds := equalizer.get("class_thresholds"):
        lines = wrapped(
            f"Similarities minus the offset of the class: class thresholds {thresholds['digest'][:16]}. To serve them, "
            "search by inner product with the vectors of ClassThresholds.augment and augment_queries."
        )
    if "neighbours" not in equalizer:
        return [*lines, *wrapped(FLOAT32)]
    first, last = equalizer["skip"] + 1, equalizer["skip"] + equalizer["neighbours"]
    return [
        *wrapped(
            f"Equalized by neighbours {first} to {last} ({equalizer['method']}), weight {equalizer['weight']:g}, "
            f"constant {equalizer['offset']:.9f}; digest {equalizer['digest'][:16]}"
        ),
        *wrapped(SERVING[str(equalizer.get("sides", "both"))]),
        *lines,
        *wrapped(FLOAT32),
    ]


def measured_lines(card: "ThresholdCard") -> list[str]:
    """Format the sizes, rates and notes."""
    measured = card.measured
    sampled = "negative" if measured["pairs"] == "all" else "sampled negative"
    units, groups = UNITS[card.comparison]
    inside = f" in {measured['classes']:,} {groups}" if has_classes(card) else ""
    pairs = "pairs" if card.gallery is None else "comparisons"
    lines = wrapped(
        f"Measured on {measured['items']:,} {units}{inside}: {measured['positive_pairs']:,} "
        f"positive and {measured['negative_pairs']:,} {sampled} {pairs}, {measured['method']}; "
        f"{card.created}, isomargin {card.isomargin}",
        "",
    )
    for file in card.source or []:
        lines += named_line(file["file"], f"  sha256 {padded(file['sha256'], 17)}")
    for name in ("far", "frr"):
        rate = measured[name]
        interval = f"{percent(rate['low'])} to {percent(rate['high'])}"
        lines.append(f"  {name.upper()} {percent(rate['value'])} ({percent(rate['confidence'])} interval {interval})")
    lines += identification_lines(card.gallery)
    lines += quantile_lines(measured, groups) if has_classes(card) else []
    for note in measured["notes"]:
        lines += wrapped(f"note: {note}")
    return lines


def has_classes(card: "ThresholdCard") -> bool:
    """Whether there are classes, or groups of trials, to tell apart."""
    return card.comparison != "trials" or card.measured["classes"] > 1


def quantile_lines(measured: dict[str, Any], groups: str) -> list[str]:
    """Format how the rates are distributed over the classes."""
    lines = [f"  {'quantiles over ' + groups:<22}" + "".join(f"{percent(level):>10}" for level in QUANTILES)]
    for name in ("far", "frr"):
        row = [measured[f"class_{name}_quantiles"][str(level)] for level in QUANTILES]
        named = f"{'group' if groups == 'groups' else 'class'} {name.upper()}"
        lines.append(f"    {named:<20}" + "".join(f"{percent(value):>10}" for value in row))
    if measured["share_over_target"] is not None:
        lines.append(f"  {percent(measured['share_over_target'])} of the {groups} exceed the target")
    return lines


def worst_lines(card: "ThresholdCard") -> list[str]:
    """Format the classes with the largest rates, or in cards of older versions those farthest from the target."""
    if not has_classes(card):
        return []
    units, _ = UNITS[card.comparison]
    if card.worst_by_far is None or card.worst_by_frr is None:
        return class_lines("Where it fails most", card.worst_classes, units)
    return class_lines("Largest FAR", card.worst_by_far, units) + class_lines("Largest FRR", card.worst_by_frr, units)


def class_lines(title: str, classes: list[dict[str, Any]], units: str = "items") -> list[str]:
    """Format a few classes with their rates."""
    if not classes:
        return []
    rows = [
        line
        for rates in classes[:SHOWN]
        for line in named_line(
            str(rates["name"]), f"{rates['items']:>10,}{percent(rates['far']):>10}{percent(rates['frr']):>10}"
        )
    ]
    return [f"{title:<42}{units.split()[-1]:>10}{'FAR':>10}{'FRR':>10}", *rows]


def promise_lines(promise: dict[str, Any] | None, comparison: str) -> list[str]:
    """Format the promise and its assumptions."""
    unseen = of_groups("unseen classes", comparison)
    if promise is None:
        return [f"Nothing is promised for {unseen}: use --unseen or --delta for a promise."]
    assumptions = promise.get("assumptions", [])
    assumed = [line for assumption in assumptions for line in wrapped(str(assumption), "    ", "- ")]
    return [
        f"For {unseen}",
        *wrapped(str(promise.get("what", "see the card"))),
        *(["  provided that", *assumed] if assumed else []),
    ]


def calibration_lines(calibration: dict[str, Any] | None) -> list[str]:
    """Format the method, the prior and the errors of the calibration."""
    if calibration is None:
        return []
    method, prior = calibration.get("method", "in the card"), calibration.get("prior")
    lines = [f"Similarity to probability of a match: {method}, if {percent(prior)} of the pairs match"]
    before, after = calibration.get("errors_before"), calibration.get("errors_after")
    if isinstance(before, dict) and isinstance(after, dict):
        lines += wrapped(
            f"calibration error {percent(after.get('ece'))} ({percent(before.get('ece'))} without calibration), "
            f"{percent(after.get('class_ece_mean'))} for a single class on average, on held-out classes"
        )
    return lines
