"""The axis on which pairs are counted: its name and bounds, and how its values follow from similarities.

Pairs are counted by a distance: a pair is accepted if its distance is at most the threshold. For plain embeddings it is
the L2 distance of unit vectors, from 0 to 2. Equalized similarities may exceed 1, so their distance may be negative.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError

AxisName = Literal["l2_distance", "equalized_distance"]

STEP = 2.0**-6  # bounds are multiples of this, so that they do not depend on rounding


@dataclass(frozen=True)
class ScoreAxis:
    r"""The values that a pair can have, from the most to the least similar.

    Distance d and similarity s are related by :math:`d = \operatorname{sign}(2 - 2s) \sqrt{|2 - 2s|}`. Up to a
    similarity of 1 that is the L2 distance of unit vectors, so raw and equalized distances can be compared.
    """

    name: AxisName
    """``"l2_distance"`` of unit vectors, or ``"equalized_distance"``."""
    lowest: float
    """No pair has a smaller distance."""
    highest: float
    """No pair has a larger distance."""

    @classmethod
    def equalized(cls, lowest_similarity: float, highest_similarity: float) -> "ScoreAxis":
        """Return the axis of equalized similarities within these bounds.

        >>> ScoreAxis.equalized(-1.5, 1.5)
        ScoreAxis(name='equalized_distance', lowest=-1.0, highest=2.25)
        """
        low, high = distance_of(highest_similarity), distance_of(lowest_similarity)
        return cls("equalized_distance", math.floor(low / STEP) * STEP, math.ceil(high / STEP) * STEP)

    def check(self, distance: Any, name: str = "distance") -> float:
        """Return a distance of this axis, and refuse any other value."""
        if not self.lowest <= checks.number(distance, name) <= self.highest:
            kind = "a distance between unit vectors" if self.name == "l2_distance" else "an equalized distance"
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
