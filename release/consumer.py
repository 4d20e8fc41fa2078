"""What a user's own program may look like: mypy --strict checks it against the installed wheel, without torch.

It is not run. `assert_type` fails if a public name lost its type and became Any.
"""

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import isomargin as im


def measure(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> im.Evaluation:
    """Return an evaluation of equalized similarities."""
    items = im.EmbeddingSet(vectors, labels)
    equalizer = assert_type(im.Equalizer(neighbours=10).fit(items.vectors), im.Equalizer)
    evaluation = assert_type(im.evaluate(items.vectors, items.labels, equalizer=equalizer), im.Evaluation)
    assert_type(evaluation.opis, float)
    assert_type(evaluation.scalars(), dict[str, float])
    return evaluation


def choose(evaluation: im.Evaluation, path: Path) -> float:
    """Save a card of a threshold, and return the threshold."""
    choice = im.choose_threshold(evaluation, far=0.01)
    card = assert_type(im.make_card(choice, evaluation), im.ThresholdCard)
    card.save(path)
    promised = im.promise_threshold(evaluation, far=0.05, delta=0.1)
    assert_type(promised.distance, float)
    return assert_type(im.ThresholdCard.load(path), im.ThresholdCard).distance


def watch(card: im.ThresholdCard, later: NDArray[np.float32]) -> bool:
    """Return whether the card holds for later items."""
    return assert_type(im.check_card(card, later), im.CardCheck).holds


def report(evaluations: dict[str, im.Evaluation]) -> None:
    """Write a report, and say what stands in the way of one threshold."""
    im.write_report(evaluations, "report.html")
    for evaluation in evaluations.values():
        for finding in im.diagnose(evaluation):
            assert_type(finding.sentence, str)


def refused() -> str:
    """Return the sentence of an error."""
    try:
        im.EmbeddingSet.load("nowhere.npz")
    except im.InputError as error:
        return str(error)
    return ""
