"""Two or more models on the same classes: how their scores differ, and whether that could be chance.

The classes are drawn anew for all models at once, so that what is hard about a class counts for all of them alike:
differences are far more certain than the scores themselves.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.scores.registry import find_score
from isomargin.measure.settings import Settings
from isomargin.measure.statistics.intervals import (
    Interval,
    check_classes,
    check_draws,
    note_on_few_classes,
    percentile_interval,
    percentile_p_value,
    score_values,
)
from isomargin.measure.statistics.resampling import Resampler, Weights, draw_weights

if TYPE_CHECKING:
    import pandas

MUST_AGREE = (
    *("far", "frr", "distances", "grid", "epsilon", "c", "utility", "mean_curve", "epsilon_form", "target_far"),
    *("pairs", "negatives_per_positive"),
)
SHOWN = 3  # classes named in a complaint


@dataclass(frozen=True)
class Difference:
    """How one score of a model differs from the first model's."""

    score: str
    """Name of the score; ``frr`` is the FRR at the model's own threshold for the target FAR."""
    first: float
    """The first model's."""
    other: float
    """This model's."""
    difference: Interval
    """This model's less the first one's."""
    change: Interval | None
    """The same as a share of the first one's, of OPIS and its kin; None elsewhere, and where the first one's is 0."""
    p_value: float
    """Two-sided, of no difference."""

    @property
    def certain(self) -> bool:
        """Whether the interval of the difference leaves zero out."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def better(self) -> bool:
        """Whether the difference, certain or not, is to this model's advantage."""
        return (self.difference.value < 0) == find_score(self.score).lower_is_better and self.difference.value != 0


@dataclass(frozen=True)
class Comparison:
    """Models on the same classes; made by ``compare``."""

    first: str
    """Name of the model that the others are held against."""
    others: Mapping[str, tuple[Difference, ...]]
    """By name, the differences of each other model."""
    confidence: float
    """Of the intervals."""
    classes: int
    """Number of classes."""
    least_p_value: float
    """The smallest p-value that so many draws of so many classes can give."""
    notes: tuple[str, ...] = ()
    """What the user should know."""

    def sentence(self, name: str) -> str:
        """Say in one sentence how a model's OPIS and recall@1 differ from the first one's."""
        rows = {each.score: each for each in self.others[name]}
        parts = [self.phrase(f"{name}'s OPIS", rows["opis"])]
        recall = next((score for score in rows if score.startswith("recall@")), None)
        if recall is not None:
            parts.append(self.phrase(recall, rows[recall]))
        return "; ".join(parts)

    def phrase(self, subject: str, row: Difference) -> str:
        """Say how one score differs, or that it cannot be told."""
        if not row.certain:
            return f"{subject} is not distinguishable"
        direction = "lower" if row.difference.value < 0 else "higher"
        of = row.change or row.difference
        least, most = sorted((abs(of.low), abs(of.high)))
        if row.change:
            value, bounds = f"{abs(of.value):.0%}", f"{least:.0%} to {most:.0%}"
        elif find_score(row.score).unit != "rate":
            value, bounds = f"{abs(of.value):.2g}", f"{least:.2g} to {most:.2g}"
        else:
            value, bounds = f"{100 * abs(of.value):.2f} points", f"{100 * least:.2f} to {100 * most:.2f}"
        return f"{subject} is {value} {direction}, {self.confidence:.0%} interval {bounds}"

    def as_values(self) -> dict[str, Any]:
        """Give the differences and the sentences as JSON values."""
        models = {
            name: {"sentence": self.sentence(name), "differences": [asdict(row) for row in rows]}
            for name, rows in self.others.items()
        }
        return {"first": self.first, "classes": self.classes, "models": models, "notes": list(self.notes)}

    @property
    def table(self) -> "pandas.DataFrame":
        """One row a model and score."""
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
    """Hold the scores of models against the first one's, by paired bootstrap over their classes.

    Args:
        evaluations: by the models' names, at least two, of the same classes with the same settings.
        draws: how often the classes are drawn anew.
        confidence: of the intervals.
        seed: of the draws.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.repeat(np.arange(40), 8)
    >>> centres, noise = generator.normal(size=(40, 16))[labels], generator.normal(size=(320, 16))
    >>> rough, fine = (im.evaluate(centres + spread * noise, labels) for spread in (0.9, 0.5))
    >>> im.compare({"rough": rough, "fine": fine}).sentence("fine")
    "fine's OPIS is ... lower, 95% interval ...; recall@1 is ... points higher, 95% interval ..."
    """
    check_comparable(evaluations)
    (first_name, first), *others = evaluations.items()
    check_draws(draws, confidence)
    check_classes(first)
    weights = draw_weights(first.counts.positives.totals > 0, draws, seed)
    # No draw across zero leaves a chance of one in as many; and so few classes may all differ alike by chance.
    least = max(1 / (draws + 1), 2.0 ** (1 - len(first.curves.classes)))
    start = Scores(first, weights)
    return Comparison(
        first=first_name,
        others={name: differences(start, Scores(other, weights), confidence, least) for name, other in others},
        confidence=confidence,
        classes=first.class_count,
        least_p_value=least,
        notes=(*notes_on_sizes(evaluations), *note_on_few_classes(first)),
    )


class Scores:
    """One model's scores: as measured, and for the drawn classes."""

    def __init__(self, evaluation: Evaluation, weights: Weights) -> None:
        resampler = Resampler(evaluation)
        self.values = score_values(evaluation)
        drawn, whole = (
            resampler.scores(each) | {"frr": resampler.frr_at_target(each)}
            for each in (weights, np.ones((1, evaluation.class_count), np.uint16))
        )
        # What interpolating between distances has changed, it has changed in the draws too.
        self.drawn = {name: drawn[name] - whole[name] + value for name, value in self.values.items() if name in drawn}


def differences(first: Scores, other: Scores, confidence: float, least: float) -> tuple[Difference, ...]:
    """Give the difference of every score that both models have."""
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
    """Refuse models that were not measured on the same classes in the same way."""
    if len(evaluations) < 2:
        raise InputError(f"{len(evaluations)} evaluations were given: comparing needs at least two")
    (first_name, first), *others = evaluations.items()
    for name, other in others:
        check_same_classes(first_name, first, name, other)
        for field in fields(Settings):
            here, there = getattr(first.settings, field.name), getattr(other.settings, field.name)
            if field.name in MUST_AGREE and here != there:
                raise InputError(
                    f"{first_name} was evaluated with {field.name} {here} and {name} with {there}: "
                    "scores can only be compared that were measured alike, so evaluate both with the same settings"
                )


def check_same_classes(first_name: str, first: Evaluation, name: str, other: Evaluation) -> None:
    """Refuse models that were measured on different classes."""
    here, there = set(first.names.tolist()), set(other.names.tolist())
    if here == there:
        return
    if set(map(str, here)) == set(map(str, there)):
        raise InputError(
            f"{first_name} and {name} have the same classes, but the labels of one are numbers and of the other text: "
            "write both alike"
        )
    parts = []
    for which, missing in ((first_name, there - here), (name, here - there)):
        if missing:
            some = ", ".join(str(each) for each in sorted(missing, key=str)[:SHOWN])
            more = f" and {len(missing) - SHOWN:,} more" if len(missing) > SHOWN else ""
            parts.append(f"{which} lacks {some}{more}")
    raise InputError(
        f"{first_name} and {name} were not measured on the same classes ({'; '.join(parts)}): "
        "a paired comparison needs the same test classes for every model"
    )


def notes_on_sizes(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """Say so where models were measured on other numbers of images."""
    (first_name, first), *others = evaluations.items()
    notes = []
    for name, other in others:
        if changed := int((first.sizes != other.sizes).sum()):
            notes.append(f"{changed:,} classes have other numbers of images in {name} than in {first_name}")
    return notes
