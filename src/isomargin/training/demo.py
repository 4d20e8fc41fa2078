"""The demo: one base loss alone, with TCM and with class alignment, trained on rendered letters, and then equalized.

The three recipes differ in the regularizer alone; seed and steps are the same. All three models are evaluated on
letters that none of them was trained on, with and without equalizing. docs/training.md says how the setting was chosen.
"""

import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isomargin.core.errors import InputError

if TYPE_CHECKING:
    from isomargin.measure.evaluation import Evaluation


@dataclass(frozen=True)
class DemoModel:
    """One of the three models."""

    recipe: str
    """Name of its recipe."""
    title: str
    """As tables and the report call it."""
    about: str
    """What it is trained with, for a reader who is new to it."""


BASE = "base"
MODELS = {
    BASE: DemoModel("demo", "base", "Smooth-AP, a rank-based loss, alone"),
    "tcm": DemoModel("demo-tcm", "base + TCM", "Smooth-AP and TCM, the paper's regularizer"),
    "alignment": DemoModel("demo-alignment", "base + alignment", "Smooth-AP and this project's class alignment"),
}
"""By the name of the run's folder; the first is what the others are compared with."""


def run_demo(
    folder: Path, seed: int = 0, changes: tuple[str, ...] = (), report: Callable[[str], None] | None = None
) -> dict[str, "Evaluation"]:
    """Train the three models, each to a run in `folder`, and give their evaluations by name.

    Runs of an earlier demo in the folder are replaced. `changes` are of the recipes. `report` is given a sentence
    before each training, with the time that is left.
    """
    from isomargin.training.loop import train
    from isomargin.training.recipe import load_recipe

    for name in MODELS:
        remove_run(folder / name)
    evaluations: dict[str, Evaluation] = {}
    begin = time.monotonic()
    for number, (name, model) in enumerate(MODELS.items()):
        if report is not None:
            report(f"model {number + 1} of {len(MODELS)}: {model.about}{time_left(time.monotonic() - begin, number)}")
        recipe = load_recipe(model.recipe, [f"seed={seed}", *changes])
        evaluation = train(recipe, folder / name)
        assert evaluation is not None  # the recipes keep letters for the test
        evaluations[name] = evaluation
    return evaluations


def equalize_run(folder: Path) -> "Evaluation":
    """Equalize the test embeddings of a run with the default settings, without labels, and evaluate them again.

    The equalizer is saved in the run's folder.
    """
    from isomargin.equalize.equalizer import Equalizer
    from isomargin.io.embedding_set import EmbeddingSet
    from isomargin.measure.evaluate import evaluate
    from isomargin.measure.evaluation import Evaluation
    from isomargin.training.run_folder import RunFolder

    run = RunFolder(folder)
    embeddings, settings = EmbeddingSet.load(run.embeddings), Evaluation.load(run.evaluation).settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # notes about the letters, which the first evaluation has given
        equalizer = Equalizer().fit(embeddings.vectors)
        equalizer.save(run.equalizer)
        return evaluate(
            embeddings.vectors,
            embeddings.labels,
            far=settings.far,
            target_far=settings.target_far,
            k=settings.k,
            equalizer=equalizer,
        )


def remove_run(folder: Path) -> None:
    """Delete the run of an earlier demo, and refuse to delete anything else."""
    if not folder.exists():
        return
    if not (folder / "recipe.yaml").is_file():
        raise InputError(f"{folder} already exists and is not a run: choose another --output")
    shutil.rmtree(folder)


def time_left(elapsed: float, trained: int) -> str:
    """Say how long the other models will take, once one is trained.

    >>> time_left(0.0, 0), time_left(70.0, 1)
    ('', '; about 2 min 20 s left')
    """
    from isomargin.training.display import in_words

    return f"; about {in_words(elapsed / trained * (len(MODELS) - trained))} left" if trained else ""
