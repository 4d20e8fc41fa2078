"""``Settings``: every choice that an evaluation depends on, checked once and stored with the result."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from isomargin.core import checks
from isomargin.core.errors import InputError

Utility = Literal["specificity_sensitivity", "precision_recall"]
MeanCurve = Literal["classes", "pooled"]
EpsilonForm = Literal["f_score", "printed"]
Pairs = Literal["all", "sampled"]
PairsInParts = Literal["all", "stratified"]
Comparison = Literal["all_pairs", "gallery", "trials"]
"""What is compared: all pairs of items, probes with the templates of a gallery, or the pairs of a list of trials."""
COMPARED = {
    "all_pairs": "all pairs of items",
    "gallery": "probes with the templates of a gallery",
    "trials": "the pairs of a list of trials",
}
"""The same in words."""
UNITS = {"all_pairs": ("items", "classes"), "gallery": ("known probes", "classes"), "trials": ("trials", "groups")}
"""What is counted, and what it is grouped by, in words."""
TEMPLATE_WORDS = {"mean": "mean of a class's items", "max": "best of a class's items", "each": "every item by itself"}
"""What a probe is compared with, by the name of the template."""

CHOICES = {"utility": Utility, "mean_curve": MeanCurve, "epsilon_form": EpsilonForm, "pairs": Pairs | PairsInParts}
MOST = 1_000_000  # more than any grid or sample needs, and small enough for memory


@dataclass(frozen=True)
class Settings:
    """The settings of an evaluation; the defaults are those of the paper.

    They are the keyword arguments of `isomargin.evaluate`, which explains them too.

    >>> Settings(far=(1e-3, 1e-2)).far
    (0.001, 0.01)
    >>> Settings(epsilon=2)
    Traceback (most recent call last):
    isomargin.InputError: epsilon is 2: a share of the classes is needed, above 0 and at most 1
    """

    far: tuple[float, float] = (1e-2, 1e-1)
    """The calibration range, given as the pooled false accept rates at its two ends."""
    frr: float | None = None
    """If set, the calibration range starts where the pooled false reject rate falls to this value instead."""
    distances: tuple[float, float] | None = None
    """If set, the calibration range as two distances; ``far`` and ``frr`` are then ignored."""
    grid: int = 101
    """Number of evenly spaced distances in the calibration range at which the curves are evaluated, ends included."""
    epsilon: float = 0.1
    """Share of the classes in the best group, and in the worst group, of epsilon-OPIS."""
    c: float = 1.0
    """Weight of sensitivity (or recall) in the utility; above 1, false rejects cost more than false accepts."""
    utility: Utility = "specificity_sensitivity"
    """The two rates that the utility combines."""
    mean_curve: MeanCurve = "classes"
    """The curve from which OPIS measures deviations: the mean of the classes' curves, or the curve of all pairs."""
    epsilon_form: EpsilonForm = "f_score"
    """Utility of the groups in epsilon-OPIS: the F-score, or as printed in the paper, without the factor 1 + c²."""
    target_far: float = 1e-2
    """False accept rate of the single threshold whose effect on each class is reported."""
    target_frr: float = 5e-2
    """False reject rate for which each class's own threshold is found, to measure how much these thresholds differ."""
    target_fpir: float = 5e-2
    """False positive identification rate at which the scores of identification are reported, for a gallery."""
    k: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Values of k for recall@k."""
    map_at_r: bool = True
    """Whether to compute R-precision and MAP@R."""
    pairs: Pairs | PairsInParts = "all"
    """``"all"`` pairs; ``"sampled"``, the paper's protocol for large sets: random negative pairs for each class; or
    ``"stratified"``, a sample of negatives with a known error, for counting in parts."""
    negatives_per_positive: int = 10
    """Number of negative pairs drawn per positive pair of a class, if pairs are sampled."""
    relative_error: float = 0.1
    """Largest relative standard error of a class's FAR at ``target_far`` due to sampling, if pairs are stratified."""
    seed: int = 0
    """Seed of the random numbers, if pairs are sampled."""
    exact: bool = False
    """Whether to use float64 products and exact quantiles in any case."""
    device: str | None = None
    """Torch device that counts the pairs; None for the compiled kernels on the CPU."""

    def __post_init__(self) -> None:
        if not (is_pair(self.far) and 0 < self.far[0] < self.far[1] < 1):
            raise InputError(f"far is {self.far!r}: two rates are needed, 0 < lower < upper < 1")
        span = self.distances
        if span is not None and not (is_pair(span) and all(map(math.isfinite, span)) and span[0] < span[1]):
            raise InputError(f"distances is {span!r}: two distances are needed, the lower one first")
        if self.frr is not None:
            checks.share(self.frr, "frr")
        checks.whole(self.grid, "grid", 10, MOST)
        if not 0 < checks.number(self.epsilon, "epsilon") <= 1:
            raise InputError(f"epsilon is {self.epsilon}: a share of the classes is needed, above 0 and at most 1")
        if checks.above_zero(self.c, "c") > 1e100:
            raise InputError(f"c is {self.c}: a weight of at most 1e100 is needed")
        for name in ("target_far", "target_frr", "target_fpir", "relative_error"):
            checks.share(getattr(self, name), name)
        for name, kind in CHOICES.items():
            checks.one_of(getattr(self, name), name, list(dict.fromkeys(choices(kind))))
        if not isinstance(self.k, tuple):
            raise InputError(f"k is {self.k!r}: a tuple of whole numbers is needed")
        for k in self.k:
            checks.whole(k, "k")
        checks.whole(self.negatives_per_positive, "negatives_per_positive", 1, MOST)
        checks.whole(self.seed, "seed", 0)
        if self.device is not None and not isinstance(self.device, str):
            raise InputError(f"device is {self.device!r}: the name of a torch device is needed")
        if self.exact and self.device:
            raise InputError(f"device is {self.device!r}: exact runs on the CPU only, so leave out device or exact")

    @classmethod
    def from_values(cls, **values: Any) -> "Settings":
        """Build settings from values as callers or JSON files provide them: lists and numpy numbers are converted."""
        names = [field.name for field in fields(cls)]
        if unknown := set(values) - set(names):
            raise InputError(
                f"{', '.join(sorted(unknown))} is not a setting of an evaluation: the settings are {', '.join(names)}"
            )
        for name, kind in (("far", float), ("distances", float), ("k", int)):
            if values.get(name) is not None:
                values[name] = as_tuple(name, values[name], kind)
        if values.get("device") is not None:
            values["device"] = str(values["device"])
        # JSON can only hold Python's own numbers.
        return cls(**{name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()})


def choices(kind: Any) -> list[str]:
    """List the values of a literal type, or of a union of several."""
    return [value for part in get_args(kind) for value in (choices(part) if get_args(part) else [part])]


def is_pair(value: Any) -> bool:
    """Whether the value is a tuple of length two."""
    return isinstance(value, tuple) and len(value) == 2


def as_tuple(name: str, value: Any, kind: type) -> tuple[Any, ...]:
    """Convert a list, array or tuple of numbers to a tuple; the values of ``k`` are sorted and made unique."""
    try:
        numbers = list(value)
        if kind is int and any(int(number) != number for number in numbers):
            raise ValueError
        return tuple(sorted({int(number) for number in numbers}) if name == "k" else map(kind, numbers))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} is {value!r}: a list of numbers is needed") from error


def of_groups(text: str, comparison: str) -> str:
    """Say group for class where trials are compared, whose negative pairs belong to groups.

    >>> of_groups("Class FARs differ over classes", "trials"), of_groups("classes", "gallery")
    ('Group FARs differ over groups', 'classes')
    """
    if UNITS[comparison][1] != "groups":
        return text
    for word, instead in (("lasses", "roups"), ("lass", "roup")):
        text = text.replace(f"C{word}", f"G{instead}").replace(f"c{word}", f"g{instead}")
    return text
