"""The check of a card as text: what was compared, under which assumption, the numbers, and what to do."""

from typing import TYPE_CHECKING

from isomargin.core.text import percent
from isomargin.thresholds.card_text import named_line, wrapped
from isomargin.thresholds.realised import measured_rates

if TYPE_CHECKING:
    from isomargin.measure.statistics.intervals import Interval
    from isomargin.thresholds.canaries import CanaryComparison
    from isomargin.thresholds.checking import CardCheck, DriftResult
    from isomargin.thresholds.drift import DriftTest
    from isomargin.thresholds.realised import ClassBeyond, RealisedRates

SHOWN = 5  # classes that are named
CAUSES = {
    "nothing": "nothing has changed that chance does not explain",
    "model": "the model or its preprocessing has changed",
    "data": "the data have changed; the model has not, as the canaries show",
    "unknown": "something has changed",
}
REMEDIES = {
    "model": "Embed everything again with the model that is in use now, the index too, and make a new card with "
    "`isomargin threshold`.",
    "data": "Label a sample of the new data and give it to `isomargin check` for the rates it really has, or to "
    "`isomargin threshold` for a new card.",
    "unknown": "To tell a changed model from changed data, embed the canaries again and give them with --canaries. To "
    "know the rates, label a sample of the new data and check that.",
    "rates": "Choose a new threshold on data like these with `isomargin threshold`. To tell a changed model from "
    "changed data, embed the canaries again and give them with --canaries.",
}
NULL_TITLES = {
    "same_classes": "other items of the same classes, in the same mix",
    "new_classes": "items of new classes of the same kind",
}
PROBE_NULL_TITLES = {
    "same_classes": "other probes of the same classes, in the same mix",
    "new_classes": "probes of other classes, as many of them unknown",
}
TEST_TITLES = {
    "accepted_probes": "probes accepted",
    "accept_rate": "accepted random pairs",
    "distribution": "distribution of distances",
    "centre": "mean vector",
    "lengths": "typical length",
}
LITTLE, MUCH = 0.1, 0.25  # customary limits of the population stability index


def check_summary(check: "CardCheck") -> str:
    """Summarise a check in lines of at most 88 columns, safe to print."""
    lines = wrapped(headline(check), "")
    for fact in check.facts:
        lines += wrapped(fact, mark="- ")
    lines += canary_lines(check.canaries)
    if check.rates is not None:
        lines += rate_lines(check, check.rates)
    if check.drift:
        lines += drift_lines(check)
    for note in check.notes:
        lines += wrapped(f"note: {note}", "")
    if not check.holds:
        lines += wrapped(REMEDIES["rates" if check.cause == "unknown" and check.rates is not None else check.cause], "")
    return "\n".join(lines)


def headline(check: "CardCheck") -> str:
    """Return the verdict in one sentence."""
    rejected = {result.null for result in check.drift if result.failed}
    if check.holds and check.rates is None and rejected:
        titles = null_titles(check)
        other = titles["new_classes" if "same_classes" in rejected else "same_classes"]
        return f"The card holds if these are {other}; they are not {titles[min(rejected)]}."
    if check.holds and check.rates is not None:
        expected = set(null_titles(check)) if check.against == "either" else {check.against}
        differ = " The items differ from the card's all the same (below)." if expected <= rejected else ""
        return f"The card holds: its rates are not significantly worse.{differ}"
    return f"The card {'holds' if check.holds else 'does not hold'}: {CAUSES[check.cause]}."


def null_titles(check: "CardCheck") -> dict[str, str]:
    """Return the null hypotheses in words."""
    return NULL_TITLES if check.card.gallery is None else PROBE_NULL_TITLES


def drift_lines(check: "CardCheck") -> list[str]:
    """Format the comparison without labels."""
    reference = check.card.reference or {}
    drawn = "" if check.compared == check.items else f" (drawn from {check.items:,})"
    if check.card.gallery is None:
        what = f"Random pairs of {check.compared:,} new items{drawn}, compared with {reference['items']:,} items in "
        what += f"{reference['classes']:,} classes of the card:"
    else:
        what = (
            f"{check.compared:,} new probes{drawn} against {reference['enrolled']:,} enrolled classes, compared with "
        )
        what += f"{reference['known']:,} known and {reference['unknown']:,} unknown probes of the card:"
    lines = wrapped(what, "")
    if check.rates is not None:
        lines += wrapped("(for information: with labels, the rates decide)")
    for result in check.drift:
        lines += null_lines(result, check.level, null_titles(check)[result.null])
    if check.stability_index is not None:
        size = "little" if check.stability_index < LITTLE else "some" if check.stability_index < MUCH else "much"
        lines.append(f"  population stability index of the distances: {check.stability_index:.3f} ({size} change)")
    return lines


def null_lines(result: "DriftResult", level: float, title: str) -> list[str]:
    """Format the tests against one null hypothesis."""
    failed = result.failed
    word = f"no, at the {percent(level)} level" if failed else "yes"
    lines = [f"  could they be {title}? {word}"]
    of_probes = any(test.name == "accepted_probes" for test in result.tests)
    titles = TEST_TITLES | ({"accept_rate": "accepted comparisons"} if of_probes else {})
    for test in result.tests:
        mark = "*" if test in failed else " "
        lines.append(f"  {mark} {titles[test.name]:<26}{test_values(test):<46}p {p_text(test.p_value)}")
    return lines


def test_values(test: "DriftTest") -> str:
    """Format what was found and what was expected."""
    if test.name in ("accept_rate", "accepted_probes"):
        return f"{percent(test.value)}, expected {percent(test.expected)} ± {percent(test.error, 2)}"
    if test.name == "lengths":
        return f"{test.value:.4g}, expected {test.expected:.4g} ± {test.error:.2g}"
    return f"{test.value / test.expected:.2f} times the usual deviation"


def p_text(p_value: float) -> str:
    """Format a p-value."""
    return "< 0.0001" if p_value < 1e-4 else f"{p_value:.2g}"


def rate_lines(check: "CardCheck", rates: "RealisedRates") -> list[str]:
    """Format the realised rates, and the classes with the most errors."""
    units = "items in" if check.card.gallery is None else "probes against"
    lines = wrapped(
        f"Rates of {check.items:,} labelled {units} {rates.classes:,} classes at the card's threshold, "
        f"{percent(rates.far.confidence)} intervals:",
        "",
    )
    lines += [rate_line(check, rates, name) for name in rates.decisive if name in rates.intervals]
    if rates.promise is not None:
        mark, word = (" ", "kept as far as can be told") if rates.promise.kept else ("*", "broken")
        value = f"{percent(rates.promise.value)}, at least {percent(max(rates.promise.low, 0.0))}"
        lines += wrapped(f"promise {word} (found {value}): {rates.promise.what}", mark=f"{mark} ")
    others = [name for name in rates.intervals if name not in rates.decisive]
    lines += ["  for information:"] if others else []
    lines += [rate_line(check, rates, name) for name in others]
    if rates.beyond:
        lines += wrapped(
            f"{len(rates.beyond):,} rates of single classes are beyond twice the card's, by more than chance explains:"
        )
        units = "items" if check.card.gallery is None else "probes"
        lines += [line for each in rates.beyond[:SHOWN] for line in class_line(each, units)]
    return lines


def rate_line(check: "CardCheck", rates: "RealisedRates", name: str) -> str:
    """Format one rate, and that on the card."""
    mark = "*" if name in rates.decisive and name in rates.worse else " "
    start, before = (
        f"  {mark} {name.upper()} {interval_text(rates.intervals[name])}",
        measured_rates(check.card).get(name),
    )
    if before is None:
        return f"{start}, not known on the card"
    word = "worse" if name in rates.worse else "not significantly worse"
    bounds = f"{percent(before['low'])} to {percent(before['high'])}"
    return f"{start}, on the card {percent(before['value'])} ({bounds}): {word}"


def class_line(beyond: "ClassBeyond", units: str) -> list[str]:
    """Format one class with its rate."""
    values = f"{beyond.rate.upper()} {percent(beyond.value)} (at least {percent(beyond.low)})"
    return named_line(str(beyond.name), f"{beyond.items:>8,} {units}  {values}")


def interval_text(interval: "Interval") -> str:
    """Format a rate with its interval."""
    return f"{percent(interval.value)} ({percent(interval.low)} to {percent(interval.high)})"


def canary_lines(canaries: "CanaryComparison | None") -> list[str]:
    """Format how far the canaries have moved."""
    if canaries is None:
        return []
    lost = "" if not canaries.missing else f" ({canaries.missing:,} were not embedded again)"
    state = "have changed" if canaries.changed else "have not changed"
    lines = [f"The embeddings of {canaries.canaries:,} canaries{lost} {state}:"]
    if canaries.moved_share is None or canaries.median_cosine is None or canaries.lowest_cosine is None:
        then, now = canaries.dimensions
        return [*lines, f"    they had {then} dimensions and have {now} now"]
    share = canaries.flipped_share
    flipped = "" if share is None else f"{percent(share)} of the decisions between them differ; "
    return [
        *lines,
        f"    {percent(canaries.moved_share)} moved beyond a cosine of {1 - canaries.tolerance:g} "
        f"(median {canaries.median_cosine:.6f}, lowest {canaries.lowest_cosine:.6f})",
        f"    {flipped}lengths are {canaries.length_ratio:.4g} times those of the card",
    ]
