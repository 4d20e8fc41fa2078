"""One threshold for all: choose a threshold on one set, apply it to others, and compare the rates.

The rates are those measured on these sets. Promises for unseen classes are in `conformal.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.json_values import null_for_nan
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.operating_point import OperatingPoint
from isomargin.measure.pairs.axis import L2, ScoreAxis
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.rates import largest_within
from isomargin.measure.settings import COMPARED, Comparison
from isomargin.thresholds.card import ThresholdCard
from isomargin.thresholds.same_shifts import digest_of

if TYPE_CHECKING:
    import pandas

CALIBRATION = "calibration"  # name of the row of the calibration set
WORST = 0.05  # share of classes that exceed the rate of the worst classes


@dataclass(frozen=True)
class TransferRow:
    """What the threshold does on one set; differences are to the calibration set."""

    name: str
    """Name of the set, or "calibration"."""
    classes: int
    """Number of classes."""
    items: int
    """Number of embeddings."""
    far: float
    """Pooled false accept rate."""
    frr: float
    """Pooled false reject rate."""
    accuracy: float
    """Share of correct decisions, with equal weight for positive and negative pairs: 1 - (FAR + FRR)/2."""
    far_difference: float
    """FAR minus that of the calibration set."""
    frr_difference: float
    """FRR minus that of the calibration set."""
    accuracy_difference: float
    """Accuracy minus that of the calibration set."""
    worst_class_far: float
    """The FAR that 5% of the classes exceed."""
    worst_class_frr: float
    """The FRR that 5% of the classes exceed, among those with two or more items."""
    own_distance: float
    """The largest threshold whose FAR on this set does not exceed that of the calibration set; NaN if there is none."""


@dataclass(frozen=True)
class Transfer:
    """What one threshold does on several sets."""

    distance: float
    """The threshold: pairs at most this far apart are accepted."""
    rows: tuple[TransferRow, ...]
    """One row per set, the calibration set first."""
    equalized: bool = False
    """Whether similarities are equalized."""
    axis: ScoreAxis = L2
    """The axis of the threshold."""
    comparison: Comparison = "all_pairs"
    """What was compared; the groups of a list of trials are its classes."""

    @property
    def table(self) -> "pandas.DataFrame":
        """The rows as a table, with one column per field."""
        import pandas

        table = pandas.DataFrame([asdict(row) for row in self.rows])
        if not self.axis.has_similarities:
            table["own_distance"] = self.axis.shown(table["own_distance"])
            table = table.rename(columns={"own_distance": "own_score"})
        return table

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        rows = [{name: null_for_nan(value) for name, value in asdict(row).items()} for row in self.rows]
        if self.axis.has_similarities:
            return {"distance": self.distance, "sets": rows}
        for row in rows:
            own = row.pop("own_distance")
            row["own_score"] = None if own is None else self.axis.shown(own)
        return {"score": self.axis.shown(self.distance), "sets": rows}


def transfer_threshold(distance: float, calibration: Evaluation, others: Mapping[str, Evaluation]) -> Transfer:
    """Apply a threshold that was chosen on one set to others, by the One-Threshold-for-All protocol.

    Args:
        distance: the threshold, from 0 to 2 unless similarities are equalized.
        calibration: the set on which it was chosen.
        others: the sets to which it is applied, by name.

    >>> import isomargin as im
    >>> def drawn(spread):
    ...     embeddings = np.eye(6)[np.arange(60) % 6] + spread * np.random.default_rng(0).normal(size=(60, 6))
    ...     return im.evaluate(embeddings, np.arange(60) % 6)
    >>> transfer = transfer_threshold(0.8, drawn(0.2), {"noisier": drawn(0.4)})
    >>> transfer.table[["name", "frr", "frr_difference"]].round(3)
              name    frr  frr_difference
    0  calibration  0.089           0.000
    1      noisier  0.644           0.556
    """
    check_others(others)
    check_evaluation(CALIBRATION, calibration)
    distance = calibration.axis.check(distance)
    check_same_comparison(calibration.comparison, calibration.axis.name, others)
    check_same_scores(calibration.equalizer, others)
    reference = calibration.at(distance)
    sets = {CALIBRATION: calibration, **others}
    rows = tuple(make_row(name, each, reference) for name, each in sets.items())
    return Transfer(distance, rows, calibration.equalizer is not None, calibration.axis, calibration.comparison)


def transfer_card(card: ThresholdCard, others: Mapping[str, Evaluation]) -> Transfer:
    """Apply the threshold of a card to sets, and compare them with the set on which the card was measured.

    The first row comes from the card: its own distance is the threshold, and its class rates are quantiles.
    """
    check_others(others)
    check_same_comparison(card.comparison, card.score_axis, others)
    check_same_scores(card.equalizer, others)
    measured = card.measured
    far, frr = measured["far"]["value"], measured["frr"]["value"]
    reference = OperatingPoint(card.distance, far, frr, np.array([]), np.array([]))
    first = TransferRow(
        name=CALIBRATION,
        classes=measured["classes"],
        items=measured["items"],
        far=far,
        frr=frr,
        accuracy=accuracy(reference),
        far_difference=0.0,
        frr_difference=0.0,
        accuracy_difference=0.0,
        worst_class_far=measured["class_far_quantiles"][str(1 - WORST)],
        worst_class_frr=measured["class_frr_quantiles"][str(1 - WORST)],
        own_distance=card.distance,
    )
    rows = (first, *(make_row(name, each, reference) for name, each in others.items()))
    other = next(iter(others.values()))
    return Transfer(card.distance, rows, card.equalizer is not None, other.axis, other.comparison)


def make_row(name: str, evaluation: Evaluation, reference: OperatingPoint) -> TransferRow:
    """Compare a set with the rates of the calibration set at the same distance."""
    point, own = evaluation.at(reference.distance), largest_within(evaluation.counts.negatives, reference.far)
    return TransferRow(
        name=name,
        classes=evaluation.class_count,
        items=evaluation.items,
        far=point.far,
        frr=point.frr,
        accuracy=accuracy(point),
        far_difference=point.far - reference.far,
        frr_difference=point.frr - reference.frr,
        accuracy_difference=accuracy(point) - accuracy(reference),
        worst_class_far=worst_class(point.class_far),
        worst_class_frr=worst_class(point.class_frr),
        own_distance=own if own > -math.inf else math.nan,
    )


def accuracy(point: OperatingPoint) -> float:
    """Compute 1 - (FAR + FRR)/2.

    >>> accuracy(OperatingPoint(1.0, 0.25, 0.25, np.zeros(2), np.zeros(2)))
    0.75
    """
    return 1 - (point.far + point.frr) / 2


def worst_class(rates: Floats) -> float:
    """Compute the rate that 5% of the classes exceed, among those that have a rate.

    >>> round(worst_class(np.append(np.linspace(0, 1, 101), np.nan)), 6)
    0.95
    """
    return float(np.nanquantile(rates, 1 - WORST))


def check_others(others: Mapping[str, Evaluation]) -> None:
    """Refuse anything but at least one evaluation by name."""
    if not isinstance(others, Mapping):
        raise InputError(f"others is of type {type(others).__name__}: a dictionary of evaluations by name is needed")
    if not others:
        raise InputError("others is empty: at least one set is needed")
    if CALIBRATION in others:
        raise InputError(f"others has a set named {CALIBRATION!r}, as the calibration set is: use another name")
    for name, each in others.items():
        check_evaluation(name, each)


MAKES = {
    "all_pairs": "isomargin threshold FILE",
    "gallery": "isomargin threshold PROBES --gallery GALLERY",
    "trials": "isomargin threshold EVALUATION of the trials",
}
"""The command that chooses a threshold, by what is compared."""


def check_same_comparison(comparison: str, axis: str, others: Mapping[str, Evaluation]) -> None:
    """Refuse sets that were compared in another way than where the threshold was measured."""
    for name, other in others.items():
        if other.comparison != comparison:
            raise InputError(
                f"the threshold was measured on {COMPARED[comparison]}, but {name!r} compares "
                f"{COMPARED[other.comparison]}: {MAKES[other.comparison]} chooses one for it"
            )
        if other.axis.name != axis and "score" in other.axis.name + axis:
            raise InputError(f"the threshold and {name!r} are on different scales: score both in the same way")


def check_same_scores(equalizer: dict[str, Any] | None, others: Mapping[str, Evaluation]) -> None:
    """Refuse sets whose similarities were not equalized like those of the threshold."""
    for name, other in others.items():
        if digest_of(equalizer) == digest_of(other.equalizer):
            continue
        if equalizer is None or other.equalizer is None:
            which = "plain" if equalizer is None else "equalized"
            raise InputError(
                f"the threshold is for {which} similarities, but those of {name!r} are "
                f"{'equalized: leave out' if equalizer is None else 'plain: give'} the equalizer (--equalizer)"
            )
        raise InputError(
            f"{name!r} was equalized by {digest_of(other.equalizer)[:16]}, the threshold belongs to equalizer "
            f"{digest_of(equalizer)[:16]}: use the same equalizer for both"
        )


def check_evaluation(name: str, evaluation: Evaluation) -> None:
    """Refuse anything but an evaluation."""
    if not isinstance(evaluation, Evaluation):
        needed = "the result of isomargin.evaluate is needed"
        raise InputError(f"the set {name!r} is of type {type(evaluation).__name__}: {needed}")
