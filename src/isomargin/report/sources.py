"""From runs to the page: which classes are shown closely, and where their images come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from isomargin.core.errors import InputError
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluation import Evaluation
from isomargin.report.contents import Examples
from isomargin.report.examples import class_examples, run_images
from isomargin.report.headline import target_point
from isomargin.report.write import write_report

LOOKED_AT = 200  # classes whose confusions are named


@dataclass(frozen=True)
class Source:
    """What a report is made from."""

    evaluation: Evaluation
    """The numbers."""
    embeddings: EmbeddingSet | None = None
    """That were evaluated; without them nothing is known of which class is taken for which."""
    folder: Path | None = None
    """Of the run, whose recipe tells where the images are."""


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
    """Write the page, with the confusions of the worst classes where embeddings are known.

    Args:
        sources: by the runs' names.
        path: of the .html file.
        title: of the page.
        intervals: whether scores have intervals.
        confusions: whether to look for the classes that are taken for the worst ones.
        thumbnails: how many of the worst classes are shown in pictures too.
        images: where the images are, if not where the recipe says.
    """
    if thumbnails and not any(source.folder and source.embeddings for source in sources.values()):
        raise InputError("pictures need a run's folder, whose recipe says where images are: give one, or ask for none")
    examples = {name: examples_of(name, source, thumbnails, images) for name, source in sources.items() if confusions}
    evaluations = {name: source.evaluation for name, source in sources.items()}
    write_report(evaluations, path, title=title, intervals=intervals, examples=examples)


def examples_of(name: str, source: Source, thumbnails: int = 0, images: Path | None = None) -> Examples:
    """Give the confusions of the worst classes, the very worst with pictures."""
    if source.embeddings is None:
        return {}
    check_evaluated(name, source.embeddings, source.evaluation)
    distance = target_point(source.evaluation).distance
    pictured: Examples = {}
    if thumbnails and source.folder is not None:
        shown = run_images(source.folder, [] if images is None else [f"data.root={images}"])
        pictured = class_examples(
            source.embeddings, worst_in_turn(source.evaluation, thumbnails), distance, images=shown
        )
    named = [each for each in worst_in_turn(source.evaluation, LOOKED_AT) if each not in pictured]
    return {**pictured, **class_examples(source.embeddings, named, distance)}


def check_evaluated(name: str, embeddings: EmbeddingSet, evaluation: Evaluation) -> None:
    """Refuse embeddings that are not those that were evaluated, by their classes and sizes."""
    names, sizes = np.unique(embeddings.labels, return_counts=True)
    if names.tolist() != evaluation.names.tolist() or sizes.tolist() != evaluation.sizes.tolist():
        raise InputError(
            f"{name}: the embeddings, {len(embeddings.labels):,} in {len(names):,} classes, are not those that were "
            f"evaluated, {evaluation.items:,} in {evaluation.class_count:,} classes: evaluate them again"
        )


def worst_in_turn(evaluation: Evaluation, number: int) -> list[int | str]:
    """Name the worst classes, in turn by mean utility, by FAR and by FRR: a reader may look for any of them.

    >>> import isomargin as im, numpy as np
    >>> embeddings = np.random.default_rng(0).normal(size=(60, 8)) + 3 * np.eye(8)[np.arange(60) % 6]
    >>> evaluation = im.evaluate(embeddings, np.arange(60) % 6)
    >>> worst_in_turn(evaluation, 1) == evaluation.worst_classes(1)["class"].tolist()
    True
    >>> sorted(worst_in_turn(evaluation, 100))
    [0, 1, 2, 3, 4, 5]
    """
    orders = [evaluation.worst_classes(number, by)["class"].tolist() for by in ("mean_utility", "far", "frr")]
    return list(dict.fromkeys(chain.from_iterable(zip(*(pad(each, number) for each in orders), strict=True))))[:number]


def pad(names: list[int | str], length: int) -> list[int | str]:
    """Repeat the last name so that a list has this length; it counts once."""
    return names + names[-1:] * (length - len(names))
