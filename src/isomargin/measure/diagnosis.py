"""``diagnose``: what stands in the way of one threshold, and what to do about it.

Each rule compares a statistic of an evaluation with a limit and proposes a remedy. docs/diagnosis.md lists the
statistics, and what they are on the data on which the limits were chosen.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from isomargin.core.text import percent, shortened
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.settings import of_groups
from isomargin.measure.statistics.item_noise import notes_on_noise

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation

FILE = "FILE"
"""Stands for the file of embeddings in the commands of a remedy."""

# The limits were chosen on features and trained networks of four data sets; docs/diagnosis.md has the values, and how
# the limits did on data that were not used to choose them.
MOST_REJECT = 0.75  # share of classes with an FRR above 1/2: 0.86 to 0.99 on image features, at most 0.70 elsewhere
CARRIED = 0.5  # share of OPIS that
FEW = 0.05  # at most this share of the classes carries: below 0.04 where a few look alike, above 0.06 elsewhere
FAR_OFF = 0.1  # deviation of their utility: above 0.16 on those sets; below it, one threshold serves them well enough
FAR_SPREAD = 0.5  # of class FARs, relative: 0.51 to 1.4 for unseen classes, 0.13 to 0.53 after equalizing
FRR_SPREAD = 0.1  # of class FRRs: networks that spread less had an OPIS below 0.0025
BEYOND_NOISE = 3.0  # variance per item noise: at least 5.9 for the FARs; noise alone reached 3 on 1 in 60 sets
COMMON_PART = 0.25  # mean cosine of negative pairs: above it, centring lowered EER by 1 point or more where EER was
POOR_EER = 0.1  # above this, and raised EER on the three networks with a lower one
GOOD_OPIS = 0.003  # the README's table says what to expect below it
LONGEST_NAME = 30  # columns of a class's name
PLENTY = 20  # classes from which a range leaves out the outermost 5% on both sides


@dataclass(frozen=True)
class Finding:
    """One thing that an evaluation shows, and what to do about it.

    >>> Finding("far_spread", "Classes differ in FAR.", "isomargin equalize FILE -o equalizer.json").name
    'far_spread'
    """

    name: str
    """The rule that found it: a key of docs/diagnosis.md."""
    sentence: str
    """What was found."""
    remedy: str
    """A command, in which FILE stands for the file of embeddings, or advice; empty if nothing need be done."""


def diagnose(evaluation: "Evaluation") -> tuple[Finding, ...]:
    """Say what stands in the way of one threshold for all classes and what to do about it, most important first.

    The rules and their limits are explained in docs/diagnosis.md. If none of them applies, the only finding is that one
    threshold suits the classes; there is no finding at all if OPIS is too high to say so. Galleries have one rule,
    about the FARs of enrolled classes.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(900) % 30
    >>> embeddings = generator.normal(size=(30, 32))[labels] + 0.3 * generator.normal(size=(900, 32))
    >>> for finding in im.diagnose(im.evaluate(embeddings, labels)):
    ...     print(finding.sentence)
    One threshold suits these classes about equally well.
    """
    if evaluation.comparison == "gallery":
        found = uneven_templates(evaluation)
        return () if found is None else (found,)
    if not evaluation.has_classes:
        return ()
    findings = tuple(finding for rule in RULES if (finding := rule(evaluation)) is not None)
    if not evaluation.axis.has_similarities:  # there are no embeddings to equalize or to train on
        findings = tuple(replace(found, remedy="" if FILE in found.remedy else found.remedy) for found in findings)
    if not findings and (evaluation.opis < GOOD_OPIS or evaluation.debiased_opis < GOOD_OPIS):
        findings = (Finding("one_threshold", "One threshold suits these classes about equally well.", ""),)
    return tuple(replace(found, sentence=of_groups(found.sentence, evaluation.comparison)) for found in findings)


# ----- the rules


def few_items(evaluation: "Evaluation") -> Finding | None:
    """Classes have so few items that OPIS is mostly noise; `notes_on_noise` decides and has the numbers."""
    if not notes_on_noise(evaluation) or evaluation.opis < GOOD_OPIS:
        return None  # noise only raises OPIS: one that is low in spite of it is low
    sentence = "Classes have too few items for OPIS to be trusted: see the note on noise."
    return Finding("few_items", sentence, "evaluate more items per class")


def no_separation(evaluation: "Evaluation") -> Finding | None:
    """Most classes reject most of their positive pairs: where all classes are bad, OPIS says little."""
    part = share_rejecting_most(evaluation)
    if part < MOST_REJECT:
        return None
    far = percent(evaluation.settings.target_far)
    sentence = f"{part:.0%} of classes reject most of their own pairs at FAR {far}: they are not well separated."
    return Finding("no_separation", sentence, f"a better model, more data, or isomargin adapt {FILE} -o adapter/")


def few_classes(evaluation: "Evaluation") -> Finding | None:
    """A few classes, served worse than the others, carry half of OPIS."""
    classes, part, deviation = worst_few(evaluation)
    if notes_on_noise(evaluation) or not classes or deviation < FAR_OFF:
        return None
    named = [shortened(str(evaluation.names[class_index]), LONGEST_NAME) for class_index in classes]
    listed = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    carry = "carries" if len(named) == 1 else "carry"
    sentence = f"Only {len(named)} of {len(evaluation.curves.classes):,} classes {carry} {part:.0%} of OPIS: {listed}."
    return Finding(
        "few_classes", sentence, f"look for mislabelled or merged classes: isomargin report {FILE} -o report.html"
    )


def uneven_rates(evaluation: "Evaluation") -> Finding | None:
    """Class FARs, or at least class FRRs, differ by more than the noise of the items.

    Equalizing evens out FARs. FRRs it evens out less, unless it makes FARs uneven, so training comes first for them.
    """
    if evaluation.eer < evaluation.settings.target_far:
        return None  # a stricter threshold has lower rates on both sides
    far_spread, frr_spread = rate_spreads(evaluation)
    point, equalize = evaluation.target, f"isomargin equalize {FILE} -o equalizer.json"
    if far_spread > FAR_SPREAD:
        far = percent(evaluation.settings.target_far)
        sentence = f"Class FAR goes from {value_range(point.class_far)} at the one threshold for FAR {far}."
        if not evaluation.far_within_two.classes:  # the range of such rates would be mostly chance
            sentence = (
                f"Class FARs differ by more than chance explains at the one threshold for FAR {far}, but classes have "
                "too few pairs to say by how much."
            )
        return Finding("far_spread", sentence, after_equalizing(evaluation) if evaluation.equalizer else equalize)
    if frr_spread > FRR_SPREAD:
        alike = "Class FARs are alike, but class" if evaluation.far_within_two.classes else "Class"
        sentence = f"{alike} FRR goes from {value_range(point.class_frr)}."
        align = "train with class alignment (docs/training.md)"
        return Finding(
            "frr_spread", sentence, align if evaluation.equalizer else f"{align} or, with less effect, {equalize}"
        )
    return None


def uneven_templates(evaluation: "Evaluation") -> Finding | None:
    """Return whether the FARs of enrolled classes differ by more than the noise of the probes."""
    far_spread, _ = rate_spreads(evaluation)
    if far_spread <= FAR_SPREAD or not evaluation.far_within_two.classes:
        return None  # with too few comparisons, class FARs say little
    far = percent(evaluation.settings.target_far)
    sentence = f"Class FAR goes from {value_range(evaluation.target.class_far)} at the one threshold for FAR {far}."
    if evaluation.equalizer is not None:
        return Finding("far_spread", sentence, "")
    remedy = "try class thresholds for the enrolled classes, or an equalizer of the templates: docs/deployed.md"
    return Finding("far_spread", sentence, remedy)


def after_equalizing(evaluation: "Evaluation") -> str:
    """Return what to do about class FARs that differ in spite of equalizing."""
    settings, items = evaluation.equalizer or {}, float(np.median(evaluation.sizes))
    if settings.get("method") == "local" and settings["skip"] < items / 2:
        return f"set the equalizer's skip to about {items:g}, the number of items per class (docs/equalize.md)"
    return "choose a threshold with a promise for each class (docs/thresholds.md)"


def common_part(evaluation: "Evaluation") -> Finding | None:
    """Cosines are high even between classes, because all embeddings share a common part: their mean."""
    similarity = evaluation.counts.negatives.mean_similarity
    if evaluation.axis.name != "l2_distance" or similarity < COMMON_PART or evaluation.eer < POOR_EER:
        return None  # equalizing subtracts the common part too, and other scores are not cosines
    sentence = f"Embeddings share a common part: the mean cosine of negative pairs is {similarity:.2f}."
    remedy = "subtract their mean before normalising and evaluate again: EER and FRR usually fall, OPIS need not"
    return Finding("common_part", sentence, remedy)


RULES = (few_items, no_separation, few_classes, uneven_rates, common_part)
"""Most important first: what makes the other numbers doubtful, then what costs most."""


# ----- the statistics


def share_rejecting_most(evaluation: "Evaluation") -> float:
    """Return the share of classes that reject more than half of their positive pairs at the target threshold."""
    class_frr = evaluation.target.class_frr
    return float((class_frr[~np.isnan(class_frr)] > 0.5).mean())


def worst_few(evaluation: "Evaluation") -> tuple[list[int], float, float]:
    """Return the fewest classes that carry half of OPIS, their share of it, and how far off their utility is.

    Only classes below the mean are considered, the farthest first. The list is empty if more than a few are needed. How
    far off they are is the root mean square of their deviations from the mean curve.
    """
    curves = evaluation.curves
    squared = curves.squared_deviations
    below = np.where(curves.class_mean_utility < curves.mean_utility.mean(), squared, 0.0)
    farthest = np.argsort(-below, kind="stable")[: int(FEW * len(squared))]
    carried = np.cumsum(below[farthest]) / max(float(squared.sum()), np.finfo(float).tiny)
    needed = int(np.searchsorted(carried, CARRIED)) + 1
    if needed > len(farthest):
        return [], 0.0, 0.0
    chosen = farthest[:needed]
    return curves.classes[chosen].tolist(), float(carried[needed - 1]), float(np.sqrt(squared[chosen].mean()))


def rate_spreads(evaluation: "Evaluation") -> tuple[float, float]:
    """Return the spread of class FARs relative to their mean and the spread of class FRRs, both without item noise.

    A spread is the standard deviation over classes at the target threshold. It is 0 if the noise of the items explains
    a third of the variance, or if it is unknown.
    """
    noise, point = evaluation.item_noise, evaluation.target
    if noise is None:
        return 0.0, 0.0
    far_noise, frr_noise = noise.of_rates(point.distance, evaluation)
    class_far = point.class_far[noise.classes]
    mean_far = float(class_far.mean())
    relative = beyond_noise(class_far, far_noise) / mean_far if mean_far > 0 else 0.0
    return relative, beyond_noise(point.class_frr[noise.classes], frr_noise)


def beyond_noise(rates: Floats, noise: Floats) -> float:
    """Return the standard deviation of rates without their noise; 0 if the variance is not well above the noise.

    >>> rates = np.array([0.0, 1.0])
    >>> beyond_noise(rates, np.array([0.0, 0.0])), beyond_noise(rates, np.array([0.1, 0.1]))
    (0.5, 0.0)
    """
    variance, mean_noise = float(rates.var()), max(float(noise.mean()), 0.0)
    return float(np.sqrt(variance - mean_noise)) if variance > BEYOND_NOISE * mean_noise else 0.0


def value_range(rates: Floats) -> str:
    """Return from where to where rates go, without the outermost classes if there are many.

    >>> value_range(np.array([0.01, 0.2])), value_range(np.linspace(0, 1, 101))
    ('1% to 20%', '5% to 95% (9 classes in 10)')
    """
    known = rates[~np.isnan(rates)]
    many = len(known) >= PLENTY
    low, high = np.quantile(known, (0.05, 0.95) if many else (0.0, 1.0))
    ends = " to ".join(percent(float(f"{end:.2g}")) for end in (low, high))
    return ends + (" (9 classes in 10)" if many else "")
