"""Convert a threshold between the conventions of search engines.

All of them are equivalent for unit vectors. For vectors of other lengths only the two cosine conventions hold. An
equalized threshold has conventions of its own: it applies to corrected similarities, not to cosines. So has one for
cosines minus the offsets of class thresholds.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from isomargin.measure.pairs.axis import L2, AxisName, ScoreAxis, similarity_of

Comparison = Literal["at least", "at most"]

ACCEPT_WHEN: Mapping[str, Comparison] = MappingProxyType(
    {
        "cosine_similarity": "at least",
        "cosine_distance": "at most",
        "l2": "at most",
        "squared_l2": "at most",
        "inner_product": "at least",
    }
)
"""Whether a pair is accepted when its value is at least, or at most, the threshold."""

EQUALIZED_ACCEPT_WHEN: Mapping[str, Comparison] = MappingProxyType(
    {"equalized_similarity": "at least", "equalized_distance": "at most"}
)
"""The same for the threshold of equalized similarities."""

OFFSET_ACCEPT_WHEN: Mapping[str, Comparison] = MappingProxyType(
    {"cosine_minus_offset": "at least", "offset_distance": "at most"}
)
"""The same for the threshold of cosines minus the offsets of class thresholds."""

CONVENTIONS: Mapping[AxisName, Mapping[str, Comparison]] = MappingProxyType(
    {
        "l2_distance": ACCEPT_WHEN,
        "equalized_distance": EQUALIZED_ACCEPT_WHEN,
        "offset_distance": OFFSET_ACCEPT_WHEN,
        "similarity_score": MappingProxyType({"score": "at least"}),
        "distance_score": MappingProxyType({"score": "at most"}),
    }
)
"""The conventions of each score axis."""

UNIT_VECTORS_ONLY = ("l2", "squared_l2", "inner_product")
"""Conventions that depend on the lengths of the vectors: divide each vector by its length first."""


def conversions(distance: Any, axis: ScoreAxis = L2) -> dict[str, float]:
    """Convert the threshold d to every convention of its axis.

    For an L2 distance between unit vectors: cosine similarity = inner product = 1 - d²/2; cosine distance = d²/2;
    squared L2 = d². Scores that were given have no convention but their own.

    >>> conversions(1.0)
    {'cosine_similarity': 0.5, 'cosine_distance': 0.5, 'l2': 1.0, 'squared_l2': 1.0, 'inner_product': 0.5}
    >>> ACCEPT_WHEN["cosine_similarity"], ACCEPT_WHEN["cosine_distance"]
    ('at least', 'at most')
    """
    l2 = axis.check(distance)
    if not axis.has_similarities:
        return {"score": axis.shown(l2)}
    if axis.name == "equalized_distance":
        return {"equalized_similarity": similarity_of(l2), "equalized_distance": l2}
    if axis.name == "offset_distance":
        return {"cosine_minus_offset": similarity_of(l2), "offset_distance": l2}
    squared = l2 * l2
    return {
        "cosine_similarity": 1 - squared / 2,
        "cosine_distance": squared / 2,
        "l2": l2,
        "squared_l2": squared,
        "inner_product": 1 - squared / 2,
    }
