"""How many threads work, and that each computes its own matrix products."""

import os
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_blas_thread() -> Any:
    """Limit matrix products to one thread each, as a context: workers that each compute one would compete otherwise.

    It is a setting of the whole process. The result has ``restore_original_limits`` as well.
    """
    return blas_libraries().limit(limits=1)


@cache
def blas_libraries() -> ThreadpoolController:
    """Return the libraries that numpy multiplies with. Finding them takes milliseconds, as long as a small set does."""
    import numpy  # noqa: F401  # loads them

    return ThreadpoolController()
