"""``check_card``: does a card still hold for what comes in now?

Without labels, production is compared with the card's own set under two null hypotheses (``drift.py``, or
``probe_drift.py`` for probes of a gallery). With labels, the realised rates decide. Canaries tell a changed model from
changed data. Facts, such as another dimension, need no test.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.json_values import null_for_nan
from isomargin.core.text import percent
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluate import EqualizesSimilarity
from isomargin.measure.gallery_shifts import GalleryShifts, HasClassOffsets, Sides
from isomargin.measure.pairs.axis import L2
from isomargin.measure.pairs.distances import Floats
from isomargin.measure.pairs.inputs import UNIT_TOLERANCE, ClassSortedVectors, Shifts, as_matrix
from isomargin.measure.settings import COMPARED
from isomargin.thresholds.canaries import CanaryComparison
from isomargin.thresholds.card import ThresholdCard, check_type
from isomargin.thresholds.check_text import check_summary
from isomargin.thresholds.drift import NULLS, DriftTest, Null, drift_tests, measure_sample, stability_index
from isomargin.thresholds.probe_drift import measure_probes, probe_tests
from isomargin.thresholds.probe_reference import KIND, ProbeReference, gallery_digest, random_rows, read_probes
from isomargin.thresholds.realised import RealisedRates, realised_rates
from isomargin.thresholds.reference import UNIT_SHARE, Reference, chosen_units
from isomargin.thresholds.same_shifts import check_same_shifts

Cause = Literal["nothing", "model", "data", "unknown"]
Against = Literal["either", "same_classes", "new_classes"]
FEWEST_ITEMS = 50  # items that a comparison without labels needs
MAKE_AGAIN = "make a new one with `isomargin threshold FILE --output card.json`"
MAKE_FOR_GALLERY = "make one with `isomargin threshold PROBES --gallery GALLERY --output card.json`"
OTHER_GALLERY = (
    "the gallery is not that of the card, so new probes cannot be compared without labels: give the card's gallery, or "
    f"labelled probes, or for this gallery {MAKE_FOR_GALLERY}"
)
OTHER_GALLERY_NOTE = "the gallery is not that of the card: only the realised rates were compared"


@dataclass(frozen=True)
class DriftResult:
    """The tests against one null hypothesis."""

    null: Null
    """The null hypothesis."""
    tests: tuple[DriftTest, ...]
    """One test per statistic."""
    level: float
    """Probability of a false alarm over all tests together."""

    @property
    def failed(self) -> tuple[DriftTest, ...]:
        """The tests that reject the null hypothesis, by Holm's procedure."""
        found: list[DriftTest] = []
        for i, test in enumerate(sorted(self.tests, key=lambda each: each.p_value)):
            if test.p_value >= self.level / (len(self.tests) - i):
                break
            found.append(test)
        return tuple(found)

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        failed = {test.name for test in self.failed}
        tests = [
            {name: null_for_nan(value) for name, value in asdict(test).items()} | {"rejects": test.name in failed}
            for test in self.tests
        ]
        return {"rejected": bool(failed), "tests": tests}


@dataclass(frozen=True, eq=False)
class CardCheck:
    """Whether a card holds, and why. Made by ``check_card``.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> centres, labels = generator.normal(size=(60, 8)), np.repeat(np.arange(60), 10)
    >>> embeddings = centres[labels] + 0.5 * generator.normal(size=(600, 8))
    >>> evaluation = im.evaluate(embeddings, labels)
    >>> choice = im.choose_threshold(evaluation, far=0.05)
    >>> card = im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(embeddings, labels))
    >>> later = centres[generator.integers(0, 60, 500)] + 0.5 * generator.normal(size=(500, 8))
    >>> im.check_card(card, later).holds, im.check_card(card, later + 1).holds
    (True, False)
    """

    holds: bool
    """Whether the card holds."""
    cause: Cause
    """What has changed: ``"nothing"``, the ``"model"`` (or its preprocessing), the ``"data"``, or ``"unknown"``."""
    facts: tuple[str, ...]
    """What is wrong without any test, such as another dimension."""
    items: int
    """Number of items of the set."""
    compared: int
    """Number of items, drawn from them at random, that were compared with each other, or with the gallery."""
    against: Against
    """The null hypothesis that decides; with ``"either"``, both must be rejected."""
    level: float
    """Probability of a false alarm, under each null hypothesis."""
    drift: tuple[DriftResult, ...]
    """The comparison without labels; empty if the dimensions differ, or the gallery is not that of the card."""
    stability_index: float | None
    """Population stability index of the distances of random pairs, or of probes and templates."""
    rates: RealisedRates | None
    """The realised rates, if there are labels; they then decide, together with the facts and the canaries."""
    canaries: CanaryComparison | None
    """How far the canaries have moved."""
    card: ThresholdCard
    """The card."""
    notes: tuple[str, ...] = ()
    """What the user should know."""

    def as_values(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "holds": self.holds,
            "cause": self.cause,
            "facts": list(self.facts),
            "items": self.items,
            "compared": self.compared,
            "against": self.against,
            "level": self.level,
            "drift": {result.null: result.as_values() for result in self.drift},
            "stability_index": self.stability_index,
            "rates": None if self.rates is None else self.rates.as_values(),
            "canaries": None if self.canaries is None else self.canaries.as_values(),
            "card": self.card.sha256,
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Summarise the check in a few lines of at most 88 columns: what was compared, the numbers, what to do."""
        return check_summary(self)


def check_card(
    card: ThresholdCard,
    embeddings: Any,
    labels: Any = None,
    *,
    gallery: EmbeddingSet | None = None,
    canaries: CanaryComparison | None = None,
    model: str | None = None,
    against: Against = "either",
    classes: int | None = None,
    level: float = 0.05,
    equalizer: EqualizesSimilarity | None = None,
    class_thresholds: HasClassOffsets | None = None,
    ids: Any = None,
    draws: int = 1000,
    seed: int = 0,
) -> CardCheck:
    """Check whether a card still holds for new embeddings, with or without labels.

    Without labels, the FAR cannot be known, because some random pairs are positive. The new items are therefore
    compared with the card's: the accept rate of random pairs, the whole distribution of their distances, the mean
    vector, and the lengths of the vectors. The items should be a random sample of what comes in. With labels, the
    realised FAR and FRR are compared with those of the card, and decide.

    For the card of a gallery, the new embeddings are probes. They are compared with the templates: the share of probes
    with any class accepted, the accept rate and the distances of all comparisons, the mean vector and the lengths. With
    labels, FPIR and FNIR decide if the threshold was chosen for an FPIR.

    Args:
        card: the card.
        embeddings: (n, d) new embeddings, at least 50; if there are more than 4,096, as many are drawn at random.
        labels: n labels.
        gallery: the enrolled items with their labels, for the card of a gallery. Without labels they must be those of
            the card. Templates, sides and margin are the card's.
        canaries: how far the canaries have moved, from `Canaries.compare`.
        model: the name of the model that is in use; it must be that of the card.
        against: what the new items should be, ``"same_classes"`` (other items of the classes of the card, in the same
            mix) or ``"new_classes"`` (items of other classes of the same kind). ``"either"``: the card holds if one of
            the two explains them.
        classes: the number of classes among the new items, for ``"new_classes"``; by default as many as the card has.
        level: the probability of a false alarm, over all tests together, under each null hypothesis.
        equalizer: the equalizer of the card, if it has one.
        class_thresholds: the class thresholds of the card, if it has some.
        ids: n names of the rows, by which an equalizer recognises rows of its reference.
        draws: number of bootstrap draws, for the intervals of labelled sets.
        seed: seed of the random draws.

    Raises:
        InputError: if the card has nothing to compare with, or the embeddings cannot be compared.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> centres, labels = generator.normal(size=(60, 8)), np.repeat(np.arange(60), 10)
    >>> embeddings = centres[labels] + 0.5 * generator.normal(size=(600, 8))
    >>> evaluation = im.evaluate(embeddings, labels)
    >>> choice = im.choose_threshold(evaluation, far=0.05)
    >>> card = im.make_card(choice, evaluation, embeddings=im.EmbeddingSet(embeddings, labels))
    >>> check = check_card(card, centres[labels] + generator.normal(size=(600, 8)), labels)
    >>> check.holds, check.rates.worse
    (False, ('frr',))
    """
    check_type(card, "card", ThresholdCard, "make_card")
    checks.one_of(against, "against", ("either", *NULLS))
    checks.share(level, "level")
    if gallery is not None:
        check_type(gallery, "gallery", EmbeddingSet, "EmbeddingSet")
    check_comparison(card, gallery is not None)
    reference = reference_of(card)
    if classes is not None:
        checks.whole(classes, "classes", 2)
    shifts = shifts_of(card, equalizer, class_thresholds)
    matrix = as_matrix(embeddings)
    facts = list(changed_facts(card, reference, matrix, model))
    notes = list(missing_notes(card, reference, model))
    if reference.dimensions is not None and matrix.shape[1] != reference.dimensions:
        return CardCheck(False, "model", tuple(facts), len(matrix), 0, against, level, (), None, None, canaries, card)
    if len(matrix) < FEWEST_ITEMS:
        raise InputError(f"embeddings has {len(matrix)} rows: at least {FEWEST_ITEMS} are needed to check a card")
    rows = random_rows(len(matrix), seed)
    if isinstance(reference, Reference):
        found = compare_pairs(reference, matrix, rows, equalizer, ids, classes)
    else:
        assert gallery is not None
        found = compare_probes(card, reference, matrix, rows, gallery, shifts, ids, classes)
    facts += length_facts(reference, found.lengths)
    if not found.tests:
        if labels is None:
            raise InputError(OTHER_GALLERY)
        notes.append(OTHER_GALLERY_NOTE)
    drift = tuple(DriftResult(null, tests, level) for null, tests in found.tests.items())
    rates = None
    if labels is not None:
        rates, more = realised_rates(card, embeddings, labels, shifts, ids, level, draws, seed, gallery)
        notes += more
    drifted = is_rejected(drift, against) if rates is None else bool(rates.failed)
    moved = canaries is not None and canaries.changed
    holds = not (facts or drifted or moved)
    return CardCheck(
        holds=holds,
        cause="nothing" if holds else cause_of(bool(facts), canaries),
        facts=tuple(facts),
        items=len(matrix),
        compared=len(rows),
        against=against,
        level=level,
        drift=drift,
        stability_index=found.stability_index,
        rates=rates,
        canaries=canaries,
        card=card,
        notes=tuple(notes),
    )


def check_comparison(card: ThresholdCard, with_gallery: bool) -> None:
    """Refuse the card of trials, the card of a gallery without one, and another card with a gallery."""
    compared = COMPARED[card.comparison]
    if card.comparison == "trials":
        raise InputError(
            f"the card is for {compared}, which cannot be checked: evaluate a new list with "
            "`isomargin evaluate --trials`"
        )
    if with_gallery and card.comparison != "gallery":
        raise InputError(
            f"the card is for {compared} and not for a gallery: {MAKE_FOR_GALLERY}, or leave out --gallery"
        )
    if not with_gallery and card.comparison == "gallery":
        raise InputError(
            f"the card is for {compared} and not for pairs of items: give --gallery GALLERY, or {MAKE_AGAIN} for pairs"
        )


def reference_of(card: ThresholdCard) -> Reference | ProbeReference:
    """Return what the card keeps of its own set, and refuse a card that keeps nothing."""
    if card.reference is None and card.comparison == "gallery":
        left_out = (
            "its probes were the enrolled items"
            if (card.gallery or {}).get("leave_one_out")
            else ("it is of an older version, or was made from an evaluation, or its known probes are of one class")
        )
        raise InputError(
            f"the card has nothing that new probes could be compared with ({left_out}): {MAKE_FOR_GALLERY}"
        )
    if card.reference is None:
        raise InputError(
            "the card has nothing that new data could be compared with (it is of an older version, or its pairs were "
            f"sampled, or its classes have fewer than four items): {MAKE_AGAIN}, from a file of embeddings"
        )
    if card.reference.get("comparison") == KIND:
        return ProbeReference.from_values(card.reference)
    return Reference.from_values(card.reference)


def shifts_of(
    card: ThresholdCard, equalizer: EqualizesSimilarity | None, class_thresholds: HasClassOffsets | None
) -> GalleryShifts:
    """Return what shifts similarities, on the card's sides, and refuse what the card was not measured with."""
    sides: Sides = "both" if equalizer is None else (card.gallery or {}).get("sides", "both")
    found = GalleryShifts(equalizer, sides, class_thresholds)
    check_same_shifts(card.equalizer, found.record(), "the card")
    return found


# ----- without labels


class Compared(NamedTuple):
    """The comparison of a set without labels with that of the card."""

    lengths: Floats
    """(n,) lengths of the vectors."""
    tests: dict[Null, tuple[DriftTest, ...]]
    """The tests by null hypothesis; none if they cannot be made."""
    stability_index: float | None
    """Population stability index."""


def compare_pairs(
    reference: Reference,
    matrix: Any,
    rows: NDArray[np.int64],
    equalizer: EqualizesSimilarity | None,
    ids: Any,
    classes: int | None,
) -> Compared:
    """Compare some rows with each other, and the distances of these pairs with those of the card."""
    data, lengths = unit_vectors(matrix, rows, equalizer, ids)
    sample = measure_sample(data, np.log(lengths), reference.distances)
    tests = {null: drift_tests(reference, sample, null, classes) for null in NULLS}
    expected = (reference.negatives + reference.positives)[1:]
    return Compared(lengths, tests, stability_index(sample.shares[1:], expected))


def compare_probes(
    card: ThresholdCard,
    reference: ProbeReference,
    matrix: Any,
    rows: NDArray[np.int64],
    gallery: EmbeddingSet,
    shifts: GalleryShifts,
    ids: Any,
    classes: int | None,
) -> Compared:
    """Compare some probes with the gallery of the card; there are no tests if the gallery is another one."""
    rule = card.gallery or {}
    data, lengths = read_probes(matrix, rows, None, gallery, rule["template"], shifts, ids)
    if gallery_digest(data) != reference.gallery:
        return Compared(lengths, {}, None)
    sample, accepted = measure_probes(data, np.log(lengths), reference.distances, rule["margin"])
    tests = {null: probe_tests(reference, sample, accepted, null, classes) for null in NULLS}
    return Compared(lengths, tests, stability_index(sample.shares[1:], reference.means[2:]))


def unit_vectors(
    matrix: Any, rows: NDArray[np.int64], equalizer: EqualizesSimilarity | None, ids: Any
) -> tuple[ClassSortedVectors, Floats]:
    """Return some rows as unit vectors, with the shifts of an equalizer, and their lengths."""
    vectors, lengths = chosen_units(matrix, rows)
    shifts: Shifts | None = None
    if equalizer is not None:
        shifts = equalizer.shifts(matrix[rows], None if ids is None else np.asarray(ids)[rows])
    data = ClassSortedVectors(
        vectors,
        class_of=np.zeros(len(rows), np.int64),
        sizes=np.array([len(rows)]),
        names=np.array([0]),
        notes=(),
        shifts=None if shifts is None else shifts.values,
        axis=L2 if shifts is None else shifts.axis,
    )
    return data, lengths


def is_rejected(drift: Sequence[DriftResult], against: Against) -> bool:
    """Return whether the null hypothesis that decides is rejected; with ``"either"``, whether both are."""
    rejected = [bool(result.failed) for result in drift if against in ("either", result.null)]
    return all(rejected)


def cause_of(facts: bool, canaries: CanaryComparison | None) -> Cause:
    """Return what has changed, given that something has."""
    if facts or (canaries is not None and canaries.changed):
        return "model"
    return "unknown" if canaries is None else "data"


def changed_facts(
    card: ThresholdCard, reference: Reference | ProbeReference, matrix: Any, model: str | None
) -> list[str]:
    """Return what has changed without any test: the dimension, the name of the model."""
    found = []
    if reference.dimensions is not None and matrix.shape[1] != reference.dimensions:
        found.append(f"the vectors have {matrix.shape[1]} dimensions, those of the card {reference.dimensions}")
    if model is not None and card.model is not None and model != card.model:
        found.append(f"the model is {model!r}, that of the card {card.model!r}")
    return found


def length_facts(reference: Reference | ProbeReference, lengths: Floats) -> list[str]:
    """Return what is wrong with the lengths, if those of the card were all one."""
    other = float((np.abs(lengths - 1) > UNIT_TOLERANCE).mean())
    if not reference.unit_lengths or other <= 1 - UNIT_SHARE:
        return []
    return [
        f"{percent(other)} of the vectors do not have length one (median {np.median(lengths):.3g}), those of the card "
        "did: normalise them, or the card's L2 and inner-product thresholds are wrong"
    ]


def missing_notes(card: ThresholdCard, reference: Reference | ProbeReference, model: str | None) -> list[str]:
    """Return what could not be compared, and how it could be."""
    found = []
    if not reference.whole:
        found.append(
            "the card was made from an evaluation alone: only the accept rate is tested, not the whole distribution, "
            "the mean vector, the lengths or the dimension; make the card from the embeddings"
        )
    if model is not None and card.model is None:
        found.append("the card does not name its model, so the name was not compared: make the card with --model")
    return found
