"""Every choice an evaluation depends on, checked once, kept with its result."""

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError

Utility = Literal["specificity_sensitivity", "precision_recall"]
MeanCurve = Literal["classes", "pooled"]
EpsilonForm = Literal["f_score", "printed"]
Pairs = Literal["all", "sampled"]

CHOICES = {"utility": Utility, "mean_curve": MeanCurve, "epsilon_form": EpsilonForm, "pairs": Pairs}
MOST = 1_000_000  # beyond what any grid or sample needs, and short of what memory refuses


@dataclass(frozen=True)
class Settings:
    """The choices of an evaluation, with the paper's defaults.

    >>> Settings(far=(1e-3, 1e-2)).far
    (0.001, 0.01)
    >>> Settings(epsilon=2)
    Traceback (most recent call last):
    isomargin.InputError: epsilon is 2: a share of the classes is needed, above 0 and at most 1
    """

    far: tuple[float, float] = (1e-2, 1e-1)
    """Pooled false accept rates at the ends of the calibration range."""
    frr: float | None = None
    """If given, the calibration range starts where the pooled false reject rate has come down to this."""
    distances: tuple[float, float] | None = None
    """If given, the calibration range itself, in place of far and frr."""
    grid: int = 101
    """Distances in the calibration range at which curves are evaluated, evenly spaced, ends included."""
    epsilon: float = 0.1
    """Share of the classes in the best and in the worst group of epsilon-OPIS."""
    c: float = 1.0
    """Weight of sensitivity (or recall) in the utility."""
    utility: Utility = "specificity_sensitivity"
    """The pair of rates that the utility combines."""
    mean_curve: MeanCurve = "classes"
    """What OPIS measures deviations from: the mean of the classes' curves, or the curve of all pairs pooled."""
    epsilon_form: EpsilonForm = "f_score"
    """Utility of the groups in epsilon-OPIS: the F-score, or as the paper prints it, without the factor 1 + c^2."""
    target_far: float = 1e-2
    """False accept rate whose pooled threshold is held against each class's own."""
    target_frr: float = 5e-2
    """False reject rate for the same comparison."""
    k: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Numbers of neighbours for recall@k."""
    map_at_r: bool = True
    """Whether R-precision and MAP@R are wanted."""
    pairs: Pairs = "all"
    """All pairs, or the paper's protocol for large sets: all positives, random negatives for each class."""
    negatives_per_positive: int = 10
    """Sampled protocol: negative pairs of a class for each of its positive pairs."""
    seed: int = 0
    """Sampled protocol: seed of the draw."""
    exact: bool = False
    """Whether float64 products and exact quantiles were asked for."""
    device: str | None = None
    """Device of the pass in torch operations; None for the compiled kernels on the CPU."""

    def __post_init__(self) -> None:
        if not (is_pair(self.far) and 0 < self.far[0] < self.far[1] < 1):
            raise InputError(f"far is {self.far!r}: two rates are needed, 0 < lower < upper < 1")
        span = self.distances
        if span is not None and not (is_pair(span) and 0 <= span[0] < span[1] <= 2):
            raise InputError(f"distances is {span!r}: two distances are needed, 0 <= lower < upper <= 2")
        if self.frr is not None:
            checks.share(self.frr, "frr")
        checks.whole(self.grid, "grid", 10, MOST)
        if not 0 < checks.number(self.epsilon, "epsilon") <= 1:
            raise InputError(f"epsilon is {self.epsilon}: a share of the classes is needed, above 0 and at most 1")
        if checks.above_zero(self.c, "c") > 1e100:
            raise InputError(f"c is {self.c}: a weight of at most 1e100 is needed")
        for name in ("target_far", "target_frr"):
            checks.share(getattr(self, name), name)
        for name, kind in CHOICES.items():
            checks.one_of(getattr(self, name), name, get_args(kind))
        if not isinstance(self.k, tuple):
            raise InputError(f"k is {self.k!r}: a tuple of whole numbers is needed")
        for k in self.k:
            checks.whole(k, "k")
        checks.whole(self.negatives_per_positive, "negatives_per_positive", 1, MOST)
        checks.whole(self.seed, "seed", 0)
        if self.device is not None and not isinstance(self.device, str):
            raise InputError(f"device is {self.device!r}: the name of a torch device is needed")
        if self.exact and self.device:
            raise InputError(f"device is {self.device!r}: the exact count runs on the CPU, so leave one of them out")

    @classmethod
    def from_values(cls, **values: Any) -> "Settings":
        """Make settings from numbers, lists or tuples, as a caller or a JSON file has them."""
        if unknown := set(values) - {each.name for each in fields(cls)}:
            raise InputError(
                f"{', '.join(sorted(unknown))} is not a setting of an evaluation: "
                f"there are {', '.join(each.name for each in fields(cls))}"
            )
        for name, kind in (("far", float), ("distances", float), ("k", int)):
            if values.get(name) is not None:
                values[name] = as_tuple(name, values[name], kind)
        if values.get("device") is not None:
            values["device"] = str(values["device"])
        # Numbers of numpy's own types become Python's, which JSON can hold.
        return cls(**{name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()})


def is_pair(value: Any) -> bool:
    """Whether this is a tuple of two."""
    return isinstance(value, tuple) and len(value) == 2


def as_tuple(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """Make a tuple of numbers from a list, an array or a tuple of them."""
    try:
        listed = list(value)
        if kind is int and any(int(each) != each for each in listed):
            raise ValueError
        return tuple(sorted({int(each) for each in listed}) if name == "k" else (kind(each) for each in listed))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} is {value!r}: a list of numbers is needed") from error
