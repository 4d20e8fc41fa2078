"""What cross-validation says about an equalizer: whether it is worth it, and what it does to classes to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isomargin.core.text import percent
from isomargin.equalize.folds import Objective
from isomargin.equalize.rows import Floats
from isomargin.measure.scores.within_two import is_within_two
from isomargin.measure.statistics.intervals import Interval


@dataclass(frozen=True)
class Verdict:
    """Whether equalizing is worth it, judged on classes that had no part in choosing the settings."""

    objective: Objective
    """What was to be improved."""
    raw: float
    """The objective of the raw similarities."""
    equalized: float
    """The objective of the equalized similarities."""
    gain: Interval
    """How much lower the objective is, with its confidence interval over classes."""
    classes: int
    """Number of classes."""
    recall_change: float
    """By how many points recall@1 changes."""
    recall_loss: float
    """How many points of recall@1 may be lost."""

    @property
    def loses_recall(self) -> bool:
        """Whether more of recall@1 is lost than may be."""
        return -self.recall_change > self.recall_loss + 1e-9

    @property
    def worth_it(self) -> bool:
        """Whether the objective improves significantly at no more than the loss of recall@1 that is allowed."""
        return self.gain.low > 0 and not self.loses_recall

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.objective == "far":
            before, after = (f"{2**value:.2f}" for value in (self.raw, self.equalized))
            found = f"on average a class's FAR is off the target by a factor of {after}, {before} without equalizing"
        else:
            found = f"OPIS is {self.equalized:.3g}, {self.raw:.3g} without equalizing"
        level = f"{1 - self.gain.confidence:.0%} level, {self.classes:,} held-out classes"
        if self.worth_it:
            return f"Equalizing is worth it: {found} (significant at the {level})."
        if self.gain.low > 0:
            return (
                f"Keep the raw similarities: {found}, but recall@1 falls by {-self.recall_change:.1f} points, more "
                f"than the {self.recall_loss:g} allowed."
            )
        if self.gain.high < 0:
            return f"Keep the raw similarities: {found}, which is significantly worse ({level})."
        return f"Keep the raw similarities: {found}, which is no significant improvement ({level})."


@dataclass(frozen=True)
class NewClassRates:
    """The FARs of held-out classes that are not in the index, at the threshold for the target FAR of those that are."""

    target: float
    """The target FAR."""
    raw: Floats
    """(classes,) FARs of the raw similarities."""
    equalized: Floats
    """(classes,) FARs of the equalized similarities."""
    left_out: int
    """Number of classes with too few pairs, or too few rows of other classes, to tell."""

    def summary(self) -> dict[str, Any]:
        """Return mean FARs and shares of classes within a factor of two of the target, as JSON values."""
        by_name = {
            name: {"mean_far": float(far.mean()), "within_two": float(is_within_two(far, self.target).mean())}
            for name, far in (("raw", self.raw), ("equalized", self.equalized))
        }
        return {**by_name, "classes": len(self.raw), "left_out": self.left_out}

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        raw, equalized = self.summary()["raw"], self.summary()["equalized"]
        left_out = f" ({self.left_out:,} classes left out, too few pairs)" if self.left_out else ""
        return (
            f"With each class left out of the index in turn{left_out}, {equalized['within_two']:.0%} of them "
            f"are within a factor of two of FAR {percent(self.target)} at the same threshold "
            f"({raw['within_two']:.0%} without equalizing), and their mean FAR is "
            f"{percent(equalized['mean_far'])} ({percent(raw['mean_far'])} without)."
        )
