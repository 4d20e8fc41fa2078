"""``fit_adapter``: learns a linear layer for frozen embeddings, and says whether it is worth using.

Settings are chosen on the selection classes, and candidates are compared on the judgement classes. Nothing is fitted to
the judgement classes before that, so their scores are those of unseen classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.labels import labels_of_rows
from isomargin.core.progress import progress_bar
from isomargin.equalize.adapter import Adapter
from isomargin.equalize.equalizer import Equalizer
from isomargin.equalize.rows import unit_vectors
from isomargin.measure.comparison import compare
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.rates import threshold_at_far
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.training.adapt_result import ALL_CLASSES, CANDIDATES, AdaptResult, Look, recommend, scores_of_candidates
from isomargin.training.linear_layer import (
    ITEMS_PER_CLASS,
    LabelledVectors,
    Layer,
    LayerSettings,
    principal_components,
    train_layer,
)

DIMENSIONS = (64, 128, 256)
FEWEST_CLASSES = 20
FEWEST_JUDGED = 6  # with fewer classes no p value is below 5%
FEWEST_SELECTED = 5  # with 4 items each they have the 100 negative pairs that a FAR of 1% needs
SHARE = 0.2  # of the classes for selection, and for judgement
TARGET_FAR = 0.01
LOOK_ROWS = 2500  # rows of the selection classes that are compared at each look, which takes a fraction of a second

Margins = tuple[float, float]


@dataclass(frozen=True)
class Choices:
    """The settings to choose from."""

    dimensions: tuple[int, ...]
    learning_rates: tuple[float, ...]
    margins: tuple[Margins, ...]
    steps: tuple[int, ...]

    @property
    def trainings(self) -> int:
        """Number of trainings of the search: one setting is varied at a time."""
        return len(self.learning_rates) + len(self.dimensions) - 1 + len(self.margins) - 1


@dataclass(frozen=True)
class ClassParts:
    """Numbers of the classes by what they are for."""

    training: NDArray[np.int64]
    selection: NDArray[np.int64]
    judgement: NDArray[np.int64]

    @property
    def sizes(self) -> dict[str, int]:
        """Number of classes in each part."""
        return {name: len(classes) for name, classes in vars(self).items()}


def fit_adapter(
    embeddings: Any,
    labels: Any,
    *,
    dimensions: int | Sequence[int] = DIMENSIONS,
    learning_rates: Sequence[float] = (1e-4, 3e-4, 1e-3),
    margins: Sequence[Margins] = ((0.6, 0.4), (0.9, 0.5)),
    steps: Sequence[int] = (60, 120, 240, 480),
    seed: int = 0,
    refit: bool = True,
    progress: Callable[[float], None] | Literal["auto"] | None = "auto",
) -> AdaptResult:
    """Fit a linear adapter to frozen embeddings, and compare it with using them as they are.

    The classes are split into three parts, 60% for training, 20% for selection and 20% for judgement. A linear layer
    starts as the principal components of the training classes and is trained with Smooth-AP and TCM in batches of 50
    classes with 4 items each. The settings with the lowest FRR at FAR 1% on the selection classes are chosen. With
    these settings a layer is trained on the training and the selection classes, and four candidates are compared on the
    judgement classes: the raw embeddings, an equalizer, the adapter, and both. Equalizers have their default settings
    and see the judgement rows without labels.

    Recommended is the candidate with the lowest FRR at FAR 1% among those that lower it significantly and do no harm:
    recall@1 is not significantly worse, and OPIS is not significantly worse unless even the worst tenth of the classes
    gain utility. If there is none, the recommendation is to keep the raw embeddings.

    Last, the adapter is fitted on all classes. There are then no unseen classes to judge it on: its scores are those of
    the same settings fitted on 80% of the classes.

    Args:
        embeddings: (n, d) embeddings; they are scaled to length one.
        labels: n labels. At least 20 classes need 4 items each; smaller classes are left out.
        dimensions: dimensions of the output to choose from, or one number. At most those of the embeddings are used.
        learning_rates: learning rates of Adam to choose from.
        margins: pairs of a positive and a negative margin of TCM to choose from.
        steps: numbers of training steps to choose from.
        seed: of the split and of the batches. The same seed gives the same adapter on the same machine.
        refit: whether to fit the adapter on all classes in the end. Otherwise it is the one that was judged.
        progress: a function that is called with the share of the work done; ``"auto"`` shows a progress bar on a
            terminal after two seconds, and None shows nothing.

    >>> import isomargin as im
    >>> generator = np.random.default_rng(0)
    >>> labels = np.arange(480) % 40
    >>> classes, nuisance = generator.normal(size=(40, 4))[labels], 4 * generator.normal(size=(480, 4))
    >>> embeddings = np.hstack([classes + 0.3 * generator.normal(size=(480, 4)), nuisance])
    >>> result = im.fit_adapter(embeddings, labels, learning_rates=[0.01], margins=[(0.6, 0.4)], steps=[100])
    >>> result.recommended, result.adapter.transform(embeddings).shape
    ('adapter', (480, 8))
    """
    data, left_out = labelled_vectors(embeddings, labels)
    parts = split_classes(np.unique(data.classes), checks.whole(seed, "seed", 0))
    trained = data.of_classes(parts.training)
    rows, width = trained.vectors.shape
    choices = checked_choices(dimensions, learning_rates, margins, steps, most=min(width, rows - 1))
    checks.truth(refit, "refit")
    bar: AbstractContextManager[Any] = (
        progress_bar("fitting the adapter") if progress == "auto" else nullcontext(progress)
    )
    with bar as report:
        tick = counter(report, choices.trainings + 2 + refit)  # and the judged layer, the judgement, the last layer
        search = choose_settings(trained, data.of_classes(parts.selection), choices, seed, tick)
        settings = best(search).settings
        judged = fit_layer(data.of_classes(np.concatenate([parts.training, parts.selection])), settings, seed)
        tick()
        evaluations, notes = judge(data.of_classes(parts.judgement), judged)
        comparison = compare(evaluations)
        tick()
        layer = judged
        if refit:
            layer = fit_layer(data, settings, seed)
            tick()
    recommended = recommend(evaluations, comparison)
    classes = {**parts.sizes, "left_out": left_out}
    record = {
        "recommended": recommended,
        "rows": len(data.vectors),
        "classes": classes,
        "seed": int(seed),
        "settings": asdict(settings),
        "trained_on": ALL_CLASSES if refit else "training and selection classes",
        "scores_on_judgement_classes": scores_of_candidates(evaluations),
    }
    adapter = Adapter(layer.matrix, layer.bias, record=record)
    if recommended == "adapter + equalizer":
        adapter = replace(adapter, equalizer=fit_equalizer(adapter.transform(embeddings))[0])
    notes = (*note_on_small_classes(left_out), *notes, *comparison.notes)
    return AdaptResult(adapter, recommended, evaluations, comparison, settings, search, classes, notes)


# ----- input


def labelled_vectors(embeddings: Any, labels: Any) -> tuple[LabelledVectors, int]:
    """Return the rows of the classes that have enough items, and the number of classes that have not."""
    vectors = unit_vectors(embeddings)
    given = labels_of_rows(labels, len(vectors))
    names, classes, sizes = np.unique(given, return_inverse=True, return_counts=True)
    usable = np.flatnonzero(sizes >= ITEMS_PER_CLASS)
    if len(usable) < FEWEST_CLASSES:
        raise InputError(
            f"{len(usable)} of {len(sizes):,} classes have at least {ITEMS_PER_CLASS} items: an adapter needs "
            f"{FEWEST_CLASSES} such classes, some of them to judge it on; an Equalizer needs no labels"
        )
    return LabelledVectors(vectors, classes.astype(np.int64), names).of_classes(usable), len(sizes) - len(usable)


def note_on_small_classes(left_out: int) -> tuple[str, ...]:
    """Return a note if classes were left out."""
    if not left_out:
        return ()
    return (f"{left_out:,} classes with fewer than {ITEMS_PER_CLASS} items were left out",)


def checked_choices(dimensions: Any, learning_rates: Any, margins: Any, steps: Any, most: int) -> Choices:
    """Check the settings to choose from; dimensions are at most `most`, and the largest come first."""
    wanted = [dimensions] if isinstance(dimensions, Integral) else as_list(dimensions, "dimensions")
    pairs = [as_list(pair, "margins") for pair in as_list(margins, "margins")]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError(f"margins is {margins!r}: pairs of a positive and a negative margin are needed")
    sizes = {min(checks.whole(size, "dimensions", 2), most) for size in wanted}
    return Choices(
        dimensions=tuple(sorted(sizes, reverse=True)),
        learning_rates=tuple(
            checks.above_zero(rate, "learning_rates") for rate in as_list(learning_rates, "learning_rates")
        ),
        margins=tuple(checks.margins(*pair) for pair in pairs),
        steps=tuple(checks.whole(number, "steps") for number in as_list(steps, "steps")),
    )


def as_list(values: Any, name: str) -> list[Any]:
    """Return values as a list of at least one."""
    if not isinstance(values, Iterable) or isinstance(values, str) or not (found := list(values)):
        raise InputError(f"{name} is {values!r}: a list of at least one value is needed")
    return found


def split_classes(classes: NDArray[np.int64], seed: int) -> ClassParts:
    """Split classes at random into those for training, for selection and for judgement.

    >>> parts = split_classes(np.arange(100), seed=0)
    >>> len(parts.training), len(parts.selection), len(parts.judgement)
    (60, 20, 20)
    """
    shuffled = np.random.default_rng(seed).permutation(classes)
    judged = max(FEWEST_JUDGED, round(SHARE * len(classes)))
    selected = max(FEWEST_SELECTED, round(SHARE * len(classes)))
    return ClassParts(shuffled[judged + selected :], shuffled[judged : judged + selected], shuffled[:judged])


# ----- choosing settings


def choose_settings(
    trained: LabelledVectors, selected: LabelledVectors, choices: Choices, seed: int, tick: Callable[[], None]
) -> tuple[Look, ...]:
    """Try settings on the selection classes: learning rates first, then dimensions, then margins.

    Varying one at a time takes six trainings instead of 18. The number of steps needs no training of its own.
    """
    selected = rows_for_looks(selected)
    start = principal_components(trained.vectors, choices.dimensions[0])
    looks: list[Look] = []

    def try_settings(settings: LayerSettings) -> None:
        for reached, layer in train_layer(trained, start, settings, choices.steps, seed):
            adapted = Adapter(layer.matrix, layer.bias).transform(selected.vectors)
            looks.append(Look(reached, frr_at_target(adapted, selected.classes)))
        tick()

    size, steps = choices.dimensions[0], max(choices.steps)
    for rate in choices.learning_rates:
        try_settings(LayerSettings(size, rate, *choices.margins[0], steps))
    for smaller in choices.dimensions[1:]:
        try_settings(replace(best(looks).settings, dimensions=smaller))
    for positive, negative in choices.margins[1:]:
        try_settings(replace(best(looks).settings, positive_margin=positive, negative_margin=negative))
    return tuple(looks)


def best(looks: Sequence[Look]) -> Look:
    """Return the look with the lowest FRR; the first if several are equal."""
    return min(looks, key=lambda look: look.frr)


def rows_for_looks(data: LabelledVectors) -> LabelledVectors:
    """Return at most about `LOOK_ROWS` rows: the first items of each class, and if need be fewer classes."""
    names, sizes = np.unique(data.classes, return_counts=True)
    most = max(ITEMS_PER_CLASS, LOOK_ROWS // len(names))
    kept = names[: max(2, LOOK_ROWS // most)] if sizes.clip(max=most).sum() > LOOK_ROWS else names
    return data.at(np.concatenate([np.flatnonzero(data.classes == name)[:most] for name in kept]))


def frr_at_target(vectors: NDArray[np.float32], classes: NDArray[np.int64]) -> float:
    """Return the FRR at FAR 1%."""
    counts, _ = count_pairs(sort_by_class(vectors, classes), k=(), map_at_r=False)
    threshold = threshold_at_far(counts, TARGET_FAR, "reached")
    accepted = counts.positives.pooled_within(np.array([threshold]))[0]
    return float(1 - accepted / counts.positives.pooled_total)


# ----- judging


def fit_layer(data: LabelledVectors, settings: LayerSettings, seed: int) -> Layer:
    """Train a layer with the chosen settings."""
    start = principal_components(data.vectors, settings.dimensions)
    ((_, layer),) = train_layer(data, start, settings, [settings.steps], seed)
    return layer


def judge(data: LabelledVectors, layer: Layer) -> tuple[Mapping[str, Evaluation], tuple[str, ...]]:
    """Evaluate the four candidates on the judgement classes; return notes on the data too."""
    adapted = Adapter(layer.matrix, layer.bias).transform(data.vectors)
    equalizer, notes = fit_equalizer(data.vectors)
    of_adapted, _ = fit_equalizer(adapted)  # its notes are the same: they concern the number of rows
    candidates = ((data.vectors, None), (data.vectors, equalizer), (adapted, None), (adapted, of_adapted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they repeat the notes of the evaluations
        evaluations: dict[str, Evaluation] = {
            name: evaluate(vectors, data.labels, equalizer=used, progress=None)
            for name, (vectors, used) in zip(CANDIDATES, candidates, strict=True)
        }
    return evaluations, (*evaluations["raw"].all_notes, *notes)


def fit_equalizer(vectors: NDArray[np.float32]) -> tuple[Equalizer, tuple[str, ...]]:
    """Fit an equalizer with its default settings; return its warnings as notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        equalizer = Equalizer().fit(vectors)
    return equalizer, tuple(str(warning.message) for warning in caught)


def counter(report: Callable[[float], None] | None, parts: int) -> Callable[[], None]:
    """Return a function to call when one more part of the work is done."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done / parts)

    return tick
