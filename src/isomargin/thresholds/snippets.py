"""``ThresholdCard.snippet``: the few lines that apply a card's threshold in a search engine, on the engine's own scale.

Engines compare float32 values, some of them strictly. The number in a snippet is the float32 next to the threshold on
the accepting side, so that a pair that lies exactly at the threshold is accepted, as it is on the card.
"""

import re
from typing import TYPE_CHECKING

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.measure.settings import TEMPLATE_WORDS
from isomargin.thresholds.conversions import ACCEPT_WHEN, UNIT_VECTORS_ONLY
from isomargin.thresholds.snippet_texts import ANY_LENGTH, ENGINES, EQUALIZED, UNIT, Engine, Metric

if TYPE_CHECKING:
    from isomargin.thresholds.card import ThresholdCard

METRICS = ("cosine", "inner_product", "l2")
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_OWN_COMPARISON = ("pgvector", "chroma")  # their snippets compare by themselves, not strictly


def snippet(
    card: "ThresholdCard", engine: str, metric: str | None = None, name: str = "items", equalizer: str | None = None
) -> str:
    """Return Python code that defines `matches`; see ``ThresholdCard.snippet``."""
    if engine not in ENGINES:
        raise InputError(f"engine is {engine!r}: {checks.nearest(str(engine), list(ENGINES))}")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or (engine == "pgvector" and "-" in name):
        raise InputError(f"name is {name!r}: the name of a collection or table is needed, such as items")
    found = ENGINES[engine]
    refuse_unusable(card)
    if card.equalizer is not None:
        if metric not in (None, "inner_product"):
            raise InputError(f"metric is {metric!r}, but equalized similarities are searched by inner product alone")
        return equalized_text(card, found, name, equalizer or "equalizer.json")
    if equalizer is not None:
        raise InputError("the card is of plain similarities: leave the equalizer out")
    kind = next(iter(found.metrics)) if metric is None else checks.one_of(metric, "metric", METRICS)
    if kind not in found.metrics:
        raise InputError(f"{found.title} has no metric {kind!r}: take one of {', '.join(found.metrics)}")
    return plain_text(card, engine, found, found.metrics[kind], name)


def refuse_unusable(card: "ThresholdCard") -> None:
    """Refuse cards whose threshold no single search of vectors applies, with the reason."""
    if "score" in card.threshold:
        raise InputError(
            "the card's threshold is one of scores that were given, not of vectors: compare your scores with "
            "card.threshold['score'] yourself"
        )
    if card.gallery is not None and card.gallery["margin"]:
        raise InputError(
            "the card has a margin between the first and the second class, which no search engine knows: take the "
            "scores of both from a search and compare them yourself, or make a card without --margin"
        )
    equalizer = card.equalizer
    if equalizer is None:
        return
    if "neighbours" not in equalizer or equalizer.get("class_thresholds"):
        raise InputError(
            "the card has class thresholds, for which there is no snippet: search by inner product with the vectors of "
            "ClassThresholds.augment and augment_queries (docs/class-thresholds.md)"
        )
    if equalizer["method"] != "local" or card.gallery is not None or card.comparison == "trials":
        what = "a cohort" if equalizer["method"] != "local" else "a gallery" if card.gallery else "trials"
        raise InputError(
            f"the card has similarities of {what} that are equalized, for which there is no snippet: "
            "docs/equalize-serving.md and the summary of the card say how they are served"
        )


def plain_text(card: "ThresholdCard", engine: str, found: Engine, metric: Metric, name: str) -> str:
    """Return the code for plain similarities."""
    at_least = ACCEPT_WHEN[metric.convention] == "at least"
    value = card.threshold[metric.convention]
    number = repr(value if engine in _OWN_COMPARISON else accepting_neighbour(value, at_least))
    normalised = metric.convention in UNIT_VECTORS_ONLY or metric.words.endswith("inner product")
    places = {
        "COMPARED": ">=" if at_least else "<=",
        "DESCENDING": str(at_least),
        "DIRECTION": "DESC" if at_least else "",
        "METRIC": metric.name,
        "NAME": name,
        "THRESHOLD": number,
    }
    compared = "at least" if at_least else "at most"
    comments = [
        *header(card, found),
        f"Accepts an item if {metric.words} is {compared} {value:.9g}.",
        *(["Vectors in the index must have length one: divide each by its length."] if normalised else []),
        *gallery_comments(card),
        *notes(found),
        filled(f"Expects {found.needs}.", places),
    ]
    limit = ", limit=1000" if found.limited else ""
    order = "nearest first" if card.gallery is None else "nearest first: the first is the identified one"
    return "\n".join(
        [
            *(f"# {printable(line)}" for line in comments),
            f"import numpy as np\n{found.imports}",
            "",
            f"def matches(embedding{limit}):",
            f'    """Return the ids of the accepted items with {metric.words}, {order}."""',
            UNIT if normalised else ANY_LENGTH,
            without_trailing_spaces(filled(found.search, places)),
            "",
        ]
    )


def equalized_text(card: "ThresholdCard", found: Engine, name: str, equalizer: str) -> str:
    """Return the code for equalized similarities, which takes two searches by inner product."""
    assert card.equalizer is not None
    comments = [
        *header(card, found),
        "Similarities are equalized: index equalizer.transform_reference(), by inner product and not by cosine.",
        *notes(found),
        filled(f"Expects {found.needs}.", {"NAME": name, "METRIC": found.metrics["inner_product"].name}),
    ]
    places = {
        "DIGEST": card.equalizer["digest"][:16],
        "THRESHOLD": repr(card.threshold["equalized_similarity"]),
    }
    # The path may have any characters, so it is put in last, as Python writes a text.
    served = filled(EQUALIZED, places).replace('"EQUALIZER"', repr(str(equalizer)))
    return "\n".join(
        [
            *(f"# {printable(line)}" for line in comments),
            f"{found.imports}import isomargin as im",
            "",
            served,
            "",
            "",
            filled(found.nearest, {"NAME": name}),
            "",
        ]
    )


def header(card: "ThresholdCard", found: Engine) -> list[str]:
    """Say which card it is, and whether the code was run against the engine."""
    first = f"Threshold for {card.target} in {found.title}; card {card.sha256[:16]}, {card.created}."
    untested = f"UNTESTED: this was not run against {found.title}. Check it with pairs whose similarity you know."
    return [first] if found.tested else [first, untested]


def notes(found: Engine) -> list[str]:
    """Say what a search may miss."""
    more = " If limit items come back, there may be more: raise it." if found.limited else ""
    return [found.exact + more]


def gallery_comments(card: "ThresholdCard") -> list[str]:
    """Say what the index holds if the card is of a gallery."""
    if card.gallery is None:
        return []
    words = TEMPLATE_WORDS[card.gallery["template"]]
    if card.gallery["template"] == "mean":
        return [f"The index holds one template per class, {words}: `isomargin templates` writes them."]
    return ["The index holds every enrolled item; a class is accepted if one of its items is."]


def accepting_neighbour(value: float, at_least: bool) -> float:
    """Return the float32 next to a threshold on the accepting side of all float32 values that satisfy it.

    >>> accepting_neighbour(0.5, True), accepting_neighbour(0.5, False)
    (0.4999999701976776, 0.5000000596046448)
    """
    nearest = np.float32(value)
    if at_least:
        least = nearest if float(nearest) >= value else np.nextafter(nearest, np.float32(np.inf))
        return float(np.nextafter(least, np.float32(-np.inf)))
    most = nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf))
    return float(np.nextafter(most, np.float32(np.inf)))


def filled(text: str, places: dict[str, str]) -> str:
    """Put values in the place of words in capital letters, in one pass, so that values are not searched again."""
    return re.sub(r"\b(" + "|".join(places) + r")\b", lambda found: places[found[0]], text)


def without_trailing_spaces(text: str) -> str:
    """Remove spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.split("\n"))
