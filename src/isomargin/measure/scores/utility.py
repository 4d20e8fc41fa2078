"""The paper's Eq. 1, in one place for measured and for theoretical curves."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def utility(specificity: ArrayLike, sensitivity: ArrayLike, c: float = 1.0) -> NDArray[np.float64]:
    """U = (1 + c²)φψ/(c²φ + ψ), and 0 where φ and ψ are both 0: Eq. 1 of the paper.

    A weighted harmonic mean, 1/U = (c²/ψ + 1/φ)/(1 + c²): it lies between φ and ψ, and sensitivity weighs c² times as
    much as specificity. Precision and recall may stand in for specificity and sensitivity. The paper leaves 0/0 open.

    φ and ψ hold shares in [0, 1]; their shapes broadcast, and the result has the broadcast shape.

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
    some = smaller > 0.0  # elsewhere U is 0
    phi, psi, smaller = phi[some], psi[some], smaller[some]
    # Ratios to the smaller of the two, so that no product underflows.
    mean = smaller / (sensitivity_weight * (smaller / psi) + specificity_weight * (smaller / phi))
    result[some] = np.clip(mean, smaller, np.maximum(phi, psi))  # the weights' rounding may carry it outside
    return result
