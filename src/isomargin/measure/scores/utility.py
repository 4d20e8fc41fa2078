"""The utility of a threshold, Eq. 1 of the paper: one implementation for measured and for theoretical curves."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def utility(specificity: ArrayLike, sensitivity: ArrayLike, c: float = 1.0) -> NDArray[np.float64]:
    """U = (1 + c²)φψ/(c²φ + ψ), and 0 where φ and ψ are both 0: Eq. 1 of the paper.

    This is the weighted harmonic mean of specificity φ and sensitivity ψ, 1/U = (c²/ψ + 1/φ)/(1 + c²). It lies between
    φ and ψ, and sensitivity weighs c² times as much as specificity. For the utility of precision and recall, pass
    precision as φ and recall as ψ. The paper does not define the case 0/0.

    φ and ψ are rates in [0, 1]; their shapes broadcast.

    >>> utility([1.0, 0.5, 0.0], [0.5, 0.5, 0.0]).round(4)
    array([0.6667, 0.5   , 0.    ])
    >>> utility([1.0, 0.5], [0.5, 1.0], c=2.0).round(4)
    array([0.5556, 0.8333])
    """
    phi, psi = np.broadcast_arrays(np.asarray(specificity, np.float64), np.asarray(sensitivity, np.float64))
    sensitivity_weight = 1.0 / (1.0 + (1.0 / c) * (1.0 / c))  # c²/(1 + c²), also where c² overflows
    specificity_weight = 1.0 / (1.0 + c * c)
    smaller = np.minimum(phi, psi)
    result = np.zeros(smaller.shape)
    positive = smaller > 0.0  # elsewhere U is 0
    phi, psi, smaller = phi[positive], psi[positive], smaller[positive]
    # Divide by the smaller of the two, so that no product underflows.
    mean = smaller / (sensitivity_weight * (smaller / psi) + specificity_weight * (smaller / phi))
    result[positive] = np.clip(mean, smaller, np.maximum(phi, psi))  # rounded weights may push it outside
    return result
