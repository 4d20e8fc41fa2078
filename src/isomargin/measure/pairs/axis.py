"""The axis on which pairs are counted: its name and bounds, and how its values follow from similarities.

Pairs are counted by a distance: a pair is accepted if its distance is at most the threshold. For plain embeddings it is
the L2 distance of unit vectors, from 0 to 2. Equalized similarities may exceed 1, so their distance may be negative.
Scores that were given without embeddings have an axis of their own, which knows no similarity: if higher scores are
more similar, their distance is minus the score.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError

AxisName = Literal["l2_distance", "equalized_distance", "offset_distance", "similarity_score", "distance_score"]

SIMILARITIES = {
    "l2_distance": "cosine",
    "equalized_distance": "equalized similarity",
    "offset_distance": "cosine minus offset",
}
"""The similarity that each axis of distances belongs to, in words."""
STEP = 2.0**-6  # bounds are multiples of this, so that they do not depend on rounding


@dataclass(frozen=True)
class ScoreAxis:
    r"""The values that a pair can have, from the most to the least similar.

    Distance d and similarity s are related by :math:`d = \operatorname{sign}(2 - 2s) \sqrt{|2 - 2s|}`. Up to a
    similarity of 1 that is the L2 distance of unit vectors, so raw and equalized distances can be compared.
    """

    name: AxisName
    """``"l2_distance"`` of unit vectors, ``"equalized_distance"``, ``"offset_distance"`` (of cosines minus the offsets
    of class thresholds), or scores without embeddings: ``"similarity_score"`` if higher scores are more similar (the
    distance is minus the score), ``"distance_score"`` if lower ones are."""
    lowest: float
    """No pair has a smaller distance."""
    highest: float
    """No pair has a larger distance."""

    @classmethod
    def equalized(
        cls, lowest_similarity: float, highest_similarity: float, name: AxisName = "equalized_distance"
    ) -> "ScoreAxis":
        """Return the axis of equalized similarities, or of others that may exceed 1, within these bounds.

        >>> ScoreAxis.equalized(-1.5, 1.5)
        ScoreAxis(name='equalized_distance', lowest=-1.0, highest=2.25)
        """
        low, high = distance_of(highest_similarity), distance_of(lowest_similarity)
        return cls(name, math.floor(low / STEP) * STEP, math.ceil(high / STEP) * STEP)

    @classmethod
    def of_scores(cls, scores: NDArray[np.float64], higher_is_more_similar: bool = True) -> "ScoreAxis":
        """Return the axis of these scores, a little wider than they are, so that a threshold may accept none or all.

        >>> ScoreAxis.of_scores(np.array([1.0, 9.0]))
        ScoreAxis(name='similarity_score', lowest=-9.125, highest=-0.875)
        """
        low, high = float(scores.min()), float(scores.max())
        beyond = STEP * max(high - low, abs(low) * STEP, abs(high) * STEP, np.finfo(np.float64).tiny)
        low, high = low - beyond, high + beyond
        return cls("similarity_score", -high, -low) if higher_is_more_similar else cls("distance_score", low, high)

    @property
    def has_similarities(self) -> bool:
        """Whether distances are those of similarities of embeddings, and not of scores that were given."""
        return self.name in SIMILARITIES

    @property
    def similarity_name(self) -> str:
        """What the similarity is called that a distance corresponds to.

        >>> L2.similarity_name, ScoreAxis("offset_distance", -1.0, 2.25).similarity_name
        ('cosine', 'cosine minus offset')
        """
        return SIMILARITIES.get(self.name, "score")

    def shown(self, distance: Any) -> Any:
        """Return a distance, or an array of them, as people see it: as the score, if scores were given.

        >>> ScoreAxis("similarity_score", -1.0, 0.0).shown(-0.75), L2.shown(0.75)
        (0.75, 0.75)
        """
        return -distance if self.name == "similarity_score" else distance

    def text(self, distance: float) -> str:
        """Name a distance in a sentence.

        >>> ScoreAxis("similarity_score", -1.0, 0.0).text(-0.75), L2.text(0.75)
        ('score 0.75', 'distance 0.75')
        """
        return f"{'distance' if self.has_similarities else 'score'} {self.shown(distance):.6g}"

    def check(self, distance: Any, name: str = "distance") -> float:
        """Return a distance of this axis, and refuse any other value."""
        if not self.has_similarities:
            return checks.number(distance, name)  # other scores may lie beyond those that were measured
        if not self.lowest <= checks.number(distance, name) <= self.highest:
            kind = (
                "a distance between unit vectors" if self.name == "l2_distance" else f"an {self.name}".replace("_", " ")
            )
            raise InputError(f"{name} is {distance}: {kind} from {self.lowest:g} to {self.highest:g} is needed")
        return float(distance)

    def check_range(self, distances: tuple[float, float]) -> tuple[float, float]:
        """Return a calibration range given as two distances, and refuse one beyond this axis."""
        if not (self.lowest <= distances[0] < distances[1] <= self.highest):
            raise InputError(
                f"distances is {distances!r}: two distances are needed, "
                f"{self.lowest:g} <= lower < upper <= {self.highest:g}"
            )
        return distances

    def distances(self, similarity: NDArray[np.float64], quantum: float) -> NDArray[np.float64]:
        """Turn similarities into distances, in place; similarities within one quantum become equal.

        >>> L2.distances(np.array([1.0, 0.5, -1.0]), 2.0**-42)
        array([0., 1., 2.])
        """
        similarity /= quantum
        np.round(similarity, out=similarity)
        similarity *= -2 * quantum
        similarity += 2
        if self.lowest >= 0:
            np.maximum(similarity, 0, out=similarity)
            return np.sqrt(similarity, out=similarity)
        return np.copysign(np.sqrt(np.abs(similarity)), similarity, out=similarity)


L2 = ScoreAxis("l2_distance", 0.0, 2.0)
"""The axis of plain embeddings."""


def distance_of(similarity: float) -> float:
    """Return the distance of a similarity; below zero for a similarity above 1.

    >>> distance_of(0.5), distance_of(1.5)
    (1.0, -1.0)
    """
    return math.copysign(math.sqrt(abs(2 - 2 * similarity)), 2 - 2 * similarity)


def similarity_of(distance: Any) -> Any:
    """Return the similarity of a distance, or of an array of distances.

    >>> similarity_of(1.0), similarity_of(-1.0)
    (0.5, 1.5)
    """
    return 1 - distance * abs(distance) / 2
