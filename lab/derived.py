"""Rows of a table that are not trained: raw features, and runs whose similarities are equalized.

`raw` is a training without a loss: the features that a head is trained on, or those of a pretrained network before it
is fine-tuned, pooled, at the recipe's test resolution. `TRAINING + local` are the embeddings of a run, measured with
the default `Equalizer` fitted on the test items, without their labels.

    FOLDER/SETTING/raw/seed-0/                             raw features, in the form of a run
    FOLDER/SETTING/CHOICES/seed-0/local-evaluation.json    the equalized evaluation of a run
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isomargin.core.errors import InputError
from isomargin.core.files import locked
from isomargin.equalize.equalizer import Equalizer
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluate import evaluate
from isomargin.measure.evaluation import Evaluation
from isomargin.training.recipe import Recipe, load_recipe
from isomargin.training.run_folder import RunFolder
from lab.choices import AXIS, NONE, RAW, is_local, is_raw, with_local, without_local
from lab.experiment import Plan, load_settings
from lab.plan import PlannedRun, base_of, location

MAIN, FROM_RAW, FROM_UNEQUALIZED, FROM_EQUALIZED = "", "raw", "unequalized", "equalized"
"""The comparisons of a row: with what the experiment compares, with raw features, with the same runs unequalized, and
of equalized runs with what the experiment compares, equalized too."""
LOCAL_EVALUATION = "local-evaluation.json"


def has_raw(recipe: Recipe) -> bool:
    """Tell whether a recipe trains on features, or fine-tunes a pretrained network."""
    return recipe.data.get("name") == "embeddings" or recipe.model.get("weights") is not None


def raw_choices(axes: Sequence[str]) -> dict[str, str]:
    """Give the choices of raw features: no loss, and nothing else either.

    >>> raw_choices(["loss", "training"])
    {'loss': 'none', 'training': 'raw'}
    """
    return {axis: RAW if axis == AXIS else NONE for axis in axes}


def bases(choices: Mapping[str, str], against: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Give what a row is compared with, by the label of the comparison.

    Plain training, equalized or not, is also compared with raw features if there are any, and what is equalized with
    the same runs unequalized and with plain training, equalized.

    >>> found = bases({"loss": "a", "training": "tcm + local"}, {"training": "plain"})
    >>> {label: base["training"] for label, base in found.items()}
    {'': 'plain', 'unequalized': 'tcm', 'equalized': 'plain + local'}
    >>> bases({"loss": "a", "training": "plain"}, {"training": "plain"})
    {'raw': {'loss': 'none', 'training': 'raw'}}
    """
    chosen, trained = dict(choices), without_local(choices)
    found: dict[str, dict[str, str]] = {}
    if is_raw(chosen):
        return {MAIN: trained, FROM_UNEQUALIZED: trained} if is_local(chosen) else {}
    base = base_of(trained, against)
    if base != chosen and against:
        found[MAIN] = base
    if is_local(chosen):
        found[FROM_UNEQUALIZED] = trained
        if trained != base:
            found[FROM_EQUALIZED] = with_local(base)
    if trained == base and AXIS in chosen:
        found[FROM_RAW] = raw_choices(list(chosen))
    return found


def with_derived(plan: Plan, runs: Sequence[PlannedRun], data: Mapping[str, Path]) -> list[PlannedRun]:
    """Add what a plan asks for besides its runs: raw features first in a setting, equalized runs behind each run."""
    added: list[PlannedRun] = []
    for setting in dict.fromkeys(run.setting for run in runs):
        here = [run for run in runs if run.setting == setting]
        here = [*(raw_runs(here, data) if plan.raw else ()), *here]
        if plan.equalized:
            groups: dict[str, list[PlannedRun]] = {}
            for run in here:
                groups.setdefault(run.variant, []).append(run)
            here = [
                one
                for group in groups.values()
                for one in (*group, *(run.model_copy(update={"choices": with_local(run.choices)}) for run in group))
            ]
        added += here
    return added


def raw_runs(runs: Sequence[PlannedRun], data: Mapping[str, Path]) -> list[PlannedRun]:
    """Plan the raw features of a setting's runs: one per seed where seeds have other test classes; none without any."""
    name, first = runs[0].setting, runs[0]
    if AXIS not in first.choices or not has_raw(first.recipe):
        return []
    setting = load_settings()[0][name]
    seeds = sorted({run.seed for run in runs}) if not first.recipe.evaluation.test else [0]
    place = location(name, setting, data)
    return [
        PlannedRun(
            setting=name,
            choices=raw_choices(list(first.choices)),
            seed=seed,
            recipe=load_recipe(setting.recipe, [*place, f"seed={seed}", f"name={name} raw"]),
        )
        for seed in seeds
    ]


def evaluate_raw(recipe: Recipe, folder: Path, *, workers: int | None = None, **_: Any) -> None:
    """Measure the features of a recipe's test items before anything is trained; called as `loop.train` is."""
    import torch

    from isomargin.models.embedder import make_model
    from isomargin.training import setup
    from isomargin.training.embed import as_embedding_set, data_root, default_workers, embed

    data = setup.open_data(recipe, check=False)
    items = data.test if recipe.evaluation.test else data.unseen
    if items is None:
        raise InputError(f"{recipe.name}: all classes are for training, so there are no raw features to measure")
    if items.vectors is not None:
        vectors = np.asarray(items.vectors)
    else:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        frozen = {"dimensions": None, "normalise": False, "layer_norm": False}
        network = make_model({**recipe.model, **frozen}).to(device).channels_last()
        vectors = embed(
            network,
            items,
            recipe.evaluation.batch,
            recipe.augmentation.resize,
            default_workers() if workers is None else workers,
            device,
        )
    run = RunFolder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    embeddings = as_embedding_set(vectors, items, data_root(recipe))
    evaluation = evaluated(embeddings, recipe)
    recipe.save(run.recipe)
    embeddings.save(run.embeddings)
    evaluation.save(run.evaluation)


def evaluated(embeddings: EmbeddingSet, recipe: Recipe, equalizer: Equalizer | None = None) -> Evaluation:
    """Evaluate with the rates of a recipe, as training does."""
    far = recipe.evaluation.far
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # its notes say the same
        return evaluate(
            embeddings.vectors, embeddings.labels, far=far, target_far=far[0], equalizer=equalizer, progress=None
        )


def equalized(run: PlannedRun, folder: Path) -> Evaluation:
    """Give the evaluation of a finished run with the default equalizer; computed once, beside the run's own."""
    place = RunFolder(folder / run.folder)
    path = place.path / LOCAL_EVALUATION
    with locked(place.path, wait=True):
        if not path.is_file():
            embeddings = EmbeddingSet.load(place.embeddings)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of few items, as the toy has
                equalizer = Equalizer().fit(embeddings.vectors)
            evaluated(embeddings, run.recipe, equalizer).save(path)
    return Evaluation.load(path)
