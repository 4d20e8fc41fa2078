"""From runs to the report: which classes are shown in detail, and where their images come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from isomargin.core.errors import InputError
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs.inputs import Shifts
from isomargin.report.contents import Examples
from isomargin.report.examples import class_examples, run_images
from isomargin.report.gallery_values import gallery_confusions
from isomargin.report.headline import opening_point, target_point
from isomargin.report.write import write_report

DETAILED = 200  # classes whose confusions are listed


@dataclass(frozen=True)
class Source:
    """One run of a report."""

    evaluation: Evaluation
    """All scores and counts."""
    embeddings: EmbeddingSet | None = None
    """The embeddings that were evaluated; without them the report has no confusions, except for galleries."""
    folder: Path | None = None
    """The folder of the run; its recipe says where the images are."""
    shifts: Shifts | None = None
    """What an equalizer added to the similarities, if they were equalized."""


def report_on(
    sources: Mapping[str, Source],
    path: Path,
    *,
    title: str | None = None,
    intervals: bool = True,
    confusions: bool = True,
    thumbnails: int = 0,
    images: Path | None = None,
) -> None:
    """Write the report, with the confusions of the worst classes if embeddings are given.

    Args:
        sources: the runs by name.
        path: the .html file to write.
        title: the title of the report.
        intervals: whether to compute confidence intervals.
        confusions: whether to find the classes that the worst classes are confused with.
        thumbnails: for how many of the worst classes to include images.
        images: the folder of the images, if they are not where the recipe says.
    """
    if thumbnails and not any(source.folder and source.embeddings for source in sources.values()):
        raise InputError(
            "thumbnails need the folder of a run, whose recipe says where the images are: give one, or leave them out"
        )
    examples = {name: examples_of(name, source, thumbnails, images) for name, source in sources.items() if confusions}
    evaluations = {name: source.evaluation for name, source in sources.items()}
    write_report(evaluations, path, title=title, intervals=intervals, examples=examples)


def examples_of(name: str, source: Source, thumbnails: int = 0, images: Path | None = None) -> Examples:
    """Return the confusions of the worst classes, with thumbnails for the very worst."""
    if source.evaluation.identification is not None:
        worst, point = worst_in_turn(source.evaluation, DETAILED), opening_point(source.evaluation)
        return gallery_confusions(source.evaluation, worst, point.distance)
    if source.embeddings is None or (source.evaluation.equalizer is not None and source.shifts is None):
        return {}  # without the equalizer, confusions of equalized similarities are unknown
    check_evaluated(name, source.embeddings, source.evaluation)
    distance = target_point(source.evaluation).distance
    pictured: Examples = {}
    if thumbnails and source.folder is not None:
        shown = run_images(source.folder, [] if images is None else [f"data.root={images}"])
        pictured = class_examples(
            source.embeddings,
            worst_in_turn(source.evaluation, thumbnails),
            distance,
            images=shown,
            shifts=source.shifts,
        )
    named = [name for name in worst_in_turn(source.evaluation, DETAILED) if name not in pictured]
    return {**pictured, **class_examples(source.embeddings, named, distance, shifts=source.shifts)}


def check_evaluated(name: str, embeddings: EmbeddingSet, evaluation: Evaluation) -> None:
    """Refuse embeddings whose classes and class sizes are not those that were evaluated."""
    names, sizes = np.unique(embeddings.labels, return_counts=True)
    if names.tolist() != evaluation.names.tolist() or sizes.tolist() != evaluation.sizes.tolist():
        raise InputError(
            f"{name}: the embeddings, {len(embeddings.labels):,} in {len(names):,} classes, are not those that were "
            f"evaluated, {evaluation.items:,} in {evaluation.class_count:,} classes: evaluate them again"
        )


def worst_in_turn(evaluation: Evaluation, number: int) -> list[int | str]:
    """List the worst classes, in turn by mean utility, by FAR and by FRR, because the report can be sorted by each.

    >>> import isomargin as im, numpy as np
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> worst_in_turn(evaluation, 1) == evaluation.worst_classes(1)["class"].tolist()
    True
    >>> sorted(worst_in_turn(evaluation, 100))
    [0, 1, 2, 3, 4, 5]
    """
    orders = [evaluation.worst_classes(number, by)["class"].tolist() for by in ("mean_utility", "far", "frr")]
    return list(dict.fromkeys(chain.from_iterable(zip(*(pad(names, number) for names in orders), strict=True))))[
        :number
    ]


def pad(names: list[int | str], length: int) -> list[int | str]:
    """Repeat the last name until the list has this length; duplicates are removed later."""
    return names + names[-1:] * (length - len(names))
