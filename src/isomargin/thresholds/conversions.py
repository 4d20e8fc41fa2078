"""Convert a threshold between the conventions of search engines.

All of them are equivalent for unit vectors. For vectors of other lengths only the two cosine conventions hold.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from isomargin.core import checks

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


UNIT_VECTORS_ONLY = ("l2", "squared_l2", "inner_product")
"""Conventions that depend on the lengths of the vectors: divide each vector by its length first."""


def conversions(distance: Any) -> dict[str, float]:
    """Convert the threshold d, an L2 distance between unit vectors, to every convention of ``ACCEPT_WHEN``.

    cosine similarity = inner product = 1 - d²/2; cosine distance = d²/2; squared L2 = d².

    >>> conversions(1.0)
    {'cosine_similarity': 0.5, 'cosine_distance': 0.5, 'l2': 1.0, 'squared_l2': 1.0, 'inner_product': 0.5}
    >>> ACCEPT_WHEN["cosine_similarity"], ACCEPT_WHEN["cosine_distance"]
    ('at least', 'at most')
    """
    l2 = checks.distance(distance, "distance")
    squared = l2 * l2
    return {
        "cosine_similarity": 1 - squared / 2,
        "cosine_distance": squared / 2,
        "l2": l2,
        "squared_l2": squared,
        "inner_product": 1 - squared / 2,
    }
