"""Compare two or more models on the same classes: how their scores differ, and whether that could be chance.

The same resampled classes are used for all models, so that a difficult class counts for all of them. This paired
bootstrap gives far narrower intervals for differences than for the scores themselves.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.text import percent
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores.registry import find_score
from isomargin.measure.settings import COMPARED, Settings
from isomargin.measure.settings import Comparison as Compared
from isomargin.measure.statistics.gallery_resampling import make_resampler
from isomargin.measure.statistics.intervals import (
    Interval,
    check_classes,
    check_draws,
    note_on_few_classes,
    percentile_interval,
    percentile_p_value,
    score_values,
)
from isomargin.measure.statistics.resampling import Weights

if TYPE_CHECKING:
    import pandas

MUST_AGREE = (
    *("far", "frr", "distances", "grid", "epsilon", "c", "utility", "mean_curve", "epsilon_form", "target_far"),
    *("target_frr", "target_fpir", "pairs", "negatives_per_positive"),
)
SHOWN = 3  # number of classes named in an error message


@dataclass(frozen=True)
class Difference:
    """The difference in one score between a model and the first model."""

    score: str
    """Name of the score; ``frr`` is the FRR at each model's own threshold for the target FAR."""
    first: float
    """The first model's score."""
    other: float
    """This model's score."""
    difference: Interval
    """This model's score minus the first model's, with its confidence interval."""
    change: Interval | None
    """The difference divided by the first model's score; only for OPIS and related scores, and None if that is 0."""
    p_value: float
    """Two-sided p value of the hypothesis that there is no difference."""

    @property
    def certain(self) -> bool:
        """Whether the difference is statistically significant: its confidence interval does not contain zero."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def better(self) -> bool:
        """Whether this model scores better than the first model, significantly or not."""
        return (self.difference.value < 0) == find_score(self.score).lower_is_better and self.difference.value != 0


@dataclass(frozen=True)
class Comparison:
    """The result of `isomargin.compare`: how the scores of models on the same classes differ."""

    first: str
    """Name of the model with which the others are compared."""
    others: Mapping[str, tuple[Difference, ...]]
    """The differences of each other model, by the model's name."""
    confidence: float
    """Confidence level of the intervals."""
    classes: int
    """Number of classes."""
    least_p_value: float
    """The smallest p value that this number of draws and classes can give."""
    compared: Compared = "all_pairs"
    """What was compared: all pairs of items, probes with a gallery, or the trials of a list, whose groups are the
    classes."""
    notes: tuple[str, ...] = ()
    """What the user should know about the comparison."""

    def sentence(self, name: str) -> str:
        """Describe in one sentence how a model's OPIS, FNIR and recall@1 differ from the first model's."""
        rows = {row.score: row for row in self.others[name]}
        named = {"opis": "OPIS", "fnir": "FNIR"}  # a gallery of one probe per class has no OPIS
        parts = [self.phrase(title, rows[score]) for score, title in named.items() if score in rows]
        recall = next((score for score in rows if score.startswith("recall@")), None)
        if recall is not None:
            parts.append(self.phrase(recall, rows[recall]))
        elif "min_dcf" in rows:  # trials
            parts.append(self.phrase("EER", rows["eer"]))
        return f"{name}'s " + "; ".join(parts)

    def phrase(self, subject: str, row: Difference) -> str:
        """Describe how one score differs, or that the difference is not statistically significant."""
        if not row.certain:
            return f"{subject} does not differ significantly ({percent(1 - self.confidence)} level)"
        direction = "lower" if row.difference.value < 0 else "higher"
        shown = row.change or row.difference
        least, most = sorted((abs(shown.low), abs(shown.high)))
        if row.change:
            value, bounds = f"{abs(shown.value):.0%}", f"{least:.0%} to {most:.0%}"
        elif find_score(row.score).unit != "rate":
            value, bounds = f"{abs(shown.value):.2g}", f"{least:.2g} to {most:.2g}"
        else:
            value, bounds = f"{100 * abs(shown.value):.2f} points", f"{100 * least:.2f} to {100 * most:.2f}"
        return f"{subject} is {value} {direction}, {self.confidence:.0%} confidence interval {bounds}"

    def as_values(self) -> dict[str, Any]:
        """Return the differences and the sentences as JSON values."""
        models = {
            name: {"sentence": self.sentence(name), "differences": [asdict(row) for row in rows]}
            for name, rows in self.others.items()
        }
        return {"first": self.first, "classes": self.classes, "models": models, "notes": list(self.notes)}

    @property
    def table(self) -> "pandas.DataFrame":
        """A table with one row per model and score."""
        import pandas

        return pandas.DataFrame(
            {
                "model": name,
                "score": row.score,
                self.first: row.first,
                "value": row.other,
                "difference": row.difference.value,
                "low": row.difference.low,
                "high": row.difference.high,
                "change": row.change.value if row.change else np.nan,
                "change_low": row.change.low if row.change else np.nan,
                "change_high": row.change.high if row.change else np.nan,
                "p_value": row.p_value,
            }
            for name, rows in self.others.items()
            for row in rows
        )


def compare(
    evaluations: Mapping[str, Evaluation], draws: int = 1000, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Compare the scores of models with those of the first model, by paired bootstrap over classes.

    Args:
        evaluations: at least two evaluations of the same classes with the same settings, by the models' names. The
            first one is the model with which the others are compared.
        draws: number of bootstrap draws, at least 100.
        confidence: confidence level of the intervals.
        seed: seed of the random draws.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(40), 8)
    >>> centres, noise = generator.normal(size=(40, 16))[labels], generator.normal(size=(320, 16))
    >>> rough, fine = (im.evaluate(centres + spread * noise, labels) for spread in (0.9, 0.5))
    >>> im.compare({"rough": rough, "fine": fine}).sentence("fine")
    "fine's OPIS is ... lower, 95% confidence interval ...; recall@1 is ... points higher, 95% confidence interval ..."
    """
    if not isinstance(evaluations, Mapping):
        kind = type(evaluations).__name__
        raise InputError(
            f"evaluations is of type {kind}: evaluations by name are needed, such as {{'A': one, 'B': other}}"
        )
    check_comparable(evaluations)
    (first_name, first), *others = evaluations.items()
    check_draws(draws, confidence)
    check_classes(first)
    weights = make_resampler(first).draw(draws, seed)
    # If no draw crosses zero, p is still at least 1 in that many draws. And with few classes, all of them may differ in
    # the same direction by chance.
    classes = len(first.with_curve) if first.has_curves else int((first.sizes > 0).sum())
    least = max(1 / (draws + 1), 2.0 ** (1 - classes))
    start = Scores(first, weights)
    return Comparison(
        first=first_name,
        others={name: differences(start, Scores(other, weights), confidence, least) for name, other in others},
        confidence=confidence,
        classes=first.class_count,
        least_p_value=least,
        compared=first.comparison,
        notes=(*notes_on_sizes(evaluations), *note_on_few_classes(first)),
    )


class Scores:
    """The scores of one model: as measured, and in each draw of classes.

    ``values`` are the measured scores where they are known more exactly than the evaluation's counts tell.
    """

    def __init__(self, evaluation: Evaluation, weights: Weights, values: Mapping[str, float] | None = None) -> None:
        resampler = make_resampler(evaluation)
        known = score_values(evaluation)
        self.values = known if values is None else {name: values[name] for name in known if name in values}
        drawn, undrawn = (
            resampler.scores(draws) | {"frr": resampler.frr_at_target(draws)}
            for draws in (weights, resampler.undrawn())
        )
        # Interpolating between distances shifts the draws and the undrawn score alike: remove that shift.
        self.drawn = {name: drawn[name] - undrawn[name] + value for name, value in self.values.items() if name in drawn}


def differences(first: Scores, other: Scores, confidence: float, least: float) -> tuple[Difference, ...]:
    """Return the difference of every score that both models have."""
    rows = []
    for name in first.drawn:
        if name not in other.drawn:
            continue
        a, b = first.values[name], other.values[name]
        drawn = other.drawn[name] - first.drawn[name]
        change = None
        if find_score(name).relative and a > 0 and first.drawn[name].min() > 0:
            change = percentile_interval(b / a - 1, other.drawn[name] / first.drawn[name] - 1, confidence)
        p_value = max(percentile_p_value(drawn), least) if np.ptp(drawn) > 0 else (1.0 if b == a else least)
        rows.append(Difference(name, a, b, percentile_interval(b - a, drawn, confidence), change, p_value))
    return tuple(rows)


def check_comparable(evaluations: Mapping[str, Evaluation]) -> None:
    """Refuse models that were not evaluated on the same classes with the same settings."""
    if len(evaluations) < 2:
        raise InputError(f"a comparison needs at least two evaluations, not {len(evaluations)}")
    (first_name, first), *others = evaluations.items()
    for name, other in others:
        if first.comparison != other.comparison:
            raise InputError(
                f"{first_name} compares {COMPARED[first.comparison]} and {name} {COMPARED[other.comparison]}: "
                "evaluate both in the same way"
            )
        check_same_classes(first_name, first, name, other)
        check_same_unknowns(first_name, first, name, other)
        if first.trials is not None and other.trials is not None:
            check_same_trials(first_name, first, name, other)
        for field in fields(Settings):
            first_value, other_value = getattr(first.settings, field.name), getattr(other.settings, field.name)
            if field.name in MUST_AGREE and first_value != other_value:
                raise InputError(
                    f"{first_name} was evaluated with {field.name} {first_value} and {name} with {other_value}: "
                    "scores can only be compared if they have the same settings, so evaluate both alike"
                )


def check_same_classes(first_name: str, first: Evaluation, name: str, other: Evaluation) -> None:
    """Refuse models that were evaluated on different classes."""
    first_classes, other_classes = set(first.names.tolist()), set(other.names.tolist())
    if first_classes == other_classes:
        return
    if set(map(str, first_classes)) == set(map(str, other_classes)):
        raise InputError(
            f"{first_name} and {name} have the same classes, but the labels are numbers in one and text in the other: "
            "use the same type for both"
        )
    parts = []
    for model, missing in ((first_name, other_classes - first_classes), (name, first_classes - other_classes)):
        if missing:
            shown = ", ".join(str(label) for label in sorted(missing, key=str)[:SHOWN])
            more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
            parts.append(f"{model} lacks {shown}{more}")
    raise InputError(
        f"{first_name} and {name} were not evaluated on the same classes ({'; '.join(parts)}): "
        "a paired comparison needs the same test classes for every model"
    )


def check_same_trials(first_name: str, first: Evaluation, name: str, other: Evaluation) -> None:
    """Refuse models that were not scored on the same list of trials, or with other costs."""
    for kind in ("positives", "negatives"):
        if not np.array_equal(getattr(first.counts, kind).totals, getattr(other.counts, kind).totals):
            raise InputError(
                f"{first_name} and {name} have different numbers of {kind[:-1]} trials per group: a paired comparison "
                "needs the same list of trials for every model"
            )
    choices = ("prior", "cost_false_accept", "cost_false_reject")
    for choice in choices:
        first_value, other_value = getattr(first.trials, choice), getattr(other.trials, choice)
        if first_value != other_value:
            raise InputError(
                f"{first_name} was evaluated with {choice} {first_value:g} and {name} with {other_value:g}: "
                "evaluate both alike"
            )


def check_same_unknowns(first_name: str, first: Evaluation, name: str, other: Evaluation) -> None:
    """Refuse galleries that were evaluated with unknown probes of different classes."""
    if first.identification is None or other.identification is None:
        return
    one, two = (found.unknown_names.tolist() for found in (first.identification, other.identification))
    if one != two:
        raise InputError(
            f"{first_name} and {name} were not evaluated with the same unknown probes ({len(one):,} and {len(two):,} "
            "classes): a paired comparison needs the same probes for every model"
        )


def notes_on_sizes(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Return a note for each model whose classes have other numbers of items than the first model's."""
    (first_name, first), *others = evaluations.items()
    notes = []
    for name, other in others:
        if changed := int((first.sizes != other.sizes).sum()):
            notes.append(f"{changed:,} classes have a different number of items in {name} than in {first_name}")
    return notes
